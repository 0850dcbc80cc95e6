"""Convolution with a filter for each position of the output (unshared), and its gradients.

Each filter is met by as many products as there are images, so that reading the filters is the cost and there is no matrix
worth laying out. A job takes a position (or, for the gradient of the images, some channels of some images), gathers what
the filter sees into a buffer of its thread, and then goes along the filters' memory. Every sum runs over the terms (channel, tap)
by vectors and then lanes, over filters or over images, in one order that no number of threads changes. Loading this
module imports Numba.
"""

from __future__ import annotations

from numba import prange

from numbadnn.cpu.lang.elements import accsize, load1, peek, poke, store1
from numbadnn.cpu.lang.runs import read_run, write_run
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import fill, lanes, load_acc, multiply_add, store_acc, zeros


@inner
def _within(first, size, terms, axis):
    """Whether a window that begins at ``first`` lies within an axis of the image."""
    inside = True
    for m in range(terms.shape[0]):
        inside = inside and 0 <= first + terms[m, axis] < size
    return inside


@inner
def _seen(here, x, n0, n1, g, p, q, geo, terms, like):
    """What the filters of group g see at (p, q) of images n0..n1: rows of ``pitch`` from ``here``; 0 on padding."""
    top, left = p * geo.step_h, q * geo.step_w
    whole = _within(top, geo.H, terms, 1) and _within(left, geo.W, terms, 2)
    first, step = g * geo.C * geo.x_c + top * geo.x_h + left * geo.x_w, geo.pitch * accsize(like)
    n = n0
    while whole and n + 4 <= n1:  # four images for each look at a term
        row, at = here + (n - n0) * step, first + n * geo.x_n
        for m in range(geo.terms):
            pixel = at + terms[m, 5]
            poke(row, m, load1(x, pixel, like), like)
            poke(row + step, m, load1(x, pixel + geo.x_n, like), like)
            poke(row + 2 * step, m, load1(x, pixel + 2 * geo.x_n, like), like)
            poke(row + 3 * step, m, load1(x, pixel + 3 * geo.x_n, like), like)
        n += 4
    for rest in range(n, n1):
        row, at = here + (rest - n0) * step, rest * geo.x_n + first
        for m in range(geo.terms):
            inside = whole or (0 <= top + terms[m, 1] < geo.H and 0 <= left + terms[m, 2] < geo.W)
            poke(row, m, load1(x, at + terms[m, 5], like) if inside else 0.0, like)


@inner
def _filter(here, w, at, m0, m1, geo, terms, like):
    """Terms m0..m1 of the filter that begins at ``at``."""
    if geo.w_step == 1:
        read_run(here, w, at + terms[m0, 3], m1 - m0, 1, like)
    else:
        for m in range(m0, m1):
            poke(here, m - m0, load1(w, at + terms[m, 3], like), like)


@inner
def _total(lane, sums, like):
    """The sum of a vector's lanes, in their order; ``lane`` has room for them."""
    store_acc(lane, sums, like)
    total = peek(lane, 0, like)
    for i in range(1, lanes(like)):
        total += peek(lane, i, like)
    return total


@inner
def _dot(row, rows, count, to, lane, geo, like):
    """The sums of products of a row with ``count`` others of ``pitch``, four under way; beyond the terms they are 0."""
    vl, acc, step = lanes(like), accsize(like), geo.pitch * accsize(like)
    n = 0
    while n + 4 <= count:
        at = rows + n * step
        a, b, c, d = zeros(like), zeros(like), zeros(like), zeros(like)
        for m in range(0, geo.pitch, vl):
            value, here = load_acc(row + m * acc, like), at + m * acc
            a = multiply_add(value, load_acc(here, like), a)
            b = multiply_add(value, load_acc(here + step, like), b)
            c = multiply_add(value, load_acc(here + 2 * step, like), c)
            d = multiply_add(value, load_acc(here + 3 * step, like), d)
        poke(to, n, _total(lane, a, like), like)
        poke(to, n + 1, _total(lane, b, like), like)
        poke(to, n + 2, _total(lane, c, like), like)
        poke(to, n + 3, _total(lane, d, like), like)
        n += 4
    for last in range(n, count):
        a = zeros(like)
        for m in range(0, geo.pitch, vl):
            a = multiply_add(load_acc(row + m * acc, like), load_acc(rows + last * step + m * acc, like), a)
        poke(to, last, _total(lane, a, like), like)


@inner
def _dots(row, rows, count, to, lane, geo, like):
    """``_dot`` of two rows of ``pitch``, side by side: eight sums under way. The second's lie behind the first's."""
    vl, acc, step = lanes(like), accsize(like), geo.pitch * accsize(like)
    n = 0
    while n + 4 <= count:
        at = rows + n * step
        a, b, c, d = zeros(like), zeros(like), zeros(like), zeros(like)
        e, f, g, h = zeros(like), zeros(like), zeros(like), zeros(like)
        for m in range(0, geo.pitch, vl):
            one, other, here = load_acc(row + m * acc, like), load_acc(row + step + m * acc, like), at + m * acc
            value = load_acc(here, like)
            a, e = multiply_add(one, value, a), multiply_add(other, value, e)
            value = load_acc(here + step, like)
            b, f = multiply_add(one, value, b), multiply_add(other, value, f)
            value = load_acc(here + 2 * step, like)
            c, g = multiply_add(one, value, c), multiply_add(other, value, g)
            value = load_acc(here + 3 * step, like)
            d, h = multiply_add(one, value, d), multiply_add(other, value, h)
        poke(to, n, _total(lane, a, like), like)
        poke(to, n + 1, _total(lane, b, like), like)
        poke(to, n + 2, _total(lane, c, like), like)
        poke(to, n + 3, _total(lane, d, like), like)
        poke(to, count + n, _total(lane, e, like), like)
        poke(to, count + n + 1, _total(lane, f, like), like)
        poke(to, count + n + 2, _total(lane, g, like), like)
        poke(to, count + n + 3, _total(lane, h, like), like)
        n += 4
    _dot(row, rows + n * step, count - n, to + n * acc, lane, geo, like)
    _dot(row + step, rows + n * step, count - n, to + (count + n) * acc, lane, geo, like)


@inner
def _combine(to, factors, rows, count, pitch, length, like):
    """The sum of ``count`` rows of ``pitch``, each times its factor: ``length`` elements, four vectors under way."""
    vl, acc = lanes(like), accsize(like)
    m, step = 0, lanes(like) * accsize(like)
    while m + 4 * vl <= length:
        a, b, c, d = zeros(like), zeros(like), zeros(like), zeros(like)
        for i in range(count):
            factor, at = fill(peek(factors, i, like), like), rows + (i * pitch + m) * acc
            a = multiply_add(factor, load_acc(at, like), a)
            b = multiply_add(factor, load_acc(at + step, like), b)
            c = multiply_add(factor, load_acc(at + 2 * step, like), c)
            d = multiply_add(factor, load_acc(at + 3 * step, like), d)
        store_acc(to + m * acc, a, like)
        store_acc(to + m * acc + step, b, like)
        store_acc(to + m * acc + 2 * step, c, like)
        store_acc(to + m * acc + 3 * step, d, like)
        m += 4 * vl
    for last in range(m, length, vl):
        a = zeros(like)
        for i in range(count):
            factor = fill(peek(factors, i, like), like)
            a = multiply_add(factor, load_acc(rows + (i * pitch + last) * acc, like), a)
        store_acc(to + last * acc, a, like)


@inner
def _combines(to, factors, rows, count, pitch, length, like):
    """``_combine`` by four rows of ``count`` factors, side by side, to four rows of ``pitch``: eight vectors under way."""
    vl, acc, more = lanes(like), accsize(like), pitch * accsize(like)
    m, step = 0, lanes(like) * accsize(like)
    while m + 2 * vl <= length:
        a, b, c, d = zeros(like), zeros(like), zeros(like), zeros(like)
        e, f, g, h = zeros(like), zeros(like), zeros(like), zeros(like)
        for i in range(count):
            at = rows + (i * pitch + m) * acc
            one, other = load_acc(at, like), load_acc(at + step, like)
            factor = fill(peek(factors, i, like), like)
            a, e = multiply_add(factor, one, a), multiply_add(factor, other, e)
            factor = fill(peek(factors, count + i, like), like)
            b, f = multiply_add(factor, one, b), multiply_add(factor, other, f)
            factor = fill(peek(factors, 2 * count + i, like), like)
            c, g = multiply_add(factor, one, c), multiply_add(factor, other, g)
            factor = fill(peek(factors, 3 * count + i, like), like)
            d, h = multiply_add(factor, one, d), multiply_add(factor, other, h)
        at = to + m * acc
        store_acc(at, a, like)
        store_acc(at + step, e, like)
        store_acc(at + more, b, like)
        store_acc(at + more + step, f, like)
        store_acc(at + 2 * more, c, like)
        store_acc(at + 2 * more + step, g, like)
        store_acc(at + 3 * more, d, like)
        store_acc(at + 3 * more + step, h, like)
        m += 2 * vl
    for last in range(m, length, vl):
        a, b, c, d = zeros(like), zeros(like), zeros(like), zeros(like)
        for i in range(count):
            one = load_acc(rows + (i * pitch + last) * acc, like)
            a = multiply_add(fill(peek(factors, i, like), like), one, a)
            b = multiply_add(fill(peek(factors, count + i, like), like), one, b)
            c = multiply_add(fill(peek(factors, 2 * count + i, like), like), one, c)
            d = multiply_add(fill(peek(factors, 3 * count + i, like), like), one, d)
        at = to + last * acc
        store_acc(at, a, like)
        store_acc(at + more, b, like)
        store_acc(at + 2 * more, c, like)
        store_acc(at + 3 * more, d, like)


def forward(x, w, y, like, geo, terms, planes, work, images, channels, alpha, beta, threads):
    """y; ``images`` are gathered together."""
    size, acc = planes.shape[1], accsize(like)
    chunks = (geo.N + images - 1) // images
    jobs = geo.P * geo.Q * geo.G * chunks
    for tid in prange(threads):
        planes[tid, :] = 0
        here = work + tid * size * acc
        row = here + images * geo.pitch * acc
        found = row + 2 * geo.pitch * acc
        lane = found + 2 * images * acc
        for job in range(jobs * tid // threads, jobs * (tid + 1) // threads):
            place, g = job // chunks // geo.G, job // chunks % geo.G
            p, q, n0 = place // geo.Q, place % geo.Q, job % chunks * images
            n1 = min(n0 + images, geo.N)
            _seen(here, x, n0, n1, g, p, q, geo, terms, like)
            for k in range(g * geo.K, (g + 1) * geo.K, 2):
                both, at = min(2, (g + 1) * geo.K - k), p * geo.w_h + q * geo.w_w
                for i in range(both):
                    _filter(row + i * geo.pitch * acc, w, (k + i) * geo.w_k + at, 0, geo.terms, geo, terms, like)
                if both == 2:
                    _dots(row, here, n1 - n0, found, lane, geo, like)
                else:
                    _dot(row, here, n1 - n0, found, lane, geo, like)
                for i in range(both):
                    for n in range(n0, n1):
                        at = n * geo.y_n + (k + i) * geo.y_k + p * geo.y_h + q * geo.y_w
                        one = alpha * peek(found, i * (n1 - n0) + n - n0, like)
                        if beta != 0:
                            one += beta * load1(y, at, like)
                        store1(y, at, one, like)


def inputs(x, w, y, like, geo, terms, planes, work, images, channels, alpha, beta, threads):
    """x of ``images`` and ``channels`` at a time: each position adds the sum over filters of its own terms.

    What is read of the filters is read once for all these images.
    """
    size, acc, vl = planes.shape[1], accsize(like), lanes(like)
    taps, plane = geo.terms // geo.C, geo.H * geo.W
    chunks, blocks = (geo.C + channels - 1) // channels, (geo.N + images - 1) // images
    pitch = (channels * taps + vl - 1) // vl * vl
    jobs = blocks * geo.G * chunks
    for tid in prange(threads):
        buffer = planes[tid]
        here = work + tid * size * acc
        sums = images * channels * plane
        rows = sums + 4 * pitch
        tops = rows + geo.K * pitch
        for job in range(jobs * tid // threads, jobs * (tid + 1) // threads):
            n0, g, c0 = job // chunks // geo.G * images, job // chunks % geo.G, job % chunks * channels
            n1, c1 = min(n0 + images, geo.N), min(c0 + channels, geo.C)
            m0, m1 = c0 * taps, c1 * taps
            buffer[:sums] = 0
            for p in range(geo.P):
                for q in range(geo.Q):
                    whole = _within(p * geo.step_h, geo.H, terms, 1) and _within(q * geo.step_w, geo.W, terms, 2)
                    for k in range(geo.K):
                        at = (g * geo.K + k) * geo.w_k + p * geo.w_h + q * geo.w_w
                        _filter(here + (rows + k * pitch) * acc, w, at, m0, m1, geo, terms, like)
                        at = (g * geo.K + k) * geo.y_k + p * geo.y_h + q * geo.y_w
                        for n in range(n0, n1):
                            poke(here, tops + (n - n0) * geo.K + k, load1(y, n * geo.y_n + at, like), like)
                    n = n0
                    while n < n1:
                        many = 4 if n + 4 <= n1 else 1
                        factors = here + (tops + (n - n0) * geo.K) * acc
                        if many == 4:
                            _combines(here + sums * acc, factors, here + rows * acc, geo.K, pitch, m1 - m0, like)
                        else:
                            _combine(here + sums * acc, factors, here + rows * acc, geo.K, pitch, m1 - m0, like)
                        first = ((n - n0) * channels - c0) * plane + p * geo.step_h * geo.W + q * geo.step_w
                        for m in range(m0, m1):
                            h, v = p * geo.step_h + terms[m, 1], q * geo.step_w + terms[m, 2]
                            if whole or (0 <= h < geo.H and 0 <= v < geo.W):
                                to, at, image = first + terms[m, 4], sums + m - m0, channels * plane
                                buffer[to] += buffer[at]
                                if many == 4:
                                    buffer[to + image] += buffer[at + pitch]
                                    buffer[to + 2 * image] += buffer[at + 2 * pitch]
                                    buffer[to + 3 * image] += buffer[at + 3 * pitch]
                        n += many
            for n in range(n0, n1):
                for c in range(c0, c1):
                    for h in range(geo.H):
                        at = n * geo.x_n + (g * geo.C + c) * geo.x_c + h * geo.x_h
                        line = here + (((n - n0) * channels + c - c0) * geo.H + h) * geo.W * acc
                        write_run(line, x, at, geo.W, geo.x_w, alpha, beta, like)


@inner
def _put(row, w, at, geo, terms, alpha, beta, like):
    """A filter's gradient, to the place of the filter that begins at ``at``."""
    if geo.w_step == 1:
        write_run(row, w, at + terms[0, 3], geo.terms, 1, alpha, beta, like)
    else:
        for m in range(geo.terms):
            one = alpha * peek(row, m, like)
            if beta != 0:
                one += beta * load1(w, at + terms[m, 3], like)
            store1(w, at + terms[m, 3], one, like)


def filters(x, w, y, like, geo, terms, planes, work, images, channels, alpha, beta, threads):
    """w: each filter is a sum over the images alone; ``images`` is their number."""
    size, acc = planes.shape[1], accsize(like)
    jobs = geo.P * geo.Q * geo.G
    for tid in prange(threads):
        planes[tid, :] = 0
        here = work + tid * size * acc
        row = here + images * geo.pitch * acc
        tops = row + 4 * geo.pitch * acc
        for job in range(jobs * tid // threads, jobs * (tid + 1) // threads):
            place, g = job // geo.G, job % geo.G
            p, q = place // geo.Q, place % geo.Q
            _seen(here, x, 0, geo.N, g, p, q, geo, terms, like)
            k = g * geo.K
            while k < (g + 1) * geo.K:
                many = 4 if k + 4 <= (g + 1) * geo.K else 1
                for i in range(many):
                    at = (k + i) * geo.y_k + p * geo.y_h + q * geo.y_w
                    for n in range(geo.N):
                        poke(tops, i * geo.N + n, load1(y, n * geo.y_n + at, like), like)
                if many == 4:
                    _combines(row, tops, here, geo.N, geo.pitch, geo.pitch, like)
                else:
                    _combine(row, tops, here, geo.N, geo.pitch, geo.pitch, like)
                for i in range(many):
                    at = (k + i) * geo.w_k + p * geo.w_h + q * geo.w_w
                    _put(row + i * geo.pitch * acc, w, at, geo, terms, alpha, beta, like)
                k += many
