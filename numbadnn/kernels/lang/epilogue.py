"""How a result is written: scaled, and added to what was there."""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import load, load_vector, store, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32


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


def storing_vector(dtype: str, vec: int, acc: str = "float32", given_up: str = "") -> Callable[..., None]:
    """``put(results, start, target, beta)``: ``vec`` neighbours, multiplied by alpha before, in one access."""
    read, write = load_vector(dtype, vec, acc), store_vector(dtype, vec, acc, given_up)
    A = ACCUMULATOR[acc]

    @device
    def put(results, start, target, beta):
        if beta != A(0):
            old = cuda.local.array(vec, A)
            read(old, i32(0), target)
            for e in range(vec):
                results[start + e] = A(results[start + e] + beta * old[e])
        write(results, start, target)

    return put
