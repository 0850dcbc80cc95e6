"""The threads of a block under the simulator, one at a time: each runs until it waits for others, then the next has its turn.

Numba gives every simulated thread one of the operating system's, of which one runs while hundreds contend for the
interpreter and one more asks them all, without pause, whether they wait: half of the time was theirs. Here they are
greenlets of one thread, with which Numba's own functions and our twins of instructions speak as with theirs
(``threading.current_thread()``: ``thread_id``, ``threadIdx``, ``syncthreads()`` ...). Turns go up and then down through the
numbers, so that who forgets to meet finds the others' work undone; where none can go on, that is said at once.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import greenlet
import numpy as np

from numbadnn.kernels.lang.cuda import namespaces

#: ``cuda`` is one launch's at a time
_one_at_a_time = threading.RLock()


def _all_meet() -> bool:
    raise AssertionError("who meets the whole block is not asked")


class Block(threading.Thread):
    """One block: what Numba's functions take for the thread that calls them."""

    def __init__(self, body: Callable[[], None], place: tuple[int, ...], shape: tuple[int, ...]) -> None:
        from numbadnn.host.cuda_names import Dim3

        super().__init__(daemon=True)
        self._body = body
        self.twins: Any = None  # what our twins of instructions keep for the block
        self.blockIdx = Dim3(*place)
        self._places = [Dim3(*p[::-1]) for p in np.ndindex(*shape[::-1])]  # x varies fastest
        self._waits: list[Callable[[], bool] | None] = [None] * len(self._places)
        self._values: list[Any] = [0] * len(self._places)
        self._live = list(range(len(self._places)))
        self._met: dict[int, list[int]] = {}  # group: how often it met, and how many are there
        self.thread_id = 0
        self.error: BaseException | None = None

    @property
    def threadIdx(self) -> Any:
        return self._places[self.thread_id]

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Let the others run; return when ``ready()``."""
        if not ready():
            self._waits[self.thread_id] = ready
            self._turns.switch()

    @property
    def threads(self) -> int:
        return len(self._places)

    def arrive(self, group: int, count: int) -> bool:
        """One of ``count`` that others of a group wait for; whether this is the last."""
        met = self._met.setdefault(group, [0, 0])
        met[1] += 1
        if met[1] == count:
            met[:] = met[0] + 1, 0
        return met[1] == 0

    def meet(self, group: int, count: int) -> bool:
        """``count`` threads of a group wait for each other; whether this is the last."""
        if self.arrive(group, count):
            return True
        met = self._met[group]
        before = met[0]
        self.wait_until(lambda: met[0] != before)
        return False

    def syncthreads(self) -> None:
        self._waits[self.thread_id] = _all_meet
        self._turns.switch()

    def _counted(self, value: Any) -> list[Any]:
        """The value of everybody who has not ended."""
        self._values[self.thread_id] = value
        self.syncthreads()
        values = [self._values[n] for n in self._live]
        self.syncthreads()
        return values

    def syncthreads_count(self, value: Any) -> int:
        return int(np.count_nonzero(self._counted(value)))

    def syncthreads_and(self, value: Any) -> int:
        return int(all(self._counted(value)))

    def syncthreads_or(self, value: Any) -> int:
        return int(any(self._counted(value)))

    def run(self) -> None:
        try:
            self._take_turns()
        except Exception as error:
            at = f"thread {tuple(self.threadIdx)} of block {tuple(self.blockIdx)}"
            self.error = type(error)(f"{at}: {error}").with_traceback(error.__traceback__)

    def _take_turns(self) -> None:
        self._turns = greenlet.getcurrent()
        threads = [greenlet.greenlet(self._body) for _ in self._places]
        waits = self._waits
        while self._live:
            ran = False
            for number in self._live:
                ready = waits[number]
                if ready is not None and (ready is _all_meet or not ready()):
                    continue
                waits[number], self.thread_id, ran = None, number, True
                threads[number].switch()
            self._live = [n for n in self._live if not threads[n].dead][::-1]
            if not ran:
                if stuck := [n for n in self._live if waits[n] is not _all_meet]:
                    raise RuntimeError(f"threads {stuck[:5]} wait for what none of the block will do")
                for n in self._live:
                    waits[n] = None


class Shared:
    """The block's shared memory: an array for each line of source that asks for one.

    Numba's own makes a traceback of the whole stack to see which line that is.
    """

    def __init__(self, module: Any) -> None:
        self._dynamic, self._make = module.shared.array, module.local.array
        self._arrays: dict[tuple[str, int], Any] = {}

    def array(self, shape: Any, dtype: Any) -> Any:
        if shape == 0:
            return self._dynamic(shape, dtype)
        caller = sys._getframe(1)
        place = caller.f_code.co_filename, caller.f_lineno
        found = self._arrays.get(place)
        if found is None:
            found = self._arrays[place] = self._make(shape, dtype)
        return found


@contextlib.contextmanager
def _seen_as_cuda(module: Any, function: Callable[..., None]) -> Iterator[None]:
    """Inside, ``cuda`` is what the block has, for the kernel and for all functions that it may call."""
    from numba import cuda

    replaced = []
    for names in {**namespaces, id(function.__globals__): function.__globals__}.values():
        replaced += [(names, name) for name, value in names.items() if value is cuda]
    for names, name in replaced:
        names[name] = module
    try:
        yield
    finally:
        for names, name in replaced:
            names[name] = cuda


def launch(function: Callable[..., None], grid: Any, block: Any, shared_bytes: int, *arguments: Any) -> None:
    """Run a kernel's blocks, one after the other."""
    from numbadnn.host.cuda_names import FakeCUDAModule, normalize_kernel_dimensions

    places, shape = normalize_kernel_dimensions(grid, block)
    module: Any = FakeCUDAModule(places, shape, shared_bytes)
    module._shared = Shared(module)
    with _one_at_a_time, _seen_as_cuda(module, function):
        for place in np.ndindex(*places):
            turns = Block(lambda: function(*arguments), place, shape)
            turns.start()
            turns.join()
            if turns.error is not None:
                raise turns.error
