"""Recompute the results that ``device/f32x2.py`` cannot represent as plain float32 sums."""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.line.f32x2 import LANES, SIZE
from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.bits import load_bits
from numbadnn.kernels.lang.cuda import cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.hopper import ADDRESS
from numbadnn.kernels.lang.warp import largest_of_warp

#: filters of which a lane has a sum
TOGETHER = 8


def plain_sums(taps: int, span: int, filters: int) -> Callable[..., None]:
    """``compute(line, w, target, lane, limits, t, ...)``: a warp's results of numbers and filters up to ``limits``, not 0.

    The warp has ``span`` times of ``filters``, a lane one time of these. The first filter's terms begin at ``w``, its results at
    ``target``; K filters are left.
    """
    bits, value, write = load_bits(SIZE), load("float32", "float32"), store("float32", "float32")

    @device
    def within(word, limit):
        magnitude = i32(word & u32(0x7FFFFFFF))
        return magnitude > 0 and magnitude <= limit

    @device
    def seen_by(line, time, limit, C, Q, dilation, step):
        found, c = i32(0), i32(0)
        while c < C:
            for s in range(taps):
                at = i32(time + s * dilation)
                there = at >= 0 and at < Q
                if within(bits(line + (c * step + i64(at if there else i32(0))) * SIZE), limit) and there:
                    found = i32(1)
            c = i32(c + 1)
        return found

    @device
    def among(w, lane, limit, K, C, strides):
        found, c = i32(0), lane
        while c < C:
            for j in range(TOGETHER):
                for s in range(taps):
                    at = w + (min(i32(j), i32(K - 1)) * strides[0] + c * strides[1] + s * strides[2]) * SIZE
                    if within(bits(at), limit):
                        found = i32(1)
            c = i32(c + LANES)
        return largest_of_warp(found)

    @device
    def compute(line, w, target, lane, limits, t, K, C, Q, past, dilation, steps, strides):
        total, factor = cuda.local.array(TOGETHER, f32), cuda.local.array(TOGETHER, f32)
        apart = cuda.local.array(TOGETHER, ADDRESS)
        begin = i32(t)
        while begin < t + span:
            first = i32(begin + lane)
            time, found = i32(first - past), i32(0)
            if limits[0] > 0:
                found = seen_by(line, time, limits[0], C, Q, dilation, steps[0])
            k = i32(0)
            while k < min(K, i32(filters)):
                row = w + k * strides[0] * SIZE
                wanted = found
                if limits[1] > 0:
                    wanted = max(found, among(row, lane, limits[1], i32(K - k), C, strides))
                if largest_of_warp(wanted) > 0:
                    for j in range(TOGETHER):
                        total[j], apart[j] = f32(0), min(i32(j), i32(K - k - 1)) * strides[0] * SIZE
                    c, terms, of_channel = i32(0), row, line
                    while c < C:
                        for s in range(taps):
                            at = i32(time + s * dilation)
                            there = at >= 0 and at < Q
                            pixel = value(of_channel + i64(at if there else i32(0)) * SIZE)
                            pixel = pixel if there else f32(0)
                            for j in range(TOGETHER):
                                factor[j] = value(terms + s * strides[2] * SIZE + apart[j])
                            for j in range(TOGETHER):
                                total[j] = f32(total[j] + pixel * factor[j])
                        c, terms, of_channel = i32(c + 1), terms + strides[1] * SIZE, of_channel + steps[0] * SIZE
                    for j in range(TOGETHER):
                        if wanted > 0 and k + j < K and first < Q:
                            write(target + ((k + j) * steps[1] + i64(first)) * SIZE, total[j])
                k = i32(k + TOGETHER)
            begin = i32(begin + LANES)

    return compute
