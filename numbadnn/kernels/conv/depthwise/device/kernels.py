"""Depthwise convolution and its gradient with respect to the image: a strip of rows slides through a thread's registers.

Each image row is read once by a thread and used for every output row that it reaches: ``sums`` holds the partial
results of the rows that are not complete yet. The next rows are read ahead of the arithmetic. Terms are added in the
order of the taps, whatever the configuration. ``x`` is the image, ``y`` the output of the forward convolution in both
kernels. Zeros outside are terms forward, and none in the gradient (``device/absent.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.depthwise.config import DepthwiseConfig
from numbadnn.kernels.conv.depthwise.device.absent import mend_strip, mend_sums
from numbadnn.kernels.conv.depthwise.device.tiles import clear_outside, fetch, put
from numbadnn.kernels.conv.device.absent import any_nan
from numbadnn.kernels.lang.access import load
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32
from numbadnn.problem import ITEMSIZE

#: threads of every block
THREADS = 128


def _place(channels_last: bool) -> Callable[..., Any]:
    """``place(i, groups, strips, channels) -> (image, channel group, strip, column group)``, neighbours along memory."""

    @device
    def place(i, groups, strips, channels):
        inner = channels if channels_last else groups
        middle = groups if channels_last else strips
        outer = strips if channels_last else channels
        a = i32(u32(i) // u32(inner))
        first = i32(i - a * inner)
        b = i32(u32(a) // u32(middle))
        second = i32(a - b * middle)
        image = i32(u32(b) // u32(outer))
        third = i32(b - image * outer)
        channel = first if channels_last else third
        strip = third if channels_last else second
        column = second if channels_last else first
        return image, channel, strip, column

    return place


def _read_taps(dtype: str, acc: str, config: DepthwiseConfig) -> Callable[..., None]:
    """``read_taps(taps, w, k, strides)``: the taps of ``channels`` filters from k on, tap by tap."""
    (R, S), channels, size, read = config.taps, config.tile.channels, ITEMSIZE[dtype], load(dtype, acc)

    @device
    def read_taps(taps, w, k, strides):
        for r in range(R):
            for s in range(S):
                for c in range(channels):
                    at = (k + c) * strides[0] + r * strides[1] + s * strides[2]
                    taps[(r * S + s) * channels + c] = read(w + at * size)

    return read_taps


def forward(dtype: str, acc: str, config: DepthwiseConfig) -> Callable[..., None]:
    """y[n,k,p,q] = sum over r,s of x[n, k // multiplier, p*stride - pad + r, ...] * w[k,0,r,s]."""
    (R, S), (down, across), tile = config.taps, config.stride, config.tile
    columns, channels, channels_last, A, size = tile.columns, tile.channels, tile.channels_last, *_types(dtype, acc)
    span = (columns - 1) * across + S  # image columns behind the tile's outputs
    lags = -(-R // down)  # output rows that an image row reaches
    fetch_row = fetch(dtype, acc, tile, -config.left, span, tile.load, early=True)
    clear = clear_outside(acc, tile, -config.left, span, tile.load)
    store_row, place, read_taps = put(dtype, acc, tile), _place(channels_last), _read_taps(dtype, acc, config)
    wide, held, every, block = span * channels, down * span * channels, R * S * channels, columns * channels
    partial = lags * block

    def kernel(
        x, w, y, count, multiplier, groups, strips, rows, K, image, output, top,
        x_planes, x_strides, w_start, w_strides, y_planes, y_strides, alpha, beta,
    ):  # fmt: skip
        i = i32(i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x)
        if i >= count:
            return
        n, group, strip, column = place(i, groups, strips, i32(u32(K) // u32(channels)))
        k = i32(group * channels)
        x_plane = x + (n * x_planes[0] + i32(u32(k) // u32(multiplier)) * x_planes[1]) * size
        y_plane = y + (n * y_planes[0] + k * y_planes[1]) * size
        taps = cuda.local.array(every, A)
        values = cuda.local.array(held, A)
        ahead = cuda.local.array(held, A)
        sums = cuda.local.array(partial, A)
        read_taps(taps, w + w_start * size, k, w_strides)
        q = i32(column * columns)
        base = i32(q * across)
        first = i32(strip * rows)
        steps = i32(min(rows, output[0] - first) + lags - 1)
        for j in range(partial):
            sums[j] = A(0)
        for e in range(down):
            h = i32(first * down - top + e)
            fetch_row(ahead, e * wide, x_plane, h, base, image[1], h >= 0 and h < image[0], x_strides)
        for t in range(steps):
            for j in range(held):
                values[j] = ahead[j]
            for e in range(down):
                h = i32((first + t) * down - top + e)
                clear(values, e * wide, base, image[1], h >= 0 and h < image[0])
            for e in range(down):
                h = i32((first + t + 1) * down - top + e)
                fetch_row(ahead, e * wide, x_plane, h, base, image[1], h >= 0 and h < image[0], x_strides)
            for j in range((lags - 1) * block):
                old = partial - 1 - j
                sums[old] = sums[old - block]
            for j in range(block):
                sums[j] = A(0)
            for lag in range(lags):
                for e in range(down):
                    if e + down * lag < R:
                        for s in range(S):
                            for v in range(columns):
                                for c in range(channels):
                                    o = (lag * columns + v) * channels + c
                                    value = values[(e * span + v * across + s) * channels + c]
                                    tap = taps[((e + down * lag) * S + s) * channels + c]
                                    sums[o] = A(sums[o] + value * tap)
            if t >= lags - 1:
                p = i32(first + t - (lags - 1))
                store_row(sums, (lags - 1) * block, y_plane, p, q, output[1], y_strides, alpha, beta)

    return kernel


def inputs(dtype: str, acc: str, config: DepthwiseConfig, adds: bool) -> Callable[..., None]:
    """x[n,c,h,w] = sum over m,r,s of y[n, c*multiplier + m, (h + pad - r)/stride, ...] * w[c*multiplier + m, 0, r, s].

    A row of y reaches the R rows of x from p*stride - pad on; the first ``stride`` of them are then complete.
    ``adds``: whether beta is not 0.
    """
    (R, S), (down, across), left, tile, many = config.taps, config.stride, config.left, config.tile, config.many
    columns, channels, channels_last, A, size = tile.columns, tile.channels, tile.channels_last, *_types(dtype, acc)
    begin = -((S - 1 - left) // across)  # the first column of y that reaches column 0 of x, and
    span = (columns - 1 + left) // across - begin + 1  # how many reach the tile
    reach = max(R, down)
    fetch_row = fetch(dtype, acc, tile, begin, span, tile.load, early=True)
    clear = clear_outside(acc, tile, begin, span, tile.load)
    store_row, place, read_taps = put(dtype, acc, tile), _place(channels_last), _read_taps(dtype, acc, config)
    held, every, block = span * channels, R * S * channels, columns * channels
    wrong, mend, mend_all = any_nan(block), mend_sums(dtype, acc, config), mend_strip(dtype, acc, config)
    partial = reach * block

    def kernel(
        y, w, x, count, multiplier, groups, strips, rows, C, image, output, top,
        x_planes, x_strides, w_start, w_strides, y_planes, y_strides, alpha, beta,
    ):  # fmt: skip
        i = i32(i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x)
        if i >= count:
            return
        n, group, strip, column = place(i, groups, strips, i32(u32(C) // u32(channels)))
        c0 = i32(group * channels)
        x_plane = x + (n * x_planes[0] + c0 * x_planes[1]) * size
        y_plane = y + (n * y_planes[0] + c0 * multiplier * y_planes[1]) * size
        taps = cuda.local.array(every, A)
        values = cuda.local.array(held, A)
        ahead = cuda.local.array(held, A)
        sums = cuda.local.array(partial, A)
        if not many:
            read_taps(taps, w + w_start * size, c0, w_strides)
        filters = w + (w_start + i64(c0) * multiplier * w_strides[0]) * size
        anew = (y_plane, filters, output, multiplier, y_planes[1], y_strides, w_strides)
        nan = False
        w0 = i32(column * columns)
        base = i32(u32(w0) // u32(across))
        before = i32((R - 1) // down)
        # the rows of y after which this strip's rows of x are complete, and those before them that reach the strip
        first = i32(top // down + strip * rows)
        last = i32(min(first + rows - 1, (image[0] - 1 + top) // down))
        for j in range(partial):
            sums[j] = A(0)
        if not many:
            p = i32(first - before)
            fetch_row(ahead, 0, y_plane, p, base, output[1], p >= 0 and p < output[0], y_strides)
        for step in range(last - first + 1 + before):
            p = i32(first - before + step)
            for m in range(multiplier if many else 1):
                if many:
                    k = i32(c0 * multiplier + m)
                    read_taps(taps, w + w_start * size, k, w_strides)
                    plane = y_plane + m * y_planes[1] * size
                    fetch_row(values, 0, plane, p, base, output[1], p >= 0 and p < output[0], y_strides)
                else:
                    for j in range(held):
                        values[j] = ahead[j]
                    fetch_row(ahead, 0, y_plane, i32(p + 1), base, output[1], p >= -1 and p + 1 < output[0], y_strides)
                clear(values, 0, base, output[1], p >= 0 and p < output[0])
                for r in range(R):
                    for s in range(S):
                        for v in range(columns):
                            if (v + left + 8 * across - s) % across == 0:
                                q = (v + left + 8 * across - s) // across - 8 - begin
                                for c in range(channels):
                                    o = (r * columns + v) * channels + c
                                    value = values[q * channels + c]
                                    sums[o] = A(sums[o] + value * taps[(r * S + s) * channels + c])
            if step >= before:
                for e in range(down):
                    h = i32(p * down - top + e)
                    if h >= 0 and h < image[0]:
                        if adds:
                            mend(sums, e * block, anew, h, w0, top, image[1])
                        else:
                            nan = nan or wrong(sums, e * block)
                        store_row(sums, e * block, x_plane, h, w0, image[1], x_strides, alpha, beta)
            for j in range((reach - down) * block):
                sums[j] = sums[j + down * block]
            for j in range((reach - down) * block, partial):
                sums[j] = A(0)
        if nan:
            lowest, end = max(i32(first * down - top), i32(0)), min(i32((last + 1) * down - top), image[0])
            mend_all(x_plane, x_planes[1], x_strides, anew, lowest, end, w0, top, image[1], alpha)

    return kernel


def _types(dtype: str, acc: str) -> tuple[Any, int]:
    return ACCUMULATOR[acc], ITEMSIZE[dtype]
