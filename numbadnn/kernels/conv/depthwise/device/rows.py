"""The gradient of depthwise filters in 16 bits, channels last: rows of both images on their way through a ring in shared memory.

A block has 32 channels and, of some images, a strip of rows of one band of columns. Its threads have two channels and
four columns of dy each; their sums are the taps. Step by step a row of dy and the rows of x that it newly meets are multiplied,
while those of ``ahead`` steps more are under way, in pieces of eight channels:

    ring     x: (taps + stride * ahead) rows, dy: (ahead + 1) rows;  a pixel is 16 words, and between threads' pixels lie 16 more
    thread   16 pairs of channels  x  groups of four columns  x  images

so that the two halves of a warp are in different banks. In the end a block's threads meet in shared memory, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.kernels.conv.depthwise.rows_config import CHANNELS, COLUMNS, PIECES, WORDS, RowsConfig
from numbadnn.kernels.lang.access import store
from numbadnn.kernels.lang.async_copies import commit_async, copy_or_zero, wait_async_but
from numbadnn.kernels.lang.cuda import ELEMENT, SIMULATED, WORD, cuda, device, f32, i32, i64, types, u32
from numbadnn.kernels.lang.packed import widen
from numbadnn.kernels.lang.words import read_at, shared_address

INT32 = np.int32 if SIMULATED else types.int32
SIZE = 2


def _pieces(config: RowsConfig, pixels: int, group: int, line: int) -> tuple[int, Any]:
    """(places, locate): which pieces of a row of an operand each thread copies.

    ``locate(sources, targets, first, limit, image, images, image_step, step, channel, channels)``: offset of each piece from the
    row's start, -1 outside, and bytes from the row's place in the ring; -1 where there is none.
    """
    threads, each = config.threads, pixels * PIECES
    every = each * config.images
    places = -(-every // threads)

    @device
    def locate(sources, targets, first, last, limit, image, images, image_step, step, channel, channels):
        for i in range(places):
            e = i32(i32(cuda.threadIdx.x) + i * threads)
            n = i32(u32(e) // u32(each))
            rest = i32(e - n * each)
            pixel = i32(u32(rest) // u32(PIECES))
            piece = i32(rest - pixel * PIECES)
            column = i32(first + pixel)
            inside = column >= 0 and column < limit and pixel < last and image + n < images
            inside = inside and channel + piece * 8 < channels
            sources[i] = i32(n * image_step + column * step + piece * 8) if inside and e < every else i32(-1)
            place = i32((n * line + pixel * WORDS + i32(u32(pixel) // u32(group)) * WORDS) * 4 + piece * 16)
            targets[i] = place if e < every else i32(-1)

    return places, locate


def _copy_row(places: int) -> Callable[..., None]:
    """``copy_row(shared, at, source, sources, targets, there)``: begin to copy a row into the ring at ``at``."""
    copy = copy_or_zero(16)

    @device
    def copy_row(shared, at, source, sources, targets, there):
        for i in range(places):
            if targets[i] >= 0:
                inside = there and sources[i] >= 0
                copy(shared, i32(at + targets[i]), source + i64(sources[i] if inside else i32(0)) * SIZE, inside)

    return copy_row


def _multiply(dtype: str, config: RowsConfig) -> Callable[..., None]:
    """``multiply(sums, shared, r, x_at, slopes, live)``: row r of the taps, from a row of x at the thread's own first column.

    Columns of dy from ``live`` on do not exist: 0 times an infinity of x would be NaN.
    """
    (_, S), across, group = config.taps, config.stride[1], COLUMNS * config.stride[1]
    span, even = (COLUMNS - 1) * across + S, config.even
    to_values, read = widen(dtype, 2, "float32"), read_at("int32", 1)

    @device
    def multiply(sums, shared, r, x_at, slopes, live):
        pair = cuda.local.array(1, INT32)
        values = cuda.local.array(2, f32)
        for j in range(span):
            read(pair, i32(0), shared, i32(x_at + (j + j // group) * (WORDS * 4)))
            to_values(values, i32(0), pair, i32(0))
            for u in range(COLUMNS):
                s = j - u * across
                if s >= 0 and s < S and (even or live > u):
                    for e in range(2):
                        o = (r * S + s) * 2 + e
                        sums[o] = f32(sums[o] + values[e] * slopes[u * 2 + e])

    return multiply


def _all_rows(dtype: str, config: RowsConfig) -> Callable[..., None]:
    """``rows(sums, shared, first, x_at, slopes, live)``: every row of the taps, written out, or the sums would be in memory."""
    R, ring, line = config.taps[0], config.ring, config.images * config.x_line
    multiply = _multiply(dtype, config)

    def row(r: int, rest: Any) -> Any:
        @device
        def rows(sums, shared, slot, x_at, slopes, live):
            multiply(sums, shared, r, i32(x_at + slot * (line * 4)), slopes, live)
            following = i32(slot + 1)
            rest(sums, shared, following if following < ring else i32(0), x_at, slopes, live)

        @device
        def last(sums, shared, slot, x_at, slopes, live):
            multiply(sums, shared, r, i32(x_at + slot * (line * 4)), slopes, live)

        return rows if rest else last

    made = None
    for r in reversed(range(R)):
        made = row(r, made)
    return made  # type: ignore[return-value]


def _put(config: RowsConfig) -> Callable[..., None]:
    """``put(sums, table, at, channel, channels)``: a block's totals, a row of the taps at a time, in the order of threads."""
    (R, S), threads, parts = config.taps, config.threads, config.threads // 16
    every, write = S * CHANNELS, store("float32", "float32")
    turns = -(-every // threads)

    @device
    def store_row(sums, table, r, at, channel, channels):
        thread = i32(cuda.threadIdx.x)
        cuda.syncthreads()
        for j in range(S * 2):
            table[i32(j * threads + thread)] = sums[r * S * 2 + j]
        cuda.syncthreads()
        for turn in range(turns):
            i = i32(thread + turn * threads)
            s = i32(u32(i) // u32(CHANNELS))
            c = i32(i - s * CHANNELS)
            if i < every and channel + c < channels:
                total = f32(0)
                for part in range(parts):
                    total = f32(total + table[i32((s * 2 + (c & 1)) * threads + part * 16 + (c >> 1))])
                write(at + i64(i32((r * S + s) * channels + channel + c)) * 4, total)

    def row(r: int, rest: Any) -> Any:
        @device
        def rows(sums, table, at, channel, channels):
            store_row(sums, table, r, at, channel, channels)
            rest(sums, table, at, channel, channels)

        @device
        def last(sums, table, at, channel, channels):
            store_row(sums, table, r, at, channel, channels)

        return rows if rest else last

    made = None
    for r in reversed(range(R)):
        made = row(r, made)
    return made  # type: ignore[return-value]


def weights(dtype: str, config: RowsConfig) -> Callable[..., None]:
    """partial[split, tap, k] = the sum over a block's positions of x[n, k, p*stride + r - top, ...] * dy[n, k, p, q]."""
    (R, S), (down, across), images, groups, ahead = (
        config.taps, config.stride, config.images, config.groups, config.ahead,
    )  # fmt: skip
    x_line, y_line, ring, y_ring, x_pixels = config.x_line, config.y_line, config.ring, ahead + 1, config.x_pixels
    x_row, y_row, count, wide = images * x_line, images * y_line, R * S * 2, groups * COLUMNS
    x_places, locate_x = _pieces(config, x_pixels, COLUMNS * across, x_line)
    y_places, locate_y = _pieces(config, wide, COLUMNS, y_line)
    copy_x, copy_y = _copy_row(x_places), _copy_row(y_places)
    others_there, rows_of, put = wait_async_but(ahead - 1), _all_rows(dtype, config), _put(config)
    read, to_values, E, held = read_at("int32", 1), widen(dtype, 2, "float32"), ELEMENT["float32"], 2 * COLUMNS

    def kernel(x, y, partial, counts, image, output, tiles, rows, corner, x_strides, y_strides):
        shared = cuda.shared.array(0, WORD)
        table = cuda.shared.array(0, E)
        sums = cuda.local.array(count, f32)
        slopes = cuda.local.array(held, f32)
        pair = cuda.local.array(1, INT32)
        x_sources, x_targets = cuda.local.array(x_places, INT32), cuda.local.array(x_places, INT32)
        y_sources, y_targets = cuda.local.array(y_places, INT32), cuda.local.array(y_places, INT32)
        for i in range(count):
            sums[i] = f32(0)
        channel, split = i32(cuda.blockIdx.x * CHANNELS), i32(cuda.blockIdx.y)
        rest = i32(u32(split) // u32(tiles[0]))
        first = i32((split - rest * tiles[0]) * rows)
        band = i32(u32(rest) // u32(tiles[1]))
        q0 = i32((rest - band * tiles[1]) * wide)
        n = i32(band * images)
        steps = i32(min(rows, output[0] - first))
        needed = i32((min(wide, output[1] - q0) - 1) * across + S)  # columns of x that a column of dy meets
        locate_x(
            x_sources, x_targets, i32(q0 * across - corner[1]), needed, image[1], n, counts[0], x_strides[0], x_strides[2],
            channel, counts[1],
        )  # fmt: skip
        locate_y(
            y_sources, y_targets, q0, i32(wide), output[1], n, counts[0], y_strides[0], y_strides[2], channel, counts[1]
        )
        x += (i64(n) * x_strides[0] + channel) * SIZE
        y += (i64(n) * y_strides[0] + channel) * SIZE
        top = i32(first * down - corner[0])
        base = shared_address(shared)
        y_base = i32(base + ring * x_row * 4)
        for r in range(R - down):  # what the first step meets besides the rows that every step adds
            h = i32(top + r)
            there = h >= 0 and h < image[0]
            copy_x(
                shared,
                i32(base + r * (x_row * 4)),
                x + i64(h if there else i32(0)) * x_strides[1] * SIZE,
                x_sources,
                x_targets,
                there,
            )
        store_at, y_store = i32(R - down), i32(0)
        h = i32(top + (R - down))
        now, y_now = i32(0), i32(0)
        thread = i32(cuda.threadIdx.x)
        unit = i32(thread >> 4)
        of_images = i32(u32(unit) // u32(groups))
        group = i32(unit - of_images * groups)
        x_at = i32(base + (of_images * x_line + group * ((COLUMNS * across + 1) * WORDS) + (thread & 15)) * 4)
        y_at = i32(y_base + (of_images * y_line + group * ((COLUMNS + 1) * WORDS) + (thread & 15)) * 4)
        live = i32(output[1] - q0 - group * COLUMNS) if n + of_images < counts[0] else i32(0)
        for t in range(-ahead, steps):
            if t >= 0:
                others_there()
                cuda.syncthreads()
            if t + ahead < steps:
                for _ in range(down):
                    there = h >= 0 and h < image[0]
                    copy_x(
                        shared, i32(base + store_at * (x_row * 4)), x + i64(h if there else i32(0)) * x_strides[1] * SIZE,
                        x_sources, x_targets, there,
                    )  # fmt: skip
                    store_at = i32(store_at + 1) if store_at + 1 < ring else i32(0)
                    h = i32(h + 1)
                p = i32(first + t + ahead)
                copy_y(
                    shared,
                    i32(y_base + y_store * (y_row * 4)),
                    y + i64(p) * y_strides[1] * SIZE,
                    y_sources,
                    y_targets,
                    True,
                )
                y_store = i32(y_store + 1) if y_store + 1 < y_ring else i32(0)
            commit_async()
            if t >= 0:
                for u in range(COLUMNS):
                    read(pair, i32(0), shared, i32(y_at + y_now * (y_row * 4) + u * (WORDS * 4)))
                    to_values(slopes, i32(2 * u), pair, i32(0))
                rows_of(sums, shared, now, x_at, slopes, live)
                now = i32(now + down) if now + down < ring else i32(now + down - ring)
                y_now = i32(y_now + 1) if y_now + 1 < y_ring else i32(0)
        put(sums, table, partial + i64(split) * (R * S) * counts[1] * 4, channel, counts[1])

    return kernel
