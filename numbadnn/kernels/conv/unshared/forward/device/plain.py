"""Unshared convolution of any shape, at the speed of memory for few images.

A block has one output position of one group. What its filters see there, ``images`` rows of ``terms`` (channel, tap), is gathered
into shared memory. Each warp first prefetches the next ``capacity`` terms of ``filters`` filters, whole lines at a time, by
asynchronous copies: several blocks on a multiprocessor keep memory busy while others multiply. Lanes go along a filter; their
partial sums are added in one fixed tree. A flipped filter is walked in the order of its memory, its taps meet the image
backwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.unshared.inputs.device.tile import position_of, tap_of
from numbadnn.kernels.conv.unshared.plain_config import LANES, UnsharedConfig
from numbadnn.kernels.lang.access import load, load_shared
from numbadnn.kernels.lang.async_copies import copy_async, wait_async
from numbadnn.kernels.lang.cuda import ACCUMULATOR, WORD, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.epilogue import scaled
from numbadnn.kernels.lang.warp import shuffle_xor
from numbadnn.problem import ITEMSIZE


def gather_patches(dtype: str, acc: str, images: int, capacity: int) -> Any:
    """``gather(...)``: rows of patches [image][term], 0 on padding and past the images.

    Where there is nothing to read the image's first element is read and not used: no branch stands between the loads.
    """
    read, size, zero = load(dtype, acc), ITEMSIZE[dtype], ACCUMULATOR[acc](0)

    @device
    def gather(patch, held, count, x, strides, n0, N, first, m0, corner, taps, steps, flip, image):
        for j in range(i32(cuda.threadIdx.x), count, i32(cuda.blockDim.x)):
            m = i32(m0 + j)
            c, r, s = tap_of(m, taps)
            if flip != 0:
                r = i32(taps[0] - 1 - r)
                s = i32(taps[1] - 1 - s)
            h = i32(corner[0] + r * steps[0])
            v = i32(corner[1] + s * steps[1])
            inside = h >= 0 and h < image[0] and v >= 0 and v < image[1]
            at = (first + c) * strides[1] + h * strides[2] + v * strides[3]
            at = x + (at if inside else i64(0)) * size
            # all loads, then all stores: for all that the compiler knows a store might change what is loaded
            for n in range(images):
                held[n] = read(at + min(n0 + n, i32(N - 1)) * strides[0] * size)
            for n in range(images):
                patch[i32(n * capacity + j)] = held[n] if inside and n0 + n < N else zero

    return gather


def look_at(acc: str, count: int) -> Any:
    """``look(values, start, table, at)``: ``count`` neighbours, by accesses of up to 16 bytes where they are float32."""
    span = min(count, 4)
    read: Any = load_shared("float32", span, "float32") if acc == "float32" and span > 1 else None

    @device
    def look(values, start, table, at):
        for e in range(0, count, span):
            read(values, i32(start + e), table, i32(at + e))

    @device
    def look_one_by_one(values, start, table, at):
        for e in range(count):
            values[start + e] = table[i32(at + e)]

    return look if read else look_one_by_one


def _weights(dtype: str, acc: str, vec: int) -> tuple[Any, Any, Any, int]:
    """(bring, look, type, width) of filters in shared memory: raw words, or numbers where ``vec`` of them are no whole word.

    ``bring(table, at, address)`` begins to copy ``vec`` terms, ``look(values, start, table, at)`` reads them; ``width``: terms of
    one element of the table.
    """
    size = ITEMSIZE[dtype]
    if vec * size < 4:
        read = load(dtype, acc)

        @device
        def bring_one(table, at, address):
            table[at] = read(address)

        return bring_one, look_at(acc, 1), ACCUMULATOR[acc], 1
    copy, span = copy_async(vec * size), min(vec, 16 // size)
    see = load_shared(dtype, span, acc)

    @device
    def bring(table, at, address):
        copy(table, i32(at * size // 4), address)

    @device
    def look(values, start, table, at):
        see(values, i32(start), table, i32(at * size // 4))

    return bring, look, WORD, 4


def _fold(acc: str, reach: int, rest: int) -> Any:
    """``fold(sums, lane)``: add those of the lane ``reach`` away; while there are several, each lane keeps half of them."""
    A, shuffle = ACCUMULATOR[acc], shuffle_xor(acc)

    if rest < 1:

        @device
        def fold(sums, lane):
            sums[0] = A(sums[0] + shuffle(sums[0], reach))

        return fold

    @device
    def halve(sums, lane):
        upper = (lane & reach) != 0
        for i in range(rest):
            low, high = sums[i], sums[i + rest]
            mine = high if upper else low
            other = low if upper else high
            sums[i] = A(mine + shuffle(other, reach))

    return halve


def forward(dtype: str, acc: str, config: UnsharedConfig) -> Callable[..., None]:
    """y[n,k,p,q] = sum over terms of what w[k,p,q] sees in image n; ``capacity`` terms of each image and filter fit a block."""
    images, filters, capacity, vec, warps = config.images, config.filters, config.capacity, config.vec, config.warps
    store, A, size = scaled(dtype, acc), ACCUMULATOR[acc], ITEMSIZE[dtype]
    gather, look = gather_patches(dtype, acc, images, capacity), look_at(acc, vec)
    bring, look_at_weights, kind, width = _weights(dtype, acc, vec)
    table_size = warps * filters * capacity * size // 4 if width == 4 else warps * filters * capacity
    sums, held, shared, stretch = images * filters, filters * vec, images * capacity, LANES * vec
    fold16, fold8, fold4, fold2, fold1 = (_fold(acc, LANES >> step, sums >> step) for step in range(1, 6))
    left = max(1, sums // LANES)  # sums that a lane has in the end
    shared_bits = max(0, 5 - (sums.bit_length() - 1))  # 1 << this many lanes have the same one

    def kernel(
        x, w, y, chunks, groups, N, K, C, image, Q, taps, padding, stride, dilation, flip, terms,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        table = cuda.shared.array(table_size, kind)
        patch = cuda.shared.array(shared, A)
        total, weight = cuda.local.array(sums, A), cuda.local.array(held, A)
        seen_by, pixels = cuda.local.array(images, A), cuda.local.array(vec, A)
        block = i32(cuda.blockIdx.x)
        place = i32(u32(block) // u32(chunks))
        begin = i32((block - place * chunks) * images)
        g, p, q = position_of(place, groups, Q)
        corner = (i32(p * stride[0] - padding[0]), i32(q * stride[1] - padding[1]))
        lane = i32(cuda.threadIdx.x % LANES)
        warp = i32(cuda.threadIdx.x // LANES)
        rounds = i32((K + warps * filters - 1) // (warps * filters))
        mine = i32(warp * filters * capacity)
        for n0 in range(begin, N, i32(chunks * images)):
            for turn in range(rounds):
                k0 = i32((turn * warps + warp) * filters)
                for i in range(sums):
                    total[i] = A(0)
                for m0 in range(0, terms, capacity):
                    count = i32(min(i32(capacity), i32(terms - m0)))
                    if n0 == begin or rounds > 1 or terms > capacity:  # otherwise they are still there
                        base = w + (i64(g * K) * w_strides[0] + p * w_strides[1] + q * w_strides[2] + m0) * size
                        for f in range(filters):
                            row = base + i64(min(i32(k0 + f), i32(K - 1))) * w_strides[0] * size
                            for j in range(i32(lane * vec), count, i32(stretch)):
                                bring(table, i32(mine + f * capacity + j), row + i64(j) * size)
                    if turn == 0 or terms > capacity:
                        gather(
                            patch, seen_by, count, x, x_strides, n0, N, i32(g * C), m0, corner, taps, dilation, flip, image
                        )  # fmt: skip
                    wait_async()
                    cuda.syncthreads()
                    for j in range(i32(lane * vec), count, i32(stretch)):
                        for f in range(filters):
                            look_at_weights(weight, i32(f * vec), table, i32(mine + f * capacity + j))
                        for n in range(images):
                            look(pixels, i32(0), patch, i32(n * capacity + j))
                            for e in range(vec):
                                for f in range(filters):
                                    total[n * filters + f] = A(total[n * filters + f] + pixels[e] * weight[f * vec + e])
                    cuda.syncthreads()
                # add the lanes: each step halves what a lane still sums, until there is one, which then all lanes share
                fold16(total, lane)
                fold8(total, lane)
                fold4(total, lane)
                fold2(total, lane)
                fold1(total, lane)
                which = i32(lane >> shared_bits)
                for i in range(left):
                    n, k = i32((which * left + i) // filters), i32(k0 + (which * left + i) % filters)
                    if n0 + n < N and k < K and lane == which << shared_bits:
                        at = (
                            i64(n0 + n) * y_strides[0]
                            + (g * K + k) * y_strides[1]
                            + p * y_strides[2]
                            + q * y_strides[3]
                        )
                        target = y + at * size
                        store(target, total[i], alpha, beta)

    return kernel
