"""The arithmetic of one unit of a recurrent cell on the GPU, shared by the kernels of the steps; all on small local
arrays.

``pre``: what is there of each gate's sum before the recurrent product: W x and both biases; for gru's last gate its
recurrent bias, and in a fourth place its W x and the other bias. ``kept``: what the gradient needs, i f g o c (lstm) or
r z n q (gru, q = Rn h + bRn); it lies in the accumulator's type, gates as (time, batch, gates * hidden), c or q beside
them. ``da``: the gradients under the gates; gru has four: r, z, n, q.
"""

from __future__ import annotations

from typing import Any

from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.cuda import ACCUMULATOR, device, i64
from numbadnn.kernels.lang.ptx import exponential
from numbadnn.problem import ITEMSIZE
from numbadnn.problems.rnn_network import GATES


def places(mode: str) -> int:
    """Numbers in ``pre`` and in ``da``."""
    return {"lstm": 4, "gru": 4}.get(mode, 1)


def _functions(dtype: str, acc: str) -> tuple[Any, Any]:
    """(sigmoid, tanh), within some units of 1."""
    A, exp = ACCUMULATOR[acc], exponential(dtype)

    @device
    def sigmoid(x):
        return A(A(1) / A(A(1) + exp(A(-x))))

    @device
    def tanh(x):
        return A(A(1) - A(A(2) / A(A(1) + exp(A(x + x)))))

    return sigmoid, tanh


def before(mode: str, dtype: str, acc: str) -> Any:
    """``read(pre, w, at_bw, at_br, hidden, u, gates)``: ``gates`` is the address of this unit's first gate's W x."""
    A, size, wide, count = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc], GATES[mode]
    read, read_acc, gru = load(dtype, acc), load(acc, acc), mode == "gru"

    @device
    def fill(pre, w, at_bw, at_br, hidden, u, gates):
        for g in range(count):
            at = i64(g) * hidden + u
            x = A(read_acc(gates + i64(g) * hidden * wide) + read(w + (at_bw + at) * size))
            h = read(w + (at_br + at) * size)
            if gru and g == 2:
                pre[2] = h
                pre[3] = x
            else:
                pre[g] = A(x + h)

    return fill


def cell(mode: str, dtype: str, acc: str) -> Any:
    """``step(pre, old, state, kept) -> (h, c)``: ``pre`` now with R h; ``old`` is the unit's h before, ``state`` its
    c."""
    A = ACCUMULATOR[acc]
    sigmoid, tanh = _functions(dtype, acc)

    @device
    def one(pre, old, state, kept):
        a = pre[0]
        if mode == "rnn_relu":
            h = a if a > A(0) or a != a else A(0)
        else:
            h = tanh(a)
        return h, A(0)

    @device
    def lstm(pre, old, state, kept):
        kept[0], kept[1], kept[2], kept[3] = sigmoid(pre[0]), sigmoid(pre[1]), tanh(pre[2]), sigmoid(pre[3])
        kept[4] = A(A(kept[1] * state) + A(kept[0] * kept[2]))
        return A(kept[3] * tanh(kept[4])), kept[4]

    @device
    def gru(pre, old, state, kept):
        kept[0], kept[1], kept[3] = sigmoid(pre[0]), sigmoid(pre[1]), pre[2]
        kept[2] = tanh(A(pre[3] + A(kept[0] * pre[2])))
        return A(A(A(A(1) - kept[1]) * kept[2]) + A(kept[1] * old)), A(0)

    return {"lstm": lstm, "gru": gru}.get(mode, one)


def memory(mode: str, acc: str) -> tuple[Any, Any]:
    """``put(kept, gates, cells, hidden)`` and ``get``, its inverse; addresses of this unit's first gate and of its c or
    q."""
    wide, count = ITEMSIZE[acc], GATES[mode] if mode in ("lstm", "gru") else 0
    read, write = load(acc, acc), store(acc, acc)

    @device
    def put(kept, gates, cells, hidden):
        for g in range(count):
            write(gates + i64(g) * hidden * wide, kept[g])
        if count > 0:
            write(cells, kept[count])

    @device
    def get(kept, gates, cells, hidden):
        for g in range(count):
            kept[g] = read(gates + i64(g) * hidden * wide)
        if count > 0:
            kept[count] = read(cells)

    return put, get


def cell_grad(mode: str, dtype: str, acc: str) -> Any:
    """``step(d, dc, h, old, state, kept, da) -> carry``: the gradient of c before (lstm), or the part z dh of that of h
    (gru).

    ``d`` and ``dc`` are the gradients of this step's h and c; ``h`` its h, ``old`` and ``state`` the h and c before.
    """
    A = ACCUMULATOR[acc]
    _, tanh = _functions(dtype, acc)

    @device
    def one(d, dc, h, old, state, kept, da):
        if mode == "rnn_relu":
            slope = A(1) if h > A(0) else (A(0) if h == h else h)
        else:
            slope = A(A(1) - A(h * h))
        da[0] = A(d * slope)
        return A(0)

    @device
    def lstm(d, dc, h, old, state, kept, da):
        i, f, g, o = kept[0], kept[1], kept[2], kept[3]
        s = tanh(kept[4])
        e = A(dc + A(A(d * o) * A(A(1) - A(s * s))))
        da[0] = A(A(e * g) * A(i * A(A(1) - i)))
        da[1] = A(A(e * state) * A(f * A(A(1) - f)))
        da[2] = A(A(e * i) * A(A(1) - A(g * g)))
        da[3] = A(A(d * s) * A(o * A(A(1) - o)))
        return A(e * f)

    @device
    def gru(d, dc, h, old, state, kept, da):
        r, z, n, q = kept[0], kept[1], kept[2], kept[3]
        dn = A(A(d * A(A(1) - z)) * A(A(1) - A(n * n)))
        da[0] = A(A(dn * q) * A(r * A(A(1) - r)))
        da[1] = A(A(d * A(old - n)) * A(z * A(A(1) - z)))
        da[2] = dn
        da[3] = A(dn * r)
        return A(d * z)

    return {"lstm": lstm, "gru": gru}.get(mode, one)
