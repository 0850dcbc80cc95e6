"""Chunks of NumPy through GPUs: who has which lane when, two to six for each GPU.

A task takes a lane, has its blocks copied to the GPU, and enqueues call and copy back on the lane's stream. A block is put
together in pinned memory; parts that lie in pinned memory are copied from there. While a task waits, tasks of other lanes put
theirs together and have copies under way: so copies and computing overlap. One core copies in memory at about a third of the
rate of the link to a GPU, hence several lanes where there are cores. Give the scheduler as many threads as there are lanes.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from numbadnn.dask.lane import Lane
from numbadnn.errors import BackendUnavailableError
from numbadnn.gpu.devices import gpus, no_gpu_reason
from numbadnn.host.quota import processors

#: ordinals of GPUs, () for all that the worker has; None: blocks are computed where they are
Gpus = tuple[int, ...] | None

#: lanes of a GPU at least and at most; in between one for each processor
FEWEST, MOST = 2, 6


def gpus_of(device: Any, devices: Any) -> Gpus:
    """What ``device`` (None, "cpu", "cuda", "cuda:N") and ``devices`` (None, "all", ordinals) ask for.

    Both are looked at where the call is made; the GPUs are those of the worker that a task runs on.

    >>> gpus_of(None, None), gpus_of("cuda:1", None), gpus_of(None, "all"), gpus_of(None, [0, 2])
    (None, (1,), (), (0, 2))
    """
    if device is not None and devices is not None:
        raise ValueError(f"devices: expected None where device is given, got device={device!r} and devices={devices!r}")
    if device is not None:
        kind, _, number = str(device).partition(":")
        if device == "cpu":
            return None
        if kind != "cuda" or not (number.isdecimal() or device == "cuda"):
            raise ValueError(f'device: expected None, "cpu", "cuda" or "cuda:N", got {device!r}')
        return (int(number or 0),)
    if devices is None:
        return None
    if isinstance(devices, str):
        if devices != "all":
            raise ValueError(f'devices: expected None, "all" or the numbers of GPUs, got {devices!r}')
        return ()
    numbers = tuple(devices)
    if not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise ValueError(f'devices: expected None, "all" or the numbers of GPUs, got {devices!r}')
    return numbers


class Lanes:
    """The lanes of this process. A task takes one of the GPU that has the most free; they are made as they are needed.

    Numba's first look at the driver bears no other thread, hence one lock for all.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._free: dict[int, list[Lane]] = {}
        self._made: dict[int, int] = {}
        self._turns: dict[int, int] = {}

    def take(self, numbers: tuple[int, ...]) -> Lane:
        """A lane of one of these GPUs (() for all), waited for; of GPUs that are as free the one whose turn was longest ago."""
        with self._changed:
            chosen = _present(numbers)
            most = min(max(processors() // len(chosen), FEWEST), MOST)
            while True:
                device = min(chosen, key=lambda n: (self._busy(n), self._turns.get(n, 0)))
                free = self._free.setdefault(device, [])
                if free or self._made.get(device, 0) < most:
                    break
                self._changed.wait()
            self._turns[device] = max(self._turns.values(), default=0) + 1
            return free.pop() if free else self._new(device)

    def put(self, lane: Lane) -> None:
        with self._changed:
            self._free[lane.device].append(lane)
            self._changed.notify_all()

    def _busy(self, device: int) -> int:
        return self._made.get(device, 0) - len(self._free.get(device, ()))

    def _new(self, device: int) -> Lane:
        made = Lane(device)
        self._made[device] = self._made.get(device, 0) + 1
        return made


def _present(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """These GPUs, () for all that there are."""
    known = tuple(gpu["device"] for gpu in gpus())
    if not known:
        raise BackendUnavailableError(f'device="cuda": {no_gpu_reason()}')
    missing = sorted(set(numbers) - set(known))
    if missing:
        raise BackendUnavailableError(f"devices: expected numbers of {list(known)}, got {missing[0]}")
    return numbers or known


_lanes = Lanes()


@contextmanager
def lane(numbers: Gpus) -> Iterator[Lane | None]:
    """A lane of these GPUs, waited for; None where blocks are computed where they are."""
    if numbers is None:
        yield None
        return
    taken = _lanes.take(numbers)
    try:
        yield taken
    except BaseException:
        taken.settle()
        raise
    finally:
        _lanes.put(taken)


@functools.lru_cache(16)
def _copied(token: int, device: int, filters: Any) -> Any:
    import cupy

    with cupy.cuda.Device(device):
        return cupy.asarray(filters.array)


class _Same:
    """An array as a key: the same object, not the same numbers."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __hash__(self) -> int:
        return id(self.array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.array is self.array


def beside(block: Any, filters: Any) -> Any:
    """Filters of NumPy on the GPU of a block of CuPy, copied once a worker; others as they are."""
    if not isinstance(filters, np.ndarray):
        return filters
    return _copied(id(filters), block.device.id, _Same(filters))
