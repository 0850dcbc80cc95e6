"""Planted faults: implementations that are wrong on purpose, to see that validate finds them.

Each is a plain NumPy implementation with one mistake that real kernels have made, registered beside the real ones while a test
asks for it; its twin is the same code without the mistake. ``caught_by`` names the checks that see the mistake: with all of
them removed it is missed, with one of them left it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from numbadnn.problem import Policy, contiguous_strides
from numbadnn.registry import Executable, Impl, implementations, register, unregister

#: the checks of validate: within the bound on random numbers; small integers to the bit; the same bits in every run;
#: outputs NaN before each run; memory around the operands untouched
CHECKS = ("bound", "integers", "same bits", "fill", "guard")

_CONV = "conv2d x=float32:2x3x7x6 w=float32:4x3x3x3 y=float32:2x4x7x6 pad=1,1,1,1"


class Fault(NamedTuple):
    """``run(problem, inputs, outputs, faulty)`` computes ``case`` rightly or, if ``faulty``, wrongly."""

    name: str
    case: str
    caught_by: frozenset[str]
    run: Callable[[Any, tuple[Any, ...], tuple[Any, ...], bool], None]


def _convolve(x: np.ndarray, w: np.ndarray, problem: Any, acc: Any, at: tuple[int, int], taps: list[int]) -> np.ndarray:
    """A true convolution over one group, its image placed at ``at`` of the padded one, taps added up in this order."""
    (top, bottom), (left, right) = problem.padding
    (n, c, height, width), (k, _, r, s), (_, _, p, q) = x.shape, w.shape, problem.y.shape
    padded = np.zeros((n, c, height + top + bottom, width + left + right), acc)
    padded[:, :, at[0] : at[0] + height, at[1] : at[1] + width] = x
    turned, total = w.astype(acc)[:, :, ::-1, ::-1], np.zeros((n, k, p, q), acc)
    for tap in taps:
        channel, row, column = np.unravel_index(tap, (c, r, s))
        window = padded[:, channel, row : row + p, column : column + q]
        total += window[:, None] * turned[:, channel, row, column][None, :, None, None]
    return total


def _plain(problem: Any, x: np.ndarray, w: np.ndarray, acc: Any = np.float32) -> np.ndarray:
    (top, _), (left, _) = problem.padding
    return _convolve(x, w, problem, acc, (top, left), list(range(w[0].size)))


def _padding(problem: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], faulty: bool) -> None:
    """The image lies one row too high in its padding."""
    (top, _), (left, _) = problem.padding
    x, w = inputs
    outputs[0][...] = _convolve(x, w, problem, np.float32, (top - faulty, left), list(range(w[0].size)))


def _last_element(problem: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], faulty: bool) -> None:
    """The tail that does not fill a vector is not written."""
    total = _plain(problem, *inputs)
    last = outputs[0][-1, -1, -1, -1].copy()
    outputs[0][...] = total
    if faulty:
        outputs[0][-1, -1, -1, -1] = last


def _atomics(problem: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], faulty: bool) -> None:
    """The terms of a sum arrive in another order each time, as float atomics add them."""
    x, w = inputs
    (top, _), (left, _) = problem.padding
    order = np.random.default_rng().permutation(w[0].size) if faulty else np.arange(w[0].size)
    outputs[0][...] = _convolve(x, w, problem, np.float32, (top, left), order.tolist())


def _half_sums(problem: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], faulty: bool) -> None:
    """float16 data is summed in float16."""
    x, w = inputs
    outputs[0][...] = _plain(problem, x, w, np.float16 if faulty else np.float32)


def _strides(problem: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], faulty: bool) -> None:
    """The image is read as if it were packed."""
    x, w = inputs
    if faulty:
        steps = tuple(s * x.itemsize for s in contiguous_strides(x.shape))
        x = np.lib.stride_tricks.as_strided(x, x.shape, steps)
    outputs[0][...] = _plain(problem, x, w)


def _tf32(problem: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], faulty: bool) -> None:
    """Factors are rounded to TF32's 11 bits where IEEE float32 was asked for."""

    def rounded(a: np.ndarray) -> np.ndarray:
        bits = np.ascontiguousarray(a).view(np.uint32)
        return ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32).reshape(a.shape)

    x, w = map(rounded, inputs) if faulty else inputs
    outputs[0][...] = _plain(problem, x, w)


def _ties(problem: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], faulty: bool) -> None:
    """Among equal maxima of a window the gradient goes to the last one."""
    x, _, dy = inputs
    (h, w), (sh, sw), total = problem.window, problem.stride, np.zeros(x.shape, np.float32)
    for n, c, p, q in np.ndindex(dy.shape):
        window = x[n, c, p * sh : p * sh + h, q * sw : q * sw + w]
        flat = window.ravel()
        at = flat.size - 1 - int(np.argmax(flat[::-1])) if faulty else int(np.argmax(flat))
        i, j = divmod(at, window.shape[1])
        total[n, c, p * sh + i, q * sw + j] += dy[n, c, p, q]
    outputs[0][...] = total


def _beyond(problem: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], faulty: bool) -> None:
    """A last vector is written whole, beyond the end of the output."""
    outputs[0][...] = _plain(problem, *inputs)
    if faulty:
        y = outputs[0]
        np.lib.stride_tricks.as_strided(y, (y.size + 1,), (y.itemsize,))[-1] = 0


FAULTS = (
    Fault("padding", _CONV, frozenset({"bound", "integers"}), _padding),
    Fault("last_element", _CONV, frozenset({"fill"}), _last_element),
    Fault("atomics", _CONV, frozenset({"same bits"}), _atomics),
    Fault(
        "half_sums",
        "conv2d x=float16:1x64x6x6 w=float16:2x64x3x3 y=float16:1x2x4x4",
        frozenset({"bound"}),
        _half_sums,
    ),
    Fault("strides", _CONV.replace("7x6 w", "7x6:147,49,7,1 w"), frozenset({"bound", "integers"}), _strides),
    Fault("tf32", _CONV, frozenset({"bound"}), _tf32),
    Fault("ties", "pool_grad x=float32:2x2x6x6 window=3x3 stride=2x2 mode=max", frozenset({"integers"}), _ties),
    Fault("beyond", _CONV, frozenset({"guard"}), _beyond),
)


def implementation(fault: Fault, faulty: bool) -> Impl:
    """``fault.NAME``, or its twin ``twin.NAME`` without the mistake."""

    def plan(problem: Any, policy: Policy, config: Any) -> Executable:
        def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
            fault.run(problem, inputs, outputs, faulty)

        return Executable(run)

    op = fault.case.split()[0]
    return Impl(op, "cpu", f"{'fault' if faulty else 'twin'}.{fault.name}", lambda p, q: "", plan, lambda p: 1e9)


@contextmanager
def planted(*impls: Impl) -> Iterator[None]:
    """Register implementations for a while; what the dispatcher chose meanwhile is forgotten."""
    from numbadnn.call import planning

    for impl in impls:
        implementations(impl.op)  # what comes with the package is registered before
        register(impl)
    try:
        yield
    finally:
        for impl in impls:
            unregister(impl)
        planning.clear_caches()
