"""All time steps of a recurrent cell and of its gradient: the product of a step, and then its gates.

Arrays are C-ordered float32 or float64, which is what is computed in.
A thread takes some of the sequences through all steps, so that no step waits for another thread.
``gates`` (time, batch, gates * hidden) holds W x on entry and the activated gates after; the gradient overwrites those
with the gradients of the sums under them. ``rec`` is R h. ``h`` and ``c`` are the states, carried from step to step;
sequence n ends before step ends[n], and keeps its state there. ``col`` is where the direction's part of y begins. Step s is at
time ``first`` + s * ``step``. ``lists``, ``tiles``: a row for each thread, see ``products``.
Loading this module imports Numba.
"""

from __future__ import annotations

from numba import prange

from numbadnn.cpu.lang.elements import accsize
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.rnn.curves import sigmoid, tanh
from numbadnn.cpu.rnn.products import TILE, lists_of, product


@inner
def _rnn_rows(gates, rec, bias, h, y, ends, t, col, relu, n0, n1):
    H = h.shape[1]
    zero = gates.dtype.type(0)
    for n in range(n0, n1):
        if t >= ends[n]:
            for u in range(H):
                y[t, n, col + u] = 0
            continue
        for u in range(H):
            a = gates[t, n, u] + rec[n, u] + bias[u]
            if relu:
                value = a if a > 0 or a != a else zero
            else:
                value = tanh(a)
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
            i = sigmoid(gates[t, n, u] + rec[n, u] + bias[u])
            f = sigmoid(gates[t, n, H + u] + rec[n, H + u] + bias[H + u])
            g = tanh(gates[t, n, 2 * H + u] + rec[n, 2 * H + u] + bias[2 * H + u])
            o = sigmoid(gates[t, n, 3 * H + u] + rec[n, 3 * H + u] + bias[3 * H + u])
            cell = f * c[n, u] + i * g
            gates[t, n, u] = i
            gates[t, n, H + u] = f
            gates[t, n, 2 * H + u] = g
            gates[t, n, 3 * H + u] = o
            c[n, u] = cell
            c_all[t, n, u] = cell
            value = o * tanh(cell)
            h[n, u] = value
            y[t, n, col + u] = value


@inner
def _gru_rows(gates, rec, bias, bias_r, q_all, h, y, ends, t, col, n0, n1):
    """``bias``: both vectors of r and z, and n's that meets the input; ``bias_r``: n's that is under the reset gate."""
    H = h.shape[1]
    one = gates.dtype.type(1)
    for n in range(n0, n1):
        if t >= ends[n]:
            for u in range(H):
                y[t, n, col + u] = 0
            continue
        for u in range(H):
            r = sigmoid(gates[t, n, u] + rec[n, u] + bias[u])
            z = sigmoid(gates[t, n, H + u] + rec[n, H + u] + bias[H + u])
            q = rec[n, 2 * H + u] + bias_r[u]
            new = tanh(gates[t, n, 2 * H + u] + bias[2 * H + u] + r * q)
            gates[t, n, u] = r
            gates[t, n, H + u] = z
            gates[t, n, 2 * H + u] = new
            q_all[t, n, u] = q
            value = (one - z) * new + z * h[n, u]
            h[n, u] = value
            y[t, n, col + u] = value


# ---- gradients: dh on entry without, and dh_rec with, what the recurrent product of the later step gave; after, dh is
# what goes to the earlier step besides its recurrent product


@inner
def _rnn_back(gates, y, dy, dh, dh_rec, ends, t, col, relu, n0, n1):
    H = dh.shape[1]
    zero, one = gates.dtype.type(0), gates.dtype.type(1)
    for n in range(n0, n1):
        for u in range(H):
            d = dh[n, u] + dh_rec[n, u]
            if t >= ends[n]:
                gates[t, n, u] = 0
                dh[n, u] = d
                continue
            d += dy[t, n, col + u]
            h = y[t, n, col + u]
            if relu:
                slope = one if h > 0 else (zero if h == h else h)
            else:
                slope = one - h * h
            gates[t, n, u] = d * slope
            dh[n, u] = 0


@inner
def _lstm_back(gates, c_all, cx, dy, dh, dh_rec, dc, ends, t, before, col, n0, n1):
    """``before``: the step whose c this one began with; cx where there is none."""
    H = dh.shape[1]
    T = len(c_all)
    one = gates.dtype.type(1)
    for n in range(n0, n1):
        if t >= ends[n]:
            for u in range(H):
                dh[n, u] = dh[n, u] + dh_rec[n, u]
            for u in range(4 * H):
                gates[t, n, u] = 0
            continue
        inside = before >= 0 and before < T
        for u in range(H):
            i, f = gates[t, n, u], gates[t, n, H + u]
            g, o = gates[t, n, 2 * H + u], gates[t, n, 3 * H + u]
            d = dh[n, u] + dh_rec[n, u] + dy[t, n, col + u]
            old = c_all[before, n, u] if inside else cx[n, u]
            s = tanh(c_all[t, n, u])
            e = dc[n, u] + d * o * (one - s * s)
            gates[t, n, u] = e * g * i * (one - i)
            gates[t, n, H + u] = e * old * f * (one - f)
            gates[t, n, 2 * H + u] = e * i * (one - g * g)
            gates[t, n, 3 * H + u] = d * s * o * (one - o)
            dc[n, u] = e * f
            dh[n, u] = 0


@inner
def _gru_back(gates, q_all, y, hx, dy, dh, dh_rec, ends, t, before, col, n0, n1):
    """``gates`` then hold the gradients under r, z, n, and ``q_all`` that of Rn h + bRn."""
    H = dh.shape[1]
    T = len(q_all)
    one = gates.dtype.type(1)
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
            r, z = gates[t, n, u], gates[t, n, H + u]
            new, q = gates[t, n, 2 * H + u], q_all[t, n, u]
            old = y[before, n, col + u] if inside else hx[n, u]
            d = dh[n, u] + dh_rec[n, u] + dy[t, n, col + u]
            dn = d * (one - z) * (one - new * new)
            gates[t, n, u] = dn * q * r * (one - r)
            gates[t, n, H + u] = d * (old - new) * z * (one - z)
            gates[t, n, 2 * H + u] = dn
            q_all[t, n, u] = dn * r
            dh[n, u] = d * z


# ---- all steps -------------------------------------------------------------------------------------------------------


@inner
def _of_h(h, packed, rec, n0, n1, lists, tile, like):
    """rec = h R' for some sequences."""
    H = h.shape[1]
    product(h.ctypes.data, H * accsize(like), H, 0, 0, packed, rec, False, n0, n1, lists, tile, like)


@inner
def _of_gates(gates, t, depth, more, packed, rec, n0, n1, lists, tile, like):
    """rec = gates[t, :, :depth] R[:depth] + more[t] R[depth:]."""
    N, width, size = gates.shape[1], gates.shape[2], accsize(like)
    H = more.shape[2]
    a, b = gates.ctypes.data + t * N * width * size, more.ctypes.data + t * N * H * size
    product(a, width * size, depth, b, H * size, packed, rec, False, n0, n1, lists, tile, like)


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
