"""Sums, means, norms and maxima over axes, running sums, and places of maxima."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.measuring.compare import gamma
from numbadnn.validate.model.graph import Node, is_real
from numbadnn.validate.model.nodes.kinds import Given, Kind, Outputs, axes_of

Float = np.ndarray


def _axes(node: Node, given: Given) -> tuple[int, ...] | None:
    """The axes to reduce; None: all; () none at all, and each number is a sum of its own."""
    axes = axes_of(node, given, 1, given[0].ndim)
    if axes is None or axes == ():
        return () if node.get("noop_with_empty_axes", 0) else None
    return axes


def _reduced(function: Callable[..., Any]) -> Callable[[Node, Given], Outputs]:
    def compute(node: Node, given: Given) -> Outputs:
        x, axes = given[0], _axes(node, given)
        with np.errstate(all="ignore"):
            return (
                np.asarray(function(x, axis=axes, keepdims=bool(node.get("keepdims", 1)))).astype(x.dtype, copy=False),
            )

    return compute


def _length(node: Node, given: Given) -> int:
    axes = _axes(node, given)
    return given[0].size if axes is None else int(np.prod([given[0].shape[a] for a in axes]))


def _sum_errors(terms: Callable[[Float], Float], more: int) -> Callable[..., Outputs]:
    """Of a sum of ``terms(x)`` of one sign or of magnitudes; ``more`` roundings beside those of the sum."""

    def errors(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
        (size,) = _reduced(np.sum)(node, [terms(given[0]), *given[1:]])
        return (gamma(_length(node, given) + more, unit) * size,)

    return errors


def _mean_errors(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
    (size,) = _reduced(np.mean)(node, [np.abs(given[0]), *given[1:]])
    return (gamma(_length(node, given) + 2, unit) * size,)


def _relative(roundings: int) -> Callable[..., Outputs]:
    """Of results that no cancelling makes small."""

    def errors(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
        return (gamma(_length(node, given) + roundings, unit) * np.abs(outputs[0]),)

    return errors


def _log_errors(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
    """A relative error of the sum is an absolute one of its logarithm."""
    biggest = np.abs(given[0]).max(initial=0) if node.op == "ReduceLogSumExp" else 0
    return (gamma(_length(node, given) + 16, unit) * (2 + np.abs(outputs[0]) + biggest),)


def _log_sum_exp(x: Float, axis: Any, keepdims: bool) -> Any:
    top = np.max(x, axis=axis, keepdims=True, initial=np.finfo(x.dtype).min)
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return total if keepdims else np.squeeze(total, axis=axis)


def _end(x: Float, sign: int) -> Any:
    """The largest number of the type, or the smallest: of nothing, the least and the greatest."""
    if is_real(x.dtype):
        return sign * np.inf
    if x.dtype == bool:
        return sign > 0
    return np.iinfo(x.dtype).max if sign > 0 else np.iinfo(x.dtype).min


def _cumulative(node: Node, given: Given) -> Outputs:
    x, axis = given[0], int(given[1].item())
    if node.get("reverse", 0):
        x = np.flip(x, axis)
    result = np.cumsum(x, axis=axis, dtype=x.dtype)
    if node.get("exclusive", 0):
        result = np.roll(result, 1, axis)
        result[tuple(0 if a == axis % x.ndim else slice(None) for a in range(x.ndim))] = 0
    return (np.flip(result, axis) if node.get("reverse", 0) else result,)


def _cumulative_errors(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
    (size,) = _cumulative(node, [np.abs(given[0]), given[1]])
    return (gamma(given[0].shape[int(given[1].item())], unit) * size,)


def _place(function: Callable[..., Any]) -> Callable[[Node, Given], Outputs]:
    def compute(node: Node, given: Given) -> Outputs:
        x, axis = given[0], node.get("axis", 0)
        if node.get("select_last_index", 0):
            index = x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis)
        else:
            index = function(x, axis=axis)
        return ((np.expand_dims(index, axis) if node.get("keepdims", 1) else np.asarray(index)).astype(np.int64),)

    return compute


def _flops(node: Node, given: Given, outputs: Outputs) -> int:
    return int(given[0].size)


def _kind(function: Callable[..., Any], errors: Any) -> Kind:
    return Kind(None, _reduced(function), errors, _flops)


TABLE = {
    "ReduceSum": _kind(np.sum, _sum_errors(np.abs, 0)),
    "ReduceMean": _kind(np.mean, _mean_errors),
    "ReduceSumSquare": _kind(lambda x, **more: np.sum(x * x, **more), _sum_errors(np.square, 1)),
    "ReduceL1": _kind(lambda x, **more: np.sum(np.abs(x), **more), _sum_errors(np.abs, 0)),
    "ReduceL2": _kind(lambda x, **more: np.sqrt(np.sum(x * x, **more)), _relative(3)),
    "ReduceProd": _kind(np.prod, _relative(0)),
    "ReduceLogSum": _kind(lambda x, **more: np.log(np.sum(x, **more)), _log_errors),
    "ReduceLogSumExp": _kind(_log_sum_exp, _log_errors),
    "ReduceMax": _kind(lambda x, **more: np.max(x, initial=_end(x, -1), **more), None),
    "ReduceMin": _kind(lambda x, **more: np.min(x, initial=_end(x, 1), **more), None),
    "CumSum": Kind(None, _cumulative, _cumulative_errors, _flops),
    "ArgMax": Kind(None, _place(np.argmax), None, _flops),
    "ArgMin": Kind(None, _place(np.argmin), None, _flops),
}
