"""One implementation on one set of inputs, on the CPU or on a GPU, with memory that shows what it touches.

The output, and all memory around every operand, is NaN before each run. Afterwards the inputs must be what they were and the
surroundings still NaN. On a GPU the same bytes are copied to an allocation of their own, so that strides and alignment
are those of the problem; nothing but the CUDA driver is needed.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from numbadnn.host import files as stored
from numbadnn.kept import machine
from numbadnn.measuring.data import Buffer, buffer, untouched
from numbadnn.problem import Policy
from numbadnn.registry import Executable, Impl
from numbadnn.validate.determinism import fingerprint, same_bits

#: bytes before and after a workspace on a GPU that must stay as they are
FENCE = 4096
#: sets of operands that timed runs rotate over on a GPU, so that they are not found in its cache
ROTATIONS = 4


class Outcome(NamedTuple):
    """``results`` of the first run; ``same_bits`` in all; ``damage`` says what was written that must not be ("" = nothing)."""

    results: tuple[np.ndarray, ...]
    same_bits: bool
    damage: str
    executable: Executable
    time_us: float


def execute(
    impl: Impl, problem: Any, policy: Policy, inputs: Any, old: Any = None, runs: int = 3, timed: bool = False
) -> Outcome:
    """Plan once, run ``runs`` times from the same start; ``timed``: then measure (median, microseconds), else 0.

    What is timed on a GPU has it alone, as far as other processes measure too.
    """
    guarded = [buffer(s, v) for s, v in zip(problem.inputs, inputs, strict=True)]
    before = [fingerprint(b.memory) for b in guarded]
    place = partial(_on_gpu, number=policy.device) if policy.device >= 0 else _on_cpu
    results, damage = [], ""
    with _context(policy.device):
        executable = impl.plan(problem, policy, None)
        with place(executable, problem, guarded, old) as placed:
            for _ in range(runs):
                outputs = placed.run_once()
                results.append(tuple(b.array for b in outputs))
                damage = damage or _damage([], [], outputs)
            damage = damage or _damage(before, placed.inputs(), [], getattr(problem, "spent", ())) or placed.workspace()
            time_us = placed.measure() if timed else 0.0
    return Outcome(results[0], same_bits(results), damage, executable, time_us)


def targets(problem: Any, old: Any = None) -> list[Buffer]:
    """The outputs, NaN; the first with its old contents where it has any."""
    return [buffer(spec, None if i else old) for i, spec in enumerate(problem.outputs)]


def words(problem: Any) -> tuple[int, ...]:
    """The integers an operation takes after its arrays, which are no part of its problem."""
    return getattr(problem, "words", ())


def _context(device: int) -> Any:
    if device < 0:
        return contextlib.nullcontext()
    from numbadnn.gpu.context import ensure_context

    return ensure_context(device)


def _damage(before: list[str], inputs: list[Buffer], outputs: list[Buffer], spent: tuple[int, ...] = ()) -> str:
    """``spent``: inputs that may change, though not the memory around them."""
    for number, (was, b) in enumerate(zip(before, inputs, strict=True)):
        if not untouched(b) if number in spent else fingerprint(b.memory) != was:
            return f"input {number + 1} (or memory around it) was changed"
    wrong = [str(number) for number, b in enumerate(outputs, 1) if not untouched(b)]
    return f"memory around output {', '.join(wrong)} was written" if wrong else ""


class Placed(NamedTuple):
    """Operands where an implementation can use them: run it once for its outputs, see its inputs again, time it.

    ``workspace()`` says what was written around the workspace ("" = nothing).
    """

    run_once: Callable[[], list[Buffer]]
    inputs: Callable[[], list[Buffer]]
    measure: Callable[[], float]
    workspace: Callable[[], str]


@contextlib.contextmanager
def _on_cpu(executable: Executable, problem: Any, inputs: list[Buffer], old: Any) -> Iterator[Placed]:
    arguments = (*(b.array for b in inputs), *words(problem))

    def run_once() -> list[Buffer]:
        outputs = targets(problem, old)
        executable.run(arguments, tuple(b.array for b in outputs), None, None)
        return outputs

    def measure() -> float:
        outputs = tuple(b.array for b in targets(problem, old))
        times: list[float] = []
        while (sum(times) < 2e4 and len(times) < 20) or (sum(times) < 1e6 and len(times) < 3):
            start = time.perf_counter()
            executable.run(arguments, outputs, None, None)
            times.append((time.perf_counter() - start) * 1e6)
        return statistics.median(times)

    yield Placed(run_once, lambda: inputs, measure, str)


# ---- on a GPU --------------------------------------------------------------------------------------------------------


class _Device:
    """Device memory by the driver's plain calls, freed together; everything on the legacy default stream."""

    def __init__(self, number: int) -> None:
        from numbadnn.arrays import device as memory

        self.driver, self.check, self.lock = memory.driver(), memory.check, machine.lock_name(number)
        self.owned: list[Any] = []

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """While kernels run: no other process measures or runs any then; copies from and to the host do go on."""
        return stored.lock_file(self.lock)

    def allocate(self, nbytes: int) -> int:
        pointer = self.check(self.driver.cuMemAlloc(max(nbytes, 1)))
        self.owned.append(pointer)
        return int(pointer)

    def put(self, b: Buffer, address: int = 0) -> int:
        """Copy a whole buffer to the device; the address of its first byte."""
        address = address or self.allocate(b.memory.nbytes)
        self.check(self.driver.cuMemcpyHtoD(address, b.memory.ctypes.data, b.memory.nbytes))
        return address

    def copy(self, b: Buffer, address: int) -> int:
        """The address of another copy of what the device holds for a buffer."""
        fresh = self.allocate(b.memory.nbytes)
        self.check(self.driver.cuMemcpyDtoD(fresh, address, b.memory.nbytes))
        return fresh

    def get(self, b: Buffer, address: int) -> Buffer:
        """What the device holds for a buffer, as a fresh one."""
        fresh = buffer(b.spec)
        self.check(self.driver.cuMemcpyDtoH(fresh.memory.ctypes.data, address, b.memory.nbytes))
        return fresh

    def fenced(self, nbytes: int) -> tuple[int, Callable[[], str]]:
        """(address of that much memory between fences, what says whether the fences were written)."""
        base, fence = self.allocate(nbytes + 2 * FENCE), np.empty(FENCE, np.uint8)
        self.check(self.driver.cuMemsetD8(base, 0xFF, nbytes + 2 * FENCE))

        def damage() -> str:
            for start in (base, base + FENCE + nbytes):
                self.check(self.driver.cuMemcpyDtoH(fence.ctypes.data, start, FENCE))
                if not (fence == 0xFF).all():
                    return "memory around the workspace was written"
            return ""

        return base + FENCE, damage

    def free(self) -> None:
        for pointer in self.owned:
            self.driver.cuMemFree(pointer)


@contextlib.contextmanager
def _on_gpu(executable: Executable, problem: Any, inputs: list[Buffer], old: Any, number: int) -> Iterator[Placed]:
    device = _Device(number)
    try:
        workspace, fences = device.fenced(executable.workspace_bytes)
        outputs = targets(problem, old)
        bases, outs = [device.put(b) for b in inputs], [device.put(b) for b in outputs]
        arguments = (*(base + b.offset for base, b in zip(bases, inputs, strict=True)), *words(problem))
        addresses = tuple(out + b.offset for out, b in zip(outs, outputs, strict=True))

        def run_once() -> list[Buffer]:
            for b, out in zip(outputs, outs, strict=True):
                device.put(b, out)
            with device.alone():
                if executable.workspace_bytes:  # NaN in every type
                    device.check(device.driver.cuMemsetD8(workspace, 0xFF, executable.workspace_bytes))
                executable.run(arguments, addresses, workspace, 0)
                device.check(device.driver.cuCtxSynchronize())
            return [device.get(b, out) for b, out in zip(outputs, outs, strict=True)]

        def after() -> list[Buffer]:
            return [device.get(b, base) for b, base in zip(inputs, bases, strict=True)]

        def measure() -> float:
            operands = list(zip((*inputs, *outputs), (*bases, *outs), strict=True))
            return _measure(device, executable, problem, operands, workspace)

        yield Placed(run_once, after, measure, fences)
    finally:
        device.free()


def _measure(
    device: _Device, executable: Executable, problem: Any, operands: list[tuple[Buffer, int]], workspace: int
) -> float:
    """The median of many launches, each between two events, on copies of the operands in turn; alone on the device."""
    d, check = device.driver, device.check
    start, stop = check(d.cuEventCreate(0)), check(d.cuEventCreate(0))
    times, sets, n = [], [], len(problem.inputs)
    with device.alone():
        for _ in range(ROTATIONS):
            copies = [device.copy(b, address) + b.offset for b, address in operands]
            sets.append(((*copies[:n], *words(problem)), tuple(copies[n:])))
        check(d.cuCtxSynchronize())
        for i in range(5 * ROTATIONS + 2):
            check(d.cuEventRecord(start, 0))
            executable.run(*sets[i % ROTATIONS], workspace, 0)
            check(d.cuEventRecord(stop, 0))
            check(d.cuEventSynchronize(stop))
            times.append(1000 * check(d.cuEventElapsedTime(start, stop)))
    for event in (start, stop):
        d.cuEventDestroy(event)
    return statistics.median(times[2:])
