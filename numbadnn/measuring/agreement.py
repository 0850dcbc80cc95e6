"""Are two results the same, up to rounding? What ``tune`` asks of every candidate before it is timed.

Small integers must come out the same to the bit, which is cheap to see on bits; random numbers are compared by norms. Arrays
are the outputs' whole memory in one dimension, NaN where nothing is written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: ||a - b|| / ||b|| up to which two results agree. Not an accuracy: validate has the bounds; this finds what is plainly wrong,
#: or computes in less than it says (TF32 in place of IEEE float32 is off by 3e-4)
AGREEMENT = {"float64": 1e-12, "float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}
LOOSER = {"tf32": 20.0, "tf32_cut": 40.0, "fft": 10.0, "winograd": 10.0}

#: of a larger array so many elements, in so many pieces, where small integers have already shown every element
SAMPLE, PIECES = 1 << 18, 16


def pieces(size: int) -> list[slice]:
    """What is looked at of an array of so many elements: all of it, or pieces spread evenly, the first and last elements too.

    >>> pieces(100)
    [slice(0, 100, None)]
    """
    if size <= SAMPLE:
        return [slice(0, size)]
    length = SAMPLE // PIECES
    starts = [i * (size - length) // (PIECES - 1) for i in range(PIECES)]
    return [slice(start, start + length) for start in starts]


def sampled(arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """The pieces of each array, one after the other."""
    return tuple(np.concatenate([a[piece] for piece in pieces(a.size)]) for a in arrays)


def disagreement(results: tuple[np.ndarray, ...], others: tuple[np.ndarray, ...], arithmetic: str) -> str:
    """Why these are not the same results, up to rounding ("" = they are).

    >>> disagreement((np.ones(3, "float32"),), (np.full(3, 1.5, "float32"),), "ieee")
    'output 1 differs by 0.333 of its norm, 0.0001 is allowed'
    """
    for number, (mine, other) in enumerate(zip(results, others, strict=True), 1):
        wide: Any = np.float64 if mine.dtype == np.float64 else np.float32
        a, b = mine.astype(wide), other.astype(wide)
        with np.errstate(invalid="ignore", over="ignore"):
            odd = ~(np.isfinite(a) & np.isfinite(b))
            if odd.any():
                if not np.array_equal(a[odd], b[odd], equal_nan=True):
                    return f"output {number} is not finite where the other is, or the reverse"
                a, b = np.where(odd, 0, a), np.where(odd, 0, b)
            norm, apart = float(np.linalg.norm(b)), float(np.linalg.norm(a - b))
        allowed = AGREEMENT[mine.dtype.name] * LOOSER.get(arithmetic, 1.0)
        if not apart <= allowed * norm:
            return (
                f"output {number} differs by {apart / norm if norm else apart:.3g} of its norm, {allowed:g} is allowed"
            )
    return ""


def same_integers(results: tuple[np.ndarray, ...], others: tuple[np.ndarray, ...]) -> str:
    """Why small integers did not come out the same ("" = they did); zeros of either sign are one value, NaNs too.

    >>> same_integers((np.array([0.0, 1.0]),), (np.array([-0.0, 2.0]),))
    'output 1 differs in 1 elements on small integers'
    """
    for number, (a, b) in enumerate(zip(results, others, strict=True), 1):
        bits = np.dtype(f"u{a.itemsize}")
        where = np.flatnonzero(a.view(bits) != b.view(bits))
        x, y = a[where], b[where]
        count = int(np.count_nonzero(~((x == y) | ((x != x) & (y != y)))))
        if count:
            return f"output {number} differs in {count} elements on small integers"
    return ""
