"""Networks and arrays that the tests of recurrent networks share."""

from __future__ import annotations

import numpy as np

from numbadnn import RNNBlock
from numbadnn.problems.rnn_network import GATES

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


def torch_module(torch, block, width, dtype):
    n = block.network
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(n.rnn_mode)
    arguments = {"bidirectional": n.directions == 2, "dtype": dtype}
    if kind is None:
        kind, arguments["nonlinearity"] = torch.nn.RNN, n.rnn_mode[4:]
    return kind(width, n.hidden_size, n.num_layers, **arguments)
