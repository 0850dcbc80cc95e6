"""What convolutions and pooling of ONNX have in common: padding by name or number, sizes, and lines as images of one row."""

from __future__ import annotations

import numpy as np

from numbadnn.validate.model.graph import Node
from numbadnn.validate.model.posed import Unposed

Pairs = tuple[tuple[int, int], ...]


def parameters(node: Node, axes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(strides, dilations), an integer an axis."""
    return tuple(node.get("strides", (1,) * axes)), tuple(node.get("dilations", (1,) * axes))


def padding(node: Node, sizes: tuple[int, ...], taps: tuple[int, ...]) -> Pairs:
    """(before, after) of each axis; SAME_UPPER and SAME_LOWER make the output ceil(size / stride)."""
    axes, auto = len(sizes), node.get("auto_pad", "NOTSET") or "NOTSET"
    strides, dilations = parameters(node, axes)
    if auto == "VALID":
        return ((0, 0),) * axes
    if auto == "NOTSET":
        pads = tuple(node.get("pads", (0,) * (2 * axes)))
        return tuple(zip(pads[:axes], pads[axes:], strict=True))
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"auto_pad: expected NOTSET, VALID, SAME_UPPER or SAME_LOWER, got {auto!r}")
    pairs = []
    for n, k, s, d in zip(sizes, taps, strides, dilations, strict=True):
        missing = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        less, more = missing // 2, missing - missing // 2
        pairs.append((less, more) if auto == "SAME_UPPER" else (more, less))
    return tuple(pairs)


def spatial(array: np.ndarray, name: str = "X") -> int:
    """How many axes of an image are spatial; Unposed for what is no line, image or volume."""
    if array.ndim not in (3, 4, 5):
        raise Unposed(f"{name} of {array.ndim} axes")
    return array.ndim - 2


def with_row(array: np.ndarray) -> np.ndarray:
    """A line (N, C, L) as an image of one row."""
    return array[:, :, None] if array.ndim == 3 else array


def without_row(results: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    return tuple(r[:, :, 0] for r in results)
