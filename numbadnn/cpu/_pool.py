"""Pooling and its gradient on strided memory: kernels. Sums are kept in float32, for float64 data in float64.

Two shapes of loop. ``rows``: columns lie closest in memory; the rows of a window are first reduced to one row, over all columns
at once, then windows along it. ``cells``: channels do; a window is reduced for a strip of channels at once. What is read
goes through a line of scratch: LLVM vectorises loops over arrays, and not over addresses. A gradient is added up in a
buffer of one image (and strip) that one thread owns, window by window in order, and rounded once.

``kind``: 0 maximum, 1 sum, 2 average over the whole window, 3 over what is inside the image. ``geo`` holds image extents D H W,
output extents O P Q, window, stride and pad, three each. Loading this module imports Numba.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from numbadnn.cpu._typed import fetch_run
from numbadnn.cpu._vector import itemsize, load1, store1


@njit(nogil=True, inline="always")
def _first(o, geo, axis):
    start = o * geo[9 + axis] - geo[12 + axis]
    return start, max(start, 0), min(start + geo[6 + axis], geo[axis])


@njit(nogil=True, error_model="numpy")
def _divisor(kind, geo, cells):
    if kind == 2:
        return geo[6] * geo[7] * geo[8]
    return cells if kind == 3 else 1


@njit(nogil=True, error_model="numpy")
def _fetch(line, n, base, step, like):
    if step == 1:
        fetch_run(line, n, base, like)
    else:
        for i in range(n):
            line[i] = load1(base, i * step, like)


@njit(nogil=True, error_model="numpy")
def _flush(line, n, base, step, like):
    if step == 1:
        for i in range(n):
            store1(base, i, line[i], like)
    else:
        for i in range(n):
            store1(base, i * step, line[i], like)


@njit(nogil=True, error_model="numpy")
def _join(best, line, n, largest):
    """best = max(best, line), NaN where either is, or best + line."""
    if largest:
        for i in range(n):
            v, m = line[i], best[i]
            best[i] = v if (v > m) | (v != v) else m
    else:
        for i in range(n):
            best[i] += line[i]


@njit(nogil=True, error_model="numpy")
def _join_first(best, which, number, line, n):
    """best = max(best, line) and ``which`` line that was: the first of equals, the first NaN."""
    for i in range(n):
        v, m, w = line[i], best[i], which[i]
        better = (v > m) | ((v != v) & (m == m))
        best[i] = v if better else m
        which[i] = number if better else w


@njit(nogil=True, error_model="numpy")
def _reduce_row(best, out, geo, kind, deep, tall):
    """The windows along one row of column results."""
    one = best.dtype.type
    Q, kw, sw, pw, W = geo[5], geo[8], geo[11], geo[14], geo[2]
    inside = (Q - 1) * sw + kw <= W and pw == 0
    if inside and kw == 2 and kind == 0:
        for q in range(Q):
            a, b = best[q * sw], best[q * sw + 1]
            out[q] = b if (b > a) | (b != b) else a
        return
    for q in range(Q):
        _, low, high = _first(q, geo, 2)
        total = best[low]
        if kind == 0:
            for w in range(low + 1, high):
                v = best[w]
                total = v if (v > total) | (v != v) else total
        else:
            for w in range(low + 1, high):
                total += best[w]
            total = total / one(_divisor(kind, geo, deep * tall * (high - low)))
        out[q] = total


def rows(x, y, like, kind, channels, count, geo, xs, ys, buffers, threads):
    """``count`` rows of output, columns at any step; ``xs``, ``ys``: strides of N C D H W."""
    for tid in prange(threads):
        best, out, line = buffers[tid, 0], buffers[tid, 1], buffers[tid, 2]
        size, W, O, P = itemsize(like), geo[2], geo[3], geo[4]
        for job in range(count * tid // threads, count * (tid + 1) // threads):
            p, o, c, n = job % P, job // P % O, job // (P * O) % channels, job // (P * O * channels)
            _, d0, d1 = _first(o, geo, 0)
            _, h0, h1 = _first(p, geo, 1)
            base = x + (n * xs[0] + c * xs[1]) * size
            for d in range(d0, d1):
                for h in range(h0, h1):
                    start = base + (d * xs[2] + h * xs[3]) * size
                    if d == d0 and h == h0:
                        _fetch(best, W, start, xs[4], like)
                    else:
                        _fetch(line, W, start, xs[4], like)
                        _join(best, line, W, kind == 0)
            _reduce_row(best, out, geo, kind, d1 - d0, h1 - h0)
            at = y + (n * ys[0] + c * ys[1] + o * ys[2] + p * ys[3]) * size
            _flush(out, geo[5], at, ys[4], like)


def cells(x, y, like, kind, strips, strip, channels, count, geo, xs, ys, buffers, threads):
    """``count`` rows of output x strips of channels, one after the other."""
    for tid in prange(threads):
        best, line = buffers[tid, 0], buffers[tid, 1]
        size, O, P, Q, one = itemsize(like), geo[3], geo[4], geo[5], best.dtype.type
        for job in range(count * tid // threads, count * (tid + 1) // threads):
            c, p, o, n = job % strips * strip, job // strips % P, job // (strips * P) % O, job // (strips * P * O)
            m = min(strip, channels - c)
            _, d0, d1 = _first(o, geo, 0)
            _, h0, h1 = _first(p, geo, 1)
            base = x + (n * xs[0] + c * xs[1]) * size
            for q in range(Q):
                _, w0, w1 = _first(q, geo, 2)
                for d in range(d0, d1):
                    for h in range(h0, h1):
                        for w in range(w0, w1):
                            cell = base + (d * xs[2] + h * xs[3] + w * xs[4]) * size
                            if d == d0 and h == h0 and w == w0:
                                _fetch(best, m, cell, xs[1], like)
                            else:
                                _fetch(line, m, cell, xs[1], like)
                                _join(best, line, m, kind == 0)
                if kind >= 2:
                    divisor = one(_divisor(kind, geo, (d1 - d0) * (h1 - h0) * (w1 - w0)))
                    for i in range(m):
                        best[i] = best[i] / divisor
                at = y + (n * ys[0] + c * ys[1] + o * ys[2] + p * ys[3] + q * ys[4]) * size
                _flush(best, m, at, ys[1], like)


@njit(nogil=True, inline="always")
def _along(best, which, top, row, column, n, step, k):
    """Let every ``step``-th column challenge the maximum of its window: on a tie the upper row wins, then the left."""
    for i in range(n):
        # unsigned: Numba then asks nothing about negative indices, and LLVM vectorises
        w = np.uintp(i) * np.uintp(step)
        v, m, other, r, c = best[w], top[i], which[w], row[i], column[i]
        better = (v > m) | ((v != v) & ((m == m) | (other < r))) | ((v == m) & (other < r))
        top[i] = v if better else m
        row[i] = other if better else r
        column[i] = k if better else c


@njit(nogil=True, error_model="numpy")
def _row_of_maxima(x, image, best, share, top, line, which, row, column, geo, xs, o, p, like):
    """Give each share of an output row to the first maximum of its window, in the buffer ``image`` of D x H x W."""
    size, H, W, Q, kw, sw, pw = itemsize(like), geo[1], geo[2], geo[5], geo[8], geo[11], geo[14]
    _, d0, d1 = _first(o, geo, 0)
    _, h0, h1 = _first(p, geo, 1)
    for d in range(d0, d1):
        for h in range(h0, h1):
            start, number = x + (d * xs[2] + h * xs[3]) * size, which.dtype.type(d * H + h)
            if d == d0 and h == h0:
                _fetch(best, W, start, xs[4], like)
                which[:W] = number
            else:
                _fetch(line, W, start, xs[4], like)
                _join_first(best, which, number, line, W)
    clipped = min((pw + sw - 1) // sw, Q)  # windows that begin before the row does
    for q in range(clipped):
        top[q], row[q], column[q] = best[0], which[0], pw - q * sw
    for q in range(clipped, Q):
        w = np.uintp(q * sw - pw)
        top[q], row[q], column[q] = best[w], which[w], 0
    for k in range(1, kw):
        # the windows whose element k is inside; where it is the first that is, it meets itself
        low = max((pw - k + sw - 1) // sw, 0)
        n, w, number = min((W - 1 + pw - k) // sw + 1, Q) - low, low * sw + k - pw, column.dtype.type(k)
        if n <= 0:
            continue
        parts = best[w:], which[w:], top[low:], row[low:], column[low:]
        if sw == 1:
            _along(parts[0], parts[1], parts[2], parts[3], parts[4], n, 1, number)
        elif sw == 2:
            _along(parts[0], parts[1], parts[2], parts[3], parts[4], n, 2, number)
        else:
            _along(parts[0], parts[1], parts[2], parts[3], parts[4], n, sw, number)
    for q in range(Q):
        image[np.uintp(row[q] * W + q * sw - pw + column[q])] += share[q]


@njit(nogil=True, error_model="numpy")
def _row_of_sums(image, line, share, geo, kind, o, p):
    """Add each share of an output row to all that its window sees."""
    H, W, Q, one = geo[1], geo[2], geo[5], line.dtype.type
    _, d0, d1 = _first(o, geo, 0)
    _, h0, h1 = _first(p, geo, 1)
    for i in range(W):
        line[i] = 0
    for q in range(Q):
        _, w0, w1 = _first(q, geo, 2)
        value = share[q] / one(_divisor(kind, geo, (d1 - d0) * (h1 - h0) * (w1 - w0)))
        for w in range(w0, w1):
            line[w] += value
    for d in range(d0, d1):
        for h in range(h0, h1):
            at = (d * H + h) * W
            for i in range(W):
                image[at + i] += line[i]


def rows_grad(x, dy, dx, like, kind, channels, count, geo, xs, ys, ds, images, buffers, numbers, threads):
    """``count`` images of one channel; ``xs``, ``ys``, ``ds``: strides of x, dy and dx."""
    for tid in prange(threads):
        image, best, share = images[tid], buffers[tid, 0], buffers[tid, 1]
        top, line = buffers[tid, 2], buffers[tid, 3]
        which, row, column = numbers[tid, 0], numbers[tid, 1], numbers[tid, 2]
        size, D, H, W, O, P, Q = itemsize(like), geo[0], geo[1], geo[2], geo[3], geo[4], geo[5]
        for job in range(count * tid // threads, count * (tid + 1) // threads):
            c, n = job % channels, job // channels
            source, target = x + (n * xs[0] + c * xs[1]) * size, dx + (n * ds[0] + c * ds[1]) * size
            for i in range(D * H * W):
                image[i] = 0
            for o in range(O):
                for p in range(P):
                    _fetch(share, Q, dy + (n * ys[0] + c * ys[1] + o * ys[2] + p * ys[3]) * size, ys[4], like)
                    if kind == 0:
                        _row_of_maxima(source, image, best, share, top, line, which, row, column, geo, xs, o, p, like)
                    else:
                        _row_of_sums(image, line, share, geo, kind, o, p)
            for d in range(D):
                for h in range(H):
                    _flush(image[(d * H + h) * W :], W, target + (d * ds[2] + h * ds[3]) * size, ds[4], like)


def cells_grad(
    x, dy, dx, like, kind, strips, strip, channels, count, geo, xs, ys, ds, images, buffers, numbers, threads
):
    """``count`` images x strips of channels."""
    for tid in prange(threads):
        image, best, share = images[tid], buffers[tid, 0], buffers[tid, 1]
        line, which = buffers[tid, 2], numbers[tid, 0]
        size, one, D, H, W = itemsize(like), image.dtype.type, geo[0], geo[1], geo[2]
        for job in range(count * tid // threads, count * (tid + 1) // threads):
            c, n = job % strips * strip, job // strips
            m = min(strip, channels - c)
            source, target = x + (n * xs[0] + c * xs[1]) * size, dx + (n * ds[0] + c * ds[1]) * size
            for i in range(D * H * W * m):
                image[i] = 0
            for o in range(geo[3]):
                _, d0, d1 = _first(o, geo, 0)
                for p in range(geo[4]):
                    _, h0, h1 = _first(p, geo, 1)
                    for q in range(geo[5]):
                        _, w0, w1 = _first(q, geo, 2)
                        place = n * ys[0] + c * ys[1] + o * ys[2] + p * ys[3] + q * ys[4]
                        _fetch(share, m, dy + place * size, ys[1], like)
                        if kind >= 2:
                            divisor = one(_divisor(kind, geo, (d1 - d0) * (h1 - h0) * (w1 - w0)))
                            for i in range(m):
                                share[i] = share[i] / divisor
                        for d in range(d0, d1):
                            for h in range(h0, h1):
                                for w in range(w0, w1):
                                    at = (d * H + h) * W + w
                                    if kind == 0:
                                        cell = source + (d * xs[2] + h * xs[3] + w * xs[4]) * size
                                        if d == d0 and h == h0 and w == w0:
                                            _fetch(best, m, cell, xs[1], like)
                                            which[:m] = at
                                        else:
                                            _fetch(line, m, cell, xs[1], like)
                                            _join_first(best, which, which.dtype.type(at), line, m)
                                    else:
                                        for i in range(m):
                                            image[at * m + i] += share[i]
                        if kind == 0:
                            for i in range(m):
                                image[np.uintp(which[i] * m + i)] += share[i]
            for d in range(D):
                for h in range(H):
                    for w in range(W):
                        cell = target + (d * ds[2] + h * ds[3] + w * ds[4]) * size
                        _flush(image[((d * H + h) * W + w) * m :], m, cell, ds[1], like)
