"""The direct convolution kernels: the definition, one output element to a thread (or to a row of threads).

Each kernel is a plain sum in a fixed order, without atomics. All but the types and the number of spatial axes is a
run-time argument: extents, strides of any sign, padding, dilation. Images come as volumes, which an image of two axes is
with a depth of 1. A filter that is to be flipped comes with negated strides and an offset to its last tap, so the kernels
know correlation only; unshared filters have strides along the output's positions (``regions``), shared ones 0 there.
Padding is zeros that are multiplied like pixels: with an infinite filter they give NaN. What no window reaches is no term.
Coordinates are 32 bits; ``wide`` makes the number of an element and every offset 64. Offsets are in elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.access import load
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32, u64
from numbadnn.kernels.lang.epilogue import scaled
from numbadnn.kernels.lang.long_sums import LEAF, compensated
from numbadnn.problem import ITEMSIZE

#: threads of every block
THREADS = 256


def _coordinates(axes: int, wide: bool) -> Any:
    """``(i, channels_last, extents) -> (n, c, d, h, w)`` of element ``i`` of (n, c, d, h, w) counted in that memory order."""
    ix, ux = (i64, u64) if wide else (i32, u32)
    flat = axes == 2

    @device
    def coordinates(i, channels_last, extents):
        C, D, H, W = extents[1], extents[2], extents[3], extents[4]
        n, last = ix(i), i32(0)
        if channels_last:
            n = ix(ux(i) // ux(C))
            last = i32(i - n * C)
        a = ix(ux(n) // ux(W))
        w = i32(n - a * W)
        b = ix(ux(a) // ux(H))
        h = i32(a - b * H)
        d = i32(0)
        if not flat:
            a = b
            b = ix(ux(a) // ux(D))
            d = i32(a - b * D)
        c = last
        if not channels_last:
            a = b
            b = ix(ux(a) // ux(C))
            c = i32(a - b * C)
        return i32(b), c, d, h, w

    return coordinates


def _sums(dtype: str, acc: str, wide: bool, long: bool) -> tuple[Any, Any, Any]:
    """(gather, padding, close) of a sum (total, lost, part, held), which starts at 0: ``part`` has the last ``held`` terms.

    ``gather(sum, a, a_at, a_step, b, b_at, b_step, count) -> sum`` adds products of neighbours, ``padding(part, b, ...)``
    those of zeros. Only a sum that is ``long`` moves its part to the total from time to time, with account of roundings.
    """
    ix, read, A, size = i64 if wide else i32, load(dtype, acc), ACCUMULATOR[acc], ITEMSIZE[dtype]
    (add, finish), half = compensated(acc), LEAF // 2  # a part has fewer than LEAF terms

    @device
    def products(part, a, a_at, a_step, b, b_at, b_step, first, last):
        for c in range(first, last):
            one = read(a + i64(ix(a_at + c * a_step)) * size)
            other = read(b + i64(ix(b_at + c * b_step)) * size)
            part = A(part + one * other)
        return part

    @device
    def gather(total, lost, part, held, a, a_at, a_step, b, b_at, b_step, count):
        if long:
            for first in range(i32(0), i32(count), i32(half)):
                last = i32(min(i32(first + half), i32(count)))
                part = products(part, a, a_at, a_step, b, b_at, b_step, first, last)
                held = i32(held + last - first)
                if held >= half:
                    total, lost = add(total, lost, part)
                    part, held = A(0), i32(0)
        else:
            part = products(part, a, a_at, a_step, b, b_at, b_step, i32(0), count)
        return total, lost, part, held

    @device
    def padding(part, b, b_at, b_step, count):
        for c in range(count):
            part = A(part + A(0) * read(b + i64(ix(b_at + c * b_step)) * size))
        return part

    @device
    def close(total, lost, part):
        if long:
            total, lost = add(total, lost, part)
            part = finish(total, lost)
        return part

    return gather, padding, close


def forward(axes: int, dtype: str, acc: str, wide: bool, long: bool) -> Callable[..., None]:
    """y[n,k,o,p,q] = sum over c,t,r,s of x[n, g*C+c, o*stride - pad + t*dilation, ...] * w[k,c,t,r,s]; g the group of k."""
    ix, ux = (i64, u64) if wide else (i32, u32)
    store_scaled, A, size = scaled(dtype, acc), ACCUMULATOR[acc], ITEMSIZE[dtype]
    coordinates, flat = _coordinates(axes, wide), axes == 2
    gather, zeros, close = _sums(dtype, acc, wide, long)

    def kernel(
        x, w, y, count, channels_last, group_filters, image, filters, output, padding, stride, dilation,
        x_strides, w_start, w_strides, regions, y_strides, alpha, beta,
    ):  # fmt: skip
        i = ix(i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x)
        if i >= count:
            return
        D, H, W = image[2], image[3], image[4]
        C, T, R, S = filters[1], filters[2], filters[3], filters[4]
        if flat:
            D, T = i32(1), i32(1)
        n, k, o, p, q = coordinates(i, channels_last, output)
        first = i32(i32(u32(k) // u32(group_filters)) * C)
        x_n = ix(n * x_strides[0] + first * x_strides[1])
        w_k = ix(w_start + k * w_strides[0] + o * regions[0] + p * regions[1] + q * regions[2])
        total, lost, part, held = A(0), A(0), A(0), i32(0)
        for t in range(T):
            e = i32(o * stride[0] - padding[0] + t * dilation[0])
            for r in range(R):
                h = i32(p * stride[1] - padding[1] + r * dilation[1])
                for s in range(S):
                    v = i32(q * stride[2] - padding[2] + s * dilation[2])
                    w_at = ix(w_k + t * w_strides[2] + r * w_strides[3] + s * w_strides[4])
                    if e >= 0 and e < D and h >= 0 and h < H and v >= 0 and v < W:
                        x_at = ix(x_n + e * x_strides[2] + h * x_strides[3] + v * x_strides[4])
                        total, lost, part, held = gather(
                            total, lost, part, held, x, x_at, x_strides[1], w, w_at, w_strides[1], C
                        )
                    else:
                        part = zeros(part, w, w_at, w_strides[1], C)
        total = close(total, lost, part)
        at = n * y_strides[0] + k * y_strides[1] + o * y_strides[2] + p * y_strides[3] + q * y_strides[4]
        target = y + i64(ix(at)) * size
        store_scaled(target, total, alpha, beta)

    return kernel


def grad_inputs(axes: int, dtype: str, acc: str, wide: bool, long: bool) -> Callable[..., None]:
    """x[n,c,d,h,w] = sum of y[n,k,o,p,q] * w[k,c,t,r,s] over all whose window covers (d,h,w): each x gathers its own."""
    ix, ux = (i64, u64) if wide else (i32, u32)
    store_scaled, A, size = scaled(dtype, acc), ACCUMULATOR[acc], ITEMSIZE[dtype]
    coordinates, flat = _coordinates(axes, wide), axes == 2
    gather, _, close = _sums(dtype, acc, wide, long)

    @device
    def source(at, padding, tap, dilation, stride, extent):
        """The output position whose tap meets ``at``, -1 where there is none."""
        behind = i32(at + padding - tap * dilation)
        position = i32(u32(behind) // u32(stride)) if behind >= 0 else i32(extent)
        return position if position < extent and position * stride == behind else i32(-1)

    def kernel(
        y, w, x, count, channels_last, group_filters, image, filters, output, padding, stride, dilation,
        x_strides, w_start, w_strides, regions, y_strides, alpha, beta,
    ):  # fmt: skip
        i = ix(i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x)
        if i >= count:
            return
        C, T, R, S = filters[1], filters[2], filters[3], filters[4]
        if flat:
            T = i32(1)
        K = group_filters
        n, channel, d, h, v = coordinates(i, channels_last, image)
        g = i32(u32(channel) // u32(C))
        y_n = ix(n * y_strides[0] + g * K * y_strides[1])
        w_c = ix(w_start + g * K * w_strides[0] + (channel - g * C) * w_strides[1])
        total, lost, part, held = A(0), A(0), A(0), i32(0)
        for t in range(T):
            o = i32(0) if flat else source(d, padding[0], t, dilation[0], stride[0], output[2])
            if o >= 0:
                for r in range(R):
                    p = source(h, padding[1], r, dilation[1], stride[1], output[3])
                    if p >= 0:
                        for s in range(S):
                            q = source(v, padding[2], s, dilation[2], stride[2], output[4])
                            if q >= 0:
                                y_at = ix(y_n + o * y_strides[2] + p * y_strides[3] + q * y_strides[4])
                                w_at = ix(w_c + t * w_strides[2] + r * w_strides[3] + s * w_strides[4])
                                w_at = ix(w_at + o * regions[0] + p * regions[1] + q * regions[2])
                                total, lost, part, held = gather(
                                    total, lost, part, held, y, y_at, y_strides[1], w, w_at, w_strides[0], K
                                )
        total = close(total, lost, part)
        at = n * x_strides[0] + channel * x_strides[1] + d * x_strides[2] + h * x_strides[3] + v * x_strides[4]
        target = x + i64(ix(at)) * size
        store_scaled(target, total, alpha, beta)

    return kernel


def grad_weights(axes: int, dtype: str, acc: str, wide: bool, long: bool) -> Callable[..., None]:
    """w[k,c,t,r,s] = sum over n,o,p,q of x[n, g*C+c, o*stride - pad + t*dilation, ...] * y[n,k,o,p,q].

    Few elements and a long sum: threads (lane, part) of a block share element ``lane``; ``part`` sums the positions
    (o,p,q) = part, part + parts, ... of every image, and the parts are added pairwise, always in the same tree.
    """
    ix, ux = (i64, u64) if wide else (i32, u32)
    store_scaled, A, size = scaled(dtype, acc), ACCUMULATOR[acc], ITEMSIZE[dtype]
    coordinates, flat = _coordinates(axes, wide), axes == 2
    gather, zeros, close = _sums(dtype, acc, wide, long)

    def kernel(
        x, y, w, count, channels_last, group_filters, image, filters, output, padding, stride, dilation,
        x_strides, w_start, w_strides, regions, y_strides, alpha, beta, lanes, parts,
    ):  # fmt: skip
        partial = cuda.shared.array(THREADS, A)
        thread = i32(cuda.threadIdx.x)
        mine = i32(u32(thread) // u32(lanes))
        i = ix(i64(cuda.blockIdx.x) * lanes + (thread - mine * lanes))
        D, H, W = image[2], image[3], image[4]
        N, O, P, Q = output[0], output[2], output[3], output[4]
        if flat:
            D, O = i32(1), i32(1)
        k, c, t, r, s = coordinates(i, channels_last, filters)
        total, lost, part, held = A(0), A(0), A(0), i32(0)
        if i < count:
            first = i32(i32(u32(k) // u32(group_filters)) * filters[1])
            for m in range(ix(mine), ix(ix(O) * ix(P) * Q), ix(parts)):
                line = i32(ux(m) // ux(Q))
                q = i32(m - ix(line) * Q)
                o = i32(0) if flat else i32(u32(line) // u32(P))
                p = i32(line - o * P)
                e = i32(o * stride[0] - padding[0] + t * dilation[0])
                h = i32(p * stride[1] - padding[1] + r * dilation[1])
                v = i32(q * stride[2] - padding[2] + s * dilation[2])
                y_at = ix(k * y_strides[1] + o * y_strides[2] + p * y_strides[3] + q * y_strides[4])
                if e >= 0 and e < D and h >= 0 and h < H and v >= 0 and v < W:
                    x_at = ix((first + c) * x_strides[1] + e * x_strides[2] + h * x_strides[3] + v * x_strides[4])
                    total, lost, part, held = gather(
                        total, lost, part, held, x, x_at, x_strides[0], y, y_at, y_strides[0], N
                    )
                else:
                    part = zeros(part, y, y_at, y_strides[0], N)
        partial[thread] = close(total, lost, part)
        step = i32(parts // 2)
        while step > 0:
            cuda.syncthreads()
            if mine < step:
                partial[thread] = A(partial[thread] + partial[i32(thread + step * lanes)])
            step = i32(step // 2)
        if i < count and mine == 0:
            at = w_start + k * w_strides[0] + c * w_strides[1]
            at = ix(at + t * w_strides[2] + r * w_strides[3] + s * w_strides[4])
            target = w + i64(at) * size
            store_scaled(target, partial[thread], alpha, beta)

    return kernel


def grad_unshared(axes: int, dtype: str, acc: str, wide: bool, long: bool) -> Callable[..., None]:
    """w[k,p,q,c,r,s] = sum over n of x[n, g*C+c, p*stride - pad + r*dilation, ...] * y[n,k,p,q]: two axes, many elements."""
    ix, ux = (i64, u64) if wide else (i32, u32)
    store_scaled, A, size = scaled(dtype, acc), ACCUMULATOR[acc], ITEMSIZE[dtype]
    gather, zeros, close = _sums(dtype, acc, wide, long)

    def kernel(
        x, y, w, count, channels_last, group_filters, image, filters, output, padding, stride, dilation,
        x_strides, w_start, w_strides, regions, y_strides, alpha, beta, lanes, parts,
    ):  # fmt: skip
        i = ix(i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x)
        if i >= count:
            return
        C, R, S = filters[1], filters[3], filters[4]
        N, P, Q = output[0], output[3], output[4]
        a = ix(ux(i) // ux(S))
        s = i32(i - a * S)
        b = ix(ux(a) // ux(R))
        r = i32(a - b * R)
        a = ix(ux(b) // ux(C))
        c = i32(b - a * C)
        b = ix(ux(a) // ux(Q))
        q = i32(a - b * Q)
        k = i32(ux(b) // ux(P))
        p = i32(b - ix(k) * P)
        h = i32(p * stride[1] - padding[1] + r * dilation[1])
        v = i32(q * stride[2] - padding[2] + s * dilation[2])
        total, lost, part, held = A(0), A(0), A(0), i32(0)
        y_at = ix(k * y_strides[1] + p * y_strides[3] + q * y_strides[4])
        if h >= 0 and h < image[3] and v >= 0 and v < image[4]:
            channel = i32(i32(u32(k) // u32(group_filters)) * C + c)
            x_at = ix(channel * x_strides[1] + h * x_strides[3] + v * x_strides[4])
            total, lost, part, held = gather(total, lost, part, held, x, x_at, x_strides[0], y, y_at, y_strides[0], N)
        else:
            part = zeros(part, y, y_at, y_strides[0], N)
        total = close(total, lost, part)
        at = w_start + k * w_strides[0] + p * regions[1] + q * regions[2]
        target = w + i64(ix(at + c * w_strides[1] + r * w_strides[3] + s * w_strides[4])) * size
        store_scaled(target, total, alpha, beta)

    return kernel
