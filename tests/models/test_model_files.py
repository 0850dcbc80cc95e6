"""Models and inputs that cannot be: one clear line, status 2, nothing unpickled."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import Maker, onnx

from numbadnn.__main__ import main


def one_node() -> Any:
    m = Maker()
    return m.model(m.node("Add", m.input("x", ["N", 2, 3]), m.weights(2, 3)))


def opset(model: Any) -> None:
    model.opset_import[0].version = 99


def old_opset(model: Any) -> None:
    model.opset_import[0].version = 6


def no_opset(model: Any) -> None:
    del model.opset_import[:]


def operator(model: Any) -> None:
    model.graph.node[0].op_type = "Adds"


def other_domain(model: Any) -> None:
    model.graph.node[0].domain = "com.microsoft"


def nothing_makes(model: Any) -> None:
    model.graph.node[0].input[0] = "q"


def nothing_makes_output(model: Any) -> None:
    model.graph.output[0].name = "q"


def circle(model: Any) -> None:
    model.graph.node[0].input[0] = "back"
    model.graph.node.append(onnx.helper.make_node("Relu", [model.graph.node[0].output[0]], ["back"], "again"))


def two_sources(model: Any) -> None:
    model.graph.node.append(onnx.helper.make_node("Relu", ["x"], [model.graph.node[0].output[0]], "again"))


def missing_file(model: Any, location: str = "gone.data") -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)


def file_elsewhere(model: Any) -> None:
    missing_file(model, "../../etc/passwd")


def short_file(model: Any) -> None:
    Path("short.data").write_bytes(b"1234")
    missing_file(model, "short.data")


def three_gigabytes(model: Any) -> None:
    missing_file(model)
    del model.graph.initializer[0].dims[:]
    model.graph.initializer[0].dims.extend([3 << 28])


def negative(model: Any) -> None:
    model.graph.initializer[0].dims[0] = -2


def wrong_length(model: Any) -> None:
    model.graph.initializer[0].raw_data = b"123"


def texts(model: Any) -> None:
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.STRING


def shapes(model: Any) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5


def strange_type(model: Any) -> None:
    model.graph.initializer[0].data_type = 77


def replaced(model: Any, op: str, inputs: list[str], **attributes: Any) -> None:
    """The only node, with a truth value "yes", two "both" and numbers "x" to read."""
    numpy_helper = onnx.numpy_helper
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([True, False]), "both"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(2), "two"))
    output = model.graph.output[0].name
    model.graph.node[0].CopyFrom(onnx.helper.make_node(op, inputs, [output], "n", **attributes))


def inner(*inputs: str) -> Any:
    info = onnx.helper.make_empty_tensor_value_info
    return onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["r"])], "inner", [info(name) for name in inputs], [info("r")]
    )


def no_branch(model: Any) -> None:
    replaced(model, "If", ["yes"], else_branch=inner())


def branch_by_two(model: Any) -> None:
    replaced(model, "If", ["both"], then_branch=inner(), else_branch=inner())


def short_body(model: Any) -> None:
    replaced(model, "Loop", ["two", "", "x"], body=inner("turn", "state"))


def no_body(model: Any) -> None:
    replaced(model, "Loop", ["two", "", "x"])


def padding_by_no_name(model: Any) -> None:
    replaced(model, "MaxPool", ["x"], kernel_shape=[2], auto_pad="SAME")


def no_such_axis(model: Any) -> None:
    replaced(model, "Softmax", ["x"], axis=3)


MODELS: tuple[tuple[Callable[[Any], None], str], ...] = (
    (opset, "expected opset 7 to "),
    (old_opset, "expected opset 7 to "),
    (no_opset, "is not an ONNX model"),
    (operator, "node add0: expected an operator of ONNX, got Adds"),
    (other_domain, "node add0: expected an operator of ONNX, got com.microsoft::Add"),
    (nothing_makes, "node add0: nothing makes its input 'q'"),
    (nothing_makes_output, "nothing makes the output 'q'"),
    (circle, "expected a graph without circles, got nodes that wait for each other: add0, again"),
    (two_sources, "expected one source of 'add0_out', got a second, Relu again"),
    (missing_file, "c0: its data are in 'gone.data', which is no file beside the model"),
    (file_elsewhere, "c0: its data are in '../../etc/passwd', which is no file beside the model"),
    (short_file, "c0: expected 24 bytes from 0 of short.data, which is too short"),
    (three_gigabytes, "c0: expected at most 2 GiB, got 3 GiB (FLOAT (805306368,))"),
    (negative, "c0: expected at most 2 GiB, got -"),
    (wrong_length, "c0: expected FLOAT (2, 3), got other data"),
    (texts, "input x: expected an array of numbers"),
    (strange_type, "c0: expected numbers, got type 77, which is none"),
    (no_branch, "node n (If): expected a graph as its then_branch, got none"),
    (branch_by_two, "node n: expected one number to branch or to count by, got shape (2,)"),
    (short_body, "node n (Loop): expected a body with 3 inputs and 2 outputs or more, got 2 and 1"),
    (no_body, "node n (Loop): expected a graph as its body, got none"),
    (
        padding_by_no_name,
        "node n (MaxPool): ValueError: auto_pad: expected NOTSET, VALID, SAME_UPPER or SAME_LOWER, got 'SAME'",
    ),
    (no_such_axis, "node n (Softmax): ValueError: axis: expected one of an array of 3, got 3"),
    (shapes, "node add0 (Add): ValueError: operands could not be broadcast together"),
)


def says(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", *words]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1 and not printed.out


@pytest.mark.parametrize(("change", "message"), MODELS, ids=[change.__name__ for change, _ in MODELS])
def test_models(
    change: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = one_node()
    change(model)
    Path("m.onnx").write_bytes(model.SerializeToString())
    says(["m.onnx", "--backend", "cpu"], message, capsys)


@pytest.mark.parametrize(
    ("words", "message"),
    (
        (["none.onnx"], "cannot read none.onnx: No such file"),
        (["text.onnx"], "text.onnx is not an ONNX model"),
        (["empty.onnx"], "empty.onnx is not an ONNX model"),
        (["m.onnx", "--dim", "N"], "--dim: expected NAME=SIZE, as N=1, got 'N'"),
        (["m.onnx", "--dim", "N=0"], "--dim: expected NAME=SIZE, as N=1, got 'N=0'"),
        (
            ["m.onnx", "--dim", "M=2"],
            "--dim: the inputs that are made up have no open size 'M'; those with a name are N",
        ),
        (["open.onnx"], "input x: axis 1 has no size: give it by --dim x.1=SIZE"),
        (["m.onnx", "--input", "none.npz"], "--input: cannot read none.npz"),
        (["m.onnx", "--input", "objects.npz"], "objects.npz is not a .npz file: Object arrays cannot be loaded"),
        (["m.onnx", "--input", "other.npz"], "--input: the model has no input 'y', its inputs are x"),
        (["m.onnx", "--input", "wide.npz"], "--input: x: expected float32, as the model declares it, got float64"),
        (["m.onnx", "--input", "long.npz"], "--input: x: expected shape ('N', 2, 3), got (1, 2, 4)"),
        (["m.onnx", "conv2d"], "expected one MODEL.onnx by itself"),
        (["conv2d", "--against", "onnxruntime"], "expected one MODEL.onnx by itself"),
        (["m.onnx", "--data", "x.npy"], "--data: expected cases, not a model"),
        (["m.onnx", "--budget", "3"], "--budget: expected cases, not a model"),
    ),
    ids=lambda v: " ".join(v) if isinstance(v, list) else None,
)
def test_inputs(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(one_node(), "m.onnx")
    m = Maker()
    m.save(Path("open.onnx"), m.node("Relu", m.input("x", ["N", "?", 3])))
    Path("text.onnx").write_text("no model")
    Path("empty.onnx").touch()
    np.savez("objects.npz", x=np.array([{}], dtype=object))
    np.savez("other.npz", y=np.ones(1))
    np.savez("wide.npz", x=np.ones((1, 2, 3)))
    np.savez("long.npz", x=np.ones((1, 2, 4), "f"))
    says(words, message, capsys)


def test_without_onnx_it_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["validate", "m.onnx"]) == 3
    assert "models need onnx: pip install 'numbadnn[onnx]'" in capsys.readouterr().err


def test_nodes_in_any_order_are_read_in_little_time(tmp_path: Path) -> None:
    """5,000 of them, each before the one that it waits for: tried again and again they took a minute."""
    from numbadnn.validate.model import files

    model, begin = one_node(), time.process_time()
    nodes = [onnx.helper.make_node("Relu", [f"a{n}" if n else "x"], [f"a{n + 1}"]) for n in range(5000)]
    model.graph.node.extend(reversed(nodes))
    graph = files.Reader(model, "m.onnx").graph()
    assert [node.inputs[0] for node in graph.nodes if node.op == "Relu"] == ["x", *(f"a{n}" for n in range(1, 5000))]
    assert time.process_time() - begin < 10
