"""Reading ``.onnx`` files: what is no model, or cannot be run, is a ``ModelError`` of one line before anything is computed."""

from __future__ import annotations

import heapq
import math
from pathlib import Path
from typing import Any

import numpy as np

from numbadnn.errors import BackendUnavailableError
from numbadnn.validate.model.graph import Graph, ModelError, Node

#: the oldest opset whose operators are known here
OLDEST = 7
#: bytes of one constant: protobuf's own limit for a message
LARGEST = 1 << 31
#: the domains of ONNX's own operators
DOMAINS = ("", "ai.onnx")


def onnx_module() -> Any:
    try:
        import onnx
    except ImportError:
        raise BackendUnavailableError("models need onnx: pip install 'numbadnn[onnx]'") from None
    return onnx


def load(path: str) -> Any:
    """The model's protobuf with functions inlined and without external data; ModelError for a file that is none."""
    onnx = onnx_module()
    try:
        model = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
    except Exception as error:  # protobuf's own classes
        raise ModelError(f"{path} is not an ONNX model: {error}") from None
    if not model.opset_import or not model.graph.node:
        raise ModelError(f"{path} is not an ONNX model: expected an opset and nodes, got none")
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST <= opset_of(model) <= newest:
        raise ModelError(
            f"{path}: expected opset {OLDEST} to {newest} (onnx {onnx.__version__}), got {opset_of(model)}"
        )
    if model.functions:
        from onnx.inliner import inline_local_functions

        model = inline_local_functions(model)
    return model


def opset_of(model: Any) -> int:
    return max((entry.version for entry in model.opset_import if entry.domain in DOMAINS), default=0)


class Reader:
    """Turns a model's protobuf into a ``Graph``, with the external data that lie beside its file."""

    def __init__(self, model: Any, path: str) -> None:
        self.onnx, self.model, self.path, self.opset = onnx_module(), model, path, opset_of(model)
        self._known = {schema.name for schema in self.onnx.defs.get_all_schemas_with_history() if schema.domain == ""}

    def graph(self) -> Graph:
        return self._graph(self.model.graph, set())

    def _graph(self, proto: Any, around: set[str]) -> Graph:
        if proto.sparse_initializer:
            raise ModelError(
                f"{self.path}: expected dense constants, got sparse {proto.sparse_initializer[0].values.name!r}"
            )
        constants = {tensor.name: self.array(tensor) for tensor in proto.initializer}
        inputs = {i.name: i.type for i in proto.input if i.name not in constants}
        made = {*constants, *inputs, ""}
        for node in proto.node:
            for name in node.output:
                if name and name in made:
                    raise ModelError(f"{self.path}: expected one source of {name!r}, got a second, {_shown(node)}")
                made.add(name)
        nodes = [self._node(node, around | made, number) for number, node in enumerate(proto.node)]
        for output in proto.output:
            if output.name not in made | around:
                raise ModelError(f"{self.path}: nothing makes the output {output.name!r}")
        order = self._ordered(nodes, around | {*constants, *inputs}, around | made)
        return Graph(tuple(order), constants, tuple(inputs), tuple(o.name for o in proto.output), inputs)

    def _node(self, proto: Any, around: set[str], number: int) -> Node:
        shown = proto.name or next((name for name in proto.output if name), f"{proto.op_type}_{number}")
        if proto.domain not in DOMAINS or proto.op_type not in self._known:
            domain = f"{proto.domain}::" if proto.domain else ""
            raise ModelError(f"{self.path}: node {shown}: expected an operator of ONNX, got {domain}{proto.op_type}")
        attributes = {a.name: self._attribute(a, around) for a in proto.attribute}
        return Node(proto.op_type, shown, tuple(proto.input), tuple(proto.output), attributes, self.opset, proto)

    def _attribute(self, proto: Any, around: set[str]) -> Any:
        value = self.onnx.helper.get_attribute_value(proto)
        if isinstance(value, self.onnx.TensorProto):
            return self.array(value)
        if isinstance(value, self.onnx.GraphProto):
            return self._graph(value, around)
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        if isinstance(value, list):
            return tuple(v.decode(errors="replace") if isinstance(v, bytes) else v for v in value)
        return value

    def _ordered(self, nodes: list[Node], there: set[str], known: set[str]) -> list[Node]:
        """The nodes, each after those whose outputs it reads; a circle and a name that nothing makes are ModelErrors."""
        lacking: list[set[str]] = []  # of each node, what it reads that is not there yet
        readers: dict[str, list[int]] = {}
        for number, node in enumerate(nodes):
            reads = node.reads
            if missing := reads - known:
                raise ModelError(f"{self.path}: node {node.name}: nothing makes its input {min(missing)!r}")
            lacking.append(reads - there)
            for name in lacking[-1]:
                readers.setdefault(name, []).append(number)
        ready = [number for number, names in enumerate(lacking) if not names]
        order = []
        while ready:  # a heap: of the nodes that can run the first in the file
            order.append(heapq.heappop(ready))
            for name in nodes[order[-1]].outputs:
                for reader in readers.pop(name, ()):
                    lacking[reader].discard(name)
                    if not lacking[reader]:
                        heapq.heappush(ready, reader)
        if len(order) < len(nodes):
            names = ", ".join([node.name for node, waits in zip(nodes, lacking, strict=True) if waits][:3])
            raise ModelError(
                f"{self.path}: expected a graph without circles, got nodes that wait for each other: {names}"
            )
        return [nodes[number] for number in order]

    def array(self, tensor: Any) -> np.ndarray:
        """A constant; ModelError for one that is too large, whose file is not there or whose data are too short."""
        name, shape = tensor.name or "a constant", tuple(tensor.dims)
        kind = f"{tensor.data_type}, which is none"
        try:
            kind = self.onnx.TensorProto.DataType.Name(tensor.data_type)
            itemsize = np.dtype(self.onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize
        except (KeyError, TypeError, ValueError):
            raise ModelError(f"{self.path}: {name}: expected numbers, got type {kind}") from None
        nbytes = math.prod(shape) * itemsize
        if min(shape, default=0) < 0 or nbytes > LARGEST:
            raise ModelError(
                f"{self.path}: {name}: expected at most 2 GiB, got {nbytes / 2**30:.3g} GiB ({kind} {shape})"
            )
        try:
            if tensor.data_location == self.onnx.TensorProto.EXTERNAL:
                return self._external(tensor, name, shape, nbytes)
            return self.onnx.numpy_helper.to_array(tensor)
        except ModelError:
            raise
        except Exception as error:  # whatever onnx makes of data that do not fit
            raise ModelError(f"{self.path}: {name}: expected {kind} {shape}, got other data: {error}") from None

    def _external(self, tensor: Any, name: str, shape: tuple[int, ...], nbytes: int) -> np.ndarray:
        said = {entry.key: entry.value for entry in tensor.external_data}
        folder = Path(self.path).resolve().parent
        file = (folder / said.get("location", "")).resolve()
        if not file.is_relative_to(folder) or not file.is_file():
            raise ModelError(
                f"{self.path}: {name}: its data are in {said.get('location')!r}, which is no file beside the model"
            )
        start, length = int(said.get("offset", 0)), int(said.get("length", nbytes))
        if start < 0 or length < nbytes or file.stat().st_size < start + nbytes:
            raise ModelError(
                f"{self.path}: {name}: expected {nbytes} bytes from {start} of {file.name}, which is too short"
            )
        dtype = np.dtype(self.onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
        with open(file, "rb") as data:
            data.seek(start)
            return np.frombuffer(data.read(nbytes), dtype.newbyteorder("<")).reshape(shape).astype(dtype, copy=False)


def _shown(proto: Any) -> str:
    return f"{proto.op_type} {proto.name}".strip()
