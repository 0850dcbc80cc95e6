"""Small kernels around the steps of a recurrent layer: gradients of biases, an input that skips its product, lengths."""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, i32, i64
from numbadnn.kernels.rnn.device.step import _end
from numbadnn.problem import ITEMSIZE


def totals(dtype: str, acc: str) -> Callable[..., None]:
    """Sums of the columns of a matrix (rows, columns), ``chunk`` rows at a time: (part, columns) in the accumulator.

    A block takes 32 columns of a part, its 8 warps a share of the rows each.
    """
    A, size, wide = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc]
    read, write = load(dtype, acc), store(acc, acc)

    def kernel(source, parts, rows, columns, chunk):
        sums = cuda.shared.array((8, 33), A)
        lane, warp = i32(cuda.threadIdx.x) & 31, i32(cuda.threadIdx.x) >> 5
        column, part = i32(i32(cuda.blockIdx.x) * 32 + lane), i32(cuda.blockIdx.y)
        first = i32(part * chunk)
        last = min(i32(first + chunk), rows)
        total = A(0)
        if column < columns:
            for row in range(first + warp, last, 8):
                total = A(total + read(source + (i64(row) * columns + column) * size))
        sums[warp, lane] = total
        cuda.syncthreads()
        if warp == 0 and column < columns:
            total = A(0)
            for j in range(8):
                total = A(total + sums[j, lane])
            write(parts + (i64(part) * columns + column) * wide, total)

    return kernel


def biases(dtype: str, acc: str, gru: bool) -> Callable[..., None]:
    """The parts' totals, added in order, as the gradients of both bias vectors: the same but for gru's last gate."""
    A, size, wide = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc]
    read, write = load(acc, acc), store(dtype, acc)

    def kernel(parts, of_input, of_state, count, columns, hidden):
        column = i32(i32(cuda.blockIdx.x) * 256 + i32(cuda.threadIdx.x))
        if column < columns:
            total = A(0)
            for part in range(count):
                total = A(total + read(parts + (i64(part) * columns + column) * wide))
            if not gru or column < 3 * hidden:
                write(of_input + i64(column) * size, total)
            if not gru or column < 2 * hidden:
                write(of_state + i64(column) * size, total)
            elif column >= 3 * hidden:
                write(of_state + i64(column - hidden) * size, total)

    return kernel


def lengths(count: int) -> Callable[..., None]:
    """Writes numbers that came as parameters, as float32: a table in device memory that nobody has to own."""
    write, A = store("float32", "float32"), ACCUMULATOR["float32"]

    def kernel(target, first, number, values):
        i = i32(cuda.threadIdx.x)
        if i < number:
            for j in range(count):
                if j == i:
                    write(target + i64(first + i) * 4, A(values[j]))

    return kernel


def sums_of_gates(dtype: str, acc: str, gates: int) -> Callable[..., None]:
    """dx of an input that goes to every gate unchanged: the sum over them, added to what is there if ``adds``."""
    A, size = ACCUMULATOR[acc], ITEMSIZE[dtype]
    read, write = load(dtype, acc), store(dtype, acc)

    def kernel(da, dx, count, hidden, pitch, adds):
        i = i64(cuda.blockIdx.x) * 256 + cuda.threadIdx.x
        if i < count:
            row, u = i // hidden, i % hidden
            total = read(dx + i * size) if adds != 0 else A(0)
            for g in range(gates):
                total = A(total + read(da + (row * pitch + i64(g) * hidden + u) * size))
            write(dx + i * size, total)

    return kernel


def spread(dtype: str, acc: str, gates: int) -> Callable[..., None]:
    """Copies an input to every gate's place: what skip has for its input product."""
    size, wide = ITEMSIZE[dtype], ITEMSIZE[acc]
    read, write = load(dtype, acc), store(acc, acc)

    def kernel(x, target, count, hidden):
        i = i64(cuda.blockIdx.x) * 256 + cuda.threadIdx.x
        if i < count:
            row, u = i // hidden, i % hidden
            value = read(x + i * size)
            for g in range(gates):
                write(target + ((row * gates + g) * hidden + u) * wide, value)

    return kernel


def states_before(dtype: str, has_lengths: bool) -> Callable[..., None]:
    """h at the beginning of each step, (time, batch, hidden): y of the step before, hx at a sequence's first."""
    size = ITEMSIZE[dtype]
    acc = "float64" if dtype == "float64" else "float32"
    A, read, write, end_of = ACCUMULATOR[acc], load(dtype, acc), store(dtype, acc), _end(has_lengths)

    def kernel(y, hx, target, lengths, count, steps, batch, hidden, width, col, back):
        i = i64(cuda.blockIdx.x) * 256 + cuda.threadIdx.x
        if i < count:
            place, u = i // hidden, i % hidden
            t, n = i32(place // batch), i32(place % batch)
            end = end_of(lengths, n, steps)
            if t == (end - 1 if back else 0):
                value = read(hx + (i64(n) * hidden + u) * size)
            elif t >= end:
                value = A(0)
            else:
                before = i64(t + 1) if back else i64(t - 1)
                value = read(y + ((before * batch + n) * width + col + u) * size)
            write(target + i * size, value)

    return kernel


def within(dtype: str) -> Callable[..., None]:
    """x, and 0 past the ends of sequences: the gradients there are 0 too, but 0 times whatever memory held may be NaN."""
    size = ITEMSIZE[dtype]
    acc = "float64" if dtype == "float64" else "float32"
    A, read, write, end_of = ACCUMULATOR[acc], load(dtype, acc), store(dtype, acc), _end(True)

    def kernel(x, target, lengths, count, batch, width):
        i = i64(cuda.blockIdx.x) * 256 + cuda.threadIdx.x
        if i < count:
            place = i // width
            t, n = i32(place // batch), i32(place % batch)
            write(target + i * size, read(x + i * size) if t < end_of(lengths, n, i32(0)) else A(0))

    return kernel
