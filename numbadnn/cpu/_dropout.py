"""Dropout on strided memory: the kernel. Runs of the last logical axis, whose random words are made a chunk at a time.

The ten rounds of Philox run on arrays of counters, so that LLVM vectorises them over neighbouring counters. Loading this
module imports Numba.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from numbadnn.cpu._typed import fetch, flush, offset_of

CHUNK = 512
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)


@njit(nogil=True, error_model="numpy")
def philox_words(words, blocks, first, seed):  # type: ignore[no-untyped-def]
    """words[4 * b : 4 * b + 4] = Philox4x32-10 of the counter first + b under the key seed, for b < blocks."""
    low_key, high_key = np.uint64(seed) & _LOW, np.uint64(seed) >> _32
    for b in range(blocks):
        counter = np.uint64(first) + np.uint64(b)
        c0, c1, c2, c3 = counter & _LOW, counter >> _32, np.uint64(0), np.uint64(0)
        k0, k1 = low_key, high_key
        for _ in range(10):
            one, two = _M0 * c0, _M1 * c2
            c0, c2 = (two >> _32) ^ c1 ^ k0, (one >> _32) ^ c3 ^ k1
            c1, c3 = two & _LOW, one & _LOW
            k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
        words[4 * b], words[4 * b + 1], words[4 * b + 2], words[4 * b + 3] = c0, c1, c2, c3


def drop(
    source, target, codes, seed, offset, threshold, scale, runs, shape, strides, length, steps, buffers, bits, threads
):  # type: ignore[no-untyped-def]
    """target = source * scale where the word of the element's number + ``offset`` is at least ``threshold``, else 0."""
    chunks = (length + CHUNK - 1) // CHUNK
    for tid in prange(threads):
        t, words = buffers[tid], bits[tid]
        for job in range(runs * chunks * tid // threads, runs * chunks * (tid + 1) // threads):
            run, i = job // chunks, job % chunks * CHUNK
            n = min(CHUNK, length - i)
            number = offset + run * length + i
            skip = number & 3
            philox_words(words, (skip + n + 3) >> 2, number >> 2, seed)
            fetch(t, n, source, offset_of(run, shape, strides[0]) + i * steps[0], steps[0], codes[0])
            for j in range(n):
                t[j] = t[j] * scale if np.int64(words[skip + j]) >= threshold else 0.0
            flush(t, n, target, offset_of(run, shape, strides[1]) + i * steps[1], steps[1], codes[1])
