"""Pooling of packed images, by tiles: a thread reads what its outputs see once into registers and writes them together.

All images are rank 5: planes, depth, rows, columns, cells. NCHW has one cell a column and takes ``vec`` columns in one access;
channels last has C cells, of which a thread takes ``lanes`` in one access, for every column it needs. A thread makes
``rows`` x ``columns`` outputs: where windows overlap, the elements they share are read once. Every extent is frozen into
the kernel, so that the loops over columns unroll and the arrays are registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels._cuda import cuda, device, i32, i64, u32
from numbadnn.kernels._ptx import ACCUMULATOR, load, load_vector, maximum, store, store_vector
from numbadnn.kernels.pool_tiles import Piece, TilesConfig
from numbadnn.problem import ITEMSIZE

INFINITY = float("inf")


def reader(dtype: str, acc: str, lanes: int, piece: Piece, fill: float) -> Any:
    """``read(values, start, row, j, width, cells, inside)``: a piece's columns of one row into values[start:].

    ``row`` is the address of column 0 (and of this thread's cell). What lies outside, or all if not ``inside``, is ``fill``;
    no branch stands between the loads, so that all of a thread's are under way at once.
    """
    A, size, vec, checked = ACCUMULATOR[acc], ITEMSIZE[dtype], piece.vec, piece.checked
    read1, readv = load(dtype, acc), load_vector(dtype, max(vec, lanes), acc)
    first, step, count, head, body, tail = piece.first, piece.step, piece.length, piece.head, piece.body, piece.tail

    @device
    def one(values, at, row, w, width, inside):  # type: ignore[no-untyped-def]
        ok = inside and w >= 0 and w < width if checked else True
        value = read1(row + i64(w if ok else i32(0)) * size)
        values[at] = value if ok else A(fill)

    @device
    def read_columns(values, start, row, j, width, cells, inside):  # type: ignore[no-untyped-def]
        for c in range(head):
            one(values, start + c, row, i32(j * step + (first + c)), width, inside)
        for m in range(body):
            w = i32(j * step + (first + head + m * vec))
            ok = inside and w < width if checked else True
            readv(values, i32(start + head + m * vec), row + i64(w if ok else i32(0)) * size)
            if checked:
                for e in range(vec):
                    at = start + head + m * vec + e
                    values[at] = values[at] if ok else A(fill)
        for c in range(tail, count):
            one(values, start + c, row, i32(j * step + (first + c)), width, inside)

    @device
    def read_cells(values, start, row, j, width, cells, inside):  # type: ignore[no-untyped-def]
        for c in range(count):
            w = i32(j * step + (first + c))
            ok = inside and w >= 0 and w < width if checked else True
            readv(values, i32(start + c * lanes), row + i64(w if ok else i32(0)) * cells * size)
            if checked:
                for e in range(lanes):
                    at = start + c * lanes + e
                    values[at] = values[at] if ok else A(fill)

    return read_cells if lanes > 1 else read_columns


def locator(lanes: int) -> Any:
    """``(tile, groups, across, down, deep) -> (group of cells, j, i, o, plane)``: cells, then columns are neighbours."""

    @device
    def locate(tile, groups, across, down, deep):  # type: ignore[no-untyped-def]
        rest, group = u32(tile), i32(0)
        if lanes > 1:
            outer = u32(rest // u32(groups))
            group, rest = i32(rest - outer * u32(groups)), outer
        outer = u32(rest // u32(across))
        j, rest = i32(rest - outer * u32(across)), outer
        outer = u32(rest // u32(down))
        i, rest = i32(rest - outer * u32(down)), outer
        outer = u32(rest // u32(deep))
        return group, j, i, i32(rest - outer * u32(deep)), i32(outer)

    return locate


def divisor(acc: str, config: TilesConfig) -> Any:
    """``divide(value, window's depth, row, column, extents of the image)``: the share of one element in an average."""
    A, kind = ACCUMULATOR[acc], config.kind
    (kd, kh, kw), (sd, sh, sw), (pd, ph, pw) = config.window, config.stride, config.pad
    volume, whole = kd * kh * kw, pd == ph == pw == 0

    @device
    def seen(o, stride, pad, window, n):  # type: ignore[no-untyped-def]
        if pad == 0:  # then every window is inside
            return i32(window)
        low, high = i32(o * stride - pad), i32(o * stride - pad + window)
        return i32((high if high < n else i32(n)) - (low if low > 0 else i32(0)))

    @device
    def divide(value, o, p, q, D, H, W):  # type: ignore[no-untyped-def]
        if kind == "average_inc" or (kind == "average_exc" and whole):
            value = A(value / A(volume))
        elif kind == "average_exc":
            cells = i32(seen(o, sd, pd, kd, D) * seen(p, sh, ph, kh, H) * seen(q, sw, pw, kw, W))
            value = A(value / A(cells if cells > 0 else i32(1)))
        return value

    return divide


def pool(dtype: str, acc: str, config: TilesConfig) -> Callable[..., None]:
    """y from x: each row of the tile is read once and joins every output row whose windows it is in."""
    (kd, kh, kw), (sd, sh, sw), (pd, ph, _) = config.window, config.stride, config.pad
    A, size, lanes, columns, rows = ACCUMULATOR[acc], ITEMSIZE[dtype], config.lanes, config.columns, config.rows
    largest, fill = config.kind == "max", -INFINITY if config.kind == "max" else 0.0
    piece, whole, check_rows, threads = config.x_piece(), config.whole, config.check_rows, config.threads
    read, room, larger = reader(dtype, acc, lanes, piece, fill), piece.room * lanes, maximum(acc)
    locate, divide = locator(lanes), divisor(acc, config)
    outputs, width = rows * columns * lanes, columns * lanes
    write1, writev = store(dtype, acc), store_vector(dtype, width if whole and lanes == 1 else lanes, acc)

    tall = (rows - 1) * sh + kh

    def kernel(x, y, tiles, groups, across, down, deep, D, H, W, cells, P, Q):  # type: ignore[no-untyped-def]
        tile = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if tile >= tiles:
            return
        group, j, i, o, plane = locate(tile, groups, across, down, deep)
        sums = cuda.local.array(outputs, A)
        for e in range(outputs):
            sums[e] = A(fill)
        values = cuda.local.array(room, A)
        for z in range(kd):
            for r in range(tall):
                d, h = i32(o * sd + (z - pd)), i32(i * (rows * sh) + (r - ph))
                inside = d >= 0 and d < D and h >= 0 and h < H if check_rows else True
                line = (i64(plane) * D + (d if inside else i32(0))) * H + (h if inside else i32(0))
                read(values, 0, x + (line * W * cells + group * lanes) * size, j, W, cells, inside)
                for p in range(rows):
                    if r >= p * sh and r < p * sh + kh:
                        for q in range(columns):
                            for k in range(kw):
                                for e in range(lanes):
                                    at, value = (p * columns + q) * lanes + e, values[(q * sw + k) * lanes + e]
                                    sums[at] = larger(sums[at], value) if largest else A(sums[at] + value)
        for p in range(rows):
            ip = i32(i * rows + p)
            if ip < P:
                for q in range(columns):
                    for e in range(lanes):
                        at = (p * columns + q) * lanes + e
                        sums[at] = divide(sums[at], o, ip, i32(j * columns + q), D, H, W)
                line = ((i64(plane) * deep + o) * P + ip) * Q
                if whole and lanes == 1:
                    writev(sums, i32(p * width), y + (line + j * columns) * size)
                else:
                    for q in range(columns):
                        jq = i32(j * columns + q)
                        if whole or jq < Q:
                            if lanes > 1:
                                at = y + ((line + jq) * cells + group * lanes) * size
                                writev(sums, i32((p * columns + q) * lanes), at)
                            else:
                                write1(y + (line + jq) * size, sums[p * columns + q])

    return kernel
