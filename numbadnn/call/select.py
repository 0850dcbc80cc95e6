"""The rules of choosing: who may compute a problem under a policy and options, and which backends are asked in which order.

Every candidate is either admitted or refused with a reason in words. Order: the backend named in the call (strict), the
backends the options name (in that order; what happens when the first refuses is the ``fallback`` option). What runs under
batch_invariant and gpu_to_gpu depends on no measurement: another machine, another size of the batch must come to the same
choice. ``candidates`` asks by these rules, ``choose`` decides.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numbadnn import config
from numbadnn.config import BACKENDS, Options
from numbadnn.errors import BackendUnavailableError, NotSupportedError, Refusal, warn
from numbadnn.host import log
from numbadnn.host.undisturbed import imported
from numbadnn.kept import errata, shipped_errata
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


def elsewhere(backend: str, device: int) -> str:
    """Why a backend is not one for arrays on this device, wherever it may be installed ("" = it is)."""
    if backend == "cpu":
        where = f"CUDA device {device}"
        return "" if device < 0 else f"the arrays are on {where}; the cpu backend takes NumPy arrays and CPU tensors"
    return "" if device >= 0 else f"the arrays are on the CPU; the {backend} backend takes arrays on a CUDA device"


def missing(backend: str, device: int) -> str:
    """``unavailable``, as far as it is known without loading a library: "" may mean that nobody looked yet."""
    library = imported("numbadnn.cudnn.lib")
    if backend == "cudnn" and library is not None and library.failed():
        return unavailable(backend, device)
    return elsewhere(backend, device)


def unavailable(backend: str, device: int) -> str:
    """Why a backend cannot be used for arrays on this device ("" = it can)."""
    other = elsewhere(backend, device)
    if other or backend == "cpu":
        return other
    if backend == "cudnn":
        from numbadnn import cudnn
        from numbadnn.kernels.build import simulate

        if simulate.active():
            return "the CUDA simulator has no cuDNN"
        state = cudnn.available()
        return "" if state else state.reason
    from numbadnn.kernels.build import support

    return support.compiler_reason()


def left_out(impl: Impl, options: Options) -> str:
    """Why the lists of names leave an implementation out ("" = they do not)."""
    return _excluded(impl.name, options) or _not_among(options, lambda pattern: fnmatch.fnmatchcase(impl.name, pattern))


def left_out_backend(backend: str, options: Options) -> str:
    """Why the lists of names leave out whatever a backend has ("" = they may not)."""
    return _excluded(f"{backend}.*", options) or _not_among(options, lambda pattern: may_name(pattern, backend))


def may_name(pattern: str, backend: str) -> bool:
    """Whether a pattern may be meant for an implementation of a backend, or begins with the name of another one.

    >>> may_name("cpu.*", "cpu"), may_name("cpu.*", "numba"), may_name("*_by_forward", "numba")
    (True, False, True)
    """
    first, dot, _ = pattern.partition(".")
    return not dot or first not in BACKENDS or first == backend


def _excluded(name: str, options: Options) -> str:
    for pattern in options.exclude:
        if fnmatch.fnmatchcase(name, pattern):
            return f"excluded by the option exclude={pattern!r}"
    return ""


def _not_among(options: Options, meant: Callable[[str], bool]) -> str:
    if options.only and not any(map(meant, options.only)):
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
    if policy.algo != "auto" and impl.backend != "cudnn":  # before its guarantees: they say nothing without it
        return f"has no algorithm named {policy.algo!r}; the names are cuDNN's"
    if DETERMINISM.index(impl.determinism) < DETERMINISM.index(policy.determinism):
        return f"guarantees {impl.determinism}, the option determinism asks for {policy.determinism}"
    if policy.accuracy == "elementwise" and accuracy_of(impl.arithmetic) != "elementwise":
        return f"computes by {impl.arithmetic}, the option accuracy asks for elementwise"
    found = errata.against(impl.name, problem, policy, options)
    if not found and engine is not None:
        found = errata.against(impl.name, problem, policy, options, engine)
    if not found and not named and (known := erratum("avoided", impl, problem)):
        found = f"wrong on some data, so it runs where backend={impl.backend!r} is named: {known}"
    if found:
        log.note("info", "%s is left out for %s: %s", impl.name, problem, found)
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
        log.note("info", "%s runs for %s, which is known to be %s", impl.name, problem, known)


def is_named(impl: Impl, options: Options, backend: str | None) -> bool:
    """Whether somebody asked for this implementation or its backend."""
    if backend is not None:
        return impl.backend == backend
    return impl.backend in options.backend or bool(options.only)


def algorithm_wins(policy: Policy, options: Options) -> bool:
    """Whether an algorithm that was named beats a level of determinism that nobody asked for."""
    asked = options.origin["determinism"] != "default" or policy.determinism == "not_guaranteed"
    return policy.algo not in CHOOSING_ALGOS and not asked


def nominal(problem: Any, policy: Policy) -> Any:
    """The layer by whose estimates a convolution on a GPU is chosen under batch_invariant; None where the order is fixed.

    Whatever the batch, it is the same: so is the choice. Causal and unshared convolutions have a fixed order.
    """
    if policy.device < 0 or FAMILY[problem.op] != "conv":
        return None
    from numbadnn.problems import images
    from numbadnn.problems.conv import OPERATIONS

    if problem.unshared or OPERATIONS[problem.op].arrangement == "line" or not images.is_invariant(problem, policy):
        return None
    return images.of_images(problem)


def warn_of_unknown(options: Options) -> None:
    """A name that is no implementation's leaves nothing out (``exclude``), lets nothing in (``only``): nobody would notice."""
    # one name alone that lets nothing in is an error
    for text in (*unknown("exclude", options.exclude), *(unknown("only", options.only) if options.only[1:] else ())):
        warn(text)


@functools.lru_cache(64)
def unknown(option: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """What is to be said of names that are no implementation's, of any operation."""
    some = [pattern for pattern in names if pattern not in (f"{backend}.*" for backend in BACKENDS)]
    if not some:
        return ()
    import difflib

    texts = []
    for pattern in some:
        # a pattern that names its backend needs no other one's modules
        backends = [backend for backend in BACKENDS if may_name(pattern, backend)]
        known = sorted({impl.name for op in FAMILY for impl in implementations(op, backends)})
        if not fnmatch.filter(known, pattern):
            near = difflib.get_close_matches(pattern, known, 1)
            meant = f": {near[0]} is meant?" if near else ""
            effect = {"exclude": " and excludes nothing", "only": ""}[option]
            texts.append(f"{option}={pattern!r} is the name of no implementation{effect}{meant}")
    return tuple(texts)


def check_backend(backend: Any) -> None:
    """ValueError for what is not the name of a backend."""
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise ValueError(
            f"backend: expected None or one of {', '.join(BACKENDS)}, got {backend!r}{config.not_a_place(backend)}"
        )


def check_named(backend: str, policy: Policy) -> None:
    """ValueError for what is no backend, BackendUnavailableError for one that cannot be used on this device."""
    check_backend(backend)
    missing = unavailable(backend, policy.device)
    if missing:
        raise BackendUnavailableError(f"backend={backend!r}: {missing}")


def scope(options: Options, backend: str | None) -> str:
    """The backends asked for, and the implementations where they are named, as text.

    >>> scope(config.current(), "cpu")
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
    return f"not of the backends asked for: {asked(options, backend)}"


def asked(options: Options, backend: str | None) -> str:
    """The backends that were asked for, and by whom, as text."""
    if backend is not None:
        return f"backend={backend} (call)"
    return f"backend={','.join(options.backend)} ({options.origin['backend']})"


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
