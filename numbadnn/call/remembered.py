"""A problem's choice as files remember it: the plan file's entry, or the fastest of what was measured; or measure now.

An entry is followed only if everything that would refuse its implementation today still lets it pass; else there is a
reason, and the dispatcher goes on as if there were no entry (or, where the plan file is strict, says so).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from numbadnn.call import select
from numbadnn.call.candidates import Candidates
from numbadnn.config import Options
from numbadnn.errors import NotSupportedError, NumbaDNNError, Refusal, is_lack_of_memory, warn
from numbadnn.kept import choices, machine, plan_file, ranks
from numbadnn.measuring import tune
from numbadnn.problem import FIXED_LEVELS, Policy
from numbadnn.registry import Executable, Impl, plan

#: values of the option ``tune`` that measure a problem when it is met
NOW = ("likely", "measure")

#: ``tune="likely"`` measures what is estimated to take so many times the least, and no more implementations than these
LIKELY, MOST = 3.0, 4


def restored(entry: dict[str, Any], candidates: Candidates, backends: tuple[str, ...]) -> tuple[Impl, Any] | str:
    """The implementation and configuration that a file names, or why they may not be used."""
    problem, policy = candidates.problem, candidates.policy
    impl, config = candidates.named(entry["impl"]), entry.get("config")
    if impl is None:
        return f"there is no implementation {entry['impl']!r}"
    if impl.backend not in backends:
        return f"{impl.name} is not of the backends asked for"
    engine = config.get("engine") if isinstance(config, dict) else None
    own = config is not None and impl.restore is not None
    reason = candidates.reason(impl, supports=not own, engine=engine)
    if reason or config is None:
        return reason or (impl, None)
    try:
        if impl.restore is not None:
            return impl, impl.restore(problem, policy, config)
    except NotSupportedError as error:
        return str(error)
    for known in impl.space(problem, policy) if impl.space else ():
        if machine.means(config, known):
            return impl, known
    return f"{impl.name} has no configuration {config}"


def planned(candidates: Candidates) -> select.Choice | None:
    """What the plan file says; PlanMissError where it must say something and does not."""
    problem, options, backend = candidates.problem, candidates.options, candidates.backend
    path = options.plan_file
    if not path:
        if options.plan_strict:
            raise plan_file.miss("no plan_file is set:", problem, "it cannot hold")
        return None
    entry = plan_file.lookup(path, plan_file.key_of(problem, candidates.policy, select.scope(options, backend)))
    if entry is None:
        if options.plan_strict:
            raise plan_file.miss(path, problem, "has no entry for")
        return None
    found, without = _as_recorded(entry, candidates)
    if isinstance(found, str):
        if options.plan_strict:
            raise plan_file.miss(path, problem, f"names {entry['impl']}, but {found}, for")
        warn(f"{path}: the plan of {problem} is not used: {found}")
        return None
    impl, config = found
    first = options.backend[0] if options.backend and backend is None else "cudnn" if without else impl.backend
    refusals: tuple[Refusal, ...] = ()
    if without or impl.backend != first:
        refusals = (Refusal(first, f"{first}.*", f"not asked, {path} names {impl.name}{without}"),)
        select.may_fall_back(problem, options, refusals)
    return select.Choice(impl, f"plan file {path}{without}", refusals, bool(refusals), config, remembered=True)


def _as_recorded(entry: dict[str, Any], candidates: Candidates) -> tuple[tuple[Impl, Any] | str, str]:
    """``restored`` for an entry of the plan file, and what was gone without when it was recorded: an algorithm, or ""."""
    policy = candidates.policy
    backends = tuple(b for group in candidates.groups for b in group)
    wins = select.algorithm_wins(policy, candidates.options)
    reason = plan_file.stale(entry, policy.device) or ("" if wins else plan_file.weaker(entry, policy))
    found = reason or restored(entry, candidates, backends)
    if wins and isinstance(found, str) and found.startswith("guarantees "):
        free = dataclasses.replace(policy, determinism="not_guaranteed")
        found = restored(entry, candidates.under(free), backends)
    if isinstance(found, str) and not reason and candidates.backend is None and policy.algo != "auto":
        plain = dataclasses.replace(policy, algo="auto")
        return restored(entry, candidates.under(plain), backends), f"; {select.no_algorithm(policy)}"
    return found, ""


def tuned(candidates: Candidates) -> select.Choice | None:
    """The fastest admitted of what was measured, where all that could be chosen here was measured."""
    policy, options = candidates.policy, candidates.options
    if options.tune == "heuristic" or policy.determinism in FIXED_LEVELS:
        return None
    record = choices.lookup(candidates.problem, policy, options)
    if record is None or (record.get("likely") and options.tune == "measure"):
        return None
    first = candidates.groups[0]
    if not set(candidates.names(first)) <= set(record["considered"]):
        return None
    for entry in record["fastest"]:
        found = restored(entry, candidates, first)
        if not isinstance(found, str):
            impl, config = found
            return select.Choice(
                impl, f"tuned, {entry['time_us']:.4g} us", config=config, remembered=True, time_us=entry["time_us"]
            )
    return None


def known(candidates: Candidates, chosen: select.Choice) -> select.Choice | None:
    """The fastest of this very problem by the measurements that the package comes with, where the rank chose another."""
    policy = candidates.policy
    entry = None if chosen.fallback else ranks.known(candidates.problem, policy)
    if entry is None:
        return None
    found = restored(entry, candidates, _group(candidates, chosen))
    if isinstance(found, str) or plan_file.stale(entry, policy.device):
        return None
    decided = f"{chosen.decided_by}, of a known layer: {entry['time_us']:.4g} us"
    return dataclasses.replace(chosen, impl=found[0], config=found[1], decided_by=decided, remembered=True)


def _group(candidates: Candidates, chosen: select.Choice) -> tuple[str, ...]:
    """The backends among which the choice was made."""
    return next(g for g in candidates.groups if chosen.impl.backend in g)


def followed(
    choice: select.Choice, problem: Any, policy: Policy, options: Options, anew: Callable[[], select.Choice]
) -> tuple[select.Choice, Executable]:
    """The choice and its executable; what a file remembers and cannot be had any more is chosen ``anew``.

    PlanMissError where the plan file is strict.
    """
    try:
        return choice, plan(choice.impl, problem, policy, choice.config)
    except NotSupportedError as error:
        if not choice.remembered:
            raise
        if options.plan_strict:
            raise plan_file.miss(options.plan_file, problem, f"cannot be followed ({error}) for") from None
        choice = anew()
        choice = dataclasses.replace(choice, decided_by=f"{choice.decided_by}; not as remembered: {error}")
        return choice, plan(choice.impl, problem, policy, choice.config)


def measured(candidates: Candidates, chosen: select.Choice) -> select.Choice:
    """The fastest of all that the rank might have chosen from, or of the likely; ``chosen`` where nothing can be measured now."""
    if tune.measuring():
        return chosen
    problem, policy, group = candidates.problem, candidates.policy, _group(candidates, chosen)
    admitted = [i for i in candidates.ordered(group) if not candidates.reason(i)]
    names, few = candidates.names(group), candidates.options.tune == "likely"
    if few:
        admitted = _likely(candidates, admitted)
        if len(admitted) == 1 and admitted[0].restore is None:  # nothing to choose from, not even engines
            return chosen
    say: Any = (lambda text: None) if candidates.options.verbose == "quiet" else tune.to_stderr(problem)
    try:
        outcome = tune.measure(problem, policy, admitted, names, say=say, likely=few)
    except (NumbaDNNError, MemoryError) as error:
        if not is_lack_of_memory(error):
            raise
        warn(f"{problem} is not measured, its operands do not fit: {error}")
        return chosen
    if not outcome.timed:
        why = "; ".join(f"{c.impl}: {c.reason}" for c in outcome.candidates)
        warn(f"{problem}: no candidate could be measured: {why}")
        return chosen
    choices.store(outcome, candidates.options)
    best = outcome.timed[0]
    found = restored(best.as_dict(), candidates, group)
    if isinstance(found, str):
        raise NumbaDNNError(f"{best.impl} {best.config} was measured but cannot be planned again: {found}")
    decided = f"measured, {best.time_us:.4g} us, the fastest of {len(outcome.timed)}"
    return select.Choice(found[0], decided, chosen.refusals, chosen.fallback, found[1], time_us=best.time_us)


def _likely(candidates: Candidates, admitted: list[Impl]) -> list[Impl]:
    """Those of them that are estimated near the fastest, a detour like any other: what a measurement is worth its time for."""
    from numbadnn.problems.conv_routes import without_detour

    def estimate(impl: Impl) -> float:
        return without_detour(impl.name, candidates.estimate(impl))

    found = sorted(admitted, key=estimate)
    return [impl for impl in found if estimate(impl) <= LIKELY * estimate(found[0])][:MOST]
