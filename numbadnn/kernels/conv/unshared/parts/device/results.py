"""What a kernel writes: alpha times a sum, and beta times what was there, which is read only where beta is not 0."""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import load, load_vector, store, store_vector
from numbadnn.kernels.lang.cuda import ACCUMULATOR, cuda, device, i32


def storing(dtype: str, acc: str = "float32") -> Callable[..., None]:
    """``put(target, value, alpha, beta)``: one result."""
    read, write, A = load(dtype, acc), store(dtype, acc), ACCUMULATOR[acc]

    @device
    def put(target, value, alpha, beta):
        result = A(alpha * value)
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
