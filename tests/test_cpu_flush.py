"""Float16 on a thread that flushes subnormal float32 to zero, as libraries built with -ffast-math leave it: the same bits."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import numbadnn

pytest.importorskip("numba")
pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="sets a register of x86")

#: flush-to-zero and denormals-are-zero
FLUSH, USUAL = 0x8040, 0x1F80
RNG = np.random.default_rng(0)


def _setter() -> Callable[[int], None]:
    """A function that sets the register of this thread's rounding and flushing."""
    from llvmlite import ir
    from numba import njit, types
    from numba.core import cgutils
    from numba.extending import intrinsic

    @intrinsic
    def load(typingctx, value):  # type: ignore[no-untyped-def]
        def codegen(cx, b, sig, args):  # type: ignore[no-untyped-def]
            place = cgutils.alloca_once_value(b, b.trunc(args[0], ir.IntType(32)))
            pointer = ir.IntType(8).as_pointer()
            fn = cgutils.get_or_insert_function(
                b.module, ir.FunctionType(ir.VoidType(), [pointer]), "llvm.x86.sse.ldmxcsr"
            )
            b.call(fn, [b.bitcast(place, pointer)])
            return cx.get_dummy_value()

        return types.void(types.int64), codegen

    @njit
    def set_register(value):  # type: ignore[no-untyped-def]
        load(value)

    set_register(USUAL)
    return set_register  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def register() -> Iterator[Callable[[int], None]]:
    set_register = _setter()
    yield set_register
    set_register(USUAL)


def small(*shape: int, last: bool = False) -> np.ndarray:
    """Subnormal numbers of float16 of either sign; ``last``: channels are neighbours in memory."""
    bits = RNG.integers(1, 0x400, shape).astype(np.uint16) | RNG.integers(0, 2, shape).astype(np.uint16) << np.uint16(
        15
    )
    array = bits.view(np.float16)
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1) if last else array


def calls() -> dict[str, Callable[[], Any]]:
    theta, one = np.tile(np.array([[1, 0, 0], [0, 1, 0]], np.float16), (2, 1, 1)), np.ones((1, 3, 1, 1), np.float16)
    w, grid = RNG.standard_normal((5, 3, 3, 3)).astype("f2"), RNG.uniform(-1, 1, (2, 5, 5, 2)).astype("f2")
    slope = RNG.standard_normal((2, 5, 7, 8)).astype("f2")
    found: dict[str, Callable[[], Any]] = {}
    for last in (False, True):
        x, dy, y = (small(2, 3, 9, 10, last=last), small(2, 5, 7, 8, last=last), small(2, 3, 9, 10, last=last))
        deep = small(2, 16, 6, 7, last=last)
        for mode in ("max", "sum", "average_exc_pad"):
            found[f"pool {mode} {last}"] = lambda x=x, m=mode: numbadnn.pool(x, (2, 2), (1, 2), m)
            found[f"pool {mode} many {last}"] = lambda x=deep, m=mode: numbadnn.pool(x, (3, 3), (2, 2), m)
            found[f"pool_grad {mode} {last}"] = lambda x=x, m=mode: numbadnn.pool_grad(
                x, numbadnn.pool(x, (2, 2), (2, 2), m), x[:, :, :4, :5], (2, 2), (2, 2), m
            )
        found |= {
            f"upsampling {last}": lambda x=x: numbadnn.bilinear_upsampling(x, 2),
            f"upsampling many {last}": lambda x=deep: numbadnn.bilinear_upsampling(x, 3),
            f"spatialtf {last}": lambda x=x: numbadnn.spatialtf(x, theta),
            f"sampler_grad {last}": lambda x=x: numbadnn.spatialtf_sampler_grad(x, grid, x[:, :, :5, :5])[0],
            f"conv2d {last}": lambda x=x: numbadnn.conv2d(x, w),
            f"inputs {last}": lambda dy=dy: numbadnn.conv2d_grad_wrt_inputs(dy, w, (2, 3, 9, 10)),
            f"weights {last}": lambda x=x: numbadnn.conv2d_grad_wrt_weights(x, slope, (5, 3, 3, 3)),
            f"depthwise {last}": lambda x=x: numbadnn.conv2d(x, w[:3, :1], num_groups=3),
            f"norm {last}": lambda x=x: numbadnn.batch_normalization_train(x, one, 0 * one, "spatial")[0],
            f"mean {last}": lambda x=x: numbadnn.batch_normalization_train(x, one, 0 * one, "spatial")[1],
            f"softmax {last}": lambda x=x: numbadnn.softmax(x),
            f"softmax_grad {last}": lambda x=x, y=y: numbadnn.softmax_grad(x, numbadnn.softmax(y)),
            f"dropout {last}": lambda x=x: numbadnn.dropout(x, 0.5, 3)[0],
        }
    return found


CALLS = calls()


@pytest.mark.parametrize("name", CALLS)
def test_flushing_changes_no_float16(name: str, register: Callable[[int], None]) -> None:
    usual = CALLS[name]()
    register(USUAL | FLUSH)
    try:
        flushed = CALLS[name]()
    finally:
        register(USUAL)
    np.testing.assert_array_equal(flushed.view(np.uint16), usual.view(np.uint16))
    assert np.count_nonzero(usual) > usual.size / 8
