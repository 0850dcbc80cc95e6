"""One node as a model of its own: all that it reads is inside, so that it shows again what was seen."""

from __future__ import annotations

import numpy as np

from numbadnn.validate.model.files import onnx_module
from numbadnn.validate.model.work import Work


def model_of(work: Work) -> object:
    """The node with its inputs as constants; it has no inputs of its own."""
    onnx = onnx_module()
    constants = {
        name: onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)
        for name, array in zip(work.node.inputs, work.given, strict=False)
        if name
    }
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in work.node.outputs if name]
    graph = onnx.helper.make_graph([work.node.proto], work.node.name, [], outputs, list(constants.values()))
    opsets = [onnx.helper.make_opsetid("", work.node.opset)]
    return onnx.helper.make_model(graph, opset_imports=opsets, producer_name="numbadnn")


def write_alone(work: Work, path: str) -> str:
    """Write it there; the path, or "" where it is too large for a file."""
    onnx = onnx_module()
    try:
        onnx.save(model_of(work), path)
    except (ValueError, OSError):  # protobuf's limit of 2 GB, or a full disk
        return ""
    return path
