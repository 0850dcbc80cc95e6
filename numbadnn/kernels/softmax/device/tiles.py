"""Softmax across channels that lie far apart in memory (NCHW), many of them: a wide tile of all channels in each block.

A block is ``lanes`` x ``parts`` threads. Lane l owns ``vec`` neighbouring positions; the parts share the channels (part,
part + parts, ...). A thread holds its first ``kept`` channels in registers and the others in shared memory, copied there in
the background: together they have room for tiles that are wide, which the memory wants (64 bytes of each of 1000 channels
come at three quarters of the speed of 128 or more). Each thread only uses what it copied itself, takes powers relative to the
maximum of its warp, and meets the others once, in a table of the warps' maxima and sums. Reads once, writes once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang import reduce as _reduce
from numbadnn.kernels.lang.access import load_shared, load_vector, store_vector
from numbadnn.kernels.lang.async_copies import copy_async, wait_async
from numbadnn.kernels.lang.cuda import ACCUMULATOR, WORD, cuda, device, i32, i64
from numbadnn.kernels.lang.ptx import LOWEST, exponential, log, maximum
from numbadnn.kernels.softmax.device.channels import locator
from numbadnn.kernels.softmax.tiles import TilesConfig
from numbadnn.problem import ITEMSIZE

INFINITY = float("inf")


def _loads(dtype: str, acc: str, config: TilesConfig) -> Any:
    """(begin, fetch): the start of a thread's channels' way to shared memory, and those that it keeps, into registers."""
    A, size, vec, lanes, parts, kept = (
        ACCUMULATOR[acc],
        ITEMSIZE[dtype],
        config.vec,
        config.lanes,
        config.parts,
        config.kept,
    )
    copy, read = copy_async(vec * size), load_vector(dtype, vec, acc)
    every = lanes * parts * vec * size // 4

    @device
    def begin(words, slot, at, stride, part, channels):
        """The channels from the ``kept``-th on, ``stride`` bytes apart, to this thread's slots."""
        c = i32(part + kept * parts)
        at = at + c * stride
        while c < channels:
            copy(words, slot, at)
            at = at + parts * stride
            slot = i32(slot + every)
            c = i32(c + parts)

    @device
    def fetch(values, at, stride, part, channels, outside):
        """The first ``kept`` channels; the last channel is read, and ``outside`` taken, for one that does not exist."""
        for i in range(kept):
            c = i32(part + i * parts)
            read(values, i32(i * vec), at + (c if c < channels else i32(channels - 1)) * stride)
        for i in range(kept):
            if part + i * parts >= channels:
                for e in range(vec):
                    values[i * vec + e] = A(outside)

    return begin, fetch


def softmax(dtype: str, acc: str, algo: str, config: TilesConfig) -> Callable[..., None]:
    """y = exp(x - max) / sum exp(x - max), or its logarithm, over channels; ``inner`` counts vectors of positions."""
    vec, lanes, parts, kept = config.vec, config.lanes, config.parts, config.kept
    A, size, logarithm, lowest = ACCUMULATOR[acc], ITEMSIZE[dtype], algo == "log", LOWEST[acc]
    threads, words_each, held = lanes * parts, vec * size // 4, max(kept, 1) * vec
    _, results, table_size = _reduce.meeting(threads, lanes * vec)
    begin, fetch = _loads(dtype, acc, config)
    read, put, locate = load_shared(dtype, vec, acc), store_vector(dtype, vec, acc), locator(lanes)
    exp, larger, plus = exponential(dtype), maximum(acc), _reduce.add(acc)
    maximum_of_warp, sum_of_warp = (_reduce.over_warp(acc, f, lanes) for f in (larger, plus))

    @device
    def last(total):
        return A(log(total)) if logarithm else A(A(1) / total)

    meet = _reduce.over_warps(acc, threads, lanes, vec, (larger, exp, last))

    @device
    def find_largest(held_values, values, largest, words, mine, part, channels):
        for e in range(vec):
            largest[e] = A(lowest)
            for i in range(kept):
                largest[e] = larger(largest[e], held_values[i * vec + e])
        slot, c = mine, i32(part + kept * parts)
        while c < channels:
            read(values, i32(0), words, slot)
            for e in range(vec):
                largest[e] = larger(largest[e], values[e])
            slot, c = i32(slot + threads * words_each), i32(c + parts)
        for e in range(vec):
            largest[e] = maximum_of_warp(largest[e])

    @device
    def add_powers(held_values, values, largest, total, words, mine, part, channels):
        """The sum of the powers; what is held becomes them, but for the logarithm."""
        for e in range(vec):
            total[e] = A(0)
            for i in range(kept):
                power = exp(A(held_values[i * vec + e] - largest[e]))
                total[e] = A(total[e] + power)
                if not logarithm:
                    held_values[i * vec + e] = power
        slot, c = mine, i32(part + kept * parts)
        while c < channels:
            read(values, i32(0), words, slot)
            for e in range(vec):
                total[e] = A(total[e] + exp(A(values[e] - largest[e])))
            slot, c = i32(slot + threads * words_each), i32(c + parts)
        for e in range(vec):
            total[e] = sum_of_warp(total[e])

    def kernel(x, y, positions, channels, inner, x_strides, y_strides):
        words = cuda.shared.array(0, WORD)
        maxima = cuda.shared.array(table_size, A)
        sums = cuda.shared.array(table_size, A)
        held_values, values = cuda.local.array(held, A), cuda.local.array(vec, A)
        largest, total = cuda.local.array(vec, A), cuda.local.array(vec, A)
        live, outer, within, lane, part = locate(positions, inner)
        x_at = x + (outer * x_strides[0] + within * i64(vec)) * size
        y_at = y + (outer * y_strides[0] + within * i64(vec)) * size
        mine = i32(i32(cuda.threadIdx.x) * words_each)
        begin(words, mine, x_at, x_strides[1] * size, part, channels)
        fetch(held_values, x_at, x_strides[1] * size, part, channels, -INFINITY)
        wait_async()
        find_largest(held_values, values, largest, words, mine, part, channels)
        add_powers(held_values, values, largest, total, words, mine, part, channels)
        meet(largest, total, maxima, sums)
        for e in range(vec):
            at = i32(results + lane * vec + e)
            if logarithm:
                largest[e] = maxima[at]
                total[e] = sums[at]
            else:
                total[e] = A(exp(A(largest[e] - maxima[at])) * sums[at])
        for i in range(kept):
            c = i32(part + i * parts)
            for e in range(vec):
                at = i * vec + e
                if logarithm:
                    held_values[at] = A(A(held_values[at] - largest[e]) - total[e])
                else:
                    held_values[at] = A(held_values[at] * total[e])
            if live and c < channels:
                put(held_values, i32(i * vec), y_at + c * y_strides[1] * size)
        slot, c = mine, i32(part + kept * parts)
        while c < channels:
            read(values, i32(0), words, slot)
            for e in range(vec):
                shifted = A(values[e] - largest[e])
                values[e] = A(shifted - total[e]) if logarithm else A(exp(shifted) * total[e])
            if live:
                put(values, i32(0), y_at + c * y_strides[1] * size)
            slot, c = i32(slot + threads * words_each), i32(c + parts)

    return kernel


def softmax_grad(dtype: str, acc: str, algo: str, config: TilesConfig) -> Callable[..., None]:
    """dx = y * (dy - sum dy * y), or dy - exp(y) * sum dy for the logarithm, over channels."""
    vec, lanes, parts, kept = config.vec, config.lanes, config.parts, config.kept
    A, size, logarithm = ACCUMULATOR[acc], ITEMSIZE[dtype], algo == "log"
    threads, words_each, held = lanes * parts, vec * size // 4, max(kept, 1) * vec
    _, results, table_size = _reduce.meeting(threads, lanes * vec)
    begin, fetch = _loads(dtype, acc, config)
    read, put, locate = load_shared(dtype, vec, acc), store_vector(dtype, vec, acc), locator(lanes)
    exp, sum_of_warp = exponential(dtype), _reduce.over_warp(acc, _reduce.add(acc), lanes)
    meet = _reduce.over_warps(acc, threads, lanes, vec)

    @device
    def finish(slope, value, total):
        return A(slope - exp(value) * total) if logarithm else A(value * A(slope - total))

    def kernel(dy, y, dx, positions, channels, inner, dy_strides, y_strides, dx_strides):
        words = cuda.shared.array(0, WORD)
        sums = cuda.shared.array(table_size, A)
        held_slopes, held_values = cuda.local.array(held, A), cuda.local.array(held, A)
        slopes, values, total = cuda.local.array(vec, A), cuda.local.array(vec, A), cuda.local.array(vec, A)
        live, outer, within, lane, part = locate(positions, inner)
        dy_at = dy + (outer * dy_strides[0] + within * i64(vec)) * size
        y_at = y + (outer * y_strides[0] + within * i64(vec)) * size
        dx_at = dx + (outer * dx_strides[0] + within * i64(vec)) * size
        mine = i32(i32(cuda.threadIdx.x) * words_each)
        pieces = i32((channels + parts - 1) // parts)
        second = i32((pieces - kept if pieces > kept else 0) * (threads * words_each))
        begin(words, mine, dy_at, dy_strides[1] * size, part, channels)
        begin(words, i32(mine + second), y_at, y_strides[1] * size, part, channels)
        fetch(held_slopes, dy_at, dy_strides[1] * size, part, channels, 0.0)
        fetch(held_values, y_at, y_strides[1] * size, part, channels, 0.0)
        for e in range(vec):
            total[e] = A(0)
            for i in range(kept):
                at = i * vec + e
                total[e] = (
                    A(total[e] + held_slopes[at]) if logarithm else A(total[e] + held_slopes[at] * held_values[at])
                )
        wait_async()
        slot, c = mine, i32(part + kept * parts)
        while c < channels:
            read(slopes, i32(0), words, slot)
            if not logarithm:
                read(values, i32(0), words, i32(second + slot))
            for e in range(vec):
                total[e] = A(total[e] + slopes[e]) if logarithm else A(total[e] + slopes[e] * values[e])
            slot, c = i32(slot + threads * words_each), i32(c + parts)
        for e in range(vec):
            total[e] = sum_of_warp(total[e])
        meet(total, total, sums, sums)
        for e in range(vec):
            total[e] = sums[i32(results + lane * vec + e)]
        for i in range(kept):
            c = i32(part + i * parts)
            for e in range(vec):
                at = i * vec + e
                held_slopes[at] = finish(held_slopes[at], held_values[at], total[e])
            if live and c < channels:
                put(held_slopes, i32(i * vec), dx_at + c * dx_strides[1] * size)
        slot, c = mine, i32(part + kept * parts)
        while c < channels:
            read(slopes, i32(0), words, slot)
            read(values, i32(0), words, i32(second + slot))
            for e in range(vec):
                slopes[e] = finish(slopes[e], values[e], total[e])
            if live:
                put(slopes, i32(0), dx_at + c * dx_strides[1] * size)
            slot, c = i32(slot + threads * words_each), i32(c + parts)

    return kernel
