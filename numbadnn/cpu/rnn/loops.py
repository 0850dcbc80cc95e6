"""All time steps of a recurrent cell and of its gradient: the product of a step, and then its gates.

Arrays are C-ordered float32 or float64; arithmetic inside is float64, exp by ``_softmax._exp``, which vectorises.
A thread takes some of the sequences through all steps, so that no step waits for another thread.
``gates`` (time, batch, gates * hidden) holds W x on entry and the activated gates after; the gradient overwrites those
with the gradients of the sums under them. ``rec`` is R h. ``h`` and ``c`` are the states, carried from step to step;
sequence n ends before step ends[n], and keeps its state there. ``col`` is where the direction's part of y begins. Step s is at
time ``first`` + s * ``step``. ``lists``, ``tiles``: a row for each thread, see ``products``.
Loading this module imports Numba.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from numbadnn.cpu.lang.elements import accsize
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.rnn.products import TILE, lists_of, product
from numbadnn.cpu.softmax.loops import _exp


@njit(nogil=True, inline="always")
def _sigmoid(a):
    e = _exp(-abs(a))
    s = 1.0 / (1.0 + e)
    return s if a >= 0 else e * s


@njit(nogil=True, inline="always")
def _tanh(a):
    """Within some units of 1; near 0 the argument itself is closer."""
    e = _exp(-2.0 * abs(a))
    t = (1.0 - e) / (1.0 + e)
    if abs(a) < 1e-5:
        t = abs(a)
    return t if a >= 0 else (-t if a < 0 else a)


@inner
def _rnn_rows(gates, rec, bias, h, y, ends, t, col, relu, n0, n1):
    H = h.shape[1]
    for n in range(n0, n1):
        if t >= ends[n]:
            for u in range(H):
                y[t, n, col + u] = 0
            continue
        for u in range(H):
            a = np.float64(gates[t, n, u]) + rec[n, u] + bias[u]
            if relu:
                value = a if a > 0 or a != a else 0.0
            else:
                value = _tanh(a)
            h[n, u] = value
            y[t, n, col + u] = value


@inner
def _lstm_rows(gates, rec, bias, c_all, h, c, y, ends, t, col, n0, n1):
    H = h.shape[1]
    for n in range(n0, n1):
        if t >= ends[n]:
            for u in range(H):
                y[t, n, col + u] = 0
                c_all[t, n, u] = c[n, u]
            continue
        for u in range(H):
            i = _sigmoid(np.float64(gates[t, n, u]) + rec[n, u] + bias[u])
            f = _sigmoid(np.float64(gates[t, n, H + u]) + rec[n, H + u] + bias[H + u])
            g = _tanh(np.float64(gates[t, n, 2 * H + u]) + rec[n, 2 * H + u] + bias[2 * H + u])
            o = _sigmoid(np.float64(gates[t, n, 3 * H + u]) + rec[n, 3 * H + u] + bias[3 * H + u])
            cell = f * c[n, u] + i * g
            gates[t, n, u] = i
            gates[t, n, H + u] = f
            gates[t, n, 2 * H + u] = g
            gates[t, n, 3 * H + u] = o
            c[n, u] = cell
            c_all[t, n, u] = cell
            value = o * _tanh(cell)
            h[n, u] = value
            y[t, n, col + u] = value


@inner
def _gru_rows(gates, rec, bias, bias_r, q_all, h, y, ends, t, col, n0, n1):
    """``bias``: both vectors of r and z, and n's that meets the input; ``bias_r``: n's that is under the reset gate."""
    H = h.shape[1]
    for n in range(n0, n1):
        if t >= ends[n]:
            for u in range(H):
                y[t, n, col + u] = 0
            continue
        for u in range(H):
            r = _sigmoid(np.float64(gates[t, n, u]) + rec[n, u] + bias[u])
            z = _sigmoid(np.float64(gates[t, n, H + u]) + rec[n, H + u] + bias[H + u])
            q = np.float64(rec[n, 2 * H + u]) + bias_r[u]
            new = _tanh(np.float64(gates[t, n, 2 * H + u]) + bias[2 * H + u] + r * q)
            gates[t, n, u] = r
            gates[t, n, H + u] = z
            gates[t, n, 2 * H + u] = new
            q_all[t, n, u] = q
            value = (1.0 - z) * new + z * h[n, u]
            h[n, u] = value
            y[t, n, col + u] = value


# ---- gradients: dh on entry without, and dh_rec with, what the recurrent product of the later step gave; after, dh is
# what goes to the earlier step besides its recurrent product


@inner
def _rnn_back(gates, y, dy, dh, dh_rec, ends, t, col, relu, n0, n1):
    H = dh.shape[1]
    for n in range(n0, n1):
        for u in range(H):
            d = np.float64(dh[n, u]) + dh_rec[n, u]
            if t >= ends[n]:
                gates[t, n, u] = 0
                dh[n, u] = d
                continue
            d += dy[t, n, col + u]
            h = np.float64(y[t, n, col + u])
            if relu:
                slope = 1.0 if h > 0 else (0.0 if h == h else h)
            else:
                slope = 1.0 - h * h
            gates[t, n, u] = d * slope
            dh[n, u] = 0


@inner
def _lstm_back(gates, c_all, cx, dy, dh, dh_rec, dc, ends, t, before, col, n0, n1):
    """``before``: the step whose c this one began with; cx where there is none."""
    H = dh.shape[1]
    T = len(c_all)
    for n in range(n0, n1):
        if t >= ends[n]:
            for u in range(H):
                dh[n, u] = dh[n, u] + dh_rec[n, u]
            for u in range(4 * H):
                gates[t, n, u] = 0
            continue
        inside = before >= 0 and before < T
        for u in range(H):
            i, f = np.float64(gates[t, n, u]), np.float64(gates[t, n, H + u])
            g, o = np.float64(gates[t, n, 2 * H + u]), np.float64(gates[t, n, 3 * H + u])
            d = np.float64(dh[n, u]) + dh_rec[n, u] + dy[t, n, col + u]
            old = np.float64(c_all[before, n, u]) if inside else np.float64(cx[n, u])
            s = _tanh(np.float64(c_all[t, n, u]))
            e = np.float64(dc[n, u]) + d * o * (1.0 - s * s)
            gates[t, n, u] = e * g * i * (1.0 - i)
            gates[t, n, H + u] = e * old * f * (1.0 - f)
            gates[t, n, 2 * H + u] = e * i * (1.0 - g * g)
            gates[t, n, 3 * H + u] = d * s * o * (1.0 - o)
            dc[n, u] = e * f
            dh[n, u] = 0


@inner
def _gru_back(gates, q_all, y, hx, dy, dh, dh_rec, ends, t, before, col, n0, n1):
    """``gates`` then hold the gradients under r, z, n, and ``q_all`` that of Rn h + bRn."""
    H = dh.shape[1]
    T = len(q_all)
    for n in range(n0, n1):
        if t >= ends[n]:
            for u in range(H):
                dh[n, u] = dh[n, u] + dh_rec[n, u]
                q_all[t, n, u] = 0
            for u in range(3 * H):
                gates[t, n, u] = 0
            continue
        inside = before >= 0 and before < T and before < ends[n]
        for u in range(H):
            r, z = np.float64(gates[t, n, u]), np.float64(gates[t, n, H + u])
            new, q = np.float64(gates[t, n, 2 * H + u]), np.float64(q_all[t, n, u])
            old = np.float64(y[before, n, col + u]) if inside else np.float64(hx[n, u])
            d = np.float64(dh[n, u]) + dh_rec[n, u] + dy[t, n, col + u]
            dn = d * (1.0 - z) * (1.0 - new * new)
            gates[t, n, u] = dn * q * r * (1.0 - r)
            gates[t, n, H + u] = d * (old - new) * z * (1.0 - z)
            gates[t, n, 2 * H + u] = dn
            q_all[t, n, u] = dn * r
            dh[n, u] = d * z


# ---- all steps -------------------------------------------------------------------------------------------------------


@inner
def _of_h(h, packed, rec, n0, n1, lists, tile, like):
    """rec = h R' for some sequences."""
    H = h.shape[1]
    product(h.ctypes.data, H * accsize(like), H, 0, 0, packed, rec, n0, n1, lists, tile, like)


@inner
def _of_gates(gates, t, depth, more, packed, rec, n0, n1, lists, tile, like):
    """rec = gates[t, :, :depth] R[:depth] + more[t] R[depth:]."""
    N, width, size = gates.shape[1], gates.shape[2], accsize(like)
    H = more.shape[2]
    a, b = gates.ctypes.data + t * N * width * size, more.ctypes.data + t * N * H * size
    product(a, width * size, depth, b, H * size, packed, rec, n0, n1, lists, tile, like)


def rnn_steps(packed, gates, rec, bias, h, y, ends, first, step, col, relu, lists, tiles, like, threads):
    N = len(h)
    for tid in prange(threads):
        lists_of(lists[tid], like)
        n0, n1 = N * tid // threads, N * (tid + 1) // threads
        for s in range(len(gates)):
            _of_h(h, packed, rec, n0, n1, lists[tid], tiles + tid * TILE, like)
            _rnn_rows(gates, rec, bias, h, y, ends, first + s * step, col, relu, n0, n1)


def lstm_steps(packed, gates, rec, bias, c_all, h, c, y, ends, first, step, col, lists, tiles, like, threads):
    N = len(h)
    for tid in prange(threads):
        lists_of(lists[tid], like)
        n0, n1 = N * tid // threads, N * (tid + 1) // threads
        for s in range(len(gates)):
            _of_h(h, packed, rec, n0, n1, lists[tid], tiles + tid * TILE, like)
            _lstm_rows(gates, rec, bias, c_all, h, c, y, ends, first + s * step, col, n0, n1)


def gru_steps(packed, gates, rec, bias, bias_r, q_all, h, y, ends, first, step, col, lists, tiles, like, threads):
    N = len(h)
    for tid in prange(threads):
        lists_of(lists[tid], like)
        n0, n1 = N * tid // threads, N * (tid + 1) // threads
        for s in range(len(gates)):
            _of_h(h, packed, rec, n0, n1, lists[tid], tiles + tid * TILE, like)
            _gru_rows(gates, rec, bias, bias_r, q_all, h, y, ends, first + s * step, col, n0, n1)


def rnn_grads(packed, gates, y, dy, dh, rec, ends, first, step, col, relu, lists, tiles, like, threads):
    N = len(dh)
    for tid in prange(threads):
        lists_of(lists[tid], like)
        n0, n1 = N * tid // threads, N * (tid + 1) // threads
        for s in range(len(gates)):
            t = first + s * step
            _rnn_back(gates, y, dy, dh, rec, ends, t, col, relu, n0, n1)
            _of_gates(gates, t, gates.shape[2], gates, packed, rec, n0, n1, lists[tid], tiles + tid * TILE, like)


def lstm_grads(packed, gates, c_all, cx, dy, dh, rec, dc, ends, first, step, col, lists, tiles, like, threads):
    N = len(dh)
    for tid in prange(threads):
        lists_of(lists[tid], like)
        n0, n1 = N * tid // threads, N * (tid + 1) // threads
        for s in range(len(gates)):
            t = first + s * step
            _lstm_back(gates, c_all, cx, dy, dh, rec, dc, ends, t, t + step, col, n0, n1)
            _of_gates(gates, t, gates.shape[2], gates, packed, rec, n0, n1, lists[tid], tiles + tid * TILE, like)


def gru_grads(packed, gates, q_all, y, hx, dy, dh, rec, ends, first, step, col, lists, tiles, like, threads):
    N, H = dh.shape
    for tid in prange(threads):
        lists_of(lists[tid], like)
        n0, n1 = N * tid // threads, N * (tid + 1) // threads
        for s in range(len(gates)):
            t = first + s * step
            _gru_back(gates, q_all, y, hx, dy, dh, rec, ends, t, t + step, col, n0, n1)
            _of_gates(gates, t, 2 * H, q_all, packed, rec, n0, n1, lists[tid], tiles + tid * TILE, like)
