"""The backward pass of a recurrent network on the CPU: all steps of a pseudo-layer, then the products of all steps at once."""

from __future__ import annotations

import numpy as np

from numbadnn.cpu.lang import later
from numbadnn.cpu.rnn.work import Team, Work, packed


def backward(
    work: Work, x: np.ndarray, hx: np.ndarray, cx: np.ndarray, dy: np.ndarray, dh: np.ndarray, dc: np.ndarray,
    dw: np.ndarray, dx: np.ndarray,
) -> None:  # fmt: skip
    """Fill dx and dw; dh and dc, on entry the gradients of the last states, become those of the first."""
    n, x = work.network, _within(work, x)
    for layer in range(n.num_layers - 1, -1, -1):
        source = work.ys[layer - 1] if layer else x
        below = np.empty(source.shape, work.acc) if layer else dx
        for index in range(layer * n.directions, (layer + 1) * n.directions):
            _steps(work, index, hx[index], cx[index], dy, dh[index], dc[index])
            _of_inputs(work, index, below)
            _of_parameters(work, index, source, hx[index], dw)
        dy = below


def _steps(
    work: Work, index: int, hx: np.ndarray, cx: np.ndarray, dy: np.ndarray, dh: np.ndarray, dc: np.ndarray
) -> None:
    """The gradients under each gate, in place of the gates; dh and dc become those of the first states."""
    MR = later.names("numbadnn.cpu.conv.micro", "MR")
    loops = later.module("numbadnn.cpu.rnn.loops")

    (mode, *kind), (T, N, H) = work.network.rnn_mode.split("_"), (work.T, work.N, work.H)
    gates, *more = work.cells[index]
    y, (col, before) = work.ys[index // work.network.directions], work.order(index)
    r, rec = work.memory(work.panels(work.rows, H), (N, H))
    rec[...] = 0
    packed(work.matrices(index)[1], False, r)
    run, place = Team(2 * T * N * work.rows * H, N // MR).run, (T - 1 if before < 0 else 0, before, col)
    if mode == "lstm":
        run(loops.lstm_grads, r, r, gates, more[0], cx, dy, dh, rec, dc, work.ends, *place)
    elif mode == "gru":
        run(loops.gru_grads, r, r, gates, more[0], y, hx, dy, dh, rec, work.ends, *place)
    else:
        run(loops.rnn_grads, r, r, gates, y, dy, dh, rec, work.ends, *place, kind == ["relu"])
    dh += rec


def _of_inputs(work: Work, index: int, dx: np.ndarray) -> None:
    """dx = the gradients under the gates times W, added to those of the other direction."""
    MR = later.names("numbadnn.cpu.conv.micro", "MR")
    rows_product = later.names("numbadnn.cpu.rnn.whole", "rows_product")

    gates, w, second = work.cells[index][0], work.matrices(index)[0], index % work.network.directions > 0
    if w is None:
        found = gates.reshape(work.T, work.N, -1, work.H).sum(axis=2)
        dx[...] = dx + found if second else found
        return
    (panels,) = work.memory(work.panels(*w.shape))
    flat, below = dx.reshape(-1, w.shape[1]), gates.reshape(-1, work.rows)
    team = Team(2 * below.size * w.shape[1], len(below) // MR)
    team.run(rows_product, panels, below, packed(w, False, panels), flat, second)


def _of_parameters(work: Work, index: int, source: np.ndarray, hx: np.ndarray, dw: np.ndarray) -> None:
    """dW, dR and the biases' gradients."""
    H, rows = work.H, work.rows
    grad_w, grad_r, grad_bw, grad_br = work.cut(dw, index)
    gates, *more = (a.reshape(-1, a.shape[2]) for a in work.cells[index])
    before = _states_before(work, index, hx).reshape(-1, H)
    flat = source.reshape(len(before), -1)
    if work.network.rnn_mode != "gru":
        _weights(work, gates, (0, rows), grad_bw, (flat, grad_w), (before, grad_r))
        grad_br[...] = grad_bw
        return
    top, under = slice(0, 2 * H), slice(2 * H, rows)
    of_w = (None, None) if grad_w is None else (grad_w[top], grad_w[under])
    _weights(work, gates, (0, 2 * H), grad_bw[top], (flat, of_w[0]), (before, grad_r[top]))
    _weights(work, gates, (2 * H, rows), grad_bw[under], (flat, of_w[1]), (before, None))
    _weights(work, more[0], (0, H), grad_br[under], (flat, None), (before, grad_r[under]))
    grad_br[top] = grad_bw[top]


def _weights(
    work: Work, gates: np.ndarray, some: tuple[int, int], sums: np.ndarray, *terms: tuple[np.ndarray, np.ndarray | None]
) -> None:
    """Each term's (a, gradient): gradient = g' a, and sums = g' 1, where g is some columns of gates."""
    DEPTH, ROWS, weights_product = later.names("numbadnn.cpu.rnn.whole", "DEPTH", "ROWS", "weights_product")

    length, count = len(gates), some[1] - some[0]
    parts = -(-length // DEPTH)
    width = sum(a.shape[1] for a, gradient in terms if gradient is not None)
    team = Team(2 * length * count * width, count // ROWS)
    outs = [np.empty((0, 0), work.acc) if gradient is None else gradient for _, gradient in terms]
    for part in range(parts):
        here = slice(length * part // parts, length * (part + 1) // parts)
        depth = here.stop - here.start
        shapes = [work.panels(depth, 0 if gradient is None else a.shape[1]) for a, gradient in terms]
        *panels, turned = work.memory(*shapes, (team.threads, ROWS * depth))
        for (a, gradient), panel in zip(terms, panels, strict=True):
            if gradient is not None:
                packed(a[here], False, panel)
        team.run(weights_product, turned, gates[here], *some, *panels, *outs, sums, part > 0, turned)


def _within(work: Work, x: np.ndarray) -> np.ndarray:
    """x, and 0 past the ends of sequences, for the same reason as in ``_states_before``."""
    if work.problem.lengths is None:
        return x
    past = np.arange(work.T)[:, None] >= work.ends
    return np.where(past[:, :, None], x.dtype.type(0), x)


def _states_before(work: Work, index: int, hx: np.ndarray) -> np.ndarray:
    """h at the beginning of each step, 0 past the end of a sequence: the gradients there are 0 too, but 0 times whatever
    memory held may be NaN."""
    y, (col, step) = work.ys[index // work.network.directions], work.order(index)
    own, before = y[:, :, col : col + work.H], np.zeros((work.T, work.N, work.H), work.acc)
    if step < 0:
        before[1:], before[0] = own[:-1], hx
    else:
        before[:-1] = own[1:]
        before[work.ends - 1, np.arange(work.N)] = hx
    return before
