"""Parts of the kernels in tiles: reading and writing a row, finding a thread's tile, each window's share of an average."""

from __future__ import annotations

from typing import Any

from numbadnn.kernels.lang.access import load_vector, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, f32, i32, i64
from numbadnn.kernels.lang.packed import load_where
from numbadnn.kernels.lang.ptx import divided, quotient, rough_reciprocal
from numbadnn.kernels.pool.device.codes import load_codes
from numbadnn.kernels.pool.tiles_config import Piece, TilesConfig
from numbadnn.problem import ITEMSIZE

INFINITY = float("inf")


@device
def skip(values, start, address):
    """A reader of codes reads nothing without a look at where it is."""


def reader(dtype: str, acc: str, lanes: int, piece: Piece, fill: float, rows: bool) -> Any:
    """``read(values, start, row, j, width, pitch, inside)``: a piece's columns of one row into values[start:].

    ``row`` is the address of column 0 (and of this thread's cell), ``pitch`` the bytes from a column to the next. What lies
    outside, or all if not ``inside`` (which only ``rows`` may be), is ``fill``. No branch stands between the loads, and
    addresses differ by constants, so that all of a thread's are under way at once. Of ``dtype`` "code" there are bytes.
    """
    vec, past, first, step = piece.vec, piece.past, piece.first, piece.step
    count, head, body, tail = piece.length, piece.head, piece.body, piece.tail
    guarded, many = past or rows or dtype == "code", max(vec, lanes)
    if dtype == "code":
        readv, read_wherev, read_where = skip, load_codes(many), load_codes(1)
    else:
        readv, read_wherev = load_vector(dtype, many, acc), load_where(dtype, many, acc, fill)
        read_where = load_where(dtype, 1, acc, fill)

    @device
    def read_columns(values, start, row, j, width, pitch, inside):
        w = i32(j * step + first)
        at = row + i64(w) * pitch
        for c in range(head):
            read_where(
                values, i32(start + c), at + c * pitch, inside and w + c >= 0 and (w + c < width if past else True)
            )
        for m in range(body):
            c = head + m * vec
            if guarded:
                read_wherev(values, i32(start + c), at + c * pitch, inside and (w + c < width if past else True))
            else:
                readv(values, i32(start + c), at + c * pitch)
        for c in range(tail, count):
            ok = inside and (w + c >= 0 if first + c < 0 else True) and (w + c < width if past else True)
            read_where(values, i32(start + c), at + c * pitch, ok)

    @device
    def read_cells(values, start, row, j, width, pitch, inside):
        w = i32(j * step + first)
        at = row + i64(w) * pitch
        for c in range(count):
            if guarded or first + c < 0:
                ok = inside and (w + c >= 0 if first + c < 0 else True) and (w + c < width if past else True)
                read_wherev(values, i32(start + c * lanes), at + c * pitch, ok)
            else:
                readv(values, i32(start + c * lanes), at + c * pitch)

    return read_cells if lanes > 1 else read_columns


def writer(dtype: str, acc: str, config: TilesConfig) -> Any:
    """``put(total, start, row, j, width, pitch)``: a row of a gradient's tile, from total[start:], as far as it is in the image.

    ``row`` and ``pitch`` are a ``reader``'s.
    """
    vec, lanes, whole, wide = config.vec, config.lanes, config.whole, config.columns * config.stride[2]
    many, write = wide // vec, store_vector(dtype, max(vec, lanes), acc)

    @device
    def put(total, start, row, j, width, pitch):
        w = i32(j * wide)
        at = row + i64(w) * pitch
        for m in range(many):
            if whole or w + m * vec < width:
                write(total, i32(start + m * vec * lanes), at + m * vec * pitch)

    return put


def locator(lanes: int) -> Any:
    """``locate(tile, by, many) -> (group of cells, j, i, o, plane)``: cells, then columns are neighbours.

    There are ``many`` groups, tiles across, down and deep; ``by``: two numbers of the ``reciprocal`` of each.
    """

    @device
    def locate(tile, by, many):
        rest, group = i32(tile), i32(0)
        if lanes > 1:
            outer = quotient(rest, by[0:2])
            group, rest = i32(rest - outer * many[0]), outer
        outer = quotient(rest, by[2:4])
        j, rest = i32(rest - outer * many[1]), outer
        outer = quotient(rest, by[4:6])
        i, rest = i32(rest - outer * many[2]), outer
        outer = quotient(rest, by[6:8])
        return group, j, i, i32(rest - outer * many[3]), outer

    return locate


def after(before: Any, last: Any) -> Any:
    """``run(state)``: before(state) (None: nothing), then last(state)."""
    if before is None:
        return last

    @device
    def run(state):
        before(state)
        last(state)

    return run


def written_out(body: Any, count: int) -> Any:
    """``run(state)``: body(0, state) ... body(count - 1, state). A loop of so much is not unrolled: arrays would be in memory."""
    n = count - 1

    @device
    def last(state):
        body(n, state)

    return after(written_out(body, n) if n else None, last)


def averager(dtype: str, acc: str, config: TilesConfig) -> tuple[Any, Any]:
    """(seen, share): how much of a window is inside the image, and what a number is in the average over so many elements.

    ``seen(first, n, axis' stride, pad and window, extent, past) -> (count, part)``: along one axis, of window first + n, at least
    1, and its reciprocal. ``first`` is none below 0, ``past`` tells whether some window reaches past the end; all others are
    constants. ``share(value, count, part)``: of products of those; in a sum the value itself, but 0 for -0. To be rounded to 16
    bits, a product will do.
    """
    A, kind, single, short = ACCUMULATOR[acc], config.kind, acc == "float32", ITEMSIZE[dtype] == 2
    whole, divide = kind != "average_exc" or not any(config.pad), divided

    @device
    def seen(first, n, stride, pad, window, extent, past):
        count, part = f32(window), f32(1 / window)
        if not whole and (n * stride < pad or past):
            start, inside = i32((first + n) * stride - pad), i32(window)
            if n * stride < pad:
                inside = i32(inside + min(start, i32(0)))
            if past:
                inside = i32(inside - max(i32(start + window - extent), i32(0)))
            count = f32(max(inside, i32(1)))
            part = divide(f32(1), count, rough_reciprocal(count))  # as near as can be: no bit depends on the GPU
        return count, part

    @device
    def share(value, count, part):
        if kind == "sum":
            value = A(value + A(0))
        elif not single:
            value = A(value / A(count))
        elif short:
            value = cuda.fma(value, part, f32(0))
        else:
            value = divide(value, count, part)
        return value

    return seen, share
