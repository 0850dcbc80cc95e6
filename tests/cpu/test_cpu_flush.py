"""Float16 on a thread that flushes subnormal float32 to zero, as libraries built with -ffast-math leave it: the same bits."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Iterator
from functools import partial
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


MODES = ("max", "sum", "average_exc_pad")
KINDS = [f"{name}{mode}{many}" for name in ("pool ", "pool_grad ") for mode in MODES for many in ("", " many")]
KINDS = [kind for kind in KINDS if not kind.startswith("pool_grad ") or not kind.endswith("many")]
KINDS += ["upsampling", "upsampling many", "spatialtf", "sampler_grad", "conv2d", "inputs", "weights", "depthwise"]
KINDS += ["norm", "mean", "softmax", "softmax_grad", "dropout"]
NAMES = [f"{kind} {last}" for kind in KINDS for last in (False, True)]


def first(call: Callable[[], Any], number: int = 0) -> Callable[[], Any]:
    """Of the results of a call, one."""
    return lambda: call()[number]


@functools.cache
def calls() -> dict[str, Callable[[], Any]]:
    theta, one = np.tile(np.array([[1, 0, 0], [0, 1, 0]], np.float16), (2, 1, 1)), np.ones((1, 3, 1, 1), np.float16)
    w, grid = RNG.standard_normal((5, 3, 3, 3)).astype("f2"), RNG.uniform(-1, 1, (2, 5, 5, 2)).astype("f2")
    slope = RNG.standard_normal((2, 5, 7, 8)).astype("f2")
    found: dict[str, Callable[[], Any]] = {}
    for last in (False, True):
        x, dy, y = (small(2, 3, 9, 10, last=last), small(2, 5, 7, 8, last=last), small(2, 3, 9, 10, last=last))
        deep = small(2, 16, 6, 7, last=last)
        for mode in MODES:
            y2 = numbadnn.pool(x, (2, 2), (2, 2), mode)
            found[f"pool {mode} {last}"] = partial(numbadnn.pool, x, (2, 2), (1, 2), mode)
            found[f"pool {mode} many {last}"] = partial(numbadnn.pool, deep, (3, 3), (2, 2), mode)
            found[f"pool_grad {mode} {last}"] = partial(
                numbadnn.pool_grad, x, y2, x[:, :, :4, :5], (2, 2), (2, 2), mode
            )
        norm = partial(numbadnn.batch_normalization_train, x, one, 0 * one, "spatial")
        found |= {
            f"upsampling {last}": partial(numbadnn.bilinear_upsampling, x, 2),
            f"upsampling many {last}": partial(numbadnn.bilinear_upsampling, deep, 3),
            f"spatialtf {last}": partial(numbadnn.spatialtf, x, theta),
            f"sampler_grad {last}": first(partial(numbadnn.spatialtf_sampler_grad, x, grid, x[:, :, :5, :5])),
            f"conv2d {last}": partial(numbadnn.conv2d, x, w),
            f"inputs {last}": partial(numbadnn.conv2d_grad_wrt_inputs, dy, w, (2, 3, 9, 10)),
            f"weights {last}": partial(numbadnn.conv2d_grad_wrt_weights, x, slope, (5, 3, 3, 3)),
            f"depthwise {last}": partial(numbadnn.conv2d, x, w[:3, :1], num_groups=3),
            f"norm {last}": first(norm),
            f"mean {last}": first(norm, 1),
            f"softmax {last}": partial(numbadnn.softmax, x),
            f"softmax_grad {last}": partial(numbadnn.softmax_grad, x, numbadnn.softmax(y)),
            f"dropout {last}": first(partial(numbadnn.dropout, x, 0.5, 3)),
        }
    return found


@pytest.mark.parametrize("name", NAMES)
def test_flushing_changes_no_float16(name: str, register: Callable[[int], None]) -> None:
    usual = calls()[name]()
    register(USUAL | FLUSH)
    try:
        flushed = calls()[name]()
    finally:
        register(USUAL)
    np.testing.assert_array_equal(flushed.view(np.uint16), usual.view(np.uint16))
    assert np.count_nonzero(usual) > usual.size / 8
