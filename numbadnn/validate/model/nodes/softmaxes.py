"""Softmax and LogSoftmax, over one axis or, before opset 13, over all from one on; BatchNormalization of inference."""

from __future__ import annotations

import math

import numpy as np

from numbadnn.measuring.compare import gamma
from numbadnn.validate.model.graph import Node
from numbadnn.validate.model.nodes.kinds import Given, Kind, Outputs, axis_of
from numbadnn.validate.model.posed import Posed, Unposed


def softmax(node: Node, given: Given) -> Posed:
    x = given[0]
    if not x.ndim:
        raise Unposed("a single number")
    if node.opset >= 13:
        axis = axis_of(node.get("axis", -1), x.ndim)
        shape = (math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))
    else:
        axis = axis_of(node.get("axis", 1), x.ndim, x.ndim)
        shape = (math.prod(x.shape[:axis]), math.prod(x.shape[axis:]), 1)
    algo = "log" if node.op == "LogSoftmax" else "accurate"
    flat = x.reshape(shape[:2] if shape[2] == 1 else shape)
    return Posed("softmax", (flat,), {"algo": algo, "mode": "channel"}, lambda results: (results[0].reshape(x.shape),))


def batch_norm(node: Node, given: Given) -> Posed:
    x, *statistics = given
    if node.get("training_mode", 0) or x.ndim < 2 or len(node.outputs) > 1:
        raise Unposed("statistics of the batch")
    shape = (1, x.shape[1], *(1,) * (x.ndim - 2))
    arrays = (x, *(s.reshape(shape) for s in statistics))
    return Posed("batch_normalization_test", arrays, {"mode": "spatial", "epsilon": node.get("epsilon", 1e-5)})


def _as_scale_and_shift(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
    """Of those who compute x * s + (beta - mean * s), with s = gamma / sqrt(var + epsilon) worked out before."""
    x, gamma_, beta, mean, var = given
    shape = (1, -1, *(1,) * (x.ndim - 2))
    scale = gamma_ / np.sqrt(var + node.get("epsilon", 1e-5))
    size = np.abs(x) * np.abs(scale).reshape(shape) + (np.abs(mean * scale) + np.abs(beta)).reshape(shape)
    return (gamma(7, unit) * size,)


def flops(node: Node, given: Given, outputs: Outputs) -> int:
    return (3 if node.op == "BatchNormalization" else 5) * given[0].size


TABLE = {
    "Softmax": Kind(softmax, flops=flops),
    "LogSoftmax": Kind(softmax, flops=flops),
    "BatchNormalization": Kind(batch_norm, errors=_as_scale_and_shift, flops=flops),
}
