"""Bilinear sampling. ``planes``: a thread takes a point and walks over channels; ``channels``: some channels of NHWC a thread.

A block takes a tile of the output, so that rows of the image that neighbouring rows of points need are read once. Where all
four pixels count, none is tested; else pixels outside the image, or of weight 0, are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import load, store, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, WORD, cuda, i32, i64, u32
from numbadnn.kernels.lang.packed import load_words, widen
from numbadnn.kernels.spatial.device import point as _spatial_point
from numbadnn.kernels.spatial.device.point import INTEGER64
from numbadnn.kernels.spatial.layout import TileConfig
from numbadnn.problem import ITEMSIZE


def planes(dtype: str, place: str, acc: str, config: TileConfig) -> Callable[..., None]:
    """Any strides; ``config.channels`` channels a thread."""
    A, size, grid_size = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[place]
    held, unroll = config.channels, min(config.channels, 4)
    read, write = load(dtype, acc), store(dtype, acc)
    position, cell, nothing = _spatial_point.position(place, acc), _spatial_point.cell(acc), _spatial_point.nothing(acc)
    locate = _spatial_point.tile(config.columns, config.rows)
    four = 4 * unroll

    def kernel(
        img, grid, y, across, down, chunks, channels, height, width, out_height, out_width, half_width,
        half_height, xs, gs, ys,
    ):  # fmt: skip
        values = cuda.local.array(four, A)
        column, row, chunk, n = locate(i32(cuda.threadIdx.x), i32(cuda.blockIdx.x), across, down, chunks)
        if column >= out_width or row >= out_height:
            return
        at = grid + (n * gs[0] + row * gs[1] + column * gs[2]) * grid_size
        px, py = position(at, gs[3] * grid_size, half_width, half_height)
        sound, j, i, u, v = cell(px, py, height, width)
        c = i32(chunk * held)
        count = i32(min(i32(channels - c), i32(held)))
        target = y + (n * ys[0] + c * ys[1] + row * ys[2] + column * ys[3]) * size
        line = img + (n * xs[0] + c * xs[1] + i * xs[2] + j * xs[3]) * size
        right, down_step, next_x, next_y = xs[3] * size, xs[2] * size, xs[1] * size, ys[1] * size
        both = right + down_step  # once: NVVM orders sums of three addresses now so, now so
        w00, w01 = A((A(1) - v) * (A(1) - u)), A((A(1) - v) * u)
        w10, w11 = A(v * (A(1) - u)), A(v * u)
        left_in, right_in = sound and j >= 0, sound and j + 1 < width
        top_in, bottom_in = i >= 0, i + 1 < height
        inside = left_in and right_in and top_in and bottom_in
        if inside and w00 != 0 and w01 != 0 and w10 != 0 and w11 != 0:
            for _ in range(i32(u32(count) // u32(unroll))):
                for q in range(unroll):
                    a = line + q * next_x
                    values[4 * q] = read(a)
                    values[4 * q + 1] = read(a + right)
                    values[4 * q + 2] = read(a + down_step)
                    values[4 * q + 3] = read(a + both)
                for q in range(unroll):
                    upper = A(w00 * values[4 * q] + w01 * values[4 * q + 1])
                    lower = A(w10 * values[4 * q + 2] + w11 * values[4 * q + 3])
                    write(target + q * next_y, A(upper + lower))
                line += unroll * next_x
                target += unroll * next_y
            for _ in range(i32(u32(count) % u32(unroll))):
                upper = A(w00 * read(line) + w01 * read(line + right))
                lower = A(w10 * read(line + down_step) + w11 * read(line + both))
                write(target, A(upper + lower))
                line += next_x
                target += next_y
        else:
            use00, use01 = left_in and top_in and w00 != 0, right_in and top_in and w01 != 0
            use10, use11 = left_in and bottom_in and w10 != 0, right_in and bottom_in and w11 != 0
            start = nothing(px, py)
            for _ in range(count):
                upper, lower = start, A(0)
                if use00:
                    upper = A(upper + w00 * read(line))
                if use01:
                    upper = A(upper + w01 * read(line + right))
                if use10:
                    lower = A(lower + w10 * read(line + down_step))
                if use11:
                    lower = A(lower + w11 * read(line + both))
                write(target, A(upper + lower))
                line += next_x
                target += next_y

    return kernel


def channels(dtype: str, place: str, acc: str, config: TileConfig) -> Callable[..., None]:
    """NHWC: ``config.channels`` neighbouring channels in one access; the threads of a block share its tile's points.

    First a thread a point puts in shared memory where its four pixels lie, their weights (0 where one is not looked at) and
    where its result goes; then all threads walk over (point, vector of channels). A pixel of weight 0 is read at the place of
    one that may count.
    """
    A, size, grid_size = ACCUMULATOR[acc], ITEMSIZE[dtype], ITEMSIZE[place]
    vec, threads, points = config.channels, config.threads, config.columns * config.rows
    words = vec * size // 4
    fetch, convert, put = load_words(words), widen(dtype, vec, acc), store_vector(dtype, vec, acc)
    position, cell, nothing = _spatial_point.position(place, acc), _spatial_point.cell(acc), _spatial_point.nothing(acc)
    locate = _spatial_point.tile(config.columns, config.rows)
    held, rounds = 4 * words, -(-points // threads)

    def kernel(
        img, grid, y, across, down, vectors, height, width, out_height, out_width, half_width, half_height, xs, gs, ys
    ):
        offsets = cuda.shared.array((4, points), INTEGER64)
        targets = cuda.shared.array(points, INTEGER64)
        weights = cuda.shared.array((4, points), A)
        starts = cuda.shared.array(points, A)
        raw = cuda.local.array(held, WORD)
        values = cuda.local.array(vec, A)
        result = cuda.local.array(vec, A)
        thread = i32(cuda.threadIdx.x)
        _, _, _, n = locate(i32(0), i32(cuda.blockIdx.x), across, down, i32(1))
        image, out = img + n * xs[0] * size, y + n * ys[0] * size
        for r in range(rounds):
            point = i32(thread + r * threads)
            if point < points:
                column, row, _, _ = locate(point, i32(cuda.blockIdx.x), across, down, i32(1))
                live = column < out_width and row < out_height
                column, row = i32(min(column, i32(out_width - 1))), i32(min(row, i32(out_height - 1)))
                at = grid + (n * gs[0] + row * gs[1] + column * gs[2]) * grid_size
                px, py = position(at, gs[3] * grid_size, half_width, half_height)
                sound, j, i, u, v = cell(px, py, height, width)
                left, right = i64(max(j, i32(0))) * xs[3], i64(min(i32(j + 1), i32(width - 1))) * xs[3]
                top, bottom = i64(max(i, i32(0))) * xs[2], i64(min(i32(i + 1), i32(height - 1))) * xs[2]
                w_left = A(A(1) - u) if sound and j >= 0 else A(0)
                w_right = u if sound and j + 1 < width else A(0)
                w_top = A(A(1) - v) if i >= 0 else A(0)
                w_bottom = v if i + 1 < height else A(0)
                starts[point] = nothing(px, py)
                targets[point] = (row * ys[2] + column * ys[3]) * size if live else i64(-1)
                offsets[0, point] = (top + left) * size
                offsets[1, point] = (top + right) * size
                offsets[2, point] = (bottom + left) * size
                offsets[3, point] = (bottom + right) * size
                weights[0, point] = A(w_top * w_left)
                weights[1, point] = A(w_top * w_right)
                weights[2, point] = A(w_bottom * w_left)
                weights[3, point] = A(w_bottom * w_right)
        cuda.syncthreads()
        step_points, step_vectors = i32(u32(threads) // u32(vectors)), i32(u32(threads) % u32(vectors))
        point = i32(u32(thread) // u32(vectors))
        vector = i32(thread - point * vectors)
        while point < points:
            for q in range(4):
                fetch(raw, i32(q * words), image + offsets[q, point] + vector * i64(vec * size))
            start, to = starts[point], targets[point]
            for e in range(vec):
                result[e] = start
            for q in range(4):
                weight = weights[q, point]
                if weight != 0:
                    convert(values, i32(0), raw, i32(q * words))
                    for e in range(vec):
                        result[e] = A(result[e] + weight * values[e])
            if to >= 0:
                put(result, i32(0), out + to + vector * i64(vec * size))
            point, vector = i32(point + step_points), i32(vector + step_vectors)
            if vector >= vectors:
                point, vector = i32(point + 1), i32(vector - vectors)

    return kernel
