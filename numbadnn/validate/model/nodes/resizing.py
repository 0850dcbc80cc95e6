"""Resize and Upsample: nearest and linear, one axis after the other, with ONNX's ways to lay coordinates over each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn.validate.model.graph import Node
from numbadnn.validate.model.nodes.kinds import Given, Kind, Outputs, axis_of
from numbadnn.validate.model.posed import Unposed

_NEAREST: dict[str, Any] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _sizes(node: Node, given: Given) -> tuple[list[int], list[float], list[int]]:
    """(output sizes, scales, axes that are resized)."""
    x = given[0]
    if node.op == "Upsample":
        scales, sizes = node.get("scales") if len(given) < 2 else given[1], None
    elif len(given) == 2:  # opset 10
        scales, sizes = given[1], None
    else:
        scales, sizes = (*given, None, None)[2:4]
    axes = [axis_of(a, x.ndim) for a in node.get("axes", range(x.ndim))]
    if sizes is not None and np.size(sizes):
        if node.get("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise Unposed("a policy of aspect ratios")
        lengths = [int(n) for n in sizes]
        factors = [n / x.shape[a] for n, a in zip(lengths, axes, strict=True)]
    else:
        factors = [float(s) for s in np.asarray(scales, np.float32)]
        lengths = [int(np.floor(np.float32(x.shape[a]) * np.float32(f))) for f, a in zip(factors, axes, strict=True)]
    return lengths, factors, axes


def _coordinates(node: Node, length: int, n: int, scale: float) -> np.ndarray:
    """Where each output lies in the input."""
    mode = node.get("coordinate_transformation_mode", "half_pixel" if node.op == "Resize" else "asymmetric")
    if node.op == "Resize" and node.opset < 11:
        mode = "asymmetric"
    at = np.arange(length, dtype=np.float64)
    if mode == "asymmetric":
        return at / scale
    if mode == "align_corners":
        return at * (n - 1) / (scale * n - 1) if length > 1 else 0 * at
    if mode == "pytorch_half_pixel" and length == 1:
        return 0 * at
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (at + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        adjusted = length / (scale * n)
        return n / 2 * (1 - adjusted) + (at + 0.5) / scale - 0.5
    raise Unposed(f"coordinates by {mode}")


def _steps(node: Node, given: Given) -> list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Of each axis that changes: (axis, the two inputs of each output, the share of the second)."""
    mode = node.get("mode", "nearest")
    if mode not in ("nearest", "linear") or node.get("antialias", 0) or node.get("exclude_outside", 0):
        raise Unposed(f"mode {mode}, or antialiasing")
    rounding = node.get("nearest_mode", "round_prefer_floor")
    if node.op == "Upsample" or node.opset < 11:
        rounding = "older"
    steps = []
    for length, scale, axis in zip(*_sizes(node, given), strict=True):
        n = given[0].shape[axis]
        if length == n and scale == 1:
            continue
        at = _coordinates(node, length, n, scale)
        if mode == "nearest":
            if rounding == "older":  # said by no text before opset 11; onnx's own tests of then and runtimes do this
                rounded = np.floor(at) if scale >= 1 else np.ceil(at)
            else:
                rounded = _NEAREST[rounding](at)
            first = np.clip(rounded, 0, n - 1).astype(np.int64)
            steps.append((axis, first, first, np.zeros(length)))
        else:
            at = np.clip(at, 0, n - 1)
            first = np.floor(at).astype(np.int64)
            steps.append((axis, first, np.minimum(first + 1, n - 1), at - first))
    return steps


def _resize(node: Node, given: Given) -> Outputs:
    x = given[0]
    for axis, first, second, share in _steps(node, given):
        low = x.take(first, axis)
        if share.any():
            part = share.reshape(-1, *(1,) * (x.ndim - axis - 1)).astype(x.dtype)
            low = low * (1 - part) + x.take(second, axis) * part
        x = low
    return (x,)


def _errors(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
    """Products and sums of each axis, and shares that come out of coordinates of this precision."""
    x, steps = np.abs(given[0]), _steps(node, given)
    rounded = 0.0
    for axis, first, second, share in steps:
        if share.any():
            rounded += 4 + 4 * float(second.max(initial=0) + 1)
        x = np.maximum(x.take(first, axis), x.take(second, axis))
    return (rounded * unit * x,)


def _flops(node: Node, given: Given, outputs: Outputs) -> int:
    return 0 if node.get("mode", "nearest") == "nearest" else int(6 * outputs[0].size)


TABLE: dict[str, Any] = dict.fromkeys(("Resize", "Upsample"), Kind(None, _resize, _errors, _flops))
