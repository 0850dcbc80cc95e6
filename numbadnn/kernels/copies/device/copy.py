"""Element-wise kernels over arrays of any strides: copy with padding or cropping, fill, scale. One element to a thread.

Threads are numbered along the memory of the destination. The number of axes is fixed when a kernel is built, so that the loop
that takes the number of an element apart unrolls. Offsets are in elements (``unit`` copies: in units of that many bytes).
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import copy_bytes, load, store, zero_bytes
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32, u64
from numbadnn.problem import ITEMSIZE

THREADS = 256


def copy(source: str, target: str, rank: int, wide: bool) -> Callable[..., None]:
    """dst[i] = src[i - offset] where that is inside src, else 0; ``inside`` is low <= i < high on every axis.

    ``source`` and ``target`` are dtypes; the same text "16 bytes" (8, 4, 2) twice moves bits, whatever they mean.
    """
    ix, ux = (i64, u64) if wide else (i32, u32)
    if source == target:
        from_size = to_size = int(source.split()[0])
        move, clear = copy_bytes(to_size), zero_bytes(to_size)
    else:
        acc = "float64" if source == "float64" else "float32"  # holds every value of the source
        from_size, to_size = ITEMSIZE[source], ITEMSIZE[target]
        read, write, zero = load(source, acc), store(target, acc), ACCUMULATOR[acc](0)

        @device
        def move(destination, origin):
            write(destination, read(origin))

        @device
        def clear(destination):
            write(destination, zero)

    def kernel(src, dst, count, extents, low, high, src_start, src_strides, dst_strides):
        i = ix(i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x)
        if i >= count:
            return
        origin, destination, inside = ix(src_start), ix(0), True
        for axis in range(rank):
            d = rank - 1 - axis
            outer = ix(ux(i) // ux(extents[d]))
            j = ix(i - outer * extents[d])
            i = outer
            inside = inside and j >= low[d] and j < high[d]
            origin = ix(origin + j * src_strides[d])
            destination = ix(destination + j * dst_strides[d])
        if inside:
            move(dst + i64(destination) * to_size, src + i64(origin) * from_size)
        else:
            clear(dst + i64(destination) * to_size)

    return kernel


def affine(dtype: str, reads: bool, rank: int, wide: bool) -> Callable[..., None]:
    """dst = value (``reads`` False: the old contents are not looked at) or dst = value * dst."""
    ix, ux = (i64, u64) if wide else (i32, u32)
    acc = "float64" if dtype == "float64" else "float32"
    read, write, A, size = load(dtype, acc), store(dtype, acc), ACCUMULATOR[acc], ITEMSIZE[dtype]

    def kernel(dst, count, extents, dst_strides, value):
        i = ix(i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x)
        if i >= count:
            return
        destination = ix(0)
        for axis in range(rank):
            d = rank - 1 - axis
            outer = ix(ux(i) // ux(extents[d]))
            destination = ix(destination + ix(i - outer * extents[d]) * dst_strides[d])
            i = outer
        target = dst + i64(destination) * size
        result = A(value)
        if reads:
            result = A(value * read(target))
        write(target, result)

    return kernel
