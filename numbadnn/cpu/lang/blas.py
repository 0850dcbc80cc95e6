"""Products by NumPy's BLAS with one thread each, while an implementation of the CPU multiplies; large ones in parts.

Threads of BLAS wait actively, after a product too (OpenBLAS's for 20 ms), and Numba's would meet them on the same processors.
So BLAS has one thread, and parts of a product go to threads that wait asleep.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy._core import _multiarray_umath  # type: ignore[attr-defined]  # NumPy lists no private module

from numbadnn.cpu.lang.parallel import thread_count

_NAMES = [
    (f"{prefix}openblas_get_num_threads{suffix}", f"{prefix}openblas_set_num_threads{suffix}")
    for prefix in ("scipy_", "")
    for suffix in ("64_", "", "_64", "_64_")
] + [("MKL_Get_Max_Threads", "MKL_Set_Num_Threads")]


@functools.cache
def _calls() -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    """(how many threads, set them) of the BLAS that NumPy is linked to; None for one that is not known."""
    try:
        library = ctypes.CDLL(_multiarray_umath.__file__)  # and what it is linked to
    except OSError:
        return None
    for read, write in _NAMES:
        if hasattr(library, read) and hasattr(library, write):
            return getattr(library, read), getattr(library, write)
    return None


class _OneThread:
    """Inside, products run on the thread that calls. The number is the process's: the last one out sets it back."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, 1

    def __enter__(self) -> None:
        calls = _calls()
        if calls is None:
            return
        with self._lock:
            if not self._inside:
                self._before = calls[0]()
                if self._before > 1:
                    calls[1](1)
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        calls = _calls()
        if calls is None:
            return
        with self._lock:
            self._inside -= 1
            if not self._inside and self._before > 1:
                calls[1](self._before)

    def after_fork(self) -> None:
        """In a child, where nobody is inside: another thread of the parent may have held the lock."""
        inside, before = self._inside, self._before
        self.__init__()  # type: ignore[misc]
        if inside and before > 1 and (calls := _calls()):
            calls[1](before)


#: multiplications and additions of a part of a product, some milliseconds, and the most parts
_PART, _MOST = 1 << 26, 64
_pools: dict[int, ThreadPoolExecutor] = {}


def product(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
    """out = a b of matrices or stacks of them, inside ``one_thread``. Its parts, and so its bits, follow from the shapes."""
    work = out.size * a.shape[-1]
    by_rows = out.shape[-2] >= out.shape[-1]
    length = max(out.shape[-2:])
    parts = min(work // _PART, _MOST, length // 128)
    if parts < 2:
        return np.matmul(a, b, out=out)
    bounds = [length * i // parts for i in range(parts + 1)]

    def part(i: int) -> None:
        some = slice(bounds[i], bounds[i + 1])
        with np.errstate(all="ignore"):  # a thread's own
            if by_rows:
                np.matmul(a[..., some, :], b, out=out[..., some, :])
            else:
                np.matmul(a, b[..., some], out=out[..., some])

    threads = min(thread_count(2 * work), parts)
    if threads == 1:
        for i in range(parts):
            part(i)
    else:
        pool = _pools.get(threads) or _pools.setdefault(threads, ThreadPoolExecutor(threads, "numbadnn-products"))
        list(pool.map(part, range(parts)))
    return out


one_thread = _OneThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=one_thread.after_fork)
    os.register_at_fork(after_in_child=_pools.clear)  # their threads are the parent's
