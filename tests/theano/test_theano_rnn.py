"""numbadnn.theano's recurrent networks: the block as old code calls it, and the op classes under it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import theano

STEPS, BATCH, INPUTS, HIDDEN, LAYERS = 4, 2, 5, 3, 2
DIRECTIONS = {"unidirectional": 1, "bidirectional": 2}


def made(mode: str, direction: str = "unidirectional") -> tuple[Any, list[np.ndarray]]:
    """A block of float64 and w, x, hx, cx for it."""
    rng = np.random.default_rng(11)
    block = theano.RNNBlock("float64", HIDDEN, LAYERS, mode, "linear", direction, "dev0")
    state = (LAYERS * DIRECTIONS[direction], BATCH, HIDDEN)
    shapes = ((block.get_param_size([BATCH, INPUTS]),), (STEPS, BATCH, INPUTS), state, state)
    return block, [rng.uniform(-0.7, 0.7, shape) for shape in shapes]


@pytest.mark.parametrize("mode", ("rnn_relu", "rnn_tanh", "lstm", "gru"))
def test_a_cell_state_is_for_lstm_alone(mode: str) -> None:
    block, (w, x, hx, cx) = made(mode)
    found, without = block.apply(w, x, hx, cx), block.apply(w, x, hx)
    assert len(found) == len(without) == (3 if mode == "lstm" else 2)
    assert all(np.array_equal(a, b) for a, b in zip(found, without, strict=True)) == (mode != "lstm")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("mode", ("rnn_relu", "rnn_tanh", "lstm", "gru"))
def test_ops_are_the_blocks_forward_and_its_gradient(mode: str, direction: str) -> None:
    """By central differences of sum(dy y) + sum(dhy hy) + sum(dcy cy), each gradient of a final state given or not."""
    block, (w, x, hx, cx) = made(mode, direction)
    op = theano.GpuDnnRNNOp(mode, direction)
    cells = [cx] if mode == "lstm" else []
    reserve, *outputs = op(block, w, x, hx, *cells)
    assert all(np.array_equal(a, b) for a, b in zip(outputs, block.apply(w, x, hx, *cells), strict=True))
    rng = np.random.default_rng(12)
    given = [rng.standard_normal(a.shape) for a in outputs]
    for grad_h in (False, True):
        for grad_c in (False, True)[: len(cells) + 1]:
            kept = [True, grad_h, grad_c][: len(outputs)]
            ends = [g for g, keep in zip(given, kept, strict=True) if keep]
            reserve = op(block, w, x, hx, *cells)[0]
            found = theano.GpuDnnRNNGradInputs(mode, grad_h, grad_c)(block, reserve, *ends)
            places = [x, hx, *cells]
            assert len(found) == len(places)

            def loss(kept: list[bool] = kept) -> float:
                results = block.apply(w, x, hx, *cells)
                return float(sum((g * a).sum() for g, a, keep in zip(given, results, kept, strict=True) if keep))

            for gradient, place in zip(found, places, strict=True):
                assert gradient.shape == place.shape
                for at in [tuple(rng.integers(n) for n in place.shape) for _ in range(6)]:
                    start, step = place[at], 1e-6
                    place[at] = start + step
                    above = loss()
                    place[at] = start - step
                    below = loss()
                    place[at] = start
                    assert np.isclose(gradient[at], (above - below) / (2 * step), rtol=1e-5, atol=1e-7)


def test_a_block_of_numbadnns_own_runs_under_the_same_flags() -> None:
    block = numbadnn.RNNBlock("float32", 4, 1, "gru")
    w = np.zeros(block.get_param_size([2, 3]), "f4")
    x, h = np.ones((5, 2, 3), "f4"), np.zeros((1, 2, 4), "f4")
    op = theano.GpuDnnRNNOp("gru", "unidirectional")
    assert len(op(block, w, x, h, h)) == 3  # a cell state that there is not is ignored
    last = numbadnn.last_call()
    assert last is not None and last.fallback and "cudnn" in last.decided_by
    try:
        theano.config.dnn.enabled = True
        with pytest.raises(numbadnn.NotSupportedError, match="fallback is 'error'"):
            op(block, w, x, h)
    finally:
        theano.config.dnn.enabled = "auto"


def test_bad_input_of_the_ops() -> None:
    for make in (theano.GpuDnnRNNOp, theano.GpuDnnRNNGradInputs):
        with pytest.raises(ValueError, match="^rnn_mode: expected one of"):
            make(["gru"], "unidirectional", *((False,) if make is theano.GpuDnnRNNGradInputs else ()))
    with pytest.raises(TypeError, match="^grad_h: expected True or False, got 'no'"):
        theano.GpuDnnRNNGradInputs("lstm", "no", "no")
    block, (w, x, hx, cx) = made("lstm")
    op = theano.GpuDnnRNNOp("lstm", "unidirectional")
    reserve = op(block, w, x, hx, cx)[0]
    gradient = theano.GpuDnnRNNGradInputs("lstm", True, False)
    dy, dhy = np.ones((STEPS, BATCH, HIDDEN)), np.ones((LAYERS, BATCH, HIDDEN))
    for error, message, call in (
        (ValueError, "rnn_mode: expected one of .* got 'LSTM'", lambda: theano.GpuDnnRNNOp("LSTM", "unidirectional")),
        (ValueError, "direction_mode: expected one of", lambda: theano.GpuDnnRNNOp("lstm", "both")),
        (ValueError, "rnn_mode: expected one of", lambda: theano.GpuDnnRNNGradInputs("LSTM", True, True)),
        (ValueError, "grad_c: expected False for gru", lambda: theano.GpuDnnRNNGradInputs("gru", True, True)),
        (
            ValueError,
            "block: expected one of gru",
            lambda: theano.GpuDnnRNNOp("gru", "unidirectional")(block, w, x, hx),
        ),
        (TypeError, "block: expected an RNNBlock, got ndarray", lambda: op(w, x, hx, cx)),
        (TypeError, "block: expected an RNNBlock, got Reserve", lambda: gradient(reserve, dy, dhy)),
        (ValueError, "block: expected one of lstm", lambda: gradient(made("gru")[0], reserve, dy, dhy)),
        (ValueError, "reserve: expected what forward returned", lambda: gradient(block, w, dy, dhy)),
        (ValueError, "expected 1 gradients of final states, got 0", lambda: gradient(block, reserve, dy)),
    ):
        with pytest.raises(error, match=message):
            call()
    assert isinstance(block, numbadnn.RNNBlock) and len(gradient(block, reserve, dy, dhy)) == 3


def test_a_cx_that_a_mode_has_no_use_for_is_no_part_of_the_reserve() -> None:
    block = theano.RNNBlock("float64", 4, 1, "gru")
    w, x, h = np.ones(block.get_param_size([2, 3])), np.ones((5, 2, 3)), np.ones((1, 2, 4))
    with numbadnn.using(fallback="allow"):
        (y, _), reserve = block.forward(w, x, h, h)
        np.testing.assert_array_equal(y, block.apply(w, x, h)[0])
        given = block.backward(reserve, np.ones_like(y))
        wanted = block.backward(block.forward(w, x, h)[1], np.ones_like(y))
    for mine, theirs in zip(given, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
