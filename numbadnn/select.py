"""Which implementation computes a problem, decided before anything runs; and ``explain``, which shows the decision.

Every candidate is either admitted or refused with a reason in words. Order: the backend named in the call (strict), else
the backends the options name (in that order; what happens when the first refuses is the ``fallback`` option), else all
by rank. Nothing is chosen by running it and catching the error: a bug must not look like a missing feature.
"""

from __future__ import annotations

import fnmatch
import warnings
from dataclasses import dataclass, field
from typing import Any

from numbadnn.config import BACKENDS, Options, current
from numbadnn.errors import BackendUnavailableError, DeterminismError, NotSupportedError, Refusal
from numbadnn.problem import Policy
from numbadnn.registry import DETERMINISM, Impl, implementations


@dataclass(frozen=True, slots=True)
class Choice:
    """The implementation chosen for a problem, what decided it, and who was asked before and refused."""

    impl: Impl
    decided_by: str
    refusals: tuple[Refusal, ...] = ()
    fallback: bool = False


def unavailable(backend: str, device: int) -> str:
    """Why a backend cannot be used for arrays on this device ("" = it can)."""
    where = f"CUDA device {device}" if device >= 0 else "the CPU"
    if backend == "cpu":
        return "" if device < 0 else f"the arrays are on {where}; the cpu backend takes NumPy arrays and CPU tensors"
    if device < 0:
        return f"the arrays are on {where}; the {backend} backend takes arrays on a CUDA device"
    if backend == "cudnn":
        from numbadnn import cudnn

        state = cudnn.available(current().cudnn_library or None)
        return "" if state else state.reason
    try:
        import numba.cuda  # noqa: F401
    except Exception as error:  # an import can fail in many ways; each is a reason
        return f"numba-cuda cannot be imported: {error}"
    return ""


def refusal(impl: Impl, problem: Any, policy: Policy, options: Options) -> str:
    """Why this implementation may not compute this problem under these options ("" = it may)."""
    for pattern in options.exclude:
        if fnmatch.fnmatchcase(impl.name, pattern):
            return f"excluded by the option exclude={pattern!r}"
    if options.only and not any(fnmatch.fnmatchcase(impl.name, pattern) for pattern in options.only):
        return f"not in the option only={','.join(options.only)!r}"
    missing = unavailable(impl.backend, policy.device)
    if missing:
        return missing
    if DETERMINISM.index(impl.determinism) < DETERMINISM.index(policy.determinism):
        return f"promises {impl.determinism}, the option determinism asks for {policy.determinism}"
    if policy.algo != "auto" and impl.backend != "cudnn":
        return f"has no algorithm named {policy.algo!r}; the names are cuDNN's"
    return impl.supports(problem, policy)


def _ordered(op: str, problem: Any, backends: tuple[str, ...]) -> list[Impl]:
    return sorted(
        (i for i in implementations(op) if i.backend in backends),
        key=lambda i: (backends.index(i.backend) if len(backends) < len(BACKENDS) else 0, i.rank(problem)),
    )


def choose(problem: Any, policy: Policy, options: Options, backend: str | None) -> Choice:
    """The implementation for a problem; NotSupportedError, with every candidate's reason, when there is none.

    ``backend`` given in a call is strict: BackendUnavailableError when it cannot be used here at all.
    """
    _refuse_unbuilt(options)
    if backend is not None:
        return _strict(problem, policy, options, backend)
    named = options.backend
    groups: list[tuple[str, ...]] = [named or BACKENDS]
    if len(named) == 1:  # one name is a preference: the others follow if the fallback option lets them
        groups.append(tuple(b for b in BACKENDS if b not in named))
    refusals: list[Refusal] = []
    for group in groups:
        order = [(b,) for b in group] if named and group is groups[0] else [group]
        for backends in order:
            for impl in _ordered(problem.op, problem, backends):
                reason = refusal(impl, problem, policy, options)
                if reason:
                    refusals.append(Refusal(impl.backend, impl.name, reason))
                    continue
                fell = bool(named) and impl.backend != named[0]
                if fell:
                    _fall_back(problem, options, impl, refusals)
                origin = options.origin["backend"]
                decided = f"backend={','.join(named)} ({origin})" if named else "rank"
                return Choice(impl, decided, tuple(refusals), fell)
    if policy.algo != "auto" and all(" algorithm" in r.reason for r in refusals if not _elsewhere(r)):
        return _without_algorithm(problem, policy, options, refusals)
    raise NotSupportedError(f"no implementation can compute {problem}", tuple(refusals))


def _elsewhere(r: Refusal) -> bool:
    return r.reason.startswith("the arrays are on")


def _strict(problem: Any, policy: Policy, options: Options, backend: str) -> Choice:
    if backend not in BACKENDS:
        raise ValueError(f"backend: expected None or one of {', '.join(BACKENDS)}, got {backend!r}")
    missing = unavailable(backend, policy.device)
    if missing:
        raise BackendUnavailableError(f"backend={backend!r}: {missing}")
    refusals: list[Refusal] = []
    for impl in _ordered(problem.op, problem, (backend,)):
        reason = refusal(impl, problem, policy, options)
        if not reason:
            return Choice(impl, f"backend={backend} (call)", tuple(refusals))
        refusals.append(Refusal(impl.backend, impl.name, reason))
    level = options.origin["determinism"]
    if refusals and level != "default" and all(r.reason.startswith("promises ") for r in refusals):
        raise DeterminismError(
            f"backend={backend!r} was named in the call, but determinism={policy.determinism!r} ({level}) asks for "
            f"more than it promises: {refusals[0].reason}"
        )
    raise NotSupportedError(f"backend={backend!r} cannot compute {problem}", tuple(refusals))


def _without_algorithm(problem: Any, policy: Policy, options: Options, refusals: list[Refusal]) -> Choice:
    """No implementation has the algorithm that an option names: the fallback option decides, and it is recorded."""
    import dataclasses

    inner = choose(problem, dataclasses.replace(policy, algo="auto"), options, None)
    _fall_back(problem, options, inner.impl, refusals)
    return Choice(inner.impl, f"{inner.decided_by}; algorithm {policy.algo!r} is not to be had", tuple(refusals), True)


def _fall_back(problem: Any, options: Options, impl: Impl, refusals: list[Refusal]) -> None:
    if options.fallback == "error":
        raise NotSupportedError(f"the first choice refused {problem} and fallback is 'error'", tuple(refusals))
    if options.fallback == "warn":
        why = "; ".join(f"{r.impl}: {r.reason}" for r in refusals)
        warnings.warn(f"{problem} runs on {impl.name} instead: {why}", RuntimeWarning, stacklevel=6)


def _refuse_unbuilt(options: Options) -> None:
    """Options whose work does not exist yet say so instead of doing nothing."""
    inert_values = {"tune": ("heuristic", "cached"), "plan_file": ("",), "plan_strict": (False,), "errata_file": ("",)}
    for name, inert in inert_values.items():
        if getattr(options, name) not in inert:
            raise NotSupportedError(f"option {name}={getattr(options, name)!r} is not available in this version")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One line of an explanation; ``state`` is chosen, admitted or refused."""

    backend: str
    impl: str
    state: str
    reason: str
    determinism: str
    arithmetic: str
    workspace_bytes: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    engines: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every candidate for a problem, which one runs and what decided it. ``print`` shows a table."""

    problem: Any
    policy: Policy
    chosen: str
    decided_by: str
    candidates: tuple[Candidate, ...]

    def __str__(self) -> str:
        lines = [str(self.problem), f"runs on {self.chosen or 'nothing'}, decided by {self.decided_by}"]
        for c in self.candidates:
            size = "" if c.workspace_bytes is None else f" workspace {c.workspace_bytes}"
            lines.append(f"  {c.state:8} {c.impl:20} {c.determinism:14} {c.arithmetic:12}{size} {c.reason}".rstrip())
            lines += [f"           {key}: {value}" for key, value in c.facts.items()]
            lines += ["           " + " ".join(f"{k}={v}" for k, v in engine.items()) for engine in c.engines]
        return "\n".join(lines)


def explain(problem: Any, policy: Policy, options: Options, backend: str | None = None) -> Explanation:
    """Ask every implementation about a problem; plans the admitted ones (no launch) to know workspace and engine."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            choice: Choice | None = choose(problem, policy, options, backend)
        decided = choice.decided_by if choice else ""
    except (NotSupportedError, BackendUnavailableError, DeterminismError) as error:
        choice, decided = None, str(error).splitlines()[0]
    chosen = choice.impl.name if choice else ""
    candidates = [_candidate(i, problem, policy, options, chosen) for i in _ordered(problem.op, problem, BACKENDS)]
    return Explanation(problem, policy, chosen, decided, tuple(candidates))


def _candidate(impl: Impl, problem: Any, policy: Policy, options: Options, chosen: str) -> Candidate:
    reason = refusal(impl, problem, policy, options)
    if impl.name == chosen and reason:  # admitted without the algorithm that was named
        import dataclasses

        policy, reason = dataclasses.replace(policy, algo="auto"), ""
    if reason:
        return Candidate(impl.backend, impl.name, "refused", reason, impl.determinism, impl.arithmetic)
    executable = impl.plan(problem, policy, None)
    return Candidate(
        impl.backend,
        impl.name,
        "chosen" if impl.name == chosen else "admitted",
        "",
        executable.determinism,
        executable.arithmetic,
        executable.workspace_bytes,
        executable.facts,
        tuple(impl.options(problem, policy)) if impl.options else (),
    )
