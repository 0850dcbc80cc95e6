"""MaxPool, AveragePool and their global forms: numbadnn's pooling, with padding that it lacks put around the image first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbadnn.measuring.compare import gamma
from numbadnn.validate.model.graph import Node, is_real
from numbadnn.validate.model.nodes.kinds import Given, Kind, Outputs
from numbadnn.validate.model.nodes.windows import Pairs, padding, parameters, spatial, with_row, without_row
from numbadnn.validate.model.posed import Posed, Unposed


def _geometry(node: Node, x: np.ndarray) -> tuple[Any, Any, Any, Pairs]:
    """(window, strides, dilations, padding), with as much after the image as the last window reaches."""
    axes, window = x.ndim - 2, tuple(node.get("kernel_shape"))
    strides, dilations = parameters(node, axes)
    pads = []
    pairs = padding(node, x.shape[2:], window)
    for n, k, s, d, (low, high) in zip(x.shape[2:], window, strides, dilations, pairs, strict=True):
        room = n + low + high - ((k - 1) * d + 1)
        count = room // s + 1
        if node.get("ceil_mode", 0) and room % s and count * s < n + low:  # no window begins beyond the image
            count += 1
        pads.append((low, (count - 1) * s + (k - 1) * d + 1 - n - low))  # what no window reaches is cut off
    return window, strides, dilations, tuple(pads)


def _padded(x: np.ndarray, pads: Pairs, value: Any) -> np.ndarray:
    """The image with so much around it; less than nothing is cut off."""
    x = x[
        (
            slice(None),
            slice(None),
            *(slice(0, n + min(high, 0)) for n, (_, high) in zip(x.shape[2:], pads, strict=True)),
        )
    ]
    return np.pad(x, ((0, 0), (0, 0), *((low, max(high, 0)) for low, high in pads)), constant_values=value)


def _pool(x: np.ndarray, window: Any, strides: Any, mode: str, factor: Any = None) -> Posed:
    if x.ndim == 3:
        window, strides = (1, *window), (1, *strides)
    keywords = {"ws": window, "stride": strides, "mode": mode}
    return Posed("pool", (with_row(x),), keywords, without_row if x.ndim == 3 else tuple, factor=factor)


def max_pool(node: Node, given: Given) -> Posed:
    x = given[0]
    spatial(x)
    window, strides, dilations, pads = _geometry(node, x)
    if not is_real(x.dtype) or set(dilations) != {1} or len(node.outputs) > 1:
        raise Unposed("integers, dilated windows or indices of the maxima")
    return _pool(_padded(x, pads, -np.inf), window, strides, "max")


def average_pool(node: Node, given: Given) -> Posed:
    """Averages of whole windows of the image with zeros around it, times what makes them averages of what each window counts.

    Of 16 bits a sum may be infinite where no average is.
    """
    x = given[0]
    axes = spatial(x)
    window, strides, dilations, pads = _geometry(node, x)
    if set(dilations) != {1}:
        raise Unposed("dilated windows")
    counts = _windows(_padded(*_counted(node, x, pads), 0), window, strides, (1,) * axes).sum(-1)[0, 0]
    share = math.prod(window) / counts
    return _pool(_padded(x, pads, 0), window, strides, "average_inc_pad", None if (share == 1).all() else share)


def average_pool_plainly(node: Node, given: Given) -> Outputs:
    """Averages over windows with gaps: what a window counts is the image, or the image with its padding."""
    x = given[0]
    window, strides, dilations, pads = _geometry(node, x)
    counts = _windows(_padded(*_counted(node, x, pads), 0), window, strides, dilations).sum(-1)
    sums = _windows(_padded(x, pads, 0), window, strides, dilations).sum(-1, dtype=x.dtype)
    return (np.where(counts > 0, sums / np.maximum(counts, 1).astype(x.dtype), 0).astype(x.dtype),)


def _average_errors(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
    if set(parameters(node, given[0].ndim - 2)[1]) == {1}:
        return (np.zeros(outputs[0].shape),)  # numbadnn's pooling knows its own
    (size,) = average_pool_plainly(node, [np.abs(given[0])])
    return (gamma(math.prod(node.get("kernel_shape")) + 2, unit) * size,)


def _counted(node: Node, x: np.ndarray, pads: Pairs) -> tuple[np.ndarray, Pairs]:
    """Ones where a window counts, as an image of one channel, and what is around them up to the last window's end."""
    ones: np.ndarray = np.ones(x.shape[2:])
    if node.get("count_include_pad", 0):
        ones = np.pad(ones, padding(node, x.shape[2:], tuple(node.get("kernel_shape"))), constant_values=1)
        pads = tuple((0, sum(p) + n - c) for p, n, c in zip(pads, x.shape[2:], ones.shape, strict=True))
    return ones[None, None], pads


def _windows(x: np.ndarray, window: Any, strides: Any, dilations: Any) -> np.ndarray:
    """(N, C, outputs..., elements of a window)."""
    axes = len(window)
    reach = tuple((k - 1) * d + 1 for k, d in zip(window, dilations, strict=True))
    seen = np.lib.stride_tricks.sliding_window_view(x, reach, axis=tuple(range(2, 2 + axes)))
    seen = seen[
        (slice(None), slice(None), *(slice(None, None, s) for s in strides), *(slice(None, None, d) for d in dilations))
    ]
    return seen.reshape(*seen.shape[: 2 + axes], -1)


def max_pool_plainly(node: Node, given: Given) -> Outputs:
    """Maxima and, where they are asked for, their places in the image."""
    x = given[0]
    window, strides, dilations, pads = _geometry(node, x)
    lowest = -np.inf if is_real(x.dtype) else np.iinfo(x.dtype).min
    seen = _windows(_padded(x, pads, lowest), window, strides, dilations)
    if len(node.outputs) == 1:
        return (seen.max(-1),)
    order: Any = "F" if node.get("storage_order", 0) else "C"
    places = np.arange(x.size // math.prod(x.shape[2:]), dtype=np.int64).reshape(x.shape[:2]) * math.prod(x.shape[2:])
    inside = np.arange(math.prod(x.shape[2:]), dtype=np.int64).reshape(x.shape[2:], order=order)
    index = places.reshape(*x.shape[:2], *(1,) * (x.ndim - 2)) + inside
    first = seen.argmax(-1)[..., None]
    return seen.max(-1), np.take_along_axis(_windows(_padded(index, pads, -1), window, strides, dilations), first, -1)[
        ..., 0
    ]


def global_pool(mode: str) -> Any:
    def pose(node: Node, given: Given) -> Posed:
        x = given[0]
        sizes = (1, math.prod(x.shape[2:])) if x.ndim != 5 else x.shape[2:]
        flat = x.reshape(*x.shape[:2], *sizes)
        shape = (*x.shape[:2], *(1,) * (x.ndim - 2))
        return Posed(
            "pool", (flat,), {"ws": sizes, "mode": mode}, lambda results: tuple(r.reshape(shape) for r in results)
        )

    return pose


def global_lp_pool(node: Node, given: Given) -> Outputs:
    """The p-norm of each channel."""
    x, p = given[0], node.get("p", 2)
    powers = (np.abs(x) ** x.dtype.type(p)).sum(axis=tuple(range(2, x.ndim)), keepdims=True, dtype=x.dtype)
    return (np.asarray(powers ** x.dtype.type(1 / p), x.dtype),)


def _lp_errors(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
    """Powers and the root by a library, each within 8 roundings; the root takes no more of the sum's than it has."""
    return (gamma(math.prod(given[0].shape[2:]) + 16, unit) * np.abs(outputs[0]),)


def flops(node: Node, given: Given, outputs: Outputs) -> int:
    return given[0].size if node.op.startswith("Global") else outputs[0].size * math.prod(node.get("kernel_shape"))


TABLE = {
    "MaxPool": Kind(max_pool, max_pool_plainly, flops=flops),
    "AveragePool": Kind(average_pool, average_pool_plainly, _average_errors, flops=flops),
    "GlobalAveragePool": Kind(global_pool("average_inc_pad"), flops=flops),
    "GlobalMaxPool": Kind(global_pool("max"), flops=flops),
    "GlobalLpPool": Kind(None, global_lp_pool, _lp_errors, flops),
}
