"""Random problems for numbadnn.dask from a seed: an operation, arrays, parameters and chunks, to be computed both ways."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import dask.array as da
import ml_dtypes
import numpy as np

import numbadnn
import numbadnn.dask

DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
MODES = ("max", "average_inc_pad", "average_exc_pad", "sum")


class Problem(NamedTuple):
    """A call: its function's name, its arrays (cut where ``chunks`` has sizes) and its parameters."""

    function: str
    arrays: tuple[np.ndarray, ...]
    chunks: tuple[Any, ...]
    keywords: dict[str, Any]

    def undivided(self) -> Any:
        return getattr(numbadnn, self.function)(*self.arrays, **self.keywords)

    def divided(self, **where: Any) -> Any:
        """The result as a Dask array; ``where``: device, devices."""
        pairs = zip(self.arrays, self.chunks, strict=True)
        arrays = [a if c is None else da.from_array(a, chunks=c) for a, c in pairs]
        return getattr(numbadnn.dask, self.function)(*arrays, **self.keywords, **where)

    def __str__(self) -> str:
        arrays = ", ".join(f"{a.dtype}{a.shape} in {c}" for a, c in zip(self.arrays, self.chunks, strict=True))
        return f"{self.function}({arrays}, {self.keywords})"


def problems(seed: int, families: Any = None) -> Iterator[Problem]:
    """Problems without end; those that no window fits are left out."""
    random = np.random.default_rng(seed)
    draws = list(
        families or (convolution, convolution, gradient, transpose, pooling, pooling_gradient, upsampling, causal)
    )
    while True:
        found = draws[random.integers(len(draws))](random)
        if found is not None:
            yield found


def cut(random: Any, shape: tuple[int, ...], channels: int = 1) -> tuple[tuple[int, ...], ...]:
    """Chunks of random sizes, of one element among them; the channels whole."""
    chunks = []
    for axis, n in enumerate(shape):
        edges = sorted({0, n, *(() if axis == channels else random.integers(0, n + 1, random.integers(0, 3)).tolist())})
        chunks.append(tuple(b - a for a, b in itertools.pairwise(edges)))
    return tuple(chunks)


def numbers(random: Any, *shape: int, dtype: Any) -> np.ndarray:
    return random.standard_normal(shape).astype(dtype)


def _geometry(random: Any) -> Any:
    """(images' shape, filters' shape, parameters, output's shape), or None."""
    axes = int(random.integers(2, 4))
    groups = int(random.choice([1, 1, 1, 2, 4]))
    channels, filters = groups * int(random.integers(1, 7)), groups * int(random.integers(1, 9))
    image = tuple(random.integers(1, {2: 24, 3: 11}[axes], axes).tolist())
    kernel = tuple(random.integers(1, 5, axes).tolist())
    stride = tuple(random.choice([1, 1, 2, 3], axes).tolist())
    dilation = tuple(random.choice([1, 1, 2, 3], axes).tolist())
    padding = tuple((int(a), int(b)) for a, b in random.integers(0, 5, (axes, 2)))
    out = []
    for n, k, s, d, (a, b) in zip(image, kernel, stride, dilation, padding, strict=True):
        out.append((n + a + b - (k - 1) * d - 1) // s + 1)
    if min(out) < 1:
        return None
    batch = int(random.integers(1, 4))
    parameters = {
        "border_mode": padding, "subsample": stride, "filter_dilation": dilation, "num_groups": groups,
        "filter_flip": bool(random.integers(2)),
    }  # fmt: skip
    return (batch, channels, *image), (filters, channels // groups, *kernel), parameters, (batch, filters, *out)


def convolution(random: Any) -> Problem | None:
    found = _geometry(random)
    if found is None:
        return None
    image, filters, parameters, _ = found
    dtype = random.choice(DTYPES)
    arrays = numbers(random, *image, dtype=dtype), numbers(random, *filters, dtype=dtype)
    return Problem(f"conv{len(image) - 2}d", arrays, (cut(random, image), None), parameters)


def gradient(random: Any) -> Problem | None:
    found = _geometry(random)
    if found is None:
        return None
    image, filters, parameters, out = found
    dtype = random.choice(DTYPES)
    arrays = numbers(random, *out, dtype=dtype), numbers(random, *filters, dtype=dtype)
    keywords = {"input_shape": image, **parameters}
    return Problem(f"conv{len(image) - 2}d_grad_wrt_inputs", arrays, (cut(random, out), None), keywords)


def transpose(random: Any) -> Problem | None:
    found = gradient(random)
    if found is None:
        return None
    function = found.function.replace("grad_wrt_inputs", "transpose")
    renamed = {"input_shape": "output_shape", "subsample": "input_dilation"}
    return found._replace(function=function, keywords={renamed.get(k, k): v for k, v in found.keywords.items()})


def causal(random: Any) -> Problem:
    n, c, k, t, s = (int(random.integers(1, high)) for high in (3, 6, 6, 40, 6))
    dtype = random.choice(DTYPES)
    image = (n, c, t)
    keywords = {"subsample": int(random.integers(1, 4)), "filter_dilation": int(random.integers(1, 4))}
    arrays = numbers(random, *image, dtype=dtype), numbers(random, k, c, s, dtype=dtype)
    return Problem("causal_conv1d", arrays, (cut(random, image), None), keywords)


def pooling(random: Any) -> Problem | None:
    axes = int(random.integers(2, 4))
    image = (*random.integers(1, 9, 2).tolist(), *random.integers(1, {2: 24, 3: 11}[axes], axes).tolist())
    ws = tuple(random.integers(1, 5, axes).tolist())
    pad = tuple(int(random.integers(0, w)) for w in ws)
    if any(n + 2 * p < w for n, p, w in zip(image[2:], pad, ws, strict=True)):
        return None
    stride = tuple(random.integers(1, 5, axes).tolist())
    keywords = {"ws": ws, "stride": stride, "mode": str(random.choice(MODES)), "pad": pad}
    x = numbers(random, *image, dtype=random.choice(DTYPES))
    return Problem("pool", (x,), (cut(random, image),), keywords)


def pooling_gradient(random: Any) -> Problem | None:
    found = pooling(random)
    if found is None:
        return None
    (x,), (chunks,) = found.arrays, found.chunks
    y = found.undivided()
    dy = numbers(random, *y.shape, dtype=y.dtype)
    return Problem("pool_grad", (x, y, dy), (chunks, cut(random, y.shape), cut(random, y.shape)), found.keywords)


def upsampling(random: Any) -> Problem:
    image = (*random.integers(1, 5, 2).tolist(), *random.integers(1, 16, 2).tolist())
    x = numbers(random, *image, dtype=random.choice(DTYPES))
    keywords = {"frac_ratio": tuple(tuple(random.integers(1, 6, 2).tolist()) for _ in range(2))}
    y = numbadnn.bilinear_upsampling(x, **keywords)
    if random.integers(2):
        return Problem("bilinear_upsampling", (x,), (cut(random, image),), keywords)
    dy = numbers(random, *y.shape, dtype=y.dtype)
    return Problem("bilinear_upsampling_grad", (dy,), (cut(random, y.shape),), {"input_shape": image, **keywords})


def same_bits(a: Any, b: Any) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == np.ascontiguousarray(b).tobytes()
