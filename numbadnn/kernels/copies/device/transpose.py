"""A copy that transposes two axes: what lies together in the source lies far apart in the destination, and the other way round.

A block takes a square tile. It is read line by line along the source's packed axis into shared memory, and written
line by line along the destination's; both are whole lines of 128 bytes.

    source      [a0: l0 l1 l2 ...]      tile      destination [l0: a0 a1 a2 ...]
                [a1: l0 l1 l2 ...]  ->        ->              [l1: a0 a1 a2 ...]

16-bit elements are moved two by two where both axes allow it: a pair of words holds two neighbours of two lines each.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.bits import bits_type, load_bits, store_bits
from numbadnn.kernels.lang.cuda import cuda, device, i32, i64, u32

#: threads of a block: WARPS lines at a time of a tile of SIDE x SIDE registers
THREADS, WARPS, SIDE = 256, 8, 32


@device
def _place(block, tiles, inner):
    """(tile along, tile across, outer, inner place) of a block; ``tiles`` along and across, ``inner`` places of an outer one."""
    rest = i32(u32(block) // u32(tiles[0]))
    along = i32(block - rest * tiles[0])
    plane = i32(u32(rest) // u32(tiles[1]))
    outer = i32(u32(plane) // u32(inner))
    return along, i32(rest - plane * tiles[1]), outer, i32(plane - outer * inner)


def transpose(size: int) -> Callable[..., None]:
    """dst[o, i, l, a] = src[o, i, a, l]; l is packed in src, a in dst, ``size`` bytes an element."""
    read, write, kind, pitch = load_bits(size), store_bits(size), bits_type(size), SIDE + 1
    capacity = SIDE * pitch

    def kernel(src, dst, extents, tiles, inner, src_strides, dst_strides):
        tile = cuda.shared.array(capacity, kind)
        along, across, o, i = _place(i32(cuda.blockIdx.x), tiles, inner)
        lane, warp = i32(cuda.threadIdx.x & 31), i32(cuda.threadIdx.x >> 5)
        first, start = i32(along * SIDE), i32(across * SIDE)
        origin = src + (o * src_strides[0] + i * src_strides[1] + first + lane) * size
        for line in range(warp, SIDE, WARPS):
            if start + line < extents[1] and first + lane < extents[0]:
                tile[i32(line * pitch + lane)] = read(origin + i64(start + line) * src_strides[2] * size)
        cuda.syncthreads()
        target = dst + (o * dst_strides[0] + i * dst_strides[1] + start + lane) * size
        for line in range(warp, SIDE, WARPS):
            if first + line < extents[0] and start + lane < extents[1]:
                write(target + i64(first + line) * dst_strides[2] * size, tile[i32(lane * pitch + line)])

    return kernel


def transpose_pairs() -> Callable[..., None]:
    """The same for elements of two bytes, two by two; every extent and stride is even."""
    read, write, kind, pitch = load_bits(4), store_bits(4), bits_type(4), SIDE + 1
    capacity = 2 * SIDE * pitch

    def kernel(src, dst, extents, tiles, inner, src_strides, dst_strides):
        tile = cuda.shared.array(capacity, kind)
        along, across, o, i = _place(i32(cuda.blockIdx.x), tiles, inner)
        lane, warp = i32(cuda.threadIdx.x & 31), i32(cuda.threadIdx.x >> 5)
        first, start = i32(along * (2 * SIDE)), i32(across * (2 * SIDE))
        origin = src + (o * src_strides[0] + i * src_strides[1] + first + 2 * lane) * 2
        for line in range(warp, 2 * SIDE, WARPS):
            if start + line < extents[1] and first + 2 * lane < extents[0]:
                tile[i32(line * pitch + lane)] = read(origin + i64(start + line) * src_strides[2] * 2)
        cuda.syncthreads()
        target = dst + (o * dst_strides[0] + i * dst_strides[1] + start + 2 * lane) * 2
        for pair in range(warp, SIDE, WARPS):
            if first + 2 * pair < extents[0] and start + 2 * lane < extents[1]:
                a, b = tile[i32(2 * lane * pitch + pair)], tile[i32((2 * lane + 1) * pitch + pair)]
                there = target + i64(first + 2 * pair) * dst_strides[2] * 2
                write(there, u32((a & u32(0xFFFF)) | u32(b << u32(16))))
                write(there + dst_strides[2] * 2, u32(u32(a >> u32(16)) | (b & u32(0xFFFF0000))))

    return kernel
