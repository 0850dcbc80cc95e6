"""Recurrent networks step by step from their equations, in float64, with all gradients: the oracle.

Per layer and direction, x_t the layer's input, h the state before the step, matrices (hidden, in) as in the flat w:

    rnn_relu, rnn_tanh   h' = act(W x + bW + R h + bR)
    lstm                 i, f, o = sigmoid(..), g = tanh(..), each of W x + bW + R h + bR;
                         c' = f c + i g,  h' = o tanh(c')
    gru                  r, z = sigmoid(W x + bW + R h + bR);  n = tanh(Wn x + bWn + r (Rn h + bRn));
                         h' = (1 - z) n + z h

w is flat: all matrices, pseudo-layer (2 * layer + direction) by pseudo-layer, in each W of every gate and then R of
every gate (lstm: i f g o; gru: r z n), then all bias vectors in the same order. ``skip``: the first layer has no W, its
W x is x. A sequence that has ended keeps its state, and its y is 0. The same steps, taken with another arithmetic, give
the bounds (``rnn_bounds``): hence the class ``Exact``, which holds every operation of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


class Exact:
    """The steps' arithmetic in plain float64."""

    def affine(self, terms: list[tuple[Any, Any]], *biases: Float64) -> Any:
        """Sum of W a over the terms (a itself where W is None) and of the biases."""
        return sum((a if m is None else a @ m.T for a, m in terms), sum(biases))

    def sum(self, *parts: Any) -> Any:
        return sum(parts)

    def sigmoid(self, a: Any) -> Any:
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-a))

    def tanh(self, a: Any) -> Any:
        return np.tanh(a)

    def relu(self, terms: list[tuple[Any, Any]], *biases: Float64) -> tuple[Any, Any]:
        """The positive part of ``affine``, and its slope: 0 at 0."""
        a = self.affine(terms, *biases)
        return np.maximum(a, 0.0), np.where(np.isnan(a), a, a > 0)

    def stored(self, a: Any) -> Any:
        """What is kept: a state, a gate, a gradient of either."""
        return a

    def outer(self, gates: list[list[Any]], b: list[Any]) -> list[Any]:
        """Sum over time and batch of a_i b_j, for a of each gate."""
        right = np.concatenate(b)
        return [np.concatenate(a).T @ right for a in gates]

    def total(self, a: list[Any]) -> Any:
        """Sum over time and batch."""
        return np.concatenate(a).sum(axis=0)


# ---- one step of a cell ----------------------------------------------------------------------------------------------


def _step(A: Any, mode: str, layer: Any, x: Any, h: Any, c: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    """(h', c', what the gradient of the step needs)."""
    W, R, bW, bR = layer
    gates = [([(x, W[k]), (h, R[k])], bW[k], bR[k]) for k in range(len(R))]
    if mode == "rnn_relu":
        new, slope = A.relu(*gates[0])
        return A.stored(new), c, (slope,)
    if mode == "rnn_tanh":
        new = A.stored(A.tanh(A.affine(*gates[0])))
        return new, c, (1 - new * new,)
    if mode == "lstm":
        i, f, g, o = ((A.tanh if k == 2 else A.sigmoid)(A.affine(*gate)) for k, gate in enumerate(gates))
        new_c = A.stored(A.sum(f * c, i * g))
        return A.stored(o * A.tanh(new_c)), new_c, (*map(A.stored, (i, f, g, o)), c, new_c)
    r, z, q = A.sigmoid(A.affine(*gates[0])), A.sigmoid(A.affine(*gates[1])), A.affine([(h, R[2])], bR[2])
    n = A.tanh(A.sum(A.affine([(x, W[2])], bW[2]), r * q))
    return A.stored(A.sum((1 - z) * n, z * h)), c, (*map(A.stored, (r, z, n, q)), h)


def _step_grad(A: Any, mode: str, R: Any, saved: Any, dh: Any, dc: Any) -> tuple[list[Any], list[Any], Any, Any]:
    """(gradients of each gate's W x + bW, of each gate's R h + bR, of h, of c) from those of h' and c'."""
    more: list[tuple[Any, Any]] = []
    if mode in ("rnn_relu", "rnn_tanh"):
        in_x = in_h = [A.stored(dh * saved[0])]
    elif mode == "lstm":
        i, f, g, o, c, new_c = saved
        t = A.tanh(new_c)
        dc = A.sum(dc, dh * o * (1 - t * t))
        parts = (dc * g * i * (1 - i), dc * c * f * (1 - f), dc * i * (1 - g * g), dh * t * o * (1 - o))
        in_x = in_h = [A.stored(p) for p in parts]
        dc = A.stored(dc * f)
    else:
        r, z, n, q, h = saved
        da_n = dh * (1 - z) * (1 - n * n)
        da_r, da_z = A.stored(da_n * q * r * (1 - r)), A.stored(dh * A.sum(h, -n) * z * (1 - z))
        in_x, in_h = [da_r, da_z, A.stored(da_n)], [da_r, da_z, A.stored(da_n * r)]
        more = [(dh * z, None)]
    return in_x, in_h, A.stored(A.affine([(a, m.T) for a, m in zip(in_h, R, strict=True)] + more)), dc


# ---- the network -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Net:
    """A network's parameters, its layers as (W, R, bW, bR) lists over gates, one a pseudo-layer."""

    mode: str
    hidden: int
    layers: int
    directions: int
    skip: bool
    input_dim: int

    def in_dim(self, layer: int) -> int:
        return self.hidden * self.directions if layer else self.input_dim

    def cut(self, w: Float64) -> list[Any]:
        gates, H, at = GATES[self.mode], self.hidden, 0
        matrices, found = [], []
        for layer in range(self.layers):
            for _ in range(self.directions):
                pair: list[list[Float64 | None]] = []
                for columns, absent in ((self.in_dim(layer), layer == 0 and self.skip), (H, False)):
                    cut: list[Float64 | None] = []
                    for _ in range(gates):
                        cut.append(None if absent else w[at : at + H * columns].reshape(H, columns))
                        at += 0 if absent else H * columns
                    pair.append(cut)
                matrices.append(pair)
        for W, R in matrices:
            bW, bR = (w[at + i * gates * H : at + (i + 1) * gates * H].reshape(gates, H) for i in (0, 1))
            found.append((W, R, bW, bR))
            at += 2 * gates * H
        if w.shape != (at,):
            raise ValueError(f"w: expected {at} elements, got shape {w.shape}")
        return found


def _net(x: Any, hidden_size: int, num_layers: int, rnn_mode: str, input_mode: str, direction_mode: str) -> _Net:
    if rnn_mode not in GATES:
        raise ValueError(f"rnn_mode: expected one of {', '.join(GATES)}, got {rnn_mode!r}")
    directions = {"unidirectional": 1, "bidirectional": 2}[direction_mode]
    return _Net(rnn_mode, hidden_size, num_layers, directions, input_mode == "skip", np.shape(x)[2])


def _forward(A: Any, net: _Net, layers: list[Any], x: list[Any], hx: Any, cx: Any, alive: Any) -> tuple[Any, ...]:
    """(y over time, final h, final c, tape): ``alive[t]`` marks the sequences that have a step t."""
    tape: list[Any] = []
    hy, cy = [], []
    times = range(len(x))
    for index, layer in enumerate(layers):
        if index % net.directions == 0:
            source, parts = x, []
        h, c, saved, out = hx[index], cx[index], {}, {}
        for t in times if index % net.directions == 0 else reversed(times):
            new_h, new_c, kept = _step(A, net.mode, layer, source[t], h, c)
            saved[t] = (kept, h)
            h, c = np.where(alive[t], new_h, h), np.where(alive[t], new_c, c)
            out[t] = np.where(alive[t], new_h, 0.0)
        tape.append((source, saved))
        hy.append(h)
        cy.append(c)
        parts.append(out)
        x = [np.concatenate([o[t] for o in parts], axis=-1) for t in times]
    return x, hy, cy, tape


def _backward(A: Any, net: _Net, layers: list[Any], tape: Any, dy: Any, dhy: Any, dcy: Any, alive: Any) -> Any:
    """(gradients of the parameters in w's order, of x over time, of hx, of cx)."""
    times = range(len(dy))
    matrices: list[Any] = []
    biases: list[Any] = []
    dhx: dict[int, Any] = {}
    dcx: dict[int, Any] = {}
    for first in range(len(layers) - net.directions, -1, -net.directions):
        dx: Any = [[] for _ in times]
        cut = [np.split(d, net.directions, axis=-1) for d in dy]
        these: list[Any] = []
        for index in range(first, first + net.directions):
            W, R, _, _ = layers[index]
            source, saved = tape[index]
            dh, dc, all_x, all_h = dhy[index], dcy[index], [], []
            for t in reversed(times) if index == first else times:
                given = A.sum(dh, np.where(alive[t], cut[t][index - first], 0.0))
                in_x, in_h, new_dh, new_dc = _step_grad(A, net.mode, R, saved[t][0], given, dc)
                in_x, in_h = ([np.where(alive[t], a, 0.0) for a in part] for part in (in_x, in_h))
                dh, dc = np.where(alive[t], new_dh, dh), np.where(alive[t], new_dc, dc)
                dx[t] += [(a, m if m is None else m.T) for a, m in zip(in_x, W, strict=True)]
                all_x.append((t, in_x))
                all_h.append((t, in_h))
            dhx[index], dcx[index] = dh, dc
            gates = range(len(W))
            steps = [t for t, _ in all_x]
            if W[0] is not None:
                these += A.outer([[a[k] for _, a in all_x] for k in gates], [source[t] for t in steps])
            these += A.outer([[a[k] for _, a in all_h] for k in gates], [saved[t][1] for t in steps])
            if index == first:
                bias: list[Any] = []
            bias += [A.total([a[k] for _, a in all_x]) for k in gates]
            bias += [A.total([a[k] for _, a in all_h]) for k in gates]
        matrices, biases = these + matrices, bias + biases
        dy = [A.stored(A.affine(terms)) for terms in dx]
    order = range(len(layers))
    return matrices + biases, dy, [dhx[i] for i in order], [dcx[i] for i in order]


def _alive(x: Float64, lengths: Any) -> Any:
    steps, batch = x.shape[:2]
    ends = np.full(batch, steps) if lengths is None else np.asarray(lengths)
    return (np.arange(steps)[:, None] < ends)[..., None]


# ---- public ----------------------------------------------------------------------------------------------------------


def rnn_forward(
    w: Any, x: Any, hx: Any, cx: Any = None, *, hidden_size: int, num_layers: int, rnn_mode: str,
    input_mode: str = "linear", direction_mode: str = "unidirectional", lengths: Any = None,
) -> tuple[Float64, ...]:  # fmt: skip
    """(y, hy) or, for lstm, (y, hy, cy) of a recurrent network, in float64; the equations open this module.

    w flat; x (time, batch, in); hx and cx (layers * directions, batch, hidden), cx None is zeros; y (time, batch,
    hidden * directions). ``lengths`` counts each sequence's steps. ValueError where w has not the right length.

    >>> rnn_forward([2.0, 3.0, 0.0, 1.0], [[[1.0]]], [[[1.0]]], hidden_size=1, num_layers=1, rnn_mode="rnn_relu")[0]
    array([[[6.]]])
    """
    network = (hidden_size, num_layers, rnn_mode, input_mode, direction_mode)
    return outputs(Exact(), network, lengths, w, x, hx, cx)


def rnn_backward(
    w: Any, x: Any, hx: Any, *others: Any, given: Any = ("dy",), hidden_size: int, num_layers: int, rnn_mode: str,
    input_mode: str = "linear", direction_mode: str = "unidirectional", lengths: Any = None,
) -> tuple[Float64, ...]:  # fmt: skip
    """(dw, dx, dhx) or, for lstm, (dw, dx, dhx, dcx): gradients of sum(dy y) + sum(dhy hy) + sum(dcy cy), in float64.

    ``given`` names ``others`` in their order, out of cx, dy, dhy, dcy; those not given are zeros. dw is flat like w.

    >>> arrays = [2.0, 3.0, 0.0, 1.0], [[[1.0]]], [[[1.0]]], [[[1.0]]]
    >>> rnn_backward(*arrays, hidden_size=1, num_layers=1, rnn_mode="rnn_relu")[0]
    array([1., 1., 1., 1.])
    """
    network = (hidden_size, num_layers, rnn_mode, input_mode, direction_mode)
    dw, *rest = gradients(Exact(), network, lengths, given, w, x, hx, *others)
    return (np.concatenate([d.ravel() for d in dw]), *rest)


def _evaluate(A: Any, network: Any, lengths: Any, w: Any, x: Any, hx: Any, cx: Any) -> tuple[Any, ...]:
    w, x, hx = (np.asarray(a).astype(np.float64) for a in (w, x, hx))
    cx = np.zeros_like(hx) if cx is None else np.asarray(cx).astype(np.float64)
    net, alive = _net(x, *network), _alive(x, lengths)
    layers, x = net.cut(w), np.where(alive, x, 0.0)  # what lies past the end of a sequence is no part of it
    return _forward(A, net, layers, list(x), list(hx), list(cx), alive), net, layers, alive


def outputs(A: Any, network: Any, lengths: Any, w: Any, x: Any, hx: Any, cx: Any = None) -> tuple[Float64, ...]:
    (y, hy, cy, _), net, _, _ = _evaluate(A, network, lengths, w, x, hx, cx)
    return tuple(np.stack(part) for part in ((y, hy, cy) if net.mode == "lstm" else (y, hy)))


def gradients(A: Any, network: Any, lengths: Any, given: Any, w: Any, x: Any, hx: Any, *others: Any) -> Any:
    """(list of the parameters' gradients, dx, dhx[, dcx])."""
    o = {name: np.asarray(a).astype(np.float64) for name, a in zip(given, others, strict=True)}
    (y, hy, cy, tape), net, layers, alive = _evaluate(A, network, lengths, w, x, hx, o.get("cx"))
    dy, dhy, dcy = o.get("dy", np.zeros_like(y)), o.get("dhy", np.zeros_like(hy)), o.get("dcy", np.zeros_like(cy))
    dw, *rest = _backward(A, net, layers, tape, list(np.where(alive, dy, 0.0)), list(dhy), list(dcy), alive)
    return dw, *(np.stack(part) for part in (rest if net.mode == "lstm" else rest[:2]))
