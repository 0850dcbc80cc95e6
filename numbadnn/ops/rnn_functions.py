"""The two operations on arrays: ``rnn_forward`` and ``rnn_backward``, and the builders that ``RNNBlock`` shares with them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Never

from numbadnn import dispatch
from numbadnn.arrays import View
from numbadnn.dispatch import Request
from numbadnn.ops.habits import refuse
from numbadnn.option_types import Backend
from numbadnn.problems.rnn import INPUTS, RnnProblem, make
from numbadnn.problems.rnn_network import Network
from numbadnn.registry import implementations


def plain_lengths(lengths: Any) -> tuple[int, ...] | None:
    """Lengths as a caller gives them (a list, an array of the host), as a tuple of integers; TypeError for anything
    else."""
    if lengths is None or (type(lengths) is tuple and all(type(n) is int for n in lengths)):
        return lengths
    values = lengths.tolist() if hasattr(lengths, "tolist") else lengths
    if not isinstance(values, list | tuple):
        raise TypeError(f"lengths: expected integers, one a batch entry, or None, got {lengths!r}")
    try:
        if any(isinstance(n, bool) for n in values):
            raise TypeError
        return tuple(operator.index(n) for n in values)
    except TypeError:
        raise TypeError(f"lengths: expected integers, got {lengths!r}") from None


def reserve_size(problem: RnnProblem, device: int) -> int:
    """Elements of a reserve that any implementation on this device can use: each says what it writes."""
    here = [i for i in implementations("rnn_forward") if (i.backend == "cpu") == (device < 0)]
    nbytes = max(i.reserve_bytes(problem, device) for i in here if i.reserve_bytes)
    return max(1, -(-nbytes // problem.inputs[0].itemsize))  # an empty batch has one too


@functools.cache
def builder(op: str, names: tuple[str, ...]) -> Callable[..., Request]:
    """The builder of calls that give these arrays: params are (network, dtype or "", lengths, keep, made_by)."""

    def build(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
        network, dtype, lengths, keep, made_by = params
        if dtype and views[0].dtype != dtype:
            raise TypeError(f"w: expected the block's dtype {dtype}, got {views[0].dtype}")
        specs = dict(zip(names, (v.spec() for v in views), strict=True))
        problem = make(op, network, specs, lengths, 0, made_by)
        if keep:
            problem = make(op, network, specs, lengths, reserve_size(problem, views[0].device))
        return Request(_with_out(problem, out_views) if out_views else problem)

    return dispatch.operation(*names)(build)


def _with_out(problem: RnnProblem, out_views: list[View]) -> RnnProblem:
    if len(out_views) != len(problem.outputs):
        raise ValueError(f"out: expected a tuple of {len(problem.outputs)} arrays, got {len(out_views)}")
    for name, spec, view in zip(problem.result_names, problem.outputs, out_views, strict=True):
        if view.shape != spec.shape:
            raise ValueError(f"out: expected shape {spec.shape} for {name}, got {view.shape}")
        if view.dtype != spec.dtype:
            raise TypeError(f"out: expected dtype {spec.dtype} for {name}, got {view.dtype}")
    return replace(problem, outputs=tuple(v.spec() for v in out_views))


def rnn_forward(
    w: Any, x: Any, hx: Any, cx: Any = None, *, hidden_size: int, num_layers: int, rnn_mode: str,
    input_mode: str = "linear", direction_mode: str = "unidirectional", lengths: Any = None,
    backend: Backend | None = None, out: Any = None, stream: Any = None,
    **unknown: Never,
) -> Any:  # fmt: skip
    """(y, hy), for lstm (y, hy, cy), of a recurrent network with the flat parameters w: ``RNNBlock.apply`` as a
    function.

    x (time, batch, in), hx and cx (layers * directions, batch, hidden), all of w's dtype: float16, float32 or float64.
    ``out`` is a tuple of all results. Errors as ``RNNBlock``. Source: docs/explanation/semantics.md#recurrent-networks.

    >>> import numpy as np, numbadnn
    >>> one = np.ones((1, 1, 1))
    >>> w = np.array([2.0, 3.0, 0.0, 1.0])
    >>> numbadnn.rnn_forward(w, one, one, hidden_size=1, num_layers=1, rnn_mode="rnn_relu")[0]
    array([[[6.]]])
    """
    if unknown:
        refuse(unknown)
    network = Network(hidden_size, num_layers, rnn_mode, input_mode, direction_mode)
    arrays = (w, x, hx) if cx is None else (w, x, hx, cx)
    build = builder("rnn_forward", INPUTS["rnn_forward"][: len(arrays)])
    return dispatch.call_any(build, arrays, (network, "", plain_lengths(lengths), False, ""), backend, out, stream)


def rnn_backward(
    w: Any, x: Any, hx: Any, *others: Any, given: Any = ("dy",), hidden_size: int, num_layers: int, rnn_mode: str,
    input_mode: str = "linear", direction_mode: str = "unidirectional", lengths: Any = None,
    backend: Backend | None = None, out: Any = None, stream: Any = None,
    **unknown: Never,
) -> Any:  # fmt: skip
    """(dw, dx, dhx), for lstm (dw, dx, dhx, dcx): the gradients of ``rnn_forward``, which is run again for them.

    ``given`` names ``others`` in their order, out of cx, dy, dhy, dcy; a gradient not given is zeros.
    ``RNNBlock.forward`` and ``backward`` do not run it again. Errors as ``RNNBlock``.
    Source: docs/explanation/semantics.md#recurrent-networks.

    >>> import numpy as np, numbadnn
    >>> one = np.ones((1, 1, 1))
    >>> w = np.array([2.0, 3.0, 0.0, 1.0])
    >>> numbadnn.rnn_backward(w, one, one, one, hidden_size=1, num_layers=1, rnn_mode="rnn_relu")[0]
    array([1., 1., 1., 1.])
    """
    if unknown:
        refuse(unknown)
    network = Network(hidden_size, num_layers, rnn_mode, input_mode, direction_mode)
    known = ("cx", "dy", "dhy", "dcy")
    if not isinstance(given, tuple | list) or not all(isinstance(n, str) and n in known for n in given):
        raise ValueError(f"given: expected names out of {', '.join(known)}, got {given!r}")
    if len(set(given)) != len(others) or len(given) != len(others):
        raise ValueError(f"given: expected a name for each of {len(others)} further arrays, got {given!r}")
    named = dict(zip(given, others, strict=True))
    names = tuple(n for n in known if n in named)
    build = builder("rnn_backward", ("w", "x", "hx", *names))
    arrays = (w, x, hx, *(named[n] for n in names))
    return dispatch.call_any(build, arrays, (network, "", plain_lengths(lengths), False, ""), backend, out, stream)
