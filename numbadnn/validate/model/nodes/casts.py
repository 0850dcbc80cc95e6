"""Cast, CastLike, QuantizeLinear and DequantizeLinear: from one type to another."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn.validate.model.files import onnx_module
from numbadnn.validate.model.graph import Node, is_real, widened
from numbadnn.validate.model.nodes.kinds import Given, Kind, Outputs, axis_of
from numbadnn.validate.model.posed import Unposed


def _target(node: Node, given: Given) -> Any:
    if node.op == "CastLike":
        return given[1].dtype
    return np.dtype(onnx_module().helper.tensor_dtype_to_np_dtype(node.get("to")))


def _cast(node: Node, given: Given) -> Outputs:
    with np.errstate(all="ignore"):
        return (given[0].astype(_target(node, given)),)


def _cast_widely(node: Node, given: Given) -> Outputs:
    """Numbers that stay numbers are not rounded on the way; ``CastLike``'s model is the type's own, widened or not."""
    if is_real(given[0].dtype) and is_real(_target(node, given)):
        return (given[0],)
    return (widened(_cast(node, given)[0]),)


def _no_error(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
    return (np.zeros_like(outputs[0], np.float64),)


def _along(node: Node, x: np.ndarray, parameter: Any) -> Any:
    """A scale or zero point along the axis that it belongs to."""
    if parameter is None or parameter.size == 1:
        return parameter
    if parameter.ndim != 1 or node.get("block_size", 0):
        raise Unposed("scales of blocks")
    axis = axis_of(node.get("axis", 1), x.ndim)
    return parameter.reshape(*(1,) * axis, -1, *(1,) * (x.ndim - axis - 1))


def _quantize(node: Node, given: Given) -> Outputs:
    x, scale, zero = (*given, None)[:3]
    kind = np.dtype(np.uint8) if zero is None else zero.dtype
    if kind.kind not in "iu" or node.get("output_dtype", 0):
        raise Unposed(f"type {kind.name}")
    limits = np.iinfo(kind)
    zero = 0 if zero is None else _along(node, x, zero).astype(np.int64)
    return (np.clip(np.rint(x / _along(node, x, scale)) + zero, limits.min, limits.max).astype(kind),)


def _quantize_errors(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
    """One step where the quotient is as close to the middle between two as its rounding."""
    quotient = given[0] / _along(node, given[0], given[1])
    middle = np.abs(np.abs(quotient - np.floor(quotient)) - 0.5)
    return ((middle <= 2 * unit * np.abs(quotient)).astype(np.float64),)


def _dequantize(node: Node, given: Given) -> Outputs:
    x, scale, zero = (*given, None)[:3]
    if x.dtype.kind not in "iu":
        raise Unposed(f"type {x.dtype.name}")
    whole = x.astype(np.int64) - (0 if zero is None else _along(node, x, zero).astype(np.int64))
    return (whole.astype(scale.dtype) * _along(node, x, scale),)


def _dequantize_errors(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
    return (unit * np.abs(outputs[0]),)


TABLE = {
    "Cast": Kind(None, _cast, _no_error, wide=_cast_widely),
    "CastLike": Kind(None, _cast, _no_error, wide=_cast_widely),
    "QuantizeLinear": Kind(None, _quantize, _quantize_errors),
    "DequantizeLinear": Kind(None, _dequantize, _dequantize_errors),
}
