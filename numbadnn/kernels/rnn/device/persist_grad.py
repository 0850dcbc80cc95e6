"""The gradients of all steps of a recurrent layer in one launch: what ``device/persist.py`` is to the forward steps.

Each step a block fetches the gradients under all gates of its sequences, multiplies with its part of R, and one thread a
unit and sequence applies the cell's gradient; what is carried stays in that thread.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.async_copies import commit_async, copy_async, wait_async, wait_async_but
from numbadnn.kernels.lang.cuda import WORD, cuda, device, f32, i32, i64
from numbadnn.kernels.rnn.device.cells import cell_grad, memory, places
from numbadnn.kernels.rnn.device.persist import gather, mailbox
from numbadnn.kernels.rnn.device.products import WARPS, products
from numbadnn.kernels.rnn.device.ptx import arrive, await_count, load_halves, send
from numbadnn.kernels.rnn.device.step import _end
from numbadnn.kernels.rnn.persist_config import Persist
from numbadnn.problem import ITEMSIZE
from numbadnn.problems.rnn_network import GATES, KEPT


def kernel_of(config: Persist) -> Callable[..., None]:
    """The kernel of the gradients of all steps, and of hx and cx after the first."""
    mode, dtype, hidden, rows, units, has_lengths, _, eager = config.fields
    gates_count, half, gru, is_lstm = GATES[mode], dtype == "float16", mode == "gru", mode == "lstm"
    size, slots = ITEMSIZE[dtype], places(mode)
    pitch, piece = config.pitch, hidden * size // 16
    r_pitch = gates_count * hidden + 4
    tile = 0 if half else units * r_pitch
    buffers = gates_count if half or eager else 2
    red_pitch = units + 8
    red_size = WARPS * rows * red_pitch
    kept_count = max(KEPT[mode], 1)
    read, write, end_of = load(dtype, "float32"), store(dtype, "float32"), _end(has_lengths)
    grad, (_, get), read_acc = cell_grad(mode, dtype, "float32"), memory(mode, "float32"), load("float32", "float32")
    copy16, copy4, wait_but_one = copy_async(16), copy_async(4), wait_async_but(1)
    multiply, spill, every, held = products(config, units, gates_count, r_pitch)
    fill, box = gather(config, gates_count), mailbox(config, gates_count)
    lines, pieces = units // 8, hidden // 128

    @device
    def fetch(words, space, at_da, lengths, g, t, n0, steps, batch, back, final):
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
        w, kept, y, hx, cx, dy, dhy, dcy, space, dhx, dcx, barrier, steps, batch, width, col, back, at_r, at_gates,
        at_cells, at_da, at_lengths, first_row,
    ):  # fmt: skip
        words = cuda.shared.array(0, WORD)
        red = cuda.shared.array(red_size, f32)
        fragments = cuda.local.array(held, WORD)
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
        for g in range(slots):
            da[g] = f32(0)
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
            if s == 0 and eager and not half:
                wait_async()  # for R
            if s > 0:
                if not eager:
                    if thread == 0:
                        await_count(counter, i32(s * blocks))
                    cuda.syncthreads()
                for i in range(every):
                    sums[i] = f32(0)
                if eager:
                    fill(words, i32(tile), box(barrier, s), s)
                    cuda.syncthreads()
                    for g in range(gates_count):
                        multiply(sums, words, i32(tile + g * rows * pitch), fragments, i32(g), lane, warp)
                elif half:
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
            total = f32(0)
            if owner and s > 0:
                for part in range(WARPS):
                    total = f32(total + red[(part * rows + own_row) * red_pitch + own_unit])
            if live:
                if not last:
                    d = f32(d + total)
                if gru:
                    d = f32(d + carry)
                carry = grad(d, carry, h, old, state, saved, da)
            if eager and own_row < rows and not final:
                for g in range(gates_count):
                    slot = 3 if gru and g == 2 else g
                    at = box(barrier, s + 1) + ((i64(g) * rows + own_row) * hidden + u) * 8
                    send(at, da[slot], i32(s + 1))
            if owner and final:
                write(dhx + at_state, f32(total + carry) if gru else total)
                if is_lstm:
                    write(dcx + at_state, carry)
            elif owner:
                target = space + at_da + (place * (slots * hidden) + u) * size
                for g in range(slots):
                    write(target + i64(g * hidden) * size, da[g] if live else f32(0))
            cuda.syncthreads()
            if thread == 0 and not eager:
                arrive(counter)

    return kernel
