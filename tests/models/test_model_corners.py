"""Corners of ONNX's operators, each as onnxruntime has it, in float64 and in the model's types; and whether they are judged."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import Maker, onnx

from numbadnn.validate.model import files
from numbadnn.validate.model.judge import Judge
from numbadnn.validate.model.walk import Walk

onnxruntime = pytest.importorskip("onnxruntime")
rng = np.random.default_rng(0)


def f(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype("float32")


def i(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def network(directions: int, gates: int, bias: bool = True) -> list[np.ndarray | None]:
    """X of 4 steps, 3 sequences and 2 numbers; W, R and B of 3 units."""
    return [
        f(4, 3, 2),
        f(directions, 3 * gates, 2),
        f(directions, 3 * gates, 3),
        f(directions, 6 * gates) if bias else None,
    ]


#: name -> (operator, opset, inputs, attributes)
JUDGED: dict[str, tuple[str, int, list[Any], dict[str, Any]]] = {
    "a slice backwards from before the first": ("Slice", 13, [f(2, 3), i(-9), i(-99), i(0), i(-1)], {}),
    "squares of no axis": ("ReduceSumSquare", 18, [f(2, 3)], {"noop_with_empty_axes": 1}),
    "norms of no axis": ("ReduceL1", 18, [f(2, 3)], {"noop_with_empty_axes": 1}),
    "a running sum along an axis in an array": ("CumSum", 14, [f(2, 3), i(1)], {"reverse": 1}),
    "hardmax over all from an axis on": ("Hardmax", 11, [f(2, 3, 2)], {"axis": 1}),
    "hardmax over an axis": ("Hardmax", 13, [f(2, 3, 2)], {"axis": 1}),
    "batch norm a pixel": ("BatchNormalization", 7, [f(2, 3, 4), f(3, 4), f(3, 4), f(3, 4), f(3, 4) ** 2], {"spatial": 0}),
    "fewer pixels before opset 11": ("Resize", 10, [f(1, 2, 4), np.float32([1, 1, 0.6])], {"mode": "nearest"}),
    "averages over windows with gaps": ("AveragePool", 19, [f(2, 3, 6, 7)], {"kernel_shape": [2, 3], "dilations": [3, 2],
        "pads": [1, 1, 0, 2], "strides": [2, 1]}),
    "the same with padding counted": ("AveragePool", 19, [f(2, 3, 6, 7)], {"kernel_shape": [2, 3], "dilations": [3, 2],
        "pads": [1, 1, 0, 2], "count_include_pad": 1}),
    "norms of channels": ("GlobalLpPool", 13, [f(2, 3, 4, 5)], {"p": 3}),
    "sequences of their own lengths, backwards": ("LSTM", 14, [*network(1, 4), np.int32([2, 4, 1])],
        {"hidden_size": 3, "direction": "reverse"}),
}  # fmt: skip
#: computed, and said to be not judged
VALUES: dict[str, tuple[str, int, list[Any], dict[str, Any]]] = {
    "a reset gate before the product": ("GRU", 14, [*network(2, 3), np.int32([4, 2, 1])],
        {"hidden_size": 3, "direction": "bidirectional"}),
    "clipped gates": ("GRU", 14, network(1, 3), {"hidden_size": 3, "clip": 0.5, "linear_before_reset": 1}),
    "peepholes": ("LSTM", 14, [*network(2, 4), np.int32([2, 4, 1]), None, None, f(2, 9)],
        {"hidden_size": 3, "direction": "bidirectional"}),
    "coupled gates": ("LSTM", 14, network(1, 4, bias=False), {"hidden_size": 3, "input_forget": 1}),
    "other activations": ("RNN", 14, network(2, 1), {"hidden_size": 3, "direction": "bidirectional",
        "activations": ["LeakyRelu", "HardSigmoid"], "activation_alpha": [0.3, 0.4], "activation_beta": [0.1]}),
    "a scatter of before opset 11": ("Scatter", 9, [f(3, 3), np.array([[2, 0, 1]]), f(1, 3)], {"axis": 0}),
    "an operator whose constants are float32": ("MeanVarianceNormalization", 13, [f(2, 3, 3, 4)], {"axes": [2]}),
}  # fmt: skip


def walked(op: str, opset: int, inputs: list[Any], attributes: dict[str, Any], folder: Path) -> set[str]:
    """Holds a node's outputs to onnxruntime's; what was found of it."""
    m = Maker(opset)
    names = ["" if a is None else m.constant(np.asarray(a)) for a in inputs[1:]]
    y = m.node(op, m.input("x", inputs[0].shape), *names, **attributes)
    proto, feeds = m.model(y), {"x": inputs[0]}
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (right,) = session.run(None, feeds)
    judge = Judge(str(folder), "m", "cpu", False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        value = Walk(judge).run(files.Reader(proto, "m").graph(), feeds)[y]
    assert value.dtype == right.dtype
    for array in (value.carried, value.exact):
        np.testing.assert_allclose(array, right, 1e-4, 1e-5, strict=array.dtype == right.dtype)
    return {row.status for row in judge.rows}


@pytest.mark.parametrize("case", JUDGED.values(), ids=JUDGED.keys())
def test_corners(case: Any, tmp_path: Path) -> None:
    moves = case[0] == "Slice"
    assert walked(*case, tmp_path) == (set() if moves else {"ok"})


@pytest.mark.parametrize("case", VALUES.values(), ids=VALUES.keys())
def test_values_of_what_no_bound_is_known_of(case: Any, tmp_path: Path) -> None:
    assert walked(*case, tmp_path) <= {"not judged"}


def test_large_averages_of_16_bits_are_carried_on(tmp_path: Path) -> None:
    """Their sums are infinite."""
    m, x = Maker(19), np.full((1, 1, 7, 8), 10000, np.float16)
    y = m.node(
        "AveragePool",
        m.input("x", x.shape, onnx.TensorProto.FLOAT16),
        kernel_shape=[3, 3],
        pads=[1, 1, 1, 1],
        strides=[2, 2],
    )
    judge = Judge(str(tmp_path), "m", "cpu", False)
    value = Walk(judge).run(files.Reader(m.model(y), "m").graph(), {"x": x})[y]
    assert (
        (value.carried == 10000).all()
        and np.allclose(value.exact, 10000)
        and [row.status for row in judge.rows] == ["ok"]
    )


assert onnx
