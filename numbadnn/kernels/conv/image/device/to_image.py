"""Convolutions into few channels: each thread computes a patch of the result; the source's channels come through shared memory.

A block has 16 x 8 threads, a thread ROWS x (COLUMNS * stride) results in every channel. Of the source a block copies the part
behind all its patches, ``chunk`` channels at a time, into one of two buffers while it multiplies out of the other:

    shared   [chunk][rows][columns] of the source, zeros outside   [chunk][r][s][4] of the filters
    thread   a row of the source behind its patch -> registers;  sums[row, column, c] += source * filter(r, s)[c]

Which rows, columns and taps meet is frozen into the kernel, so that strides skip what they never meet. Where an element of the
tile lies in memory a table in shared memory says, the same for all channels; -1 is outside. Zeros outside are terms forward, and
none in the images' gradient (``conv/device/absent.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from numbadnn.kernels.conv.device.absent import any_nan, put_in
from numbadnn.kernels.conv.image.device.absent import add_anew
from numbadnn.kernels.conv.image.to_image_config import ACROSS, COLUMNS, DOWN, THREADS, ToImageConfig
from numbadnn.kernels.lang.access import load, store, store_vector
from numbadnn.kernels.lang.async_copies import commit_async, copy_or_zero, wait_async_but
from numbadnn.kernels.lang.cuda import ELEMENT, SIMULATED, cuda, device, f32, i32, i64, types, u32
from numbadnn.kernels.lang.words import read_at, shared_address

SIZE = 4
INT32 = np.dtype("int32") if SIMULATED else types.int32


def _fill(config: ToImageConfig) -> Callable[..., None]:
    """``fill(shared, words, at, table, source, filters, k, K, step, w_strides)``: begin to copy channels k to k + chunk."""
    (rows, columns, plane), (_, S), chunk, lanes = config.tile, config.taps, config.chunk, config.lanes
    positions, apart, C, area = rows * columns, THREADS // lanes, config.channels, math.prod(config.taps)
    turns, each = -(-positions // apart), chunk // lanes
    weights, weight_turns = chunk * area * 4, -(-(chunk * area * 4) // THREADS)
    copy = copy_or_zero(SIZE)

    @device
    def fill(shared, words, at, table, source, filters, first, K, step, w_strides):
        thread = i32(cuda.threadIdx.x)
        position = i32(u32(thread) // u32(lanes))
        lane = i32(thread - position * lanes)
        for _ in range(turns):
            if position < positions:
                offset = words[table + position]
                for j in range(each):
                    k = i32(lane + j * lanes)
                    there = offset >= 0 and first + k < K
                    place = i64(i32(offset + (first + k) * step)) if there else i64(0)
                    copy(shared, i32(at + (k * plane + position) * SIZE), source + place * SIZE, there)
            position = i32(position + apart)
        at = i32(at + chunk * plane * SIZE)
        e = thread
        for _ in range(weight_turns):
            if e < weights:
                tap = i32(u32(e) // u32(4))
                c = i32(e - tap * 4)
                k = i32(u32(tap) // u32(area))
                tap = i32(tap - k * area)
                r = i32(u32(tap) // u32(S))
                there = c < C and first + k < K
                place = i32(
                    (first + k) * w_strides[0] + c * w_strides[1] + r * w_strides[2] + (tap - r * S) * w_strides[3]
                )
                copy(shared, i32(at + e * SIZE), filters + i64(place if there else i32(0)) * SIZE, there)
            e = i32(e + THREADS)

    return fill


def _multiply(config: ToImageConfig) -> Callable[..., None]:
    """``multiply(sums, shared, at, weights)``: one channel of the source, from this thread's corner of its tile.

    Its rows are written out, one function calling the next: a loop that is not unrolled would put the sums in memory.
    """
    multiply = _row(config, config.reach[0] - 1)
    for i in reversed(range(config.reach[0] - 1)):
        multiply = _both(_row(config, i), multiply)
    return multiply


def _both(row: Callable[..., None], rest: Callable[..., None]) -> Callable[..., None]:
    @device
    def both(sums, shared, at, weights):
        row(sums, shared, at, weights)
        rest(sums, shared, at, weights)

    return both


def _row(config: ToImageConfig, i: int) -> Callable[..., None]:
    """The same of row i of the source behind the patch."""
    (R, S), (down, across), (top, left), C = config.taps, config.stride, config.first, config.channels
    (high, wide), (lowest, leftmost) = config.patch, config.lowest
    pieces, at_row = -(-config.reach[1] // 4), i * config.tile[1] * SIZE
    held = 4 * pieces
    read = read_at("float32", 4)

    @device
    def row(sums, shared, at, weights):
        values = cuda.local.array(held, f32)
        taps = cuda.local.array(4, f32)
        for piece in range(pieces):
            read(values, i32(piece * 4), shared, i32(at + at_row + piece * 16))
        for u in range(high):
            r = u + top - (i + lowest) * down
            if r >= 0 and r < R:
                for s in range(S):
                    read(taps, i32(0), shared, i32(weights + (r * S + s) * 16))
                    for v in range(wide):
                        column = v + left - s - leftmost * across
                        if column >= 0 and column % across == 0:
                            for c in range(C):
                                o = (u * wide + v) * C + c
                                sums[o] = f32(sums[o] + values[column // across] * taps[c])

    return row


def _mend(config: ToImageConfig) -> Callable[..., None]:
    """``mend(sums, source, filters, K, image, strides, w_strides, limits, h, w)``: those of a patch at (h, w) that are NaN."""
    (high, wide), C = config.patch, config.channels
    count = high * wide * C
    wrong, put = any_nan(count), put_in("float32", count)
    add = add_anew("float32", config.taps, config.stride, config.first)

    @device
    def mend(sums, source, filters, K, image, strides, w_strides, limits, h, w):
        if wrong(sums, 0):
            for i in range(count):
                pixel = i32(u32(i) // u32(C))
                u = i32(u32(pixel) // u32(wide))
                row, column = i32(h + u), i32(w + pixel - u * wide)
                if row < limits[0] and column < limits[1]:
                    c = i32(i - pixel * C)
                    put(sums, 0, i32(i), add(source, filters, K, image, strides, w_strides, c, row, column))

    return mend


def convolve(config: ToImageConfig, inputs: bool) -> Callable[..., None]:
    """out[n,c,h,w] = alpha * the sum over k, r, s that the host side of this module writes down + beta * out[n,c,h,w].

    ``inputs``: of the images' gradient.
    """
    (down, across), (high, wide), (lowest, leftmost) = config.stride, config.patch, config.lowest
    (rows, columns, plane), chunk, area = config.tile, config.chunk, math.prod(config.taps)
    positions, stage, count = rows * columns, config.stage * SIZE, high * wide * config.channels
    entries, table = -(-positions // THREADS), 2 * config.stage
    fill, multiply, mend, put = _fill(config), _multiply(config), _mend(config), _put(config)
    others_there, E = wait_async_but(1), ELEMENT["float32"]

    def kernel(
        source, filters, out, counts, image, limits, tiles, source_step, source_strides, start, w_strides, out_step, out_strides,
        alpha, beta,
    ):  # fmt: skip
        shared = cuda.shared.array(0, E)
        words = cuda.shared.array(0, INT32)
        thread = i32(cuda.threadIdx.x)
        ty = i32(u32(thread) // u32(ACROSS))
        tx = i32(thread - ty * ACROSS)
        tile = i32(cuda.blockIdx.x)
        rest = i32(u32(tile) // u32(tiles[1]))
        w = i32((tile - rest * tiles[1]) * (ACROSS * wide))
        n = i32(u32(rest) // u32(tiles[0]))
        h = i32((rest - n * tiles[0]) * (DOWN * high))
        source += i64(n) * source_step * SIZE
        filters += i64(start) * SIZE
        base = shared_address(words)
        for j in range(entries):
            position = i32(thread + j * THREADS)
            if position < positions:
                row = i32(u32(position) // u32(columns))
                q = i32(w // across + leftmost + (position - row * columns))
                p = i32(h // down + lowest + row)
                inside = p >= 0 and p < image[0] and q >= 0 and q < image[1]
                place = i32(p * source_strides[1] + q * source_strides[2]) if inside else i32(-1)
                words[table + position] = place
        cuda.syncthreads()
        sums = cuda.local.array(count, f32)
        for i in range(count):
            sums[i] = f32(0)
        corner = i32(((ty * (high // down)) * columns + tx * COLUMNS) * SIZE)
        fill(shared, words, base, table, source, filters, i32(0), counts[1], source_strides[0], w_strides)
        commit_async()
        now = i32(0)
        for first in range(0, counts[1], chunk):
            ahead = i32(first + chunk)
            if ahead < counts[1]:
                fill(
                    shared, words, i32(base + (1 - now) * stage), table, source, filters, ahead, counts[1], source_strides[0],
                    w_strides,
                )  # fmt: skip
            commit_async()
            others_there()
            cuda.syncthreads()
            at = i32(base + now * stage)
            for k in range(chunk):
                multiply(
                    sums,
                    shared,
                    i32(at + k * (plane * SIZE) + corner),
                    i32(at + chunk * plane * SIZE + k * (area * 16)),
                )
            cuda.syncthreads()
            now = i32(1 - now)
        out += i64(n) * out_step * SIZE
        h, w = i32(h + ty * high), i32(w + tx * wide)
        if inputs:
            mend(sums, source, filters, counts[1], image, source_strides, w_strides, limits, h, w)
        put(sums, 0, out, h, w, limits, out_strides, alpha, beta)  # written out, as the rows of the source are
        put(sums, 1, out, h, w, limits, out_strides, alpha, beta)

    return kernel


def _put(config: ToImageConfig) -> Callable[..., None]:
    """``put(sums, u, image, h, w, limits, strides, alpha, beta)``: row u of the patch at (h, w), all channels."""
    (_, wide), C, vector = config.patch, config.channels, config.vector
    read, write = load("float32", "float32"), store("float32", "float32")
    write_vector = store_vector("float32", vector, "float32")

    @device
    def put(sums, u, image, h, w, limits, strides, alpha, beta):
        values = cuda.local.array(vector, f32)
        for first in range(wide // vector):
            for c in range(C):
                column = i32(w + first * vector)
                if h + u < limits[0] and column < limits[1]:
                    to = image + i64(i32(c * strides[0] + (h + u) * strides[1] + column * strides[2])) * SIZE
                    for v in range(vector):
                        value = f32(alpha * sums[(u * wide + first * vector + v) * C + c])
                        if beta != f32(0):
                            value = f32(value + beta * read(to + v * SIZE))
                        values[v] = value
                    if vector > 1:
                        write_vector(values, i32(0), to)
                    else:
                        write(to, values[0])

    return put
