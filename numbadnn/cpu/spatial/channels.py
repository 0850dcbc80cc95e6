"""The sampler and its gradients at one point of channels that lie next to each other (NHWC), a vector of them at a time.

Tables are those of ``loops._corners``. Loading this module imports Numba.
"""

from __future__ import annotations

from numba.extending import intrinsic

from numbadnn.cpu.lang.elements import accsize, itemsize
from numbadnn.cpu.lang.lines import halved, plus
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import Vec, fill, lanes, load, load_acc, multiply_add, store, store_acc, zeros


@intrinsic
def _total(typingctx, vector):
    """The sum of a vector's lanes: halves are added until one is left."""
    if isinstance(vector, Vec):
        return vector.dtype(vector), lambda cx, b, sig, args: halved(b, args[0], plus)


@inner
def _mask(channels, k, step):
    """Which lanes of the vector from channel k on are channels."""
    return -1 if k + step <= channels else (1 << (channels - k)) - 1


@inner
def _sample_some(img, y, like, c, mask, k, offsets, weights, nothing):
    total = fill(nothing, like)
    for corner in range(4):
        if weights[corner, k] != 0:
            value = load(img + offsets[corner, k] * itemsize(like), c, mask, zeros(like), like)
            total = multiply_add(fill(weights[corner, k], like), value, total)
    store(y, c, mask, total, like)


@inner
def sample(img, y, like, channels, k, offsets, weights, nothing):
    """All channels of point k; ``nothing``: 0 or NaN. A pixel of weight 0 is not looked at."""
    step = lanes(like)
    whole = channels - channels % step
    for c in range(0, whole, step):
        _sample_some(img, y, like, c, -1, k, offsets, weights, nothing)
    if whole < channels:
        _sample_some(img, y, like, whole, _mask(channels, whole, step), k, offsets, weights, nothing)


@inner
def _dots(img, dy, like, c, mask, at, zero, sums):
    a, b, d, e = sums
    slope = load(dy, c, mask, zero, like)
    return (
        multiply_add(slope, load(img + at[0], c, mask, zero, like), a),
        multiply_add(slope, load(img + at[1], c, mask, zero, like), b),
        multiply_add(slope, load(img + at[2], c, mask, zero, like), d),
        multiply_add(slope, load(img + at[3], c, mask, zero, like), e),
    )


@inner
def slope(img, dy, like, channels, k, offsets, inside, sums):
    """sums[:, k] = the sums over all channels of dy * pixel, for each of the four pixels; 0 for one outside."""
    size, step = itemsize(like), lanes(like)
    at = (offsets[0, k] * size, offsets[1, k] * size, offsets[2, k] * size, offsets[3, k] * size)
    zero = zeros(like)
    totals = (zero, zero, zero, zero)
    whole = channels - channels % step
    for c in range(0, whole, step):
        totals = _dots(img, dy, like, c, -1, at, zero, totals)
    if whole < channels:
        totals = _dots(img, dy, like, whole, _mask(channels, whole, step), at, zero, totals)
    sums[0, k] = _total(totals[0]) if inside[0, k] else 0
    sums[1, k] = _total(totals[1]) if inside[1, k] else 0
    sums[2, k] = _total(totals[2]) if inside[2, k] else 0
    sums[3, k] = _total(totals[3]) if inside[3, k] else 0


@inner
def spread(dy, like, channels, k, offsets, weights, plane):
    """Add dy * weight to the accumulators of four pixels, from address ``plane`` on: whole vectors of them a pixel."""
    step, size = lanes(like), accsize(like)
    for c in range(0, channels, step):
        value = load(dy, c, _mask(channels, c, step), zeros(like), like)
        for corner in range(4):
            if weights[corner, k] != 0:
                where = plane + (offsets[corner, k] + c) * size
                store_acc(where, multiply_add(fill(weights[corner, k], like), value, load_acc(where, like)), like)
