"""LSTM, GRU and RNN of ONNX step by step in NumPy, with what numbadnn's networks lack: other activations, clipped and coupled
gates, peepholes, a reset gate before the recurrent product, empty sequences. onnx.reference leaves most of these out, unsaid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.special

from numbadnn.validate.model.graph import Node
from numbadnn.validate.model.nodes.kinds import Given, Outputs
from numbadnn.validate.model.posed import Unposed

Function = Callable[[np.ndarray], np.ndarray]

#: name -> (function of x, alpha, beta; the defaults that it has of alpha and beta)
_ACTIVATIONS: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    "sigmoid": (scipy.special.expit, ()),
    "tanh": (np.tanh, ()),
    "relu": (lambda x: np.maximum(x, 0), ()),
    "softsign": (lambda x: x / (1 + np.abs(x)), ()),
    "softplus": (lambda x: np.logaddexp(x, 0), ()),
    "leakyrelu": (lambda x, a: np.where(x < 0, a * x, x), (0.01,)),
    "thresholdedrelu": (lambda x, a: np.where(x > a, x, 0), (1.0,)),
    "elu": (lambda x, a: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x), (1.0,)),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), (0.2, 0.5)),
}
_USUAL = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def _activations(node: Node, directions: int) -> list[list[Function]]:
    """Of each direction, in the order of the node; alphas and betas go to those that have some, one after the other."""
    usual, clip = _USUAL[node.op], node.get("clip")
    alphas, betas = iter(node.get("activation_alpha", ())), iter(node.get("activation_beta", ()))

    def one(name: str) -> Function:
        if name.lower() not in _ACTIVATIONS:
            raise Unposed(f"the activation {name}")
        function, defaults = _ACTIVATIONS[name.lower()]
        constants = [next(given, default) for given, default in zip((alphas, betas), defaults, strict=False)]
        return lambda x: np.asarray(function(x if clip is None else np.clip(x, -clip, clip), *constants), x.dtype)

    found = [one(name) for name in node.get("activations") or usual * directions]
    if len(found) != len(usual) * directions:
        raise Unposed(f"{len(found)} activations, expected {len(usual)} for each of {directions} directions")
    return [found[i : i + len(usual)] for i in range(0, len(found), len(usual))]


def recurrent_steps(node: Node, given: Given) -> Outputs:
    """(Y, Y_h) and of an LSTM Y_c, in the type of X."""
    x, w, r, b, lengths, h, c, peepholes = (*given, *[None] * 8)[:8]
    if node.get("layout", 0):
        x, h, c = x.swapaxes(0, 1), *(None if s is None else s.swapaxes(0, 1) for s in (h, c))
    directions, hidden, (time, batch, _) = r.shape[0], r.shape[2], x.shape
    b = np.zeros((directions, 2 * w.shape[1]), x.dtype) if b is None else b
    peepholes = np.zeros((directions, 3 * hidden), x.dtype) if peepholes is None else peepholes
    lengths = np.full(batch, time) if lengths is None else lengths
    start = np.zeros((directions, batch, hidden), x.dtype)
    y, states = np.zeros((time, directions, batch, hidden), x.dtype), []
    for d, functions in enumerate(_activations(node, directions)):
        step = _STEPS[node.op](node, functions, w[d], r[d], b[d], peepholes[d])
        state = (start[d] if h is None else h[d], start[d] if c is None else c[d])
        for t, going in _turns(lengths, time, d == 1 or node.get("direction", "forward") == "reverse"):
            places, entries = np.where(going, t, 0), np.arange(batch)
            new = step(x[places, entries], *state)
            state = tuple(np.where(going[:, None], n, old) for n, old in zip(new, state, strict=True))
            y[places[going], d, entries[going]] = state[0][going]
        states.append(state)
    ends = [np.stack([state[i] for state in states]) for i in range(2 if node.op == "LSTM" else 1)]
    if node.get("layout", 0):
        return (y.transpose(2, 0, 1, 3), *(end.swapaxes(0, 1) for end in ends))
    return (y, *ends)


def _turns(lengths: np.ndarray, time: int, backward: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Turn by turn: the time that each sequence is at, and whether it goes on."""
    for turn in range(time):
        yield (lengths - 1 - turn if backward else np.full(len(lengths), turn)), turn < lengths


def _rnn(node: Node, f: list[Function], w: Any, r: Any, b: Any, p: Any) -> Any:
    bias = b[: len(w)] + b[len(w) :]
    return lambda x, h, c: (f[0](x @ w.T + h @ r.T + bias), c)


def _gru(node: Node, f: list[Function], w: Any, r: Any, b: Any, p: Any) -> Any:
    """Gates z, r, h."""
    n = r.shape[1]
    of_x, of_h = b[: len(w)], b[len(w) :]

    def step(x: Any, h: Any, c: Any) -> Any:
        given = x @ w.T + of_x
        gates = f[0](given[:, : 2 * n] + h @ r[: 2 * n].T + of_h[: 2 * n])
        z, reset = gates[:, :n], gates[:, n:]
        if node.get("linear_before_reset", 0):
            new = f[1](given[:, 2 * n :] + reset * (h @ r[2 * n :].T + of_h[2 * n :]))
        else:
            new = f[1](given[:, 2 * n :] + (reset * h) @ r[2 * n :].T + of_h[2 * n :])
        return (1 - z) * new + z * h, c

    return step


def _lstm(node: Node, f: list[Function], w: Any, r: Any, b: Any, p: Any) -> Any:
    """Gates i, o, f, c."""
    n = r.shape[1]
    bias, (pi, po, pf) = b[: len(w)] + b[len(w) :], (p[:n], p[n : 2 * n], p[2 * n :])

    def step(x: Any, h: Any, c: Any) -> Any:
        i, o, forget, new = np.split(x @ w.T + h @ r.T + bias, 4, axis=1)
        i = f[0](i + pi * c)
        forget = 1 - i if node.get("input_forget", 0) else f[0](forget + pf * c)
        c = forget * c + i * f[1](new)
        return f[0](o + po * c) * f[2](c), c

    return step


_STEPS: dict[str, Callable[..., Any]] = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}
