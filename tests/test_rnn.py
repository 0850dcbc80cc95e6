"""Recurrent networks: values by hand and from PyTorch, every gradient by finite differences, RNNBlock's promises, bad
input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import numbadnn
from numbadnn import NotSupportedError, RNNBlock, reference
from numbadnn.cudnn import rnn as cudnn_rnn
from numbadnn.cudnn._enums import RNNAlgo
from numbadnn.ops.rnn import GATES, Network, RnnProblem, make
from numbadnn.problem import Policy, Spec

ROOT = Path(__file__).parent.parent
MODES = tuple(GATES)
LENGTHS = (4, 1, 3)


def case(mode, *, layers=2, hidden=3, width=4, steps=4, batch=3, both=False, skip=False, dtype="float64", seed=0):
    """(block, arrays by name): normal data, weights as networks begin."""
    width = hidden if skip else width
    block = RNNBlock(
        dtype, hidden, layers, mode, "skip" if skip else "linear", "bidirectional" if both else "unidirectional"
    )
    rng, state = np.random.default_rng(seed), (layers * (1 + both), batch, hidden)
    arrays = {
        "w": rng.uniform(-1, 1, block.get_param_size([batch, width])) / hidden**0.5,
        "x": rng.standard_normal((steps, batch, width)),
        "hx": rng.standard_normal(state),
    }
    if mode == "lstm":
        arrays["cx"] = rng.standard_normal(state)
    return block, {name: a.astype(dtype) for name, a in arrays.items()}


def upstream(outputs, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(o.shape).astype(o.dtype) for o in outputs]


VARIANTS = {
    "plain": {},
    "both": {"both": True},
    "skip": {"skip": True},
    "skip-both": {"skip": True, "both": True, "layers": 1},
    "lengths": {"both": True, "lengths": LENGTHS},
    "one-step": {"steps": 1, "layers": 1},
    "one-sequence": {"batch": 1, "layers": 1},
}


def variant(mode, name):
    options = dict(VARIANTS[name])
    lengths = options.pop("lengths", None)
    return (*case(mode, **options), lengths)


# ---- values ----------------------------------------------------------------------------------------------------------


def test_hand_values():
    """One unit, weights W, R and biases; the gates written out."""

    def s(a):
        return 1 / (1 + np.exp(-a))

    x, h, c = 0.5, -0.25, 0.75
    W, R, bW, bR = (
        np.array([0.1, -0.2, 0.3, 0.4]),
        np.array([0.5, 0.6, -0.7, 0.8]),
        np.arange(4) / 10,
        np.arange(4) / -20,
    )
    one = np.array([[[x]]]), np.array([[[h]]])
    a = W * x + R * h + bW + bR
    new_c = s(a[1]) * c + s(a[0]) * np.tanh(a[2])
    y, hy, cy = RNNBlock("float64", 1, 1, "lstm").apply(np.concatenate([W, R, bW, bR]), *one, np.array([[[c]]]))
    np.testing.assert_allclose(
        [y[0, 0, 0], hy[0, 0, 0], cy[0, 0, 0]], [s(a[3]) * np.tanh(new_c)] * 2 + [new_c], rtol=1e-14
    )
    n = np.tanh(W[2] * x + bW[2] + s(a[0]) * (R[2] * h + bR[2]))
    w = np.concatenate([W[:3], R[:3], bW[:3], bR[:3]])
    y, _ = RNNBlock("float64", 1, 1, "gru").apply(w, *one)
    np.testing.assert_allclose(y[0, 0, 0], (1 - s(a[1])) * n + s(a[1]) * h, rtol=1e-14)
    skipped, _ = RNNBlock("float64", 1, 1, "rnn_tanh", "skip").apply(np.array([R[0], bW[0], bR[0]]), *one)
    np.testing.assert_allclose(skipped[0, 0, 0], np.tanh(x + R[0] * h + bW[0] + bR[0]), rtol=1e-14)


def torch_module(torch, block, width, dtype):
    n = block.network
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(n.rnn_mode)
    arguments = {"bidirectional": n.directions == 2, "dtype": dtype}
    if kind is None:
        kind, arguments["nonlinearity"] = torch.nn.RNN, n.rnn_mode[4:]
    return kind(width, n.hidden_size, n.num_layers, **arguments)


@pytest.mark.parametrize("name", ["plain", "both", "lengths"])
@pytest.mark.parametrize("mode", MODES)
def test_the_reference_is_pytorchs(mode, name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    block, a, lengths = variant(mode, name)
    module = torch_module(torch, block, a["x"].shape[2], torch.float64)
    numbadnn.rnn_weights_to_torch(a["w"], module)
    tensors = {k: torch.from_numpy(v).requires_grad_() for k, v in a.items()}
    x = tensors["x"]
    if lengths:
        x = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    y, ends = module(x, (tensors["hx"], tensors["cx"]) if mode == "lstm" else tensors["hx"])
    if lengths:
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=len(a["x"]))
    theirs = [y, *ends] if mode == "lstm" else [y, ends]
    specs = {k: Spec.of("float64", v.shape) for k, v in a.items()}
    network = make("rnn_forward", block.network, specs, lengths).keywords
    ours = reference.rnn_forward(**a, **network)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other.detach().numpy(), atol=1e-13)
    above = upstream(ours)
    sum((t * torch.from_numpy(g)).sum() for t, g in zip(theirs, above, strict=True)).backward()
    given = (*list(a)[3:], "dy", "dhy", "dcy")[: len(a) - 3 + len(above)]
    gradients = reference.rnn_backward(*a.values(), *above, given=given, **network)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.grad)
    expected = [numbadnn.rnn_weights_from_torch(module), *(tensors[k].grad for k in list(a)[1:])]
    for mine, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(mine, other.numpy(), atol=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("mode", MODES)
def test_every_gradient_by_finite_differences(mode, name):
    """Of sum(dy y) + sum(dhy hy) + sum(dcy cy), in every element of every input, in float64."""
    block, a, lengths = variant(mode, name)
    outputs, reserve = block.forward(**a, lengths=lengths)
    above = upstream(outputs)
    gradients = dict(zip(("w", "x", "hx", "cx"), block.backward(reserve, *above), strict=False))
    assert set(gradients) == set(a)

    def value(**changed):
        found = block.apply(**{**a, **changed}, lengths=lengths)
        return sum(float((o * g).sum()) for o, g in zip(found, above, strict=True))

    step = 1e-6
    for key, array in a.items():
        sampled = np.random.default_rng(2).permutation(array.size)[:60]
        for i in sampled:
            up, down = array.copy(), array.copy()
            up.flat[i] += step
            down.flat[i] -= step
            slope = (value(**{key: up}) - value(**{key: down})) / (2 * step)
            assert gradients[key].flat[i] == pytest.approx(slope, rel=1e-6, abs=1e-7), (key, i)


# ---- what RNNBlock promises ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("mode", MODES)
def test_forward_and_backward_are_apply_and_the_operation(mode, dtype):
    block, a = case(mode, both=True, dtype=dtype)
    outputs, reserve = block.forward(**a, lengths=np.array(LENGTHS))
    applied = block.apply(**a, lengths=list(LENGTHS))
    assert [o.dtype for o in outputs] == [np.dtype(dtype)] * len(outputs)
    assert all(np.array_equal(o, p) for o, p in zip(outputs, applied, strict=True))
    above = upstream(outputs)
    gradients = block.backward(reserve, *above)
    names = (*list(a)[3:], "dy", "dhy", "dcy")[: len(a) - 3 + len(above)]
    n = block.network
    alone = numbadnn.rnn_backward(
        *a.values(), *above, given=names, hidden_size=n.hidden_size, num_layers=n.num_layers, rnn_mode=mode,
        direction_mode=n.direction_mode, lengths=LENGTHS,
    )  # fmt: skip
    assert all(np.array_equal(g, h) for g, h in zip(gradients, alone, strict=True))
    again, reserve = block.forward(**a, lengths=LENGTHS)
    assert all(np.array_equal(g, h) for g, h in zip(gradients, block.backward(reserve, *above), strict=True))
    assert all(np.array_equal(o, p) for o, p in zip(outputs, again, strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_lengths_are_sequences_computed_alone(mode):
    block, a = case(mode, both=True)
    outputs, reserve = block.forward(**a, lengths=LENGTHS)
    above = upstream(outputs)
    gradients = block.backward(reserve, *above)
    dw = np.zeros_like(a["w"])
    for i, end in enumerate(LENGTHS):
        one = {k: v if k == "w" else v[:, i : i + 1].copy() for k, v in a.items()}
        one["x"] = one["x"][:end]
        own, reserve = block.forward(**one)
        for whole, part in zip(outputs, own, strict=True):
            np.testing.assert_allclose(whole[: len(part), i : i + 1], part, atol=1e-14)
        assert not outputs[0][end:, i].any()
        grads = block.backward(reserve, *(g[: len(o), i : i + 1].copy() for g, o in zip(above, own, strict=True)))
        dw += grads[0]
        for whole, part in zip(gradients[1:], grads[1:], strict=True):
            np.testing.assert_allclose(whole[: len(part), i : i + 1], part, atol=1e-13)
        assert not gradients[1][end:, i].any()
    np.testing.assert_allclose(gradients[0], dw, atol=1e-13)


@pytest.mark.parametrize("mode", ["gru", "lstm"])
def test_absent_gradients_are_zeros(mode):
    block, a = case(mode)
    outputs = block.apply(**a)
    above = upstream(outputs)
    for present in [(1,), (0, 1), (len(above) - 1,)]:
        some = [g if i in present else None for i, g in enumerate(above)]
        full = [g if i in present else np.zeros_like(g) for i, g in enumerate(above)]
        left, right = (block.backward(block.forward(**a)[1], *g) for g in (some, full))
        assert all(np.array_equal(p, q) for p, q in zip(left, right, strict=True))


def test_no_cell_is_a_cell_of_zeros():
    block, a = case("lstm")
    with_zeros = {**a, "cx": np.zeros_like(a["cx"])}
    del a["cx"]
    results = [block.forward(**arrays) for arrays in (a, with_zeros)]
    assert all(np.array_equal(p, q) for p, q in zip(results[0][0], results[1][0], strict=True))
    grads = [block.backward(reserve, outputs[0]) for outputs, reserve in results]
    assert len(grads[0]) == 4
    assert all(np.array_equal(p, q) for p, q in zip(*grads, strict=True))


def test_an_empty_batch():
    block, a = case("lstm", batch=0)
    (y, hy, cy), reserve = block.forward(**a)
    assert (y.shape, hy.shape, cy.shape) == ((4, 0, 3), (2, 0, 3), (2, 0, 3))
    dw, dx, *_ = block.backward(reserve, y)
    assert not dw.any() and dx.shape == a["x"].shape


def test_saturated_gates_and_nan():
    block, a = case("lstm", layers=1, dtype="float32")
    a["x"] *= 1e4
    y, hy, _ = block.apply(**a)
    assert np.isfinite(y).all()
    for mode in MODES:
        block, a = case(mode, layers=1)
        a["x"][1, 2] = np.nan
        y = block.apply(**a)[0]
        assert np.isfinite(y[:, :2]).all() and np.isfinite(y[0]).all() and np.isnan(y[1:, 2]).all()


def test_threads_do_not_change_a_bit(monkeypatch):
    block, a = case("rnn_relu", batch=7, dtype="float32")
    alone = block.apply(**a)
    monkeypatch.setattr("numbadnn.cpu.rnn.thread_count", lambda work: 2)
    assert all(np.array_equal(p, q) for p, q in zip(alone, block.apply(**a), strict=True))


# ---- parameters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize(("mode", "count"), [("rnn_relu", 4), ("rnn_tanh", 4), ("gru", 12), ("lstm", 16)])
def test_split_params_shows_all_of_w_once(mode, count, skip):
    block, a = case(mode, both=True, skip=skip)
    w, width = np.arange(a["w"].size, dtype=np.float64), a["x"].shape[2]
    seen = []
    for layer in range(4):
        parts = block.split_params(w, layer, [3, width])
        assert len(parts) == count
        rows = width if layer < 2 else 6
        shapes = [(0 if skip and layer < 2 else rows, 3)] * (count // 4) + [(3, 3)] * (count // 4)
        assert [p.shape for p in parts[::2]] == shapes
        assert all(b.shape == (3,) and np.shares_memory(b, w) for b in parts[1::2])
        seen += [p.ravel() for p in parts]
    assert sorted(np.concatenate(seen)) == list(range(w.size))
    parts[0][:] = -1
    assert (w == -1).sum() == parts[0].size


def test_split_params_are_the_matrices_of_the_equations():
    """x @ W: zero but one recurrent gate's bias, which alone moves the result."""
    block, a = case("gru", layers=1)
    w = np.zeros_like(a["w"])
    parts = block.split_params(w, 0, a["x"].shape[1:])
    parts[3][:], parts[5][:] = 1e3, 2.0  # the update gate's bias keeps the old state
    assert np.array_equal(block.apply(w, a["x"], a["hx"])[0][-1], a["hx"][0])
    parts[3][:] = -1e3  # and does not
    np.testing.assert_allclose(block.apply(w, a["x"], a["hx"])[0], np.tanh(2.0))
    parts[4][:] = np.eye(4, 3)
    np.testing.assert_allclose(block.apply(w, a["x"], a["hx"])[0], np.tanh(a["x"][..., :3] + 2.0))


@pytest.mark.parametrize("mode", MODES)
def test_weights_of_pytorch(mode):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    block, a = case(mode, both=True)
    module = torch_module(torch, block, a["x"].shape[2], torch.float64)
    numbadnn.rnn_weights_to_torch(a["w"], module)
    assert np.array_equal(numbadnn.rnn_weights_from_torch(module).numpy(), a["w"])
    tensors = {k: torch.from_numpy(v) for k, v in a.items() if k != "w"}
    results = block.apply(numbadnn.rnn_weights_from_torch(module), **tensors)
    assert isinstance(results[0], torch.Tensor)
    theirs = module(tensors["x"], (tensors["hx"], tensors["cx"]) if mode == "lstm" else tensors["hx"])[0]
    torch.testing.assert_close(results[0], theirs.detach())
    part = block.split_params(torch.from_numpy(a["w"]), 3, [3, 4])[0]
    part.fill_(7.0)
    assert (a["w"] == 7).sum() == part.numel()
    without = torch.nn.GRU(4, 3, bias=False)
    flat = numbadnn.rnn_weights_from_torch(without)
    assert flat.numel() == RNNBlock("float32", 3, 1, "gru").get_param_size([1, 4]) and not flat[-18:].any()
    with pytest.raises(ValueError, match="biases"):
        numbadnn.rnn_weights_to_torch(flat, without)
    with pytest.raises(ValueError, match="projections"):
        numbadnn.rnn_weights_from_torch(torch.nn.LSTM(4, 3, proj_size=2))
    with pytest.raises(ValueError, match="expected .* elements"):
        numbadnn.rnn_weights_to_torch(a["w"][:-1], module)


@pytest.mark.parametrize("mode", MODES)
def test_weights_of_onnx(mode):
    block, a = case(mode, both=True)
    layers = numbadnn.rnn_weights_to_onnx(a["w"], block, 4)
    assert np.array_equal(numbadnn.rnn_weights_from_onnx(layers, mode), a["w"])
    W, R, B = layers[0]
    gates = GATES[mode]
    assert (W.shape, R.shape, B.shape) == ((2, 3 * gates, 4), (2, 3 * gates, 3), (2, 6 * gates))
    order = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}.get(mode, (0,))
    parts = block.split_params(a["w"], 1, [1, 4])
    for place, gate in enumerate(order):
        assert np.array_equal(W[1, 3 * place : 3 * place + 3], parts[2 * gate].T)
        assert np.array_equal(B[1, 3 * (gates + place) :][:3], parts[2 * (gates + gate) + 1])
    no_bias = numbadnn.rnn_weights_from_onnx([(W, R, None)], mode)
    assert not no_bias[-12 * gates :].any()
    with pytest.raises(ValueError, match="gates"):
        numbadnn.rnn_weights_from_onnx([(W, R[:, :-1], B)], mode)
    with pytest.raises(ValueError, match="elements"):
        numbadnn.rnn_weights_to_onnx(a["w"][1:], block, 4)


# ---- bad input -------------------------------------------------------------------------------------------------------


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


def test_bad_blocks():
    for arguments, error, says in (
        (("float32", 0, 1, "gru"), ValueError, "hidden_size: expected an integer of at least 1, got 0"),
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


# ---- cuDNN and the kernels, without a GPU ----------------------------------------------------------------------------


def problem(dtype="float32", hidden=64, lengths=None, mode="gru"):
    n = Network(hidden, 1, mode)
    shapes = {"w": (n.blocks(32)[1],), "x": (9, 2, 32), "hx": (1, 2, hidden)}
    return make("rnn_forward", n, {k: Spec.of(dtype, v) for k, v in shapes.items()}, lengths)


def test_what_cudnn_refuses_and_which_algorithm_it_takes():
    gpu = Policy(device=0)
    assert cudnn_rnn.supports(problem(), gpu) == ""
    assert "batch_invariant" in cudnn_rnn.supports(problem(), Policy(0, determinism="batch_invariant"))
    assert "not in float64" in cudnn_rnn.supports(problem(), Policy(0, precision="float64"))
    small, tf32 = RNNAlgo.PERSIST_STATIC_SMALL_H, Policy(0, fp32_precision="tf32")
    chosen = cudnn_rnn.algorithm
    assert chosen(problem(), gpu, True) is RNNAlgo.STANDARD  # its gates are too coarse for IEEE float32
    assert chosen(problem(), tf32, True) is chosen(problem("float16"), gpu, True) is small
    assert chosen(problem("float16", 192), gpu, False) is small
    assert chosen(problem("float16", 192), gpu, True) is RNNAlgo.STANDARD
    assert chosen(problem("float16", lengths=[9, 1]), gpu, True) is RNNAlgo.STANDARD
    assert chosen(problem("float64"), gpu, True) is RNNAlgo.STANDARD


class LayoutOfWeights:
    """Stands for libcudnn where it is asked for the layout of w: ``place`` moves an element's offset to cuDNN's."""

    def __init__(self, network, width, place):
        self.network, self.width, self.place = network, width, place

    def call(self, name, handle, rnn, index, size, base, k, matrix, m, bias, b):
        assert name == "cudnnGetRNNWeightParams"
        n = self.network
        at_w, at_r, at_bw, at_br = n.blocks(self.width)[0][index]
        first, own, columns = (at_w, at_bw, self.width) if k < n.gates else (at_r, at_br, n.hidden_size)
        gate, rows = k % n.gates, n.hidden_size
        m._obj.value = base + 4 * self.place(first + gate * rows * columns) if first >= 0 else None
        b._obj.value = base + 4 * self.place(own + gate * rows)


@pytest.mark.parametrize("input_mode", ["linear", "skip"])
def test_cudnns_layout_of_w_is_ours_or_converted(input_mode):
    n = Network(4, 1, "gru", input_mode, "bidirectional")
    size = n.blocks(4)[1]
    shapes = {"w": (size,), "x": (2, 3, 4), "hx": (2, 3, 4)}
    asked = make("rnn_forward", n, {k: Spec.of("float32", v) for k, v in shapes.items()})

    def stretches(place):
        return cudnn_rnn._stretches(LayoutOfWeights(n, 4, place), 1, 2, asked, 4 * size, 3, 4)

    assert stretches(lambda at: at) == [(0, 0, 4 * size)]
    biases = 4 * n.blocks(4)[0][0][2]
    apart = stretches(lambda at: at + 32 if 4 * at >= biases else at)
    assert apart == [(0, 0, biases), (biases, biases + 128, 4 * size - biases)]


PRODUCT = """
import numpy as np
from numbadnn.kernels._cuda import cuda, f32, types, i32
from numbadnn.kernels._rnn_ptx import product
u32 = types.uint32 if hasattr(types, "uint32") else np.uint32
rng = np.random.default_rng(0)
A, B = rng.integers(-3, 4, (16, 16)).astype(np.float16), rng.integers(-3, 4, (8, 16)).astype(np.float16)
C = np.zeros((16, 8), np.float32)
left, right = A.view(np.uint32), B.view(np.uint32)

def kernel(left, right, C):
    a, b, c = np.zeros(4, np.uint32), np.zeros(2, np.uint32), np.zeros(4, np.float32)
    lane = cuda.threadIdx.x
    g, t = lane >> 2, lane & 3
    a[0], a[1], a[2], a[3] = left[g, t], left[g + 8, t], left[g, t + 4], left[g + 8, t + 4]
    b[0], b[1] = right[g, t], right[g, t + 4]
    product(c, 0, a, 0, b, 0)
    C[g, 2 * t], C[g, 2 * t + 1], C[g + 8, 2 * t], C[g + 8, 2 * t + 1] = c[0], c[1], c[2], c[3]

cuda.jit(kernel)[1, 32](left, right, C)
assert np.array_equal(C, A.astype(np.float32) @ B.T.astype(np.float32)), C
"""


def test_the_twin_of_the_tensor_core_product():
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PRODUCT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("backend", ["cudnn", "numba"])
def test_a_captured_graph_does_it_again(backend, dtype):
    """After one warm call both passes are captured; a replay on other data equals a plain call, to the bit."""
    torch = pytest.importorskip("torch")
    block = RNNBlock(dtype, 128, 2, "lstm", backend=backend)
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    w = (torch.rand(block.get_param_size([1, 64]), device="cuda") / 6 - 1 / 12).to(kind)
    arrays = [torch.randn(s, device="cuda", dtype=kind) for s in ((7, 20, 64), (2, 20, 128), (2, 20, 128))]
    dy = torch.randn(7, 20, 128, device="cuda", dtype=kind)

    def passes():
        outputs, reserve = block.forward(w, *arrays, lengths=[7, 1] * 10)
        return [*outputs, *block.backward(reserve, dy)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        passes()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = passes()
    for a in (*arrays, dy):
        a.normal_()
    graph.replay()
    torch.cuda.synchronize()
    for again, plain in zip(captured, passes(), strict=True):
        assert torch.equal(again, plain)


# ---- a real task -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["gru", "lstm"])
def test_a_character_model_learns_as_pytorchs(mode, monkeypatch):
    """The first 100 losses of examples/char_lm.py are PyTorch's, from the same weights and batches, and they fall."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import char_lm

    text = char_lm.licence()
    alphabet = sorted(set(text))
    codes = np.array([alphabet.index(c) for c in text])
    model = char_lm.Model(len(alphabet), mode, hidden=32)
    module = torch_module(torch, model.block, len(alphabet), torch.float32)
    numbadnn.rnn_weights_to_torch(model.w, module)
    linear = torch.nn.Linear(32, len(alphabet))
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(model.out.T))
        linear.bias.copy_(torch.from_numpy(model.bias))
    parameters = [*module.parameters(), *linear.parameters()]
    speed = [torch.zeros_like(p) for p in parameters]
    batches, states, held, ours, theirs = char_lm.batches(codes, 8, 8), model.start(8), None, [], []
    for _ in range(100):
        anew, part = next(batches)
        if anew:
            states, held = model.start(8), None
        loss, gradients, states = model.gradients(part, states)
        model.learn(gradients)
        ours.append(loss)
        y, held = module(torch.nn.functional.one_hot(torch.from_numpy(part[:-1]), len(alphabet)).float(), held)
        held = tuple(s.detach() for s in held) if mode == "lstm" else held.detach()
        loss = torch.nn.functional.cross_entropy(
            linear(y).reshape(-1, len(alphabet)), torch.from_numpy(part[1:].ravel())
        )
        found = torch.autograd.grad(loss, parameters)
        norm = torch.sqrt(sum((g.double() ** 2).sum() for g in found)).item()
        with torch.no_grad():
            for p, g, v in zip(parameters, found, speed, strict=True):
                v.mul_(char_lm.MOMENTUM).sub_(g * (char_lm.RATE / max(1.0, norm)))
                p.add_(v)
        theirs.append(loss.item())
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    assert np.mean(ours[-10:]) < 0.9 * ours[0]
