"""How a result is written: scaled, and added to what was there."""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.cuda import ACCUMULATOR, device


def scaled(dtype: str, acc: str) -> Callable[..., None]:
    """``put(target, total, alpha, beta)``: alpha * total + beta * what is there, which is not read where beta is 0."""
    A, read, write = ACCUMULATOR[acc], load(dtype, acc), store(dtype, acc)

    @device
    def put(target, total, alpha, beta):
        result = A(alpha * total)
        if beta != A(0):
            result = A(result + beta * read(target))
        write(target, result)

    return put
