"""Real data: two photographs through banks of filters for edges, blur and texture.

scikit-image brings the pictures (its bundled astronaut and coffee). As bytes, through filters of small integers, every sum is
exact in float32, so that there the result must match to the bit.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator

import numpy as np

from numbadnn.cases import parse
from numbadnn.measuring.data import buffer
from numbadnn.validate.check import Subject
from numbadnn.validate.oracle import Trial, expected

LUMINANCE = np.array([0.299, 0.587, 0.114])


def missing() -> str:
    """Why the photographs cannot be had ("" = they can)."""
    if importlib.util.find_spec("skimage") is None:
        return "the photographs come with scikit-image, which is not installed (pip install numbadnn[cli])"
    return ""


def photographs(side: int) -> np.ndarray:
    """(2, 3, side, side) in 0..255, whole numbers: the astronaut and the coffee."""
    from skimage import data, transform

    pictures = [transform.resize(p, (side, side), anti_aliasing=True) for p in (data.astronaut(), data.coffee())]
    return np.round(255 * np.stack(pictures)).transpose(0, 3, 1, 2)


def edges() -> np.ndarray:
    """Sobel in two directions, Prewitt in two diagonals and Laplace, over the sum of the colours: (5, 3, 3, 3)."""
    sobel = np.array([[1, 0, -1], [2, 0, -2], [1, 0, -1]])
    diagonal = np.array([[1, 1, 0], [1, 0, -1], [0, -1, -1]])
    laplace = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]])
    bank = np.stack([sobel, sobel.T, diagonal, diagonal[:, ::-1], laplace])
    return np.repeat(bank[:, None], 3, axis=1).astype(np.float64)


def blur() -> np.ndarray:
    """A Gaussian of sigma 1.5 on each colour of its own: (3, 1, 7, 7)."""
    line = np.exp(-0.5 * np.square(np.arange(-3, 4) / 1.5))
    kernel = np.outer(line, line)
    return np.repeat((kernel / kernel.sum())[None, None], 3, axis=0)


def gabor() -> np.ndarray:
    """Eight orientations at two wavelengths, on luminance: (16, 3, 11, 11)."""
    rows, cols = np.mgrid[-5:6, -5:6]
    bank = []
    for wavelength in (4.0, 8.0):
        for angle in np.arange(8) * math.pi / 8:
            across = cols * math.cos(angle) + rows * math.sin(angle)
            envelope = np.exp(-(np.square(rows) + np.square(cols)) / (2 * 9.0))
            bank.append(envelope * np.cos(2 * math.pi * across / wavelength))
    return np.stack(bank)[:, None] * LUMINANCE[:, None, None]


BANKS = {"edges": (edges, 1), "blur": (blur, 3), "gabor": (gabor, 1)}
OPERATIONS = ("conv2d", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights")


def names() -> list[str]:
    """The photographs' cases: every bank forward in three types, the Gabor bank's gradients in float32."""
    forward = [f"photographs/{bank}/{dtype}" for bank in BANKS for dtype in ("float32", "float32-nhwc", "float16-nhwc")]
    return [*forward, "photographs/gabor/grad-inputs", "photographs/gabor/grad-weights"]


def operation(name: str) -> str:
    return {"grad-inputs": OPERATIONS[1], "grad-weights": OPERATIONS[2]}.get(name.split("/")[2], OPERATIONS[0])


def subjects(chosen: list[str], side: int) -> Iterator[Subject]:
    """The cases of these names with their arrays; gradients start from the filtered photographs."""
    images = photographs(side)
    for name in chosen:
        _, bank, kind = name.split("/")
        make, groups = BANKS[bank]
        filters, op = make(), operation(name)
        dtype, _, layout = kind.partition("-") if op == OPERATIONS[0] else ("float32", "", "")
        form = f":{layout}" if layout else ""
        sizes = ["x".join(map(str, a.shape)) for a in (images, filters)]
        pad = ",".join([str(filters.shape[2] // 2)] * 4)
        problem = parse(f"{op} x={dtype}:{sizes[0]}{form} w={dtype}:{sizes[1]}{form} pad={pad} groups={groups}")
        whole = bank == "edges" and dtype == "float32"
        values = {"x": images if whole else images / 255, "w": filters}
        if op != OPERATIONS[0]:
            forward = parse(str(problem).replace(op, OPERATIONS[0], 1))
            values["y"] = expected(forward, (values["x"], values["w"]))[0]
        order = {OPERATIONS[0]: "xw", OPERATIONS[1]: "yw", OPERATIONS[2]: "xy"}[op]
        arrays = [buffer(s, values[o]).array for s, o in zip(problem.inputs, order, strict=True)]
        trial = Trial(problem, tuple(arrays))
        subject = Subject(name, problem, trial)
        subject.integers = trial if whole else None
        yield subject
