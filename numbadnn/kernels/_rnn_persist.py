"""All steps of a recurrent layer in one launch: R stays in shared memory (float16: in registers), blocks meet at a
barrier a step.

A block owns ``units`` units of ``rows`` sequences. Each step it fetches h of its sequences (the gradient: the gradients
under all gates), multiplies with its part of R, and one thread a unit and sequence applies the cell; c and what else is
carried stay in that thread. The eight warps share the terms of each sum and their parts are added in order. Blocks of
other sequences go their own way: a barrier has a counter for each tile of sequences. Float32 multiplies by fused
multiply-adds, float16 by tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels._cuda import cuda, device, f32, i32, i64, types
from numbadnn.kernels._ptx import (
    WORD,
    commit_async,
    copy_async,
    load,
    load_shared,
    store,
    wait_async,
    wait_async_but,
)
from numbadnn.kernels._rnn_cells import before, cell, cell_grad, memory, places
from numbadnn.kernels._rnn_ptx import arrive, await_count, load_halves, load_word, product
from numbadnn.kernels._rnn_step import _end
from numbadnn.kernels.rnn_persist import Persist
from numbadnn.ops.rnn import GATES, KEPT
from numbadnn.problem import ITEMSIZE

WARPS = 8
u32 = types.uint32


def _products(config: Persist, columns: int, gates: int, column_pitch: int) -> tuple[Any, Any, int, int]:
    """(``multiply``, ``spill``, the sums a thread has, the words of R it holds).

    ``multiply(sums, words, tile, fragments, g, lane, warp)`` adds the tile (rows, hidden) times this block's part of R,
    ``columns`` of it, for gate ``g`` of ``gates``; ``spill(red, sums, lane, warp)`` writes a warp's sums where all can
    read them.
    """
    rows, hidden, pitch, red_pitch = config.rows, config.hidden, config.pitch, columns + 8
    return (_by_mma if config.dtype == "float16" else _by_fma)(
        rows, hidden, pitch, red_pitch, columns, gates, column_pitch
    )


def _by_fma(
    rows: int, hidden: int, pitch: int, red_pitch: int, columns: int, gates: int, column_pitch: int
) -> tuple[Any, Any, int, int]:
    """A lane has rows lane // 8 + 4 i and columns lane % 8 + 8 q; a warp every eighth run of four terms."""
    tall, wide = rows // 4, columns // 8
    a_count, b_count, chunks = 4 * tall, 4 * wide, hidden // (4 * WARPS)
    read = load_shared("float32", 4, "float32")

    @device
    def multiply(sums, words, tile, fragments, g, lane, warp):  # type: ignore[no-untyped-def]
        a = cuda.local.array(a_count, f32)
        b = cuda.local.array(b_count, f32)
        row, column = i32(lane >> 3), i32(lane & 7)
        for j in range(chunks):
            k = i32((warp + j * WARPS) * 4)
            for i in range(tall):
                read(a, i32(i * 4), words, i32(tile + (row + 4 * i) * pitch + k))
            for q in range(wide):
                read(b, i32(q * 4), words, i32((column + 8 * q) * column_pitch + g * hidden + k))
            for e in range(4):
                for i in range(tall):
                    for q in range(wide):
                        sums[i * wide + q] = f32(sums[i * wide + q] + a[i * 4 + e] * b[q * 4 + e])

    @device
    def spill(red, sums, lane, warp):  # type: ignore[no-untyped-def]
        for i in range(tall):
            for q in range(wide):
                red[(warp * rows + (lane >> 3) + 4 * i) * red_pitch + (lane & 7) + 8 * q] = sums[i * wide + q]

    return multiply, spill, tall * wide, 1


def _by_mma(
    rows: int, hidden: int, pitch: int, red_pitch: int, columns: int, gates: int, column_pitch: int
) -> tuple[Any, Any, int, int]:
    """A warp has every eighth run of 16 terms, and its part of R in registers."""
    tall, lines, pieces = rows // 16, columns // 8, hidden // (16 * WARPS)

    @device
    def multiply(sums, words, tile, fragments, g, lane, warp):  # type: ignore[no-untyped-def]
        a = cuda.local.array(4, u32)
        row, pair = i32(lane >> 2), i32(lane & 3)
        for j in range(pieces):
            k = i32((warp + j * WARPS) * 8 + pair)
            for m in range(tall):
                at = i32(tile + (m * 16 + row) * pitch + k)
                a[0], a[1] = words[at], words[i32(at + 8 * pitch)]
                a[2], a[3] = words[i32(at + 4)], words[i32(at + 8 * pitch + 4)]
                for line in range(lines):
                    held = i32(((g * pieces + j) * lines + line) * 2)
                    product(sums, i32((m * lines + line) * 4), a, i32(0), fragments, held)

    @device
    def spill(red, sums, lane, warp):  # type: ignore[no-untyped-def]
        for m in range(tall):
            for line in range(lines):
                for e in range(4):
                    row = m * 16 + (lane >> 2) + 8 * (e >> 1)
                    red[(warp * rows + row) * red_pitch + line * 8 + (lane & 3) * 2 + (e & 1)] = sums[
                        (m * lines + line) * 4 + e
                    ]

    return multiply, spill, tall * lines * 4, gates * pieces * lines * 2


def forward(config: Persist) -> Callable[..., None]:
    """The kernel of all forward steps."""
    mode, dtype, hidden, rows, units, has_lengths, keeps = config.fields
    gates_count, half = GATES[mode], dtype == "float16"
    size, columns = ITEMSIZE[dtype], gates_count * units
    pitch, piece = config.pitch, hidden * size // 16
    tile = 0 if half else columns * pitch
    red_pitch = columns + 8
    red_size = WARPS * rows * red_pitch
    sums_count, kept_count = places(mode), max(KEPT[mode], 1)
    read, write, end_of = load(dtype, "float32"), store(dtype, "float32"), _end(has_lengths)
    read_before, step, (put, _) = before(mode, dtype, "float32"), cell(mode, dtype, "float32"), memory(mode, "float32")
    copy16, is_lstm = copy_async(16), mode == "lstm"
    multiply, spill, every, held = _products(config, columns, 1, pitch)
    lines = columns // 8
    pieces = hidden // 128

    def kernel(
        w,
        gates,
        cells,
        y,
        hx,
        cx,
        hy,
        cy,
        lengths,
        barrier,
        steps,
        batch,
        width,
        col,
        back,
        at_r,
        at_bw,
        at_br,
        first_row,
    ):  # type: ignore[no-untyped-def]
        words = cuda.shared.array(0, WORD)
        red = cuda.shared.array(red_size, f32)
        fragments = cuda.local.array(held, u32)
        sums = cuda.local.array(every, f32)
        pre = cuda.local.array(sums_count, f32)
        kept = cuda.local.array(kept_count, f32)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread & 31), i32(thread >> 5)
        u0, n0 = i32(i32(cuda.blockIdx.x) * units), i32(first_row + i32(cuda.blockIdx.y) * rows)
        counter = barrier + i64(cuda.blockIdx.y) * 128
        blocks = i32(cuda.gridDim.x)
        if half:
            for j in range(pieces):
                for line in range(lines):
                    column = i32(line * 8 + (lane >> 2))
                    g = i32(column // units)
                    term = i32((warp + j * WARPS) * 16 + (lane & 3) * 2)
                    at = w + (at_r + (i64(g) * hidden + u0 + column - g * units) * hidden + term) * size
                    fragments[(j * lines + line) * 2] = load_word(at)
                    fragments[(j * lines + line) * 2 + 1] = load_word(at + 16)
        else:
            for i in range(thread, columns * piece, 256):
                column = i32(i // piece)
                c = i32(i - column * piece)
                g = i32(column // units)
                at = at_r + (i64(g) * hidden + u0 + column - g * units) * hidden + c * 4
                copy16(words, i32(column * pitch + c * 4), w + at * size)
        own_row, own_unit = i32(thread // units), i32(thread % units)
        n, u = i32(n0 + own_row), i32(u0 + own_unit)
        owner = own_row < rows and n < batch
        safe = n if n < batch else i32(batch - 1)
        end = end_of(lengths, safe, steps)
        at_state = (i64(safe) * hidden + u) * size
        old, state = read(hx + at_state), f32(0)
        if is_lstm and cx != 0:
            state = read(cx + at_state)
        for s in range(steps):
            t = i32(steps - 1 - s) if back else i32(s)
            live = owner and t < end
            place = i64(t) * batch + safe
            here = gates + (place * (gates_count * hidden) + u) * 4
            if live:
                read_before(pre, w, at_bw, at_br, hidden, u, here)
            if s > 0:
                if thread == 0:
                    await_count(counter, i32(s * blocks))
                cuda.syncthreads()
            earlier = i32(t + 1) if back else i32(t - 1)
            for i in range(thread, rows * piece, 256):
                r = i32(i // piece)
                c = i32(i - r * piece)
                row = i32(n0 + r)
                row = row if row < batch else i32(batch - 1)
                begins = s == 0
                if has_lengths and back:
                    begins = t >= end_of(lengths, row, steps) - 1
                at = y + ((i64(earlier) * batch + row) * width + col) * size
                if begins:
                    at = hx + i64(row) * hidden * size
                copy16(words, i32(tile + r * pitch + c * 4), at + i64(c) * 16)
            wait_async()
            cuda.syncthreads()
            for i in range(every):
                sums[i] = f32(0)
            multiply(sums, words, i32(tile), fragments, i32(0), lane, warp)
            spill(red, sums, lane, warp)
            cuda.syncthreads()
            if owner:
                value = f32(0)
                if live:
                    for g in range(gates_count):
                        total = f32(0)
                        for part in range(WARPS):
                            total = f32(total + red[(part * rows + own_row) * red_pitch + g * units + own_unit])
                        pre[g] = f32(pre[g] + total)
                    old, state = step(pre, old, state, kept)
                    value = old
                write(y + (place * width + col + u) * size, value)
                if half and live:
                    old = read(y + (place * width + col + u) * size)
            cuda.syncthreads()
            if thread == 0:
                arrive(counter)
            if live:
                if keeps:
                    put(kept, here, cells + (place * hidden + u) * 4, hidden)
                if t == (0 if back else end - 1):
                    if hy != 0:
                        write(hy + at_state, old)
                    if is_lstm and cy != 0:
                        write(cy + at_state, state)

    return kernel


def backward(config: Persist) -> Callable[..., None]:
    """The kernel of the gradients of all steps, and of hx and cx after the first."""
    mode, dtype, hidden, rows, units, has_lengths, _ = config.fields
    gates_count, half, gru, is_lstm = GATES[mode], dtype == "float16", mode == "gru", mode == "lstm"
    size, slots = ITEMSIZE[dtype], places(mode)
    pitch, piece = config.pitch, hidden * size // 16
    r_pitch = gates_count * hidden + 4
    tile = 0 if half else units * r_pitch
    buffers = gates_count if half else 2
    red_pitch = units + 8
    red_size = WARPS * rows * red_pitch
    kept_count = max(KEPT[mode], 1)
    read, write, end_of = load(dtype, "float32"), store(dtype, "float32"), _end(has_lengths)
    grad, (_, get), read_acc = cell_grad(mode, dtype, "float32"), memory(mode, "float32"), load("float32", "float32")
    copy16, copy4, wait_but_one = copy_async(16), copy_async(4), wait_async_but(1)
    multiply, spill, every, held = _products(config, units, gates_count, r_pitch)
    lines, pieces = units // 8, hidden // 128

    @device
    def fetch(words, space, at_da, lengths, g, t, n0, steps, batch, back, final):  # type: ignore[no-untyped-def]
        """Begin to copy what is under gate g of the step after t."""
        thread = i32(cuda.threadIdx.x)
        slot = i32(3) if gru and g == 2 else i32(g)
        after = i32(t - 1) if back else i32(t + 1)
        for i in range(thread, rows * piece, 256):
            r = i32(i // piece)
            c = i32(i - r * piece)
            row = i32(n0 + r)
            row = row if row < batch else i32(batch - 1)
            if final:
                after = i32(end_of(lengths, row, steps) - 1) if back else i32(0)
            at = space + at_da + (((i64(after) * batch + row) * slots + slot) * hidden) * size + i64(c) * 16
            copy16(words, i32(tile + (g % buffers) * rows * pitch + r * pitch + c * 4), at)
        commit_async()

    def kernel(
        w,
        kept,
        y,
        hx,
        cx,
        dy,
        dhy,
        dcy,
        space,
        dhx,
        dcx,
        barrier,
        steps,
        batch,
        width,
        col,
        back,
        at_r,
        at_gates,
        at_cells,
        at_da,
        at_lengths,
        first_row,
    ):  # type: ignore[no-untyped-def]
        words = cuda.shared.array(0, WORD)
        red = cuda.shared.array(red_size, f32)
        fragments = cuda.local.array(held, u32)
        sums = cuda.local.array(every, f32)
        saved = cuda.local.array(kept_count, f32)
        da = cuda.local.array(slots, f32)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread & 31), i32(thread >> 5)
        u0, n0 = i32(i32(cuda.blockIdx.x) * units), i32(first_row + i32(cuda.blockIdx.y) * rows)
        counter = barrier + i64(cuda.blockIdx.y) * 128
        lengths, blocks = space + at_lengths, i32(cuda.gridDim.x)
        if half:
            for g in range(gates_count):
                for j in range(pieces):
                    for line in range(lines):
                        column = i32(u0 + line * 8 + (lane >> 2))
                        term = i32((warp + j * WARPS) * 16 + (lane & 3) * 2)
                        at = w + (at_r + (i64(g) * hidden + term) * hidden + column) * size
                        number = ((g * pieces + j) * lines + line) * 2
                        fragments[number] = load_halves(at, at + hidden * size)
                        fragments[number + 1] = load_halves(at + 8 * hidden * size, at + 9 * hidden * size)
        else:
            for i in range(thread, units * gates_count * hidden, 256):
                term = i32(i // units)
                column = i32(i - term * units)
                copy4(words, i32(column * r_pitch + term), w + (at_r + i64(term) * hidden + u0 + column) * size)
            commit_async()
        own_row, own_unit = i32(thread // units), i32(thread % units)
        n, u = i32(n0 + own_row), i32(u0 + own_unit)
        owner = own_row < rows and n < batch
        safe = n if n < batch else i32(batch - 1)
        end = end_of(lengths, safe, steps)
        at_state = (i64(safe) * hidden + u) * size
        carry = f32(0)
        for s in range(steps + 1):
            t = i32(s) if back else i32(steps - 1 - s)
            final = s == steps
            live = owner and not final and t < end
            last = t == (0 if back else end - 1)
            place = i64(0 if final else t) * batch + safe
            d, h, old, state = f32(0), f32(0), f32(0), f32(0)
            if live:
                earlier = i64(t + 1 if back else t - 1) * batch + safe
                first = t == (end - 1 if back else 0)
                here = kept + at_gates + (place * (gates_count * hidden) + u) * 4
                get(saved, here, kept + at_cells + (place * hidden + u) * 4, hidden)
                if gru:
                    old = read(hx + at_state) if first else read(y + (earlier * width + col + u) * size)
                elif is_lstm:
                    if not first:
                        state = read_acc(kept + at_cells + (earlier * hidden + u) * 4)
                    elif cx != 0:
                        state = read(cx + at_state)
                else:
                    h = read(y + (place * width + col + u) * size)
                if dy != 0:
                    d = read(dy + (place * width + col + u) * size)
                if last:
                    carry = f32(0)
                    if dhy != 0:
                        d = f32(d + read(dhy + at_state))
                    if is_lstm and dcy != 0:
                        carry = read(dcy + at_state)
            if s > 0:
                if thread == 0:
                    await_count(counter, i32(s * blocks))
                cuda.syncthreads()
                for i in range(every):
                    sums[i] = f32(0)
                if half:
                    for g in range(gates_count):
                        fetch(words, space, at_da, lengths, i32(g), t, n0, steps, batch, back, final)
                    wait_async()
                    cuda.syncthreads()
                    for g in range(gates_count):
                        multiply(sums, words, i32(tile + g * rows * pitch), fragments, i32(g), lane, warp)
                else:
                    fetch(words, space, at_da, lengths, i32(0), t, n0, steps, batch, back, final)
                    for g in range(gates_count):
                        if g + 1 < gates_count:
                            fetch(words, space, at_da, lengths, i32(g + 1), t, n0, steps, batch, back, final)
                            wait_but_one()
                        else:
                            wait_async()
                        cuda.syncthreads()
                        multiply(sums, words, i32(tile + (g % 2) * rows * pitch), fragments, i32(g), lane, warp)
                        cuda.syncthreads()
                spill(red, sums, lane, warp)
                cuda.syncthreads()
            if owner:
                total = f32(0)
                if s > 0:
                    for part in range(WARPS):
                        total = f32(total + red[(part * rows + own_row) * red_pitch + own_unit])
                if final:
                    write(dhx + at_state, f32(total + carry) if gru else total)
                    if is_lstm:
                        write(dcx + at_state, carry)
                else:
                    target = space + at_da + (place * (slots * hidden) + u) * size
                    if live:
                        if not last:
                            d = f32(d + total)
                        if gru:
                            d = f32(d + carry)
                        carry = grad(d, carry, h, old, state, saved, da)
                    for g in range(slots):
                        write(target + i64(g * hidden) * size, da[g] if live else f32(0))
            cuda.syncthreads()
            if thread == 0:
                arrive(counter)

    return kernel
