"""The same bits again: the fingerprint of a result, and whether repeated runs share one.

``levels`` tries what might change bits, ``batches`` divides a batch, ``rows`` judges, ``words`` says it, ``report`` is the
command.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import numpy as np


def fingerprint(*arrays: np.ndarray) -> str:
    """SHA-256 of arrays' values in C order, whatever their strides; -0 and 0, and any two NaNs, differ as their bits do.

    >>> fingerprint(np.zeros((2, 3), "float32")) == fingerprint(np.zeros((3, 2), "float32").T)
    True
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


def same_bits(results: Iterable[tuple[np.ndarray, ...]]) -> bool:
    """Whether all results (each a tuple of arrays) have one fingerprint."""
    return len({fingerprint(*result) for result in results}) <= 1


def repeatable(run: Callable[[], np.ndarray], times: int = 3) -> bool:
    """Whether ``run()`` gives the same bits ``times`` times."""
    return same_bits((run(),) for _ in range(times))
