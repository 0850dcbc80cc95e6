"""Operators whose attributes became inputs, or whose defaults changed, mean in each opset what onnxruntime takes them for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import Maker, onnx

from numbadnn.validate.model import command, files

onnxruntime = pytest.importorskip("onnxruntime")
OPSETS = range(files.OLDEST, onnx.defs.onnx_opset_version() + 1)


def integers(m: Maker, *numbers: int) -> str:
    return m.constant(np.array(numbers, np.int64))


def by(m: Maker, since: int, op: str, x: str, **named: Any) -> str:
    """Attributes before this opset, inputs in their order from then on."""
    if m.opset < since:
        return m.node(op, x, **{k: v for k, v in named.items() if v is not None})
    inputs = ["" if v is None else m.constant(np.asarray(v, np.float32 if isinstance(v, float) else np.int64))
              for v in named.values()]  # fmt: skip
    return m.node(op, x, *inputs)


def network(opset: int, path: Path) -> str:
    m = Maker(opset)
    x = m.input("x", [2, 3, 8, 10])
    y = by(m, 11, "Clip", x, min=-1.5, max=1.25)
    y = by(m, 10, "Slice", y, starts=[1, -9], ends=[100, -1], axes=[2, 3])
    y = by(m, 11, "Pad", y, pads=[0, 0, 1, 2, 0, 0, 0, 1])
    y = by(m, 13, "Unsqueeze", y, axes=[0])
    y = by(m, 13, "Squeeze", y, axes=[0])
    statistics = [m.weights(3), m.weights(3), m.weights(3), m.constant(np.array([0.5, 1, 2], np.float32))]
    y = m.node("BatchNormalization", y, *statistics)
    if opset < 10:
        scales = [1.0, 1.0, 2.0, 2.0]
        more = {"scales": scales} if opset < 9 else {}
        extra = [] if opset < 9 else [m.constant(np.array(scales, np.float32))]
        y = m.node("Upsample", y, *extra, mode="linear", **more)
    else:
        scales = m.constant(np.array([1, 1, 2, 2], np.float32))
        roi = [] if opset < 11 else [m.constant(np.zeros(0, np.float32))]
        y = m.node("Resize", y, *roi, scales, mode="nearest")
        y = m.node("Resize", y, *roi, scales, mode="linear")
    y = m.node("Softmax", m.node("Softmax", y, axis=1))
    y = m.node("Div", y, by(m, 18 if opset >= 18 else 99, "ReduceMax", y, axes=[1, 2]))
    y = m.node("LogSoftmax", y)
    y = by(m, 18 if opset >= 18 else 99, "ReduceMean", y, axes=[2])
    y = by(m, 13, "ReduceSum", y, axes=[1])
    y = m.node("Dropout", y)
    count = {"num_outputs": 2} if opset >= 18 else {}
    m.nodes.append(onnx.helper.make_node("Split", [y], ["left", "right"], "split", axis=0, **count))
    return m.save(path, m.node("Pow", m.node("Abs", "left"), m.constant(np.array(2, np.float32))), "right")


@pytest.mark.parametrize("opset", OPSETS)
def test_opset(opset: int, tmp_path: Path) -> None:
    path = network(opset, tmp_path / "m.onnx")
    found = command.judged(path, None, {}, "cpu", folder=str(tmp_path), timed=False, runtime="onnxruntime")
    assert all(row.status == "ok" for row in found.rows), command.summary(found, 0)
    assert {row.op for row in found.rows} >= {"Clip", "Softmax", "ReduceSum", "BatchNormalization"}
    assert {row.impl for row in found.rows} >= {"onnxruntime", "numpy", "cpu.loops"}
