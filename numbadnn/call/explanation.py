"""``explain``: every candidate for a problem with its state and the reason in words, which one runs, and what decided it.

An ``Explanation`` is data (``as_dict`` for JSON) and, printed, a table. Levels of determinism are those declared, beside them
what ``numbadnn validate --determinism`` measured on this machine; times are measured (``tune``) or estimated.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from dataclasses import dataclass, field
from typing import Any

from numbadnn.call import operands, remembered, select
from numbadnn.call.candidates import Candidates
from numbadnn.call.choose import choose
from numbadnn.config import Options
from numbadnn.errors import BackendUnavailableError, DeterminismError, NotSupportedError, PlanMissError, by_reason
from numbadnn.kept import choices, errata, machine
from numbadnn.problem import Policy
from numbadnn.registry import LAST_US, Executable, Impl, accuracy_of, beyond_limit, plan


@dataclass(frozen=True, slots=True)
class Candidate:
    """One line of an explanation; ``state`` is chosen, admitted or refused.

    ``facts`` are engine or configuration, the form or layout computed in and every copy paid. ``measured``: the level of
    determinism found on this machine, "" where none was looked for. ``timing``: "measured" or "estimated", "" without
    ``time_us``.
    """

    backend: str
    impl: str
    state: str
    reason: str
    determinism: str
    arithmetic: str
    workspace_bytes: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    engines: tuple[dict[str, Any], ...] = ()
    measured: str = ""
    time_us: float | None = None
    timing: str = ""
    #: elementwise or normwise, as its arithmetic has it
    accuracy: str = ""
    #: the most that a call takes on the CPU besides its arrays
    scratch_bytes: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """Every candidate for a problem, which one runs and what decided it: the chosen one, those admitted, those refused.

    ``print`` shows a table: a line for each that may run, then the others by reason, those of the arrays' own device first.
    """

    problem: Any
    policy: Policy
    chosen: str
    decided_by: str
    candidates: tuple[Candidate, ...]

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON has it."""
        found = {"problem": str(self.problem), "policy": machine.policy_text(self.policy), "device": self.policy.device}
        rows = [_texts(dataclasses.asdict(c)) for c in self.candidates]
        return {**found, "chosen": self.chosen, "decided_by": self.decided_by, "candidates": rows}

    def __str__(self) -> str:
        lines = [str(self.problem), f"runs on {self.chosen or 'nothing'}, decided by {self.decided_by}"]
        able = [c for c in self.candidates if not c.reason]
        levels = [c.determinism + (f" (measured {c.measured})" if c.measured else "") for c in able]
        name_width = max((len(c.impl) for c in able), default=0)
        level_width = max(map(len, levels), default=0)
        sums_width = max([12, *(len(c.arithmetic) for c in able)])
        for c, level in zip(able, levels, strict=True):
            size = "" if c.workspace_bytes is None else f" workspace {c.workspace_bytes}"
            size += f" scratch {c.scratch_bytes}" if c.scratch_bytes else ""
            spent = "" if c.time_us is None else f" {c.time_us:.4g} us {c.timing}"
            head = (
                f"  {c.state:8} {c.impl:{name_width}} {level:{level_width}} {c.arithmetic:{sums_width}} {c.accuracy:11}"
            )
            lines.append(f"{head}{size}{spent}".rstrip())
            lines += [f"           {key}: {value}" for key, value in c.facts.items()]
            lines += ["           " + " ".join(f"{k}={v}" for k, v in engine.items()) for engine in c.engines]
        refused = by_reason(((c.impl, c.reason) for c in self.candidates if c.reason), "  refused  ")
        return "\n".join([*lines, *refused])

    __repr__ = __str__


def _texts(value: Any) -> Any:
    """The same with everything that JSON has no word for as text."""
    if isinstance(value, dict):
        return {str(k): _texts(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_texts(v) for v in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def explain(problem: Any, policy: Policy, options: Options, backend: str | None = None) -> Explanation:
    """Ask every implementation about a problem; plans the admitted ones (no launch) to know workspace and engine.

    The chosen one comes first, then those admitted, then those refused; of these those of backends that are not there come
    last, as the registry lists them.
    """
    if operands.is_empty(problem):
        return Explanation(problem, policy, "empty", "empty", ())
    select.warn_of_unknown(options)
    untuned = options if options.tune not in remembered.NOW else options.replace({"tune": "cached"}, {})
    candidates = Candidates(problem, policy, untuned, backend)
    choice: select.Choice | None = None
    made: Executable | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            while choice is None:
                choice = choose(candidates)
                if choice.remembered or policy.device < 0:  # as the call does where that cannot be had
                    anew = functools.partial(choose, candidates, from_files=False)
                    choice, made = remembered.followed(choice, problem, policy, untuned, anew)
                if made and (reason := beyond_limit(made, policy)):
                    without = {**candidates.without, choice.impl.name: reason}
                    candidates, choice = Candidates(problem, policy, untuned, backend, without), None
        decided = choice.decided_by
    except (NotSupportedError, BackendUnavailableError, DeterminismError, PlanMissError) as error:
        choice, decided = None, str(error).splitlines()[0]
    record = choices.lookup(problem, policy, options) or {"fastest": []}
    times = {entry["impl"]: entry["time_us"] for entry in reversed(record["fastest"])}
    rows = [
        _candidate(i, candidates, choice, made, times.get(i.name))
        for i in (*candidates.ordered(), *candidates.absent())
    ]
    rows.sort(key=lambda row: ("chosen", "admitted", "refused").index(row.state))
    return Explanation(problem, policy, choice.impl.name if choice else "", decided, tuple(rows))


def _candidate(
    impl: Impl, candidates: Candidates, choice: select.Choice | None, made: Executable | None, time_us: float | None
) -> Candidate:
    """``made``: the executable of the choice, where there is one already."""
    problem, options = candidates.problem, candidates.options
    chosen = choice is not None and choice.impl.name == impl.name
    try:
        reason = select.not_asked(impl, options, candidates.backend) or candidates.reason(impl)
    except DeterminismError as error:
        reason = str(error)
    if chosen and reason:  # admitted without the algorithm that was named, or against a level that nobody asked for
        free = dataclasses.replace(candidates.policy, algo="auto", determinism="not_guaranteed")
        candidates, reason = candidates.under(free), ""
    policy = candidates.policy
    measured = errata.measured_level(impl.name, problem, policy, options)
    executable = None
    if not reason:
        config = choice.config if chosen and choice else None
        executable = made if chosen and made else plan(impl, problem, policy, config)
        reason = beyond_limit(executable, policy)
    if reason or executable is None:
        return Candidate(
            impl.backend,
            impl.name,
            "refused",
            reason,
            impl.determinism,
            impl.arithmetic,
            measured=measured,
            accuracy=accuracy_of(impl.arithmetic),
        )
    select.note_erratum(impl, problem, executable)
    estimated = None if time_us is not None else _estimated(impl, candidates)
    return Candidate(
        impl.backend,
        impl.name,
        "chosen" if chosen else "admitted",
        "",
        executable.determinism,
        executable.arithmetic,
        executable.workspace_bytes,
        executable.facts,
        tuple(impl.options(problem, policy)) if impl.options else (),
        measured,
        estimated if time_us is None else time_us,
        "measured" if time_us is not None else "estimated" if estimated is not None else "",
        executable.accuracy,
        executable.scratch_bytes,
    )


def _estimated(impl: Impl, candidates: Candidates) -> float | None:
    """Microseconds, without what keeps a detour behind all others; None for an estimate that says no more than "the last"."""
    from numbadnn.problems.conv_routes import without_detour

    us = candidates.estimate(impl)
    return None if us >= LAST_US else without_detour(impl.name, us)
