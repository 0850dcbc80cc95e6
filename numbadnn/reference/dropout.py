"""Dropout and its gradient from the definition, in float64: the oracle; with Philox4x32-10 written out.

Element i in C order is kept where word (offset + i) mod 4 of Philox4x32-10, for the counter (offset + i) div 4 and the key
``seed`` (its low word first), is at least round(p * 2^32); a kept element is divided by 1 - p, any other is 0, whatever it was.
Source of the generator: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85


def philox4x32(counter: NDArray[np.uint32], key: tuple[int, int], rounds: int = 10) -> NDArray[np.uint32]:
    """Four random words for each counter: ``counter`` (..., 4) and the result are uint32, ``key`` two 32-bit words.

    >>> [hex(int(word)) for word in philox4x32(np.zeros(4, np.uint32), (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = (np.asarray(counter)[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = key
    for _ in range(rounds):
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c2 = (second >> _32) ^ c1 ^ np.uint64(k0), (first >> _32) ^ c3 ^ np.uint64(k1)
        c1, c3 = second & _LOW, first & _LOW
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def dropout_words(count: int, seed: int, offset: int = 0) -> NDArray[np.uint32]:
    """The random words of elements 0 ... count - 1."""
    index = np.arange(count, dtype=np.uint64) + np.uint64(offset % 2**64)
    blocks = index // np.uint64(4)
    counter = np.stack([blocks & _LOW, blocks >> _32, *2 * [np.zeros_like(blocks)]], axis=-1).astype(np.uint32)
    words = philox4x32(counter, (seed % 2**32, seed // 2**32 % 2**32))
    return np.take_along_axis(words, (index % np.uint64(4)).astype(np.int64)[:, None], axis=-1)[:, 0]


def dropout(x: Any, dropout: float = 0.0, seed: int = 4242, offset: int = 0) -> Float64:
    """x with each element zeroed with probability ``dropout``, the others divided by 1 - dropout, in float64.

    ValueError for a probability outside [0, 1]. Source: docs/explanation/semantics.md#dropout.

    >>> dropout([1.0, 2.0, 3.0, 4.0], 1.0)
    array([0., 0., 0., 0.])
    """
    values = np.asarray(x).astype(np.float64)
    if not 0 <= dropout <= 1:
        raise ValueError(f"dropout: expected a probability from 0 to 1, got {dropout!r}")
    if dropout == 1:
        return np.zeros_like(values)
    kept = dropout_words(values.size, seed, offset).reshape(values.shape) >= round(dropout * 2.0**32)
    return np.where(kept, values / (1 - dropout), 0.0)


def dropout_grad(dy: Any, state: Any) -> Float64:
    """The gradient: dropout of dy with the probability, seed and offset that ``state`` holds.

    >>> from types import SimpleNamespace
    >>> dropout_grad([1.0, 2.0], SimpleNamespace(p=0.0, seed=1, offset=0))
    array([1., 2.])
    """
    return dropout(dy, state.p, state.seed, state.offset)
