"""Candidates on one problem, side by side: what does each compute, and how long does it take?

A ``Stage`` holds a problem's operands on one device: random numbers to time with, small integers that every direct sum must
agree on to the bit. Times are of the device alone: sets of operands are used in turn, so many that none is found in the L2
cache again, and a block of other work keeps the device busy while the host enqueues. On the CPU it is the call that is timed.
Whoever uses the device holds its lock file: processes may plan side by side, but one measures at a time.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from numbadnn.host import files as stored
from numbadnn.kept import machine
from numbadnn.measuring.agreement import pieces, sampled
from numbadnn.measuring.data import Buffer, buffer, make_arrays
from numbadnn.measuring.laws import law
from numbadnn.problem import Policy
from numbadnn.registry import Executable

CPU_CACHE, MOST_SETS, MOST_BYTES = 64 << 20, 64, 2 << 30
BLOCK_BYTES, BLOCKS = 256 << 20, 6


class Stage:
    """Operands of one problem on one device; made by ``stage``."""

    def __init__(self, problem: Any, policy: Policy) -> None:
        self.problem, self.policy = problem, policy
        self.words = tuple(getattr(problem, "words", ()))
        kinds = ("random", "integers") if law(problem.op).exact_integers(problem) else ("random",)
        self.start = {kind: _buffers(problem, kind) for kind in kinds}
        self.waited = 0.0  # seconds, for other processes that measured

    @contextmanager
    def alone(self) -> Iterator[None]:
        """The device for this process alone, as far as others measure too."""
        begin = time.perf_counter()
        with stored.lock_file(machine.lock_name(self.policy.device)):
            self.waited += time.perf_counter() - begin
            yield

    def results(self, executable: Executable, kind: str, sample: bool = False) -> tuple[np.ndarray, ...]:
        """Each output's whole memory in one dimension, NaN where nothing was written; good until the next call.

        ``sample``: pieces of it (``agreement.pieces``).
        """
        raise NotImplementedError

    def times(self, executable: Executable, launches: int) -> list[float]:
        """Microseconds of each of so many launches, on sets of operands in turn."""
        raise NotImplementedError


def _buffers(problem: Any, kind: str) -> tuple[list[Buffer], list[Buffer]]:
    inputs, old = make_arrays(problem, 0, kind)
    ins = [buffer(spec, array) for spec, array in zip(problem.inputs, inputs, strict=True)]
    return ins, [buffer(spec, None if i else old) for i, spec in enumerate(problem.outputs)]


@contextmanager
def stage(problem: Any, policy: Policy) -> Iterator[Stage]:
    """The operands on the policy's device; all memory is given back at the end."""
    if policy.device < 0:
        yield _HostStage(problem, policy)
        return
    from numbadnn.gpu.context import ensure_context

    with ensure_context(policy.device):
        made = _DeviceStage(problem, policy)
        try:
            with made.alone():
                made.place()
            yield made
        finally:
            made.free()


class _HostStage(Stage):
    def __init__(self, problem: Any, policy: Policy) -> None:
        super().__init__(problem, policy)
        nbytes = sum(b.memory.nbytes for b in (*self.start["random"][0], *self.start["random"][1]))
        ins, outs = self.start["random"]
        self._sets = [(self._inputs(ins), tuple(b.array for b in outs))]
        for _ in range(_sets(nbytes, CPU_CACHE) - 1):
            copies = [buffer(b.spec, b.array) for b in (*ins, *outs)]
            self._sets.append((self._inputs(copies[: len(ins)]), tuple(b.array for b in copies[len(ins) :])))

    def _inputs(self, buffers: list[Buffer]) -> tuple[Any, ...]:
        return (*(b.array for b in buffers), *self.words)

    def results(self, executable: Executable, kind: str, sample: bool = False) -> tuple[np.ndarray, ...]:
        ins, outs = self.start[kind]
        fresh = [buffer(b.spec, b.array) for b in outs]
        executable.run(self._inputs(ins), tuple(b.array for b in fresh), None, None)
        found = tuple(b.memory for b in fresh)
        return sampled(found) if sample else found

    def times(self, executable: Executable, launches: int) -> list[float]:
        found = []
        with self.alone():
            for i in range(launches):
                inputs, outputs = self._sets[i % len(self._sets)]
                begin = time.perf_counter()
                executable.run(inputs, outputs, None, None)
                found.append((time.perf_counter() - begin) * 1e6)
        return found


def _sets(nbytes: int, cache: int) -> int:
    """So many sets of operands that a set used again was driven out of the cache meanwhile."""
    wanted = -(-2 * cache // max(nbytes, 1)) + 1
    return max(1, min(wanted, MOST_SETS, MOST_BYTES // max(nbytes, 1)))


class _DeviceStage(Stage):
    """Plain device memory, everything on the legacy default stream."""

    def __init__(self, problem: Any, policy: Policy) -> None:
        super().__init__(problem, policy)
        from numbadnn.arrays import device as memory

        self._driver, self._check = memory.driver(), memory.check
        self._owned: list[int] = []
        self._host: list[int] = []
        self._workspace = self._workspace_bytes = 0

    def place(self) -> None:
        """Copy the operands over, as often as it takes to outgrow the L2 cache."""
        d, check = self._driver, self._check
        self._at = {kind: self._put([*ins, *outs]) for kind, (ins, outs) in self.start.items()}
        first, buffers = self._at["random"], [*self.start["random"][0], *self.start["random"][1]]
        nbytes = sum(b.memory.nbytes for b in buffers)
        attribute = d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
        cache = check(d.cuDeviceGetAttribute(attribute, self.policy.device))
        self._sets = [first]
        for _ in range(_sets(nbytes, cache) - 1):
            copies = [self._allocate(b.memory.nbytes) for b in buffers]
            for b, old, new in zip(buffers, first, copies, strict=True):
                check(d.cuMemcpyDtoD(new, old, b.memory.nbytes))
            self._sets.append(copies)
        self._block = self._allocate(BLOCK_BYTES)
        self._pinned = [self._pin(b.memory.nbytes) for b in self.start["random"][1]]
        self._events = [(check(d.cuEventCreate(0)), check(d.cuEventCreate(0))) for _ in range(16)]

    def free(self) -> None:
        for pair in getattr(self, "_events", ()):
            for event in pair:
                self._driver.cuEventDestroy(event)
        for address in (*self._owned, self._workspace):
            if address:
                self._driver.cuMemFree(address)
        for address in self._host:
            self._driver.cuMemFreeHost(address)

    def results(self, executable: Executable, kind: str, sample: bool = False) -> tuple[np.ndarray, ...]:
        d, check = self._driver, self._check
        (ins, outs), bases = self.start[kind], self._at[kind]
        targets = bases[len(ins) :]
        with self.alone():
            for n, (b, base) in enumerate(zip(outs, targets, strict=True)):
                if getattr(self.problem, "beta", 0) and n == 0:
                    check(d.cuMemcpyHtoD(base, b.memory.ctypes.data, b.memory.nbytes))
                else:
                    check(d.cuMemsetD8(base, 0xFF, b.memory.nbytes))  # NaN in every type
            self._run(executable, kind, bases)
            check(d.cuCtxSynchronize())
            pairs = enumerate(zip(outs, targets, strict=True))
            return tuple(self._fetch(n, b.memory, base, sample) for n, (b, base) in pairs)

    def _fetch(self, number: int, like: np.ndarray, base: int, sample: bool) -> np.ndarray:
        """An output, or pieces of it, in pinned memory, which copies are several times as fast to."""
        room, at = self._pinned[number].view(like.dtype)[: like.size], 0
        for piece in pieces(like.size) if sample else [slice(0, like.size)]:
            count = piece.stop - piece.start
            part = room[at : at + count]
            self._check(self._driver.cuMemcpyDtoH(part.ctypes.data, base + piece.start * like.itemsize, part.nbytes))
            at += count
        return room[:at]

    def times(self, executable: Executable, launches: int) -> list[float]:
        with self.alone():
            return self._timed(executable, launches)

    def _timed(self, executable: Executable, launches: int) -> list[float]:
        d, check = self._driver, self._check
        found: list[float] = []
        while len(found) < launches:
            events = self._events[: launches - len(found)]
            for _ in range(BLOCKS):  # the device is kept busy meanwhile: not the host's time is measured
                check(d.cuMemsetD32Async(self._block, 0, BLOCK_BYTES // 4, 0))
            for i, (begin, end) in enumerate(events):
                bases = self._sets[(len(found) + i) % len(self._sets)]
                check(d.cuEventRecord(begin, 0))
                self._run(executable, "random", bases)
                check(d.cuEventRecord(end, 0))
            check(d.cuCtxSynchronize())
            found += [1000 * check(d.cuEventElapsedTime(begin, end)) for begin, end in events]
        return found

    def _run(self, executable: Executable, kind: str, bases: list[int]) -> None:
        ins, outs = self.start[kind]
        if executable.workspace_bytes > self._workspace_bytes:
            if self._workspace:
                self._check(self._driver.cuMemFree(self._workspace))
                self._workspace = self._workspace_bytes = 0
            self._workspace = int(self._check(self._driver.cuMemAlloc(executable.workspace_bytes)))
            self._workspace_bytes = executable.workspace_bytes
        addresses = [base + b.offset for b, base in zip((*ins, *outs), bases, strict=True)]
        inputs = (*addresses[: len(ins)], *self.words)
        executable.run(inputs, tuple(addresses[len(ins) :]), self._workspace, 0)

    def _put(self, buffers: list[Buffer]) -> list[int]:
        bases = [self._allocate(b.memory.nbytes) for b in buffers]
        for b, base in zip(buffers, bases, strict=True):
            self._check(self._driver.cuMemcpyHtoD(base, b.memory.ctypes.data, b.memory.nbytes))
        return bases

    def _pin(self, nbytes: int) -> np.ndarray:
        """Page-locked bytes of the host's memory."""
        address = int(self._check(self._driver.cuMemAllocHost(max(nbytes, 1))))
        self._host.append(address)
        return np.ctypeslib.as_array((ctypes.c_ubyte * nbytes).from_address(address))

    def _allocate(self, nbytes: int) -> int:
        address = int(self._check(self._driver.cuMemAlloc(max(nbytes, 1))))
        self._owned.append(address)
        return address
