"""Candidates on one problem, side by side: what does each compute, and how long does it take?

A ``Stage`` holds a problem's operands on one device: random numbers to time with, small integers that every direct sum must
agree on to the bit. Sets of operands are used in turn, so many that none is found in the cache again. On a GPU the times are of
the device alone (``measuring.device``), on the CPU of the call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from numbadnn.host import files as stored
from numbadnn.kept import machine
from numbadnn.measuring.agreement import pieces, sampled
from numbadnn.measuring.data import Buffer, buffer, make_arrays
from numbadnn.measuring.device import Device, sets
from numbadnn.measuring.laws import law
from numbadnn.problem import Policy
from numbadnn.registry import Executable

CPU_CACHE = 64 << 20


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
        for _ in range(sets(nbytes, CPU_CACHE) - 1):
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
            asleep()
            for i in range(launches):
                inputs, outputs = self._sets[i % len(self._sets)]
                begin = time.perf_counter()
                executable.run(inputs, outputs, None, None)
                found.append((time.perf_counter() - begin) * 1e6)
        return found


def asleep(seconds: float = 0.1) -> None:
    """Wait, so long at most, until this process's other threads sleep: those of BLAS and OpenMP wait actively for a while.

    Returns at once where the system does not list threads.
    """
    end = time.perf_counter() + seconds
    while _others_run() and time.perf_counter() < end:
        time.sleep(0.001)


def _others_run() -> bool:
    """Whether another thread of this process runs, or would if it had a processor."""
    own = str(threading.get_native_id())
    for task in Path("/proc/self/task").glob("*/stat"):
        try:
            state = task.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
        except (OSError, IndexError):  # it has ended
            continue
        if state == "R" and task.parent.name != own:
            return True
    return False


class _DeviceStage(Stage):
    """Operands in plain device memory."""

    def __init__(self, problem: Any, policy: Policy) -> None:
        super().__init__(problem, policy)
        self._device = Device(policy.device)
        self._workspace = self._workspace_bytes = 0

    def place(self) -> None:
        """Copy the operands over, as often as it takes to outgrow the L2 cache; all that ``times`` needs is there then."""
        device = self._device
        self._at = {kind: [device.put(b) for b in (*ins, *outs)] for kind, (ins, outs) in self.start.items()}
        ins, outs = self.start["random"]
        self._sets = device.rotations([*ins, *outs], self._at["random"])
        self._pinned = [device.pin(b.memory.nbytes) for b in outs]
        assert device.block

    def free(self) -> None:
        self._device.free()

    def results(self, executable: Executable, kind: str, sample: bool = False) -> tuple[np.ndarray, ...]:
        d, check = self._device.driver, self._device.check
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
        d, check = self._device.driver, self._device.check
        room, at = self._pinned[number].view(like.dtype)[: like.size], 0
        for piece in pieces(like.size) if sample else [slice(0, like.size)]:
            count = piece.stop - piece.start
            part = room[at : at + count]
            check(d.cuMemcpyDtoH(part.ctypes.data, base + piece.start * like.itemsize, part.nbytes))
            at += count
        return room[:at]

    def times(self, executable: Executable, launches: int) -> list[float]:
        def launch(turn: int) -> None:
            self._run(executable, "random", self._sets[turn % len(self._sets)])

        with self.alone():
            return self._device.times(launch, launches)

    def _run(self, executable: Executable, kind: str, bases: list[int]) -> None:
        ins, outs = self.start[kind]
        if executable.workspace_bytes > self._workspace_bytes:
            if self._workspace:
                old, self._workspace, self._workspace_bytes = self._workspace, 0, 0
                self._device.release(old)
            self._workspace = self._device.allocate(executable.workspace_bytes)
            self._workspace_bytes = executable.workspace_bytes
        addresses = [base + b.offset for b, base in zip((*ins, *outs), bases, strict=True)]
        inputs = (*addresses[: len(ins)], *self.words)
        executable.run(inputs, tuple(addresses[len(ins) :]), self._workspace, 0)
