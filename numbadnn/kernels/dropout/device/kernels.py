"""Dropout: Philox4x32-10 in the registers of the thread that moves the elements; no mask is ever in memory.

Four elements in C order share a counter. ``flat`` moves packed arrays in 16-byte accesses; ``tiles`` does so for
channels-last ones, where a thread takes four positions of some channels, so that it uses all four words of each
counter; ``strided`` takes any strides and any offset. The first two need an offset that is a multiple of 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from numbadnn.kernels.lang.access import load, load_vector, store, store_vector
from numbadnn.kernels.lang.cuda import (
    ACCUMULATOR,
    SIMULATED,
    cuda,
    device,
    i32,
    i64,
    u32,
    u64,
)
from numbadnn.kernels.lang.intrinsics import emitted
from numbadnn.kernels.lang.llvm import _I32, _asm
from numbadnn.problem import ITEMSIZE

THREADS = 256
_LOW = 0xFFFFFFFF
_M0, _M1, _W0, _W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85


def _wide_product() -> Any:
    """``product(a, b) -> u64`` of two u32, in one instruction: of 64-bit factors ptxas adds their upper halves, zeros, too."""
    if SIMULATED:
        return lambda a, b: u64(int(a) * int(b))

    @emitted(u64, u32, u32)
    def product(builder, a, b):
        factors = [builder.trunc(v, _I32) if v.type.width > 32 else v for v in (a, b)]
        return _asm(builder, "mul.wide.u32 $0, $1, $2;", "=l,r,r", ir.IntType(64), factors)

    return product


wide_product = _wide_product()


@device
def philox(counter, seed):
    """The four words of a counter under the key ``seed`` (both of 64 bits)."""
    c0, c1 = u32(counter & _LOW), u32((counter >> 32) & _LOW)
    c2, c3 = u32(0), u32(0)
    k0, k1 = u32(seed & _LOW), u32((seed >> 32) & _LOW)
    for _ in range(10):
        one, two = wide_product(c0, u32(_M0)), wide_product(c2, u32(_M1))
        c0, c2 = u32(u32((two >> 32) & _LOW) ^ c1 ^ k0), u32(u32((one >> 32) & _LOW) ^ c3 ^ k1)
        c1, c3 = u32(two & _LOW), u32(one & _LOW)
        k0, k1 = u32(u64(u64(k0) + u64(_W0)) & _LOW), u32(u64(u64(k1) + u64(_W1)) & _LOW)
    return c0, c1, c2, c3


def _drop(acc: str) -> Any:
    """``drop(values, start, step, counter, seed, threshold, scale)``: dropout of four values, ``step`` apart."""
    A = ACCUMULATOR[acc]

    @device
    def drop(values, start, step, counter, seed, threshold, scale):
        w0, w1, w2, w3 = philox(counter, seed)
        values[start] = A(values[start] * scale) if w0 >= threshold else A(0)
        values[start + step] = A(values[start + step] * scale) if w1 >= threshold else A(0)
        values[start + 2 * step] = A(values[start + 2 * step] * scale) if w2 >= threshold else A(0)
        values[start + 3 * step] = A(values[start + 3 * step] * scale) if w3 >= threshold else A(0)

    return drop


def flat(dtype: str, acc: str, vec: int, unroll: int) -> Callable[..., None]:
    """Packed arrays in one order: ``unroll`` groups of ``vec`` (or four) elements a thread; the rest by one more thread."""
    A, size, group = ACCUMULATOR[acc], ITEMSIZE[dtype], max(vec, 4)
    pieces, quads, held = group // vec, group // 4, unroll * group
    read_vector, write_vector, drop = load_vector(dtype, vec, acc), store_vector(dtype, vec, acc), _drop(acc)
    read, write = load(dtype, acc), store(dtype, acc)

    def kernel(x, seed, offset, y, threshold, scale, groups, rest):
        values = cuda.local.array(held, A)
        limit, base = u32(threshold), i64(offset >> 2)
        first = i64(i64(cuda.blockIdx.x) * (THREADS * unroll) + i32(cuda.threadIdx.x))
        for u in range(unroll):
            at = i64(first + u * THREADS)
            at = at if at < groups else i64(groups - 1)
            for p in range(pieces):
                read_vector(values, i32(u * group + p * vec), x + (at * group + p * vec) * size)
        for u in range(unroll):
            for q in range(quads):
                counter = base + (first + u * THREADS) * quads + q
                drop(values, u * group + q * 4, 1, counter, seed, limit, scale)
        for u in range(unroll):
            if first + u * THREADS < groups:
                for p in range(pieces):
                    at = i64((first + u * THREADS) * group + p * vec)
                    write_vector(values, i32(u * group + p * vec), y + at * size)
        if first == 0 and rest > 0:
            for q in range(quads):
                for e in range(4):
                    values[e] = A(0)
                    if q * 4 + e < rest:
                        values[e] = read(x + (groups * group + q * 4 + e) * size)
                drop(values, 0, 1, base + groups * quads + q, seed, limit, scale)
                for e in range(4):
                    if q * 4 + e < rest:
                        write(y + (groups * group + q * 4 + e) * size, values[e])

    return kernel


def tiles(dtype: str, acc: str, vec: int) -> Callable[..., None]:
    """Channels-last arrays: four positions of ``vec`` channels a thread, neighbours in memory to neighbouring threads."""
    A, size, held, few = ACCUMULATOR[acc], ITEMSIZE[dtype], 4 * vec, min(vec, 4)
    read_vector, write_vector, drop = load_vector(dtype, vec, acc), store_vector(dtype, vec, acc), _drop(acc)

    def kernel(x, seed, offset, y, threshold, scale, tiles_in_all, channels, positions):
        values = cuda.local.array(held, A)
        limit = u32(threshold)
        tile = i64(i64(cuda.blockIdx.x) * THREADS + i32(cuda.threadIdx.x))
        if tile < tiles_in_all:
            columns, quads = i32(u32(channels) // u32(vec)), i32(u32(positions) >> 2)
            row = i32(u64(tile) // u64(columns))  # four positions of an image
            channel = i32(i32(tile - i64(row) * columns) * vec)
            image = i32(u32(row) // u32(quads))
            at = (i64(row) * 4 * channels + channel) * size
            for k in range(4):
                read_vector(values, i32(k * vec), x + at + i64(k) * channels * size)
            counter = i64(offset >> 2) + (i64(image) * channels + channel) * quads + i32(row - image * quads)
            for c in range(few):  # two short loops: LLVM does not unroll a long one of this for sm_100
                drop(values, c, vec, counter + i64(c) * quads, seed, limit, scale)
            for c in range(few, vec):
                drop(values, c, vec, counter + i64(c) * quads, seed, limit, scale)
            for k in range(4):
                write_vector(values, i32(k * vec), y + at + i64(k) * channels * size)

    return kernel


def _offset(rank: int, wide: bool) -> Any:
    """``offset(i, extents, strides)`` of element ``i`` in C order."""
    ix, ux = (i64, u64) if wide else (i32, u32)

    @device
    def offset(i, extents, strides):
        rest, at = ix(i), i64(0)
        for axis in range(rank):
            d = rank - 1 - axis
            outer = ix(ux(rest) // ux(extents[d]))
            at = i64(at + i64(ix(rest - outer * extents[d])) * strides[d])
            rest = outer
        return at

    return offset


def strided(dtype: str, acc: str, rank: int, wide: bool) -> Callable[..., None]:
    """Any strides, any offset: the (up to four) elements of one counter a thread."""
    A, size, place = ACCUMULATOR[acc], ITEMSIZE[dtype], _offset(rank, wide)
    read, write, drop = load(dtype, acc), store(dtype, acc), _drop(acc)

    def kernel(x, seed, offset, y, threshold, scale, count, extents, x_strides, y_strides):
        values = cuda.local.array(4, A)
        group = i64(i64(cuda.blockIdx.x) * THREADS + i32(cuda.threadIdx.x))
        first = i64(group * 4 - (offset & 3))
        for e in range(4):
            values[e] = A(0)
            if first + e >= 0 and first + e < count:
                values[e] = read(x + place(first + e, extents, x_strides) * size)
        drop(values, 0, 1, i64(offset >> 2) + group, seed, u32(threshold), scale)
        for e in range(4):
            if first + e >= 0 and first + e < count:
                write(y + place(first + e, extents, y_strides) * size, values[e])

    return kernel
