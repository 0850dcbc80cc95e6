"""1-D convolution of 16-bit types on tensor cores: 8 channels of a step are a 16-byte row in shared memory.

A row is what ldmatrix takes; a tap is so many rows further on, whatever the dilation:

    memory     channel c     t0 t1 ... t7          shared     vector o    row t0: c0 ... c7
               channel c+1   t0 t1 ... t7     ->                         row t1: c0 ... c7     two rows are left out after 8
               ...                                                       ...

A thread reads 8 times of 8 channels and turns them in registers. The columns of four products are such times that a lane has 8
neighbouring times of a filter in the end: column n of the j-th is time 8 * (n / 2) + 2 * j + n % 2; with the two rows left out,
eight lanes meet all banks at every tap. Filters lie in shared memory in rows of 8 channels too, [tap][vector][filter].
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.line.f16 import LANES, RUN
from numbadnn.kernels.conv.line.vectors import PITCH, THREADS, VectorsConfig
from numbadnn.kernels.lang.access import store_vector
from numbadnn.kernels.lang.cuda import HALF, INT32, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.mma import load_matrices, product
from numbadnn.kernels.lang.packed import load_words
from numbadnn.kernels.lang.words import in_turn, shared_address, write_at

#: bytes of an element, and of a row
SIZE, ROW = 2, 16


@device
def _pair(held, low, high, odd):
    """A word of the lower halves of two, or of the upper."""
    if odd:
        return u32((held[low] >> u32(16)) | (held[high] & u32(0xFFFF0000)))
    return u32((held[low] & u32(0xFFFF)) | (held[high] << u32(16)))


def _times(config: VectorsConfig) -> tuple[Callable[..., None], Callable[..., None]]:
    """``prefetch(held, line, time, Q, step)``: 8 times of 8 channels; ``store(shared, to, held, time, Q)``: as rows."""
    read, write = load_words(4), write_at("int32", 4)

    @device
    def prefetch(held, line, time, Q, step):
        there = time >= 0 and time < Q  # else the line's first piece is read, and not used
        at = line + i64(time if there else i32(0)) * SIZE
        for c in range(8):
            read(held, i32(4 * c), at + c * step * SIZE)

    @device
    def store(shared, to, held, time, Q):
        row, there = cuda.local.array(4, WORD), time >= 0 and time < Q
        for j in range(8):
            for p in range(4):
                pair = _pair(held, 8 * p + j // 2, 8 * p + 4 + j // 2, j % 2)
                row[p] = pair if there else u32(0)
            write(row, i32(0), shared, i32(to + j * ROW))

    return prefetch, store


def _filters(config: VectorsConfig) -> Callable[..., None]:
    """``place(shared, base, w, K, stride, order)``: 8 channels of a filter are ``taps`` pieces of 16 bytes."""
    taps, vectors, filters, pitch = config.taps, config.octets, config.filters, config.pitch
    items, words = vectors * filters, 4 * config.taps
    turns = -(-items // THREADS)
    count = turns * words
    read, write = load_words(4), write_at("int32", 4)

    def turn(i: int, s: int) -> Callable[..., None]:
        elements = [i * 2 * words + c * taps + s for c in range(8)]
        at0, at1, at2, at3, at4, at5, at6, at7 = (h // 2 for h in elements)
        odd0, odd1, odd2, odd3, odd4, odd5, odd6, odd7 = (h % 2 for h in elements)

        @device
        def store_tap(held, shared, base, order):
            m = i32(i32(cuda.threadIdx.x) + i * THREADS)
            row = cuda.local.array(4, WORD)
            row[0] = mixed(held[at0], held[at1], odd0, odd1)
            row[1] = mixed(held[at2], held[at3], odd2, odd3)
            row[2] = mixed(held[at4], held[at5], odd4, odd5)
            row[3] = mixed(held[at6], held[at7], odd6, odd7)
            slot = i32(order[0] + s * order[1])
            to = i32((slot * vectors + m % vectors) * pitch + m // vectors)
            if m < items:
                write(row, i32(0), shared, i32(base + to * ROW))

        return store_tap

    @device
    def mixed(a, b, a_odd, b_odd):
        low = u32(a >> u32(16)) if a_odd else u32(a & u32(0xFFFF))
        high = u32(b & u32(0xFFFF0000)) if b_odd else u32(b << u32(16))
        return u32(low | high)

    store_all = in_turn([turn(i, s) for i in range(turns) for s in range(taps)])

    @device
    def place(shared, base, w, K, stride, order):
        held = cuda.local.array(count, WORD)
        for i in range(turns):
            m = i32(i32(cuda.threadIdx.x) + i * THREADS)
            at = w + (i64(min(i32(m // vectors), i32(K - 1))) * stride + (m % vectors) * (8 * taps)) * SIZE
            for s in range(taps):
                read(held, i32(i * words + 4 * s), at + s * ROW)
        store_all(held, shared, base, order)

    return place


def _multiply(dtype: str, config: VectorsConfig) -> Callable[..., None]:
    """``multiply(total, words, shared16, at)``: at = where a lane's times lie, the first of them, from tap to tap, bytes of an
    vector, where its filters lie."""
    load, multiply_add = load_matrices(False), product(dtype, 16)
    tiles, runs, vectors, pitch = config.tiles, config.runs, config.octets, config.pitch

    def turn(s: int) -> Callable[..., None]:
        @device
        def multiply_tap(total, words, shared16, at):
            for chunk in range(vectors // 2):
                for m in range(tiles):
                    row = (s * vectors + 2 * chunk) * pitch + m * 16
                    load(words, i32(4 + 4 * m), shared16, i32(at[4] + row * ROW))
                for run in range(runs):
                    for j in range(2):
                        time = i32(at[1] + s * at[2] + 4 * j)
                        row = i32(time + 2 * (time >> 3) + run * (RUN // 8 * PITCH))
                        load(words, i32(0), shared16, i32(at[0] + 2 * chunk * at[3] + row * ROW))
                        for m in range(tiles):
                            to = ((run * tiles + m) * 4 + 2 * j) * 4
                            multiply_add(total, i32(to), words, i32(4 + 4 * m), words, i32(0))
                            multiply_add(total, i32(to + 4), words, i32(4 + 4 * m), words, i32(2))

        return multiply_tap

    return in_turn([turn(s) for s in range(config.taps)])


def forward(dtype: str, config: VectorsConfig) -> Callable[..., None]:
    """y[n,k,t] = sum over c,s of x[n, g*C+c, t - past + s*dilation] * w[k,c,s]; past = (S-1) * dilation."""
    vectors, tiles, runs, filters, span = config.octets, config.tiles, config.runs, config.filters, config.span
    pitch, stride = config.pitch, THREADS // config.octets
    all_have = span // 8 >= stride  # no branch: what is prefetched would be, no sooner than it is stored
    prefetch, store = _times(config)
    place, multiply, write = _filters(config), _multiply(dtype, config), store_vector(dtype, 8, "float32")
    sums, count, channels = runs * tiles * 16, 4 + 4 * tiles, 8 * vectors

    def kernel(
        x, w, y, blocks_of_filters, blocks, groups, K, Q, past, dilation, halo, plane, x_strides, w_stride, order,
        y_strides,
    ):  # fmt: skip
        shared, shared16 = cuda.shared.array(0, WORD), cuda.shared.array(0, HALF)  # the same memory
        held, rest = cuda.local.array(32, WORD), cuda.local.array(32, WORD)
        words, at = cuda.local.array(count, WORD), cuda.local.array(5, INT32)
        total, result = cuda.local.array(sums, f32), cuda.local.array(8, f32)
        base = shared_address(shared)
        thread = i32(cuda.threadIdx.x)
        a = i32(u32(cuda.blockIdx.x) // u32(blocks_of_filters))
        k0 = i32((i32(cuda.blockIdx.x) - a * blocks_of_filters) * filters)
        b = i32(u32(a) // u32(blocks))
        t0 = i32((a - b * blocks) * span)
        n = i32(u32(b) // u32(groups))
        g = i32(b - n * groups)
        line = x + (i64(n) * x_strides[0] + i64(g * channels) * x_strides[1]) * SIZE
        own = line + i64(thread % vectors * 8) * x_strides[1] * SIZE
        to = i32(base + thread % vectors * plane)
        piece = i32(thread // vectors)
        number = i32(span // 8 + halo)
        time, later = i32(t0 + (piece - halo) * 8), i32(t0 + (piece + stride - halo) * 8)
        prefetch(held, own, time, Q, x_strides[1])
        if piece + stride < number:  # a few threads have more than the others: they prefetch at once too
            prefetch(rest, own, later, Q, x_strides[1])
        place(shared, i32(base + vectors * plane), w + i64(g * K + k0) * w_stride * SIZE, i32(K - k0), w_stride, order)
        if all_have or piece < number:
            store(shared, i32(to + piece * (PITCH * ROW)), held, time, Q)
        if piece + stride < number:
            store(shared, i32(to + (piece + stride) * (PITCH * ROW)), rest, later, Q)
        for other in range(i32(piece + 2 * stride), number, stride):
            time = i32(t0 + (other - halo) * 8)
            prefetch(held, own, time, Q, x_strides[1])
            store(shared, i32(to + other * (PITCH * ROW)), held, time, Q)
        for i in range(sums):
            total[i] = f32(0)
        cuda.syncthreads()
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        row = i32(lane & 7)
        at[0] = i32(base + ((lane >> 3) & 1) * plane + (warp * (runs * RUN // 8) + (row >> 1)) * (PITCH * ROW))
        at[1], at[2], at[3] = i32(8 * halo - past + 2 * (lane >> 4) + (row & 1)), i32(dilation), i32(plane)
        at[4] = i32(base + vectors * plane + ((lane >> 4) * pitch + (lane & 15)) * ROW)
        multiply(total, words, shared16, at)
        for run in range(runs):
            time = i32(t0 + (warp * runs + run) * RUN + (lane & 3) * 8)
            for m in range(tiles):
                for half in range(2):
                    for j in range(4):
                        result[2 * j] = total[((run * tiles + m) * 4 + j) * 4 + 2 * half]
                        result[2 * j + 1] = total[((run * tiles + m) * 4 + j) * 4 + 2 * half + 1]
                    k = i32(k0 + m * 16 + half * 8 + (lane >> 2))
                    if k < K and time < Q:
                        to_y = i64(n) * y_strides[0] + i64(g * K + k) * y_strides[1] + time
                        write(result, i32(0), y + to_y * SIZE)

    return kernel
