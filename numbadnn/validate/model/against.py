"""Another runtime on the same model: what it holds at every step, to be judged as numbadnn's own steps are.

The model is laid flat first: the branches that were taken and the turns of loops one after the other, under the names that the
walk gives. Every name is an output then, so that the runtime shows what it has there, and fuses nothing across it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from numbadnn.errors import BackendUnavailableError
from numbadnn.validate.model.files import onnx_module
from numbadnn.validate.model.graph import Graph, ModelError, Value
from numbadnn.validate.model.walk import Walk
from numbadnn.validate.model.work import Work

RUNTIMES = ("onnxruntime",)


class Other:
    """``held``: what a runtime called ``name`` had under each name of the walk."""

    def __init__(self, name: str, held: Mapping[str, np.ndarray]) -> None:
        self.name, self._held = name, held

    def arrays(self, values: list[Any]) -> list[Any]:
        """Its arrays for these values; constants are the same to everybody; None where it has none."""
        return [None if v is None else self._held.get(v.name, v.carried if v.wide is None else None) for v in values]


class Flat:
    """Looks at a walk and lays it flat: ``model`` gives it as a protobuf whose every name is an output."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: dict[str, np.ndarray] = {}
        self._made: set[str] = set()
        self._opset = 0

    def __call__(self, number: int, name: str, work: Work, inputs: list[Any], outputs: list[Value]) -> None:
        self._opset = work.node.opset
        proto = onnx_module().NodeProto()
        proto.CopyFrom(work.node.proto)
        del proto.input[:], proto.output[:]
        proto.name = name
        proto.input.extend("" if v is None else v.name for v in inputs)
        proto.output.extend(v.name if own else "" for v, own in zip(outputs, work.node.outputs, strict=False))
        self._nodes.append(proto)
        for value in inputs:
            if value is not None and value.name not in self._made:
                self._constants[value.name] = value.carried
        self._made.update(v.name for v in outputs)

    def model(self, feeds: Mapping[str, np.ndarray]) -> Any:
        helper, numpy_helper = onnx_module().helper, onnx_module().numpy_helper
        of = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in feeds.items()}
        inputs = [helper.make_tensor_value_info(name, of[name], array.shape) for name, array in feeds.items()]
        outputs = [helper.make_empty_tensor_value_info(name) for node in self._nodes for name in node.output if name]
        kept = {n: a for n, a in self._constants.items() if n not in feeds}
        constants = [numpy_helper.from_array(np.asarray(array, order="C"), name) for name, array in kept.items()]
        graph = helper.make_graph(self._nodes, "flat", inputs, outputs, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)], ir_version=8)


def held_by(name: str, graph: Graph, feeds: Mapping[str, np.ndarray]) -> Other:
    """What this runtime has at each step; ModelError where it refuses the model."""
    if name not in RUNTIMES:
        raise ModelError(f"--against: expected {', '.join(RUNTIMES)}, got {name!r}")
    try:
        import onnxruntime
    except ImportError:
        raise BackendUnavailableError("--against onnxruntime: pip install 'numbadnn[onnx]'") from None
    flat = Flat()
    Walk(flat).run(graph, feeds)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        proto = flat.model(feeds).SerializeToString()
        session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return Other(name, dict(zip(names, session.run(names, dict(feeds)), strict=True)))
    except Exception as error:  # its own classes
        raise ModelError(f"onnxruntime refuses the model: {error}") from None
