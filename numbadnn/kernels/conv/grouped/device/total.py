"""Add the partial sums of the gradient of filters with few channels a group, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.grouped.weights_config import SPAN
from numbadnn.kernels.lang.access import load, load_vector, store
from numbadnn.kernels.lang.cuda import ELEMENT, cuda, device, f32, i32, i64, u32

SIZE = 2
AHEAD = 8  # shares that a thread fetches at once


def total(dtype: str, lanes: int, linear: bool) -> Callable[..., None]:
    """w = alpha * (sum over shares of partial) + beta * w; a block has SPAN elements, whose shares ``lanes`` warps share.

    ``linear``: the filters lie as the sums do.
    """
    read, write, old = load_vector("float32", 4, "float32"), store(dtype, "float32"), load(dtype, "float32")
    read_one = load("float32", "float32")
    element, under_way, threads = ELEMENT["float32"], 4 * AHEAD, 32 * lanes

    @device
    def place(number, depth, taps, strides):
        if linear:
            return i64(number)
        rest = i32(u32(number) // u32(depth))
        c = i32(number - rest * depth)
        k = i32(u32(rest) // u32(taps[0] * taps[1]))
        tap = i32(rest - k * taps[0] * taps[1])
        r = i32(u32(tap) // u32(taps[1]))
        return k * strides[0] + c * strides[1] + r * strides[2] + (tap - r * taps[1]) * strides[3]

    def kernel(partial, w, splits, split_stride, count, depth, taps, strides, alpha, beta):
        shared = cuda.shared.array(0, element)
        lane, warp = i32(cuda.threadIdx.x & 31), i32(cuda.threadIdx.x >> 5)
        values, some = cuda.local.array(4, f32), cuda.local.array(under_way, f32)
        for e in range(4):
            values[e] = f32(0)
        block = i32(cuda.blockIdx.x * SPAN)
        if block + lane * 4 < count:
            at = partial + i64(block + lane * 4) * 4
            last = i32(count - 1 - block - lane * 4)  # of the four that there are
            for first in range(warp, splits, i32(AHEAD * lanes)):
                for i in range(AHEAD):  # all of them under way before the first is needed
                    split = i32(first + i * lanes)
                    source = at + (split if split < splits else first) * split_stride
                    if last >= 3:
                        read(some, i32(i * 4), source)
                    else:  # what lies behind the last was never written
                        for e in range(4):
                            some[i * 4 + e] = read_one(source + i64(min(i32(e), last)) * 4)
                for i in range(AHEAD):
                    if first + i * lanes < splits:
                        for e in range(4):
                            values[e] = f32(values[e] + some[i * 4 + e])
        for e in range(4):
            shared[i32(warp * SPAN + lane * 4 + e)] = values[e]
        cuda.syncthreads()
        for j in range(i32(cuda.threadIdx.x), SPAN, threads):
            if block + j < count:
                value = f32(0)
                for i in range(lanes):
                    value = f32(value + shared[i32(i * SPAN + j)])
                value = f32(alpha * value)
                at = w + place(i32(block + j), depth, taps, strides) * SIZE
                if beta != f32(0):
                    value = f32(value + beta * old(at))
                write(at, value)

    return kernel
