"""Dropout on strided memory: the kernels. A chunk's random words are made first, then its elements are taken.

The ten rounds of Philox run on arrays of counters, so that LLVM vectorises them. Where neighbours in the last logical axis
lie next to each other in memory, lanes are neighbouring counters (``drop``); where neighbours in another axis do (the
channels of NHWC), lanes are counters of that axis' neighbours (``drop_across``): the words come out in memory's order, and
are the same. Loading this module imports Numba.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from numbadnn.cpu.lang.typed import fetch, flush, inner, offset_of

CHUNK = 512
#: what ``drop_across`` takes at once: this many elements of the last axis, and of the axis that lies closest in memory
LENGTH, WIDTH = 64, 64
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)


@njit(nogil=True, error_model="numpy", inline="always")  # a call that LLVM inlines itself would not be vectorised
def _philox(counter, k0, k1):
    """The four words of Philox4x32-10 of a counter under a key."""
    c0, c1, c2, c3 = counter & _LOW, counter >> _32, np.uint64(0), np.uint64(0)
    for _ in range(10):
        one, two = _M0 * c0, _M1 * c2
        c0, c2 = (two >> _32) ^ c1 ^ k0, (one >> _32) ^ c3 ^ k1
        c1, c3 = two & _LOW, one & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@njit(nogil=True, error_model="numpy", inline="always")
def _counter(number):
    """The counter of an element; its number, with an offset of up to 2**63, is one of 64 bits without a sign."""
    return np.uint64(number) >> np.uint64(2)


@inner
def philox_words(words, blocks, first, seed):
    """words[4 * b : 4 * b + 4] = Philox4x32-10 of the counter first + b under the key seed, for b < blocks."""
    low_key, high_key = np.uint64(seed) & _LOW, np.uint64(seed) >> _32
    for b in range(blocks):
        c0, c1, c2, c3 = _philox(np.uint64(first) + np.uint64(b), low_key, high_key)
        words[4 * b], words[4 * b + 1], words[4 * b + 2], words[4 * b + 3] = c0, c1, c2, c3


def drop(
    source, target, codes, seed, offset, threshold, scale, runs, shape, strides, length, steps, buffers, bits, threads
):
    """target = source * scale where the word of the element's number + ``offset`` is at least ``threshold``, else 0."""
    chunks = (length + CHUNK - 1) // CHUNK
    for tid in prange(threads):
        t, words = buffers[tid], bits[tid]
        for job in range(runs * chunks * tid // threads, runs * chunks * (tid + 1) // threads):
            run, i = job // chunks, job % chunks * CHUNK
            n = min(CHUNK, length - i)
            number = offset + run * length + i
            skip = number & 3
            philox_words(words, (skip + n + 3) >> 2, _counter(number), seed)
            fetch(t, n, source, offset_of(run, shape, strides[0]) + i * steps[0], steps[0], codes[0])
            for j in range(n):
                t[j] = t[j] * scale if np.int64(words[skip + j]) >= threshold else 0.0
            flush(t, n, target, offset_of(run, shape, strides[1]) + i * steps[1], steps[1], codes[1])


@inner
def _words_across(words, blocks, number, pitch, width, seed):
    """words[4 * b : 4 * b + 4, k] = Philox of the counter (number + k * pitch) div 4 + b."""
    low_key, high_key = np.uint64(seed) & _LOW, np.uint64(seed) >> _32
    for b in range(blocks):
        for k in range(width):
            c0, c1, c2, c3 = _philox(_counter(number + k * pitch) + np.uint64(b), low_key, high_key)
            words[4 * b, k], words[4 * b + 1, k], words[4 * b + 2, k], words[4 * b + 3, k] = c0, c1, c2, c3


def drop_across(
    source,
    target,
    codes,
    seed,
    offset,
    threshold,
    scale,
    runs,
    shape,
    strides,
    length,
    steps,
    lane,
    buffers,
    bits,
    threads,
):
    """As ``drop``, for an axis of step 1 in both arrays: ``lane`` = its length, and how far apart its neighbours' numbers are.

    ``strides`` has a third row: what an index is worth in an element's number.
    """
    extent, pitch = lane
    wide, long = (extent + WIDTH - 1) // WIDTH, (length + LENGTH - 1) // LENGTH
    tiles = wide * long
    for tid in prange(threads):
        t, words = buffers[tid], bits[tid]
        for job in range(runs * tiles * tid // threads, runs * tiles * (tid + 1) // threads):
            run, tile = job // tiles, job % tiles
            i, first = tile // wide * LENGTH, tile % wide * WIDTH
            n, width = min(LENGTH, length - i), min(WIDTH, extent - first)
            number = offset + offset_of(run, shape, strides[2]) + first * pitch + i
            _words_across(words, (n + 6) >> 2, number, pitch, width, seed)
            at0 = offset_of(run, shape, strides[0]) + first + i * steps[0]
            at1 = offset_of(run, shape, strides[1]) + first + i * steps[1]
            for j in range(n):
                fetch(t, width, source, at0 + j * steps[0], 1, codes[0])
                if pitch & 3 == 0:
                    row = words[(number & 3) + j]
                    for k in range(width):
                        t[k] = t[k] * scale if np.int64(row[k]) >= threshold else 0.0
                else:
                    for k in range(width):
                        word = words[((number + k * pitch) & 3) + j, k]
                        t[k] = t[k] * scale if np.int64(word) >= threshold else 0.0
                flush(t, width, target, at1 + j * steps[1], 1, codes[1])
