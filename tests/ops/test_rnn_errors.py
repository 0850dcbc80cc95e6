"""Bad input to recurrent networks is named before anything runs; a reserve serves its own block, once."""

from __future__ import annotations

import numpy as np
import pytest
from rnn_cases import case

import numbadnn
from numbadnn import NotSupportedError, RNNBlock
from numbadnn.problem import Spec
from numbadnn.problems.rnn import RnnProblem, make
from numbadnn.problems.rnn_network import Network


@pytest.mark.parametrize(("change", "error", "says"), [
    ({"w": lambda a: a[:-1]}, ValueError, r"w: expected \d+ elements .* got shape"),
    ({"w": lambda a: a[None]}, ValueError, "w: expected"),
    ({"x": lambda a: a[0]}, ValueError, r"x: expected shape \(time, batch, input\)"),
    ({"x": lambda a: a[:0]}, ValueError, "x: expected at least one time step"),
    ({"hx": lambda a: a[:1]}, ValueError, r"hx: expected shape \(2, 3, 3\), got \(1, 3, 3\)"),
    ({"cx": lambda a: a[:, :2]}, ValueError, "cx: expected shape"),
    ({"hx": lambda a: a.astype("float32")}, TypeError, "hx: expected w's dtype float64, got float32"),
    ({"w": lambda a: a.astype("float32")}, TypeError, "w: expected the block's dtype float64, got float32"),
    ({"lengths": lambda _: [4, 1]}, ValueError, r"lengths: expected one number a batch entry \(3\), got 2"),
    ({"lengths": lambda _: [4, 0, 1]}, ValueError, "lengths: expected numbers from 1 to 4 .* got 0"),
    ({"lengths": lambda _: [5, 1, 1]}, ValueError, "lengths: expected numbers from 1 to 4 .* got 5"),
    ({"lengths": lambda _: [1.5, 1, 1]}, TypeError, "lengths: expected integers"),
    ({"lengths": lambda _: 4}, TypeError, "lengths: expected integers"),
])  # fmt: skip
def test_bad_arrays(change, error, says):
    block, a = case("lstm")
    for call in (block.apply, block.forward):
        with pytest.raises(error, match=says):
            call(**{**a, **{name: made(a.get(name)) for name, made in change.items()}})


def test_numpys_integers_are_integers():
    block = numbadnn.RNNBlock("float32", np.int64(3), np.uint8(2), "gru")
    assert block.network == numbadnn.RNNBlock("float32", 3, 2, "gru").network
    assert type(block.network.hidden_size) is type(block.network.num_layers) is int
    one = np.ones((1, 1, 1))
    y, _ = numbadnn.rnn_forward(
        np.ones(4), one, one, hidden_size=np.int32(1), num_layers=np.int32(1), rnn_mode="rnn_relu"
    )
    assert y.item() == 4
    assert type(numbadnn.RNNBlock("float32", np.float64(3), 1, "gru").network.hidden_size) is int
    for bad in (np.float64(3.5), np.array([3]), "3"):
        with pytest.raises(ValueError, match="hidden_size: expected an integer"):
            numbadnn.RNNBlock("float32", bad, 1, "gru")


def test_bad_blocks():
    for arguments, error, says in (
        (("float32", 0, 1, "gru"), ValueError, "hidden_size: expected an integer >= 1, got 0"),
        (("float32", 4, 1.5, "gru"), ValueError, "num_layers: expected an integer"),
        (("float32", 4, 1, "LSTM"), ValueError, "rnn_mode: expected one of rnn_relu, rnn_tanh, lstm, gru, got 'LSTM'"),
        (("float32", 4, 1, "gru", "none"), ValueError, "input_mode: expected one of linear, skip"),
        (("float32", 4, 1, "gru", "skip", "left"), ValueError, "direction_mode: expected one of"),
        (("bfloat16", 4, 1, "gru"), TypeError, "dtype: expected one of float16, float32, float64, got bfloat16"),
        (("int32", 4, 1, "gru"), TypeError, "dtype: expected"),
    ):
        with pytest.raises(error, match=says):
            RNNBlock(*arguments)
    block, a = case("gru")
    with pytest.raises(ValueError, match="cx: expected None for gru"):
        block.apply(**a, cx=a["hx"])
    skip, _ = case("gru", skip=True)
    with pytest.raises(ValueError, match="input_dim 3"):
        skip.get_param_size([1, 4])
    with pytest.raises(ValueError, match="x: expected hidden_size .3. inputs"):
        skip.apply(np.zeros(10), a["x"], a["hx"])
    for size in ([4], 4, [1, 2, 3], [1, 0]):
        with pytest.raises(ValueError, match="input_size: expected"):
            block.get_param_size(size)
    for w, layer, says in (
        (a["w"][1:], 0, "elements"),
        (np.repeat(a["w"], 2)[::2], 0, "without gaps"),
        (a["w"], 2, "layer: expected"),
    ):
        with pytest.raises(ValueError, match=says):
            block.split_params(w, layer, [3, 4])
    frozen = a["w"].copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        block.split_params(frozen, 0, [3, 4])
    with pytest.raises(TypeError, match="dtype float64"):
        block.split_params(a["w"].astype("float32"), 0, [3, 4])


def test_a_reserve_serves_its_own_block_once():
    block, a = case("gru")
    (y, hy), reserve = block.forward(**a)
    for wrong in (None, y, (y, hy)):
        with pytest.raises(ValueError, match="reserve: expected what forward returned"):
            block.backward(wrong, y)
    with pytest.raises(ValueError, match="one of this block's forward"):
        case("gru")[0].backward(reserve, y)
    with pytest.raises(ValueError, match=r"dy: expected shape \(4, 3, 3\)"):
        block.backward(reserve, y[1:])
    with pytest.raises(ValueError, match="dcy: expected None for gru"):
        block.backward(reserve, y, dcy=hy)
    with pytest.raises(numbadnn.BackendUnavailableError):
        block.backward(reserve, y, backend="cudnn")
    for options, error in (({"exclude": "cpu.*"}, NotSupportedError), ({"plan_strict": True}, numbadnn.PlanMissError)):
        with numbadnn.using(**options), pytest.raises(error):
            block.backward(reserve, y)
    block.backward(reserve, y)  # what was refused did not use it up
    with pytest.raises(ValueError, match="not used before"):
        block.backward(reserve, y)


def test_a_reserve_is_read_by_its_maker_alone():
    block, a = case("gru", layers=1, dtype="float32")
    (y, _), reserve = block.forward(**a)
    reserve.made_by = "cudnn.rnn"
    with pytest.raises(NotSupportedError, match="was written by cudnn.rnn"):
        block.backward(reserve, y)


def test_problems_are_text():
    text = "rnn_backward w=float32:96 x=float32:2x3x4 hx=float32:1x3x4 dy=float32:2x3x4"
    text += " mode=gru hidden=4 layers=1 input=skip"
    problem = RnnProblem.parse(text.replace("float32:96", "float32:72"))
    assert RnnProblem.parse(str(problem)) == problem
    shapes = {"w": (72,), "x": (2, 3, 4), "hx": (1, 3, 4)}
    specs = {name: Spec.of("float32", shape) for name, shape in shapes.items()}
    kept = make("rnn_forward", Network(4, 1, "gru", "skip"), specs, [2, 1, 2], 500)
    assert RnnProblem.parse(str(kept)) == kept and kept.keeps and kept.lengths == (2, 1, 2)
    for wrong in (text, "rnn_forward w=float32:9", "rnn_sideways w=float32:9", text + " colour=red"):
        with pytest.raises(ValueError, match="expected"):
            RnnProblem.parse(wrong)


def test_explain_and_options():
    block, a = case("gru", dtype="float32")
    explained = numbadnn.explain(block.apply, **a)
    assert explained.chosen == "cpu.rnn"
    with pytest.raises(numbadnn.BackendUnavailableError):
        RNNBlock("float32", 3, 2, "gru", backend="numba").apply(**a)
