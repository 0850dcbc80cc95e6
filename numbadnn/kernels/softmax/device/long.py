"""Softmax of long rows along memory: a block a row, what fits of it kept in shared memory, the rest read twice.

The row's 16-byte pieces go round the threads of the block. The last ones are copied to shared memory in the background, the
first ``streamed`` are read meanwhile; each thread carries a running maximum and the sum of exponentials relative to it
(rescaled where the maximum grows), ``ahead`` pieces a step. Then the pieces are taken up again, the streamed ones backwards,
because the L2 cache still has the last of them. The elements before the first and after the last whole piece, fewer than
32, are one each of the first threads. The bits do not depend on ``streamed``: it is a multiple of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang import reduce as _reduce
from numbadnn.kernels.lang.access import load, load_shared, load_vector, store, store_vector
from numbadnn.kernels.lang.async_copies import copy_async, wait_async
from numbadnn.kernels.lang.cuda import ACCUMULATOR, WORD, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.ptx import LOWEST, exponential, log, maximum
from numbadnn.kernels.softmax.long import LongConfig
from numbadnn.problem import ITEMSIZE

INFINITY = float("inf")


def _pieces(dtype: str, acc: str, config: LongConfig) -> Any:
    """(begin, stream, held, put): pieces ``first + i * threads`` below ``limit``, i < ahead; ``outside`` where there is none."""
    A, size, vec, ahead, threads = ACCUMULATOR[acc], ITEMSIZE[dtype], config.vec, config.ahead, config.threads
    wide, words_each = vec * size, max(vec * size // 4, 1)
    read_global, write_global = load_vector(dtype, vec, acc), store_vector(dtype, vec, acc)
    can_hold = wide >= 4
    copy, read_shared = copy_async(max(wide, 4)), load_shared(dtype, max(vec, 4 // size), acc)

    @device
    def begin(words, start, row, first, limit):
        if can_hold:
            k = i32(first + i32(cuda.threadIdx.x))
            while k < limit:
                copy(words, i32((start + k - first) * words_each), row + i64(k) * wide)
                k = i32(k + threads)

    @device
    def blank(values, first, limit, outside):
        for i in range(ahead):
            if first + i * threads >= limit:
                for e in range(vec):
                    values[i * vec + e] = A(outside)

    @device
    def stream(values, row, first, limit, outside):
        for i in range(ahead):
            k = i32(first + i * threads)
            read_global(values, i32(i * vec), row + i64(k if k < limit else i32(limit - 1)) * wide)
        blank(values, first, limit, outside)

    @device
    def held(values, words, start, first, limit, outside):
        if can_hold:
            for i in range(ahead):
                k = i32(first + i * threads)
                # past the end its own first piece, blanked below: another thread's may not have arrived
                read_shared(values, i32(i * vec), words, i32((start + (k if k < limit else first)) * words_each))
            blank(values, first, limit, outside)

    @device
    def put(values, row, first, limit):
        for i in range(ahead):
            k = i32(first + i * threads)
            if k < limit:
                write_global(values, i32(i * vec), row + i64(k) * wide)

    return begin, stream, held, put


def _ends(size: int, vec: int) -> Any:
    """``(row, length) -> (elements before the first piece, pieces, this thread's odd element or -1)``."""

    @device
    def ends(row, length):
        head = i32(i32((16 - (row & 15)) & 15) // size) if vec > 1 else i32(0)
        pieces = i32(u32(length - head) // u32(vec))
        thread = i32(cuda.threadIdx.x)
        odd = thread if thread < head else i32(pieces * vec + thread)
        return head, pieces, odd if odd < length else i32(-1)

    return ends


def softmax(dtype: str, acc: str, algo: str, config: LongConfig) -> Callable[..., None]:
    """y = exp(x - max) / sum exp(x - max), or its logarithm, along rows of unit stride."""
    A, size, vec, threads = ACCUMULATOR[acc], ITEMSIZE[dtype], config.vec, config.threads
    count, step, logarithm, lowest = config.ahead * vec, config.ahead * threads, algo == "log", LOWEST[acc]
    begin, stream, held, put = _pieces(dtype, acc, config)
    ends, read, write = _ends(size, vec), load(dtype, acc), store(dtype, acc)
    exp, larger = exponential(dtype), maximum(acc)
    maximum_of_row = _reduce.over_lanes(acc, larger, threads, -INFINITY)
    sum_of_row = _reduce.over_lanes(acc, _reduce.add(acc), threads, 0.0)

    @device
    def absorb(values, largest, total):
        before = largest
        for i in range(count):
            largest = larger(largest, values[i])
        total = A(total * exp(A(before - largest)))
        for i in range(count):
            total = A(total + exp(A(values[i] - largest)))
        return largest, total

    @device
    def finish(value, largest, scale):
        shifted = A(value - largest)
        return A(shifted - scale) if logarithm else A(exp(shifted) * scale)

    def kernel(x, y, streamed, length, inner, x_strides, y_strides):
        words = cuda.shared.array(0, WORD)
        values = cuda.local.array(count, A)
        maxima = cuda.shared.array(32, A)
        sums = cuda.shared.array(32, A)
        thread = i32(cuda.threadIdx.x)
        outer = i32(u32(cuda.blockIdx.x) // u32(inner))
        within = i32(i32(cuda.blockIdx.x) - outer * inner)
        x_row = x + (outer * x_strides[0] + within * x_strides[1]) * size
        y_row = y + (outer * y_strides[0] + within * y_strides[1]) * size
        head, pieces, odd = ends(x_row, length)
        x_body, y_body = x_row + i64(head) * size, y_row + i64(head) * size
        middle = streamed if streamed < pieces else pieces
        begin(words, i32(0), x_body, middle, pieces)
        alone = A(-INFINITY)
        if odd >= 0:
            alone = read(x_row + i64(odd) * size)
        largest = larger(A(lowest), alone)
        total = exp(A(alone - largest))
        first = thread
        while first < middle:
            stream(values, x_body, first, middle, -INFINITY)
            largest, total = absorb(values, largest, total)
            first = i32(first + step)
        wait_async()
        first = i32(middle + thread)
        while first < pieces:
            held(values, words, i32(-middle), first, pieces, -INFINITY)
            largest, total = absorb(values, largest, total)
            first = i32(first + step)
        own = largest
        largest = maximum_of_row(own, maxima)
        total = sum_of_row(A(total * exp(A(own - largest))), sums)
        scale = A(log(total)) if logarithm else A(A(1) / total)
        if odd >= 0:
            write(y_row + i64(odd) * size, finish(alone, largest, scale))
        first = i32(middle + thread)
        while first < pieces:
            held(values, words, i32(-middle), first, pieces, 0.0)
            for i in range(count):
                values[i] = finish(values[i], largest, scale)
            put(values, y_body, first, pieces)
            first = i32(first + step)
        first = i32(thread + i32(u32(middle) // u32(step)) * step)
        while first >= 0:
            if first < middle:
                stream(values, x_body, first, middle, 0.0)
                for i in range(count):
                    values[i] = finish(values[i], largest, scale)
                put(values, y_body, first, middle)
            first = i32(first - step)

    return kernel


def softmax_grad(dtype: str, acc: str, algo: str, config: LongConfig) -> Callable[..., None]:
    """dx = y * (dy - sum dy * y), or dy - exp(y) * sum dy for the logarithm, along rows of unit stride."""
    A, size, vec, threads = ACCUMULATOR[acc], ITEMSIZE[dtype], config.vec, config.threads
    count, step, logarithm = config.ahead * vec, config.ahead * threads, algo == "log"
    begin, stream, held, put = _pieces(dtype, acc, config)
    ends, read, write, exp = _ends(size, vec), load(dtype, acc), store(dtype, acc), exponential(dtype)
    sum_of_row = _reduce.over_lanes(acc, _reduce.add(acc), threads, 0.0)

    @device
    def absorb(slopes, values, total):
        for i in range(count):
            total = A(total + slopes[i]) if logarithm else A(total + slopes[i] * values[i])
        return total

    @device
    def finish(slope, value, total):
        return A(slope - exp(value) * total) if logarithm else A(value * A(slope - total))

    def kernel(dy, y, dx, streamed, length, inner, dy_strides, y_strides, dx_strides):
        words = cuda.shared.array(0, WORD)
        slopes = cuda.local.array(count, A)
        values = cuda.local.array(count, A)
        sums = cuda.shared.array(32, A)
        thread = i32(cuda.threadIdx.x)
        outer = i32(u32(cuda.blockIdx.x) // u32(inner))
        within = i32(i32(cuda.blockIdx.x) - outer * inner)
        dy_row = dy + (outer * dy_strides[0] + within * dy_strides[1]) * size
        y_row = y + (outer * y_strides[0] + within * y_strides[1]) * size
        dx_row = dx + (outer * dx_strides[0] + within * dx_strides[1]) * size
        head, pieces, odd = ends(y_row, length)
        skip = i64(head) * size
        middle = streamed if streamed < pieces else pieces
        rest = i32(pieces - middle)
        begin(words, i32(0), dy_row + skip, middle, pieces)
        begin(words, rest, y_row + skip, middle, pieces)
        slope, value = A(0), A(0)
        if odd >= 0:
            slope, value = read(dy_row + i64(odd) * size), read(y_row + i64(odd) * size)
        total = slope if logarithm else A(slope * value)
        first = thread
        while first < middle:
            stream(slopes, dy_row + skip, first, middle, 0.0)
            stream(values, y_row + skip, first, middle, 0.0)
            total = absorb(slopes, values, total)
            first = i32(first + step)
        wait_async()
        first = i32(middle + thread)
        while first < pieces:
            held(slopes, words, i32(-middle), first, pieces, 0.0)
            held(values, words, i32(rest - middle), first, pieces, 0.0)
            total = absorb(slopes, values, total)
            first = i32(first + step)
        total = sum_of_row(total, sums)
        if odd >= 0:
            write(dx_row + i64(odd) * size, finish(slope, value, total))
        first = i32(middle + thread)
        while first < pieces:
            held(slopes, words, i32(-middle), first, pieces, 0.0)
            held(values, words, i32(rest - middle), first, pieces, 0.0)
            for i in range(count):
                slopes[i] = finish(slopes[i], values[i], total)
            put(slopes, dx_row + skip, first, pieces)
            first = i32(first + step)
        first = i32(thread + i32(u32(middle) // u32(step)) * step)
        while first >= 0:
            if first < middle:
                stream(slopes, dy_row + skip, first, middle, 0.0)
                stream(values, y_row + skip, first, middle, 0.0)
                for i in range(count):
                    slopes[i] = finish(slopes[i], values[i], total)
                put(slopes, dx_row + skip, first, middle)
            first = i32(first - step)

    return kernel
