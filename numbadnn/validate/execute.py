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

from numbadnn.measuring.data import Buffer, buffer, untouched
from numbadnn.measuring.device import Device
from numbadnn.problem import Policy
from numbadnn.registry import Executable, Impl
from numbadnn.validate.determinism import fingerprint, same_bits

#: bytes before and after a workspace on a GPU that must stay as they are
FENCE = 4096
#: launches that are timed on a GPU, the first two of which do not count
LAUNCHES = 22


class Outcome(NamedTuple):
    """``results`` of the first run; ``same_bits`` in all; ``damage`` says what was written that must not be ("" = nothing)."""

    results: tuple[np.ndarray, ...]
    same_bits: bool
    damage: str
    executable: Executable
    time_us: float


def execute(
    impl: Impl,
    problem: Any,
    policy: Policy,
    inputs: Any,
    old: Any = None,
    runs: int = 3,
    timed: bool = False,
    alone: bool = False,
) -> Outcome:
    """Plan once, run ``runs`` times from the same start; ``timed``: then measure (median, microseconds), else 0.

    What is timed on a GPU has it alone, as far as other processes measure too; ``alone``: so has what is not timed itself, for
    the others' sake. Where nobody measures, to wait for each other would be all that many processes on one GPU do.
    """
    guarded = [buffer(s, v) for s, v in zip(problem.inputs, inputs, strict=True)]
    before = [fingerprint(b.memory) for b in guarded]
    place = partial(_on_gpu, number=policy.device, alone=timed or alone) if policy.device >= 0 else _on_cpu
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


def _get(device: Device, b: Buffer, address: int) -> Buffer:
    """What the device holds for a buffer, as a fresh one."""
    fresh = buffer(b.spec)
    device.check(device.driver.cuMemcpyDtoH(fresh.memory.ctypes.data, address, b.memory.nbytes))
    return fresh


def _fenced(device: Device, nbytes: int) -> tuple[int, Callable[[], str]]:
    """(address of that much memory between fences, what says whether the fences were written)."""
    base, fence = device.allocate(nbytes + 2 * FENCE), np.empty(FENCE, np.uint8)
    device.check(device.driver.cuMemsetD8(base, 0xFF, nbytes + 2 * FENCE))

    def damage() -> str:
        for start in (base, base + FENCE + nbytes):
            device.check(device.driver.cuMemcpyDtoH(fence.ctypes.data, start, FENCE))
            if not (fence == 0xFF).all():
                return "memory around the workspace was written"
        return ""

    return base + FENCE, damage


@contextlib.contextmanager
def _on_gpu(
    executable: Executable, problem: Any, inputs: list[Buffer], old: Any, number: int, alone: bool
) -> Iterator[Placed]:
    device = Device(number)
    try:
        workspace, fences = _fenced(device, executable.workspace_bytes)
        outputs = targets(problem, old)
        bases, outs = [device.put(b) for b in inputs], [device.put(b) for b in outputs]
        arguments = (*(base + b.offset for base, b in zip(bases, inputs, strict=True)), *words(problem))
        addresses = tuple(out + b.offset for out, b in zip(outs, outputs, strict=True))

        def run_once() -> list[Buffer]:
            for b, out in zip(outputs, outs, strict=True):
                device.put(b, out)
            with device.alone() if alone else contextlib.nullcontext():
                if executable.workspace_bytes:  # NaN in every type
                    device.check(device.driver.cuMemsetD8(workspace, 0xFF, executable.workspace_bytes))
                executable.run(arguments, addresses, workspace, 0)
                device.check(device.driver.cuCtxSynchronize())
            return [_get(device, b, out) for b, out in zip(outputs, outs, strict=True)]

        def after() -> list[Buffer]:
            return [_get(device, b, base) for b, base in zip(inputs, bases, strict=True)]

        def measure() -> float:
            """The median of many launches, on copies of the operands in turn."""
            buffers, n = [*inputs, *outputs], len(inputs)
            with device.alone():
                turns = device.rotations(buffers, [*bases, *outs])

                def launch(turn: int) -> None:
                    at = [base + b.offset for b, base in zip(buffers, turns[turn % len(turns)], strict=True)]
                    executable.run((*at[:n], *words(problem)), tuple(at[n:]), workspace, 0)

                return statistics.median(device.times(launch, LAUNCHES)[2:])

        yield Placed(run_once, after, measure, fences)
    finally:
        device.free()
