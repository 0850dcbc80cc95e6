"""softmax and its gradient: the public functions.

``problems/softmax.py`` holds what they ask for.
"""

from __future__ import annotations

from typing import Any, Never

from numbadnn import config, dispatch
from numbadnn.arrays import View
from numbadnn.call.operands import input_spec, output_spec, result_dtype
from numbadnn.call.seen import Axes, Seen, merged, seen_spec
from numbadnn.dispatch import Request
from numbadnn.ops.habits import refuse
from numbadnn.option_types import Backend, SoftmaxAlgo, SoftmaxMode
from numbadnn.parameters import whole
from numbadnn.problem import FIXED_LEVELS, Spec
from numbadnn.problems.softmax import SoftmaxProblem, check_choices


def _one(out_views: list[View]) -> View | None:
    if len(out_views) > 1:
        raise ValueError(f"out: expected one array, got a tuple of {len(out_views)}")
    return out_views[0] if out_views else None


@dispatch.operation("x")
def _build_softmax(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    (x,), (algo, mode, axis) = views, params
    check_choices(algo, mode)
    axes = _seen_axes(x, mode, axis)
    y = output_spec(x.shape, x.dtype, x, _one(out_views))
    return _request("softmax", {"x": x.spec(), "y": y}, algo, mode, axes)


def _seen_axes(x: View, mode: str, axis: Any) -> tuple[int, ...]:
    """The axes before ``axis``, itself and those after it, in the order in which the problem sees them; () for their own."""
    rank = len(x.shape)
    if axis is None:
        if rank < 2:
            raise ValueError(
                f"x: expected at least 2 dimensions, got {rank} (shape {x.shape}); axis={rank - 1} takes a vector"
            )
        return ()
    if mode != "channel":
        raise ValueError(f"axis: expected None beside mode={mode!r}, got {axis!r}")
    try:
        number = whole(axis)
    except TypeError:
        raise TypeError(f"axis: expected an integer or None, got {axis!r}") from None
    if not -rank <= number < rank:
        raise ValueError(f"axis: expected an integer from {-rank} to {rank - 1} for shape {x.shape}, got {axis!r}")
    return (number % rank,)


def _request(op: str, specs: dict[str, Spec], algo: str, mode: str, axes: tuple[int, ...]) -> Request:
    """The problem of these operands, the last of which is computed, with the axis named as channels."""
    if not axes or axes == (1,):
        return Request(SoftmaxProblem(op, **specs, algo=algo, mode=mode))
    (axis,), operands = axes, tuple(specs.values())
    # bits that may not depend on the batch follow from how the axes of one image lie
    alone = config.current().determinism in FIXED_LEVELS and axis > 0
    before: Axes = ((0,), *merged(tuple(range(1, axis)), operands)) if alone else merged(tuple(range(axis)), operands)
    after = merged(tuple(range(axis + 1, len(operands[0].shape))), operands)
    # (before, channels, after), with further axes after the channels
    seen = (before[0] if before else (), (axis,), *before[1:], *after)
    problem = SoftmaxProblem(op, **{n: seen_spec(s, seen) for n, s in specs.items()}, algo=algo, mode=mode)
    return Request(problem, seen=Seen((seen,) * (len(operands) - 1), (seen,), operands[-1:]))


@dispatch.operation("dy", "sm")
def _build_softmax_grad(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    (dy, sm), (algo, mode, axis) = views, params
    check_choices(algo, mode)
    axes = _seen_axes(dy, mode, axis)
    if sm.shape != dy.shape:
        raise ValueError(f"sm: expected dy's shape {dy.shape}, got {sm.shape}")
    if sm.dtype != dy.dtype:
        raise TypeError(f"sm: expected dy's dtype {dy.dtype}, got {sm.dtype}")
    dtype = result_dtype(views)
    dx = output_spec(dy.shape, dtype, dy, _one(out_views))
    return _request("softmax_grad", {"dy": dy.spec(), "y": input_spec(sm, dtype), "dx": dx}, algo, mode, axes)


def softmax(
    x: Any,
    algo: SoftmaxAlgo = "accurate",
    mode: SoftmaxMode = "channel",
    *,
    axis: int | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Softmax of an array of rank >= 2: ``y = exp(x - max) / sum(exp(x - max))``, or its logarithm for ``algo="log"``.

    ``mode="channel"`` normalises over axis 1 at every other position, ``"instance"`` over all axes but 0; ``axis`` over that
    axis instead, -1 the last, in an array of any rank: the problem that runs sees it as axis 1, without a copy. ``algo``
    accurate and log subtract the maximum; fast may. A row with NaN or +inf, or of nothing but -inf, gives NaN. Result:
    x's shape, dtype (float16, bfloat16, float32, float64) and library. Source: docs/explanation/semantics.md#softmax.

    Raises ValueError for a rank below 2 without ``axis``, an axis that x does not have or an unknown algo or mode, TypeError for
    other dtypes.

    >>> import numpy as np, numbadnn
    >>> numbadnn.softmax(np.zeros((1, 4), "float32"))
    array([[0.25, 0.25, 0.25, 0.25]], dtype=float32)
    >>> numbadnn.softmax(np.zeros((2, 3, 2)), axis=-1)[0, 0]
    array([0.5, 0.5])
    """
    if unknown:
        refuse(unknown)
    return dispatch.call1(_build_softmax, x, (algo, mode, axis), backend, out, stream)


def softmax_grad(
    dy: Any,
    sm: Any,
    algo: SoftmaxAlgo = "accurate",
    mode: SoftmaxMode = "channel",
    *,
    axis: int | None = None,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``softmax`` from its *output* sm: ``dx = sm * (dy - sum(dy * sm))``; log: ``dy - exp(sm) * sum(dy)``.

    dy and sm have one shape and dtype; algo, mode and axis are those of the forward call. Errors as softmax, and ValueError or
    TypeError where dy and sm differ. Source: docs/explanation/semantics.md#softmax.

    >>> import numpy as np, numbadnn
    >>> numbadnn.softmax_grad(np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]]))
    array([[ 0.25, -0.25]])
    """
    if unknown:
        refuse(unknown)
    return dispatch.call2(_build_softmax_grad, dy, sm, (algo, mode, axis), backend, out, stream)
