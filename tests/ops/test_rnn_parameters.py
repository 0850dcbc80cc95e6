"""The flat parameters of a recurrent network: ``split_params``, and the orders of PyTorch and ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rnn_cases import MODES, case, torch_module

import numbadnn
from numbadnn import RNNBlock
from numbadnn.problems.rnn_network import GATES


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
    for call in (
        lambda: numbadnn.rnn_weights_from_torch(a["w"]),
        lambda: numbadnn.rnn_weights_to_torch(module, a["w"]),
    ):
        with pytest.raises(TypeError, match="module: expected a torch.nn.RNN, LSTM or GRU, got ndarray"):
            call()


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


def test_onnx_layers_that_do_not_fit_each_other_are_refused() -> None:
    def layer(*shapes: tuple[int, ...]) -> tuple[Any, ...]:
        return (*(np.ones(shape, "f4") for shape in shapes), None)

    first = layer((1, 9, 4), (1, 9, 3))
    for layers, why in (
        ([first, layer((1, 15, 7), (1, 15, 5))], r"W and R of \(1, 9, 3\) and \(1, 9, 3\) after 0, got .* in 1"),
        ([first, layer((1, 9, 77), (1, 9, 3))], r"got \(1, 9, 77\) and \(1, 9, 3\) in 1"),
        ([first, layer((2, 9, 3), (2, 9, 3))], r"got \(2, 9, 3\) and \(2, 9, 3\) in 1"),
        ([layer((3, 9, 4), (3, 9, 3))], "one direction or two and 3 gates"),
        ([], "one layer at least, got"),
        (None, "one layer at least, got None"),
        ([1], r"expected \(W, R, B\), got int in 0"),
    ):
        with pytest.raises(ValueError, match=f"^layers: .*{why}"):
            numbadnn.rnn_weights_from_onnx(layers, "gru")
    for wrong in ([[1.0]], first[0].astype(str), first[0][0], None):
        with pytest.raises(TypeError, match="^layers: expected W to be a NumPy array of floating-point numbers"):
            numbadnn.rnn_weights_from_onnx([(wrong, first[1], None)], "gru")
    fitting = layer((1, 9, 3), (1, 9, 3))
    assert numbadnn.rnn_weights_from_onnx(iter([first, fitting]), "gru").size == 36 + 27 + 18 + 27 + 27 + 18


def test_weights_for_onnx_are_of_a_block() -> None:
    block = numbadnn.RNNBlock("float32", 3, 1, "gru")
    w = np.ones(block.get_param_size([2, 4]), "f4")
    for arguments, error, why in (
        ((w, None, 4), TypeError, "^block: expected an RNNBlock, got NoneType"),
        ((w, block, "4"), ValueError, "^input_dim: expected an integer >= 1, got '4'"),
        ((w, block, 0), ValueError, "^input_dim: expected an integer >= 1, got 0"),
        ((w.astype(complex), block, 4), TypeError, "^w: expected floating-point numbers, got complex128"),
    ):
        with pytest.raises(error, match=why):
            numbadnn.rnn_weights_to_onnx(*arguments)
