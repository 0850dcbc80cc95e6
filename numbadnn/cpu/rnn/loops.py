"""All time steps of a recurrent cell and of its gradient: the product of a step, and then its gates.

Arrays are C-ordered float32 or float64, which is what is computed in.
A thread takes some of the sequences through all steps, so that no step waits for another thread. Loops have few results each:
before each loop it is looked at whether a result overlaps an operand, for every pair of them.
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
def _sigmoids(gate, rec, bias):
    for u in range(len(gate)):
        gate[u] = sigmoid(gate[u] + rec[u] + bias[u])


@inner
def _tanhs(gate, rec, bias):
    for u in range(len(gate)):
        gate[u] = tanh(gate[u] + rec[u] + bias[u])


@inner
def _lstm_rows(gates, rec, bias, c_all, h, c, y, ends, t, col, n0, n1):
    H = h.shape[1]
    for n in range(n0, n1):
        if t >= ends[n]:
            for u in range(H):
                y[t, n, col + u] = 0
                c_all[t, n, u] = c[n, u]
            continue
        _sigmoids(gates[t, n, : 2 * H], rec[n, : 2 * H], bias[: 2 * H])
        _tanhs(gates[t, n, 2 * H : 3 * H], rec[n, 2 * H : 3 * H], bias[2 * H : 3 * H])
        _sigmoids(gates[t, n, 3 * H :], rec[n, 3 * H :], bias[3 * H :])
        i, f, g, o = gates[t, n, :H], gates[t, n, H : 2 * H], gates[t, n, 2 * H : 3 * H], gates[t, n, 3 * H :]
        cell, value = c[n], h[n]
        for u in range(H):
            cell[u] = f[u] * cell[u] + i[u] * g[u]
        for u in range(H):
            value[u] = o[u] * tanh(cell[u])
        kept, out = c_all[t, n], y[t, n, col : col + H]
        for u in range(H):
            kept[u] = cell[u]
            out[u] = value[u]


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
        _sigmoids(gates[t, n, : 2 * H], rec[n, : 2 * H], bias[: 2 * H])
        r, z, new, q = gates[t, n, :H], gates[t, n, H : 2 * H], gates[t, n, 2 * H :], q_all[t, n]
        under, of_input, value, out = rec[n, 2 * H :], bias[2 * H :], h[n], y[t, n, col : col + H]
        for u in range(H):
            q[u] = under[u] + bias_r[u]
        for u in range(H):
            new[u] = tanh(new[u] + of_input[u] + r[u] * q[u])
        for u in range(H):
            value[u] = (one - z[u]) * new[u] + z[u] * value[u]
        for u in range(H):
            out[u] = value[u]


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
def _add_both(dh, dh_rec, dy):
    for u in range(len(dh)):
        dh[u] = dh[u] + dh_rec[u] + dy[u]


@inner
def _cells_back(gates, old, e, one):
    """The gradients under i, f and g of a row, and what goes to the earlier step's c; e: the gradient of c."""
    H = len(old)
    i, f, g = gates[:H], gates[H : 2 * H], gates[2 * H : 3 * H]
    for u in range(H):
        a, b = i[u], g[u]
        i[u] = e[u] * b * a * (one - a)
        g[u] = e[u] * a * (one - b * b)
    for u in range(H):
        a = f[u]
        f[u] = e[u] * old[u] * a * (one - a)
        e[u] = e[u] * a


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
        _add_both(dh[n], dh_rec[n], dy[t, n, col : col + H])
        d, e, o, cell = dh[n], dc[n], gates[t, n, 3 * H :], c_all[t, n]
        for u in range(H):
            s = tanh(cell[u])
            e[u] = e[u] + d[u] * o[u] * (one - s * s)
            o[u] = d[u] * s * o[u] * (one - o[u])
        if before >= 0 and before < T:
            _cells_back(gates[t, n], c_all[before, n], e, one)
        else:
            _cells_back(gates[t, n], cx[n], e, one)
        for u in range(H):
            d[u] = 0


@inner
def _states_back(gates, q, old, d, one):
    """The gradients under the gates of a row and under q, and what goes to the earlier step's h; d: the gradient of h."""
    H = len(old)
    r, z, new = gates[:H], gates[H : 2 * H], gates[2 * H :]
    for u in range(H):
        a, b = z[u], new[u]
        new[u] = d[u] * (one - a) * (one - b * b)
        z[u] = d[u] * (old[u] - b) * a * (one - a)
        d[u] = d[u] * a
    for u in range(H):
        a = r[u]
        r[u] = new[u] * q[u] * a * (one - a)
        q[u] = new[u] * a


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
        _add_both(dh[n], dh_rec[n], dy[t, n, col : col + H])
        if before >= 0 and before < T and before < ends[n]:
            _states_back(gates[t, n], q_all[t, n], y[before, n, col : col + H], dh[n], one)
        else:
            _states_back(gates[t, n], q_all[t, n], hx[n], dh[n], one)


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
