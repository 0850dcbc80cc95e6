"""One random problem on one implementation, or through the public function: run several times, by one thread or four at once.

A ``Verdict`` is right, wrong (beyond the bound, or memory damaged), other bits (against the level declared), refused (with a
reason), an error of cuDNN's, another error, or skipped for lack of memory. All but right, refused and skipped are findings.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numbadnn
from numbadnn import config
from numbadnn.arrays.device import DeviceArray
from numbadnn.call import select
from numbadnn.call.select import policy_in_force
from numbadnn.errors import CudnnError, NotSupportedError, is_lack_of_memory
from numbadnn.gpu import bindings, memory
from numbadnn.kernels.build import simulate
from numbadnn.measuring.compare import DIRECT
from numbadnn.measuring.laws import law
from numbadnn.problem import Policy
from numbadnn.registry import Executable, Impl, implementations
from numbadnn.validate.determinism import fingerprint
from numbadnn.validate.fuzz import places
from numbadnn.validate.oracle import Trial
from numbadnn.validate.reserve import backward_of, forward_of

FINDINGS = ("wrong", "other bits", "CudnnError", "error", "ended")
THREADS = 4


class Verdict(NamedTuple):
    """What one implementation did on one problem."""

    impl: str
    kind: str
    text: str = ""


class Subject:
    """A problem with data of its own: its seed decides the kind of data too."""

    def __init__(self, problem: Any, seed: int) -> None:
        self.problem, self.seed, family = problem, seed, law(problem.op)
        kinds = ["random", "random", *family.extra_kinds(problem)]
        kinds += ["integers"] if family.exact_integers(problem) else []
        self.kind = kinds[seed % len(kinds)]
        self.trial = Trial.of(problem, seed, self.kind)

    def judge(self, declared: Any, ran: list[places.Ran]) -> tuple[str, str]:
        """The kind of verdict and its text; ``declared``: arithmetic, summation and determinism."""
        trial, seen = self.trial, dict[str, int]()
        results = [result for one in ran for result in one.results]
        for number, result in enumerate(results, 1):
            bits = fingerprint(*result)
            if bits in seen:
                continue
            seen[bits] = number
            found = trial.compare(result, declared.arithmetic, declared.summation)
            if found.ok and self.kind == "integers" and declared.arithmetic in DIRECT:
                found = trial.compare_exactly(result)
            if not found.ok:
                return "wrong", f"run {number} of {len(results)}, {self.kind} data: {found}"
        if damage := next((one.damage for one in ran if one.damage), ""):
            return "wrong", damage
        if len(seen) > 1 and declared.determinism != "not_guaranteed":
            return "other bits", f"{len(results)} runs gave {len(seen)} results, declared is {declared.determinism}"
        return "right", ""


def examine(subject: Subject, backend: str, device: int, threads: int = 1) -> Iterator[Verdict]:
    """Every implementation of a backend on one problem; ``auto`` is the public function, as the options are."""
    if backend == "auto":
        yield _guarded("auto", functools.partial(_through_function, subject, device, threads))
        return
    policy, found = policy_in_force(subject.problem.op, device), implementations(subject.problem.op)
    for impl in [i for i in found if i.backend == backend]:
        reason = select.refusal(impl, subject.problem, policy, config.current())
        if reason:
            broken = len(reason.split()) < 3 or (impl.complete and reason == impl.supports(subject.problem, policy))
            yield Verdict(impl.name, "error" if broken else "refused", reason)
        else:
            yield _guarded(impl.name, functools.partial(_on_implementation, impl, subject, policy, threads))


def _guarded(name: str, run: Callable[[], tuple[str, str, str]]) -> Verdict:
    """What is raised becomes a verdict; a refusal by the public function has its reasons."""
    try:
        impl, kind, text = run()
        return Verdict(impl, kind, text)
    except NotSupportedError as error:
        if name == "auto" and error.candidates:
            return Verdict(name, "refused", "; ".join(f"{c.impl}: {c.reason}" for c in error.candidates))
        return Verdict(name, "error", f"admitted, then refused: {error}")
    except Exception as error:
        kind = "skipped" if is_lack_of_memory(error) else "CudnnError" if isinstance(error, CudnnError) else "error"
        return Verdict(name, kind, f"{type(error).__name__}: {error}")


def _on_implementation(impl: Impl, subject: Subject, policy: Policy, threads: int) -> tuple[str, str, str]:
    problem, trial = subject.problem, subject.trial

    def once() -> tuple[Executable, places.Ran, Any]:
        executable, ran = _planned(impl, problem, policy, trial.inputs, trial.old)
        return executable, ran, _by_reserve(impl, trial, policy) if problem.op == "rnn_backward" else None

    found = at_once(once, threads, policy.device)
    kind, text = subject.judge(found[0][0], [ran for _, ran, _ in found])
    if kind == "right" and problem.op == "rnn_backward":
        kind, text = subject.judge(found[0][0], [ran for _, _, ran in found])
        text = text and f"by way of a reserve: {text}"
    return impl.name, kind, text


def _planned(impl: Impl, problem: Any, policy: Policy, inputs: Any, old: Any = None) -> tuple[Executable, places.Ran]:
    executable = impl.plan(problem, policy, None)
    start = places.starter(executable, problem)
    return executable, places.here(policy.device)(start, problem, inputs, old, executable.workspace_bytes)


def _by_reserve(impl: Impl, trial: Trial, policy: Policy) -> places.Ran:
    """The gradients of a recurrent network as ``RNNBlock`` has them, from what a forward pass kept."""
    forward, given = forward_of(trial.problem, policy.device), dict(zip(trial.problem.names, trial.inputs, strict=True))
    first = next(i for i in implementations("rnn_forward") if i.name == impl.name)
    executable, kept = _planned(first, forward, policy, [given[name] for name in forward.names])
    backward = backward_of(trial.problem, forward, executable.facts.get("reserve", impl.name))
    ran = _planned(impl, backward, policy, [*trial.inputs, kept.results[0][0], kept.results[0][-1]])[1]
    return places.Ran(ran.results, kept.damage or ran.damage)


# ---- the public function ---------------------------------------------------------------------------------------------


def _through_function(subject: Subject, device: int, threads: int) -> tuple[str, str, str]:
    problem, trial = subject.problem, subject.trial
    named = getattr(problem, "keyword_inputs", ())
    first, function = len(problem.inputs) - len(named), getattr(numbadnn, problem.op)
    destination = "result" if problem.op == "pool_grad" else "out"
    given, calls = trial.old is not None or bool(subject.seed % 2), 0

    def start(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> Any:
        nonlocal calls, given
        addresses = inputs, outputs, workspace, stream
        if device >= 0:
            inputs = [_array(s, a, device) for s, a in zip(problem.inputs, inputs, strict=True)]
            outputs = [_array(s, a, device) for s, a in zip(problem.outputs, outputs, strict=True)]
            blocks = _poisoned(numbadnn.last_call(), problem, device, stream)
            calls += 1
            if calls % len(places.SHIFTS) != 3:  # in the third run they are kept: its memory is others'
                blocks.clear()
        keywords = {**problem.keywords, **dict(zip(named, inputs[first:], strict=True))}
        into = given  # another thread may come to know meanwhile that new arrays are laid out otherwise
        if into:
            keywords[destination] = tuple(outputs) if len(outputs) > 1 else outputs[0]
        result = function(*inputs[:first], **keywords, **({"stream": stream} if stream else {}))
        if into:
            return None
        results = result if isinstance(result, tuple) else (result,)
        results = results[: len(problem.outputs)]  # dropout's state is no array
        if device >= 0 and any(r.strides != s.strides for r, s in zip(results, problem.outputs, strict=True)):
            given = True  # new arrays are laid out as the first input is, not as this problem says
            return start(*addresses)
        return results

    def once() -> tuple[Any, places.Ran]:
        ran = places.here(device)(start, problem, trial.inputs, trial.old)
        return numbadnn.last_call(), ran

    found = at_once(once, threads, device)
    return found[0][0].impl, *subject.judge(found[0][0], [ran for _, ran in found])


def _array(spec: Any, address: int, device: int) -> Any:
    """An array of no library over memory that is ours."""
    array: Any = object.__new__(DeviceArray)
    array.shape, array.strides, array.dtype, array.device = spec.shape, spec.strides, spec.dtype, device
    array.memory = _Lent(address)
    return array


class _Lent(NamedTuple):
    address: int
    stream: int = 0


def _poisoned(last: Any, problem: Any, device: int, stream: int) -> list[Any]:
    """Memory full of NaN, of which the call's outputs and workspace will be made once it is given back.

    Memory that an earlier call gave back before its last kernel had ended is written over by this, on another stream.
    """
    d, check, other = bindings.driver(), bindings.check, places.gpu(device).others[0]
    sizes = [spec.size * spec.itemsize for spec in problem.outputs]
    sizes += [last.workspace_bytes] if last is not None and last.workspace_bytes else []
    blocks = [
        (memory.DeviceMemory(nbytes, device, where), nbytes, where) for where in (stream, other) for nbytes in sizes
    ]
    for block, nbytes, where in blocks:
        check(d.cuMemsetD8Async(block.address, 0xFF, nbytes, where))
    return blocks


# ---- threads ---------------------------------------------------------------------------------------------------------


def at_once(once: Callable[[], Any], threads: int, device: int) -> list[Any]:
    """What ``once()`` gives in this thread, or in so many at the same time, under the options in force here."""
    if threads == 1:
        with _context(device):
            return [once()]
    barrier = threading.Barrier(threads)

    def run() -> Any:
        with _context(device):
            barrier.wait(60)
            return once()

    started = [_pool().submit(contextvars.copy_context().run, run) for _ in range(threads)]
    return [one.result() for one in started]


_threads: list[ThreadPoolExecutor] = []


def _pool() -> ThreadPoolExecutor:
    """Threads that live as long as the process: each has its memory on the GPU."""
    if not _threads:
        _threads.append(ThreadPoolExecutor(THREADS))
    return _threads[0]


def _context(device: int) -> Any:
    if device < 0 or simulate.active():
        return contextlib.nullcontext()
    from numbadnn.gpu.context import ensure_context

    return ensure_context(device)
