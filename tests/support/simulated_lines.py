"""Arrays that a problem sees in other axes, on a GPU: conv1d, pooling of lines, softmax over any axis, in the CUDA simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from host_driver import bytes_at, install
from reporting import end, report

import numbadnn
from numbadnn import reference
from numbadnn.gpu import streams
from numbadnn.kernels.lang import access

RNG = np.random.default_rng(2)


class OnGpu:
    """An array of this GPU, whose memory is the host's: another library's, which says so by its interface."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__cuda_array_interface__ = {**array.__array_interface__, "stream": 1}


def back(result: Any) -> np.ndarray:
    """What a call gave, as a NumPy array."""
    told = result.__cuda_array_interface__
    address, dtype = told["data"][0], np.dtype(told["typestr"])
    strides = told["strides"] or np.empty(told["shape"], dtype).strides
    reach = sum((n - 1) * s for n, s in zip(told["shape"], strides, strict=True)) + dtype.itemsize
    flat = bytes_at(address, reach).view(dtype)
    return np.lib.stride_tricks.as_strided(flat, told["shape"], strides).copy()


def numbers(*shape: int) -> np.ndarray:
    return RNG.integers(-2, 3, shape).astype("float32")


def check(name: str, exact: Any, function: Any, *arrays: np.ndarray, others: Any = (), **more: Any) -> None:
    """A call with arrays on the GPU: a new result in the caller's axes, and the same in a destination."""
    got = back(function(*map(OnGpu, arrays), *others, **more))
    right = got.shape == exact.shape and np.allclose(got, exact, rtol=1e-6, atol=1e-7)
    last = numbadnn.last_call()
    impl = last.impl if last else ""
    out = OnGpu(np.full(exact.shape, np.nan, "float32"))
    destination = "result" if name.startswith("pool_grad") else "out"
    function(*map(OnGpu, arrays), *others, **more, **{destination: out})
    same = np.array_equal(out.array, got)
    report(f"{name} by {impl}", right and same and impl.startswith("numba."), (got.shape, exact.shape))


def main() -> None:
    with pytest.MonkeyPatch.context() as patch, numbadnn.using(only="numba.*"):
        install(patch)
        patch.setattr(access, "MEMORY", [(0, 1 << 64)])
        patch.setattr(streams, "hold", lambda *held: None)  # all is done at once
        x, w = numbers(2, 2, 6), numbers(3, 2, 2)
        for how in ({}, {"border_mode": "half", "subsample": 2}):
            y = reference.conv1d(x, w, **how)
            check(f"conv1d {how}", y, numbadnn.conv1d, x, w, **how)
            g = numbers(*y.shape)
            dx = reference.conv1d_grad_wrt_inputs(g, w, x.shape, **how)
            check(f"conv1d_grad_wrt_inputs {how}", dx, numbadnn.conv1d_grad_wrt_inputs, g, w, others=(x.shape,), **how)
            dw = reference.conv1d_grad_wrt_weights(x, g, w.shape, **how)
            check(
                f"conv1d_grad_wrt_weights {how}", dw, numbadnn.conv1d_grad_wrt_weights, x, g, others=(w.shape,), **how
            )
        last = x.transpose(0, 2, 1).copy().transpose(0, 2, 1)
        check("conv1d of channels last", reference.conv1d(x, w), numbadnn.conv1d, last, w)
        y = reference.pool(x, 2, 2).astype("float32")
        check("pool", y, numbadnn.pool, x, others=(2, 2))
        g = numbers(*y.shape)
        check("pool_grad", reference.pool_grad(x, y, g, 2, 2), numbadnn.pool_grad, x, y, g, others=(2, 2))
        cube = RNG.standard_normal((2, 3, 4)).astype("float32")
        for axis in (0, 2, -1):
            y = reference.softmax(cube, axis=axis)
            check(f"softmax {axis}", y, numbadnn.softmax, cube, axis=axis)
            dy, sm = RNG.standard_normal(cube.shape).astype("float32"), y.astype("float32")
            exact = reference.softmax_grad(dy, sm, axis=axis)
            check(f"softmax_grad {axis}", exact, numbadnn.softmax_grad, dy, sm, axis=axis)
    end()


if __name__ == "__main__":
    main()
