"""softmax and its gradient: the public functions.

``problems/softmax.py`` holds what they ask for.
"""

from __future__ import annotations

from typing import Any

from numbadnn import dispatch
from numbadnn.arrays import View
from numbadnn.call.operands import input_spec, output_spec, result_dtype
from numbadnn.dispatch import Request
from numbadnn.problems.softmax import SoftmaxProblem, check_choices


def _check_rank(name: str, view: View) -> None:
    if len(view.shape) < 2:
        raise ValueError(f"{name}: expected at least 2 dimensions, got {len(view.shape)} (shape {view.shape})")


def _one(out_views: list[View]) -> View | None:
    if len(out_views) > 1:
        raise ValueError(f"out: expected one array, got a tuple of {len(out_views)}")
    return out_views[0] if out_views else None


@dispatch.operation("x")
def _build_softmax(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    (x,) = views
    check_choices(*params)
    _check_rank("x", x)
    y = output_spec(x.shape, x.dtype, x, _one(out_views))
    return Request(SoftmaxProblem("softmax", y, x=x.spec(), algo=params[0], mode=params[1]))


@dispatch.operation("dy", "sm")
def _build_softmax_grad(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    dy, sm = views
    check_choices(*params)
    _check_rank("dy", dy)
    if sm.shape != dy.shape:
        raise ValueError(f"sm: expected dy's shape {dy.shape}, got {sm.shape}")
    if sm.dtype != dy.dtype:
        raise TypeError(f"sm: expected dy's dtype {dy.dtype}, got {sm.dtype}")
    dtype = result_dtype(views)
    dx = output_spec(dy.shape, dtype, dy, _one(out_views))
    y = input_spec(sm, dtype)
    return Request(SoftmaxProblem("softmax_grad", y, dy=dy.spec(), dx=dx, algo=params[0], mode=params[1]))


def softmax(
    x: Any,
    algo: str = "accurate",
    mode: str = "channel",
    *,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Softmax of an array of rank >= 2: ``y = exp(x - max) / sum(exp(x - max))``, or its logarithm for ``algo="log"``.

    ``mode="channel"`` normalises over axis 1 at every other position, ``"instance"`` over all axes but 0. ``algo``
    accurate and log subtract the maximum; fast may. A row with NaN or +inf, or of nothing but -inf, gives NaN. Result:
    x's shape, dtype (float16, bfloat16, float32, float64) and library. Source: docs/explanation/semantics.md#softmax.

    Raises ValueError for a rank below 2 or an unknown algo or mode, TypeError for other dtypes.

    >>> import numpy as np, numbadnn
    >>> numbadnn.softmax(np.zeros((1, 4), "float32"))
    array([[0.25, 0.25, 0.25, 0.25]], dtype=float32)
    """
    return dispatch.call1(_build_softmax, x, (algo, mode), backend, out, stream)


def softmax_grad(
    dy: Any,
    sm: Any,
    algo: str = "accurate",
    mode: str = "channel",
    *,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of ``softmax`` from its *output* sm: ``dx = sm * (dy - sum(dy * sm))``; log: ``dy - exp(sm) * sum(dy)``.

    dy and sm have one shape and dtype; algo and mode are those of the forward call. Errors as softmax, and ValueError or
    TypeError where dy and sm differ. Source: docs/explanation/semantics.md#softmax.

    >>> import numpy as np, numbadnn
    >>> numbadnn.softmax_grad(np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]]))
    array([[ 0.25, -0.25]])
    """
    return dispatch.call2(_build_softmax_grad, dy, sm, (algo, mode), backend, out, stream)
