"""`numbadnn validate model.onnx`: whole models are right, alone and beside onnxruntime; what is reported; one-node models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import Maker, light, of_package, onnx, small_network

from numbadnn.__main__ import main
from numbadnn.validate.documents import flat
from numbadnn.validate.model import against, command, files, inputs
from numbadnn.validate.model.judge import Judge

pytest.importorskip("onnxruntime")


SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "report.schema.json"


def judged(path: Any, tmp_path: Path, **more: Any) -> Judge:
    return command.judged(str(path), backends="cpu", folder=str(tmp_path), timed=False, **more)


def right(judge: Judge) -> Judge:
    """Every arithmetic node is within its bound, and nothing was left out."""
    assert judge.rows and all(row.status == "ok" and row.local <= 1 for row in judge.rows), command.summary(judge, 0)
    assert judge.flops == judge.judged and not judge.alone
    assert max(row.carried or 0 for row in judge.rows) < 1e-4
    return judge


@pytest.mark.parametrize("seed", (0, 1, 2))
def test_a_network_of_every_kind_of_layer(seed: int, tmp_path: Path) -> None:
    found = right(judged(small_network(tmp_path / "m.onnx", seed), tmp_path, seed=seed, runtime="onnxruntime"))
    assert {row.impl for row in found.rows} >= {"onnxruntime", "cpu.im2col", "cpu.corrmm", "cpu.loops", "numpy"}
    of_conv = [row for row in found.rows if row.op == "Conv" and row.impl != "onnxruntime"]
    assert all(row.problem.startswith("conv2d x=float32:1x") and "numbadnn validate" in row.replay for row in of_conv)


@pytest.mark.parametrize("name", ("silero_vad", "silero_vad_op18_ifless", "silero_vad_half", "silero_vad_16k_sequence"))
def test_silero(name: str, tmp_path: Path) -> None:
    path = of_package("silero_vad", f"{name}.onnx", tmp_path)
    rng, given = np.random.default_rng(3), tmp_path / "x.npz"
    batch = 3 if name.endswith("sequence") else 1
    arrays: dict[str, Any] = {"input": rng.standard_normal((batch, 576)).astype("f")}
    if batch == 1:
        arrays["state"] = np.zeros((2, 1, 128), "f")
    if name in ("silero_vad", "silero_vad_op18_ifless"):
        arrays["sr"] = np.array(16000)
    np.savez(given, **arrays)
    found = right(judged(path, tmp_path, input_file=str(given), runtime="onnxruntime"))
    assert {"Conv", "Sigmoid", "Sqrt"} < {row.op for row in found.rows}


@pytest.mark.parametrize("name", ("ch_ppocr_mobile_v2.0_cls_infer", "ch_PP-OCRv4_det_infer"))
def test_rapidocr(name: str, tmp_path: Path) -> None:
    path = of_package("rapidocr_onnxruntime", f"{name}.onnx", tmp_path)
    right(judged(path, tmp_path, dims={"x.2": 48, "x.3": 96} if "cls" in name else {"x.2": 32, "x.3": 64}))


@pytest.mark.slow(15)
def test_squeezenet(tmp_path: Path) -> None:
    found = right(judged(light("squeezenet"), tmp_path))
    assert found.flops > 7e8


@pytest.mark.gpu
@pytest.mark.slow(40)
def test_a_network_on_a_gpu(tmp_path: Path) -> None:
    found = command.judged(small_network(tmp_path / "m.onnx"), folder=str(tmp_path), timed=False)
    assert all(row.status == "ok" for row in found.rows), command.summary(found, 0)
    assert {row.impl.split(".")[0] for row in found.rows if row.op == "Conv"} == {"cpu", "cudnn", "numba"}


def test_what_another_runtime_refuses_is_one_line(tmp_path: Path) -> None:
    m = Maker()
    y = m.node("Cast", m.input("x", [2]), to=onnx.TensorProto.BFLOAT16)
    path = m.save(tmp_path / "m.onnx", m.node("Atanh", y))
    with pytest.raises(files.ModelError, match="^onnxruntime refuses the model: [^\n]*$"):
        judged(path, tmp_path, runtime="onnxruntime")


def test_branches_and_loops_are_walked_into(tmp_path: Path) -> None:
    def branch(name: str, op: str) -> Any:
        node = onnx.helper.make_node(op, ["x"], [f"{name}_y"], name)
        return onnx.helper.make_graph([node], name, [], [onnx.helper.make_empty_tensor_value_info(f"{name}_y")])

    m = Maker()
    m.input("x", [2, 3])
    y = m.node("If", m.constant(np.array(False)), then_branch=branch("yes", "Sqrt"), else_branch=branch("no", "Tanh"))
    info = onnx.helper.make_tensor_value_info
    body = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Identity", ["on"], ["still"]),
            onnx.helper.make_node("Mul", ["state", "x"], ["next"], "times"),
            onnx.helper.make_node("Identity", ["next"], ["kept"]),
        ],
        "body",
        [info("turn", 7, []), info("on", 9, []), info("state", 1, [2, 3])],
        [info("still", 9, []), info("next", 1, [2, 3]), info("kept", 1, [2, 3])],
    )
    m.nodes.append(onnx.helper.make_node("Loop", [m.constant(np.array(3)), "", y], ["last", "all"], "turns", body=body))
    found = right(judged(m.save(tmp_path / "m.onnx", "last", "all"), tmp_path, runtime="onnxruntime"))
    assert [row.name for row in found.rows if row.impl == "numpy"] == [
        f"{m.nodes[0].name}/no", "turns[0]/times", "turns[1]/times", "turns[2]/times"
    ]  # fmt: skip


def test_what_nobody_can_judge_is_named(tmp_path: Path) -> None:
    m = Maker()
    x = m.input("x", [1, 1, 6, 6])
    scales = m.constant(np.array([1, 1, 2, 2], np.float32))
    y = m.node("Resize", x, "", scales, mode="cubic")
    found = judged(m.save(tmp_path / "m.onnx", m.node("Exp", y)), tmp_path)
    assert [row.status for row in found.rows] == ["not judged", "ok"] and found.judged < found.flops
    assert "not judged 1 x: Resize with mode cubic" in command.summary(found, 0)


def test_float16_and_float64_models(tmp_path: Path) -> None:
    for kind, dtype in ((onnx.TensorProto.FLOAT16, np.float16), (onnx.TensorProto.DOUBLE, np.float64)):
        m = Maker()
        x = m.input("x", [1, 3, 6, 6], kind)
        y = m.node("Conv", x, m.constant(m.rng.standard_normal((4, 3, 3, 3)).astype(dtype)))
        found = judged(m.save(tmp_path / "m.onnx", m.node("Softmax", m.node("Tanh", y))), tmp_path)
        assert all(row.status == "ok" for row in found.rows), command.summary(found, 0)
        assert dtype.__name__ in found.rows[0].problem


def test_external_data_and_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    small_network(Path("m.onnx"))
    model = onnx.load("m.onnx")
    onnx.save(model, "n.onnx", save_as_external_data=True, location="n.data", size_threshold=0)
    assert Path("n.data").stat().st_size > 1000
    assert main(["validate", "n.onnx", "--backend", "cpu", "--dim", "N=2", "--json", "n.json"]) == 0
    out = capsys.readouterr().out
    assert "of its bound" not in out and "100 % of" in out
    document = json.loads(Path("n.json").read_text())
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)
    rows = flat.rows(document)
    assert document["model"] == "n.onnx" and {row["state"] for row in rows} == {"ok"}
    assert "conv2d x=float32:2x3x20x20" in rows[0]["problem"]


def test_the_first_node_out_of_its_bound_is_named_and_can_be_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = small_network(Path("m.onnx"))
    right_held = against.held_by

    def held(name: str, graph: Any, feeds: Any) -> against.Other:
        other = right_held(name, graph, feeds)
        broken = graph.nodes[6].outputs[0]
        other._held[broken] = other._held[broken] * np.float32(1.001)
        return other

    monkeypatch.setattr(against, "held_by", held)
    assert main(["validate", path, "--backend", "cpu", "--against", "onnxruntime"]) == 1
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if line.startswith("first out of its bound")]
    assert "convtranspose6 (ConvTranspose) on onnxruntime: " in line
    assert "numbadnn validate m-node" in out
    alone = next(Path(".").glob("m-node*.onnx"))
    monkeypatch.setattr(against, "held_by", right_held)
    assert main(["validate", str(alone), "--backend", "cpu", "--against", "onnxruntime"]) == 0
    (node,) = files.Reader(files.load(str(alone)), str(alone)).graph().nodes
    assert node.op == "ConvTranspose" and not node.proto.domain


def test_interrupted_it_shows_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    look = Judge.__call__

    def interrupted(self: Judge, number: int, *more: Any) -> None:
        if number == 3:
            raise KeyboardInterrupt
        look(self, number, *more)

    monkeypatch.setattr(Judge, "__call__", interrupted)
    assert main(["validate", small_network(Path("m.onnx")), "--backend", "cpu"]) == 130
    out = capsys.readouterr().out
    assert (
        "relu1" in out and "2 of 2 arithmetic nodes" in out and "interrupted: the nodes after these were not run" in out
    )


def test_arrays_are_kept_only_while_they_are_read(tmp_path: Path) -> None:
    import gc
    import weakref

    from numbadnn.validate.model.walk import Walk

    m = Maker()
    x = m.input("x", [64, 64])
    for _ in range(12):
        x = m.node("Relu", x)
    path = m.save(tmp_path / "m.onnx", x)
    seen: list[Any] = []
    most = 0

    def look(number: int, name: str, work: Any, given: Any, outputs: Any) -> None:
        nonlocal most
        seen.append(weakref.ref(outputs[0]))
        gc.collect()
        most = max(most, sum(ref() is not None for ref in seen))

    graph = files.Reader(files.load(path), path).graph()
    gc.freeze()  # what other tests left behind is not looked through twelve times
    try:
        Walk(look).run(graph, inputs.inputs_for(graph, None, {}))
    finally:
        gc.unfreeze()
    assert len(seen) == 12 and most <= 2


@pytest.mark.parametrize("sizes", (None, 2, [2, 1, 2]))
def test_sequences_of_arrays_whose_shapes_differ(sizes: Any, tmp_path: Path) -> None:
    """What they are made of is judged behind them; another runtime's sequence is no array, and is passed over."""
    pytest.importorskip("onnxruntime")
    m = Maker()
    x, one, last = m.input("x", [3, 5]), m.constant(np.array(1)), m.constant(np.array(-1))
    parts = m.node("SplitToSequence", x, *([] if sizes is None else [m.constant(np.array(sizes))]), axis=1)
    longer = m.node(
        "SequenceInsert", m.node("SequenceErase", parts, one), m.node("Relu", m.node("SequenceAt", parts, one))
    )
    whole = m.node("ConcatFromSequence", longer, axis=1)
    count = m.node("Cast", m.node("SequenceLength", m.node("SequenceInsert", longer, x, last)), to=1)
    path = m.save(tmp_path / "m.onnx", m.node("Sigmoid", m.node("Mul", whole, count)))
    found = command.judged(path, folder=str(tmp_path), backends="cpu", timed=False, runtime="onnxruntime")
    assert command.exit_status(found) == 0 and found.judged == found.flops, command.summary(found, 0)
    assert [row.op for row in found.rows if row.impl == "numpy"] == ["Relu", "Cast", "Mul", "Sigmoid"]
    assert {"Mul", "Sigmoid"} <= {row.op for row in found.rows if row.impl == "onnxruntime" and row.status == "ok"}
