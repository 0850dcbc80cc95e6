"""Models for the tests of ``validate model.onnx``: small ones made here, and those that packages of PyPI bring."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

#: package -> folder of its models inside it
PACKAGES = {"silero_vad": "silero_vad/data", "rapidocr_onnxruntime": "rapidocr_onnxruntime/models"}


def of_package(package: str, name: str, folder: Path) -> Path:
    """A model that an installed package has, or a wheel in TESTS_MODELS; the test is skipped without."""
    inside = f"{PACKAGES[package]}/{name}"
    wheels = Path(os.environ.get("TESTS_MODELS", "."))
    for wheel in sorted(wheels.glob(f"{package}-*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(inside, folder))
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed, and no wheel of it lies in TESTS_MODELS")
    return Path(next(iter(found.submodule_search_locations))).parent / inside


def light(name: str) -> Path:
    """One of onnx's own models, whose weights are constants."""
    return Path(onnx.__file__).parent / f"backend/test/data/light/light_{name}.onnx"


class Maker:
    """Puts a graph together; every method gives the name of its output."""

    def __init__(self, opset: int = 17, seed: int = 0) -> None:
        self.rng, self.opset = np.random.default_rng(seed), opset
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []

    def input(self, name: str, shape: Any, kind: int = onnx.TensorProto.FLOAT) -> str:
        self.inputs.append(onnx.helper.make_tensor_value_info(name, kind, shape))
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(array, name))
        return name

    def weights(self, *shape: int, scale: float = 1.0) -> str:
        return self.constant((scale * self.rng.standard_normal(shape)).astype(np.float32))

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op, inputs, [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def model(self, *outputs: str) -> Any:
        made = [onnx.helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = onnx.helper.make_graph(self.nodes, "made", self.inputs, made, self.constants)
        return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", self.opset)], ir_version=8)

    def save(self, path: Path, *outputs: str) -> str:
        onnx.save(self.model(*outputs), path)
        return str(path)


def small_network(path: Path, seed: int = 0) -> str:
    """Convolutions of three kinds with what stands between them, and a classifier."""
    m = Maker(seed=seed)
    x = m.input("x", ["N", 3, 20, 20])
    x = m.node("Relu", m.node("Conv", x, m.weights(8, 3, 3, 3, scale=0.3), m.weights(8), pads=[1, 1, 1, 1]))
    x = m.node("Conv", x, m.weights(8, 1, 3, 3, scale=0.4), group=8, strides=[2, 2], pads=[0, 0, 1, 1])
    statistics = [m.weights(8), m.weights(8), m.weights(8), m.constant(np.linspace(0.5, 2, 8, dtype=np.float32))]
    x = m.node("HardSigmoid", m.node("BatchNormalization", x, *statistics))
    x = m.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = m.node("ConvTranspose", x, m.weights(8, 4, 2, 2, scale=0.3), strides=[2, 2])
    x = m.node("Conv", m.node("Sigmoid", x), m.weights(6, 4, 3, 3, scale=0.3), dilations=[2, 2])
    x = m.node("Flatten", m.node("GlobalAveragePool", x))
    return m.save(path, m.node("Softmax", m.node("Gemm", x, m.weights(5, 6), m.weights(5), transB=1)))
