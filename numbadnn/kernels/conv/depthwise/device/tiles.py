"""How a thread of a depthwise kernel meets memory: a tile of a few columns or channels of one image row, in registers.

Channels first, a tile is ``columns`` neighbouring columns of one channel; channels last, it is ``channels``
neighbouring channels of one or two columns. Either way most of it moves in aligned pieces of several elements. What
lies outside the image is read from the image's first element, so that no branch stands between loads, and then replaced
by zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from numbadnn.kernels.conv.depthwise.config import Tile
from numbadnn.kernels.lang.access import load, load_vector, store, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, device, i32, i64
from numbadnn.problem import ITEMSIZE


def fetch(
    dtype: str, acc: str, tile: Tile, first: int, columns: int, width: int, early: bool = False
) -> Callable[..., None]:
    """``fetch(values, to, plane, row, base, extent, live, strides)``: values[to:] = ``columns`` of a row, from ``base + first``.

    ``plane`` is the address of element (0, 0), ``strides`` those of row and column, ``live`` whether the row exists.
    Pieces begin where ``base + first`` plus their place is a multiple of ``width``. ``early``: what lies outside is anything
    until ``clear_outside`` makes it 0. Whoever asks of each element whether it lies inside, right behind its load, waits
    for one load after the other once there are more answers than predicate registers.
    """
    if tile.channels_last:
        return _fetch_channels(dtype, acc, first, columns, tile.channels, width, early)
    A, size = ACCUMULATOR[acc], ITEMSIZE[dtype]
    before, pieces, edge = _pieces(first, columns, width)
    after = before + pieces * width
    read_piece, read_edge = load_vector(dtype, width, acc), load_vector(dtype, edge, acc)

    @device
    def row_of_columns(values, to, plane, row, base, extent, live, strides):
        start = i32(base + first)
        at = i32(row * strides[0] + start)
        for i in range(before // edge + (columns - after) // edge):
            j = i * edge if i * edge < before else after - before + i * edge
            inside = live and start + j >= 0 and start + j < extent
            read_edge(values, i32(to + j), plane + i64(at + j if inside else 0) * size)
            for e in range(0 if early else edge):
                values[to + j + e] = values[to + j + e] if inside else A(0)
        for i in range(pieces):
            j = before + i * width
            inside = live and start + j >= 0 and start + j < extent
            read_piece(values, i32(to + j), plane + i64(at + j if inside else 0) * size)
            for e in range(0 if early else width):
                values[to + j + e] = values[to + j + e] if inside else A(0)

    return row_of_columns


def _pieces(first: int, columns: int, width: int) -> tuple[int, int, int]:
    """(columns before the first whole piece, pieces, width of the pieces in which both ends move)."""
    before = min(-first % width, columns)
    pieces = (columns - before) // width
    return before, pieces, math.gcd(before, columns - before - pieces * width, width)


def _fetch_channels(
    dtype: str, acc: str, first: int, columns: int, channels: int, width: int, early: bool
) -> Callable[..., None]:
    A, size, read_piece = ACCUMULATOR[acc], ITEMSIZE[dtype], load_vector(dtype, width, acc)

    @device
    def row_of_pixels(values, to, plane, row, base, extent, live, strides):
        for i in range(columns):
            column = i32(base + first + i)
            inside = live and column >= 0 and column < extent
            at = i32(row * strides[0] + column * strides[1]) if inside else i32(0)
            for piece in range(channels // width):
                j = i * channels + piece * width
                read_piece(values, i32(to + j), plane + i64(at + piece * width) * size)
                for e in range(0 if early else width):
                    values[to + j + e] = values[to + j + e] if inside else A(0)

    return row_of_pixels


def clear_outside(acc: str, tile: Tile, first: int, columns: int, width: int) -> Callable[..., None]:
    """``clear(values, to, base, extent, live)``: 0 for what an early ``fetch`` read outside the image."""
    A, channels = ACCUMULATOR[acc], tile.channels if tile.channels_last else 1
    edge = 1 if tile.channels_last else _pieces(first, columns, width)[2]  # what moved together lies on one side

    @device
    def clear(values, to, base, extent, live):
        for i in range(columns // edge):
            column = i32(base + first + i * edge)
            inside = live and column >= 0 and column < extent
            for e in range(edge * channels):
                j = to + i * edge * channels + e
                values[j] = values[j] if inside else A(0)

    return clear


def put(dtype: str, acc: str, tile: Tile) -> Callable[..., None]:
    """``put(values, start, plane, row, base, extent, strides, alpha, beta)``: alpha * a tile + beta * what is there."""
    A, size, columns, channels, width = ACCUMULATOR[acc], ITEMSIZE[dtype], tile.columns, tile.channels, tile.store
    read, write, write_piece, last = (
        load(dtype, acc),
        store(dtype, acc),
        store_vector(dtype, width, acc),
        tile.channels_last,
    )
    # pieces along the columns of one channel, or along the channels of each column
    count, per_column = (columns * channels) // width, max(channels // width, 1)

    @device
    def row(values, start, plane, row, base, extent, strides, alpha, beta):
        for i in range(count):
            first = i * width
            column = i32(base + i // per_column) if last else i32(base + first)
            along = i32((i % per_column) * width) if last else i32(0)
            if column < extent:
                target = plane + i64(i32(row * strides[0] + column * strides[1] + along)) * size
                for e in range(width):
                    values[start + first + e] = A(alpha * values[start + first + e])
                if beta != A(0):
                    for e in range(width):
                        old = read(target + e * size)
                        values[start + first + e] = A(values[start + first + e] + beta * old)
                if width > 1:
                    write_piece(values, i32(start + first), target)
                else:
                    write(target, values[start + first])

    return row
