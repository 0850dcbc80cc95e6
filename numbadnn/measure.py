"""Candidates on one problem, side by side: do they agree, and how long does each take?

A ``Stage`` holds a problem's operands on one device: random numbers to time with, small integers that every direct sum must
agree on to the bit. Times are of the device alone: sets of operands are used in turn, so many that none is found in the L2
cache again, and a block of other work keeps the device busy while the host enqueues. On the CPU it is the call that is timed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from numbadnn.problem import Policy
from numbadnn.registry import Executable
from numbadnn.validate.data import Buffer, buffer, make_arrays
from numbadnn.validate.laws import law

#: ||a - b|| / ||b|| up to which two results agree. Not an accuracy: validate has the bounds; this finds what is plainly wrong,
#: or computes in less than it says (TF32 in place of IEEE float32 is off by 3e-4)
AGREEMENT = {"float64": 1e-12, "float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}
LOOSER = {"tf32": 20.0, "fft": 10.0, "winograd": 10.0}

CPU_CACHE, MOST_SETS, MOST_BYTES = 64 << 20, 64, 2 << 30
BLOCK_BYTES, BLOCKS = 256 << 20, 6


class Stage:
    """Operands of one problem on one device; made by ``stage``."""

    def __init__(self, problem: Any, policy: Policy) -> None:
        self.problem, self.policy = problem, policy
        self.words = tuple(getattr(problem, "words", ()))
        kinds = ("random", "integers") if law(problem.op).exact_integers(problem) else ("random",)
        self.start = {kind: _buffers(problem, kind) for kind in kinds}

    def results(self, executable: Executable, kind: str) -> tuple[np.ndarray, ...]:
        """Each output's whole memory in one dimension, NaN where nothing was written."""
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
    from numbadnn.kernels._context import ensure_context

    with ensure_context(policy.device):
        made = _DeviceStage(problem, policy)
        try:
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

    def results(self, executable: Executable, kind: str) -> tuple[np.ndarray, ...]:
        ins, outs = self.start[kind]
        fresh = [buffer(b.spec, b.array) for b in outs]
        executable.run(self._inputs(ins), tuple(b.array for b in fresh), None, None)
        return tuple(b.memory for b in fresh)

    def times(self, executable: Executable, launches: int) -> list[float]:
        found = []
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
        from numbadnn.arrays import memory

        self._driver, self._check = memory.driver(), memory.check
        self._owned: list[int] = []
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
        self._events = [(check(d.cuEventCreate(0)), check(d.cuEventCreate(0))) for _ in range(16)]

    def free(self) -> None:
        for pair in getattr(self, "_events", ()):
            for event in pair:
                self._driver.cuEventDestroy(event)
        for address in (*self._owned, self._workspace):
            if address:
                self._driver.cuMemFree(address)

    def results(self, executable: Executable, kind: str) -> tuple[np.ndarray, ...]:
        d, check = self._driver, self._check
        (ins, outs), bases = self.start[kind], self._at[kind]
        targets = bases[len(ins) :]
        for n, (b, base) in enumerate(zip(outs, targets, strict=True)):
            if getattr(self.problem, "beta", 0) and n == 0:
                check(d.cuMemcpyHtoD(base, b.memory.ctypes.data, b.memory.nbytes))
            else:
                check(d.cuMemsetD8(base, 0xFF, b.memory.nbytes))  # NaN in every type
        self._run(executable, kind, bases)
        check(d.cuCtxSynchronize())
        results = []
        for b, base in zip(outs, targets, strict=True):
            memory = np.empty_like(b.memory)
            check(d.cuMemcpyDtoH(memory.ctypes.data, base, memory.nbytes))
            results.append(memory)
        return tuple(results)

    def times(self, executable: Executable, launches: int) -> list[float]:
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

    def _allocate(self, nbytes: int) -> int:
        address = int(self._check(self._driver.cuMemAlloc(max(nbytes, 1))))
        self._owned.append(address)
        return address


#: elements whose norm is taken where small integers have already shown every element
SAMPLE = 1 << 18


def disagreement(
    results: tuple[np.ndarray, ...], others: tuple[np.ndarray, ...], arithmetic: str, sample: bool = False
) -> str:
    """Why these are not the same results, up to rounding ("" = they are); ``sample``: one element in many is looked at.

    >>> disagreement((np.ones(3, "float32"),), (np.full(3, 1.5, "float32"),), "ieee")
    'output 1 differs by 0.333 of its norm, 0.0001 is allowed'
    """
    for number, (mine, other) in enumerate(zip(results, others, strict=True), 1):
        step = max(1, mine.size // SAMPLE) | 1 if sample else 1
        wide: Any = np.float64 if mine.dtype == np.float64 else np.float32
        a, b = mine[::step].astype(wide), other[::step].astype(wide)
        with np.errstate(invalid="ignore", over="ignore"):
            odd = ~(np.isfinite(a) & np.isfinite(b))
            if odd.any():
                if not np.array_equal(a[odd], b[odd], equal_nan=True):
                    return f"output {number} is not finite where the other is, or the reverse"
                a, b = np.where(odd, 0, a), np.where(odd, 0, b)
            norm, apart = float(np.linalg.norm(b)), float(np.linalg.norm(a - b))
        allowed = AGREEMENT[mine.dtype.name] * LOOSER.get(arithmetic, 1.0)
        if not apart <= allowed * norm:
            return (
                f"output {number} differs by {apart / norm if norm else apart:.3g} of its norm, {allowed:g} is allowed"
            )
    return ""


def same_integers(results: tuple[np.ndarray, ...], others: tuple[np.ndarray, ...]) -> str:
    """Why small integers did not come out the same ("" = they did); zeros of either sign are one value."""
    for number, (a, b) in enumerate(zip(results, others, strict=True), 1):
        if np.array_equal(a.view(np.uint8), b.view(np.uint8)):
            continue
        count = int(np.count_nonzero(~((a == b) | ((a != a) & (b != b)))))
        if count:
            return f"output {number} differs in {count} elements on small integers"
    return ""
