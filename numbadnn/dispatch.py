"""The life of a call: a key, a look-up, a launch; everything else happens once per distinct problem.

A call probes the arrays (address and a cheap signature each), finds this thread's ``Plan`` under the signatures and
launches it. A miss makes the views, builds and validates the Problem, chooses an implementation (``select``), plans and
stores. The *choice* is shared by the process; the Plan with its buffers and handles belongs to one thread.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from numbadnn import choices, config, errata, explanation, operands, plan_file, select
from numbadnn.arrays import LIBRARIES, PROBES, View, library_of
from numbadnn.errors import CaptureError, NotSupportedError, NumbaDNNError
from numbadnn.launch import Plan, thread
from numbadnn.problem import Policy
from numbadnn.registry import Executable

#: distinct problems remembered: plans a thread, choices (and refusals) a process
MAX_PLANS, MAX_CHOICES = 256, 1024


class Request(NamedTuple):
    """What an operation's builder returns: its validated problem and the call's own algorithm and precision."""

    problem: Any
    algo: str | None = None
    precision: str | None = None
    algo_option: str = ""


#: builder -> the names of its array arguments, for errors
ARGUMENTS: dict[Callable[..., Request], tuple[str, ...]] = {}


def operation(*arguments: str) -> Callable[[Callable[..., Request]], Callable[..., Request]]:
    """Declare a builder ``build(views, out_views, params) -> Request`` and the names of its array arguments."""

    def declare(build: Callable[..., Request]) -> Callable[..., Request]:
        ARGUMENTS[build] = arguments
        return build

    return declare


_using = config._using.get
_choices: OrderedDict[Any, select.Choice | NotSupportedError] = OrderedDict()
_choices_lock = threading.Lock()
_left_behind: list[Plan] = []  # by the parent of a forked process
_cuda_used = False
_forked_after_cuda = False


def call1(build: Callable[..., Request], a: Any, params: tuple[Any, ...], backend: Any, out: Any, stream: Any) -> Any:
    """Compute an operation of one array; see ``call_any``. Spelled out for speed, as is ``call2``."""
    if out is None and stream is None:
        try:
            address, signature = PROBES[type(a)](a)
            options = _using() or config.environment or config.from_environment()
            plan = thread.plans.get((build, params, backend, options, signature))
        except _COLD:
            plan = None
        if plan is not None and plan.quick is not None:
            return plan.quick(address)
    return call_any(build, (a,), params, backend, out, stream)


def call2(
    build: Callable[..., Request], a: Any, b: Any, params: tuple[Any, ...], backend: Any, out: Any, stream: Any
) -> Any:
    """Compute an operation of two arrays; see ``call_any``."""
    if out is None and stream is None:
        try:
            address, signature = PROBES[type(a)](a)
            address_b, signature_b = PROBES[type(b)](b)
            options = _using() or config.environment or config.from_environment()
            plan = thread.plans.get((build, params, backend, options, signature, signature_b))
        except _COLD:
            plan = None
        if plan is not None and plan.quick is not None:
            return plan.quick(address, address_b)
    return call_any(build, (a, b), params, backend, out, stream)


def call_any(
    build: Callable[..., Request],
    arrays: tuple[Any, ...],
    params: tuple[Any, ...],
    backend: Any,
    out: Any,
    stream: Any,
    words: tuple[int, ...] = (),
) -> Any:
    """Compute one operation: ``build(views, out_views, params)`` makes its problem when it is not known yet.

    ``words`` are integers that the implementation gets after the arrays and that are no part of the problem: a seed.
    """
    options = _using() or config.environment or config.from_environment()
    outs = () if out is None else out if type(out) is tuple else (out,)
    try:
        plan, addresses = _known(build, arrays, params, backend, outs, options)
    except _COLD:
        plan = None
    if plan is None:
        return _miss(build, arrays, params, backend, out, stream, options, words)
    if plan.quick is not None and stream is None and not outs:
        return plan.quick(*addresses, *words)
    n = len(arrays)
    return plan.launch(arrays, addresses[:n], addresses[n:], out, stream, words)


#: what looking a call up may raise: a type seen for the first time, an unhashable parameter, an array that its library
#: refuses; the cold path finds out which, and raises with the argument's name
_COLD = (KeyError, TypeError, ValueError, AttributeError, RuntimeError)


def _known(
    build: Any, arrays: tuple[Any, ...], params: Any, backend: Any, outs: tuple[Any, ...], options: Any
) -> tuple[Plan | None, tuple[Any, ...]]:
    """This thread's plan for any arrays and ``out``, or None; the addresses of the inputs, then of ``out``."""
    addresses, signatures = zip(*[PROBES[type(a)](a) for a in (*arrays, *outs)], strict=True)
    plan = thread.plans.get((build, params, backend, options, *signatures))
    if plan is not None and plan.careful:
        for array in (*arrays, *outs):
            check = LIBRARIES[type(array)].check
            if check is not None:
                check(array)
    return plan, addresses


def _miss(
    build: Callable[..., Request],
    arrays: tuple[Any, ...],
    params: tuple[Any, ...],
    backend: Any,
    out: Any,
    stream: Any,
    options: config.Options,
    words: tuple[int, ...],
) -> Any:
    """The cold path of a call: validate, choose, plan, store; then launch like a warm call."""
    names = ARGUMENTS[build]  # the last ones may be optional
    intercept = backend if isinstance(backend, Intercept) else None
    if intercept:
        backend = intercept.backend
    views = [operands.named_view(a, n) for a, n in zip(arrays, names, strict=False)]
    outs = () if out is None else out if isinstance(out, tuple) else (out,)
    out_views = operands.check_out(outs, views)
    operands.check_devices(views, names)
    request = build(views, out_views, params)
    if intercept and intercept.wanted == "problem":
        raise Intercepted(request.problem)
    policy = _policy(request, views[0].device, options)
    if intercept and intercept.wanted == "explain":
        raise Intercepted(explanation.explain(request.problem, policy, options, backend))
    plan = make_plan(request.problem, policy, options, backend, views, stream)
    probed = [library_of(a).probe(a) for a in (*arrays, *outs)]
    plan._signatures = tuple(signature for _, signature in probed)
    plan.words = words
    if intercept:
        raise Intercepted(plan)
    _remember(thread.plans, (build, params, backend, options, *plan._signatures), plan)
    addresses, n = tuple(address for address, _ in probed), len(arrays)
    return plan.launch(arrays, addresses[:n], addresses[n:], out, stream, words)


def make_plan(
    problem: Any, policy: Policy, options: config.Options, backend: str | None, views: list[View], stream: Any = None
) -> Plan:
    """Choose an implementation for a validated problem and make it ready in this thread."""
    thread.misses += 1
    if policy.device < 0:
        choice, executable = _ready(problem, policy, options, backend, views)
        return Plan(problem, policy, choice, executable, views)
    global _cuda_used
    if _forked_after_cuda:
        raise NumbaDNNError(
            "this process was forked from one that had used CUDA, which cannot work; start it with the 'spawn' method "
            "(multiprocessing.set_start_method('spawn'))"
        )
    _cuda_used = True
    from numbadnn.arrays import streams
    from numbadnn.kernels._context import ensure_context
    from numbadnn.kernels._launch import set_cache_folder

    set_cache_folder(options.cache_dir or None)
    with ensure_context(policy.device):
        raw = streams.handle(stream) if stream is not None else views[0].library.current_stream(policy.device) or 0
        if streams.is_capturing(raw):
            raise CaptureError("this problem was never run before: call it once before capturing a CUDA graph")
        choice, executable = _ready(problem, policy, options, backend, views)
        plan = Plan(problem, policy, choice, executable, views)

    def replan(workspace_limit: int) -> Plan:
        less = dataclasses.replace(policy, workspace_limit=workspace_limit)
        return make_plan(problem, less, options, backend, views, stream)

    plan.replan = replan
    return plan


def _ready(
    problem: Any, policy: Policy, options: config.Options, backend: str | None, views: list[View]
) -> tuple[select.Choice, Executable]:
    """The choice for a problem and its executable; what a file remembers and cannot be had any more is chosen anew."""
    choice = _choice(problem, policy, options, backend)
    if choice.impl is operands.EMPTY:
        return choice, operands.with_casts(operands.plan_empty(problem, policy), problem, views, policy.device)
    try:
        executable = choice.impl.plan(problem, policy, choice.config)
    except NotSupportedError as error:
        if not choice.remembered:
            raise
        if options.plan_strict:
            raise plan_file.miss(options.plan_file, problem, f"cannot be followed ({error}) for") from None
        choice = _choice(problem, policy, options, backend, remembered=False)
        choice = dataclasses.replace(choice, decided_by=f"{choice.decided_by}; not as remembered: {error}")
        executable = choice.impl.plan(problem, policy, choice.config)
    if options.plan_file:
        key = plan_file.key_of(problem, policy, select.scope(options, backend))
        plan_file.record(options.plan_file, key, choice, executable, policy.device)
    return choice, operands.with_casts(executable, problem, views, policy.device)


def _choice(
    problem: Any, policy: Policy, options: config.Options, backend: str | None, remembered: bool = True
) -> select.Choice:
    """The process-wide choice for a problem; a refusal is remembered like a choice."""
    if any(s.size == 0 for s in (*problem.inputs, *problem.outputs)):
        return select.Choice(operands.EMPTY, "empty")
    key = (problem, policy, options, backend)
    with _choices_lock:
        known = _choices.get(key) if remembered else None
        if known is not None:
            _choices.move_to_end(key)
    if known is None:
        try:
            known = select.choose(problem, policy, options, backend, remembered)
        except NotSupportedError as error:
            known = error
        with _choices_lock:
            _remember(_choices, key, known, MAX_CHOICES)
    if isinstance(known, NotSupportedError):
        raise NotSupportedError(str(known).splitlines()[0], known.candidates)
    return known


def _remember(cache: dict[Any, Any], key: Any, value: Any, most: int = MAX_PLANS) -> None:
    """Insert, and drop the oldest beyond ``most``; a plan in use lives on by its references."""
    cache[key] = value
    while len(cache) > most:
        cache.pop(next(iter(cache)))


def _policy(request: Request, device: int, options: config.Options) -> Policy:
    algo = request.algo or (getattr(options, request.algo_option) if request.algo_option else "auto")
    return Policy(
        device=device,
        determinism=options.determinism,
        fp32_precision=options.fp32_precision,
        precision=request.precision or options.precision,
        algo=algo,
        workspace_limit=options.workspace_limit,
    )


class Intercept(NamedTuple):
    """Stands in for ``backend=`` to stop a call before it runs, with what is ``wanted``: 'problem', 'explain' or 'plan'."""

    wanted: str
    backend: str | None


class Intercepted(BaseException):
    """Carries what an intercepted call was asked for."""


def intercept(wanted: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    backend = kwargs.pop("backend", None)
    try:
        function(*args, **kwargs, backend=Intercept(wanted, backend))
    except Intercepted as caught:
        return caught.args[0]
    raise TypeError(f"expected one of numbadnn's compute functions, got {function!r}")


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> explanation.Explanation:
    """Every candidate for ``function(*args, **kwargs)``, with reasons; computes nothing.

    >>> import numpy as np, numbadnn
    >>> numbadnn.explain(numbadnn.softmax, np.ones((2, 3), "float32")).chosen
    'cpu.loops'
    """
    return intercept("explain", function, args, kwargs)


def plan(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Plan:
    """The Plan that ``function(*args, **kwargs)`` would run, to keep and call as with FFT plans.

    >>> import numpy as np, numbadnn
    >>> x = np.ones((2, 4), "float32")
    >>> numbadnn.plan(numbadnn.softmax, x)(x)[0, 0]
    np.float32(0.25)
    """
    return intercept("plan", function, args, kwargs)


class LastCall(NamedTuple):
    """What the last call of this thread ran."""

    impl: str
    backend: str
    problem: str
    decided_by: str
    fallback: bool
    determinism: str
    arithmetic: str
    workspace_bytes: int
    facts: dict[str, Any]
    refusals: tuple[Any, ...]


def last_call() -> LastCall | None:
    """Which implementation computed this thread's last call, and its numbers; None before the first."""
    (p,) = thread.last
    if p is None:
        return None
    e, c = p.executable, p.choice
    return LastCall(
        c.impl.name, c.impl.backend, str(p.problem), c.decided_by, c.fallback, e.determinism, e.arithmetic,
        e.workspace_bytes, e.facts, c.refusals,
    )  # fmt: skip


class CacheInfo(NamedTuple):
    plans: int
    max_plans: int
    choices: int
    max_choices: int
    misses: int


def cache_info() -> CacheInfo:
    """Plans of this thread, choices of the process, their bounds, and this thread's misses."""
    return CacheInfo(len(thread.plans), MAX_PLANS, len(_choices), MAX_CHOICES, thread.misses)


def clear_caches() -> None:
    """Forget this thread's plans and the process's choices; the files of choices, plans and errata are read again."""
    thread.plans.clear()
    thread.last[0] = None
    with _choices_lock:
        _choices.clear()
    for module in (choices, plan_file, errata):
        module.forget()


def _after_fork() -> None:
    global _forked_after_cuda, _choices_lock
    _forked_after_cuda = _cuda_used
    _choices_lock = threading.Lock()
    if _cuda_used:  # they hold handles of the parent's CUDA context, which must not be destroyed here
        _left_behind.extend(thread.plans.values())
    thread.plans.clear()


os.register_at_fork(after_in_child=_after_fork)
