"""The same numbers by another operation: a convolution as one of its gradients, a gradient as a convolution.

A convolution with stride 1 is the gradient with respect to the image of another one, and the other way round: filters and
images change places with their channels, the filter is turned, padding that was 'full' becomes 'valid'. And any convolution
is the gradient with respect to the filters of one whose images are the channels: taps become output positions, stride becomes
dilation. Theano chose between these by ``direction_hint`` ('forward', 'bprop weights', 'bprop inputs') and by what it knew of the
shapes; here each is an implementation that stands on another (``routed``). Nothing is copied: a route is other strides.
Source: docs/explanation/semantics.md#theanos-cudnn-functions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numbadnn.problem import Policy, Spec, normalised_strides
from numbadnn.problems.conv import OPERATIONS, ConvProblem
from numbadnn.registry import Executable, Impl


@dataclass(frozen=True, slots=True)
class Route:
    """Another problem with the same result; ``offsets``: bytes from the addresses of inputs and output to those of its own.

    ``reason``: why there is none.
    """

    problem: ConvProblem | None
    offsets: tuple[int, int, int] = (0, 0, 0)
    reason: str = ""


def swapped(spec: Spec) -> Spec:
    """The view with its first two axes exchanged."""
    (a, b, *shape), (s, t, *strides) = spec.shape, spec.strides
    turned_shape = (b, a, *shape)
    return dataclasses.replace(spec, shape=turned_shape, strides=normalised_strides(turned_shape, (t, s, *strides)))


def turned(spec: Spec) -> tuple[Spec, int]:
    """The view with its spatial axes reversed, and the bytes from the array's address to the view's."""
    strides = (*spec.strides[:2], *(-s for s in spec.strides[2:]))
    last = sum((n - 1) * s for n, s in zip(spec.shape[2:], spec.strides[2:], strict=True))
    offset = last * spec.itemsize
    return dataclasses.replace(spec, strides=strides, aligned=spec.aligned and offset % 16 == 0), offset


def by_inputs(problem: ConvProblem) -> Route:
    """A convolution as the gradient of an image, or that gradient as a convolution: stride 1 and one group.

    y[p] = sum over r of x[p + r*d - top] * w[R-1-r] and x[h] = sum over r of y[h + top - r*d] * w[R-1-r] read the same when
    the filter is turned and top is (R-1)*d - top.
    """
    reason = _unfit(problem)
    if not reason and set(problem.stride) != {1}:
        reason = "needs stride 1: what a stride leaves out no convolution puts back"
    window = [(k - 1) * d for k, d in zip(problem.taps, problem.dilation, strict=True)]
    if not reason and any(max(pair) > most for pair, most in zip(problem.padding, window, strict=True)):
        reason = "needs padding narrower than the window, 'full' at most"
    if reason:
        return Route(None, reason=reason)
    padding = tuple((most - low, most - high) for (low, high), most in zip(problem.padding, window, strict=True))
    other = _named(problem, "grad_inputs" if problem.direction == "forward" else "forward")
    return Route(
        dataclasses.replace(
            problem, op=other, x=problem.y, w=swapped(problem.w), y=problem.x, padding=padding, flip=not problem.flip
        )
    )


def by_weights(problem: ConvProblem) -> Route:
    """A convolution as the gradient of filters, or that gradient as a convolution: one group; images and channels change places.

    y[n,k,p] = sum over c,r of x[n, c, p*stride + r*d - top] * w[k, c, r] is the gradient of filters with taps p, the filters w
    being its output's gradient, one image a channel. Rows of x that no window reaches are left out.
    """
    reason = _unfit(problem)
    if reason:
        return Route(None, reason=reason)
    forward = problem.direction == "forward"
    w, offset = turned(problem.w) if problem.flip else (problem.w, 0)
    x, padding = _reached(problem)
    if x is None:
        return Route(None, reason="reads nothing but padding along an axis")
    images, positions, filters = swapped(x), swapped(problem.y), swapped(w)
    other = dataclasses.replace(
        problem,
        op=_named(problem, "grad_weights" if forward else "forward"),
        x=images,
        w=positions,
        y=filters,
        padding=padding,
        stride=problem.dilation,
        dilation=problem.stride,
        flip=False,
    )
    return Route(other, (0, offset, 0) if forward else (0, 0, offset))


def _unfit(problem: ConvProblem) -> str:
    if problem.unshared:
        return "needs one filter for all positions (not unshared)"
    if problem.groups != 1:
        return "needs one group: filters and images of several do not exchange their roles"
    return ""


def _named(problem: ConvProblem, direction: str) -> str:
    return next(
        op for op, o in OPERATIONS.items() if o.direction == direction and o.axes == problem.axes and not o.arrangement
    )


def _reached(problem: ConvProblem) -> tuple[Spec | None, tuple[tuple[int, int], ...]]:
    """The image without the last rows and columns that no window reaches, and its padding."""
    shape, padding = list(problem.x.shape), []
    for axis, (low, high) in enumerate(problem.padding):
        k, d, s = problem.taps[axis], problem.dilation[axis], problem.stride[axis]
        n, o = problem.x.shape[2 + axis], problem.y.shape[2 + axis]
        beyond = n + low + high - ((k - 1) * d + (o - 1) * s + 1)
        beyond = beyond if beyond >= d else 0  # fewer do not make one more tap
        padding.append((low, high - min(high, beyond)))
        shape[2 + axis] = n - max(0, beyond - high)
    if min(shape[2:]) < 1:
        return None, ()
    strides = normalised_strides(tuple(shape), problem.x.strides)
    return dataclasses.replace(problem.x, shape=tuple(shape), strides=strides), tuple(padding)


#: how a route is called -> (the directions it starts from, what finds it)
ROUTES: dict[str, tuple[tuple[str, ...], Callable[[ConvProblem], Route]]] = {
    "by_grad_inputs": (("forward",), by_inputs),
    "by_grad_weights": (("forward",), by_weights),
    "by_forward": (
        ("grad_inputs", "grad_weights"),
        lambda p: (by_inputs if p.direction == "grad_inputs" else by_weights)(p),
    ),
}


#: a second: added to the estimate of every route
DETOUR_US = 1e6


def without_detour(name: str, us: float) -> float:
    """An estimate of the implementation ``name`` without what keeps a route behind all that go straight.

    >>> without_detour("cudnn.graph_by_forward", 1e6 + 20), without_detour("cudnn.graph", 2e6)
    (20.0, 2000000.0)
    """
    return us - DETOUR_US if us >= DETOUR_US and name.endswith(tuple(ROUTES)) else us


def routed(impls: list[Impl]) -> list[Impl]:
    """For each route an implementation that stands on another, named after it: ``cudnn.graph`` -> ``cudnn.graph_by_forward``."""
    by_op = {impl.op: impl for impl in impls}
    found = []
    for op, impl in by_op.items():
        operation = OPERATIONS[op]
        for name, (directions, find) in ROUTES.items():
            if operation.direction in directions and not operation.arrangement:
                found.append(_standing_on(by_op, impl, name, find))
    return found


def _standing_on(by_op: dict[str, Impl], impl: Impl, name: str, find: Callable[[ConvProblem], Route]) -> Impl:
    def supports(problem: ConvProblem, policy: Policy) -> str:
        route = find(problem)
        if route.problem is None:
            return route.reason
        if impl.backend != "cudnn" and _other_zeros(problem, route.problem):
            return "needs no padding: its zeros are terms of a convolution, and none of a gradient, if a filter is infinite"
        return by_op[route.problem.op].supports(route.problem, policy)

    def plan(problem: ConvProblem, policy: Policy, config: Any) -> Executable:
        route = find(problem)
        assert route.problem is not None
        made = by_op[route.problem.op].plan(route.problem, policy, config)
        return _moved(made, route) if any(route.offsets) else dataclasses.replace(made, facts=_facts(made, route))

    def rank(problem: ConvProblem) -> float:
        """That of the problem it becomes, behind all that go straight: measurements tell when a detour is faster."""
        route = find(problem)
        return DETOUR_US + by_op[route.problem.op].rank(route.problem) if route.problem else math.inf

    def passed_on(field: str, missing: Callable[[], Any]) -> Any:
        """What the implementation of the problem that it becomes answers, ``missing()`` where there is none to ask."""

        def call(problem: ConvProblem, *rest: Any) -> Any:
            route = find(problem)
            inner = getattr(by_op[route.problem.op], field) if route.problem else None
            return inner(route.problem, *rest) if inner else missing()

        return call if getattr(impl, field) else None

    return Impl(
        impl.op,
        impl.backend,
        f"{impl.name}_{name}",
        supports,
        plan,
        rank,
        impl.arithmetic,
        impl.determinism,
        options=passed_on("options", list),
        space=passed_on("space", lambda: [None]),
        restore=passed_on("restore", lambda: None),
        foretell=passed_on("foretell", lambda: None),
        foretold_least=passed_on("foretold_least", lambda: math.inf),
        host_us=impl.host_us + 8.0,
    )


def _other_zeros(one: ConvProblem, other: ConvProblem) -> bool:
    """Whether one of two multiplies filters by padding where the other, the gradient of an image, has no term."""
    padded = {p.direction: any(map(any, p.padding)) for p in (one, other)}
    return "grad_inputs" in padded and padded.get("forward", False)


def _facts(made: Executable, route: Route) -> dict[str, Any]:
    return {"as": str(route.problem), **made.facts}


def _moved(made: Executable, route: Route) -> Executable:
    """The same with the addresses that the views begin at."""
    first, second, out = route.offsets
    inner = made.direct

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: Any) -> None:
        made.run((inputs[0] + first, inputs[1] + second), (outputs[0] + out,), workspace, stream)

    def direct(stream: int, a: int, b: int, c: int, *workspace: int) -> None:
        assert inner is not None
        inner(stream, a + first, b + second, c + out, *workspace)

    return dataclasses.replace(made, run=run, direct=direct if inner is not None else None, facts=_facts(made, route))
