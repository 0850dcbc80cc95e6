"""Between images and Toeplitz matrices: ``gather`` (im2col), ``scatter`` (col2im), and ``total``, a sum of partial results.

The Toeplitz matrix of an image has a row for each channel and tap and a column for each output position: what the
filter's tap meets there, 0 on padding. All kernels know three spatial axes. ``scatter`` is a gather too: each pixel
adds its own terms, tap by tap, so that the order never changes. A flipped filter is taps numbered backwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.epilogue import scaled
from numbadnn.problem import ITEMSIZE

THREADS = 256


def _split() -> Any:
    """``split(i, sizes) -> (a, b, c)``: i = (a * sizes[1] + b) * sizes[2] + c."""

    @device
    def split(i, sizes):
        rest = i32(u32(i) // u32(sizes[2]))
        first = i32(u32(rest) // u32(sizes[1]))
        return first, i32(rest - first * sizes[1]), i32(i - rest * sizes[2])

    return split


def gather(dtype: str, by_position: bool, last: bool) -> Callable[..., None]:
    """matrix[image, row, position] = image[channel(row), position * stride - pad + tap(row) * dilation].

    ``by_position``: a position's rows are neighbours in memory, else a row's positions are. ``last``: rows count
    channels within taps, else taps within channels.
    """
    acc, size = "float64" if dtype == "float64" else "float32", ITEMSIZE[dtype]
    A, read, write, split = ACCUMULATOR[acc], load(dtype, acc), store(dtype, acc), _split()

    def kernel(
        x, matrix, images, channels, extents, taps, flip, positions, padding, stride, dilation, x_batch, x_channel,
        x_strides, matrix_batch,
    ):  # fmt: skip
        area = i32(taps[0] * taps[1] * taps[2])
        rows = i32(channels * area)
        columns = i32(positions[0] * positions[1] * positions[2])
        inner_size = rows if by_position else columns
        outer_size = columns if by_position else rows
        inner = i32(i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x)
        if inner >= inner_size:
            return
        for image in range(i32(cuda.blockIdx.z), images, i32(cuda.gridDim.z)):
            for outer in range(i32(cuda.blockIdx.y), outer_size, i32(cuda.gridDim.y)):
                row = inner if by_position else outer
                position = outer if by_position else inner
                channel = i32(row - i32(u32(row) // u32(channels)) * channels) if last else i32(u32(row) // u32(area))
                tap = i32(u32(row) // u32(channels)) if last else i32(row - channel * area)
                t, r, s = split(i32(area - 1 - tap) if flip else tap, taps)
                o, p, q = split(position, positions)
                d = i32(o * stride[0] - padding[0] + t * dilation[0])
                h = i32(p * stride[1] - padding[1] + r * dilation[1])
                v = i32(q * stride[2] - padding[2] + s * dilation[2])
                inside = d >= 0 and d < extents[0] and h >= 0 and h < extents[1] and v >= 0 and v < extents[2]
                at = image * x_batch + channel * x_channel
                at += d * x_strides[0] + h * x_strides[1] + v * x_strides[2]
                value = read(x + (at if inside else i64(0)) * size)
                target = image * matrix_batch + i64(outer) * inner_size + inner
                write(matrix + target * size, value if inside else A(0))

    return kernel


def scatter(dtype: str, held: str, by_position: bool, last: bool) -> Callable[..., None]:
    """image[pixel] = alpha * the sum of the matrix's elements that ``gather`` would have read from it + beta * image[pixel].

    ``held`` is the matrix's type.
    """
    acc, size, held_size = "float64" if dtype == "float64" else "float32", ITEMSIZE[dtype], ITEMSIZE[held]
    A, store_scaled, read_held, split = ACCUMULATOR[acc], scaled(dtype, acc), load(held, acc), _split()

    def kernel(
        matrix, x, images, channels, extents, taps, flip, positions, padding, stride, dilation, x_batch, x_channel,
        x_strides, matrix_batch, channels_last, alpha, beta,
    ):  # fmt: skip
        area = i32(taps[0] * taps[1] * taps[2])
        rows = i32(channels * area)
        columns = i32(positions[0] * positions[1] * positions[2])
        pixels = i32(extents[0] * extents[1] * extents[2])
        inner_size = channels if channels_last else pixels
        outer_size = pixels if channels_last else channels
        inner = i32(i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x)
        if inner >= inner_size:
            return
        for image in range(i32(cuda.blockIdx.z), images, i32(cuda.gridDim.z)):
            for outer in range(i32(cuda.blockIdx.y), outer_size, i32(cuda.gridDim.y)):
                channel = inner if channels_last else outer
                d, h, v = split(outer if channels_last else inner, extents)
                total = A(0)
                for tap in range(area):
                    t, r, s = split(i32(area - 1 - tap) if flip else tap, taps)
                    down = i32(d + padding[0] - t * dilation[0])
                    low = i32(h + padding[1] - r * dilation[1])
                    left = i32(v + padding[2] - s * dilation[2])
                    if down >= 0 and low >= 0 and left >= 0:
                        o = i32(u32(down) // u32(stride[0]))
                        p = i32(u32(low) // u32(stride[1]))
                        q = i32(u32(left) // u32(stride[2]))
                        exact = o * stride[0] == down and p * stride[1] == low and q * stride[2] == left
                        if exact and o < positions[0] and p < positions[1] and q < positions[2]:
                            row = i32(tap * channels + channel) if last else i32(channel * area + tap)
                            position = i32((o * positions[1] + p) * positions[2] + q)
                            at = i64(position) * rows + row if by_position else i64(row) * columns + position
                            total = A(total + read_held(matrix + (image * matrix_batch + at) * held_size))
                at = image * x_batch + channel * x_channel
                target = x + (at + d * x_strides[0] + h * x_strides[1] + v * x_strides[2]) * size
                store_scaled(target, total, alpha, beta)

    return kernel


def total(held: str, dtype: str) -> Callable[..., None]:
    """result[row, column] = alpha * the sum over parts of partial[part, row, column], in their order, + beta * result."""
    acc, size, held_size = "float64" if dtype == "float64" else "float32", ITEMSIZE[dtype], ITEMSIZE[held]
    A, store_scaled, read_held = ACCUMULATOR[acc], scaled(dtype, acc), load(held, acc)

    def kernel(partial, result, count, parts, columns, row_stride, alpha, beta):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i >= count:
            return
        value = A(0)
        for part in range(parts):
            value = A(value + read_held(partial + (part * count + i) * held_size))
        row = i64(i // columns)
        target = result + (row * row_stride + (i - row * columns)) * size
        store_scaled(target, value, alpha, beta)

    return kernel
