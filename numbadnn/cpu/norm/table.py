"""What batch normalization knows of each channel: parameters and statistics in, coefficients of ``apply`` and results out.

All of it is float64 and one pass over the channels, compiled because dozens of small NumPy calls cost more than they compute:
a fifth of a millisecond where the elements have just gone through the caches. A table has rows of all channels, in the order
of the walk:

    0 m   1 a   2 b   3 c, of ``apply``        4, 5 what is read beside them and what is written

Parameters lie at ``addresses``, have types ``codes`` and element ``strides`` along the axes ``shape``. Lines hold a mean in
the type of ``like`` only; what that loses of it (``_low``) is put right here. Where float32 lines cannot hold what has to be
computed, squares of 1e20 or 1e-25 say, ``lost[0]`` is set and nothing is written: it is all to be done once more in float64.
Loading this module imports Numba.
"""

from __future__ import annotations

import math

from numbadnn.cpu.lang.typed import fetch, flush, inner, offset_of

ROWS = 6
#: squares this small lose bits in float32; and between these an inverse deviation's square times a deviation loses none
SMALL, LEAST, MOST = 2.0**-100, 2.0**-60, 2.0**50


def _by_runs(move):
    """Row rows[k] <-> parameter k of all channels, for as many as there are addresses."""

    @inner
    def run(table, rows, addresses, codes, shape, strides):
        n = shape[-1]
        for k in range(len(addresses)):
            for c in range(0, table.shape[1], n):
                at = offset_of(c, shape, strides[k])
                move(table[rows[k], c : c + n], n, addresses[k], at, strides[k, -1], codes[k])

    return run


_read, _write = _by_runs(fetch), _by_runs(flush)


@inner
def _low(mean, like):
    """What the type of ``like`` loses of a mean: 0 where that is no finite number."""
    high = float(like.dtype.type(mean))
    return mean - high if abs(high) < math.inf else 0.0


@inner
def _held(value, like):
    """Whether it is a finite number in the type of ``like``."""
    return abs(like.dtype.type(value)) < math.inf


def read(addresses, codes, shape, strides, rows, table, threads):
    """Row rows[k] = parameter k."""
    _read(table, rows, addresses, codes, shape, strides)


@inner
def _forward(table, epsilon, like, lost):
    """Of mean (row 0), gamma, beta and variance: the coefficients; row 3 becomes invstd."""
    for c in range(table.shape[1]):
        table[3, c] = 1.0 / math.sqrt(table[3, c] + epsilon)
        table[1, c] *= table[3, c]
        if like.itemsize == 4 and not (_held(table[0, c], like) and _held(table[1, c], like)):
            lost[0] = 1
        low = _low(table[0, c], like)
        if low != 0.0:
            table[2, c] -= low * table[1, c]


def test(addresses, codes, shape, strides, epsilon, table, like, lost, threads):
    """Of gamma, beta, mean and variance: the coefficients of kind 0."""
    _read(table, (1, 2, 0, 3), addresses, codes, shape, strides)
    _forward(table, epsilon, like, lost)


def train(known, found, codes, shape, strides, pieces, epsilon, factor, table, like, lost, threads):
    """The same of the pieces' moments, joined in order; ``known``: where gamma, beta (and running averages) are.

    Writes mean and invstd (and fresh running averages) to ``found``; types and strides are of known, then of found.
    """
    inputs = len(known)
    _read(table, (1, 2, 4, 5), known, codes, shape, strides)
    for c in range(table.shape[1]):
        count, mean, around = pieces[0, 0, c], pieces[0, 1, c], pieces[0, 2, c]
        for part in range(1, pieces.shape[0]):
            more, delta = pieces[part, 0, c], pieces[part, 1, c] - mean
            fresh = count + more
            around += pieces[part, 2, c] + delta * delta * (count * more / fresh)
            joined = mean + delta * (more / fresh)
            if not abs(joined) < math.inf:  # a mean that is infinite: delta has its sign, or is NaN
                joined = mean * (count / fresh) + pieces[part, 1, c] * (more / fresh)
            mean, count = joined, fresh
        table[0, c], table[3, c] = mean, around / count
        if like.itemsize == 4 and not ((epsilon >= SMALL or around >= SMALL * count) and around < math.inf):
            lost[0] = 1
        if inputs == 4:
            table[4, c] = table[4, c] * (1.0 - factor) + mean * factor
            table[5, c] = table[5, c] * (1.0 - factor) + table[3, c] * (count / (count - 1.0)) * factor
    _forward(table, epsilon, like, lost)
    if not lost[0]:
        _write(table, (0, 3, 4, 5), found, codes[inputs:], shape, strides[inputs:])


def gradient(addresses, codes, shape, strides, pieces, averaged, of_training, epsilon, table, like, lost, threads):
    """The coefficients of kind 1 (of training) or 2, of mean (row 0), gamma (4), invstd or variance (5) and the pieces' sums.

    Writes the gradients of gamma and beta, then those of mean and variance where these are inputs.
    """
    for c in range(table.shape[1]):
        s1, s2, s3 = 0.0, 0.0, 0.0
        for part in range(pieces.shape[0]):
            s1, s2, s3 = s1 + pieces[part, 0, c], s2 + pieces[part, 1, c], s3 + pieces[part, 2, c]
        low = _low(table[0, c], like)
        s2, s3 = s2 - low * s1, s3 - low * averaged
        invstd = table[5, c] if of_training else 1.0 / math.sqrt(table[5, c] + epsilon)
        a = table[4, c] * invstd
        b = -a * invstd * invstd * (s2 / averaged)
        if like.itemsize == 4 and not (
            LEAST < invstd < MOST and abs(s1) < math.inf and _held(a, like) and _held(b, like)
        ):
            lost[0] = 1
        table[1, c], table[2, c] = a, b
        table[3, c] = -a * (s1 / averaged) - b * (s3 / averaged)
        if low != 0.0:
            table[3, c] -= low * b
        table[4, c], table[5, c] = s2 * invstd, s1
        if not of_training:
            table[2, c], table[3, c] = -s1 * a, -s2 * a * invstd * invstd / 2.0
    if not lost[0]:
        _write(table, (4, 5, 2, 3), addresses, codes, shape, strides)
