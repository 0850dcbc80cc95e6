"""All forward steps of a recurrent layer in one launch: R stays in shared memory (float16: in registers).

A block owns ``units`` units of ``rows`` sequences. Each step it fetches h of its sequences, multiplies with its part of
R, and one thread a unit and sequence applies the cell; c and what else is carried stay in that thread. Blocks of other
sequences go their own way. How h goes from block to block: through y and a barrier, which has a counter for each tile of
sequences; small states (``eager``) as words of 64 bits, a value and the number of its step, for which the readers wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.async_copies import copy_async, wait_async
from numbadnn.kernels.lang.cuda import WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.rnn.device.cells import before, cell, memory, places
from numbadnn.kernels.rnn.device.products import WARPS, products
from numbadnn.kernels.rnn.device.ptx import arrive, await_count, load_word, receive, send
from numbadnn.kernels.rnn.device.step import _end
from numbadnn.kernels.rnn.persist_config import COUNTER_BYTES, COUNTERS, Persist
from numbadnn.problem import ITEMSIZE
from numbadnn.problems.rnn_network import GATES, KEPT


def gather(config: Persist, slots: int) -> Any:
    """``fill(words, tile, mail, s)``: a tile for each slot, (rows, hidden) at the tile's pitch, out of the mail of step s.

    Every thread waits for its own words; all are asked for at once.
    """
    rows, hidden, pitch = config.rows, config.hidden, config.pitch
    each = rows * hidden // 256 if config.eager else 1  # where it is not called it is compiled all the same
    count = slots * each

    @device
    def fill(words, tile, mail, s):
        values = cuda.local.array(count, WORD)
        tags = cuda.local.array(count, WORD)
        thread = i32(cuda.threadIdx.x)
        waiting = True
        while waiting:
            missing = u32(0)
            for j in range(count):
                receive(values, tags, i32(j), mail + i64(thread + j * 256) * 8)
            for j in range(count):
                missing |= tags[j] ^ u32(s)
            waiting = missing != 0
        for j in range(count):
            slot = j // each
            i = i32(thread + (j - slot * each) * 256)
            r = i32(i // hidden)
            words[i32(tile + (slot * rows + r) * pitch + i - r * hidden)] = values[j]

    return fill


def mailbox(config: Persist, slots: int) -> Any:
    """``at(barrier, s)``: the address of this block's tile of sequences in the mail of step s; two steps take turns."""
    size = slots * config.rows * config.hidden * 8

    @device
    def at(barrier, s):
        number = (i64(s) & 1) * cuda.gridDim.y + cuda.blockIdx.y
        return barrier + COUNTERS * COUNTER_BYTES + number * size

    return at


def kernel_of(config: Persist) -> Callable[..., None]:
    """The kernel of all forward steps."""
    mode, dtype, hidden, rows, units, has_lengths, keeps, eager = config.fields
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
    multiply, spill, every, held = products(config, columns, 1, pitch)
    fill, box = gather(config, 1), mailbox(config, 1)
    lines = columns // 8
    pieces = hidden // 128

    def kernel(
        w, gates, cells, y, hx, cx, hy, cy, lengths, barrier, steps, batch, width, col, back, at_r, at_bw, at_br,
        first_row,
    ):  # fmt: skip
        words = cuda.shared.array(0, WORD)
        red = cuda.shared.array(red_size, f32)
        fragments = cuda.local.array(held, WORD)
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
            if s > 0 and not eager:
                if thread == 0:
                    await_count(counter, i32(s * blocks))
                cuda.syncthreads()
            if s > 0 and eager:
                fill(words, i32(tile), box(barrier, s), s)
            else:
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
            value = f32(0)
            if live:
                for g in range(gates_count):
                    total = f32(0)
                    for part in range(WARPS):
                        total = f32(total + red[(part * rows + own_row) * red_pitch + g * units + own_unit])
                    pre[g] = f32(pre[g] + total)
                old, state = step(pre, old, state, kept)
                value = old
            if eager and own_row < rows:
                send(box(barrier, s + 1) + (i64(own_row) * hidden + u) * 8, old, i32(s + 1))
            if owner:
                write(y + (place * width + col + u) * size, value)
                if half and live:
                    old = read(y + (place * width + col + u) * size)
            cuda.syncthreads()
            if thread == 0 and not eager:
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
