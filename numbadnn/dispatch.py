"""The life of a call: a key, a look-up, a launch; everything else happens once per distinct problem.

A call probes the arrays (address and a cheap signature each), finds this thread's ``Plan`` under the signatures and
launches it. A miss makes the views, builds and validates the Problem, chooses an implementation (``select``), plans and
stores. The *choice* is shared by the process; the Plan with its buffers and handles belongs to one thread.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from numbadnn import config, operands, select
from numbadnn.arrays import LIBRARIES, PROBES, View, library_of, view_of
from numbadnn.errors import CaptureError, NotSupportedError, NumbaDNNError
from numbadnn.problem import Policy, channels_last_strides, contiguous_strides
from numbadnn.registry import Executable, Impl

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


class _Thread(threading.local):
    def __init__(self) -> None:
        self.plans: dict[Any, Plan] = {}
        self.last: list[Plan | None] = [None]  # a list, so that plans of the thread can hold it
        self.misses = 0


_thread = _Thread()
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
            plan = _thread.plans.get((build, params, backend, options, signature))
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
            plan = _thread.plans.get((build, params, backend, options, signature, signature_b))
        except _COLD:
            plan = None
        if plan is not None and plan.quick is not None:
            return plan.quick(address, address_b)
    return call_any(build, (a, b), params, backend, out, stream)


def call_any(
    build: Callable[..., Request],
    arrays: tuple[Any, ...],
    params: tuple[Any, ...],
    backend: str | None,
    out: Any,
    stream: Any,
) -> Any:
    """Compute one operation: ``build(views, out_views, params)`` makes its problem when it is not known yet."""
    options = _using() or config.environment or config.from_environment()
    try:
        plan, addresses = _known(build, arrays, params, backend, out, options)
    except _COLD:
        plan = None
    if plan is None:
        return _miss(build, arrays, params, backend, out, stream, options)
    return plan.launch(arrays, addresses, out, stream)


#: what looking a call up may raise: a type seen for the first time, an unhashable parameter, an array that its library
#: refuses; the cold path finds out which, and raises with the argument's name
_COLD = (KeyError, TypeError, ValueError, AttributeError, RuntimeError)


def _known(
    build: Any, arrays: tuple[Any, ...], params: Any, backend: Any, out: Any, options: Any
) -> tuple[Plan | None, list[Any]]:
    """This thread's plan for any arrays and ``out``, or None; the addresses of the inputs, then of ``out``."""
    outs = () if out is None else out if type(out) is tuple else (out,)
    probed = [PROBES[type(a)](a) for a in (*arrays, *outs)]
    plan = _thread.plans.get((build, params, backend, options, *(p[1] for p in probed)))
    if plan is not None and plan.careful:
        for array in (*arrays, *outs):
            check = LIBRARIES[type(array)].check
            if check is not None:
                check(array)
    return plan, [p[0] for p in probed]


class Plan:
    """One problem ready to run in this thread: ``plan(*arrays, out=None, stream=None, workspace=None)``.

    The arrays must have the shapes, strides, dtypes, device and 16-byte alignment it was made for, else ValueError.
    Holds no array. ``problem``, ``impl``, ``workspace_bytes`` and ``facts`` say what it is.
    """

    __slots__ = (
        "_allocate",
        "_checks",
        "_finish",
        "_library",
        "_run",
        "_signatures",
        "_thread_id",
        "_verbose",
        "careful",
        "choice",
        "device",
        "executable",
        "policy",
        "problem",
        "quick",
        "workspace_bytes",
    )

    def __init__(
        self, problem: Any, policy: Policy, choice: select.Choice, executable: Executable, views: list[View]
    ) -> None:
        self.problem, self.policy, self.choice, self.executable = problem, policy, choice, executable
        self.device, self.workspace_bytes = policy.device, executable.workspace_bytes
        self._run = executable.run
        self._library = views[0].library
        self._allocate = tuple(self._library.allocator(s, policy.device) for s in problem.outputs)
        self._finish = self._library.finish
        self._thread_id = threading.get_ident()
        self._signatures: tuple[Any, ...] = ()
        self._verbose = config.current().verbose
        self._checks = operands.overlap_checker(problem, views)
        #: arrays that are not packed are looked at again by their library in each call
        self.careful = any(v.library.check and v.strides not in _packed(v.shape) for v in views)
        self.quick = None if self.careful else _quick(self)

    @property
    def impl(self) -> Impl:
        return self.choice.impl

    @property
    def facts(self) -> dict[str, Any]:
        """Engine or configuration, and every copy that is paid."""
        return self.executable.facts

    def launch(self, arrays: tuple[Any, ...], addresses: list[Any], out: Any, stream: Any, workspace: int = 0) -> Any:
        """The warm call: allocate, launch, return. ``addresses`` are the inputs', then those of ``out``."""
        library = self._library
        if stream is not None:
            return self._launch_on(stream, arrays, addresses, out, workspace)
        if out is None:
            results = tuple([make() for make in self._allocate])
            targets = tuple([library.address(r) for r in results])
        else:
            results = out if type(out) is tuple else (out,)
            targets = tuple(addresses[-len(results) :])
            del addresses[-len(results) :]
            self._checks(addresses, targets)
        if self.device < 0:
            self._run(tuple(addresses), targets, None, None)
        else:
            raw, owner = library.current_stream(self.device), None
            if self.workspace_bytes and not workspace:
                owner, workspace = library.scratch(self.workspace_bytes, self.device, raw)
            self._run(tuple(addresses), targets, workspace, raw)
            del owner  # given back in the order of the stream, after what was just enqueued
        _thread.last[0] = self
        if self._verbose != "none":
            print(f"numbadnn: {self.choice.impl.name} {self.problem} ({self.choice.decided_by})", flush=True)
        if self._finish is not None and out is None:
            results = tuple([self._finish(r) for r in results])
        return results[0] if len(results) == 1 else results

    def _launch_on(self, stream: Any, arrays: tuple[Any, ...], addresses: list[Any], out: Any, workspace: int) -> Any:
        """Run on the caller's stream: wait for the data there, and tell the library that its memory is in use."""
        if self.device < 0:
            raise ValueError("stream: expected None for arrays on the CPU")
        from numbadnn.arrays import streams
        from numbadnn.kernels._context import ensure_context

        raw, library = streams.handle(stream), self._library
        current = library.current_stream(self.device)
        if raw == current:
            return self.launch(arrays, addresses, out, None, workspace)
        outs = () if out is None else out if type(out) is tuple else (out,)
        with ensure_context(self.device):
            capturing = streams.is_capturing(raw)  # there an event of a stream outside the capture would spoil it
            if not capturing:
                streams.wait(raw, current, self.device)
            with library.allocating_on(raw, self.device):
                result = self.launch(arrays, addresses, out, None, workspace)
            if not capturing:
                for array in (*arrays, *outs):
                    library_of(array).record(array, raw, self.device)
        return result

    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None, workspace: Any = None) -> Any:
        if threading.get_ident() != self._thread_id:
            raise NumbaDNNError("this Plan belongs to the thread that made it; make one in each thread")
        outs = () if out is None else out if isinstance(out, tuple) else (out,)
        probed = [library_of(a).probe(a) for a in (*arrays, *outs)]
        signatures = tuple(signature for _, signature in probed)
        n = len(arrays)
        if signatures[:n] != self._signatures[:n] or (outs and not self._fits(outs)):
            raise ValueError(f"this Plan was made for {self.problem}; got arrays {signatures}")
        space = 0
        if workspace is not None:
            space = _workspace_address(workspace, self.workspace_bytes)
        return self.launch(arrays, [address for address, _ in probed], out, stream, space)

    def _fits(self, outs: tuple[Any, ...]) -> bool:
        specs = [view_of(o, "out").spec() for o in outs]
        return specs == list(self.problem.outputs)


def _packed(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The strides of a packed array of this shape, C order and channels last."""
    return contiguous_strides(shape), channels_last_strides(shape) if len(shape) > 2 else ()


def _quick(plan: Plan) -> Callable[..., Any] | None:
    """``launch`` for the common case, everything looked up beforehand: one new output on the GPU, the current stream."""
    executable, library, device = plan.executable, plan._library, plan.device
    direct, last = executable.direct, _thread.last
    if device < 0 or len(plan._allocate) != 1 or plan._verbose != "none" or library.finish or direct is None:
        return None
    (make,), address_of, stream = plan._allocate, library.address_on_gpu or library.address, library.current_stream
    nbytes, scratch = executable.workspace_bytes, library.scratch

    def one(a: int) -> Any:
        result = make()
        direct(stream(device), a, address_of(result))
        last[0] = plan
        return result

    def two(a: int, b: int) -> Any:
        result = make()
        direct(stream(device), a, b, address_of(result))
        last[0] = plan
        return result

    def with_workspace(*addresses: int) -> Any:
        result, raw = make(), stream(device)
        space, workspace = scratch(nbytes, device, raw)
        direct(raw, *addresses, address_of(result), workspace)
        last[0] = plan
        return result

    choices: dict[int, Callable[..., Any]] = {1: one, 2: two}
    return with_workspace if nbytes else choices.get(len(plan.problem.inputs))


def _workspace_address(workspace: Any, needed: int) -> int:
    from numbadnn.errors import WorkspaceError

    view = library_of(workspace, "workspace").view(workspace)
    itemsize = getattr(workspace, "itemsize", 1)
    have = itemsize if isinstance(itemsize, int) else 1
    for n in view.shape:
        have *= n
    if have < needed:
        raise WorkspaceError(f"workspace: expected at least {needed} bytes, got {have}")
    return int(view.address)


def _miss(
    build: Callable[..., Request],
    arrays: tuple[Any, ...],
    params: tuple[Any, ...],
    backend: Any,
    out: Any,
    stream: Any,
    options: config.Options,
) -> Any:
    """The cold path of a call: validate, choose, plan, store; then launch like a warm call."""
    names = ARGUMENTS[build]
    intercept = backend if isinstance(backend, Intercept) else None
    if intercept:
        backend = intercept.backend
    views = [operands.named_view(a, n) for a, n in zip(arrays, names, strict=True)]
    outs = () if out is None else out if isinstance(out, tuple) else (out,)
    out_views = operands.check_out(outs, views)
    operands.check_devices(views, names)
    request = build(views, out_views, params)
    policy = _policy(request, views[0].device, options)
    if intercept and intercept.wanted == "explain":
        raise Intercepted(select.explain(request.problem, policy, options, backend))
    plan = make_plan(request.problem, policy, options, backend, views, stream)
    probed = [library_of(a).probe(a) for a in (*arrays, *outs)]
    plan._signatures = tuple(signature for _, signature in probed)
    if intercept:
        raise Intercepted(plan)
    _remember(_thread.plans, (build, params, backend, options, *plan._signatures), plan)
    return plan.launch(arrays, [address for address, _ in probed], out, stream)


def make_plan(
    problem: Any, policy: Policy, options: config.Options, backend: str | None, views: list[View], stream: Any = None
) -> Plan:
    """Choose an implementation for a validated problem and make it ready in this thread."""
    _thread.misses += 1
    if policy.device < 0:
        choice = _choice(problem, policy, options, backend)
        return Plan(problem, policy, choice, _executable(choice, problem, policy, views), views)
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
        choice = _choice(problem, policy, options, backend)
        return Plan(problem, policy, choice, _executable(choice, problem, policy, views), views)


def _executable(choice: select.Choice, problem: Any, policy: Policy, views: list[View]) -> Executable:
    if choice.impl is operands.EMPTY:
        executable = operands.plan_empty(problem, policy)
    else:
        executable = choice.impl.plan(problem, policy, None)
    return operands.with_casts(executable, problem, views, policy.device)


def _choice(problem: Any, policy: Policy, options: config.Options, backend: str | None) -> select.Choice:
    """The process-wide choice for a problem; a refusal is remembered like a choice."""
    if any(s.size == 0 for s in (*problem.inputs, *problem.outputs)):
        return select.Choice(operands.EMPTY, "empty")
    key = (problem, policy, options, backend)
    with _choices_lock:
        known = _choices.get(key)
        if known is not None:
            _choices.move_to_end(key)
    if known is None:
        try:
            known = select.choose(problem, policy, options, backend)
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
    """Stands in for ``backend=`` to stop a call after planning: ``wanted`` is 'explain' or 'plan'."""

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


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> select.Explanation:
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
    (p,) = _thread.last
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
    return CacheInfo(len(_thread.plans), MAX_PLANS, len(_choices), MAX_CHOICES, _thread.misses)


def clear_caches() -> None:
    """Forget this thread's plans and the process's choices."""
    _thread.plans.clear()
    _thread.last[0] = None
    with _choices_lock:
        _choices.clear()


def _after_fork() -> None:
    global _forked_after_cuda, _choices_lock
    _forked_after_cuda = _cuda_used
    _choices_lock = threading.Lock()
    if _cuda_used:  # they hold handles of the parent's CUDA context, which must not be destroyed here
        _left_behind.extend(_thread.plans.values())
    _thread.plans.clear()


os.register_at_fork(after_in_child=_after_fork)
