"""Softmax, LogSoftmax and Hardmax, over one axis or, before opset 13, over all from one on; BatchNormalization of inference."""

from __future__ import annotations

import math

import numpy as np

from numbadnn.measuring.compare import gamma
from numbadnn.validate.model.graph import Node
from numbadnn.validate.model.nodes.kinds import Given, Kind, Outputs, axis_of
from numbadnn.validate.model.posed import Posed, Unposed


def _rows(node: Node, x: np.ndarray) -> tuple[int, int, int]:
    """x as (before, those that are held against each other, after)."""
    if node.opset >= 13:
        axis = axis_of(node.get("axis", -1), x.ndim)
        return math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    axis = axis_of(node.get("axis", 1), x.ndim, x.ndim)
    return math.prod(x.shape[:axis]), math.prod(x.shape[axis:]), 1


def softmax(node: Node, given: Given) -> Posed:
    x = given[0]
    if not x.ndim:
        raise Unposed("a single number")
    shape = _rows(node, x)
    algo = "log" if node.op == "LogSoftmax" else "accurate"
    flat = x.reshape(shape[:2] if shape[2] == 1 else shape)
    return Posed("softmax", (flat,), {"algo": algo, "mode": "channel"}, lambda results: (results[0].reshape(x.shape),))


def hardmax(node: Node, given: Given) -> Outputs:
    """1 at the first of the largest, 0 elsewhere."""
    x = given[0]
    rows = x.reshape(_rows(node, x))
    result = np.zeros_like(rows)
    np.put_along_axis(result, rows.argmax(1, keepdims=True), 1, 1)
    return (result.reshape(x.shape),)


def _statistics_shape(node: Node, x: np.ndarray) -> tuple[int, ...]:
    """One number a channel, or, before opset 9, one an element of an image."""
    return (1, x.shape[1], *(1,) * (x.ndim - 2)) if node.get("spatial", 1) else (1, *x.shape[1:])


def batch_norm(node: Node, given: Given) -> Posed:
    x, *statistics = given
    if node.get("training_mode", 0) or x.ndim < 2 or len(node.outputs) > 1:
        raise Unposed("statistics of the batch")
    shape, mode = _statistics_shape(node, x), "spatial" if node.get("spatial", 1) else "per-activation"
    arrays = (x, *(s.reshape(shape) for s in statistics))
    return Posed("batch_normalization_test", arrays, {"mode": mode, "epsilon": node.get("epsilon", 1e-5)})


def _as_scale_and_shift(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
    """Of those who compute x * s + (beta - mean * s), with s = gamma / sqrt(var + epsilon) worked out before."""
    x, gamma_, beta, mean, var = given
    shape = _statistics_shape(node, x)
    scale = gamma_ / np.sqrt(var + node.get("epsilon", 1e-5))
    size = np.abs(x) * np.abs(scale).reshape(shape) + (np.abs(mean * scale) + np.abs(beta)).reshape(shape)
    return (gamma(7, unit) * size,)


def flops(node: Node, given: Given, outputs: Outputs) -> int:
    return (3 if node.op == "BatchNormalization" else 5) * given[0].size


TABLE = {
    "Softmax": Kind(softmax, flops=flops),
    "LogSoftmax": Kind(softmax, flops=flops),
    "Hardmax": Kind(None, hardmax),
    "BatchNormalization": Kind(batch_norm, errors=_as_scale_and_shift, flops=flops),
}
