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
