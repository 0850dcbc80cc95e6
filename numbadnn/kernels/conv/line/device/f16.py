"""1-D convolution of 16-bit types on tensor cores: one product of filters and inputs a tap.

A factor of a product holds words of two channels at one time, and in memory two times of one channel are neighbours. So a block
reads pieces of 8 times of two channels, 16 bytes each, and turns them while it puts them in shared memory:

    channel c    t0 t1 t2 t3 ...        words (c, c+1) at    t0 t4 t8 ... | t1 t5 t9 ... | t2 t6 ... | t3 t7 ...
    channel c+1  t0 t1 t2 t3 ...

Times that leave the same remainder by 4 follow each other: column n of the j-th of four products is time 4n + j, so at whatever
tap eight lanes read neighbours, and in the end a lane has 8 neighbouring times of a filter. The filters lie in shared memory as
the lanes take them, and stay there while a block goes from times to times. It has all channels at once, or ``pairs`` of two at a
time; what is next is prefetched before what is there is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.line.f16 import LANES, RUN, LineF16Config
from numbadnn.kernels.conv.unshared.forward.device.f16 import _look_at_words
from numbadnn.kernels.lang.access import store_vector
from numbadnn.kernels.lang.bits import load_bits
from numbadnn.kernels.lang.cuda import WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.mma import product
from numbadnn.kernels.lang.packed import load_words

#: bytes of an element
SIZE = 2
#: words of the filters that a thread prefetches at a time
TOGETHER = 4


def _fill(config: LineF16Config) -> Callable[..., None]:
    """``fill(table, w, chunks, K, C, S, strides)``: filters in words of two channels [chunk][tap][16 filters][lane][4]."""
    half, threads, filters, tiles = load_bits(SIZE), config.threads, config.filters, config.filters // 16

    @device
    def fill(table, got, w, chunks, K, C, S, strides):
        for start in range(i32(cuda.threadIdx.x), i32(chunks * (filters * 8)), i32(threads * TOGETHER)):
            for s in range(S):
                for j in range(TOGETHER):
                    i = i32(start + j * threads)
                    k, c = i32(u32(i >> 3) % u32(filters)), i32(u32(i >> 3) // u32(filters) * 16 + 2 * (i & 7))
                    row = w + (i64(min(k, i32(K - 1))) * strides[0] + s * strides[2]) * SIZE
                    got[2 * j] = half(row + i64(min(c, i32(C - 1))) * strides[1] * SIZE)
                    got[2 * j + 1] = half(row + i64(min(i32(c + 1), i32(C - 1))) * strides[1] * SIZE)
                for j in range(TOGETHER):
                    i = i32(start + j * threads)
                    pair, k, chunk = i32(i & 7), i32(u32(i >> 3) % u32(filters)), i32(u32(i >> 3) // u32(filters))
                    c = i32(chunk * 16 + 2 * pair)
                    low = got[2 * j] if k < K and c < C else u32(0)
                    high = got[2 * j + 1] if k < K and c + 1 < C else u32(0)
                    at = i32(i32((chunk * S + s) * tiles + (k >> 4)) * 128 + ((k & 7) * 4 + (pair & 3)) * 4)
                    if chunk < chunks:
                        table[i32(at + ((k >> 3) & 1) + 2 * (pair >> 2))] = u32(low | (high << u32(16)))

    return fill


def _pieces(config: LineF16Config) -> tuple[Callable[..., None], Callable[..., None]]:
    """``prefetch(held, at, line, time, c, C, Q, step)``: 8 times of two channels;
    ``store(shared, to, quarter, held, at, ...)``."""
    read = load_words(4)

    @device
    def prefetch(held, at, line, time, c, C, Q, step):
        there = time >= 0 and time < Q  # else the line's first piece is read, and not used
        low = line + (i64(min(c, i32(C - 1))) * step + (time if there else i32(0))) * SIZE
        high = line + (i64(min(i32(c + 1), i32(C - 1))) * step + (time if there else i32(0))) * SIZE
        read(held, i32(at), low)
        read(held, i32(at + 4), high)

    @device
    def store(shared, to, quarter, held, at, time, c, C, Q):
        there = time >= 0 and time < Q
        lower = u32(0xFFFF) if there and c < C else u32(0)
        upper = u32(0xFFFF0000) if there and c + 1 < C else u32(0)
        for i in range(4):
            even = u32((held[at + i] & lower) | ((held[at + 4 + i] << u32(16)) & upper))
            odd = u32(((held[at + i] >> u32(16)) & lower) | (held[at + 4 + i] & upper))
            first = i32(to + 2 * (i & 1) * quarter + (i >> 1))
            shared[first] = even
            shared[i32(first + quarter)] = odd

    return prefetch, store


def _multiply(dtype: str, config: LineF16Config) -> Callable[..., None]:
    """``multiply(total, a, b, shared, table, stage, first, chunks, ...)``: a lane's times begin at ``stage``."""
    multiply_add, look = product(dtype, 16), _look_at_words(4)
    tiles, runs = config.filters // 16, config.runs

    @device
    def multiply(total, a, b, shared, table, stage, first, chunks, S, dilation, row, quarter):
        for chunk in range(chunks):
            for s in range(S):
                for j in range(4):
                    u = i32(first + s * dilation + j)
                    at = i32(stage + chunk * 8 * row + (u & 3) * quarter + (u >> 2))
                    for run in range(runs):
                        b[(run * 4 + j) * 2] = shared[i32(at + run * (RUN // 4))]
                        b[(run * 4 + j) * 2 + 1] = shared[i32(at + 4 * row + run * (RUN // 4))]
                for m in range(tiles):
                    look(a, i32(0), shared, i32(table + ((chunk * S + s) * tiles + m) * 128))
                    for run in range(runs):
                        for j in range(4):
                            multiply_add(
                                total, i32(((run * tiles + m) * 4 + j) * 4), a, i32(0), b, i32((run * 4 + j) * 2)
                            )

    return multiply


def forward(dtype: str, config: LineF16Config) -> Callable[..., None]:
    """y[n,k,t] = sum over c,s of x[n, g*C+c, t - past + s*dilation] * w[k,c,s]; past = (S-1) * dilation."""
    filters, runs, pairs, threads, pieces = config.filters, config.runs, config.pairs, config.threads, config.pieces
    span, tiles, whole = config.span, config.filters // 16, config.whole
    fill, multiply, write = _fill(config), _multiply(dtype, config), store_vector(dtype, 8, "float32")
    prefetch, store = _pieces(config)
    sums, waiting, columns, gathered = runs * tiles * 16, pieces * 8, 8 * runs, 2 * TOGETHER

    @device
    def prefetch_all(held, line, t0, c0, number, across, halo, C, Q, step):
        for p in range(pieces):
            i = i32(cuda.threadIdx.x + p * threads)
            if i < number:
                pair = i32(u32(i) // u32(across))
                prefetch(held, p * 8, line, i32(t0 + (i - pair * across - halo) * 8), i32(c0 + 2 * pair), C, Q, step)

    @device
    def store_all(shared, stage, row, quarter, held, t0, c0, number, across, halo, C, Q):
        for p in range(pieces):
            i = i32(cuda.threadIdx.x + p * threads)
            if i < number:
                pair = i32(u32(i) // u32(across))
                place = i32(i - pair * across)
                to, time = i32(stage + pair * row + 2 * place), i32(t0 + (place - halo) * 8)
                store(shared, to, quarter, held, p * 8, time, i32(c0 + 2 * pair), C, Q)

    def kernel(
        x, w, y, blocks_of_filters, blocks, lanes, groups, N, K, C, S, Q, past, dilation, halo, row, quarter, x_strides,
        w_start, w_strides, y_strides,
    ):  # fmt: skip
        shared = cuda.shared.array(0, WORD)
        held, total = cuda.local.array(waiting, WORD), cuda.local.array(sums, f32)
        a, b, got = cuda.local.array(4, WORD), cuda.local.array(columns, WORD), cuda.local.array(gathered, WORD)
        result = cuda.local.array(8, f32)
        lane, warp = i32(cuda.threadIdx.x % LANES), i32(cuda.threadIdx.x // LANES)
        part = i32(u32(cuda.blockIdx.x) // u32(lanes))
        begin = i32(i32(cuda.blockIdx.x) - part * lanes)
        group = i32(u32(part) // u32(blocks_of_filters))
        k0 = i32((part - group * blocks_of_filters) * filters)
        chunks = i32((C + 15) // 16)
        at_once = chunks if whole else min(chunks, i32(pairs // 8))
        stage = i32(chunks * S * (tiles * 128))
        across = i32(quarter // 2)
        number = i32(at_once * 8 * across)
        first = x + i64(group * C) * x_strides[1] * SIZE
        n = i32(u32(begin) // u32(blocks))
        t0 = i32((begin - n * blocks) * span)
        prefetch_all(held, first + i64(n) * x_strides[0] * SIZE, t0, i32(0), number, across, halo, C, Q, x_strides[1])
        fill(
            shared, got, w + (w_start + i64(group * K + k0) * w_strides[0]) * SIZE, chunks, i32(K - k0), C, S, w_strides
        )
        for work in range(begin, i32(N * blocks), lanes):
            n = i32(u32(work) // u32(blocks))
            t0 = i32((work - n * blocks) * span)
            for i in range(sums):
                total[i] = f32(0)
            for chunk in range(0, chunks, at_once):
                store_all(shared, stage, row, quarter, held, t0, i32(chunk * 16), number, across, halo, C, Q)
                cuda.syncthreads()
                # what is next, the line's next channels or other times, is prefetched before these are multiplied
                more = chunk + at_once < chunks
                following = i32(work) if more else i32(work + lanes)
                if following < N * blocks:
                    m = i32(u32(following) // u32(blocks))
                    line = first + i64(m) * x_strides[0] * SIZE
                    c0 = i32((chunk + at_once) * 16) if more else i32(0)
                    prefetch_all(
                        held, line, i32((following - m * blocks) * span), c0, number, across, halo, C, Q, x_strides[1]
                    )
                own = i32(stage + (lane & 3) * row + (lane >> 2) + warp * (runs * RUN // 4))
                table, count = i32(lane * 4 + chunk * S * (tiles * 128)), min(at_once, i32(chunks - chunk))
                multiply(total, a, b, shared, table, own, i32(8 * halo - past), count, S, dilation, row, quarter)
                cuda.syncthreads()
            for run in range(runs):
                time = i32(t0 + (warp * runs + run) * RUN + (lane & 3) * 8)
                for m in range(tiles):
                    for half in range(2):
                        for j in range(4):
                            at = ((run * tiles + m) * 4 + j) * 4 + 2 * half
                            result[j], result[4 + j] = total[at], total[at + 1]
                        k = i32(k0 + m * 16 + half * 8 + (lane >> 2))
                        if k < K and time < Q:
                            at_y = i64(n) * y_strides[0] + i64(group * K + k) * y_strides[1] + time
                            write(result, i32(0), y + at_y * SIZE)

    return kernel
