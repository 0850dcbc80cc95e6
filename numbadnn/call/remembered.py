"""What files remember of a problem, as a choice: the plan file's entry, the fastest of what was measured; and measuring now.

An entry is followed only if everything that would refuse its implementation today still lets it pass; else there is a
reason, and the dispatcher goes on as if there were no entry (or, where the plan file is strict, says so).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from numbadnn.call import select
from numbadnn.config import Options
from numbadnn.errors import NotSupportedError, NumbaDNNError, Refusal, is_lack_of_memory, warn
from numbadnn.kept import choices, machine, plan_file, ranks
from numbadnn.measuring import tune
from numbadnn.problem import Policy
from numbadnn.registry import Executable, Impl, implementations, plan


def restored(
    entry: dict[str, Any],
    problem: Any,
    policy: Policy,
    options: Options,
    backends: tuple[str, ...],
    backend: str | None,
) -> tuple[Impl, Any] | str:
    """The implementation and configuration that a file names, or why they may not be used."""
    named = [i for i in implementations(problem.op) if i.name == entry["impl"]]
    if not named:
        return f"there is no implementation {entry['impl']!r}"
    impl, config = named[0], entry.get("config")
    if impl.backend not in backends:
        return f"{impl.name} is not of the backends asked for"
    engine = config.get("engine") if isinstance(config, dict) else None
    own = config is not None and impl.restore is not None
    asked = select.is_named(impl, options, backend)
    reason = select.refusal(impl, problem, policy, options, supports=not own, engine=engine, named=asked)
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


def planned(problem: Any, policy: Policy, options: Options, backend: str | None) -> select.Choice | None:
    """What the plan file says; PlanMissError where it must say something and does not."""
    path = options.plan_file
    if not path:
        if options.plan_strict:
            raise plan_file.miss("no plan_file is set:", problem, "it cannot hold")
        return None
    entry = plan_file.lookup(path, plan_file.key_of(problem, policy, select.scope(options, backend)))
    if entry is None:
        if options.plan_strict:
            raise plan_file.miss(path, problem, "has no entry for")
        return None
    found, without = _as_recorded(entry, problem, policy, options, backend)
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


def _as_recorded(
    entry: dict[str, Any], problem: Any, policy: Policy, options: Options, backend: str | None
) -> tuple[tuple[Impl, Any] | str, str]:
    """``restored`` for an entry of the plan file, and what was gone without when it was recorded: an algorithm, or ""."""
    backends = tuple(b for group in select.groups(options, backend) for b in group)
    wins = select.algorithm_wins(policy, options)
    reason = plan_file.stale(entry, policy.device) or ("" if wins else plan_file.weaker(entry, policy))
    found = reason or restored(entry, problem, policy, options, backends, backend)
    if wins and isinstance(found, str) and found.startswith("promises "):
        free = dataclasses.replace(policy, determinism="not_guaranteed")
        found = restored(entry, problem, free, options, backends, backend)
    if isinstance(found, str) and not reason and backend is None and policy.algo != "auto":
        plain = dataclasses.replace(policy, algo="auto")
        return restored(entry, problem, plain, options, backends, backend), f"; {select.no_algorithm(policy)}"
    return found, ""


def tuned(problem: Any, policy: Policy, options: Options, backend: str | None) -> select.Choice | None:
    """The fastest admitted of what was measured, where all that could be chosen here was measured."""
    if options.tune == "heuristic" or policy.determinism in select.FIXED_LEVELS:
        return None
    record = choices.lookup(problem, policy, options)
    if record is None:
        return None
    first = select.groups(options, backend)[0]
    if not set(select.names_of(problem, policy, options, first)) <= set(record["considered"]):
        return None
    for entry in record["fastest"]:
        found = restored(entry, problem, policy, options, first, backend)
        if not isinstance(found, str):
            impl, config = found
            return select.Choice(
                impl, f"tuned, {entry['time_us']:.4g} us", config=config, remembered=True, time_us=entry["time_us"]
            )
    return None


def known(
    problem: Any, policy: Policy, options: Options, backend: str | None, chosen: select.Choice
) -> select.Choice | None:
    """The fastest of this very problem by the measurements that the package comes with, where the rank chose another."""
    entry = None if chosen.fallback else ranks.known(problem, policy)
    group = next(g for g in select.groups(options, backend) if chosen.impl.backend in g)
    found = restored(entry, problem, policy, options, group, backend) if entry else ""
    if entry is None or isinstance(found, str) or plan_file.stale(entry, policy.device):
        return None
    decided = f"{chosen.decided_by}, of a known layer: {entry['time_us']:.4g} us"
    return dataclasses.replace(chosen, impl=found[0], config=found[1], decided_by=decided, remembered=True)


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


def measured(
    problem: Any, policy: Policy, options: Options, backend: str | None, chosen: select.Choice
) -> select.Choice:
    """The fastest of all that the rank might have chosen from; ``chosen`` where nothing can be measured now."""
    if tune.measuring():
        return chosen
    group = next(g for g in select.groups(options, backend) if chosen.impl.backend in g)
    admitted = [
        i
        for i in select.ordered(problem, policy, group)
        if not select.refusal(i, problem, policy, options, named=select.is_named(i, options, backend))
    ]
    names = select.names_of(problem, policy, options, group)
    try:
        outcome = tune.measure(problem, policy, admitted, names, say=tune.to_stderr(problem))
    except (NumbaDNNError, MemoryError) as error:
        if not is_lack_of_memory(error):
            raise
        warn(f"{problem} is not measured, its operands do not fit: {error}")
        return chosen
    if not outcome.timed:
        why = "; ".join(f"{c.impl}: {c.reason}" for c in outcome.candidates)
        warn(f"{problem}: no candidate could be measured: {why}")
        return chosen
    choices.store(outcome, options)
    best = outcome.timed[0]
    found = restored(best.as_dict(), problem, policy, options, group, backend)
    if isinstance(found, str):
        raise NumbaDNNError(f"{best.impl} {best.config} was measured but cannot be planned again: {found}")
    decided = f"measured, {best.time_us:.4g} us, the fastest of {len(outcome.timed)}"
    return select.Choice(found[0], decided, chosen.refusals, chosen.fallback, found[1], time_us=best.time_us)
