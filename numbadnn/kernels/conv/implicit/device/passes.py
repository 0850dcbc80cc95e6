"""The kernels before and after an implicit GEMM: one rearranges filters for the copy engine, one adds partial sums."""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.implicit.device.index import divided, located
from numbadnn.kernels.lang.access import copy_bytes, load, load_vector, store, store_vector
from numbadnn.kernels.lang.cuda import cuda, f32, i32, i64, u32
from numbadnn.problem import ITEMSIZE

THREADS = 256


def arrange(dtype: str, axes: int) -> Callable[..., None]:
    """packed[filter, tap, channel] = w[filter, channel, tap]: a thread has the taps of one filter's channel."""
    size, deep = ITEMSIZE[dtype], axes == 3
    copy = copy_bytes(size)

    def kernel(w, packed, count, channels, taps, strides, steps):
        i = i32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
        if i >= count:
            return
        k = i32(u32(i) // u32(channels))
        c = i32(i - k * channels)
        rows = taps[-2]
        if deep:
            rows = i32(taps[0] * taps[-2])
        for r in range(rows):
            for s in range(taps[-1]):
                source = k * strides[0] + c * strides[1] + s * strides[-1]
                if deep:
                    t, in_plane = divided(i32(r), taps[-2])
                    source += t * strides[2] + in_plane * strides[-2]
                else:
                    source += r * strides[-2]
                target = k * steps[0] + (r * taps[-1] + s) * steps[1] + c
                copy(packed + i64(target) * size, w + i64(source) * size)

    return kernel


def total(dtype: str, axes: int, vector: int) -> Callable[..., None]:
    """out[n, c, ...] = alpha * (sum over splits of partial[split, n, ..., c]) + beta * out, ``vector`` channels a thread."""
    size, step, deep, position = ITEMSIZE[dtype], 4 * vector, axes == 3, located(axes)
    read, write = load_vector("float32", vector, "float32"), store_vector(dtype, vector, "float32")
    read_one, write_one, read_old = load("float32", "float32"), store(dtype, "float32"), load(dtype, "float32")

    def kernel(partial, out, count, splits, split_stride, depth, sizes, strides, alpha, beta):
        i = i32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
        if i >= count:
            return
        sums = cuda.local.array(vector, f32)
        some = cuda.local.array(vector, f32)
        for e in range(vector):
            sums[e] = f32(0)
        for split in range(splits):
            at = partial + i64(split) * split_stride + i64(i) * step
            if vector == 1:
                some[0] = read_one(at)
            else:
                read(some, i32(0), at)
            for e in range(vector):
                sums[e] = f32(sums[e] + some[e])
        channels = i32(u32(depth) // u32(vector))
        pixel = i32(u32(i) // u32(channels))
        channel = i32((i - pixel * channels) * vector)
        image, z, y, x = position(pixel, sizes)
        offset = image * strides[0] + channel * strides[1] + y * strides[-2] + x * strides[-1]
        if deep:
            offset += z * strides[2]
        there = out + offset * size
        for e in range(vector):
            sums[e] = f32(alpha * sums[e])
            if beta != f32(0):
                sums[e] = f32(sums[e] + beta * read_old(there + e * strides[1] * size))
        if vector == 1:
            write_one(there, sums[0])
        else:
            write(sums, i32(0), there)

    return kernel
