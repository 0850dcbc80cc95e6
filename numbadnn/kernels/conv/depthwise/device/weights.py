"""The gradient of a depthwise convolution with respect to its filters: two sums in a fixed order, no atomics.

A filter's taps are few and the sum behind each runs over every output position of every image. A block has a few
channels and a stretch of the positions; its threads slide down strips of rows as the forward kernel does, with the taps
as their sums. Their totals, added in a tree, go to a table; the second kernel adds the table's rows.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.depthwise.config import FINISHERS, DepthwiseConfig
from numbadnn.kernels.conv.depthwise.device.absent import add_tap
from numbadnn.kernels.conv.depthwise.device.kernels import THREADS, _types
from numbadnn.kernels.conv.depthwise.device.tiles import fetch
from numbadnn.kernels.lang import reduce as _reduce
from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.cuda import cuda, device, i32, i64, u32
from numbadnn.kernels.lang.epilogue import scaled

#: splits that a thread of the second kernel fetches at once
AHEAD = 4


def _store_row(acc: str, config: DepthwiseConfig) -> Callable[..., None]:
    """``store_row(sums, table, r, target, K, live)``: the block's totals of row r of the taps, by ``live`` threads."""
    (_, S), channels, lanes = config.taps, config.tile.channels, config.lanes
    per_row, item_size, write = S * channels, 8 if acc == "float64" else 4, store(acc, acc)
    add_up = _reduce.over_parts(_reduce.add(acc), lanes, THREADS // lanes, per_row)

    @device
    def store_row(sums, table, r, target, K, live):
        thread = i32(cuda.threadIdx.x)
        cuda.syncthreads()  # the table of the row before has been read
        for j in range(per_row):
            table[j * THREADS + thread] = sums[r * per_row + j]
        add_up(table)
        if live:
            for j in range(per_row):
                at = i64(i64(r * S + j // channels) * K + j % channels)
                write(target + at * item_size, table[j * THREADS + thread])

    return store_row


def weights(dtype: str, acc: str, config: DepthwiseConfig) -> Callable[..., None]:
    """partial[split, tap, k] = the sum over the split's positions of x[n, k // multiplier, ...] * y[n, k, p, q]."""
    (R, S), (down, across), tile, lanes = config.taps, config.stride, config.tile, config.lanes
    columns, channels, parts, A, size = tile.columns, tile.channels, THREADS // config.lanes, *_types(dtype, acc)
    span, lags, block = (columns - 1) * across + S, -(-R // down), columns * channels
    fetch_x = fetch(dtype, acc, tile, -config.left, span, tile.load)
    fetch_y = fetch(dtype, acc, tile, 0, columns, tile.store)
    wide, held, taps, per_row = span * channels, down * span * channels, R * S * channels, S * channels
    positions = lags * block
    store_row, item_size, table_size = _store_row(acc, config), 8 if acc == "float64" else 4, per_row * THREADS

    def kernel(
        x, y, partial, items, multiplier, groups, strips, rows, K, image, output, top,
        x_planes, x_strides, y_planes, y_strides,
    ):  # fmt: skip
        table = cuda.shared.array(table_size, A)
        thread = i32(cuda.threadIdx.x)
        part = i32(u32(thread) // u32(lanes))
        group = i32(cuda.blockIdx.x * lanes + (thread - part * lanes))
        live = group * channels < K
        k = i32(group * channels) if live else i32(0)
        split = i32(cuda.blockIdx.y)
        each = i32(u32(items + cuda.gridDim.y - 1) // u32(cuda.gridDim.y))
        end = i32(min((split + 1) * each, items))
        sums = cuda.local.array(taps, A)
        values = cuda.local.array(held, A)
        ahead = cuda.local.array(held, A)
        window = cuda.local.array(positions, A)
        coming = cuda.local.array(block, A)
        for j in range(taps):
            sums[j] = A(0)
        for item in range(i32(split * each + part), end, i32(parts)):
            rest = i32(u32(item) // u32(groups))
            q = i32((item - rest * groups) * columns)
            n = i32(u32(rest) // u32(strips))
            first = i32((rest - n * strips) * rows)
            x_plane = x + (n * x_planes[0] + i32(u32(k) // u32(multiplier)) * x_planes[1]) * size
            y_plane = y + (n * y_planes[0] + k * y_planes[1]) * size
            base = i32(q * across)
            last = i32(min(first + rows, output[0]))
            for j in range(positions):
                window[j] = A(0)
            for e in range(down):
                h = i32(first * down - top + e)
                fetch_x(ahead, e * wide, x_plane, h, base, image[1], h >= 0 and h < image[0], x_strides)
            fetch_y(coming, 0, y_plane, first, q, output[1], True, y_strides)
            for p in range(first, i32(last + lags - 1)):
                for j in range(held):
                    values[j] = ahead[j]
                for j in range((lags - 1) * block):
                    old = positions - 1 - j
                    window[old] = window[old - block]
                for j in range(block):
                    window[j] = coming[j]
                for e in range(down):
                    h = i32((p + 1) * down - top + e)
                    fetch_x(ahead, e * wide, x_plane, h, base, image[1], h >= 0 and h < image[0], x_strides)
                fetch_y(coming, 0, y_plane, i32(p + 1), q, output[1], p + 1 < last, y_strides)
                for lag in range(lags):
                    for e in range(down):
                        if e + down * lag < R:
                            for s in range(S):
                                for v in range(columns):
                                    for c in range(channels):
                                        o = ((e + down * lag) * S + s) * channels + c
                                        value = values[(e * span + v * across + s) * channels + c]
                                        sums[o] = A(sums[o] + value * window[(lag * columns + v) * channels + c])
        at = partial + i64(i64(split * (R * S)) * K + k) * item_size
        store_row(sums, table, 0, at, K, part == 0 and live)
        if R > 1:  # written out: a loop over rows that is not unrolled would put the sums in memory
            store_row(sums, table, 1, at, K, part == 0 and live)
        if R > 2:
            store_row(sums, table, 2, at, K, part == 0 and live)
        if R > 3:
            store_row(sums, table, 3, at, K, part == 0 and live)
        if R > 4:
            store_row(sums, table, 4, at, K, part == 0 and live)
        if R > 5:
            store_row(sums, table, 5, at, K, part == 0 and live)
        if R > 6:
            store_row(sums, table, 6, at, K, part == 0 and live)

    return kernel


def finish(dtype: str, acc: str, R: int, S: int) -> Callable[..., None]:
    """w[k,0,r,s] = alpha * the sum of partial[split, tap, k] over splits + beta * w[k,0,r,s].

    ``FINISHERS`` threads share an element: each adds every so-manieth split in order, then their sums are added in a tree. What
    is NaN they add anew from x and y: strips multiply x by zeros where they end (``absent.py``).
    """
    A, size = _types(dtype, acc)
    item_size, lanes = 8 if acc == "float64" else 4, THREADS // FINISHERS
    read_partial, store_scaled = load(acc, acc), scaled(dtype, acc)
    add_up, anew = _reduce.over_parts(_reduce.add(acc), lanes, FINISHERS), add_tap(dtype, acc, FINISHERS)

    def kernel(
        partial, w, x, y, count, splits, K, w_start, w_strides, alpha, beta,
        multiplier, sizes, corner, stride, x_plane, x_strides, y_plane, y_strides,
    ):  # fmt: skip
        table = cuda.shared.array(THREADS, A)
        some = cuda.local.array(AHEAD, A)
        thread = i32(cuda.threadIdx.x)
        part = i32(u32(thread) // u32(lanes))
        i = i32(cuda.blockIdx.x * lanes + (thread - part * lanes))
        at = partial + i64(i if i < count else i32(count - 1)) * item_size
        total = A(0)
        for first in range(part, splits, AHEAD * FINISHERS):
            for e in range(AHEAD):  # all of them under way before the first is needed
                split = i32(first + e * FINISHERS)
                some[e] = read_partial(at + i64(split if split < splits else part) * count * item_size)
            for e in range(AHEAD):
                if first + e * FINISHERS < splits:
                    total = A(total + some[e])
        table[thread] = total
        add_up(table)
        tap = i32(u32(i) // u32(K))
        k = i32(i - tap * K)
        r = i32(u32(tap) // u32(S))
        s = i32(tap - r * S)
        total = table[i32(thread - part * lanes)]
        wrong = i < count and total != total
        if cuda.syncthreads_or(i32(1) if wrong else i32(0)) != 0:
            if wrong:
                image = x + i64(i32(u32(k) // u32(multiplier))) * x_plane * size
                total = anew(part, image, y + k * y_plane * size, r, s, sizes, corner, stride, x_strides, y_strides)
            table[thread] = total if wrong or part == 0 else A(0)
            add_up(table)
        if part == 0 and i < count:
            target = w + (w_start + k * w_strides[0] + r * w_strides[1] + s * w_strides[2]) * size
            store_scaled(target, table[thread], alpha, beta)

    return kernel
