"""Dropout and its gradient: the public functions.

``problems/dropout.py`` holds what they ask for.
"""

from __future__ import annotations

import operator
from typing import Any, Never

from numbadnn import dispatch
from numbadnn.arrays import View
from numbadnn.call.operands import named_view, output_spec
from numbadnn.dispatch import Request
from numbadnn.errors import NotSupportedError
from numbadnn.ops.habits import refuse
from numbadnn.option_types import Backend
from numbadnn.parameters import real
from numbadnn.problems.dropout import SEED, DropoutProblem, DropoutState, check_probability

_WRAP = 1 << 64


def _integer(name: str, value: Any) -> int:
    """A number of 64 bits, given as an unsigned or a signed one, as the signed one."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {value!r}") from None
    low = 0 if name == "offset" else -(_WRAP >> 1)
    high = (_WRAP >> 1 if name == "offset" else _WRAP) - 1
    if not low <= number <= high:
        raise ValueError(f"{name}: expected an integer from {low} to {high}, got {value!r}")
    return number - _WRAP if number >= _WRAP >> 1 else number


def _build(op: str, view: View, out_views: list[View], params: tuple[Any, ...]) -> Request:
    if len(out_views) > 1:
        raise ValueError(f"out: expected one array, got a tuple of {len(out_views)}")
    output = output_spec(view.shape, view.dtype, view, out_views[0] if out_views else None)
    p, generator, *shape = params
    if shape and view.shape != shape[0]:
        raise ValueError(f"dy: expected shape {shape[0]}, that of the forward call, got {view.shape}")
    return Request(DropoutProblem(op, view.spec(), output, check_probability(p), generator))


@dispatch.operation("x")
def _build_dropout(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    return _build("dropout", views[0], out_views, params)


@dispatch.operation("dy")
def _build_dropout_grad(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    return _build("dropout_grad", views[0], out_views, params)


def _generator(backend: Any, offset: int) -> str:
    """Philox, but where the call itself names cuDNN, which has random numbers of its own."""
    name = getattr(backend, "backend", backend)  # an Intercept holds it
    if not isinstance(name, str) or name != "cudnn":
        return "philox"
    if offset:
        raise NotSupportedError(f"offset: cuDNN's dropout begins its random numbers at 0 only, got {offset}", ())
    return "cudnn"


def dropout(
    x: Any,
    dropout: float = 0.0,
    seed: int = SEED,
    *,
    offset: int = 0,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Zero each element with probability p = ``dropout``: (y, state) with ``y = x * mask / (1 - p)``.

    The mask follows from ``seed`` (64 bits) and the element's number in C order plus ``offset``, by Philox4x32-10 (Salmon
    et al. 2011): the same on every backend, for every stride and dtype. ``state`` is for ``dropout_grad``; it is small, holds
    no mask and may be pickled. p = 1 gives zeros. y has the shape, dtype and library of x. ``backend="cudnn"`` runs cuDNN's
    own dropout, whose bits are others. Source: docs/explanation/semantics.md#dropout.

    Raises ValueError for p outside [0, 1], a seed of more than 64 bits or a negative offset, TypeError for what is not a number
    and for other dtypes, NotSupportedError for cuDNN's own with an offset.

    >>> import numpy as np, numbadnn
    >>> y, state = numbadnn.dropout(np.ones(8, "float32"), 0.5)
    >>> sorted(set(y.tolist()))
    [0.0, 2.0]
    """
    if unknown:
        refuse(unknown)
    if type(seed) is not int or not 0 <= seed < 1 << 63:
        seed = _integer("seed", seed)
    if type(offset) is not int or not 0 <= offset < 1 << 63:
        offset = _integer("offset", offset)
    generator = "philox" if backend is None else _generator(backend, offset)
    y = dispatch.call_any(_build_dropout, (x,), (dropout, generator), backend, out, stream, (seed, offset))
    try:
        shape = x.shape
    except AttributeError:  # what comes by DLPack may have none
        shape = named_view(x, "x").shape
    return y, DropoutState(real(dropout), seed, offset, tuple(shape), generator)


def dropout_grad(
    dy: Any,
    state: DropoutState,
    *,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``dropout``: ``dx = dy * mask / (1 - p)``, the mask made again from the forward call's state.

    dy has the shape of that call's x; any of the dtypes, which is the result's. After a forward call with
    ``backend="cudnn"`` the gradient is cuDNN's too. Raises ValueError for another shape, TypeError for what is no state.
    Source: docs/explanation/semantics.md#dropout.

    >>> import numpy as np, numbadnn
    >>> y, state = numbadnn.dropout(np.ones(8, "float32"), 0.5)
    >>> np.array_equal(numbadnn.dropout_grad(np.ones(8, "float32"), state), y)
    True
    """
    if unknown:
        refuse(unknown)
    if type(state) is not DropoutState:
        raise TypeError(f"state: expected what dropout returned, got {state!r}")
    p, seed, offset, shape, generator = state
    params = (p, generator, shape)
    if generator == "cudnn" and backend is None:
        backend = "cudnn"
    return dispatch.call_any(_build_dropout_grad, (dy,), params, backend, out, stream, (seed, offset))
