"""Which level of determinism an implementation reaches on a problem, by trying what might change its bits.

The first run is what all others are compared with: again, at other addresses, with the workspace full of something else, beside
other work, on another stream (or with other numbers of threads), and for the images of a batch alone or among others.
``run_to_run`` is what passes all but the last; ``batch_invariant`` what passes those too. That another GPU gives the same bits
no single machine can show: ``gpu_to_gpu`` is the comparison of two reports.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from numbadnn.errors import NotSupportedError, NumbaDNNError
from numbadnn.measuring.data import Buffer, buffer, make_arrays
from numbadnn.problem import Policy
from numbadnn.registry import Executable, Impl
from numbadnn.validate.determinism import batches, fingerprint

RUNS = 5
#: bytes that the operands' addresses are moved by, and what the workspace holds before a run
SHIFTS, POISON = (16, 48, 112), (0x00, 0xFF, 0x3C)
SAME, DIFFERENT = "same", "different"
Arrays = tuple[np.ndarray, ...]


def moved(b: Buffer, shift: int) -> Buffer:
    """The same operand, ``shift`` bytes further from a 64-byte boundary."""
    room = np.empty(b.memory.nbytes + 64 + shift, np.uint8)
    start = -room.ctypes.data % 64 + shift
    memory = room[start : start + b.memory.nbytes].view(b.memory.dtype)
    memory[...] = b.memory
    strides = tuple(s * memory.itemsize for s in b.spec.strides)
    array = np.ndarray(b.spec.shape, memory.dtype, memory, b.offset, strides)
    return Buffer(b.spec, memory, array, b.offset)


def run(executable: Executable, problem: Any, policy: Policy, inputs: Arrays, **how: Any) -> Arrays:
    """Run once on fresh memory; ``how``: shift, poison, stream (GPU)."""
    words = tuple(getattr(problem, "words", ()))
    old = how.pop("old", None)
    ins = [buffer(s, a) for s, a in zip(problem.inputs, inputs, strict=True)]
    outs = [buffer(s, None if i else old) for i, s in enumerate(problem.outputs)]
    place = _run_on_cpu if policy.device < 0 else _run_on_gpu
    return place(executable, ins, outs, words, **how)


def _run_on_cpu(executable: Executable, ins: list[Buffer], outs: list[Buffer], words: Any, shift: int = 0) -> Arrays:
    ins, outs = [moved(b, shift) for b in ins], [moved(b, shift) for b in outs]
    executable.run((*(b.array for b in ins), *words), tuple(b.array for b in outs), None, None)
    return tuple(b.array for b in outs)


def _run_on_gpu(
    executable: Executable,
    ins: list[Buffer],
    outs: list[Buffer],
    words: Any,
    shift: int = 0,
    poison: int = 0x00,
    stream: int = 0,
) -> Arrays:
    from numbadnn.gpu import bindings

    d, check = bindings.driver(), bindings.check
    owned: list[int] = []

    def put(nbytes: int) -> int:
        owned.append(int(check(d.cuMemAlloc(nbytes + shift + 1))))
        return owned[-1] + shift

    try:
        bases = [put(b.memory.nbytes) for b in (*ins, *outs)]
        for b, base in zip((*ins, *outs), bases, strict=True):
            check(d.cuMemcpyHtoD(base, b.memory.ctypes.data, b.memory.nbytes))
        workspace = put(executable.workspace_bytes) - shift
        check(d.cuMemsetD8(workspace, poison, executable.workspace_bytes + 1))
        check(d.cuStreamSynchronize(0))
        addresses = [base + b.offset for b, base in zip((*ins, *outs), bases, strict=True)]
        executable.run((*addresses[: len(ins)], *words), tuple(addresses[len(ins) :]), workspace, stream)
        check(d.cuStreamSynchronize(stream))
        for b, base in zip(outs, bases[len(ins) :], strict=True):
            check(d.cuMemcpyDtoH(b.memory.ctypes.data, base, b.memory.nbytes))
    finally:
        for address in owned:
            d.cuMemFree(address)
    return tuple(b.array for b in outs)


@contextmanager
def noise(policy: Policy) -> Iterator[None]:
    """Other work on the same device meanwhile: matrix products on the CPU, memory traffic on a stream of its own on a GPU."""
    done, running = threading.Event(), threading.Event()
    work = _busy_cpu if policy.device < 0 else _busy_gpu
    thread = threading.Thread(target=work, args=(done, running, policy.device))
    thread.start()
    try:
        if not running.wait(30):
            raise NumbaDNNError("the other work did not start")
        yield
    finally:
        done.set()
        thread.join()


def _busy_cpu(done: threading.Event, running: threading.Event, device: int) -> None:
    a = np.ones((64, 64), np.float32)
    while not done.is_set():
        a = np.tanh(a @ a)
        running.set()


def _busy_gpu(done: threading.Event, running: threading.Event, device: int) -> None:
    """Copies and fills that are several milliseconds long keep the stream full while the host enqueues the next."""
    from numbadnn.gpu import bindings
    from numbadnn.gpu.context import ensure_context

    d, check = bindings.driver(), bindings.check
    with ensure_context(device):
        stream = check(d.cuStreamCreate(d.CUstream_flags.CU_STREAM_NON_BLOCKING))
        half = 1 << 27
        room = int(check(d.cuMemAlloc(2 * half)))
        ends = [check(d.cuEventCreate(0)) for _ in range(2)]
        for turn in itertools.count():
            if done.is_set():
                break
            check(d.cuEventSynchronize(ends[turn % 2]))  # of the turn before the last
            for to in (0, half) * 8:
                check(d.cuMemcpyDtoDAsync(room + to, room + half - to, half, stream))
                check(d.cuMemsetD8Async(room + to, 7, half, stream))
            check(d.cuEventRecord(ends[turn % 2], stream))
            running.set()
        check(d.cuStreamSynchronize(stream))
        for end in ends:
            d.cuEventDestroy(end)
        d.cuMemFree(room)
        d.cuStreamDestroy(stream)


class Findings:
    """What each trial found on one implementation (or engine) and problem, the bits, and the level that follows."""

    def __init__(self) -> None:
        self.trials: dict[str, str] = {}
        self.runs: dict[str, list[int]] = {}  # how many runs of a trial gave the same bits, of how many
        self.sha256 = self.declared = ""

    def note(self, trial: str, same: bool) -> None:
        counts = self.runs.setdefault(trial, [0, 0])
        counts[0], counts[1] = counts[0] + same, counts[1] + 1
        if self.trials.get(trial) != DIFFERENT:
            self.trials[trial] = SAME if same else DIFFERENT

    @property
    def level(self) -> str:
        if any(found == DIFFERENT for trial, found in self.trials.items() if trial != "batch"):
            return "not_guaranteed"
        return "batch_invariant" if self.trials.get("batch") == SAME else "run_to_run"


def examine(
    impl: Impl, problem: Any, policy: Policy, make_config: Callable[[Any], Any] = lambda problem: None
) -> Findings:
    """Try everything in this process; ``make_config(problem)`` is the configuration, for parts of the batch too.

    Raises what the implementation raises on the problem itself; what it refuses on a part is no finding.
    """
    found = Findings()
    inputs, old = make_arrays(problem, 0)
    executable = impl.plan(problem, policy, make_config(problem))
    first = run(executable, problem, policy, inputs, old=old)
    found.sha256, found.declared = fingerprint(*first), executable.determinism

    def compare(trial: str, **how: Any) -> None:
        again = run(how.pop("by", executable), problem, policy, inputs, old=old, **how)
        found.note(trial, fingerprint(*again) == found.sha256)

    for _ in range(RUNS - 1):
        compare("again")
    compare("planned anew", by=impl.plan(problem, policy, make_config(problem)))
    for shift in SHIFTS:
        compare("addresses", shift=shift)
    with noise(policy):
        for _ in range(RUNS):
            compare("noise")
    for setting in _settings(policy, executable):
        with setting as (trial, how):
            compare(trial, **how)
    _batch(found, impl, executable, problem, policy, inputs, first, make_config)
    return found


def _settings(policy: Policy, executable: Executable) -> Iterator[Any]:
    """(trial, how) for what belongs to one kind of device."""
    if policy.device < 0:
        import numba

        for threads in (
            (1, 2) if numba.config.NUMBA_NUM_THREADS > 1 else ()
        ):  # one alone is what all other trials run on
            yield _threads(threads)
        return
    for poison in POISON if executable.workspace_bytes else ():
        yield _plainly("workspace", {"poison": poison})
    yield _stream()


@contextmanager
def _plainly(trial: str, how: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield trial, how


@contextmanager
def _threads(count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    import numba

    before = numba.get_num_threads()
    numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
    try:
        yield "threads", {}
    finally:
        numba.set_num_threads(before)


@contextmanager
def _stream() -> Iterator[tuple[str, dict[str, Any]]]:
    from numbadnn.gpu import bindings

    d, check = bindings.driver(), bindings.check
    stream = int(check(d.cuStreamCreate(d.CUstream_flags.CU_STREAM_NON_BLOCKING)))
    try:
        yield "stream", {"stream": stream}
    finally:
        d.cuStreamDestroy(stream)


def _batch(
    found: Findings,
    impl: Impl,
    whole: Executable,
    problem: Any,
    policy: Policy,
    inputs: Arrays,
    first: Arrays,
    make_config: Any,
) -> None:
    """The images alone, in halves, and the first one among others."""
    for low, high in batches.splits(problem):
        some = batches.part(problem, inputs, low, high)
        try:
            if impl.supports(some.problem, policy):
                continue
            executable = impl.plan(some.problem, policy, make_config(some.problem))
        except (NotSupportedError, NumbaDNNError, ValueError):
            continue  # then another implementation takes these images, which is no fault of this one
        alone = run(executable, some.problem, policy, some.inputs)
        found.note("batch", fingerprint(*alone) == fingerprint(*(y[low:high] for y in first)))
    if "batch" in found.trials:
        among = run(whole, problem, policy, batches.other_neighbours(problem, inputs))
        found.note("batch", fingerprint(*(y[:1] for y in among)) == fingerprint(*(y[:1] for y in first)))
