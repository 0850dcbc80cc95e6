"""Softmax across channels that lie far apart in memory (NCHW): coalesced, in one pass.

A block is ``lanes`` x ``parts`` threads. Lane l owns ``vec`` neighbouring positions, so that neighbouring threads read
neighbouring memory; the parts share the channels, each holding ``count`` of them (part, part + parts, ...) in registers.
The parts meet twice in shared memory, for the maximum and the sum. Reads once, writes once. A thread whose channel does not
exist reads the last one, so that no branch stands between its loads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from typing import Any

from numbadnn.kernels.lang import reduce as _reduce
from numbadnn.kernels.lang.access import load_vector, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.ptx import exponential, log, maximum
from numbadnn.kernels.softmax.channels import ChannelsConfig
from numbadnn.problem import ITEMSIZE

INFINITY = float("inf")


def locator(lanes: int) -> Any:
    """``(positions, inner) -> (whether its vector exists, outer index, vector within it, lane, part)`` of this thread.

    The last vector stands in for one that does not exist: its loads are harmless and it writes nothing.
    """

    @device
    def locate(positions, inner):
        thread = i32(cuda.threadIdx.x)
        lane = i32(thread & (lanes - 1))
        position = i32(i64(cuda.blockIdx.x) * lanes + lane)
        live = position < positions
        position = position if live else i32(positions - 1)
        outer = i32(u32(position) // u32(inner))
        return live, outer, i32(position - outer * inner), lane, i32(u32(thread) // u32(lanes))

    return locate


def softmax(dtype: str, acc: str, algo: str, config: ChannelsConfig) -> Callable[..., None]:
    """y = exp(x - max) / sum exp(x - max), or its logarithm, over channels; ``inner`` counts vectors of positions."""
    vec, lanes, parts, count = astuple(config)
    A, size, logarithm = ACCUMULATOR[acc], ITEMSIZE[dtype], algo == "log"
    fetch, put = load_vector(dtype, vec, acc), store_vector(dtype, vec, acc)
    exp, larger, plus = exponential(dtype), maximum(acc), _reduce.add(acc)
    held, threads, table_size = count * vec, parts * lanes, parts * lanes * vec
    locate = locator(lanes)
    maximum_of_parts, sum_of_parts = (_reduce.over_parts(f, lanes, parts, vec) for f in (larger, plus))

    def kernel(x, y, positions, channels, inner, x_strides, y_strides):
        values = cuda.local.array(held, A)
        table = cuda.shared.array(table_size, A)
        live, outer, within, lane, part = locate(positions, inner)
        x_at = x + (outer * x_strides[0] + within * i64(vec)) * size
        y_at = y + (outer * y_strides[0] + within * i64(vec)) * size
        mine = i32(cuda.threadIdx.x)
        for i in range(count):
            c = i32(part + i * parts)
            fetch(values, i32(i * vec), x_at + (c if c < channels else i32(channels - 1)) * x_strides[1] * size)
        for i in range(count):
            if part + i * parts >= channels:
                for e in range(vec):
                    values[i * vec + e] = A(-INFINITY)
        for e in range(vec):
            largest = A(-INFINITY)
            for i in range(count):
                largest = larger(largest, values[i * vec + e])
            table[i32(e * threads + mine)] = largest
        maximum_of_parts(table)
        sums = cuda.shared.array(table_size, A)
        for e in range(vec):
            largest = table[i32(e * threads + lane)]
            total = A(0)
            for i in range(count):
                shifted = A(values[i * vec + e] - largest)
                power = exp(shifted)
                total = A(total + power)
                values[i * vec + e] = shifted if logarithm else power
            sums[i32(e * threads + mine)] = total
        sum_of_parts(sums)
        for e in range(vec):
            total = sums[i32(e * threads + lane)]
            scale = A(log(total)) if logarithm else A(A(1) / total)
            for i in range(count):
                at = i * vec + e
                values[at] = A(values[at] - scale) if logarithm else A(values[at] * scale)
        for i in range(count):
            c = i32(part + i * parts)
            if live and c < channels:
                put(values, i32(i * vec), y_at + c * y_strides[1] * size)

    return kernel


def softmax_grad(dtype: str, acc: str, algo: str, config: ChannelsConfig) -> Callable[..., None]:
    """dx = y * (dy - sum dy * y), or dy - exp(y) * sum dy for the logarithm, over channels."""
    vec, lanes, parts, count = astuple(config)
    A, size, logarithm = ACCUMULATOR[acc], ITEMSIZE[dtype], algo == "log"
    fetch, put = load_vector(dtype, vec, acc), store_vector(dtype, vec, acc)
    exp = exponential(dtype)
    held, threads, table_size = count * vec, parts * lanes, parts * lanes * vec
    locate, sum_of_parts = locator(lanes), _reduce.over_parts(_reduce.add(acc), lanes, parts, vec)

    def kernel(dy, y, dx, positions, channels, inner, dy_strides, y_strides, dx_strides):
        slopes = cuda.local.array(held, A)
        values = cuda.local.array(held, A)
        sums = cuda.shared.array(table_size, A)
        live, outer, within, lane, part = locate(positions, inner)
        dy_at = dy + (outer * dy_strides[0] + within * i64(vec)) * size
        y_at = y + (outer * y_strides[0] + within * i64(vec)) * size
        dx_at = dx + (outer * dx_strides[0] + within * i64(vec)) * size
        mine = i32(cuda.threadIdx.x)
        for i in range(count):
            c = i32(part + i * parts)
            c = c if c < channels else i32(channels - 1)
            fetch(slopes, i32(i * vec), dy_at + c * dy_strides[1] * size)
            fetch(values, i32(i * vec), y_at + c * y_strides[1] * size)
        for i in range(count):
            if part + i * parts >= channels:
                for e in range(vec):
                    slopes[i * vec + e] = A(0)
                    values[i * vec + e] = A(0)
        for e in range(vec):
            total = A(0)
            for i in range(count):
                at = i * vec + e
                total = A(total + slopes[at]) if logarithm else A(total + slopes[at] * values[at])
            sums[i32(e * threads + mine)] = total
        sum_of_parts(sums)
        for e in range(vec):
            total = sums[i32(e * threads + lane)]
            for i in range(count):
                at = i * vec + e
                if logarithm:
                    slopes[at] = A(slopes[at] - exp(values[at]) * total)
                else:
                    slopes[at] = A(values[at] * A(slopes[at] - total))
        for i in range(count):
            c = i32(part + i * parts)
            if live and c < channels:
                put(slopes, i32(i * vec), dx_at + c * dx_strides[1] * size)

    return kernel
