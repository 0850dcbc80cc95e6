"""The gradient of the filters of single-channel groups (depthwise): direct loops over rows of one padded plane.

There is no product to make here, only T multiplications a pixel, so that moving memory is the cost. A job takes one
plane (one image, one channel), converts it into a zero-padded buffer of its thread, and works row by row: in the inner
loop neighbouring pixels are independent, and each sum runs over images and rows, then columns, in a fixed order.
Forward and the gradient of the images are ``_thin.py``. Loading this module imports Numba.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import njit, prange

from numbadnn.cpu._elements import accsize, load1, peek, poke, store1
from numbadnn.cpu._vector import lanes, load, load_acc, multiply_add, scale, scale_add, store, store_acc, zeros


class Geometry(NamedTuple):
    """Lengths and strides in elements; (top, left) padding; the padded plane is ``rows`` x ``width``."""

    N: int
    G: int
    M: int  # filters of a group
    T: int
    H: int
    W: int
    P: int
    Q: int
    top: int
    left: int
    rows: int
    width: int
    step_h: int
    step_w: int
    x_n: int
    x_c: int
    x_h: int
    x_w: int
    y_n: int
    y_k: int
    y_h: int
    y_w: int
    w_k: int


@njit(nogil=True, error_model="numpy")
def _read(target, base, offset, n, step, like):
    """n elements, ``step`` apart, into accumulators; nothing past them is touched."""
    vl, acc = lanes(like), accsize(like)
    if step == 1:
        for i in range(0, n - vl + 1, vl):
            store_acc(target + i * acc, load(base, offset + i, (1 << vl) - 1, zeros(like), like), like)
        for i in range(n // vl * vl, n):
            poke(target, i, load1(base, offset + i, like), like)
    else:
        for i in range(n):
            poke(target, i, load1(base, offset + i * step, like), like)


@njit(nogil=True, error_model="numpy")
def _write(source, base, offset, n, step, alpha, beta, like):
    """n elements, ``step`` apart: alpha * source + beta * what is there."""
    vl, acc = lanes(like), accsize(like)
    for i in range(0, n, vl):
        mask = (1 << min(vl, n - i)) - 1
        value = load_acc(source + i * acc, like)
        if step == 1:
            if beta == 0:
                store(base, offset + i, mask, scale(alpha, value), like)
            else:
                old = load(base, offset + i, mask, zeros(like), like)
                store(base, offset + i, mask, scale_add(alpha, value, beta, old), like)
        else:
            for j in range(i, min(i + vl, n)):
                one = alpha * peek(source, j, like)
                if beta != 0:
                    one += beta * load1(base, offset + j * step, like)
                store1(base, offset + j * step, one, like)


@njit(nogil=True, error_model="numpy")
def _plane(buffer, work, base, geo, n, g, like):
    """x of one image and channel, with its padding."""
    buffer[: geo.rows * geo.width] = 0
    for h in range(geo.H):
        at = (h + geo.top) * geo.width + geo.left
        _read(work + at * accsize(like), base, n * geo.x_n + g * geo.x_c + h * geo.x_h, geo.W, geo.x_w, like)


@njit(nogil=True, error_model="numpy")
def _products(target, y, plane, step, n, like):
    """target[i] += y[i] * plane[i * step], accumulators at these addresses."""
    vl, acc = lanes(like), accsize(like)
    i = 0
    if step == 1:
        while i + vl <= n:
            at = target + i * acc
            store_acc(
                at, multiply_add(load_acc(y + i * acc, like), load_acc(plane + i * acc, like), load_acc(at, like)), like
            )
            i += vl
    while i < n:
        poke(target, i, peek(target, i, like) + peek(y, i, like) * peek(plane, i * step, like), like)
        i += 1


def filters(x, y, w, like, geo, taps, planes, work, alpha, beta, threads):
    """The gradient with respect to w: columns are summed apart over images and rows, and joined at the end."""
    size = planes.shape[1]
    for tid in prange(threads):
        buffer = planes[tid]
        here = work + tid * size * accsize(like)
        row = geo.rows * geo.width + lanes(like)
        sums = row + geo.Q + lanes(like)
        for g in range(geo.G * tid // threads, geo.G * (tid + 1) // threads):
            buffer[sums : sums + geo.M * geo.T * geo.Q] = 0
            for n in range(geo.N):
                _plane(buffer, here, x, geo, n, g, like)
                for m in range(geo.M):
                    k = g * geo.M + m
                    for p in range(geo.P):
                        _read(
                            here + row * accsize(like), y, n * geo.y_n + k * geo.y_k + p * geo.y_h, geo.Q, geo.y_w, like
                        )
                        for t in range(geo.T):
                            at = (p * geo.step_h + taps[t, 0]) * geo.width + taps[t, 1]
                            column = sums + (m * geo.T + t) * geo.Q
                            _products(
                                here + column * accsize(like),
                                here + row * accsize(like),
                                here + at * accsize(like),
                                geo.step_w,
                                geo.Q,
                                like,
                            )
            for m in range(geo.M):
                for t in range(geo.T):
                    column = sums + (m * geo.T + t) * geo.Q
                    total = buffer[column]
                    for q in range(1, geo.Q):
                        total += buffer[column + q]
                    at = (g * geo.M + m) * geo.w_k + taps[t, 2]
                    one = alpha * total
                    if beta != 0:
                        one += beta * load1(w, at, like)
                    store1(w, at, one, like)
