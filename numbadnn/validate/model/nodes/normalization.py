"""LayerNormalization, InstanceNormalization, GroupNormalization, RMSNormalization, LpNormalization and LRN in NumPy.

With d = x - mean, v the mean of d^2 and n numbers averaged, others may have v as the squares' mean less the mean's square:

    |error of d| <= gamma_n+1 (|x| + mean|x|),    |error of v| <= gamma_n+3 (mean x^2 + mean^2) + 2 mean(|d| |error of d|)

and the inverse root has half of v's relative error. Where that is above a half nothing can be said: the bound is infinite.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn.measuring.compare import gamma
from numbadnn.validate.model.graph import Node
from numbadnn.validate.model.nodes.kinds import Given, Kind, Outputs, axis_of


def _parts(node: Node, given: Given) -> tuple[np.ndarray, Any, Any, tuple[int, ...]]:
    """The numbers, in groups, scale and bias that fit them, and the axes that are averaged over."""
    x, scale, bias = (*given, None)[:3]
    if node.op in ("LayerNormalization", "RMSNormalization"):
        return x, scale, bias, tuple(range(axis_of(node.get("axis", -1), x.ndim), x.ndim))
    groups = x.shape[1] if node.op == "InstanceNormalization" else node.get("num_groups")
    grouped = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    if scale.size == groups != x.shape[1]:  # before opset 21 a scale a group
        shape = (1, groups, 1, *(1,) * (x.ndim - 2))
    else:
        shape = (1, groups, x.shape[1] // groups, *(1,) * (x.ndim - 2))
    return grouped, scale.reshape(shape), bias.reshape(shape), tuple(range(2, grouped.ndim))


def _normalize(node: Node, given: Given) -> Outputs:
    x, scale, bias, axes = _parts(node, given)
    epsilon = x.dtype.type(node.get("epsilon", 1e-5))
    mean = 0 * x if node.op == "RMSNormalization" else x.mean(axis=axes, keepdims=True, dtype=x.dtype)
    d = x - mean
    inverse = 1 / np.sqrt((d * d).mean(axis=axes, keepdims=True, dtype=x.dtype) + epsilon)
    result = d * inverse * scale
    result = (result if bias is None else result + bias).reshape(given[0].shape).astype(given[0].dtype, copy=False)
    return (result, mean, inverse)[: len(node.outputs)]


def _errors(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
    x, scale, bias, axes = _parts(node, given)
    n = int(np.prod([x.shape[a] for a in axes]))

    def mean(values: Any) -> Any:
        return values.mean(axis=axes, keepdims=True)

    centre = 0 if node.op == "RMSNormalization" else mean(x)
    d, epsilon = x - centre, node.get("epsilon", 1e-5)
    of_mean = 0 if node.op == "RMSNormalization" else gamma(n + 1, unit) * mean(np.abs(x))
    of_d = of_mean + unit * np.abs(d)
    square = mean(d * d) + epsilon
    of_v = gamma(n + 3, unit) * (mean(x * x) + centre**2 + epsilon) + 2 * mean(np.abs(d) * of_d)
    relative = of_v / square
    relative = np.where(relative < 0.5, relative / 2 + relative**2, np.inf) + 6 * unit
    inverse = 1 / np.sqrt(square)
    size = np.abs(scale) * inverse
    with np.errstate(invalid="ignore"):  # numbers that are all the same have d = 0, and 0 times infinity is no bound
        of_product = np.where(np.isinf(relative), np.inf, (of_d + np.abs(d) * relative) * (1 + relative))
    e = size * of_product + (0 if bias is None else unit * np.abs(bias))
    return (e.reshape(given[0].shape), np.broadcast_to(of_mean, np.shape(square)), inverse * relative)[: len(outputs)]


def _local_response(node: Node, given: Given) -> Outputs:
    x, size = given[0], node.get("size")
    alpha, beta, bias = (x.dtype.type(node.get(k, v)) for k, v in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    return (x / (bias + alpha / size * _around(x * x, size)) ** beta,)


def _around(squares: np.ndarray, size: int) -> np.ndarray:
    """Sums over the channels next to each, as far as there are any."""
    before, after = (size - 1) // 2, size // 2
    total = np.concatenate([np.zeros_like(squares[:, :1]), np.cumsum(squares, axis=1, dtype=np.float64)], axis=1)
    c = squares.shape[1]
    low, high = np.maximum(np.arange(c) - before, 0), np.minimum(np.arange(c) + after + 1, c)
    return (total[:, high] - total[:, low]).astype(squares.dtype)


def _local_errors(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
    beta = node.get("beta", 0.75)
    return ((gamma(node.get("size") + 5, unit) * (beta + 1) + 16 * unit * (1 + beta)) * np.abs(outputs[0]),)


def _lp(node: Node, given: Given) -> Outputs:
    x, axis = given[0], node.get("axis", -1)
    norm = np.abs(x).sum(axis, keepdims=True) if node.get("p", 2) == 1 else np.sqrt((x * x).sum(axis, keepdims=True))
    return (np.where(norm == 0, x.dtype.type(0), x / np.where(norm == 0, 1, norm)).astype(x.dtype),)


def _lp_errors(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
    return (gamma(given[0].shape[node.get("axis", -1)] + 4, unit) * np.abs(outputs[0]),)


def _flops(node: Node, given: Given, outputs: Outputs) -> int:
    return int((2 * node.get("size") if node.op == "LRN" else 8) * given[0].size)


TABLE = {
    **dict.fromkeys(
        ("LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"),
        Kind(None, _normalize, _errors, _flops),
    ),
    "LRN": Kind(None, _local_response, _local_errors, _flops),
    "LpNormalization": Kind(None, _lp, _lp_errors, _flops),
}
