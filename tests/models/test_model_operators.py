"""Every operator that is judged gives what onnx's own node tests expect, in float64 and in the model's types."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx_models
import pytest

from numbadnn.validate.model import files
from numbadnn.validate.model.judge import Judge
from numbadnn.validate.model.nodes import TABLE, movement
from numbadnn.validate.model.walk import Walk

assert onnx_models.onnx
#: random numbers, optional values, and rounding to bfloat16 that float64 does not see
OTHERS = ("_opt", "_seq", "dropout", "bfloat16", "fp16_expanded", "dynamicquantizelinear", "blocked_symmetric")
WIDE = {"float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"}
known = {op for op, kind in TABLE.items() if kind.compute is not movement.by_onnx}


def cases() -> dict[str, list[Any]]:
    """Operator -> its node tests, each by nodes that are all known here."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases("")
    chosen: dict[str, list[Any]] = {}
    for case in found:
        inputs, outputs = case.data_sets[0]
        fits = all(np.asarray(a).dtype.name in WIDE for a in (*inputs, *outputs) if not isinstance(a, list))
        ops = {node.op_type for node in case.model.graph.node}
        if fits and len(ops) == 1 and ops <= known and not any(part in case.name for part in OTHERS):
            chosen.setdefault(ops.pop(), []).append(case)
    return chosen


def hold(case: Any, tmp_path: Any) -> list[Any]:
    graph = files.Reader(case.model, case.name).graph()
    inputs, expected = case.data_sets[0]
    feeds = {i.name: np.asarray(a) for i, a in zip(case.model.graph.input, inputs, strict=False)}
    judge = Judge(str(tmp_path), case.name, "cpu", False)
    outputs = Walk(judge).run(graph, feeds)
    wrong = [f"{case.name}: {row.impl}: {row.reason}" for row in judge.rows if row.status not in ("ok", "not judged")]
    for right, value in zip(map(np.asarray, expected), outputs.values(), strict=True):
        for array in (value.carried, value.exact):
            close = array.shape == right.shape and np.allclose(
                array.astype("f8"), right.astype("f8"), max(case.rtol, 1e-3), max(case.atol, 1e-6), equal_nan=True
            )
            wrong += [] if close and value.dtype == right.dtype else [f"{case.name}: {array} where {right} is right"]
    return wrong


def test_operators(tmp_path: Any) -> None:
    found = cases()
    assert len(found) > 90 and {"Conv", "LSTM", "Resize", "BatchNormalization", "QuantizeLinear"} < set(found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        wrong = [line for of_op in found.values() for case in of_op for line in hold(case, tmp_path)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("op", ("Conv", "MatMul", "Add", "ReduceMean", "LayerNormalization", "Resize"))
def test_a_wrong_result_is_beyond_its_bound(op: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of a percent more, of one element, is seen."""
    from numbadnn.validate.model.work import Work

    carried = Work.carried

    def wrong(self: Work, given: Any) -> Any:
        first, *rest = (np.array(a) for a in carried(self, given))
        first.flat[np.argmax(np.abs(first))] *= 1.0001
        return (first, *rest)

    m = onnx_models.Maker()
    x = m.input("x", [1, 4, 6, 6])
    scales = m.constant(np.array([1, 1, 2, 2], np.float32))
    more = {"Conv": (m.weights(4, 4, 3, 3),), "MatMul": (m.weights(6, 6),), "Add": (m.weights(6),), "Resize": ("", scales),
            "LayerNormalization": (m.weights(6),)}  # fmt: skip
    attributes = {"Resize": {"mode": "linear"}, "ReduceMean": {"axes": [2]}}
    path = m.save(tmp_path / "m.onnx", m.node(op, x, *more.get(op, ()), **attributes.get(op, {})))
    graph = files.Reader(files.load(path), path).graph()
    judge = Judge(str(tmp_path), "m", "cpu", False)
    x64 = m.rng.standard_normal((1, 4, 6, 6)).astype("f")
    if op != "Conv":  # numbadnn's own is judged by the contract
        monkeypatch.setattr(Work, "carried", wrong)
        Walk(judge).run(graph, {"x": x64})
        assert [row.status for row in judge.rows] == ["mismatch"] and judge.alone
    else:
        Walk(judge).run(graph, {"x": x64})
        assert {row.status for row in judge.rows} == {"ok"}


@pytest.mark.parametrize("op", ("InstanceNormalization", "GroupNormalization", "LayerNormalization"))
def test_numbers_that_are_all_the_same_have_a_bound(op: str, tmp_path: Any) -> None:
    """Their variance is 0, and what others make of it may be above epsilon: nothing can be said, rather than mismatch."""
    m = onnx_models.Maker(opset=21)
    x = m.input("x", [1, 2, 3, 4])
    more = {"LayerNormalization": {"axis": 2}, "GroupNormalization": {"num_groups": 2}}.get(op, {})
    shape = (3, 4) if op == "LayerNormalization" else (2,)
    path = m.save(tmp_path / "m.onnx", m.node(op, x, m.weights(*shape), m.weights(*shape), epsilon=1e-5, **more))
    graph, bounds = files.Reader(files.load(path), path).graph(), []

    def look(number: int, name: str, work: Any, inputs: Any, outputs: Any) -> None:
        (limit,) = work.limits(work.reference(), [np.float32])
        bounds.append(float(limit.accumulated.max()))

    for constant in (0.75, 100.0, 3e4):
        Walk(look).run(graph, {"x": np.full((1, 2, 3, 4), constant, np.float32)})
    assert len(bounds) == 3 and bounds[2] == np.inf and not any(np.isnan(b) for b in bounds), bounds
