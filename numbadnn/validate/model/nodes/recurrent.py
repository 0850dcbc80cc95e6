"""LSTM, GRU and RNN: numbadnn's networks of one layer, with ONNX's gates, directions and places of the axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn.ops.rnn_weights import rnn_weights_from_onnx
from numbadnn.validate.model.graph import Node
from numbadnn.validate.model.nodes.kinds import Given, Kind, Outputs
from numbadnn.validate.model.nodes.recurrent_steps import recurrent_steps
from numbadnn.validate.model.posed import Posed, Unposed

_USUAL = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh")}


def _mode(node: Node, directions: int) -> str:
    """The mode that numbadnn has for it; Unposed for variants that it lacks."""
    given = node.get("activations")
    if node.op == "RNN":
        mode = {("Tanh",): "rnn_tanh", ("Relu",): "rnn_relu"}.get(tuple(dict.fromkeys(given or ("Tanh",))))
    else:
        mode = node.op.lower() if given in (None, _USUAL[node.op] * directions) else None
    if mode is None:
        raise Unposed(f"activations {given}")
    if node.get("clip") is not None or node.get("input_forget", 0):
        raise Unposed("clipped or coupled gates")
    if node.op == "GRU" and not node.get("linear_before_reset", 0):
        raise Unposed("a reset gate before the recurrent product (linear_before_reset=0)")
    return mode


def recurrent(node: Node, given: Given) -> Posed:
    x, w, r, b, lengths, h, c, peepholes = (*given, *[None] * 8)[:8]
    directions, hidden, batch_first = r.shape[0], r.shape[2], node.get("layout", 0)
    mode, reverse = _mode(node, directions), node.get("direction", "forward") == "reverse"
    if peepholes is not None:
        raise Unposed("peepholes")
    if batch_first:
        x, h, c = x.swapaxes(0, 1), *(None if s is None else s.swapaxes(0, 1) for s in (h, c))
    if lengths is not None and (lengths == x.shape[0]).all():
        lengths = None
    if lengths is not None and lengths.min() < 1:
        raise Unposed("empty sequences")
    if reverse:
        x = _reversed(x, lengths)
    state = np.zeros((directions, x.shape[1], hidden), x.dtype)
    weights = rnn_weights_from_onnx([(w, r, b)], mode)
    arrays = [weights, np.ascontiguousarray(x), state if h is None else h]
    if mode == "lstm":
        arrays.append(state if c is None else c)
    keywords: dict[str, Any] = {
        "hidden_size": hidden,
        "num_layers": 1,
        "rnn_mode": mode,
        "direction_mode": "bidirectional" if directions == 2 else "unidirectional",
        "lengths": None if lengths is None else tuple(lengths.tolist()),
    }

    def arrange(results: Outputs) -> Outputs:
        y, *states = results
        y = y.reshape(*y.shape[:2], directions, hidden).transpose(0, 2, 1, 3)
        y = _reversed(y.swapaxes(1, 2), lengths).swapaxes(1, 2) if reverse else y
        if batch_first:
            return (y.transpose(2, 0, 1, 3), *(s.swapaxes(0, 1) for s in states))
        return (y, *states)

    return Posed("rnn_forward", tuple(arrays), keywords, arrange)


def _reversed(x: np.ndarray, lengths: np.ndarray | None) -> np.ndarray:
    """(time, batch, ...) with each sequence the other way round; what lies past its end stays."""
    if lengths is None:
        return x[::-1]
    turn = np.arange(len(x))[:, None]
    return x[np.where(turn < lengths, lengths - 1 - turn, turn), np.arange(len(lengths))]


def flops(node: Node, given: Given, outputs: Outputs) -> int:
    x, w, r = given[:3]
    return 2 * x.shape[0] * x.shape[1] * (w.size + r.size)


TABLE = dict.fromkeys(("LSTM", "GRU", "RNN"), Kind(recurrent, flops=flops, unjudged=recurrent_steps))
