"""The life of a call: a key, a look-up, a launch; everything else happens once per distinct problem.

A call probes the arrays (address and a cheap signature each), finds this thread's ``Plan`` under the signatures and
launches it. A miss makes the views, builds and validates the Problem, has it planned (``planning``) and stores the Plan.
``explain`` and ``plan`` go the same way and stop before the launch.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numbadnn import config
from numbadnn.arrays import LIBRARIES, PROBES, View, library_of
from numbadnn.arrays.untraced import leave_out
from numbadnn.call import explanation, operands, select
from numbadnn.call.launch import Plan, thread
from numbadnn.call.planning import make_plan
from numbadnn.call.seen import Seen, as_made, seen_views
from numbadnn.host import compiling
from numbadnn.host.bounded import remember
from numbadnn.problem import Policy
from numbadnn.registry import FAMILY, Summation


class Request(NamedTuple):
    """What an operation's builder returns: its validated problem and the call's own algorithm, precision and accuracy.

    ``seen``: how the problem sees the arrays, where not in their own axes.
    """

    problem: Any
    algo: str | None = None
    precision: str | None = None
    algo_option: str = ""
    accuracy: str | None = None
    seen: Seen | None = None


#: builder -> the names of its array arguments, for errors
ARGUMENTS: dict[Callable[..., Request], tuple[str, ...]] = {}
#: builder -> the name of its destination, where that is not "out"
DESTINATIONS: dict[Callable[..., Request], str] = {}


def operation(*arguments: str, destination: str = "out") -> Callable[[Callable[..., Request]], Callable[..., Request]]:
    """Declare a builder ``build(views, out_views, params) -> Request``, the names of its array arguments and destination."""

    def declare(build: Callable[..., Request]) -> Callable[..., Request]:
        ARGUMENTS[build] = arguments
        if destination != "out":
            DESTINATIONS[build] = destination
        return build

    return declare


_using = config._using.get


def call1(build: Callable[..., Request], a: Any, params: tuple[Any, ...], backend: Any, out: Any, stream: Any) -> Any:
    """Compute an operation of one array; see ``call_any``. Spelled out for speed, as is ``call2``."""
    if out is None and stream is None:
        try:
            address, signature = PROBES[type(a)](a)
            options = _using() or config.process or config.of_process()
            plan = thread.plans.get((build, params, backend, options, signature))
        except _COLD:
            plan = None
        if plan is not None and not plan.careful:
            return plan.quick(address) if plan.quick else plan.launch((a,), (address,), (), None, None)
    return call_any(build, (a,), params, backend, out, stream)


def call2(
    build: Callable[..., Request], a: Any, b: Any, params: tuple[Any, ...], backend: Any, out: Any, stream: Any
) -> Any:
    """Compute an operation of two arrays; see ``call_any``."""
    if out is None and stream is None:
        try:
            address, signature = PROBES[type(a)](a)
            address_b, signature_b = PROBES[type(b)](b)
            options = _using() or config.process or config.of_process()
            plan = thread.plans.get((build, params, backend, options, signature, signature_b))
        except _COLD:
            plan = None
        if plan is not None and not plan.careful:
            return (
                plan.quick(address, address_b)
                if plan.quick
                else plan.launch((a, b), (address, address_b), (), None, None)
            )
    return call_any(build, (a, b), params, backend, out, stream)


def call2_reversed(
    build: Callable[..., Request], a: Any, b: Any, params: tuple[Any, ...], backend: Any, out: Any, stream: Any
) -> Any:
    """``call2`` of (b, a), for a problem that has its inputs in the other order; a Plan takes them in the function's."""
    try:
        return call2(build, b, a, params, backend, out, stream)
    except Intercepted as caught:
        (asked,) = caught.args
        if isinstance(asked, Plan):
            asked.reversed = True
        raise


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
    options = _using() or config.process or config.of_process()
    outs = () if out is None else out if type(out) is tuple else (out,)
    if out is not None and not outs:
        raise ValueError(f"{DESTINATIONS.get(build, 'out')}: expected an array or a tuple of them, got ()")
    try:
        plan, addresses = _known(build, arrays, params, backend, outs, options)
    except _COLD:
        plan = None
    if plan is None:
        plain = frozen(params)
        if plain is not params:  # lists are looked up as tuples are
            return call_any(build, arrays, plain, backend, out, stream, words)
        return _miss(build, arrays, params, backend, out, stream, options, words)
    if plan.quick is not None and stream is None and not outs:
        return plan.quick(*addresses, *words)
    n = len(arrays)
    return plan.launch(arrays, addresses[:n], addresses[n:], out, stream, words)


leave_out((call1, call2, call2_reversed, call_any))

#: what looking a call up may raise: a type seen for the first time, an unhashable parameter, an array that its library
#: refuses; the cold path finds out which, and raises with the argument's name
_COLD = (KeyError, TypeError, ValueError, AttributeError, RuntimeError)


#: a vector given for numbers of a parameter is no longer than this
LONGEST = 64


class _Array:
    """Stands for an array where a parameter belongs: it can be a key, and is shown in the error that names the argument."""

    __slots__ = ("text",)

    def __init__(self, array: Any) -> None:
        self.text = f"an array of {array.dtype} {tuple(array.shape)}"

    def __repr__(self) -> str:
        return self.text


def frozen(params: Any) -> Any:
    """The same with tuples for lists and short vectors, so that it can be a key; itself where there are none.

    Arrays of other libraries too: a tensor is hashed by what it is, not by what it holds, which may change.
    """
    if hasattr(params, "tolist") and hasattr(params, "dtype") and not isinstance(params, np.generic):
        shape = tuple(params.shape)
        params = params.tolist() if len(shape) < 2 and math.prod(shape) <= LONGEST else _Array(params)
    if dataclasses.is_dataclass(params) and not isinstance(params, type):
        given = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
        plain = {name: frozen(value) for name, value in given.items()}
        return params if all(plain[name] is given[name] for name in given) else dataclasses.replace(params, **plain)
    if not isinstance(params, (list, tuple)):
        return params
    items = tuple(map(frozen, params))
    same = isinstance(params, tuple) and all(a is b for a, b in zip(items, params, strict=True))
    return params if same else items


def _known(
    build: Any, arrays: tuple[Any, ...], params: Any, backend: Any, outs: tuple[Any, ...], options: Any
) -> tuple[Plan | None, tuple[Any, ...]]:
    """This thread's plan for any arrays and ``out``, or None; the addresses of the inputs, then of ``out``."""
    addresses, signatures = zip(*[PROBES[type(a)](a) for a in (*arrays, *outs)], strict=True)
    plan = thread.plans.get((build, params, backend, options, *_apart(signatures, len(arrays))))
    if plan is not None and (plan.careful or plan.careful_out):
        for array in (*(arrays if plan.careful else ()), *(outs if plan.careful_out else ())):
            check = LIBRARIES[type(array)].check
            if check is not None:
                check(array)
    return plan, addresses


def _apart(signatures: tuple[Any, ...], inputs: int) -> tuple[Any, ...]:
    """The signatures as they stand in a key: destinations behind a mark, for inputs that may be left out look the same."""
    return signatures if len(signatures) == inputs else (*signatures[:inputs], "out", *signatures[inputs:])


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
    look = backend.look if isinstance(backend, Watch) else None
    if intercept or look:
        backend = backend.backend
    if backend is not None:
        select.check_backend(backend)
    views = [operands.named_view(a, n) for a, n in zip(arrays, names, strict=False)]
    outs = () if out is None else out if isinstance(out, tuple) else (out,)
    out_views = operands.check_out(outs, views, DESTINATIONS.get(build, "out"))
    operands.check_devices(views, names)
    request = build(views, out_views, params)
    if intercept and intercept.wanted == "problem":
        raise Intercepted(request.problem)
    if look:
        seen = request.seen
        if seen is None:
            return look(request, views, out_views, words)
        outs_seen = seen_views(out_views, seen.outputs)
        return as_made(look(request, seen_views(views, seen.inputs), outs_seen, words), seen)
    if not outs:
        operands.check_memory(request.problem.outputs, views[0].device)
    policy = policy_of(request, views[0].device, options)
    if intercept and intercept.wanted == "explain":
        raise Intercepted(explanation.explain(request.problem, policy, options, backend))
    with compiling.operation(request.problem.op):
        plan = make_plan(request.problem, policy, options, backend, views, stream, request.seen)
        probed = [library_of(a).probe(a) for a in (*arrays, *outs)]
        plan.signatures = tuple(signature for _, signature in probed)
        plan.words = words
        if intercept:
            raise Intercepted(plan)
        addresses, n = tuple(address for address, _ in probed), len(arrays)
        remember(thread.plans, (build, params, backend, options, *_apart(plan.signatures, n)), plan)
        return plan.launch(arrays, addresses[:n], addresses[n:], out, stream, words)


def policy_of(request: Request, device: int, options: config.Options) -> Policy:
    """What a call may choose from on this device, with what it names itself before the options."""
    algo = request.algo or (getattr(options, request.algo_option) if request.algo_option else "auto")
    return Policy(
        device=device,
        determinism=options.determinism,
        fp32_precision=options.fp32_precision,
        precision=request.precision or options.precision,
        algo=algo,
        workspace_limit=options.workspace_limit,
        accuracy=request.accuracy or options.accuracy,
    )


class Intercept(NamedTuple):
    """Stands in for ``backend=`` to stop a call before it runs, with what is ``wanted``: 'problem', 'explain' or 'plan'."""

    wanted: str
    backend: str | None


class Watch(NamedTuple):
    """Stands in for ``backend=`` to compute a call otherwise: ``look(request, views, out_views, words)`` gives its results."""

    look: Callable[[Request, list[View], list[View], tuple[int, ...]], Any]
    backend: str | None = None


class Intercepted(BaseException):
    """Carries what an intercepted call was asked for."""


def intercept(wanted: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    backend = kwargs.pop("backend", None)
    check_computes(function)
    try:
        function(*args, **kwargs, backend=Intercept(wanted, backend))
    except Intercepted as caught:
        return caught.args[0]
    raise TypeError(no_operation(function))


def no_operation(given: Any) -> str:
    """The error where a function was expected: it may be the array that calling it gave."""
    if hasattr(given, "shape"):
        return "expected one of numbadnn's compute functions, then its arguments, got an array, the result of a call"
    hint = f": the function itself, numbadnn.{given}" if isinstance(given, str) and given in FAMILY else ""
    return f"expected one of numbadnn's compute functions, got {given!r}{hint}"


def check_computes(function: Any) -> None:
    """TypeError for what is no function that takes ``backend=``."""
    if not _takes_backend(function) or isinstance(function, type):  # RNNBlock: what it computes is its methods'
        raise TypeError(no_operation(function))


def _takes_backend(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # nothing to call, or compiled elsewhere
        return False
    return any(p.name == "backend" or p.kind is p.VAR_KEYWORD for p in parameters)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> explanation.Explanation:
    """Every candidate for ``function(*args, **kwargs)``, with reasons; computes nothing.

    An algorithm ``time_*`` is timed by cuDNN for it, once a process, as the call does.

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
    summation: Summation
    accuracy: str
    scratch_bytes: int


def last_call() -> LastCall | None:
    """Which implementation computed this thread's last call, and its numbers; None before the first."""
    (p,) = thread.last
    if p is None:
        return None
    e, c = p.executable, p.choice
    return LastCall(
        c.impl.name, c.impl.backend, str(p.problem), c.decided_by, c.fallback, e.determinism, e.arithmetic,
        e.workspace_bytes, e.facts, c.refusals, e.summation, e.accuracy, e.scratch_bytes,
    )  # fmt: skip
