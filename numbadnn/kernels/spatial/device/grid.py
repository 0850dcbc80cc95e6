"""The grid of an affine map, a thread some neighbouring points; and its gradient, sums over points in two fixed steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang import reduce as _reduce
from numbadnn.kernels.lang.access import load, store, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.long_sums import compensated
from numbadnn.kernels.spatial.grid import GridConfig, ThetaConfig
from numbadnn.problem import ITEMSIZE


def _end(acc: str) -> Any:
    """``(k, m)``: the k-th of m numbers evenly spaced over [-1, 1]; 0 for m = 1."""
    A = ACCUMULATOR[acc]

    @device
    def end(k, m):
        return A(A(2 * k - (m - 1)) / A(max(i32(m - 1), i32(1))))

    return end


def grid(dtype: str, out_dtype: str, acc: str, config: GridConfig) -> Callable[..., None]:
    """``points`` neighbouring points a thread; more than one only where grid is packed, and then in one access."""
    points, threads, wide = config.points, config.threads, config.wide
    A, size, out_size, end = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[out_dtype], _end(acc)
    read, write, values = load(dtype, acc), store(out_dtype, acc), 2 * points
    put = store_vector(out_dtype, values, acc)

    def kernel(theta, out, total, groups, height, width, ts, gs):
        result = cuda.local.array(values, A)
        t = cuda.local.array(6, A)
        index = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if index >= total:
            return
        if wide:
            row = i64(index // groups)
            n = i64(row // height)
        else:
            row = i64(u32(index) // u32(groups))
            n = i64(u32(row) // u32(height))
        first = i32(i32(index - row * groups) * points)
        i = i32(row - n * height)
        for k in range(6):
            t[k] = read(theta + (n * ts[0] + (k // 3) * ts[1] + (k % 3) * ts[2]) * size)
        y = end(i, height)
        for e in range(points):
            x = end(i32(first + e), width)
            result[2 * e] = A(A(t[0] * x + t[1] * y) + t[2])
            result[2 * e + 1] = A(A(t[3] * x + t[4] * y) + t[5])
        at = out + (n * gs[0] + i * gs[1] + first * gs[2]) * out_size
        if points > 1:
            put(result, i32(0), at)
        else:
            write(at, result[0])
            write(at + gs[3] * out_size, result[1])

    return kernel


def parts(dtype: str, acc: str, config: ThetaConfig) -> Callable[..., None]:
    """Sums over ``config.points`` points a block: six numbers, to the workspace, or to dtheta where they are all of the image."""
    threads, points, whole = config.threads, config.points, config.whole
    A, size, wide, end = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc], _end(acc)
    read, keep, write = load(dtype, acc), store(acc, acc), store(dtype, acc)
    rounds = points // threads
    sum_of_block = _reduce.over_lanes(acc, _reduce.add(acc), threads, 0.0)

    def kernel(dgrid, out, chunks, height, width, gs, ts):
        sums = cuda.local.array(6, A)
        scratch = cuda.shared.array((6, 32), A)
        n = i32(u32(i32(cuda.blockIdx.x)) // u32(chunks))
        chunk = i32(i32(cuda.blockIdx.x) - n * chunks)
        for k in range(6):
            sums[k] = A(0)
        for r in range(rounds):
            point = i64(chunk) * points + r * threads + cuda.threadIdx.x
            i = i32(u32(point) // u32(width))
            j = i32(point - i64(i) * width)
            if i < height:
                at = dgrid + (n * gs[0] + i * gs[1] + j * gs[2]) * size
                x, y = end(j, width), end(i, height)
                gx, gy = read(at), read(at + gs[3] * size)
                sums[0] = A(sums[0] + gx * x)
                sums[1] = A(sums[1] + gx * y)
                sums[2] = A(sums[2] + gx)
                sums[3] = A(sums[3] + gy * x)
                sums[4] = A(sums[4] + gy * y)
                sums[5] = A(sums[5] + gy)
        for k in range(6):
            total = sum_of_block(sums[k], scratch[k])
            if i32(cuda.threadIdx.x) == 0:
                if whole:
                    write(out + (n * ts[0] + (k // 3) * ts[1] + (k % 3) * ts[2]) * size, total)
                else:
                    keep(out + (i64(cuda.blockIdx.x) * 6 + k) * wide, total)

    return kernel


def finish(dtype: str, acc: str, config: ThetaConfig) -> Callable[..., None]:
    """dtheta of an image a block: the sums of its chunks, eight lanes (of which six are used) by 32 parts."""
    A, size, wide = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[acc]
    fetch, write = load(acc, acc), store(dtype, acc)
    sum_of_parts, (add, close) = _reduce.over_parts(_reduce.add(acc), 8, 32), compensated(acc)

    def kernel(sums, dtheta, chunks, ts):
        table = cuda.shared.array(256, A)
        n, thread = i32(cuda.blockIdx.x), i32(cuda.threadIdx.x)
        part = i32(thread >> 3)
        k = i32(thread & 7)
        total, lost = A(0), A(0)
        if k < 6:
            for chunk in range(part, chunks, 32):
                total, lost = add(total, lost, fetch(sums + ((i64(n) * chunks + chunk) * 6 + k) * wide))
        table[thread] = close(total, lost)
        sum_of_parts(table)
        if thread < 6:
            write(dtheta + (n * ts[0] + (thread // 3) * ts[1] + (thread % 3) * ts[2]) * size, table[thread])

    return kernel
