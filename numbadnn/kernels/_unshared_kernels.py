"""Convolution with a filter for each position of the output, and the gradient of those filters: each filter is read once.

A block has one output position of one group and a few images. What the filters see there, ``images`` rows of ``terms``
(channel, tap), is gathered into shared memory once; each warp then goes along the memory of ``filters`` filters at a time,
lane by lane, so that every filter is read (or written) once, whole lines at a time. Forward, the lanes' partial sums are
added in one fixed tree; for the filters' gradient a lane sums over the images in order. A flipped filter is walked in the
order of its memory, its taps meet the image backwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels._cuda import cuda, device, i32, i64, u32
from numbadnn.kernels._ptx import ACCUMULATOR, load, shuffle_xor, store
from numbadnn.problem import ITEMSIZE

LANES = 32
#: positions of a filter that a lane has in flight
AHEAD = 2


def _gather(dtype: str, acc: str) -> Any:
    """``gather(...)``: rows of patches [image][term], 0 on padding, past the images and past the terms."""
    read, size, zero = load(dtype, acc), ITEMSIZE[dtype], ACCUMULATOR[acc](0)

    @device
    def gather(patch, pitch, x, x_strides, n0, images, N, first, m0, terms, row, column, taps, steps, flip, image):  # type: ignore[no-untyped-def]
        for j in range(i32(cuda.threadIdx.x), pitch, i32(cuda.blockDim.x)):
            m = i32(m0 + j)
            line = i32(u32(m) // u32(taps[1]))
            s = i32(m - line * taps[1])
            c = i32(u32(line) // u32(taps[0]))
            r = i32(line - c * taps[0])
            if flip != 0:
                r = i32(taps[0] - 1 - r)
                s = i32(taps[1] - 1 - s)
            h = i32(row + r * steps[0])
            v = i32(column + s * steps[1])
            inside = m < terms and h >= 0 and h < image[0] and v >= 0 and v < image[1]
            at = x + (n0 * x_strides[0] + (first + c) * x_strides[1] + h * x_strides[2] + v * x_strides[3]) * size
            for n in range(images):
                value = zero
                if inside and n0 + n < N:
                    value = read(at + n * x_strides[0] * size)
                patch[i32(n * pitch + j)] = value

    return gather


def _fold(acc: str, reach: int, rest: int) -> Any:
    """``fold(sums, lane)``: add those of the lane ``reach`` away; while there are several, each lane keeps half of them."""
    A, shuffle = ACCUMULATOR[acc], shuffle_xor(acc)

    if rest < 1:

        @device
        def fold(sums, lane):  # type: ignore[no-untyped-def]
            sums[0] = A(sums[0] + shuffle(sums[0], reach))

        return fold

    @device
    def halve(sums, lane):  # type: ignore[no-untyped-def]
        upper = (lane & reach) != 0
        for i in range(rest):
            low, high = sums[i], sums[i + rest]
            mine = high if upper else low
            other = low if upper else high
            sums[i] = A(mine + shuffle(other, reach))

    return halve


def forward(dtype: str, acc: str, images: int, filters: int, room: int) -> Callable[..., None]:
    """y[n,k,p,q] = sum over terms of what w[k,p,q] sees in image n; ``room`` terms of each image fit a block."""
    read, write = load(dtype, acc), store(dtype, acc)
    A, size, gather = ACCUMULATOR[acc], ITEMSIZE[dtype], _gather(dtype, acc)
    sums, held = images * filters, filters * AHEAD
    fold16, fold8, fold4, fold2, fold1 = (_fold(acc, LANES >> step, sums >> step) for step in range(1, 6))
    shared_bits = 5 - (sums.bit_length() - 1)  # 1 << this many lanes have the same sum in the end
    shared, stretch = images * room, LANES * AHEAD

    def kernel(  # type: ignore[no-untyped-def]
        x, w, y, chunks, groups, N, K, C, image, Q, taps, padding, stride, dilation, flip, terms,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        patch = cuda.shared.array(shared, A)
        total, weight = cuda.local.array(sums, A), cuda.local.array(held, A)
        block = i32(cuda.blockIdx.x)
        place = i32(u32(block) // u32(chunks))
        n0 = i32((block - place * chunks) * images)
        position = i32(u32(place) // u32(groups))
        g = i32(place - position * groups)
        p = i32(u32(position) // u32(Q))
        q = i32(position - p * Q)
        row, column = i32(p * stride[0] - padding[0]), i32(q * stride[1] - padding[1])
        lane = i32(cuda.threadIdx.x % LANES)
        warp = i32(cuda.threadIdx.x // LANES)
        warps = i32(cuda.blockDim.x // LANES)
        rounds = i32((K + warps * filters - 1) // (warps * filters))
        for turn in range(rounds):
            k0 = i32((turn * warps + warp) * filters)
            for i in range(sums):
                total[i] = A(0)
            for m0 in range(0, terms, room):
                pitch = i32(min(i32(room), i32(i32(terms - m0 + stretch - 1) // stretch * stretch)))
                if turn == 0 or terms > room:
                    cuda.syncthreads()
                    gather(
                        patch, pitch, x, x_strides, n0, images, N, i32(g * C), m0, terms, row, column, taps, dilation, flip,
                        image,
                    )  # fmt: skip
                    cuda.syncthreads()
                base = w + (i64(g * K + k0) * w_strides[0] + p * w_strides[1] + q * w_strides[2] + m0) * size
                for j0 in range(0, pitch, stretch):
                    for u in range(AHEAD):
                        j = i32(j0 + u * LANES + lane)
                        for f in range(filters):
                            value = A(0)
                            if m0 + j < terms and k0 + f < K:
                                value = read(base + (f * w_strides[0] + j) * size)
                            weight[u * filters + f] = value
                    for u in range(AHEAD):
                        j = i32(j0 + u * LANES + lane)
                        for n in range(images):
                            seen = patch[i32(n * pitch + j)]
                            for f in range(filters):
                                total[n * filters + f] = A(total[n * filters + f] + seen * weight[u * filters + f])
            fold16(total, lane)
            fold8(total, lane)
            fold4(total, lane)
            fold2(total, lane)
            fold1(total, lane)
            which = i32(lane >> shared_bits)
            n, k = i32(which // filters), i32(k0 + which % filters)
            if n0 + n < N and k < K and lane == which << shared_bits:
                at = i64(n0 + n) * y_strides[0] + (g * K + k) * y_strides[1] + p * y_strides[2] + q * y_strides[3]
                target = y + at * size
                result = A(alpha * total[0])
                if beta != A(0):
                    result = A(result + beta * read(target))
                write(target, result)

    return kernel


def grad_weights(dtype: str, acc: str, images: int, filters: int, room: int) -> Callable[..., None]:
    """w[k,p,q,term] = sum over all images n of y[n,k,p,q] * what the term sees; ``room`` terms of all images fit a block."""
    read, write = load(dtype, acc), store(dtype, acc)
    A, size, gather = ACCUMULATOR[acc], ITEMSIZE[dtype], _gather(dtype, acc)
    shared, most = images * room, images * filters

    def kernel(  # type: ignore[no-untyped-def]
        x, y, w, chunks, groups, N, K, C, image, Q, taps, padding, stride, dilation, flip, terms,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        patch = cuda.shared.array(shared, A)
        top, total = cuda.local.array(most, A), cuda.local.array(filters, A)
        place = i32(cuda.blockIdx.x)
        position = i32(u32(place) // u32(groups))
        g = i32(place - position * groups)
        p = i32(u32(position) // u32(Q))
        q = i32(position - p * Q)
        row, column = i32(p * stride[0] - padding[0]), i32(q * stride[1] - padding[1])
        lane = i32(cuda.threadIdx.x % LANES)
        warp = i32(cuda.threadIdx.x // LANES)
        warps = i32(cuda.blockDim.x // LANES)
        rounds = i32((K + warps * filters - 1) // (warps * filters))
        for m0 in range(0, terms, room):
            pitch = i32(min(i32(room), i32(terms - m0)))
            cuda.syncthreads()
            gather(
                patch,
                pitch,
                x,
                x_strides,
                i32(0),
                images,
                N,
                i32(g * C),
                m0,
                terms,
                row,
                column,
                taps,
                dilation,
                flip,
                image,
            )
            cuda.syncthreads()
            for turn in range(rounds):
                k0 = i32((turn * warps + warp) * filters)
                for n in range(images):
                    for f in range(filters):
                        value = A(0)
                        if n < N and k0 + f < K:
                            at = i64(n) * y_strides[0] + (g * K + k0 + f) * y_strides[1]
                            value = read(y + (at + p * y_strides[2] + q * y_strides[3]) * size)
                        top[n * filters + f] = value
                base = w + (i64(g * K + k0) * w_strides[0] + p * w_strides[1] + q * w_strides[2] + m0) * size
                for j in range(lane, pitch, i32(LANES)):
                    for f in range(filters):
                        total[f] = A(0)
                    for n in range(images):
                        seen = patch[i32(n * pitch + j)]
                        for f in range(filters):
                            total[f] = A(total[f] + seen * top[n * filters + f])
                    for f in range(filters):
                        if k0 + f < K:
                            target = base + (f * w_strides[0] + j) * size
                            result = A(alpha * total[f])
                            if beta != A(0):
                                result = A(result + beta * read(target))
                            write(target, result)

    return kernel
