"""Which implementation computes a problem, decided before anything runs.

Every candidate is either admitted or refused with a reason in words. Order: the backend named in the call (strict), the
backends the options name (in that order; what happens when the first refuses is the ``fallback`` option); within these the
plan file, then what was measured here for this very problem (``tune``), then the rank, and measurements that come with it.
What runs under batch_invariant and gpu_to_gpu depends on no measurement: another machine, another size of the batch must
come to the same choice. Nothing is chosen by running it and catching the error: a bug must not look like a missing feature.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numbadnn import config
from numbadnn.call import fallback
from numbadnn.config import BACKENDS, Options, current
from numbadnn.errors import (
    BackendUnavailableError,
    DeterminismError,
    NotSupportedError,
    Refusal,
    is_passing,
    warn,
)
from numbadnn.host.undisturbed import load_numba
from numbadnn.kept import errata, ranks, shipped_errata
from numbadnn.problem import Policy
from numbadnn.registry import DETERMINISM, FAMILY, Executable, Impl, accuracy_of, implementations

#: algorithm names that say how to choose, not what
CHOOSING_ALGOS = ("auto", "guess_once", "guess_on_shape_change", "time_once", "time_on_shape_change")


@dataclass(frozen=True, slots=True)
class Choice:
    """The implementation chosen for a problem, what decided it, and who was asked before and refused.

    ``config`` goes to its ``plan``; ``remembered``: it comes from a file, and may not be had any more.
    """

    impl: Impl
    decided_by: str
    refusals: tuple[Refusal, ...] = ()
    fallback: bool = False
    config: Any = None
    remembered: bool = False
    time_us: float | None = None


def unavailable(backend: str, device: int) -> str:
    """Why a backend cannot be used for arrays on this device ("" = it can)."""
    where = f"CUDA device {device}" if device >= 0 else "the CPU"
    if backend == "cpu":
        return "" if device < 0 else f"the arrays are on {where}; the cpu backend takes NumPy arrays and CPU tensors"
    if device < 0:
        return f"the arrays are on {where}; the {backend} backend takes arrays on a CUDA device"
    if backend == "cudnn":
        from numbadnn import cudnn

        state = cudnn.available()
        return "" if state else state.reason
    try:
        load_numba(cuda=True)
    except Exception as error:  # an import can fail in many ways; each is a reason
        if is_passing(error):
            raise
        return f"numba-cuda cannot be imported: {error}"
    return ""


def left_out(impl: Impl, options: Options) -> str:
    """Why the lists of names leave an implementation out ("" = they do not)."""
    for pattern in options.exclude:
        if fnmatch.fnmatchcase(impl.name, pattern):
            return f"excluded by the option exclude={pattern!r}"
    if options.only and not any(fnmatch.fnmatchcase(impl.name, pattern) for pattern in options.only):
        return f"not in the option only={','.join(options.only)!r}"
    return ""


def refusal(
    impl: Impl,
    problem: Any,
    policy: Policy,
    options: Options,
    supports: bool = True,
    engine: int | None = None,
    named: bool = True,
) -> str:
    """Why this implementation may not compute this problem under these options ("" = it may).

    ``supports`` False: all but what it says itself. ``engine``: one engine of it, which the errata may name. ``named`` False:
    nobody asked for it, so what is known to be wrong on some data is reason enough.
    """
    missing = left_out(impl, options) or unavailable(impl.backend, policy.device)
    if missing:
        return missing
    if policy.algo != "auto" and impl.backend != "cudnn":  # before its promises: without the algorithm they say nothing
        return f"has no algorithm named {policy.algo!r}; the names are cuDNN's"
    if DETERMINISM.index(impl.determinism) < DETERMINISM.index(policy.determinism):
        return f"promises {impl.determinism}, the option determinism asks for {policy.determinism}"
    if policy.accuracy == "elementwise" and accuracy_of(impl.arithmetic) != "elementwise":
        return f"computes by {impl.arithmetic}, the option accuracy asks for elementwise"
    found = errata.against(impl.name, problem, policy, options)
    if not found and engine is not None:
        found = errata.against(impl.name, problem, policy, options, engine)
    if not found and not named and (known := erratum("avoided", impl, problem)):
        found = f"wrong on some data, so it runs where backend={impl.backend!r} is named: {known}"
    if found:
        return found
    return impl.supports(problem, policy) if supports else ""


def erratum(effect: str, impl: Impl, problem: Any) -> shipped_errata.Erratum | None:
    """What the package knows of this effect against an implementation of the cuDNN that is loaded."""
    if impl.backend != "cudnn":
        return None
    from numbadnn.cudnn import lib

    return shipped_errata.find(effect, impl.name, problem, lib.load().version)


def note_erratum(impl: Impl, problem: Any, executable: Executable) -> None:
    """Say what is known in the facts of an executable, which explain and last_call show."""
    known = erratum("avoided", impl, problem)
    if known is None and executable.accuracy == "normwise":
        known = erratum("normwise", impl, problem)
    if known is not None:
        executable.facts["erratum"] = str(known)


def is_named(impl: Impl, options: Options, backend: str | None) -> bool:
    """Whether somebody asked for this implementation or its backend."""
    if backend is not None:
        return impl.backend == backend
    return impl.backend in options.backend or bool(options.only)


def algorithm_wins(policy: Policy, options: Options) -> bool:
    """Whether an algorithm that was named beats a level of determinism that nobody asked for."""
    asked = options.origin["determinism"] != "default" or policy.determinism == "not_guaranteed"
    return policy.algo not in CHOOSING_ALGOS and not asked


#: under these levels a choice may depend neither on the size of the batch nor on the machine: nothing measured decides
FIXED_LEVELS = ("batch_invariant", "gpu_to_gpu")


def ordered(problem: Any, policy: Policy, backends: tuple[str, ...]) -> list[Impl]:
    """The implementations of these backends, the one estimated to be fastest first; a shorter list is an order itself.

    Under FIXED_LEVELS: in the order of registration, those that take everything last.
    """
    found = [i for i in implementations(problem.op) if i.backend in backends]
    group = {b: n if len(backends) < len(BACKENDS) else 0 for n, b in enumerate(backends)}
    if policy.determinism in FIXED_LEVELS:
        return sorted(found, key=lambda i: (group[i.backend], i.complete))

    def usable(i: Impl) -> bool:  # what may not run is not asked either: that would load its library
        return not i.foretell or not (left_out(i, current()) or unavailable(i.backend, policy.device))

    return sorted(found, key=lambda i: (group[i.backend], ranks.estimate(i, problem, policy, usable(i))))


def choose(problem: Any, policy: Policy, options: Options, backend: str | None, remembered: bool = True) -> Choice:
    """The implementation for a problem; NotSupportedError, with every candidate's reason, when there is none.

    ``backend`` given in a call is strict: BackendUnavailableError when it cannot be used here at all. ``remembered`` False:
    as if no file knew the problem. Warns, once however it came about, where the first choice refused (``fallback``).
    """
    if backend is not None:
        check_named(backend, policy)
    warn_of_unknown(options.exclude)
    chosen = _chosen(problem, policy, options, backend, remembered)
    if chosen.fallback and options.fallback == "warn":
        missed = policy.algo if policy.algo not in CHOOSING_ALGOS and no_algorithm(policy) in chosen.decided_by else ""
        asked = "".join(options.backend[:1])
        text = fallback.sentence(problem.op, policy.device, asked, missed, chosen.impl.name, chosen.refusals)
        if text:
            warn(text)
    return chosen


def _chosen(problem: Any, policy: Policy, options: Options, backend: str | None, remembered: bool) -> Choice:
    from numbadnn.call import remembered as files

    if remembered:
        known = files.planned(problem, policy, options, backend) or files.tuned(problem, policy, options, backend)
        if known is not None:
            return known
    chosen = _by_rank(problem, policy, options, backend)
    if policy.algo != "auto" and refusal(chosen.impl, problem, policy, options):
        return chosen  # in spite of the algorithm or of the level: there is nothing else to look for under these rules
    if remembered and (layer := files.known(problem, policy, options, backend, chosen)) is not None:
        chosen = layer
    elif remembered and (config := ranks.configuration(chosen.impl, problem, policy)) is not None:
        chosen = dataclasses.replace(chosen, config=config, remembered=True)
    if options.tune == "measure" and policy.determinism not in FIXED_LEVELS:
        return files.measured(problem, policy, options, backend, chosen)
    return chosen


def warn_of_unknown(exclude: tuple[str, ...]) -> None:
    """A name that is no implementation's excludes nothing, which nobody would notice."""
    for text in _unknown(exclude):
        warn(text)


@functools.lru_cache(64)
def _unknown(exclude: tuple[str, ...]) -> tuple[str, ...]:
    """What is to be said of names that are no implementation's, of any operation."""
    some = [pattern for pattern in exclude if pattern not in (f"{backend}.*" for backend in BACKENDS)]
    if not some:
        return ()
    import difflib

    known, texts = sorted({impl.name for op in FAMILY for impl in implementations(op)}), []
    for pattern in some:
        if not fnmatch.filter(known, pattern):
            near = difflib.get_close_matches(pattern, known, 1)
            meant = f": {near[0]} is meant?" if near else ""
            texts.append(f"exclude={pattern!r} is the name of no implementation and excludes nothing{meant}")
    return tuple(texts)


def check_backend(backend: Any) -> None:
    """ValueError for what is not the name of a backend."""
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise ValueError(f"backend: expected None or one of {', '.join(BACKENDS)}, got {backend!r}")


def check_named(backend: str, policy: Policy) -> None:
    """ValueError for what is no backend, BackendUnavailableError for one that cannot be used on this device."""
    check_backend(backend)
    missing = unavailable(backend, policy.device)
    if missing:
        raise BackendUnavailableError(f"backend={backend!r}: {missing}")


def scope(options: Options, backend: str | None) -> str:
    """The backends asked for, and the implementations where they are named, as text.

    >>> scope(current(), "cpu")
    'call:cpu'
    """
    backends = f"call:{backend}" if backend else ",".join(options.backend) or "auto"
    return f"{backends} only={','.join(options.only)}" if options.only else backends


def groups(options: Options, backend: str | None) -> list[tuple[str, ...]]:
    """Backends to ask one group after the other; within a group the fastest wins."""
    if backend is not None:
        return [(backend,)]
    named = options.backend
    if not named:
        return [BACKENDS]
    others = tuple(b for b in BACKENDS if b not in named)
    # one name is a preference: the others follow if the fallback option lets them
    return [*((b,) for b in named), *([others] if len(named) == 1 else [])]


def not_asked(impl: Impl, options: Options, backend: str | None) -> str:
    """Why the backends that were asked for leave an implementation out ("" = they do not)."""
    if any(impl.backend in group for group in groups(options, backend)):
        return ""
    return f"not of the backends asked for: {_asked(options, backend)}"


def _asked(options: Options, backend: str | None) -> str:
    if backend is not None:
        return f"backend={backend} (call)"
    return f"backend={','.join(options.backend)} ({options.origin['backend']})"


def names_of(problem: Any, policy: Policy, options: Options, backends: tuple[str, ...]) -> list[str]:
    """The implementations that these options let be asked on this device."""
    here = [b for b in backends if not unavailable(b, policy.device)]
    return [i.name for i in implementations(problem.op) if i.backend in here and not left_out(i, options)]


# ---- by rank ---------------------------------------------------------------------------------------------------------


def _by_rank(problem: Any, policy: Policy, options: Options, backend: str | None) -> Choice:
    refusals: list[Refusal] = []
    named = options.backend if backend is None else ()
    for group in groups(options, backend):
        for impl in ordered(problem, policy, group):
            asked = is_named(impl, options, backend)
            reason = refusal(impl, problem, policy, options, named=asked)
            if reason:
                refusals.append(Refusal(impl.backend, impl.name, reason))
                continue
            fell = bool(named) and impl.backend != named[0]
            if fell:
                may_fall_back(problem, options, refusals)
            return Choice(impl, _decided(options, backend), tuple(refusals), fell)
    return _nothing(problem, policy, options, backend, refusals)


def _decided(options: Options, backend: str | None) -> str:
    return _asked(options, backend) if backend is not None or options.backend else "rank"


def _nothing(problem: Any, policy: Policy, options: Options, backend: str | None, refusals: list[Refusal]) -> Choice:
    """Nobody takes the problem: an algorithm or a level that was named stands against it, or it cannot be done."""
    asked = [
        r for r in refusals if not _elsewhere(r) and "the option only=" not in r.reason and "exclude=" not in r.reason
    ]
    algo, origin = policy.algo, options.origin["determinism"]
    promises = [r for r in asked if r.reason.startswith("promises ")]
    if promises and algorithm_wins(policy, options):
        free = dataclasses.replace(policy, determinism="not_guaranteed")
        inner = _by_rank(problem, free, options, backend)
        decided = f"{inner.decided_by}; algorithm {algo!r} beats the default determinism={policy.determinism}"
        return dataclasses.replace(inner, decided_by=decided, refusals=tuple(refusals))
    forced = [f"backend={backend!r}"] if backend else []
    forced += [f"only={','.join(options.only)!r}"] if options.only else []
    forced += [f"algorithm {algo!r}"] if algo not in CHOOSING_ALGOS else []
    others = [r for r in asked if r not in promises and " algorithm" not in r.reason]
    if promises and forced and origin != "default" and not others:
        raise DeterminismError(
            f"{' and '.join(forced)} was named, but determinism={policy.determinism!r} ({origin}) asks for more than "
            f"{promises[0].impl} promises: {promises[0].reason}"
        )
    if backend is None and algo != "auto":
        return _without_algorithm(problem, policy, options, refusals)
    how = f"backend={backend!r} cannot compute" if backend else "no implementation can compute"
    if backend is None and len(options.backend) > 1:
        how = f"no implementation of {_asked(options, None)} can compute"
    raise NotSupportedError(f"{how} {problem}", tuple(refusals))


def _elsewhere(r: Refusal) -> bool:
    return r.reason.startswith("the arrays are on")


def _without_algorithm(problem: Any, policy: Policy, options: Options, refusals: list[Refusal]) -> Choice:
    """No implementation has the algorithm that an option names: the fallback option decides, and it is recorded."""
    may_fall_back(problem, options, refusals)
    inner = _chosen(problem, dataclasses.replace(policy, algo="auto"), options, None, True)
    decided = f"{inner.decided_by}; {no_algorithm(policy)}"
    return dataclasses.replace(inner, decided_by=decided, refusals=tuple(refusals), fallback=True)


def no_algorithm(policy: Policy) -> str:
    return f"algorithm {policy.algo!r} is not to be had"


def may_fall_back(problem: Any, options: Options, refusals: Sequence[Refusal]) -> None:
    """NotSupportedError where the option ``fallback`` admits the first choice alone."""
    if options.fallback == "error":
        raise NotSupportedError(f"the first choice refused {problem} and fallback is 'error'", tuple(refusals))


def algo_option(op: str) -> str:
    """Which option names the algorithm of an operation ("" = none)."""
    if not op.startswith(("conv2d", "conv3d")):
        return ""
    return {"inputs": "algo_bwd_data", "weights": "algo_bwd_filter"}.get(op.rpartition("_")[2], "algo_fwd")


def policy_in_force(op: str, device: int) -> Policy:
    """The options in force, as the policy that an implementation is asked under."""
    options = config.current()
    return Policy(
        device,
        options.determinism,
        options.fp32_precision,
        options.precision,
        getattr(options, algo_option(op), "auto"),
        options.workspace_limit,
        options.accuracy,
    )
