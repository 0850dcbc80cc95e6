"""One time step of a recurrent layer for any size and type: a block computes 16 sequences x 16 units, all gates of
each.

The recurrent product goes through shared memory 16 terms at a time; the thread that ends up with a unit's sums applies
the cell to them. ``t`` comes as a word of the launch, so that one prepared launch serves all steps. A sequence of
``end`` steps begins at step 0 (backward direction: end - 1) from hx, and leaves hy after its last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64
from numbadnn.kernels.rnn.device.cells import before, cell, cell_grad, memory, places
from numbadnn.problem import ITEMSIZE
from numbadnn.problems.rnn_network import GATES, KEPT

TILE, PITCH = 16, 17


def _end(has_lengths: bool) -> Any:
    read = load("float32", "float32")

    @device
    def end(lengths, n, steps):
        return i32(read(lengths + i64(n) * 4)) if has_lengths else i32(steps)

    return end


def forward(mode: str, dtype: str, acc: str, has_lengths: bool) -> Callable[..., None]:
    """The kernel of the forward step ``t``; ``back`` is the direction, ``col`` where its part of y begins."""
    A, size, wide, gates_count = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc], GATES[mode]
    read, write, read_acc = load(dtype, acc), store(dtype, acc), load(acc, acc)
    step, end_of, rows = cell(mode, dtype, acc), _end(has_lengths), gates_count * TILE
    read_before, (put, _) = before(mode, dtype, acc), memory(mode, acc)
    sums, kept_count = places(mode), max(KEPT[mode], 1)

    def kernel(
        w, gates, cells, y, hx, cx, hy, cy, lengths, time, steps, batch, hidden, width, col, back, at_r, at_bw, at_br
    ):
        h_tile = cuda.shared.array((TILE, PITCH), A)
        r_tile = cuda.shared.array((rows, PITCH), A)
        rec = cuda.local.array(gates_count, A)
        pre = cuda.local.array(sums, A)
        kept = cuda.local.array(kept_count, A)
        tx, ty = i32(cuda.threadIdx.x) & 15, i32(cuda.threadIdx.x) >> 4
        u, n = i32(i32(cuda.blockIdx.x) * TILE + tx), i32(i32(cuda.blockIdx.y) * TILE + ty)
        live = u < hidden and n < batch
        row = n if n < batch else i32(batch - 1)
        t, end = i32(time), end_of(lengths, row, steps)
        first = t == (end - 1 if back else 0)
        earlier = i32(t + 1) if back else i32(t - 1)
        previous = hx + i64(row) * hidden * size if first else y + ((i64(earlier) * batch + row) * width + col) * size
        if t >= end:
            previous = hx + i64(row) * hidden * size  # not used; an address that may be read
        for g in range(gates_count):
            rec[g] = A(0)
        unit = i32(i32(cuda.blockIdx.x) * TILE + ty)
        for k0 in range(0, hidden, TILE):
            k = i32(k0 + tx)
            h_tile[ty, tx] = read(previous + i64(k) * size) if k < hidden else A(0)
            for g in range(gates_count):
                inside = k < hidden and unit < hidden
                at = at_r + (i64(g) * hidden + unit) * hidden + k if inside else i64(0)
                r_tile[g * TILE + ty, tx] = read(w + at * size) if inside else A(0)
            cuda.syncthreads()
            for j in range(TILE):
                h = h_tile[ty, j]
                for g in range(gates_count):
                    rec[g] = A(rec[g] + A(h * r_tile[g * TILE + tx, j]))
            cuda.syncthreads()
        if live:
            place = i64(t) * batch + n
            if t >= end:
                write(y + (place * width + col + u) * size, A(0))
            else:
                at = i64(n) * hidden + u
                old = read(previous + i64(u) * size)
                state = A(0)
                if mode == "lstm":
                    if not first:
                        state = read_acc(cells + ((i64(earlier) * batch + n) * hidden + u) * wide)
                    elif cx != 0:
                        state = read(cx + at * size)
                here = gates + (place * gates_count * hidden + u) * wide
                read_before(pre, w, at_bw, at_br, hidden, u, here)
                for g in range(gates_count):
                    pre[g] = A(pre[g] + rec[g])
                h, c = step(pre, old, state, kept)
                put(kept, here, cells + (place * hidden + u) * wide, hidden)
                write(y + (place * width + col + u) * size, h)
                if t == (0 if back else end - 1):
                    if hy != 0:
                        write(hy + at * size, h)
                    if mode == "lstm" and cy != 0:
                        write(cy + at * size, c)

    return kernel


def backward(mode: str, dtype: str, acc: str, has_lengths: bool) -> Callable[..., None]:
    """The kernel of the gradient of step ``t``; one launch beyond the first step gives the gradients of hx.

    ``space`` holds, from the byte offsets given on, da, the carried gradient (of c, or gru's z dh) and the lengths.
    """
    A, size, wide, gates_count, held = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc], GATES[mode], places(mode)
    read, write, read_acc, write_acc = load(dtype, acc), store(dtype, acc), load(acc, acc), store(acc, acc)
    grad, end_of, gru = cell_grad(mode, dtype, acc), _end(has_lengths), mode == "gru"
    (_, get), kept_count = memory(mode, acc), max(KEPT[mode], 1)

    def kernel(
        w, kept, y, hx, cx, dy, dhy, dcy, space, dhx, dcx, time, steps, batch, hidden, width, col, back, at_r,
        at_gates, at_cells, at_da, at_carry, at_lengths,
    ):  # fmt: skip
        d_tile = cuda.shared.array((TILE, PITCH), A)
        r_tile = cuda.shared.array((TILE, PITCH), A)
        saved = cuda.local.array(kept_count, A)
        da = cuda.local.array(held, A)
        tx, ty = i32(cuda.threadIdx.x) & 15, i32(cuda.threadIdx.x) >> 4
        u, n = i32(i32(cuda.blockIdx.x) * TILE + tx), i32(i32(cuda.blockIdx.y) * TILE + ty)
        live = u < hidden and n < batch
        row = n if n < batch else i32(batch - 1)
        t, end = i32(time), end_of(space + at_lengths, row, steps)
        final = t < 0 or t >= steps
        last = t == (0 if back else end - 1)
        after = i32(t - 1) if back else i32(t + 1)
        if final:
            after = i32(end - 1) if back else i32(0)
        product = final or (t < end and not last)
        later = space + at_da + (i64(after if product else 0) * batch + row) * held * hidden * size
        rec = A(0)
        for g in range(gates_count):
            slot = i32(3) if gru and g == 2 else i32(g)
            for k0 in range(0, hidden, TILE):
                k = i32(k0 + tx)
                inside = k < hidden and product
                d_tile[ty, tx] = read(later + (i64(slot) * hidden + k) * size) if inside else A(0)
                term = i32(k0 + ty)
                inside = term < hidden and u < hidden
                at = at_r + (i64(g) * hidden + term) * hidden + u if inside else i64(0)
                r_tile[ty, tx] = read(w + at * size) if inside else A(0)
                cuda.syncthreads()
                for j in range(TILE):
                    rec = A(rec + A(d_tile[ty, j] * r_tile[j, tx]))
                cuda.syncthreads()
        if live:
            at = i64(n) * hidden + u
            carry = space + at_carry + at * wide
            if final:
                if mode == "gru":
                    rec = A(rec + read_acc(carry))
                write(dhx + at * size, rec)
                if mode == "lstm":
                    write(dcx + at * size, read_acc(carry))
            else:
                place = i64(t) * batch + n
                here = space + at_da + (place * held * hidden + u) * size
                if t >= end:
                    for g in range(held):
                        write(here + i64(g) * hidden * size, A(0))
                else:
                    d, dc = rec, A(0)
                    if dy != 0:
                        d = A(d + read(dy + (place * width + col + u) * size))
                    if last:
                        if dhy != 0:
                            d = A(d + read(dhy + at * size))
                        if mode == "lstm" and dcy != 0:
                            dc = read(dcy + at * size)
                    elif mode == "lstm":
                        dc = read_acc(carry)
                    elif mode == "gru":
                        d = A(d + read_acc(carry))
                    first = t == (end - 1 if back else 0)
                    earlier = i64(t + 1 if back else t - 1) * batch + n
                    h, old, state = A(0), A(0), A(0)
                    if mode == "gru":
                        old = read(hx + at * size) if first else read(y + (earlier * width + col + u) * size)
                    elif mode == "lstm":
                        if not first:
                            state = read_acc(kept + at_cells + (earlier * hidden + u) * wide)
                        elif cx != 0:
                            state = read(cx + at * size)
                    else:
                        h = read(y + (place * width + col + u) * size)
                    gates = kept + at_gates + (place * gates_count * hidden + u) * wide
                    cells = kept + at_cells + (place * hidden + u) * wide
                    get(saved, gates, cells, hidden)
                    new_carry = grad(d, dc, h, old, state, saved, da)
                    for g in range(held):
                        write(here + i64(g) * hidden * size, da[g])
                    if mode == "gru" or mode == "lstm":
                        write_acc(carry, new_carry)

    return kernel
