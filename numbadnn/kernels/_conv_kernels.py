"""The direct convolution kernels: the definition, one output element to a thread (or to a row of threads).

Each kernel is a plain sum in a fixed order, without atomics. Everything but the types is a run-time argument: extents,
strides of any sign, padding, dilation. A filter that is to be flipped comes with negated strides and an offset to its
last tap, so the kernels know correlation only. Coordinates are 32 bits; ``wide`` makes the number of an element and every
offset 64. Offsets are in elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels._cuda import cuda, device, i32, i64, u32, u64
from numbadnn.kernels._ptx import ACCUMULATOR, load, store
from numbadnn.problem import ITEMSIZE

#: threads of every block
THREADS = 256


def _coordinates(wide: bool) -> Any:
    """``(i, channels_last, C, H, W) -> (n, c, h, w)`` of element ``i`` counted in that memory order."""
    ix, ux = (i64, u64) if wide else (i32, u32)

    @device
    def coordinates(i, channels_last, C, H, W):  # type: ignore[no-untyped-def]
        inner = C if channels_last else W
        middle = W if channels_last else H
        outer = H if channels_last else C
        a = ix(ux(i) // ux(inner))
        third = i32(i - a * inner)
        b = ix(ux(a) // ux(middle))
        second = i32(a - b * middle)
        n = i32(ux(b) // ux(outer))
        first = i32(b - ix(n) * outer)
        c = third if channels_last else first
        h = first if channels_last else second
        w = second if channels_last else third
        return n, c, h, w

    return coordinates


def conv2d(dtype: str, acc: str, wide: bool) -> Callable[..., None]:
    """y[n,k,p,q] = sum over c,r,s of x[n, g*C+c, p*stride - pad + r*dilation, ...] * w[k,c,r,s]; g the group of k."""
    ix, ux = (i64, u64) if wide else (i32, u32)
    read, write, A, size = load(dtype, acc), store(dtype, acc), ACCUMULATOR[acc], ITEMSIZE[dtype]
    coordinates = _coordinates(wide)

    def kernel(  # type: ignore[no-untyped-def]
        x, w, y, count, channels_last, group_filters, image, filters, output, padding, stride, dilation,
        x_strides, w_start, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        i = ix(i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x)
        if i >= count:
            return
        H, W = image[2], image[3]
        C, R, S = filters[1], filters[2], filters[3]
        n, k, p, q = coordinates(i, channels_last, output[1], output[2], output[3])
        first = i32(i32(u32(k) // u32(group_filters)) * C)
        x_n = ix(n * x_strides[0] + first * x_strides[1])
        w_k = ix(w_start + k * w_strides[0])
        total = A(0)
        for r in range(R):
            h = i32(p * stride[0] - padding[0] + r * dilation[0])
            if h >= 0 and h < H:
                for s in range(S):
                    v = i32(q * stride[1] - padding[1] + s * dilation[1])
                    if v >= 0 and v < W:
                        x_at = ix(x_n + h * x_strides[2] + v * x_strides[3])
                        w_at = ix(w_k + r * w_strides[2] + s * w_strides[3])
                        for c in range(C):
                            a = read(x + i64(ix(x_at + c * x_strides[1])) * size)
                            b = read(w + i64(ix(w_at + c * w_strides[1])) * size)
                            total = A(total + a * b)
        target = y + i64(ix(n * y_strides[0] + k * y_strides[1] + p * y_strides[2] + q * y_strides[3])) * size
        result = A(alpha * total)
        if beta != A(0):
            result = A(result + beta * read(target))
        write(target, result)

    return kernel


def conv2d_grad_wrt_inputs(dtype: str, acc: str, wide: bool) -> Callable[..., None]:
    """x[n,c,h,w] = sum of y[n,k,p,q] * w[k,c,r,s] over the (k,p,q,r,s) whose window covers (h,w): each x gathers its own."""
    ix, ux = (i64, u64) if wide else (i32, u32)
    read, write, A, size = load(dtype, acc), store(dtype, acc), ACCUMULATOR[acc], ITEMSIZE[dtype]
    coordinates = _coordinates(wide)

    def kernel(  # type: ignore[no-untyped-def]
        y, w, x, count, channels_last, group_filters, image, filters, output, padding, stride, dilation,
        x_strides, w_start, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        i = ix(i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x)
        if i >= count:
            return
        P, Q = output[2], output[3]
        C, R, S = filters[1], filters[2], filters[3]
        K = group_filters
        n, channel, h, v = coordinates(i, channels_last, image[1], image[2], image[3])
        g = i32(u32(channel) // u32(C))
        y_n = ix(n * y_strides[0] + g * K * y_strides[1])
        w_c = ix(w_start + g * K * w_strides[0] + (channel - g * C) * w_strides[1])
        total = A(0)
        for r in range(R):
            above = i32(h + padding[0] - r * dilation[0])
            p = i32(u32(above) // u32(stride[0])) if above >= 0 else i32(P)
            if p < P and p * stride[0] == above:
                for s in range(S):
                    left = i32(v + padding[1] - s * dilation[1])
                    q = i32(u32(left) // u32(stride[1])) if left >= 0 else i32(Q)
                    if q < Q and q * stride[1] == left:
                        y_at = ix(y_n + p * y_strides[2] + q * y_strides[3])
                        w_at = ix(w_c + r * w_strides[2] + s * w_strides[3])
                        for k in range(K):
                            a = read(y + i64(ix(y_at + k * y_strides[1])) * size)
                            b = read(w + i64(ix(w_at + k * w_strides[0])) * size)
                            total = A(total + a * b)
        target = x + i64(ix(n * x_strides[0] + channel * x_strides[1] + h * x_strides[2] + v * x_strides[3])) * size
        result = A(alpha * total)
        if beta != A(0):
            result = A(result + beta * read(target))
        write(target, result)

    return kernel


def conv2d_grad_wrt_weights(dtype: str, acc: str, wide: bool) -> Callable[..., None]:
    """w[k,c,r,s] = sum over n,p,q of x[n, g*C+c, p*stride - pad + r*dilation, ...] * y[n,k,p,q].

    Few elements and a long sum: threads (lane, part) of a block share element ``lane``; ``part`` sums the positions
    (p,q) = part, part + parts, ... of every image, and the parts are added pairwise, always in the same tree.
    """
    ix, ux = (i64, u64) if wide else (i32, u32)
    read, write, A, size = load(dtype, acc), store(dtype, acc), ACCUMULATOR[acc], ITEMSIZE[dtype]
    coordinates = _coordinates(wide)

    def kernel(  # type: ignore[no-untyped-def]
        x, y, w, count, channels_last, group_filters, image, filters, output, padding, stride, dilation,
        x_strides, w_start, w_strides, y_strides, alpha, beta, lanes, parts,
    ):  # fmt: skip
        partial = cuda.shared.array(THREADS, A)
        thread = i32(cuda.threadIdx.x)
        part = i32(u32(thread) // u32(lanes))
        i = ix(i64(cuda.blockIdx.x) * lanes + (thread - part * lanes))
        H, W = image[2], image[3]
        N, P, Q = output[0], output[2], output[3]
        k, c, r, s = coordinates(i, channels_last, filters[1], filters[2], filters[3])
        total = A(0)
        if i < count:
            first = i32(i32(u32(k) // u32(group_filters)) * filters[1])
            for m in range(ix(part), ix(ix(P) * Q), ix(parts)):
                p = i32(ux(m) // ux(Q))
                q = i32(m - ix(p) * Q)
                h = i32(p * stride[0] - padding[0] + r * dilation[0])
                v = i32(q * stride[1] - padding[1] + s * dilation[1])
                if h >= 0 and h < H and v >= 0 and v < W:
                    x_at = ix((first + c) * x_strides[1] + h * x_strides[2] + v * x_strides[3])
                    y_at = ix(k * y_strides[1] + p * y_strides[2] + q * y_strides[3])
                    for n in range(N):
                        a = read(x + i64(ix(x_at + n * x_strides[0])) * size)
                        b = read(y + i64(ix(y_at + n * y_strides[0])) * size)
                        total = A(total + a * b)
        partial[thread] = total
        step = i32(parts // 2)
        while step > 0:
            cuda.syncthreads()
            if part < step:
                partial[thread] = A(partial[thread] + partial[i32(thread + step * lanes)])
            step = i32(step // 2)
        if i < count and part == 0:
            at = ix(w_start + k * w_strides[0] + c * w_strides[1] + r * w_strides[2] + s * w_strides[3])
            target = w + i64(at) * size
            result = A(alpha * partial[thread])
            if beta != A(0):
                result = A(result + beta * read(target))
            write(target, result)

    return kernel
