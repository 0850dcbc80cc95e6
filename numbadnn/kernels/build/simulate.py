"""Own kernels without a GPU: the same source, run by Numba's CUDA simulator on host memory.

Only in a process started with ``NUMBA_ENABLE_CUDASIM=1``. Planning is the real one (configuration, grid, arguments); what
differs is the end: ``Kernel.prepare`` gives a ``SimulatedLaunch``, whose addresses are those of NumPy arrays, every access is
checked against the operands' memory, and every 32-bit index against its range. Slow: for outputs of some thousand elements.

>>> y = run(problem, (x, w))                                            # doctest: +SKIP
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numbadnn.problem import Policy


def active() -> bool:
    """Whether this process was started with the simulator in place of CUDA."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


class Tensor(NamedTuple):
    """What a TMA descriptor says of an array, the innermost axis first; ``strides`` in bytes, of the others."""

    dtype: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzled: bool

    def at(self, address: int) -> Any:
        """What the copy engine's twin takes."""
        from numbadnn.kernels.lang.hopper_twins import Map

        item = np.dtype(self.dtype)
        steps = (item.itemsize, *self.strides)
        span = sum((n - 1) * step for n, step in zip(self.extents, steps, strict=True)) + item.itemsize
        data: Any = (ctypes.c_uint8 * span).from_address(address)
        array = np.ndarray(self.extents[::-1], item, data, 0, steps[::-1])
        return Map(array, self.box, self.swizzled)


class SimulatedLaunch:
    """What ``Launch`` is on a GPU: ``launch(stream, *addresses)`` runs every thread before it returns."""

    def __init__(
        self, build: Callable[[], Any], parameters: str, grid: Any, block: Any, scalars: Any, shared_bytes: int = 0
    ) -> None:
        from numbadnn.kernels.lang.cuda import f32, f64, i32, i64

        convert = {"i32": i32, "i64": i64, "f32": f32, "f64": f64}
        words = parameters.split()
        self._maps = scalars[: words.count("map")]  # they come first
        self._addresses = words.count("ptr") + len(self._maps)
        self._scalars = []
        for word, value in zip(words[self._addresses :], scalars[len(self._maps) :], strict=True):
            name, _, count = word.partition("*")
            self._scalars.append(tuple(map(convert[name], value)) if count else convert[name](value))
        self._how = build(), grid, block, shared_bytes

    @property
    def direct(self) -> Callable[..., None]:
        return self.__call__

    def __call__(self, stream: int, *addresses: int) -> None:
        from numbadnn.kernels.build.simulated_block import launch

        with warnings.catch_warnings():  # exp(inf - inf) is meant; NumPy's error state is each thread's own
            warnings.simplefilter("ignore", RuntimeWarning)
            maps = [tensor.at(address) for tensor, address in zip(self._maps, addresses, strict=False)]
            launch(*self._how, *maps, *addresses[len(maps) : self._addresses], *self._scalars)


def run(problem: Any, arrays: tuple[Any, ...], name: str = "", policy: Policy | None = None, config: Any = None) -> Any:
    """The results (a tuple) of ``problem`` on NumPy ``arrays`` (its inputs; then the old output, where beta is not 0).

    ``name`` picks the implementation ("numba.direct"); default: the first of the numba backend. Arrays must have the shapes
    and dtypes of the problem's specs; they are laid out in memory as the specs say. Raises RuntimeError outside the
    simulator.
    """
    if not active():
        raise RuntimeError("expected a process started with NUMBA_ENABLE_CUDASIM=1")
    from numbadnn.kernels.lang import access as _access
    from numbadnn.measuring.data import buffer, untouched
    from numbadnn.registry import implementations
    from numbadnn.validate.execute import targets, words

    candidates = [i for i in implementations(problem.op) if i.backend == "numba" and name in ("", i.name)]
    if not candidates:
        raise ValueError(f"expected an implementation of {problem.op} on the numba backend, got {name!r}")
    old = arrays[len(problem.inputs)] if len(arrays) > len(problem.inputs) else None
    inputs = [buffer(spec, array) for spec, array in zip(problem.inputs, arrays, strict=False)]
    outputs = targets(problem, old)
    executable = candidates[0].plan(problem, policy or Policy(device=0), config)
    workspace = np.full(executable.workspace_bytes + 256, 0xFF, np.uint8)  # NaN in every type
    start = workspace.ctypes.data + -workspace.ctypes.data % 256
    _access.MEMORY[:] = [*map(_range, (*inputs, *outputs)), (start, start + executable.workspace_bytes)]
    arguments = (*(b.array.ctypes.data for b in inputs), *words(problem))
    executable.run(arguments, tuple(b.array.ctypes.data for b in outputs), start, 0)
    if not all(map(untouched, outputs)):
        raise IndexError(f"{candidates[0].name} wrote into the gaps of an output")
    return tuple(b.array for b in outputs)


def _range(operand: Any) -> tuple[int, int]:
    """The first and the last + 1 byte address that an index of the operand reaches."""
    (low, high), size, start = operand.spec.span, operand.spec.itemsize, operand.array.ctypes.data
    return start + low * size, start + (high + 1) * size
