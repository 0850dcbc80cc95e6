"""The sampler of the spatial transformer and its gradients on strided memory: kernels.

Points are taken ``TILE`` at a time: ``_corners`` finds the four pixels and weights of each once, then every channel uses them.
Channels that lie closest in memory (NHWC) are walked innermost, else points are. The gradient in the image is added up, point
by point in their order, in planes of accumulators that belong to one job. Loading this module imports Numba.
"""

from __future__ import annotations

import math

from numba import njit, prange

from numbadnn.cpu._vector import itemsize, load1, store1

TILE = 256
#: lanes of a sum over neighbouring channels
LANES = 16


@njit(nogil=True, error_model="numpy")
def _corners(grid, place, first, count, width, image, steps, strides, offsets, weights, inside, uv):
    """For points first ... first + count - 1 of an image's grid: pixels as offsets, their weights, whether they are inside.

    ``image`` = height and width, ``steps`` = what a row and a column are worth in ``offsets``; ``uv`` = u, v, and 0 or NaN.
    True where every pixel of every point is inside with a weight that is not 0.
    """
    size = itemsize(place)
    height, columns = image
    plain = True
    one = weights.dtype.type(1)
    half_x, half_y = one * (columns - 1) / 2, one * (height - 1) / 2
    for k in range(count):
        p = first + k
        row = p // width
        at = grid + (row * strides[1] + (p - row * width) * strides[2]) * size
        x = (load1(at, 0, place) + one) * half_x
        y = (load1(at, strides[3], place) + one) * half_y
        sound = x > -1 and x < columns and y > -1 and y < height
        uv[2, k] = 0 if x + y == x + y else x + y
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
            plain = plain and within and weight != 0
    return plain


@njit(nogil=True, error_model="numpy")
def _sample_plane(img, y, like, count, targets, offsets, weights, uv, plain, down, right):
    """One channel at the points of a tile; ``down`` and ``right`` are the addresses of the pixels below and right of img."""
    if plain:
        below = right - img + down
        at, u, v = offsets[0], uv[0], uv[1]
        one = uv.dtype.type(1)
        for k in range(count):
            o = at[k]
            upper = (one - u[k]) * load1(img, o, like) + u[k] * load1(right, o, like)
            lower = (one - u[k]) * load1(down, o, like) + u[k] * load1(below, o, like)
            store1(y, targets[k], (one - v[k]) * upper + v[k] * lower, like)
        return
    for k in range(count):
        total = uv[2, k]
        for corner in range(4):
            if weights[corner, k] != 0:
                total += weights[corner, k] * load1(img, offsets[corner, k], like)
        store1(y, targets[k], total, like)


@njit(nogil=True, error_model="numpy")
def _sample_run(img, y, like, channels, step, out_step, k, offsets, weights, uv, row):
    """All channels of point k."""
    size = itemsize(like)
    for c in range(channels):
        row[c] = uv[2, k]
    for corner in range(4):
        w = weights[corner, k]
        if w != 0:
            at = img + offsets[corner, k] * size
            if step == 1:
                for c in range(channels):
                    row[c] += w * load1(at, c, like)
            else:
                for c in range(channels):
                    row[c] += w * load1(at, c * step, like)
    if out_step == 1:
        for c in range(channels):
            store1(y, c, row[c], like)
    else:
        for c in range(channels):
            store1(y, c * out_step, row[c], like)


def sampler(
    img, grid, y, like, place, sizes, runs, xs, gs, ys, offsets, weights, inside, uv, targets, rows, threads
):  # fmt: skip
    """y from img and grid. ``sizes``: N, C, H, W, H', W'. A job is a tile of one image's points."""
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
            plain = _corners(
                at, place, first, count, out_width, (height, width), (xs[2], xs[3]), gs, o, w, ins, uv[tid]
            )
            for k in range(count):
                row = (first + k) // out_width
                t[k] = row * ys[2] + (first + k - row * out_width) * ys[3]
            source, target = img + image * xs[0] * size, y + image * ys[0] * size
            if runs:
                for k in range(count):
                    where = target + t[k] * size
                    _sample_run(source, where, like, channels, xs[1], ys[1], k, o, w, uv[tid], rows[tid])
            else:
                for c in range(channels):
                    a, b = source + c * xs[1] * size, target + c * ys[1] * size
                    _sample_plane(a, b, like, count, t, o, w, uv[tid], plain, a + xs[2] * size, a + xs[3] * size)


# ---- gradients -------------------------------------------------------------------------------------------------------


@njit(nogil=True, error_model="numpy")
def _slope_plane(img, dy, like, count, targets, offsets, inside, sums, whole):
    """Add one channel's dy * pixel to the four sums of each point."""
    one = sums.dtype.type(1)  # the accumulator may be wider than the image
    if whole:
        for k in range(count):
            d = one * load1(dy, targets[k], like)
            sums[0, k] += d * load1(img, offsets[0, k], like)
            sums[1, k] += d * load1(img, offsets[1, k], like)
            sums[2, k] += d * load1(img, offsets[2, k], like)
            sums[3, k] += d * load1(img, offsets[3, k], like)
        return
    for k in range(count):
        d = one * load1(dy, targets[k], like)
        for corner in range(4):
            if inside[corner, k]:
                sums[corner, k] += d * load1(img, offsets[corner, k], like)


@njit(nogil=True, error_model="numpy")
def _slope_run(img, dy, like, channels, step, dy_step, k, offsets, inside, sums, row, lanes):
    """The four sums of point k over all channels: ``LANES`` partial sums, then those in order."""
    size = itemsize(like)
    for c in range(channels):
        row[c] = load1(dy, c * dy_step, like)
    for corner in range(4):
        if not inside[corner, k]:
            continue
        at = img + offsets[corner, k] * size
        for lane in range(LANES):
            lanes[lane] = 0
        whole = channels // LANES * LANES
        if step == 1:
            for c in range(0, whole, LANES):
                for lane in range(LANES):
                    lanes[lane] += row[c + lane] * load1(at, c + lane, like)
        else:
            for c in range(0, whole, LANES):
                for lane in range(LANES):
                    lanes[lane] += row[c + lane] * load1(at, (c + lane) * step, like)
        for c in range(whole, channels):
            lanes[c - whole] += row[c] * load1(at, c * step, like)
        total = lanes[0]
        for lane in range(1, LANES):
            total += lanes[lane]
        sums[corner, k] = total


def slopes(
    img, grid, dy, dgrid, like, place, sizes, runs, xs, gs, ys, ds,
    offsets, weights, inside, uv, targets, rows, sums, lanes, threads,
):  # fmt: skip
    """dgrid from img, grid and dy; as ``sampler``."""
    n, channels, height, width, out_height, out_width = sizes
    points = out_height * out_width
    tiles = (points + TILE - 1) // TILE
    for tid in prange(threads):
        size, grid_size = itemsize(like), itemsize(place)
        o, w, ins, t, s = offsets[tid], weights[tid], inside[tid], targets[tid], sums[tid]
        for job in range(n * tiles * tid // threads, n * tiles * (tid + 1) // threads):
            image, first = job // tiles, job % tiles * TILE
            count = min(TILE, points - first)
            at = grid + image * gs[0] * grid_size
            _corners(at, place, first, count, out_width, (height, width), (xs[2], xs[3]), gs, o, w, ins, uv[tid])
            whole = True
            for k in range(count):
                row = (first + k) // out_width
                t[k] = row * ys[2] + (first + k - row * out_width) * ys[3]
                for corner in range(4):
                    s[corner, k] = 0
                    whole = whole and ins[corner, k]
            source, slope = img + image * xs[0] * size, dy + image * ys[0] * size
            if runs:
                for k in range(count):
                    where = slope + t[k] * size
                    _slope_run(source, where, like, channels, xs[1], ys[1], k, o, ins, s, rows[tid], lanes[tid])
            else:
                for c in range(channels):
                    _slope_plane(source + c * xs[1] * size, slope + c * ys[1] * size, like, count, t, o, ins, s, whole)
            for k in range(count):
                u, v, nothing = uv[tid, 0, k], uv[tid, 1, k], uv[tid, 2, k]
                right = (1 - v) * (s[1, k] - s[0, k]) + v * (s[3, k] - s[2, k])
                down = (1 - u) * (s[2, k] - s[0, k]) + u * (s[3, k] - s[1, k])
                row = (first + k) // out_width
                where = dgrid + (image * ds[0] + row * ds[1] + (first + k - row * out_width) * ds[2]) * grid_size
                store1(where, 0, nothing + right * (width - 1) / 2, place)
                store1(where, ds[3], nothing + down * (height - 1) / 2, place)


def pixels(
    grid, dy, dimg, like, place, sizes, runs, chunk, gs, ys, xs, offsets, weights, inside, uv, targets, rows, planes, threads
):  # fmt: skip
    """dimg from grid and dy. A job is ``chunk`` channels of an image, whose accumulators are ``planes`` of the thread."""
    n, channels, height, width, out_height, out_width = sizes
    points, area = out_height * out_width, height * width
    chunks = (channels + chunk - 1) // chunk
    for tid in prange(threads):
        size, grid_size = itemsize(like), itemsize(place)
        o, w, ins, t, plane, line = offsets[tid], weights[tid], inside[tid], targets[tid], planes[tid], rows[tid]
        for job in range(n * chunks * tid // threads, n * chunks * (tid + 1) // threads):
            image, start = job // chunks, job % chunks * chunk
            some = min(chunk, channels - start)
            steps = (width * some, some) if runs else (width, 1)
            plane[: area * some] = 0
            slope = dy + (image * ys[0] + start * ys[1]) * size
            for first in range(0, points, TILE):
                count = min(TILE, points - first)
                at = grid + image * gs[0] * grid_size
                _corners(at, place, first, count, out_width, (height, width), steps, gs, o, w, ins, uv[tid])
                for k in range(count):
                    row = (first + k) // out_width
                    t[k] = row * ys[2] + (first + k - row * out_width) * ys[3]
                if runs:
                    for k in range(count):
                        _spread_run(slope + t[k] * size, like, some, ys[1], k, o, w, plane, line)
                else:
                    for c in range(some):
                        _spread_plane(slope + c * ys[1] * size, like, count, t, o, w, plane[c * area : (c + 1) * area])
            target = dimg + (image * xs[0] + start * xs[1]) * size
            _put(plane, target, like, some, (height, width), runs, xs)


@njit(nogil=True, error_model="numpy")
def _spread_plane(dy, like, count, targets, offsets, weights, plane):
    for k in range(count):
        d = load1(dy, targets[k], like)
        for corner in range(4):
            w = weights[corner, k]
            if w != 0:
                plane[offsets[corner, k]] += w * d


@njit(nogil=True, error_model="numpy")
def _spread_run(dy, like, channels, step, k, offsets, weights, plane, row):
    if step == 1:
        for c in range(channels):
            row[c] = load1(dy, c, like)
    else:
        for c in range(channels):
            row[c] = load1(dy, c * step, like)
    for corner in range(4):
        w = weights[corner, k]
        if w != 0:
            at = offsets[corner, k]
            for c in range(channels):
                plane[at + c] += w * row[c]


@njit(nogil=True, error_model="numpy")
def _put(plane, target, like, channels, image, runs, xs):
    """The accumulators of some channels to where they belong."""
    size = itemsize(like)
    height, width = image
    for i in range(height):
        if runs:
            for j in range(width):
                at = target + (i * xs[2] + j * xs[3]) * size
                if xs[1] == 1:
                    for c in range(channels):
                        store1(at, c, plane[(i * width + j) * channels + c], like)
                else:
                    for c in range(channels):
                        store1(at, c * xs[1], plane[(i * width + j) * channels + c], like)
        else:
            for c in range(channels):
                at = target + (i * xs[2] + c * xs[1]) * size
                if xs[3] == 1:
                    for j in range(width):
                        store1(at, j, plane[(c * height + i) * width + j], like)
                else:
                    for j in range(width):
                        store1(at, j * xs[3], plane[(c * height + i) * width + j], like)


# ---- the grid --------------------------------------------------------------------------------------------------------


def make_grid(theta, grid, like, sizes, across, down, ts, gs, threads):
    """grid[n, i, j] = theta[n] @ (across[j], down[i], 1); ``sizes``: N, H', W'."""
    n, height, width = sizes
    for tid in prange(threads):
        size = itemsize(like)
        for line in range(n * height * tid // threads, n * height * (tid + 1) // threads):
            image, i = line // height, line % height
            for r in range(2):
                t = theta + (image * ts[0] + r * ts[1]) * size
                a, b, c = load1(t, 0, like), load1(t, ts[2], like), load1(t, 2 * ts[2], like)
                at = grid + (image * gs[0] + i * gs[1] + r * gs[3]) * size
                y = b * down[i]
                for j in range(width):
                    store1(at, j * gs[2], a * across[j] + y + c, like)


def sum_grid(dgrid, dtheta, like, sizes, across, down, gs, ts, lanes, threads):
    """dtheta[n] = sum over points of dgrid x (across[j], down[i], 1): sums of each row, then of the rows in their order."""
    n, height, width = sizes
    for tid in prange(threads):
        size = itemsize(like)
        sums, plain = lanes[tid, 0], lanes[tid, 1]
        for job in range(2 * n * tid // threads, 2 * n * (tid + 1) // threads):
            image, r = job // 2, job % 2
            a, b, c = across[0] * 0, across[0] * 0, across[0] * 0
            for i in range(height):
                at = dgrid + (image * gs[0] + i * gs[1] + r * gs[3]) * size
                sums[:] = 0
                plain[:] = 0
                for first in range(0, width, LANES):
                    for lane in range(min(LANES, width - first)):
                        g = load1(at, (first + lane) * gs[2], like)
                        sums[lane] += g * across[first + lane]
                        plain[lane] += g
                row, total = sums[0], plain[0]
                for lane in range(1, LANES):
                    row += sums[lane]
                    total += plain[lane]
                a += row
                b += total * down[i]
                c += total
            at = dtheta + (image * ts[0] + r * ts[1]) * size
            store1(at, 0, a, like)
            store1(at, ts[2], b, like)
            store1(at, 2 * ts[2], c, like)
