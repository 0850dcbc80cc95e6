"""Pooling of packed images, by tiles: a thread reads what its outputs see once into registers and writes them together.

All images are rank 5: planes, depth, rows, columns, cells. NCHW has one cell a column and takes ``vec`` columns in one access;
channels last has C cells, of which a thread takes ``lanes`` in one access, for every column it needs. A thread makes
``rows`` x ``columns`` outputs: where windows overlap, the elements they share are read once. Every extent is frozen into
the kernel, so that the loops over columns unroll and the arrays are registers.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, f32, i32, i64
from numbadnn.kernels.lang.ptx import maximum
from numbadnn.kernels.pool.device.parts import INFINITY, averager, locator, reader, written_out
from numbadnn.kernels.pool.tiles_config import TilesConfig, batch
from numbadnn.problem import ITEMSIZE


def pool(dtype: str, acc: str, config: TilesConfig) -> Callable[..., None]:
    """y from x: the rows of the tile are read once; of each window, columns are added up (compared) first, then across."""
    (kd, kh, kw), (sd, sh, sw), (pd, ph, pw) = config.window, config.stride, config.pad
    A, size, lanes, columns, rows = ACCUMULATOR[acc], ITEMSIZE[dtype], config.lanes, config.columns, config.rows
    largest, fill = config.kind == "max", -INFINITY if config.kind == "max" else 0.0
    piece, past, whole, check_rows = config.x_piece(), config.past_x, config.whole, config.check_rows
    read, capacity, larger = reader(dtype, acc, lanes, piece, fill, check_rows), piece.capacity * lanes, maximum(acc)
    locate, (seen, share) = locator(lanes), averager(dtype, acc, config)
    used, width = piece.length * lanes, columns * lanes
    writev = store_vector(dtype, width if whole and lanes == 1 else lanes, acc)
    tall, threads = (rows - 1) * sh + kh, config.threads
    together = batch(config, dtype)
    held, kept, height = together * capacity, rows * used, min(kh, together)

    @device
    def join(a, b):
        return larger(a, b) if largest else A(a + b)

    @device
    def add_columns(p, state):
        values, tops, started = state
        for n in range(used):
            column = values[p * sh * capacity + n]
            column = join(tops[p * used + n], column) if started else column
            for r in range(1, height):
                column = join(column, values[(p * sh + r) * capacity + n])
            tops[p * used + n] = column

    @device
    def write(p, state):
        tops, counts, parts, at, line, pitch, i, j, H, P, Q = state
        best = cuda.local.array(width, A)
        count, part = seen(i * rows, p, sh, ph, kh, H, check_rows)
        for q in range(columns):
            for e in range(lanes):
                row = tops[p * used + q * sw * lanes + e]
                for k in range(1, kw):
                    row = join(row, tops[p * used + (q * sw + k) * lanes + e])
                best[q * lanes + e] = row if largest else share(row, f32(count * counts[q]), f32(part * parts[q]))
        if i * rows + p < P:
            if whole and lanes == 1:
                writev(best, i32(0), at + p * line)
            else:
                for q in range(columns):
                    if whole or j * columns + q < Q:
                        writev(best, i32(q * lanes), at + p * line + q * pitch)

    add_all_columns, write_rows = written_out(add_columns, rows), written_out(write, rows)

    def kernel(x, y, tiles, by, many, D, H, W, cells, P, Q):
        tile = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if tile >= tiles:
            return
        group, j, i, o, n = locate(tile, by, many)
        values = cuda.local.array(held, A)
        tops = cuda.local.array(kept, A)
        pitch = i64(cells) * size if lanes > 1 else i64(size)
        line, top = pitch * W, i32(i * (rows * sh) - ph)
        for z in range(kd):
            d = i32(o * sd + (z - pd))
            at = x + ((i64(n) * D + d) * H + top) * line + group * (lanes * size)
            for start in range(0, tall, together):
                for r in range(together):
                    h = i32(top + (start + r))
                    inside = d >= 0 and d < D and h >= 0 and h < H if check_rows else True
                    read(values, r * capacity, at + (start + r) * line, j, W, pitch, inside)
                add_all_columns((values, tops, z + start > 0))
        line = pitch * Q
        at = y + ((i64(n) * many[3] + o) * P + i * rows) * line + j * columns * pitch + group * (lanes * size)
        counts = cuda.local.array(columns, f32)
        parts = cuda.local.array(columns, f32)
        count, part = seen(o, 0, sd, pd, kd, D, pd > 0)
        for q in range(columns):
            wide, wide_part = seen(j * columns, q, sw, pw, kw, W, past)
            counts[q], parts[q] = f32(count * wide), f32(part * wide_part)
        write_rows((tops, counts, parts, at, line, pitch, i, j, H, P, Q))

    return kernel
