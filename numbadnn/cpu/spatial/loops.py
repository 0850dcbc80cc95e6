"""The sampler of the spatial transformer and its gradients on strided memory: kernels.

Points are taken ``TILE`` at a time: ``_corners`` finds the four pixels and weights of each once, then every channel uses them.
Channels that lie next to each other in memory (NHWC) are walked innermost, else points are. The gradient in the image is added
up, point by point in their order, in accumulators that belong to one job: for either layout a pixel's channels lie together,
so that a vector of them is added at once. Loading this module imports Numba.
"""

from __future__ import annotations

import math

import numpy as np
from numba import prange

from numbadnn.cpu.lang.elements import itemsize, load1, store1
from numbadnn.cpu.lang.typed import flush_as, inner
from numbadnn.cpu.lang.vector import CHAIN, carry, lanes, made_good
from numbadnn.cpu.spatial.channels import sample, slope, spread
from numbadnn.cpu.spatial.planes import sample_plane, slope_plane, whole_blocks

TILE = 256
#: lanes of a sum over a row of the grid
LANES = 16


@inner
def _corners(grid, place, first, count, width, image, steps, strides, offsets, weights, inside, uv):
    """For points first ... first + count - 1 of an image's grid: pixels as offsets, their weights, whether they are inside.

    ``image`` = height and width, ``steps`` = what a row and a column are worth in ``offsets``; ``uv`` = u, v, and 0 or NaN.
    """
    size = itemsize(place)
    height, columns = image
    one = weights.dtype.type(1)
    half_x, half_y = one * (columns - 1) / 2, one * (height - 1) / 2
    for k in range(count):
        p = first + k
        row = p // width
        at = grid + (row * strides[1] + (p - row * width) * strides[2]) * size
        x = (load1(at, 0, place) + one) * half_x
        y = (load1(at, strides[3], place) + one) * half_y
        sound = x > -1 and x < columns and y > -1 and y < height
        uv[2, k] = x if x != x else y if y != y else one * 0
        x, y = (x, y) if sound else (one * 0, one * 0)
        j, i = math.floor(x), math.floor(y)
        u, v = x - j, y - i
        uv[0, k], uv[1, k] = u, v
        for corner in range(4):
            r, c = i + corner // 2, j + corner % 2
            within = sound and r >= 0 and r < height and c >= 0 and c < columns
            weight = (v if corner // 2 else one - v) * (u if corner % 2 else one - u)
            inside[corner, k] = within
            weights[corner, k] = weight if within else 0
            offsets[corner, k] = r * steps[0] + c * steps[1] if within else 0


@inner
def _carry(values, upper, low, first, n, begin):
    """Add n sums to what ``upper`` and ``low`` hold, or, where they ``begin``, put them there; then the sums are 0."""
    for k in range(first, first + n):
        if begin:
            upper[k], low[k] = values[k], 0
        else:
            upper[k], low[k] = carry(upper[k], low[k], values[k])
        values[k] = 0


@inner
def _made_good(values, upper, low, first, n):
    """The sums, of what was carried and what has come since."""
    for k in range(first, first + n):
        total, missing = carry(upper[k], low[k], values[k])
        values[k] = made_good(total, missing)


@inner
def _relieve(offsets, count, plane, upper, low, met, carried, pitch, width, unit):
    """Of pixels that many points have met, carry the sums.

    ``met`` counts the points by the last of their pixels, each ``unit`` elements of a plane having a place. A pixel takes part
    in points of four such; so it adds up no more than four times CHAIN / 2 terms, and those of a tile, before they are carried.
    """
    for k in range(count):
        last = max(offsets[0, k], offsets[1, k], offsets[2, k], offsets[3, k])
        number = met[last // unit] + 1
        met[last // unit] = number
        if number >= CHAIN // 2:
            met[last // unit] = 0
            for pixel in (last, last - pitch, last - width * pitch, last - (width + 1) * pitch):
                if pixel >= 0:
                    _carry(plane, upper, low, pixel, pitch, carried[pixel // unit] == 0)
                    carried[pixel // unit] = 1


def sampler(
    img, grid, y, like, place, sizes, runs, pairs, xs, gs, ys, offsets, weights, inside, uv, targets, flags, threads
):  # fmt: skip
    """y from img and grid. ``sizes``: N, C, H, W, H', W'. A job is a tile of one image's points.

    ``runs``: channels lie next to each other; ``pairs``: pixels of a row do, and all points of a plane of y.
    """
    n, channels, height, width, out_height, out_width = sizes
    points = out_height * out_width
    tiles = (points + TILE - 1) // TILE
    for tid in prange(threads):
        size, grid_size = itemsize(like), itemsize(place)
        o, w, ins, t = offsets[tid], weights[tid], inside[tid], targets[tid]
        for job in range(n * tiles * tid // threads, n * tiles * (tid + 1) // threads):
            image, first = job // tiles, job % tiles * TILE
            count = min(TILE, points - first)
            at = grid + image * gs[0] * grid_size
            _corners(at, place, first, count, out_width, (height, width), (xs[2], xs[3]), gs, o, w, ins, uv[tid])
            for k in range(count):
                row = (first + k) // out_width
                t[k] = row * ys[2] + (first + k - row * out_width) * ys[3]
            source, target = img + image * xs[0] * size, y + image * ys[0] * size
            if runs:
                for k in range(count):
                    sample(source, target + t[k] * size, like, channels, k, o, w, uv[tid, 2, k])
            else:
                whole_blocks(flags[tid], count, lanes(like), w, pairs)
                for c in range(channels):
                    a, b = source + c * xs[1] * size, target + c * ys[1] * size
                    sample_plane(a, xs[2] * size, b, like, count, t, o, w, uv[tid, 2], flags[tid])


# ---- gradients -------------------------------------------------------------------------------------------------------


def slopes(
    img, grid, dy, dgrid, like, place, sizes, runs, pairs, xs, gs, ys, ds,
    offsets, weights, inside, uv, targets, sums, flags, threads,
):  # fmt: skip
    """dgrid from img, grid and dy; as ``sampler``."""
    n, channels, height, width, out_height, out_width = sizes
    points = out_height * out_width
    tiles = (points + TILE - 1) // TILE
    for tid in prange(threads):
        size, grid_size = itemsize(like), itemsize(place)
        block = CHAIN * (lanes(like) if runs else 1)  # channels that are added one after the other
        o, w, ins, t = offsets[tid], weights[tid], inside[tid], targets[tid]
        s, upper, low = sums[tid, 0], sums[tid, 1], sums[tid, 2]
        for job in range(n * tiles * tid // threads, n * tiles * (tid + 1) // threads):
            image, first = job // tiles, job % tiles * TILE
            count = min(TILE, points - first)
            at = grid + image * gs[0] * grid_size
            _corners(at, place, first, count, out_width, (height, width), (xs[2], xs[3]), gs, o, w, ins, uv[tid])
            for k in range(count):
                row = (first + k) // out_width
                t[k] = row * ys[2] + (first + k - row * out_width) * ys[3]
                for corner in range(4):
                    s[corner, k] = 0
            source, slope_at = img + image * xs[0] * size, dy + image * ys[0] * size
            if not runs:
                whole_blocks(flags[tid], count, lanes(like), ins, pairs)
            for start in range(0, channels, block):
                end = min(start + block, channels)
                if runs:
                    for k in range(count):
                        a, b = source + start * size, slope_at + (t[k] + start) * size
                        slope(a, b, like, end - start, k, o, ins, s)
                else:
                    for c in range(start, end):
                        a, b = source + c * xs[1] * size, slope_at + c * ys[1] * size
                        slope_plane(a, xs[2] * size, b, like, count, t, o, ins, s, flags[tid])
                if channels > block:
                    for corner in range(4):
                        if end < channels:
                            _carry(s[corner], upper[corner], low[corner], 0, count, start == 0)
                        else:
                            _made_good(s[corner], upper[corner], low[corner], 0, count)
            for k in range(count):
                u, v, nothing = uv[tid, 0, k], uv[tid, 1, k], uv[tid, 2, k]
                right = (1 - v) * (s[1, k] - s[0, k]) + v * (s[3, k] - s[2, k])
                down = (1 - u) * (s[2, k] - s[0, k]) + u * (s[3, k] - s[1, k])
                row = (first + k) // out_width
                where = dgrid + (image * ds[0] + row * ds[1] + (first + k - row * out_width) * ds[2]) * grid_size
                store1(where, 0, nothing + right * (width - 1) / 2, place)
                store1(where, ds[3], nothing + down * (height - 1) / 2, place)


def pixels(
    grid, dy, dimg, like, place, sizes, runs, chunk, gs, ys, xs,
    offsets, weights, inside, uv, targets, planes, counts, lines, threads,
):  # fmt: skip
    """dimg from grid and dy. A job is ``chunk`` channels of an image, whose accumulators are ``planes`` of the thread.

    ``lines`` hold a tile of dy with the channels of a point together; the other planes and ``counts`` are ``_relieve``'s.
    """
    n, channels, height, width, out_height, out_width = sizes
    points, area = out_height * out_width, height * width
    chunks = (channels + chunk - 1) // chunk
    for tid in prange(threads):
        size, grid_size = itemsize(like), itemsize(place)
        o, w, ins, t = offsets[tid], weights[tid], inside[tid], targets[tid]
        plane, upper, low, met, carried = planes[tid, 0], planes[tid, 1], planes[tid, 2], counts[tid, 0], counts[tid, 1]
        base, line_at, step = np.int64(plane.ctypes.data), np.int64(lines[tid].ctypes.data), lanes(like)
        accumulator = itemsize(plane)
        for job in range(n * chunks * tid // threads, n * chunks * (tid + 1) // threads):
            image, start = job // chunks, job % chunks * chunk
            some = min(chunk, channels - start)
            pitch = (some + step - 1) // step * step
            plane[: area * pitch] = 0
            met[: area * pitch // step], carried[: area * pitch // step] = 0, 0
            slope_at = dy + (image * ys[0] + start * ys[1]) * size
            for first in range(0, points, TILE):
                count = min(TILE, points - first)
                at = grid + image * gs[0] * grid_size
                _corners(
                    at, place, first, count, out_width, (height, width), (width * pitch, pitch), gs, o, w, ins, uv[tid]
                )
                for k in range(count):
                    row = (first + k) // out_width
                    t[k] = row * ys[2] + (first + k - row * out_width) * ys[3]
                if runs:
                    for k in range(count):
                        spread(slope_at + t[k] * size, like, some, k, o, w, base)
                else:
                    line = lines[tid]
                    for c in range(some):
                        _turn(line[c:], slope_at + c * ys[1] * size, like, count, t, pitch)
                    for k in range(count):
                        spread(line_at + k * pitch * accumulator, line, pitch, k, o, w, base)
                _relieve(o, count, plane, upper, low, met, carried, pitch, width, step)
            for pixel in range(0, area * pitch, pitch):
                if carried[pixel // step] != 0:
                    _made_good(plane, upper, low, pixel, pitch)
            target = dimg + (image * xs[0] + start * xs[1]) * size
            _put(plane, target, like, some, (height, width), pitch, runs, xs, lines[tid])


@inner
def _turn(line, dy, like, count, targets, pitch):
    """One channel of dy at the points of a tile, ``pitch`` elements apart."""
    one = line.dtype.type(1)
    for k in range(count):
        line[k * pitch] = one * load1(dy, targets[k], like)


@inner
def _put(plane, target, like, channels, image, pitch, runs, xs, line):
    """The accumulators of some channels, ``pitch`` a pixel, to where they belong."""
    size = itemsize(like)
    height, width = image
    for i in range(height):
        if runs:
            for j in range(width):
                at = target + (i * xs[2] + j * xs[3]) * size
                flush_as(plane[(i * width + j) * pitch :], channels, at, xs[1], like)
        else:
            for c in range(channels):
                for first in range(0, width, TILE):
                    n = min(TILE, width - first)
                    for k in range(n):
                        line[k] = plane[(i * width + first + k) * pitch + c]
                    at = target + (i * xs[2] + first * xs[3] + c * xs[1]) * size
                    flush_as(line, n, at, xs[3], like)


# ---- the grid --------------------------------------------------------------------------------------------------------


def make_grid(theta, grid, like, place, sizes, across, down, ts, gs, threads):
    """grid[n, i, j] = theta[n] @ (across[j], down[i], 1); ``sizes``: N, H', W'."""
    n, height, width = sizes
    for tid in prange(threads):
        size, grid_size = itemsize(like), itemsize(place)
        for line in range(n * height * tid // threads, n * height * (tid + 1) // threads):
            image, i = line // height, line % height
            for r in range(2):
                t = theta + (image * ts[0] + r * ts[1]) * size
                a, b, c = load1(t, 0, like), load1(t, ts[2], like), load1(t, 2 * ts[2], like)
                at = grid + (image * gs[0] + i * gs[1] + r * gs[3]) * grid_size
                y = b * down[i]
                for j in range(width):
                    store1(at, j * gs[2], a * across[j] + y + c, place)


def sum_grid(dgrid, dtheta, like, sizes, across, down, gs, ts, partial, threads):
    """dtheta[n] = sum over points of dgrid x (across[j], down[i], 1): sums of pieces of each row, then of those in order."""
    n, height, width = sizes
    for tid in prange(threads):
        size = itemsize(like)
        sums, plain = partial[tid, 0], partial[tid, 1]
        for job in range(2 * n * tid // threads, 2 * n * (tid + 1) // threads):
            image, r = job // 2, job % 2
            zero = across.dtype.type(0)
            a, b, c, low_a, low_b, low_c = zero, zero, zero, zero, zero, zero
            for i in range(height):
                at = dgrid + (image * gs[0] + i * gs[1] + r * gs[3]) * size
                for start in range(0, width, CHAIN * LANES):
                    sums[:] = 0
                    plain[:] = 0
                    end = min(start + CHAIN * LANES, width)
                    for first in range(start, end, LANES):
                        for lane in range(min(LANES, end - first)):
                            g = load1(at, (first + lane) * gs[2], like)
                            sums[lane] += g * across[first + lane]
                            plain[lane] += g
                    row, total = sums[0], plain[0]
                    for lane in range(1, LANES):
                        row += sums[lane]
                        total += plain[lane]
                    a, low_a = carry(a, low_a, row)
                    b, low_b = carry(b, low_b, total * down[i])
                    c, low_c = carry(c, low_c, total)
            a, b, c = made_good(a, low_a), made_good(b, low_b), made_good(c, low_c)
            at = dtheta + (image * ts[0] + r * ts[1]) * size
            store1(at, 0, a, like)
            store1(at, ts[2], b, like)
            store1(at, 2 * ts[2], c, like)
