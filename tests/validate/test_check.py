"""numbadnn.check: every operation and every kind of call, on arrays of one's own; and it finds what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import cases
from numbadnn.cases import Case
from numbadnn.measuring.data import make_arrays
from numbadnn.problem import Spec
from numbadnn.registry import FAMILY
from numbadnn.validate import faults
from numbadnn.validate.calls import Check

RNG = np.random.default_rng(11)


def normal(*shape: int, dtype: Any = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def good(found: Check, *impls: str) -> Check:
    """Something ran, all of it is right, and each row says what a user needs."""
    assert found.ok, found.table()
    ran = [row for row in found.rows if row.status == "ok"]
    assert ran and set(impls) <= {row.impl for row in ran}
    assert all(row.worst <= 1 and row.ulp is not None and row.same_bits and row.time_us > 0 for row in ran)
    return found


def few_cases() -> list[Case]:
    """Of each operation a case of the contract that says most, and the smallest of these."""
    known = [case for case in cases.find(["contract"]) if "float32" in case.text]

    def says(case: Case) -> tuple[int, int, str]:
        return len(case.text.split()), -case.problem().bytes, case.name

    return [max((case for case in known if case.op == op), key=says) for op in FAMILY]


@pytest.mark.parametrize("case", few_cases(), ids=lambda case: case.name)
def test_every_operation(case: Case) -> None:
    problem = case.problem()
    inputs, old = make_arrays(problem, 3)
    named = getattr(problem, "keyword_inputs", ())
    count = len(inputs) - len(named)
    more = {
        **problem.keywords,
        **dict(zip(named, inputs[count:], strict=True)),
        **({} if old is None else {"out": old}),
    }
    kept = [a.copy() for a in inputs]
    found = numbadnn.check(getattr(numbadnn, case.op), *inputs[:count], backends="cpu", **more)
    good(found)
    assert {row.problem.split()[0] for row in found.rows} == {case.op}
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(inputs, kept, strict=True))


def test_what_consists_of_several_operations_is_checked_one_by_one() -> None:
    x, depthwise, pointwise = normal(2, 3, 6, 7), normal(6, 1, 3, 3), normal(4, 6, 1, 1)
    found = numbadnn.check(numbadnn.separable_conv2d, x, depthwise, pointwise, 3, backends="cpu")
    assert len({row.problem for row in good(found).rows}) == 2
    theta = normal(2, 2, 3)
    found = numbadnn.check(numbadnn.spatialtf, x, theta, scale_width=0.5, backends="cpu")
    assert {row.problem.split()[0] for row in good(found).rows} == {"spatialtf_grid", "spatialtf_sampler"}
    good(numbadnn.check(numbadnn.frac_bilinear_upsampling, x, (3, 2), backends="cpu"))
    good(
        numbadnn.check(numbadnn.conv2d_transpose, normal(2, 4, 5, 5), normal(4, 3, 3, 3), (2, 3, 7, 7), backends="cpu")
    )
    found = numbadnn.check(numbadnn.corr_mm_grad_inputs, normal(4, 3, 3, 3), normal(2, 4, 4, 5), backends="cpu")
    assert {row.impl for row in good(found).rows if row.status == "ok"} == {"cpu.corrmm", "cpu.im2col"}


def test_recurrent_networks_with_their_flat_weights_and_by_their_methods() -> None:
    block = numbadnn.RNNBlock("float32", 4, 2, "lstm", direction_mode="bidirectional")
    x, state = normal(5, 3, 6), normal(4, 3, 4)
    w, dy = normal(block.get_param_size([3, 6])) / 2, normal(5, 3, 8)
    network = dict(hidden_size=4, num_layers=2, rnn_mode="lstm", direction_mode="bidirectional", lengths=[5, 2, 4])
    good(numbadnn.check(numbadnn.rnn_forward, w, x, state, state, backends="cpu", **network))
    given = dict(given=("cx", "dy", "dcy"), **network)
    good(numbadnn.check(numbadnn.rnn_backward, w, x, state, state, dy, state, backends="cpu", **given))
    good(numbadnn.check(block.apply, w, x, state, state, backends="cpu"))
    found = numbadnn.check(block.forward, w, x, state, backends="cpu")
    assert all("reserve" not in row.problem for row in good(found).rows)
    reserve = block.forward(w, x, state, state)[1]
    good(numbadnn.check(block.backward, reserve, dy, backends="cpu"))
    assert block.backward(reserve, dy)[0].shape == w.shape  # the caller's reserve was not spent


def test_dropout_by_the_seed_of_the_call() -> None:
    x = normal(7, 9)
    found = good(numbadnn.check(numbadnn.dropout, x, 0.25, seed=7, offset=3, backends="cpu"))
    assert found.rows[0].problem.endswith("p=0.25 seed=7 offset=3")
    assert str(cases.parse(found.rows[0].problem)) == found.rows[0].problem
    good(numbadnn.check(numbadnn.dropout_grad, x, numbadnn.dropout(x, 0.25, 9)[1], backends="cpu"))


def test_old_contents_of_out_enter_and_stay() -> None:
    x, w, out = normal(1, 2, 5, 5), normal(3, 2, 3, 3), normal(1, 3, 3, 3)
    kept = out.copy()
    good(numbadnn.check(numbadnn.conv2d, x, w, out=out, alpha=0.5, beta=2.0, backends="cpu"))
    assert np.array_equal(out, kept)


def test_types_that_differ_strides_and_options() -> None:
    x = normal(2, 7, 6, 3, dtype="float16").transpose(0, 3, 1, 2)
    found = good(numbadnn.check(numbadnn.conv2d, x, normal(4, 3, 3, 3), subsample=(2, 1), backends=["cpu"]))
    assert "x=float32:2x3x7x6:nhwc" in found.rows[0].problem
    with numbadnn.using(only="cpu.corrmm"):
        found = numbadnn.check(numbadnn.conv2d, x, normal(4, 3, 3, 3), backends="cpu")
    assert [row.impl for row in good(found).rows if row.status == "ok"] == ["cpu.corrmm"]


@pytest.mark.parametrize(
    "fault", [f for f in faults.FAULTS if f.caught_by != {"integers"}], ids=lambda fault: fault.name
)
def test_a_planted_fault_is_named_and_nothing_else(fault: faults.Fault) -> None:
    problem = cases.parse(fault.case)
    inputs, _ = make_arrays(problem, 5)
    impl = faults.implementation(fault, faulty=True)
    with faults.planted(impl):
        found = numbadnn.check(getattr(numbadnn, problem.op), *inputs, backends="cpu", **problem.keywords)
    wrong = [row.impl for row in found.rows if row.status not in ("ok", "refused")]
    assert wrong == [impl.name] and not found.ok
    assert impl.name in found.table()


def test_what_cannot_be_checked_is_said() -> None:
    x = normal(2, 3)
    with pytest.raises(TypeError, match="expected one of numbadnn's compute functions, got <function sum"):
        numbadnn.check(np.sum, x)
    with pytest.raises(TypeError, match="backend: expected backends="):
        numbadnn.check(numbadnn.softmax, x, backend="cpu")
    with pytest.raises(ValueError, match="backends: expected names out of cudnn, numba, cpu, got 'gpu'"):
        numbadnn.check(numbadnn.softmax, x, backends="gpu")
    with pytest.raises(ValueError, match="backends: expected at least one"):
        numbadnn.check(numbadnn.softmax, x, backends=())
    with pytest.raises(ValueError, match="expected 4 dimensions"):
        numbadnn.check(numbadnn.conv2d, x, x)
    with pytest.raises(TypeError, match="x: expected an array"):
        numbadnn.check(numbadnn.softmax, "abc")


def test_the_document_is_that_of_validate(tmp_path: Path) -> None:
    found = numbadnn.check(numbadnn.softmax, normal(4, 5), backends=["cpu", "numba"])
    found.json(tmp_path / "found.json")
    document = json.loads((tmp_path / "found.json").read_text())
    assert [row["impl"] for row in document["rows"]] == [row.impl for row in found.rows]
    assert (
        document["arguments"] == {"function": "softmax", "backends": ["cpu", "numba"]} and document["exit_status"] == 0
    )


def test_arrays_of_torch() -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(normal(2, 3, 4)).transpose(1, 2)
    good(numbadnn.check(numbadnn.softmax, x, backends="cpu"))
    good(numbadnn.check(numbadnn.softmax, x.to(torch.bfloat16), backends="cpu"))
    with pytest.raises(Exception, match=r"detach\(\)"):
        numbadnn.check(numbadnn.softmax, x.clone().requires_grad_())


@pytest.mark.gpu
def test_arrays_on_a_gpu_are_checked_by_every_backend() -> None:
    x, w = on_gpu(normal(2, 8, 9, 9)), on_gpu(normal(4, 8, 3, 3))
    found = good(numbadnn.check(numbadnn.conv2d, x, w, border_mode="half"))
    assert {row.impl.split(".")[0] for row in found.rows if row.status == "ok"} == {"cpu", "cudnn", "numba"}


def on_gpu(array: np.ndarray) -> Any:
    """A packed copy on the first GPU, as an array of no library."""
    from numbadnn.arrays.device import DeviceArray
    from numbadnn.gpu import bindings
    from numbadnn.gpu.context import ensure_context

    with ensure_context(0):
        copy = DeviceArray(Spec.of(array.dtype.name, array.shape), 0, 0)
        bindings.check(bindings.driver().cuMemcpyHtoD(copy.memory.address, array.ctypes.data, array.nbytes))
    return copy


@pytest.mark.parametrize(
    ("function", "shapes", "parameters"),
    (
        (numbadnn.conv2d, [(0, 3, 6, 6), (4, 3, 3, 3)], {}),
        (numbadnn.conv2d, [(2, 0, 6, 6), (4, 0, 3, 3)], {"border_mode": "half"}),
        (numbadnn.conv2d_grad_wrt_weights, [(0, 3, 6, 6), (0, 4, 4, 4)], {"filter_shape": (4, 3, 3, 3)}),
        (numbadnn.softmax, [(5, 0)], {}),
        (numbadnn.pool, [(0, 2, 6, 6)], {"ws": (2, 2)}),
    ),
)
def test_an_array_without_elements_reaches_no_implementation(function: Any, shapes: Any, parameters: Any) -> None:
    """They were run on it and divided by zero; a call fills its output by itself, and so it is checked."""
    found = numbadnn.check(function, *(normal(*shape) for shape in shapes), backends="cpu", **parameters)
    assert [(row.impl, row.status) for row in found.rows] == [("empty", "ok")], found.table()
