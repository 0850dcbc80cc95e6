"""One implementation on one case: the verdict, as a row of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from numbadnn import config
from numbadnn.call import operands, select
from numbadnn.config import BACKENDS
from numbadnn.errors import is_lack_of_memory
from numbadnn.gpu import devices
from numbadnn.measuring.compare import DIRECT
from numbadnn.measuring.laws import law
from numbadnn.problem import Policy
from numbadnn.registry import Impl, accuracy_of, implementations
from numbadnn.validate import reserve
from numbadnn.validate.execute import execute
from numbadnn.validate.oracle import Trial

RUNS = 3


@dataclass
class Row:
    """``status``: ok, mismatch, erratum, refused, error, skipped or "not run". ``exact``: integers to the bit.

    None in ``exact``: no direct sum. "erratum": a mismatch that the shipped errata foretell, on data of the kind that shows it.
    ``same_bits``: of all ``runs``. ``time_us`` and ``speed`` are None where nothing was timed.
    """

    case: str
    impl: str
    problem: str
    status: str
    reason: str = ""
    worst: float | None = None
    where: tuple[int, ...] = ()
    ulp: int | None = None
    exact: bool | None = None
    same_bits: bool | None = None
    runs: int = 0
    arithmetic: str = ""
    time_us: float | None = None
    speed: float | None = None
    speed_unit: str = ""
    facts: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Subject:
    """A case with its reference values, worked out once for every implementation.

    Small integers show what rounding may hide: a weight that is a little off in a long sum. ``integers`` says whether they are
    tried beside a ``trial`` that is given; without one they are.
    """

    def __init__(
        self, name: str, problem: Any, trial: Trial | None = None, seed: int = 0, integers: bool = False
    ) -> None:
        self.name, self.problem = name, problem
        self.trial = trial or Trial.of(problem, seed)
        exact = (
            (trial is None or integers) and not operands.is_empty(problem) and law(problem.op).exact_integers(problem)
        )
        self.integers = Trial.of(problem, seed, "integers") if exact else None


def backends_of(backends: str | Iterable[str] | None) -> tuple[str, ...]:
    """The backends that are named, all for None; ValueError or TypeError for what is none."""
    named = BACKENDS if backends is None else (backends,) if isinstance(backends, str) else tuple(backends)
    for name in named:
        if name not in BACKENDS:
            raise ValueError(f"backends: expected names out of {', '.join(BACKENDS)}, got {name!r}")
    if not named:
        raise ValueError(f"backends: expected at least one of {', '.join(BACKENDS)}, or None for all, got none")
    return named


def check_all(
    subject: Subject,
    backends: str | Iterable[str] | None = None,
    policy: Callable[[int], Policy] | None = None,
    timed: bool = True,
) -> Iterator[Row]:
    """Every implementation of these backends (None: of all) on one subject; without a GPU its backends are refused.

    ``policy`` gives what holds on a device, the options in force where it is None. An array without elements reaches no
    implementation, in a call as here: what fills the output then is checked in their place, once a device.
    """
    no_gpu, named, op = devices.no_gpu_reason(), backends_of(backends), subject.problem.op

    def rules(device: int) -> Policy:
        return policy(device) if policy else select.policy_in_force(op, device)

    if operands.is_empty(subject.problem):
        for device in dict.fromkeys(-1 if name == "cpu" else 0 for name in named):
            if device < 0 or not no_gpu:
                row = Row(subject.name, operands.EMPTY.name, str(subject.problem), "ok")
                yield _tried(row, operands.EMPTY, subject, rules(device), timed)
        return
    for impl in implementations(op, named):
        if impl.backend != "cpu" and no_gpu:
            yield Row(subject.name, impl.name, str(subject.problem), "refused", f"no GPU: {no_gpu}")
        else:
            yield check(impl, subject, rules(-1 if impl.backend == "cpu" else 0), timed)


def check(impl: Impl, subject: Subject, policy: Policy, timed: bool = True) -> Row:
    """Refused, or run on random data and on small integers and compared; an exception is a row of its own."""
    problem = subject.problem
    row = Row(subject.name, impl.name, str(problem), "ok")
    row.reason = select.refusal(impl, problem, policy, config.current())
    if row.reason:
        row.status = "refused"
        return row
    return _tried(row, impl, subject, policy, timed)


def _tried(row: Row, impl: Impl, subject: Subject, policy: Policy, timed: bool) -> Row:
    try:
        return judge(row, impl, subject, policy, timed)
    except Exception as error:
        row.status, row.reason = "error", f"{type(error).__name__}: {error}"
        if is_lack_of_memory(error):
            row.status, row.reason = "skipped", f"not enough memory: {error}"
        return row


def judge(row: Row, impl: Impl, subject: Subject, policy: Policy, timed: bool) -> Row:
    """Fill the row of an implementation that takes the case; what it raises is passed on."""
    trial, problem = subject.trial, subject.problem
    outcome = execute(impl, problem, policy, trial.inputs, trial.old, RUNS, timed)
    arithmetic = outcome.executable.arithmetic
    found = trial.compare(outcome.results, arithmetic, outcome.executable.summation)
    row.arithmetic, row.worst, row.where, row.ulp = arithmetic, found.worst, found.where, found.ulp
    row.same_bits, row.runs = outcome.same_bits, RUNS
    row.facts = {k: str(v) for k, v in outcome.executable.facts.items()}
    row.time_us = outcome.time_us or None
    row.speed, row.speed_unit = speed(problem, outcome.time_us)
    wrong = [] if found.ok else [str(found)]
    wrong += [outcome.damage] if outcome.damage else []
    if not outcome.same_bits and outcome.executable.determinism != "not_guaranteed":
        wrong.append(f"declares {outcome.executable.determinism}, but {RUNS} runs gave different bits")
    if problem.op == "rnn_backward" and "reserve" not in problem.names:
        wrong += reserve.hold(impl, trial, policy, RUNS, timed)
    if subject.integers is not None and arithmetic in DIRECT:
        whole = execute(impl, problem, policy, subject.integers.inputs, subject.integers.old, 1, alone=timed)
        exactly = subject.integers.compare_exactly(whole.results)
        row.exact = exactly.ok
        wrong += [] if exactly.ok else [f"small integers: {exactly}"]
    if accuracy_of(arithmetic) == "normwise":
        plain = "tensor_core" if problem.output.itemsize == 2 else "ieee"
        row.facts["elementwise"] = f"{trial.compare(outcome.results, plain).worst:.3g} of the bound of {plain}"
    if wrong:
        row.status, row.reason = "mismatch", "; ".join(wrong)
    known = select.erratum("avoided", impl, problem)
    if known is not None and known.data == trial.kind:
        if wrong:
            row.status, row.reason = "erratum", f"{known}: {row.reason}"
        else:
            row.facts["erratum"] = f"{known.id} does not show here"
    return row


def speed(problem: Any, time_us: float | None) -> tuple[float | None, str]:
    """In the unit of the family's law; None where nothing was measured."""
    unit = law(problem.op).WORK
    work = problem.flops if unit == "GFLOP/s" else problem.bytes
    return (work / time_us / 1e3 if time_us else None), unit
