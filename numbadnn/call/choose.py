"""The implementation that computes a problem, decided before anything runs.

Order: what files know of the problem (the plan file, then what was measured here), then the rank within the backends that
the options name, then the measurements that the package comes with; ``tune="likely"`` and ``"measure"`` measure now. Nothing is
chosen by running it and catching the error: a bug must not look like a missing feature.
"""

from __future__ import annotations

import dataclasses

from numbadnn.call import fallback, remembered, select
from numbadnn.call.candidates import Candidates
from numbadnn.call.select import Choice
from numbadnn.errors import DeterminismError, NotSupportedError, Refusal, warn
from numbadnn.host import log
from numbadnn.kept import ranks
from numbadnn.problem import FIXED_LEVELS

#: the backend that is asked last where several may compute a problem
LAST = "cpu"


def choose(candidates: Candidates, from_files: bool = True) -> Choice:
    """The implementation for a problem; NotSupportedError, with every candidate's reason, when there is none.

    A backend that the call names is strict: BackendUnavailableError when it cannot be used here at all. ``from_files``
    False: as if no file knew the problem. Warns, once however it came about, where the first choice refused (``fallback``).
    """
    options = candidates.options
    if candidates.backend is not None:
        select.check_named(candidates.backend, candidates.policy)
    select.warn_of_unknown(options)
    chosen = _chosen(candidates, from_files)
    log.note("debug", "%s runs on %s, decided by %s", candidates.problem, chosen.impl.name, chosen.decided_by)
    if chosen.fallback:
        problem, policy = candidates.problem, candidates.policy
        missed = policy.algo if select.no_algorithm(policy) in chosen.decided_by else ""
        named = missed not in ("", *select.CHOOSING_ALGOS)
        if policy.device >= 0 or named:  # on the CPU there is no other backend to miss
            asked = "".join(options.backend[:1])
            text = fallback.sentence(problem.op, asked, missed, chosen.impl.name, chosen.refusals)
            log.note("warning" if options.fallback == "warn" else "info", "%s", text)
            if options.fallback == "warn":
                warn(text, said=fallback.SAID)
    return chosen


def _chosen(candidates: Candidates, from_files: bool) -> Choice:
    policy = candidates.policy
    if from_files:
        known = remembered.planned(candidates) or remembered.tuned(candidates)
        if known is not None:
            return known
    chosen = _by_rank(candidates)
    if policy.algo != "auto" and candidates.reason(chosen.impl):
        return chosen  # in spite of the algorithm or of the level: there is nothing else to look for under these rules
    if from_files and (layer := remembered.known(candidates, chosen)) is not None:
        chosen = layer
    elif from_files and (config := ranks.configuration(chosen.impl, candidates.problem, policy)) is not None:
        chosen = dataclasses.replace(chosen, config=config, remembered=True)
    if candidates.options.tune in remembered.NOW and policy.determinism not in FIXED_LEVELS:
        return remembered.measured(candidates, chosen)
    return chosen


def _by_rank(candidates: Candidates) -> Choice:
    options, backend = candidates.options, candidates.backend
    refusals: list[Refusal] = []
    named = options.backend if backend is None else ()
    for group in candidates.groups:
        refusals += candidates.refused(b for b in group if b != LAST)
        for impl in candidates.in_turn(group):
            reason = candidates.reason(impl)
            if reason:
                refusals.append(Refusal(impl.backend, impl.name, reason))
                continue
            fell = bool(named) and impl.backend != named[0]
            if fell:
                select.may_fall_back(candidates.problem, options, refusals)
            return Choice(impl, _decided(candidates), tuple(refusals), fell)
        refusals += candidates.refused(b for b in group if b == LAST)
    return _nothing(candidates, refusals)


def _decided(candidates: Candidates) -> str:
    options, backend = candidates.options, candidates.backend
    return select.asked(options, backend) if backend is not None or options.backend else "rank"


def _nothing(candidates: Candidates, refusals: list[Refusal]) -> Choice:
    """Nobody takes the problem: an algorithm or a level that was named stands against it, or it cannot be done."""
    problem, policy, options, backend = candidates.problem, candidates.policy, candidates.options, candidates.backend
    asked = [
        r for r in refusals if not _elsewhere(r) and "the option only=" not in r.reason and "exclude=" not in r.reason
    ]
    algo, origin = policy.algo, options.origin["determinism"]
    guarantees = [r for r in asked if r.reason.startswith("guarantees ")]
    if guarantees and select.algorithm_wins(policy, options):
        free = dataclasses.replace(policy, determinism="not_guaranteed")
        inner = _by_rank(candidates.under(free))
        decided = f"{inner.decided_by}; algorithm {algo!r} beats the default determinism={policy.determinism}"
        return dataclasses.replace(inner, decided_by=decided, refusals=tuple(refusals))
    forced = [f"backend={backend!r}"] if backend else []
    forced += [f"only={','.join(options.only)!r}"] if options.only else []
    forced += [f"algorithm {algo!r}"] if algo not in select.CHOOSING_ALGOS else []
    others = [r for r in asked if r not in guarantees and " algorithm" not in r.reason]
    if guarantees and forced and origin != "default" and not others:
        raise DeterminismError(
            f"{' and '.join(forced)} was named, but determinism={policy.determinism!r} ({origin}) asks for more than "
            f"{guarantees[0].impl} guarantees: {guarantees[0].reason}"
        )
    if backend is None and algo != "auto":
        return _without_algorithm(candidates, refusals)
    how = f"backend={backend!r} cannot compute" if backend else "no implementation can compute"
    if backend is None and len(options.backend) > 1:
        how = f"no implementation of {select.asked(options, None)} can compute"
    meant = "".join(f"; {text}" for text in select.unknown("only", options.only))
    raise NotSupportedError(f"{how} {problem}{meant}", tuple(refusals))


def _elsewhere(r: Refusal) -> bool:
    return r.reason.startswith("the arrays are on")


def _without_algorithm(candidates: Candidates, refusals: list[Refusal]) -> Choice:
    """No implementation has the algorithm that an option names: the fallback option decides, and it is recorded."""
    policy = candidates.policy
    select.may_fall_back(candidates.problem, candidates.options, refusals)
    inner = _chosen(candidates.under(dataclasses.replace(policy, algo="auto")), from_files=True)
    decided = f"{inner.decided_by}; {select.no_algorithm(policy)}"
    return dataclasses.replace(inner, decided_by=decided, refusals=tuple(refusals), fallback=True)
