"""1-D convolution on plain threads: a thread computes a few steps, a block apart, for a few filters.

Neighbouring threads read and write neighbouring elements whatever the dilation, and each element that is read serves every
filter of the thread. The filters of a block lie in shared memory, tap by tap; a single short one each thread reads for itself.
Blocks at the line's beginning and end look at every place; those between know that all are inside, and where steps lie next to
each other in memory their addresses differ by constants. Terms are added in the order of channels, then taps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.kernels.lang.access import load, load_shared, store
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32
from numbadnn.problem import ITEMSIZE

#: threads of every block
THREADS = 128


def forward(
    dtype: str, acc: str, steps: int, filters: int, taps: int, capacity: int, packed: bool
) -> Callable[..., None]:
    """y[n,k,t] = sum over c,s of x[n, g*C+c, t*stride - past + s*dilation] * w[k,c,s]; ``taps`` 0: their number is S."""
    read, write, A, size = load(dtype, acc), store(dtype, acc), ACCUMULATOR[acc], ITEMSIZE[dtype]
    sums, span = steps * filters, THREADS * steps
    alone = filters == 1 and taps > 0
    four = min(filters, 4) if acc == "float32" else 1
    read_four: Any = load_shared("float32", four, "float32") if four > 1 else None
    frozen_hop = THREADS * size

    @device
    def look(factor, table, at):
        for f in range(0, filters, four):
            read_four(factor, i32(f), table, i32(at + f))

    @device
    def look_one_by_one(factor, table, at):
        for f in range(filters):
            factor[f] = table[i32(at + f)]

    fetch = look if read_four else look_one_by_one

    @device
    def multiply(total, values, factor):
        for f in range(filters):
            for i in range(steps):
                total[i * filters + f] = A(total[i * filters + f] + values[i] * factor[f])

    def kernel(
        x, w, y, blocks_of_filters, tiles, groups, K, C, S, Q, past, stride, dilation, x_strides, w_start, w_strides,
        y_strides,
    ):  # fmt: skip
        table = cuda.shared.array(capacity, A)
        total, values = cuda.local.array(sums, A), cuda.local.array(steps, A)
        place, factor = cuda.local.array(steps, np.int32), cuda.local.array(filters, A)
        rest = i32(cuda.blockIdx.x)
        a = i32(u32(rest) // u32(blocks_of_filters))
        k0 = i32((rest - a * blocks_of_filters) * filters)
        rest = a
        a = i32(u32(rest) // u32(tiles))
        tile = i32(rest - a * tiles)
        n = i32(u32(a) // u32(groups))
        g = i32(a - n * groups)
        thread = i32(cuda.threadIdx.x)
        number = i32(S)
        if taps > 0:
            number = i32(taps)
        if not alone:
            for i in range(thread, i32(C * number * filters), i32(THREADS)):
                m = i32(u32(i) // u32(filters))
                f = i32(i - m * filters)
                c = i32(u32(m) // u32(number))
                s = i32(m - c * number)
                k = i32(g * K + min(i32(k0 + f), i32(K - 1)))
                table[i] = read(w + (w_start + i64(k) * w_strides[0] + c * w_strides[1] + s * w_strides[2]) * size)
            cuda.syncthreads()
        filter_of = w + (w_start + i64(g * K + k0) * w_strides[0]) * size
        first = i32(tile * span + thread)
        line = x + (i64(n) * x_strides[0] + i64(g * C) * x_strides[1]) * size
        step, next_tap = x_strides[2] * size, i64(dilation) * x_strides[2] * size
        hop = i64(frozen_hop) if packed else i64(THREADS * stride) * step
        for i in range(sums):
            total[i] = A(0)
        inner = tile * span * stride >= past and tile * span + span <= Q
        if inner:
            line = line + i64(first * stride - past) * step
            for c in range(C):
                at = line
                for s in range(number):
                    for i in range(steps):
                        values[i] = read(at + i * hop)
                    if alone:
                        factor[0] = read(filter_of + (c * w_strides[1] + s * w_strides[2]) * size)
                    else:
                        fetch(factor, table, i32((c * number + s) * filters))
                    multiply(total, values, factor)
                    at = at + next_tap
                line = line + x_strides[1] * size
        else:
            for i in range(steps):
                place[i] = i32(min(i32(first + i * THREADS), i32(Q - 1)) * stride - past)
            for c in range(C):
                for s in range(number):
                    for i in range(steps):
                        back = i32(place[i] + s * dilation)
                        value = read(line + i64(max(back, i32(0))) * step)
                        values[i] = value if back >= 0 else A(0)
                    if alone:
                        factor[0] = read(filter_of + (c * w_strides[1] + s * w_strides[2]) * size)
                    else:
                        fetch(factor, table, i32((c * number + s) * filters))
                    multiply(total, values, factor)
                line = line + x_strides[1] * size
        target = y + (i64(n) * y_strides[0] + i64(g * K + k0) * y_strides[1] + i64(first) * y_strides[2]) * size
        across = i64(frozen_hop) if packed else i64(THREADS) * y_strides[2] * size
        for f in range(filters):
            if k0 + f < K:
                for i in range(steps):
                    if inner or first + i * THREADS < Q:
                        write(target + i * across, total[i * filters + f])
            target = target + y_strides[1] * size

    return kernel
