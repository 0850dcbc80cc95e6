"""Operators that move numbers and compute none: the frequent ones in NumPy, the others by onnx's own reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbadnn.validate.model.files import onnx_module
from numbadnn.validate.model.graph import Node
from numbadnn.validate.model.nodes.kinds import Given, Outputs, axes_of, axis_of, moving
from numbadnn.validate.model.posed import Unposed


def _constant(node: Node, given: Given) -> Outputs:
    (name, value), *_ = node.attributes.items()
    types = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    return (np.asarray(value, types.get(name)),)


def _constant_of_shape(node: Node, given: Given) -> Outputs:
    value = node.get("value", np.zeros(1, np.float32))
    return (np.full(tuple(given[0].tolist()), value.ravel()[0], value.dtype),)


def _reshape(node: Node, given: Given) -> Outputs:
    x, shape = given[0], [int(n) for n in given[1]]
    if not node.get("allowzero", 0):
        shape = [x.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    return (x.reshape(shape),)


def _flatten(node: Node, given: Given) -> Outputs:
    x = given[0]
    axis = axis_of(node.get("axis", 1), x.ndim, x.ndim)
    return (x.reshape(math.prod(x.shape[:axis]), -1 if x.size else math.prod(x.shape[axis:])),)


def _squeeze(node: Node, given: Given) -> Outputs:
    return (np.squeeze(given[0], axes_of(node, given, 1, given[0].ndim)),)


def _unsqueeze(node: Node, given: Given) -> Outputs:
    named = node.get("axes") if node.get("axes") is not None else given[1].ravel().tolist()
    return (np.expand_dims(given[0], tuple(int(a) for a in named)),)


def _transpose(node: Node, given: Given) -> Outputs:
    return (np.transpose(given[0], node.get("perm")),)


def _concat(node: Node, given: Given) -> Outputs:
    return (np.concatenate(given, node.get("axis")),)


def _split(node: Node, given: Given) -> Outputs:
    x, axis, count = given[0], node.get("axis", 0), len(node.outputs)
    parts = given[1].tolist() if len(given) > 1 and given[1] is not None else node.get("split")
    if parts is None:
        size = -(-x.shape[axis] // node.get("num_outputs", count))
        ends = [min(size * i, x.shape[axis]) for i in range(1, count)]
    else:
        ends = np.cumsum(parts)[:-1].tolist()
    return tuple(np.split(x, ends, axis))


def _slice(node: Node, given: Given) -> Outputs:
    x = given[0]
    if node.get("starts") is not None:
        starts, ends, axes, steps = node.get("starts"), node.get("ends"), node.get("axes"), None
    else:
        starts, ends, axes, steps = ((None if g is None else g.tolist()) for g in (*given[1:], None, None)[:4])
    axes = range(len(starts)) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        n = x.shape[axis]
        if step > 0:
            index[axis] = slice(start, end, step)
        else:  # a start before the first element is that element, an end before it is none
            start, end = start if start >= 0 else start + n, end if end >= 0 else end + n
            index[axis] = slice(max(min(start, n - 1), 0), None if end < 0 else end, step)
    return (x[tuple(index)],)


def _gather(node: Node, given: Given) -> Outputs:
    return (np.take(given[0], given[1], axis=node.get("axis", 0)),)


def _shape(node: Node, given: Given) -> Outputs:
    return (np.asarray(given[0].shape[slice(node.get("start", 0), node.get("end"))], np.int64),)


def _expand(node: Node, given: Given) -> Outputs:
    shape = np.broadcast_shapes(given[0].shape, tuple(given[1].tolist()))
    return (np.broadcast_to(given[0], shape).copy(),)


def _pad(node: Node, given: Given) -> Outputs:
    x = given[0]
    pads = [int(p) for p in (node.get("pads") if node.get("pads") is not None else given[1])]
    axes = axes_of(node, given, 3, x.ndim) or tuple(range(x.ndim))
    value = given[2] if len(given) > 2 and given[2] is not None else node.get("value", 0.0)
    pairs, half = [(0, 0)] * x.ndim, len(pads) // 2
    for axis, low, high in zip(axes, pads[:half], pads[half:], strict=True):
        pairs[axis] = (low, high)
    x = x[tuple(slice(max(-low, 0), n - max(-high, 0)) for n, (low, high) in zip(x.shape, pairs, strict=True))]
    pairs = [(max(low, 0), max(high, 0)) for low, high in pairs]
    mode = node.get("mode", "constant")
    if mode == "constant":
        return (np.pad(x, pairs, constant_values=np.asarray(value).astype(x.dtype).ravel()[0]),)
    return (np.pad(x, pairs, mode=mode),)


def _dropout(node: Node, given: Given) -> Outputs:
    """Of inference: the mask, which has no use there, has no agreed values before opset 10."""
    if len(given) > 2 and given[2] is not None and given[2].any():
        raise Unposed("random numbers")
    return (given[0], np.ones(given[0].shape, bool))[: len(node.outputs) if node.opset >= 10 else 1]


def by_onnx(node: Node, given: Given) -> Outputs:
    """The operator by onnx.reference, on a graph of its own."""
    onnx = onnx_module()
    from onnx.reference import ReferenceEvaluator

    proto = node.proto
    if node.op == "Scatter":  # which onnx.reference does not know, by its later name
        proto = onnx.helper.make_node("ScatterElements", node.inputs, node.outputs, axis=node.get("axis", 0))
    feeds = {name: array for name, array in zip(node.inputs, given, strict=True) if name}
    declare = onnx.helper.make_tensor_value_info
    inputs = [declare(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.outputs if name]
    graph = onnx.helper.make_graph([proto], "node", inputs, outputs)
    opset = max(node.opset, 11) if node.op == "Scatter" else node.opset
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    with np.errstate(all="ignore"):
        found = iter(ReferenceEvaluator(model).run(None, feeds))
    return tuple(np.asarray(next(found)) if name else np.empty(0) for name in node.outputs)


#: by onnx.reference
_OTHERS = (
    "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND", "Tile", "Range", "OneHot", "NonZero", "DepthToSpace",
    "SpaceToDepth", "Trilu", "ReverseSequence", "TopK", "EyeLike", "Compress", "Unique", "IsInf", "BitShift", "CenterCropPad",
    "TensorScatter",
)  # fmt: skip
TABLE: dict[str, Any] = {
    **{name: moving(by_onnx) for name in _OTHERS},
    "Constant": moving(_constant),
    "ConstantOfShape": moving(_constant_of_shape),
    "Identity": moving(lambda node, given: (given[0],)),
    "Reshape": moving(_reshape),
    "Flatten": moving(_flatten),
    "Squeeze": moving(_squeeze),
    "Unsqueeze": moving(_unsqueeze),
    "Transpose": moving(_transpose),
    "Concat": moving(_concat),
    "Split": moving(_split),
    "Slice": moving(_slice),
    "Gather": moving(_gather),
    "Shape": moving(_shape),
    "Size": moving(lambda node, given: (np.asarray(given[0].size, np.int64),)),
    "Expand": moving(_expand),
    "Pad": moving(_pad),
    "Dropout": moving(_dropout),
}
