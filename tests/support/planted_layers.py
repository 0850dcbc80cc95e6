"""Mistakes of one layer, as conversions and kernels make them: each an implementation of conv2d that is wrong for one problem.

All but the sums in float16 are what ``cpu.im2col`` computes of operands, or of a problem, that are a little wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from numbadnn.problem import Policy
from numbadnn.registry import Executable, Impl, implementations

Change = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def rounded(array: np.ndarray) -> np.ndarray:
    """To 11 bits, as TF32 rounds: to the nearest, ties to even."""
    bits = array.astype(np.float32).view(np.uint32)
    bits = (bits + 0x0FFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)
    return bits.astype(np.uint32).view(np.float32).reshape(array.shape)


def weight(rng: np.random.Generator) -> Change:
    """One weight, any one, is a thousandth of its size off."""
    place = rng.random()

    def change(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        w = w.copy()
        w.flat[int(place * w.size)] *= w.dtype.type(1.001)
        return x, w

    return change


def transposed(rng: np.random.Generator) -> Change:
    return lambda x, w: (x, np.ascontiguousarray(w.swapaxes(-1, -2)))


def tf32(rng: np.random.Generator) -> Change:
    return lambda x, w: (rounded(x), rounded(w))


def pad(problem: Any) -> Any:
    """The image lies one row too high."""
    (top, bottom), *others = problem.padding
    return replace(problem, padding=((top - 1, bottom + 1), *others))


def float16_sums(problem: Any, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    """Products in float32, added one after the other in float16."""
    windows = np.lib.stride_tricks.sliding_window_view
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], problem.dilation, strict=True)]
    padded = np.pad(x, ((0, 0), (0, 0), *problem.padding))
    (sh, sw), (dh, dw) = problem.stride, problem.dilation
    seen = windows(padded, reach, (2, 3))[:, :, ::sh, ::sw, ::dh, ::dw]
    w = w[:, :, ::-1, ::-1] if problem.flip else w
    groups, each = problem.groups, w.shape[1]
    total = np.zeros(y.shape, np.float16)
    for k in range(w.shape[0]):
        first = k // (w.shape[0] // groups) * each
        for c, r, s in np.ndindex(w.shape[1:]):
            total[:, k] = (total[:, k] + seen[:, first + c, :, :, r, s] * w[k, c, r, s]).astype(np.float16)
    y[...] = total


FAULTS = ("weight", "tf32", "float16", "transposed", "pad")


def implementation(fault: str, problem: Any, rng: np.random.Generator) -> Impl:
    """``planted.FAULT``, which takes this problem alone."""
    of_op = implementations(problem.op, ("cpu",))
    right = next(impl for impl in of_op if impl.name == "cpu.im2col")
    change = {"weight": weight, "tf32": tf32, "transposed": transposed}.get(fault, lambda rng: lambda x, w: (x, w))(rng)

    def plan(asked: Any, policy: Policy, config: Any) -> Executable:
        real = right.plan(pad(asked) if fault == "pad" else asked, policy, None)

        def run(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
            if fault == "float16":
                float16_sums(asked, *inputs, outputs[0])
            else:
                real.run(change(*inputs), outputs, workspace, stream)

        return replace(real, run=run, direct=None)

    def supports(asked: Any, policy: Policy) -> str:
        return "" if str(asked) == str(problem) else "it is wrong for another problem alone"

    return Impl(problem.op, "cpu", f"planted.{fault}", supports, plan, lambda p: 1e9)


def drawn(rng: np.random.Generator) -> str:
    """The line of a layer: sums of 27 to 800 products, square filters, padded."""
    n, c, k = int(rng.integers(1, 3)), int(rng.choice((3, 8, 16, 32))), int(rng.integers(4, 17))
    taps = int(rng.choice((3, 5)))
    size, stride = [int(v) for v in rng.integers(8, 17, 2)], int(rng.integers(1, 3))
    flip, half = int(rng.integers(0, 2)), taps // 2
    line = f"conv2d x=float32:{n}x{c}x{size[0]}x{size[1]} w=float32:{k}x{c}x{taps}x{taps}"
    return f"{line} pad={half},{half},{half},{half} stride={stride},{stride} flip={flip}"


def terms(problem: Any) -> int:
    return math.prod(problem.w.shape[1:])
