"""Where a problem is run several times for its bits: the CPU, a GPU, or the simulator of one.

The runs of a problem differ in what must not matter: other addresses, another content of the workspace, other work at the same
time, other threads. Operands lie in memory that is NaN around them, and a workspace between guards; ``Ran.damage`` says what
was written that must not be.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from numbadnn.gpu import bindings
from numbadnn.kernels.build import simulate
from numbadnn.measuring.data import Buffer, buffer, untouched
from numbadnn.problem import Policy
from numbadnn.registry import Executable
from numbadnn.validate.determinism.levels import moved, noise
from numbadnn.validate.execute import targets, words

#: bytes that each run's operands are moved by: where 16 bytes are read at once, that must not matter
SHIFTS = (0, 16, 48, 112)
#: what fills the workspace before each run but the last, which finds what the one before left there
POISON = (0xFF, 0x00, 0x3C)
GUARD = 256
Arrays = tuple[np.ndarray, ...]


class Ran(NamedTuple):
    """The results of every run, and what was damaged ("" = nothing)."""

    results: list[Arrays]
    damage: str


class Start(Protocol):
    """Begin a computation: addresses on a GPU, arrays on the CPU; None for outputs that it is to allocate itself."""

    def __call__(self, inputs: Any, outputs: Any, workspace: Any, stream: Any) -> Any: ...


def starter(executable: Executable, problem: Any) -> Start:
    """What begins an implementation's work."""

    def start(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
        executable.run((*inputs, *words(problem)), tuple(outputs), workspace, stream)

    return start


def _damage(problem: Any, inputs: list[Buffer], before: list[bytes], outputs: list[Buffer]) -> str:
    """What was written of memory that this process sees, and must not be; ``before``: what the inputs were."""
    for number, (b, was) in enumerate(zip(inputs, before, strict=True)):
        if not (untouched(b) if number in _spent(problem) else b.memory.tobytes() == was):
            return f"input {number + 1} (or memory around it) was changed"
    return next((f"memory around output {n} was written" for n, b in enumerate(outputs, 1) if not untouched(b)), "")


def _spent(problem: Any) -> tuple[int, ...]:
    """The inputs that serve once, by number."""
    return getattr(problem, "spent", ())


# ---- the CPU ---------------------------------------------------------------------------------------------------------


def on_cpu(start: Start, problem: Any, inputs: Any, old: Any, workspace_bytes: int = 0) -> Ran:
    """Alone, beside other work and by one thread; each at other addresses."""
    import numba

    results, damage, threads = [], "", numba.get_num_threads()
    for turn in range(3):
        ins = [moved(buffer(s, v), SHIFTS[turn]) for s, v in zip(problem.inputs, inputs, strict=True)]
        before = [b.memory.tobytes() for b in ins]
        outs = [moved(b, SHIFTS[turn]) for b in targets(problem, old)]
        arguments = [b.array for b in ins], [b.array for b in outs], None, None
        if turn == 1:
            with noise(Policy()):
                made = start(*arguments)
        elif turn == 2:
            numba.set_num_threads(1)
            try:
                made = start(*arguments)
            finally:
                numba.set_num_threads(threads)
        else:
            made = start(*arguments)
        results.append(tuple(b.array for b in outs) if made is None else made)
        damage = damage or _damage(problem, ins, before, outs if made is None else [])
    return Ran(results, damage)


# ---- a GPU -----------------------------------------------------------------------------------------------------------


class Gpu:
    """One thread's memory and streams on a GPU: what a problem needs is copied there and back at once."""

    #: bytes that other streams fill meanwhile, and how often
    BUSY_BYTES, BUSY_TURNS = 4 << 20, 8

    def __init__(self, device: int) -> None:
        self.device, self.driver, self.check = device, bindings.driver(), bindings.check
        plainly = self.driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.own, *self.others = (int(self.check(self.driver.cuStreamCreate(plainly))) for _ in range(3))
        self.busy = int(self.check(self.driver.cuMemAlloc(2 * self.BUSY_BYTES)))
        self.room, self.space, self.turn = 0, 0, 0
        self.host, self.back = np.empty(0, np.uint8), np.empty(0, np.uint8)
        self.space_bytes = 0

    def _reserve(self, nbytes: int, workspace_bytes: int) -> None:
        """At least so much memory of either kind; the host's is pinned, so that copies need not wait."""
        if nbytes > self.host.size:
            size = 1 << max(20, nbytes.bit_length())
            if self.room:
                self.driver.cuMemFree(self.room)
            self.room = int(self.check(self.driver.cuMemAlloc(size)))
            self.host, self.back = (self._pinned(size) for _ in range(2))
        if workspace_bytes + 2 * GUARD > self.space_bytes:
            if self.space:
                self.driver.cuMemFree(self.space)
            self.space = 0
            self.space_bytes = 1 << max(20, (workspace_bytes + 2 * GUARD).bit_length())
            self.space = int(self.check(self.driver.cuMemAlloc(self.space_bytes)))

    def _pinned(self, size: int) -> np.ndarray:
        import ctypes

        address = int(self.check(self.driver.cuMemHostAlloc(size, 0)))
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def make_busy(self) -> None:
        """Some microseconds of work on two other streams."""
        d, half = self.driver, self.BUSY_BYTES
        for stream, n in itertools.product(self.others, range(self.BUSY_TURNS)):
            self.check(d.cuMemcpyDtoDAsync(self.busy + n % 2 * half, self.busy + (1 - n % 2) * half, half, stream))
            self.check(d.cuMemsetD8Async(self.busy + n % 2 * half, n, half, stream))

    def __call__(self, start: Start, problem: Any, inputs: Any, old: Any, workspace_bytes: int = 0) -> Ran:
        """Alone; beside busy streams; with another workspace; and at once again, behind itself and in the same workspace.

        Half of the problems run on the legacy default stream, half on one of their own.
        """
        self.turn += 1
        stream = self.own if self.turn % 2 else 0
        operands = [[*_placed(problem, inputs), *targets(problem, old)] for _ in SHIFTS]
        offsets, end = _offsets(operands, _spent(problem))
        self._reserve(end + 2 * GUARD * len(SHIFTS), workspace_bytes)
        self.host[: end + 2 * GUARD * len(SHIFTS)] = 0xFF
        for buffers, places in zip(operands, offsets, strict=True):
            for b, place in zip(buffers, places, strict=True):
                self.host[place : place + b.memory.nbytes] = b.memory.view(np.uint8)
        d, check, many = self.driver, self.check, len(problem.inputs)
        check(d.cuMemcpyHtoDAsync(self.room, self.host.ctypes.data, end, stream))
        made: list[Any] = []
        for turn, (buffers, places) in enumerate(zip(operands, offsets, strict=True)):
            if turn < len(POISON):
                check(d.cuMemsetD8Async(self.space, POISON[turn], workspace_bytes + 2 * GUARD, stream))
            if turn == 1:
                self.make_busy()
            addresses = [self.room + place + b.offset for b, place in zip(buffers, places, strict=True)]
            made.append(start(addresses[:many], addresses[many:], self.space + GUARD, stream))
            if turn == len(POISON) - 1:
                continue  # nothing between it and the one behind it
            for results, to in zip(made, offsets, strict=False):
                if results is not None:
                    self._collect(results, problem, [self.room + at for at in to[many:]], operands[0][many:], stream)
            for n, guard in enumerate((self.space, self.space + GUARD + workspace_bytes)):
                check(d.cuMemcpyDtoDAsync(self.room + end + (2 * turn + n) * GUARD, guard, GUARD, stream))
        size = end + 2 * GUARD * len(SHIFTS)
        check(d.cuMemcpyDtoHAsync(self.back.ctypes.data, self.room, size, stream))
        check(d.cuStreamSynchronize(stream))
        del made
        return self._read(problem, operands, offsets, end)

    def _collect(self, results: Any, problem: Any, rooms: list[int], outputs: list[Buffer], stream: int) -> None:
        """Copy new arrays to where results are looked for; what was not written there stays NaN."""
        results = results if isinstance(results, tuple) else (results,)
        for array, spec, room, b in zip(results, problem.outputs, rooms, outputs, strict=True):
            if (tuple(array.shape), array.dtype) != (spec.shape, spec.dtype):
                raise AssertionError(f"expected a result {spec}, got {array.dtype} {array.shape}")
            nbytes = (spec.span[1] + 1) * spec.itemsize
            self.check(self.driver.cuMemcpyDtoDAsync(room + b.offset, array.memory.address, nbytes, stream))

    def _read(self, problem: Any, operands: list[list[Buffer]], offsets: list[list[int]], end: int) -> Ran:
        """The results, and whether anything else was written: inputs, what lies between operands, and the guards."""
        results, damage, many = [], "", len(problem.inputs)
        for turn, (buffers, places) in enumerate(zip(operands, offsets, strict=True)):
            found = []
            for number, (b, place) in enumerate(zip(buffers, places, strict=True)):
                at = slice(place, place + b.memory.nbytes)
                if number < many and number not in _spent(problem):
                    if not np.array_equal(self.back[at], self.host[at]):
                        damage = damage or f"input {number + 1} (or memory around it) was changed"
                    continue
                fresh = buffer(b.spec)
                fresh.memory.view(np.uint8)[...] = self.back[at]
                name = f"output {number + 1 - many}" if number >= many else f"input {number + 1}"
                if not untouched(fresh):
                    damage = damage or f"memory around {name} was written"
                found += [fresh.array] if number >= many else []
            results.append(tuple(found))
            guards = self.back[end + 2 * turn * GUARD : end + 2 * (turn + 1) * GUARD]
            if turn != len(POISON) - 1 and np.any(guards != POISON[min(turn, len(POISON) - 1)]):
                damage = damage or "memory around the workspace was written"
        return Ran(results, damage)


def _placed(problem: Any, inputs: Any) -> list[Buffer]:
    return [buffer(s, v) for s, v in zip(problem.inputs, inputs, strict=True)]


def _offsets(operands: list[list[Buffer]], still: tuple[int, ...]) -> tuple[list[list[int]], int]:
    """Where each run's operands lie in one piece of memory, and where it ends; those numbered in ``still`` are not shifted.

    A reserve is laid out from its first multiple of 256 on by who writes it: it may move by such multiples alone.
    """
    end, found = 0, []
    for buffers, shift in zip(operands, SHIFTS, strict=True):
        places = []
        for number, b in enumerate(buffers):
            places.append(end + (0 if number in still else shift))
            end += -(-(b.memory.nbytes + shift) // 256) * 256
        found.append(places)
    return found, end


# ---- this thread's -----------------------------------------------------------------------------------------------------

_here = threading.local()


def gpu(device: int) -> Gpu:
    """This thread's memory and streams, made at their first use."""
    if not hasattr(_here, "gpu"):
        _here.gpu = Gpu(device)
    place: Gpu = _here.gpu
    return place


def on_simulator(start: Start, problem: Any, inputs: Any, old: Any, workspace_bytes: int = 0) -> Ran:
    """Once, as Numba's simulator of a GPU is slow; every access is checked against the operands and the workspace."""
    from numbadnn.kernels.lang import access

    ins, outs = _placed(problem, inputs), targets(problem, old)
    workspace = np.full(workspace_bytes + 256, POISON[0], np.uint8)
    at = workspace.ctypes.data + -workspace.ctypes.data % 256
    access.MEMORY[:] = [*map(_reach, (*ins, *outs)), (at, at + workspace_bytes)]
    before = [b.memory.tobytes() for b in ins]
    start([b.array.ctypes.data for b in ins], [b.array.ctypes.data for b in outs], at, 0)
    return Ran([tuple(b.array for b in outs)], _damage(problem, ins, before, outs))


def _reach(operand: Buffer) -> tuple[int, int]:
    """The first and the last + 1 byte address of an operand."""
    (low, high), size, start = operand.spec.span, operand.spec.itemsize, operand.array.ctypes.data
    return start + low * size, start + (high + 1) * size


def here(device: int) -> Callable[..., Ran]:
    """Where this thread runs problems of a device: ``place(start, problem, inputs, old, workspace_bytes)``."""
    if device < 0:
        return on_cpu
    return on_simulator if simulate.active() else gpu(device)
