"""The product that a lane of ``device/rows.py`` computes in float32: one channel of ``own`` images."""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.inputs.rows_config import Parts
from numbadnn.kernels.conv.unshared.inputs.rows_sizes import LANES, RowsConfig
from numbadnn.kernels.lang.access import load, store_vector
from numbadnn.kernels.lang.cuda import cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.words import read_at, write_at

#: bytes of an element; images of an access, and that a thread prefetches at once
SIZE, FOUR, SIXTEEN = 4, 4, 16


def _fill(config: RowsConfig) -> Callable[..., None]:
    """``fill(shared, tops, pitch, y, strides, N, K, positions, wide)``: y as [position][filter][image], 0 past the images.

    A thread has up to 16 images of a filter, neighbours neighbouring positions; its loads stand before its stores.
    """
    read, images, threads = load("float32", "float32"), config.images, LANES * config.warps
    each, once = min(images, SIXTEEN), min(images, FOUR)
    write, vectors = write_at("float32", once), images // each

    @device
    def fill(shared, tops, pitch, y, strides, N, K, positions, wide):
        held = cuda.local.array(each, f32)
        for i in range(i32(cuda.threadIdx.x), i32(positions * K * vectors), threads):
            rest = i32(u32(i) // u32(positions))
            place, k, n0 = i32(i - rest * positions), i32(rest // vectors), i32(rest % vectors * each)
            down = i32(u32(place) // u32(wide))
            source = y + (k * strides[1] + down * strides[2] + (place - down * wide) * strides[3]) * SIZE
            for n in range(each):
                held[n] = read(source + min(i32(n0 + n), i32(N - 1)) * strides[0] * SIZE)
            for n in range(each):
                held[n] = held[n] if n0 + n < N else f32(0)
            for n in range(0, each, once):
                write(held, i32(n), shared, i32(tops + place * pitch + (k * images + n0 + n) * SIZE))

    return fill


def parts(dtype: str, config: RowsConfig) -> Parts:
    taps, flip, images, own, columns = config.taps[1], config.flip, config.images, config.own, config.columns
    vectors, span, piece = images // own, min(own, FOUR), config.piece
    y_pitch = config.of_filter if config.transposed else images * SIZE
    per_warp, apart = LANES // vectors, images // own * min(own, FOUR)  # images between a lane's accesses
    read_one, read, store_span = read_at(dtype, 1), read_at(dtype, span), store_vector(dtype, span, dtype)

    @device
    def place(unit, pitch, have, of_channel):
        lane = i32(cuda.threadIdx.x % LANES)
        channel = min(i32(unit * per_warp + lane // vectors), i32(have - 1))
        return i32(channel * of_channel), i32(lane % vectors * (span * SIZE))

    def multiply(first: int) -> Callable[..., None]:
        @device
        def one(total, shared, at_w, at_y):
            weight, top = cuda.local.array(taps, f32), cuda.local.array(own, f32)
            for e in range(taps):
                read_one(weight, i32(e), shared, i32(at_w + (taps - 1 - e if flip else e) * SIZE))
            for n in range(0, own, span):
                read(top, i32(n), shared, i32(at_y + n // span * apart * SIZE))
            for e in range(taps):
                for n in range(own):
                    at = first + e * own + n
                    total[at] = f32(total[at] + weight[e] * top[n])

        @device
        def run(total, shared, at_w, at_y, pitch, left, zeros):
            for _ in range(min(i32(piece), left)):
                one(total, shared, at_w, at_y)
                at_w, at_y = i32(at_w + pitch), i32(at_y + y_pitch)

        @device
        def run_whole(total, shared, at_w, at_y, pitch, left, zeros):
            for _ in range(i32(piece // 2)):  # with fewer of one than of two, half of the steps
                one(total, shared, at_w, at_y)
                one(total, shared, i32(at_w + pitch), i32(at_y + y_pitch))
                at_w, at_y = i32(at_w + 2 * pitch), i32(at_y + 2 * y_pitch)

        return run if config.ragged else run_whole

    @device
    def write(total, space, unit, area, have):
        lane = i32(cuda.threadIdx.x % LANES)
        channel, n0 = i32(unit * per_warp + lane // vectors), i32(lane % vectors * span)
        if channel < have:
            to = space + (i64(channel * area) * images + n0) * SIZE
            for v in range(columns):
                for n in range(0, own, span):
                    store_span(total, i32(v * own + n), to + (v * images + n // span * apart) * SIZE)

    return Parts(_fill(config), place, multiply, write, own, piece * y_pitch)
