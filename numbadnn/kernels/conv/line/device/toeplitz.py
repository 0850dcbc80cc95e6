"""1-D convolution of 16-bit types with one channel a group, as a product with a Toeplitz matrix on tensor cores.

A warp has 16 stretches of 32 times; rows are stretches, columns times within one. A stretch sees itself and the one before, as
the first tap lies at most 32 steps back:

    y[stretch][o]  =  sum over i of  x[stretch - 1][i] * A[i][o]  +  x[stretch][i] * B[i][o]
    A[i][o] = the tap at i - 32 - o, or 0          B[i][o] = the tap at i - o, or 0

The order of a product's terms, and of its columns, is free: lane 4*g + t has the times 8t ... 8t+7 of stretches g and g + 8,
which it reads, and writes, as pieces of 16 bytes. On a diagonal of a Toeplitz matrix all is one: 14 words of two taps are all
that a lane holds of A and B. Zero times infinity, or NaN, is no number: a piece with sums that are not finite is summed again,
tap by tap, so that what is not finite reaches only those that a tap brings it to.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.line.f16 import LANES
from numbadnn.kernels.conv.line.toeplitz import DIAGONALS, STRETCH, TIMES, WARPS
from numbadnn.kernels.lang.access import load, store_vector
from numbadnn.kernels.lang.bits import load_bits
from numbadnn.kernels.lang.cuda import WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.mma import product
from numbadnn.kernels.lang.packed import load_words
from numbadnn.kernels.lang.words import in_turn

SIZE = 2
#: words of a lane: of each of A and B
KEPT = 7


def forward(dtype: str) -> Callable[..., None]:
    """y[n,k,t] = sum over s of x[n, k // multiplier, t - past + s*dilation] * w[k,0,s]; past <= 32."""
    half, read_words, multiply_add = load_bits(SIZE), load_words(4), product(dtype, 16)
    read, write = load(dtype, "float32"), store_vector(dtype, 8, "float32")
    lanes, times, span, warps, kept = LANES, TIMES, STRETCH, WARPS, KEPT

    @device
    def tap_of(w, d, past, dilation, stride):
        s = i32(u32(max(d, i32(0))) // u32(dilation))
        there = d >= 0 and d <= past and s * dilation == d
        bits = half(w + (i64(s) if there else i64(0)) * stride * SIZE)
        return bits if there else u32(0)

    @device
    def prefetch(words, at, line, time, Q):
        there = time >= 0 and time < Q
        read_words(words, i32(at), line + i64(time if there else i32(0)) * SIZE)
        for e in range(4):
            words[at + e] = words[at + e] if there else u32(0)

    @device
    def prefetch_all(held, line, first, Q):
        for r in range(2):
            for h in range(2):
                prefetch(held, r * 8 + h * 4, line, i32(first + r * (times // 2) + (h - 1) * span), Q)

    @device
    def one_by_one(result, line, w, time, S, past, dilation, stride):
        for e in range(8):
            result[e] = f32(0)
        for s in range(S):
            factor = read(w + s * stride * SIZE)
            for e in range(8):
                at = i32(time + e - past + s * dilation)
                value = read(line + i64(max(at, i32(0))) * SIZE)
                result[e] = f32(result[e] + (value if at >= 0 else f32(0)) * factor)

    def turn(h: int, e: int) -> Callable[..., None]:
        first, diagonal = h * 4 + 2 * e, h * kept + 2 * e + 3

        @device
        def multiply_turn(total, held, taps, a):
            a[0], a[1], a[2], a[3] = held[first], held[8 + first], held[first + 1], held[9 + first]
            for j in range(4):
                multiply_add(total, i32(4 * j), a, i32(0), taps, i32(diagonal - j))

        return multiply_turn

    multiply = in_turn([turn(h, e) for h in range(2) for e in range(2)])

    def storing(r: int) -> Callable[..., None]:
        @device
        def store(total, line, target, w, time, S, Q, past, dilation, stride):
            result, finite = cuda.local.array(8, f32), f32(0)
            for j in range(4):
                for i in range(2):
                    result[2 * j + i] = total[4 * j + 2 * r + i]
                    finite = f32(finite + result[2 * j + i] * f32(0))
            if time < Q:
                if finite != f32(0):
                    one_by_one(result, line, w, time, S, past, dilation, stride)
                write(result, i32(0), target + i64(time) * SIZE)

        return store

    store_first, store_second = storing(0), storing(1)

    def kernel(
        x, w, y, parts, tiles, multiplier, K, S, Q, past, dilation, x_strides, w_start, w_strides, y_strides,
    ):  # fmt: skip
        table = cuda.shared.array(DIAGONALS, WORD)
        held, taps, a = cuda.local.array(16, WORD), cuda.local.array(14, WORD), cuda.local.array(4, WORD)
        total = cuda.local.array(16, f32)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread % lanes), i32(thread // lanes)
        g, t = i32(lane >> 2), i32(lane & 3)
        row = i32(u32(cuda.blockIdx.x) // u32(parts))
        part = i32(i32(cuda.blockIdx.x) - row * parts)
        n = i32(u32(row) // u32(K))
        k = i32(row - n * K)
        own_taps = w + (w_start + i64(k) * w_strides[0]) * SIZE
        line = x + (i64(n) * x_strides[0] + i64(u32(k) // u32(multiplier)) * x_strides[1]) * SIZE
        target = y + (i64(n) * y_strides[0] + i64(k) * y_strides[1]) * SIZE
        step = i32(parts * warps)
        prefetch_all(held, line, i32((part * warps + warp) * times + g * span + 8 * t), Q)
        if thread < DIAGONALS:
            d = i32(thread - (2 * span - 1) + past)
            low = tap_of(own_taps, d, past, dilation, w_strides[1])
            high = tap_of(own_taps, i32(d + 1), past, dilation, w_strides[1])
            table[thread] = u32(low | (high << u32(16)))
        cuda.syncthreads()
        diagonal = i32(8 * t - 8 * (g >> 1) - (g & 1) + span - 1)
        for h in range(2):
            for q in range(kept):
                taps[h * kept + q] = table[i32(diagonal + span * h + 2 * (q - 3))]
        for start in range(i32(part * warps), tiles, step):
            for i in range(16):
                total[i] = f32(0)
            multiply(total, held, taps, a)
            first = i32((start + warp) * times + g * span + 8 * t)
            store_first(total, line, target, own_taps, first, S, Q, past, dilation, w_strides[1])
            store_second(total, line, target, own_taps, i32(first + times // 2), S, Q, past, dilation, w_strides[1])
            prefetch_all(held, line, i32(first + step * times), Q)

    return kernel
