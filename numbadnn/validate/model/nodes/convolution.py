"""Conv and ConvTranspose: numbadnn's convolutions without a flip, and the gradient of the images."""

from __future__ import annotations

import math

from numbadnn.validate.model.graph import Node
from numbadnn.validate.model.nodes.kinds import Given, Kind
from numbadnn.validate.model.nodes.windows import padding, parameters, spatial, with_row, without_row
from numbadnn.validate.model.posed import Posed, Unposed


def conv(node: Node, given: Given) -> Posed:
    x, w, b = (*given, None)[:3]
    axes = spatial(x)
    strides, dilations = parameters(node, axes)
    pads = padding(node, x.shape[2:], w.shape[2:])
    if min(min(pair) for pair in pads) < 0:
        raise Unposed(f"negative pads {pads}")
    if axes == 1:
        strides, dilations, pads = (1, *strides), (1, *dilations), ((0, 0), *pads)
    keywords = {
        "border_mode": pads,
        "subsample": strides,
        "filter_dilation": dilations,
        "filter_flip": False,
        "num_groups": node.get("group", 1),
    }
    bias = None if b is None else b.reshape(-1, *(1,) * axes)
    return Posed(
        f"conv{max(axes, 2)}d", (with_row(x), with_row(w)), keywords, without_row if axes == 1 else tuple, bias
    )


def conv_transpose(node: Node, given: Given) -> Posed:
    x, w, b = (*given, None)[:3]
    axes, groups = spatial(x), node.get("group", 1)
    strides, dilations = parameters(node, axes)
    extra = tuple(node.get("output_padding", (0,) * axes))
    full = [
        (n - 1) * s + (k - 1) * d + 1 + more
        for n, s, k, d, more in zip(x.shape[2:], strides, w.shape[2:], dilations, extra, strict=True)
    ]
    sizes, auto = node.get("output_shape"), node.get("auto_pad", "NOTSET") or "NOTSET"
    if sizes is None and auto.startswith("SAME"):
        sizes = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    if sizes is not None:
        missing = [max(a - n, 0) for a, n in zip(full, sizes, strict=True)]
        halves = [(m // 2, m - m // 2) for m in missing]
        pads = tuple(pair if auto == "SAME_UPPER" else pair[::-1] for pair in halves)
        sizes = tuple(sizes)
    else:
        pads = padding(node, x.shape[2:], w.shape[2:])
        sizes = tuple(n - low - high for n, (low, high) in zip(full, pads, strict=True))
    if min(min(pair) for pair in pads) < 0 or min(sizes) < 1:
        raise Unposed(f"pads {pads}")
    shape = (x.shape[0], w.shape[1] * groups, *sizes)
    if axes == 1:
        strides, dilations, pads, shape = (1, *strides), (1, *dilations), ((0, 0), *pads), (*shape[:2], 1, shape[2])
    keywords = {
        "input_shape": shape,
        "border_mode": pads,
        "subsample": strides,
        "filter_dilation": dilations,
        "filter_flip": False,
        "num_groups": groups,
    }
    bias = None if b is None else b.reshape(-1, *(1,) * axes)
    function = f"conv{max(axes, 2)}d_grad_wrt_inputs"
    return Posed(function, (with_row(x), with_row(w)), keywords, without_row if axes == 1 else tuple, bias)


def flops(node: Node, given: Given, outputs: tuple) -> int:
    """Multiplications and additions of the direct sum; each filter meets each pixel of the smaller side."""
    x, w = given[:2]
    pixels = math.prod((x if node.op == "ConvTranspose" else outputs[0]).shape[2:])
    return 2 * x.shape[0] * pixels * w.size


TABLE = {"Conv": Kind(conv, flops=flops), "ConvTranspose": Kind(conv_transpose, flops=flops)}
