"""Another runtime on the same model: what it holds at every step, to be judged as numbadnn's own steps are.

The model is laid flat first: the branches that were taken and the turns of loops one after the other, under the names that the
walk gives. Every name is an output then, so that the runtime shows what it has there, and fuses nothing across it.
"""

from __future__ import annotations

import importlib.util
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
    """``held``: what a runtime called ``name`` had under each name of the walk; ``flat``: the model that it ran."""

    def __init__(self, name: str, held: Mapping[str, np.ndarray], flat: Flat) -> None:
        self.name, self._held, self._flat = name, held, flat

    def probed(self, output: str, x: np.ndarray) -> np.ndarray | None:
        """What it makes of another first input of the node that makes this output; None where it has no such node."""
        proto = self._flat.alone(output, x)
        return None if proto is None else _run(proto, {"probe": x})[output]

    def arrays(self, values: list[Any]) -> list[Any]:
        """Its arrays for these values; constants are the same to everybody; None where it has none, or a sequence."""

        def held(value: Any) -> Any:
            if value is None or value.dtype == object:
                return None
            return self._held.get(value.name, value.carried if value.wide is None else None)

        return [held(value) for value in values]


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

    def alone(self, output: str, x: np.ndarray) -> Any:
        """The node that makes this output, as a model that reads ``probe`` first and constants else; None: it is no such node."""
        node = next((node for node in self._nodes if output in node.output), None)
        if node is None or any(name and name not in self._constants for name in node.input[1:]):
            return None
        proto = onnx_module().NodeProto()
        proto.CopyFrom(node)
        proto.input[0] = "probe"
        constants = {name: self._constants[name] for name in proto.input[1:] if name}
        return self._model([proto], {"probe": x}, constants)

    def model(self, feeds: Mapping[str, np.ndarray]) -> Any:
        return self._model(self._nodes, feeds, {n: a for n, a in self._constants.items() if n not in feeds})

    def _model(self, nodes: list[Any], feeds: Mapping[str, np.ndarray], kept: Mapping[str, np.ndarray]) -> Any:
        helper, numpy_helper = onnx_module().helper, onnx_module().numpy_helper
        of = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in feeds.items()}
        inputs = [helper.make_tensor_value_info(name, of[name], array.shape) for name, array in feeds.items()]
        outputs = [helper.make_empty_tensor_value_info(name) for node in nodes for name in node.output if name]
        constants = [numpy_helper.from_array(np.asarray(array, order="C"), name) for name, array in kept.items()]
        graph = helper.make_graph(nodes, "flat", inputs, outputs, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)], ir_version=8)


def _run(model: Any, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every output of a model by its name; ModelError where onnxruntime refuses it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        found = zip(names, session.run(names, dict(feeds)), strict=True)
        return {name: value for name, value in found if isinstance(value, np.ndarray)}  # a sequence is not judged
    except Exception as error:  # its own classes
        raise ModelError(f"onnxruntime refuses the model: {error}") from None


def held_by(name: str, graph: Graph, feeds: Mapping[str, np.ndarray]) -> Other:
    """What this runtime has at each step; ModelError where it refuses the model."""
    if name not in RUNTIMES:
        raise ModelError(f"--against: expected {', '.join(RUNTIMES)}, got {name!r}")
    if importlib.util.find_spec(name) is None:
        raise BackendUnavailableError(f"--against {name}: pip install 'numbadnn[onnx]'")
    flat = Flat()
    Walk(flat).run(graph, feeds)
    return Other(name, _run(flat.model(feeds), feeds), flat)
