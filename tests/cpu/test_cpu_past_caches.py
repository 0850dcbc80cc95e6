"""Results that the CPU writes past its caches: the same bits as others, wherever they begin, and nothing beside them."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn.call import launch
from numbadnn.cpu.lang import parallel as _parallel

Make = Callable[..., Any]


def laid_out(memory: np.ndarray, shape: tuple[int, ...], last: bool) -> np.ndarray:
    """An array of that shape, its channels ``last`` in memory or where they stand."""
    return np.moveaxis(memory.reshape(shape[0], *shape[2:], shape[1]), -1, 1) if last else memory.reshape(shape)


def softmax_grad(data: Make, out: Make) -> np.ndarray:
    shape = (2, 96, 5, 7)
    return numbadnn.softmax_grad(data(shape), data(shape), out=out(shape))


def softmax_grad_of_rows(data: Make, out: Make) -> np.ndarray:
    return numbadnn.softmax_grad(data((9, 1333)), data((9, 1333)), out=out((9, 1333)))


def softmax(data: Make, out: Make) -> np.ndarray:
    return numbadnn.softmax(data((2, 7, 30, 50), last=False), out=out((2, 7, 30, 50), last=False))


def pool(mode: str, window: tuple[int, ...], pad: tuple[int, ...]) -> Callable[[Make, Make], np.ndarray]:
    def run(data: Make, out: Make) -> np.ndarray:
        return numbadnn.pool(data((2, 96, 7, 8)), window, (2, 2), mode, pad, out=out((2, 96, 4 if pad[0] else 3, 4)))

    return run


def pool_grad(mode: str, window: tuple[int, ...], pad: tuple[int, ...]) -> Callable[[Make, Make], np.ndarray]:
    def run(data: Make, out: Make) -> np.ndarray:
        x = data((2, 96, 7, 8))
        y = numbadnn.pool(x, window, (2, 2), mode, pad)
        return numbadnn.pool_grad(x, y, data(y.shape), window, (2, 2), mode, pad, result=out(x.shape))

    return run


def upsample(data: Make, out: Make) -> np.ndarray:
    return numbadnn.bilinear_upsampling(data((2, 96, 3, 4)), 3, out=out((2, 96, 9, 12)))


def upsample_planes(data: Make, out: Make) -> np.ndarray:
    return numbadnn.bilinear_upsampling(data((2, 3, 5, 64), last=False), 2, out=out((2, 3, 10, 128), last=False))


def upsample_grad(data: Make, out: Make) -> np.ndarray:
    return numbadnn.bilinear_upsampling_grad(data((2, 96, 9, 12)), (2, 96, 3, 4), 3, out=out((2, 96, 3, 4)))


CALLS = {
    "softmax_grad": softmax_grad,
    "softmax_grad of rows": softmax_grad_of_rows,
    "softmax of strips": softmax,
    "maxima": pool("max", (3, 3), (1, 1)),
    "averages": pool("average_inc_pad", (2, 2), (0, 0)),
    "gradients of maxima": pool_grad("max", (3, 3), (1, 1)),
    "gradients of disjoint maxima": pool_grad("max", (2, 2), (0, 0)),
    "gradients of averages": pool_grad("average_exc_pad", (3, 3), (1, 1)),
    "upsampling": upsample,
    "upsampling of planes": upsample_planes,
    "gradients of upsampling": upsample_grad,
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", list(CALLS))
def test_bits_do_not_depend_on_how_they_are_written(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, told, call = {}, {}, _parallel.Kernel.__call__

    def watched(self: Any, *args: Any) -> None:
        told[past, first] = any(a is True for a in args)
        call(self, *args)

    monkeypatch.setattr(_parallel.Kernel, "__call__", watched)
    for past in (False, True):
        monkeypatch.setattr(_parallel, "_last_cache", lambda past=past: 1 if past else 0)
        launch.thread.plans.clear()
        for first in (0, 1, 32):  # elements after a line of memory
            rng, memories = np.random.default_rng(3), []

            def data(shape: tuple[int, ...], last: bool = True, rng: np.random.Generator = rng) -> np.ndarray:
                return laid_out(rng.standard_normal(math.prod(shape)).astype(dtype), shape, last)

            def out(
                shape: tuple[int, ...], last: bool = True, first: int = first, memories: list[Any] = memories
            ) -> np.ndarray:
                n = math.prod(shape)
                memory = np.full(n + 200, np.nan, dtype)
                start = -memory.ctypes.data % 64 // memory.itemsize + first
                memories.append((memory[:start], memory[start + n :]))
                return laid_out(memory[start : start + n], shape, last)

            found[past, first] = CALLS[name](data, out)
            assert all(np.isnan(side).all() for sides in memories for side in sides)
    launch.thread.plans.clear()
    assert np.isfinite(found[False, 0]).all()
    assert told[True, 0] and not any(told[False, first] for first in (0, 1, 32))
    for key, result in found.items():
        assert np.array_equal(result, found[False, 0]), key
