"""Mistakes of one layer are named, that layer and nothing else, by check, validate and models; what is right raises no alarm.

``TESTS_TRIALS=50`` plants each mistake as often in each place, and looks for false alarms in 200 runs (``make planted``).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import planted_layers
import pytest
from onnx_models import Maker, light, of_package, onnx, small_network

import numbadnn
from numbadnn import cases
from numbadnn.measuring.data import make_arrays
from numbadnn.validate.check import Row, Subject, check_all
from numbadnn.validate.faults import planted
from numbadnn.validate.model import against, command, files, inputs
from numbadnn.validate.model.judge import Judge
from numbadnn.validate.model.walk import Walk

TRIALS = int(os.environ.get("TESTS_TRIALS", "2"))
every_fault = pytest.mark.parametrize("fault", planted_layers.FAULTS)
#: the convolutions of ``small_network`` that have square filters, by their number among its nodes
CONVS = (0, 2, 8)


def names(rows: list[Row]) -> set[str]:
    return {row.impl for row in rows if row.status not in ("ok", "refused")}


@every_fault
def test_check_names_it(fault: str) -> None:
    for trial in range(TRIALS):
        rng = np.random.default_rng(trial)
        problem = cases.parse(planted_layers.drawn(rng))
        with planted(planted_layers.implementation(fault, problem, rng)):
            found = numbadnn.check(numbadnn.conv2d, *make_arrays(problem, trial)[0], backends="cpu", **problem.keywords)
        assert names(found.rows) == {f"planted.{fault}"}, (trial, str(problem), found.table())


@every_fault
def test_validate_names_it(fault: str) -> None:
    for trial in range(TRIALS):
        rng = np.random.default_rng(1000 + trial)
        problem = cases.parse(planted_layers.drawn(rng))
        with planted(planted_layers.implementation(fault, problem, rng)):
            rows = list(check_all(Subject(str(problem), problem), "cpu", timed=False))
        assert names(rows) == {f"planted.{fault}"}, (trial, str(problem), rows)


@every_fault
def test_the_node_of_a_model_is_named(fault: str, tmp_path: Path) -> None:
    for trial in range(TRIALS):
        rng = np.random.default_rng(2000 + trial)
        path = small_network(tmp_path / "m.onnx", trial)
        clean = walked(path, tmp_path, trial)
        problems = {row.number: row.problem for row in clean.rows if row.op == "Conv"}
        # of the others one is padded at the end alone, one not at all
        number = min(problems) if fault == "pad" else int(rng.choice(sorted(problems)))
        with planted(planted_layers.implementation(fault, cases.parse(problems[number]), rng)):
            found = walked(path, tmp_path, trial)
        wrong = {(row.number, row.impl) for row in found.rows if row.status != "ok"}
        assert wrong == {(number, f"planted.{fault}")}, (trial, command.summary(found, 0))
        assert f"node {number}, " in command.summary(found, 0) and found.alone


def walked(path: str, folder: Path, seed: int, other: Any = None) -> Judge:
    graph = files.Reader(files.load(path), path).graph()
    judge = Judge(str(folder), "m", "cpu", False, other)
    Walk(judge).run(graph, inputs.inputs_for(graph, None, {}, seed))
    return judge


# ---- another runtime, of a model that was converted wrongly ---------------------------------------------------------------


def converted(fault: str, path: str, node: int, rng: np.random.Generator) -> str:
    """The model with the mistake in this convolution."""
    model = onnx.load(path)
    of = {t.name: t for t in model.graph.initializer}
    proto = model.graph.node[node]
    tensor = of[proto.input[1]]
    w = onnx.numpy_helper.to_array(tensor).copy()
    if fault == "pad":
        (pads,) = (a for a in proto.attribute if a.name == "pads")
        pads.ints[0] -= 1
        pads.ints[2] += 1
    else:
        change = {"weight": planted_layers.weight, "transposed": planted_layers.transposed}[fault]
        tensor.CopyFrom(onnx.numpy_helper.from_array(change(rng)(w, w)[1], tensor.name))
    wrong = str(Path(path).with_name("wrong.onnx"))
    onnx.save(model, wrong)
    return wrong


@pytest.mark.parametrize("fault", ("weight", "transposed", "pad"))
def test_the_node_that_another_runtime_has_wrong_is_named(fault: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    for trial in range(TRIALS):
        rng = np.random.default_rng(3000 + trial)
        path = small_network(tmp_path / "m.onnx", trial)
        node = 0 if fault == "pad" else int(rng.choice(CONVS))
        wrong = converted(fault, path, node, rng)
        graph = files.Reader(files.load(wrong), wrong).graph()
        other = against.held_by("onnxruntime", graph, inputs.inputs_for(graph, None, {}, trial))
        found = walked(path, tmp_path, trial, other)
        name = graph.nodes[node].name
        assert {(r.name, r.impl) for r in found.rows if r.status != "ok"} == {(name, "onnxruntime")}, (trial, name)


@pytest.mark.parametrize(("stride", "dilation", "group"), ((1, 1, 1), (2, 1, 1), (3, 2, 1), (2, 1, 4)))
def test_a_small_weight_of_a_long_sum_is_seen_in_another_runtime(
    stride: int, dilation: int, group: int, tmp_path: Path
) -> None:
    """The difference that it makes is far below the bound of any output: probes of one number at a time show it."""
    pytest.importorskip("onnxruntime")
    m = Maker()
    x, w = m.input("x", [1, 64, 20, 20]), m.rng.standard_normal((8, 64 // group, 5, 5)).astype("f")
    least = np.unravel_index(np.argmin(np.abs(w)), w.shape)
    options = {"strides": [stride] * 2, "dilations": [dilation] * 2, "group": group, "pads": [2, 2, 2, 2]}
    path = m.save(tmp_path / "m.onnx", m.node("Conv", x, m.constant(w), m.weights(8), **options))
    model = onnx.load(path)
    w[least] *= np.float32(1.001)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(w, "c0"))
    onnx.save(model, tmp_path / "wrong.onnx")
    for file, status in (("m.onnx", "ok"), ("wrong.onnx", "mismatch")):
        graph = files.Reader(files.load(str(tmp_path / file)), file).graph()
        other = against.held_by("onnxruntime", graph, inputs.inputs_for(graph, None, {}))
        (row,) = [row for row in walked(path, tmp_path, 0, other).rows if row.impl == "onnxruntime"]
        assert row.status == status and row.reason.startswith(
            "100 % of" if status == "ok" else "one weight at a time"
        ), row


# ---- no false alarm -------------------------------------------------------------------------------------------------------


def test_what_is_right_raises_no_alarm(tmp_path: Path) -> None:
    """Networks and their inputs by chance; all the mistakes that are planted are absent."""
    pytest.importorskip("onnxruntime")
    for trial in range(TRIALS if TRIALS < 50 else 176):  # with those below 200
        path = small_network(tmp_path / "m.onnx", 100 + trial // 3)
        graph = files.Reader(files.load(path), path).graph()
        other = against.held_by("onnxruntime", graph, inputs.inputs_for(graph, None, {}, trial % 3))
        found = walked(path, tmp_path, trial % 3, other)
        assert all(row.status == "ok" for row in found.rows), (trial, command.summary(found, 0))


WHOLE = (
    "silero_vad_op18_ifless",
    "silero_vad_half",
    "silero_vad_16k_sequence",
    "silero_vad_openvino_16k",
    "ch_ppocr_mobile_v2.0_cls_infer",
    "ch_PP-OCRv4_det_infer",
    "ch_PP-OCRv4_rec_infer",
    "squeezenet",
)


@pytest.mark.skipif(TRIALS < 50, reason="whole models many times are looked at by make planted")
@pytest.mark.parametrize("seed", (0, 1, 2))
@pytest.mark.parametrize("name", WHOLE)
def test_whole_models_raise_no_alarm(name: str, seed: int, tmp_path: Path) -> None:
    dims: dict[str, int] = {}
    if name == "squeezenet":
        path = str(light(name))
    else:
        package = "silero_vad" if name.startswith("silero") else "rapidocr_onnxruntime"
        path = str(of_package(package, f"{name}.onnx", tmp_path))
        if name.startswith("ch_"):
            dims = {"x.2": 64, "x.3": 96} if "det" in name else {"x.2": 48, "x.3": 96}
        elif name.endswith("sequence"):
            dims = {"sequence_length": 3}
        elif not name.endswith("16k"):
            dims = {"batch": 1, "sequence": 576}
    found = command.judged(path, None, dims, "cpu", seed, str(tmp_path), False, "onnxruntime")
    assert all(row.status == "ok" for row in found.rows), command.summary(found, 0)
