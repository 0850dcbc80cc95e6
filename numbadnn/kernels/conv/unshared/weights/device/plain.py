"""grad_weights of an unshared convolution: each filter is stored once, whole lines at a time.

A block has one output position of one group. What its filters saw there, rows of terms (channel, tap) of each image, is gathered
into shared memory, and so is what came of it. Sums run over the images in order. ``few`` has them all in shared memory,
``many`` some at a time, and no lane without a task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.unshared.forward.device.plain import gather_patches, look_at
from numbadnn.kernels.conv.unshared.inputs.device.tile import position_of
from numbadnn.kernels.conv.unshared.plain_config import LANES, UnsharedConfig
from numbadnn.kernels.lang.access import load
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.epilogue import storing_vector
from numbadnn.problem import ITEMSIZE


def few(dtype: str, acc: str, config: UnsharedConfig) -> Callable[..., None]:
    """w[k,p,q,term] = sum over all images n of y[n,k,p,q] * what the term sees; ``capacity`` terms of all images fit a block.

    A lane has ``vec`` terms, a warp ``filters`` filters.
    """
    images, filters, capacity, vec, warps = config.images, config.filters, config.capacity, config.vec, config.warps
    read, store = load(dtype, acc), storing_vector(dtype, vec, acc)
    A, size, gather = ACCUMULATOR[acc], ITEMSIZE[dtype], gather_patches(dtype, acc, images, capacity)
    look = look_at(acc, vec)
    look_at_tops = look_at(acc, filters)
    shared, most, stretch, held = images * capacity, images * filters, LANES * vec, filters * vec
    tops_size = warps * most

    def kernel(
        x, y, w, chunks, groups, N, K, C, image, Q, taps, padding, stride, dilation, flip, terms,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        patch = cuda.shared.array(shared, A)
        tops = cuda.shared.array(tops_size, A)
        seen_by, pixels = cuda.local.array(images, A), cuda.local.array(vec, A)
        top, total = cuda.local.array(filters, A), cuda.local.array(held, A)
        g, p, q = position_of(i32(cuda.blockIdx.x), groups, Q)
        corner = (i32(p * stride[0] - padding[0]), i32(q * stride[1] - padding[1]))
        lane = i32(cuda.threadIdx.x % LANES)
        warp = i32(cuda.threadIdx.x // LANES)
        rounds = i32((K + warps * filters - 1) // (warps * filters))
        for turn in range(rounds):
            k0 = i32((turn * warps + warp) * filters)
            for i in range(lane, most, i32(LANES)):
                n, f = i32(i // filters), i32(i % filters)
                k = i32(g * K + min(i32(k0 + f), i32(K - 1)))
                at = i64(min(n, i32(N - 1))) * y_strides[0] + k * y_strides[1]
                value = read(y + (at + p * y_strides[2] + q * y_strides[3]) * size)
                tops[i32(warp * most + i)] = value if n < N else A(0)
            for m0 in range(0, terms, capacity):
                count = i32(min(i32(capacity), i32(terms - m0)))
                if turn == 0 or terms > capacity:
                    gather(
                        patch, seen_by, count, x, x_strides, i32(0), N, i32(g * C), m0, corner, taps, dilation, flip, image
                    )  # fmt: skip
                cuda.syncthreads()
                base = w + (i64(g * K + k0) * w_strides[0] + p * w_strides[1] + q * w_strides[2] + m0) * size
                for j in range(i32(lane * vec), count, i32(stretch)):
                    for i in range(held):
                        total[i] = A(0)
                    for n in range(images):
                        look_at_tops(top, i32(0), tops, i32(warp * most + n * filters))
                        look(pixels, i32(0), patch, i32(n * capacity + j))
                        for e in range(vec):
                            for f in range(filters):
                                total[f * vec + e] = A(total[f * vec + e] + pixels[e] * top[f])
                    for f in range(filters):
                        if k0 + f < K:
                            target = base + (f * w_strides[0] + j) * size
                            for e in range(vec):
                                total[f * vec + e] = A(alpha * total[f * vec + e])
                            store(total, i32(f * vec), target, beta)
                cuda.syncthreads()

    return kernel


def _tops(dtype: str, acc: str, images: int, span: int) -> Any:
    """``tops(...)``: rows [image][filter] of y's values at one position, 0 past the images."""
    read, size, zero = load(dtype, acc), ITEMSIZE[dtype], ACCUMULATOR[acc](0)

    @device
    def tops(table, y, strides, n0, N, first, k0, K):
        for i in range(i32(cuda.threadIdx.x), i32(images * span), i32(cuda.blockDim.x)):
            row = i32(u32(i) // u32(span))
            n, k = i32(n0 + row), min(i32(k0 + i - row * span), i32(K - 1))
            value = read(y + (i64(min(n, i32(N - 1))) * strides[0] + (first + k) * strides[1]) * size)
            table[i] = value if n < N else zero

    return tops


def many(dtype: str, acc: str, config: UnsharedConfig) -> Callable[..., None]:
    """The same of any number of images; ``capacity`` terms of ``images`` of them fit a block.

    A thread has ``vec`` terms of ``filters`` filters, whose sums it keeps while the images pass, ``images`` at a time.
    """
    images, filters, capacity, vec, span = config.images, config.filters, config.capacity, config.vec, config.span
    store = storing_vector(dtype, vec, acc)
    A, size, gather = ACCUMULATOR[acc], ITEMSIZE[dtype], gather_patches(dtype, acc, images, capacity)
    look = look_at(acc, vec)
    fill, look_at_tops = _tops(dtype, acc, images, span), look_at(acc, filters)
    shared, tops_size, held = images * capacity, images * span, filters * vec

    def kernel(
        x, y, w, chunks, groups, N, K, C, image, Q, taps, padding, stride, dilation, flip, terms,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        patch = cuda.shared.array(shared, A)
        tops = cuda.shared.array(tops_size, A)
        seen_by, pixels = cuda.local.array(images, A), cuda.local.array(vec, A)
        top, total = cuda.local.array(filters, A), cuda.local.array(held, A)
        g, p, q = position_of(i32(cuda.blockIdx.x), groups, Q)
        corner = (i32(p * stride[0] - padding[0]), i32(q * stride[1] - padding[1]))
        here = y + (i64(p) * y_strides[2] + q * y_strides[3]) * size
        for m0 in range(0, terms, capacity):
            count = i32(min(i32(capacity), i32(terms - m0)))
            across = i32(u32(count) // u32(vec))
            for k0 in range(0, K, span):
                tasks = i32(i32((min(i32(span), i32(K - k0)) + filters - 1) // filters) * across)
                for t0 in range(0, tasks, i32(cuda.blockDim.x)):
                    task = min(i32(t0 + cuda.threadIdx.x), i32(tasks - 1))
                    part = i32(u32(task) // u32(across))
                    j, f0 = i32((task - part * across) * vec), i32(part * filters)
                    for i in range(held):
                        total[i] = A(0)
                    for n0 in range(0, N, images):
                        if t0 == 0 or images < N:  # otherwise they are still there
                            cuda.syncthreads()
                            fill(tops, here, y_strides, n0, N, i32(g * K), k0, K)
                            if k0 == 0 or images < N:
                                channel = i32(g * C)
                                gather(
                                    patch, seen_by, count, x, x_strides, n0, N, channel, m0, corner, taps, dilation,
                                    flip, image,
                                )  # fmt: skip
                            cuda.syncthreads()
                        for n in range(images):
                            look_at_tops(top, i32(0), tops, i32(n * span + f0))
                            look(pixels, i32(0), patch, i32(n * capacity + j))
                            for f in range(filters):
                                for e in range(vec):
                                    total[f * vec + e] = A(total[f * vec + e] + pixels[e] * top[f])
                    base = (
                        w + (i64(g * K + k0 + f0) * w_strides[0] + p * w_strides[1] + q * w_strides[2] + m0 + j) * size
                    )
                    for f in range(filters):
                        if k0 + f0 + f < K and t0 + cuda.threadIdx.x < tasks:
                            target = base + f * w_strides[0] * size
                            for e in range(vec):
                                total[f * vec + e] = A(alpha * total[f * vec + e])
                            store(total, i32(f * vec), target, beta)

    return kernel
