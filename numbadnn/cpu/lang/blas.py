"""NumPy's BLAS on one thread, while an implementation of the CPU multiplies.

Threads of BLAS wait actively, after a product too (OpenBLAS's for 20 ms), and Numba's would meet them on the same processors.
So one pool works at a time, which is Numba's.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import threading
from collections.abc import Callable
from typing import Any

_NAMES = [
    (f"{prefix}openblas_get_num_threads{suffix}", f"{prefix}openblas_set_num_threads{suffix}")
    for prefix in ("scipy_", "")
    for suffix in ("64_", "", "_64", "_64_")
] + [("MKL_Get_Max_Threads", "MKL_Set_Num_Threads")]


@functools.cache
def _calls() -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    """(how many threads, set them) of the BLAS that NumPy is linked to; None for one that is not known."""
    try:
        library = ctypes.CDLL(
            importlib.import_module("numpy._core._multiarray_umath").__file__
        )  # and what it is linked to
    except (ImportError, OSError):  # NumPy 1 and its BLAS
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


one_thread = _OneThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=one_thread.after_fork)
