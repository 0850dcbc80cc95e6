"""The one door by which parallel regions are entered.

A kernel here is a plain function whose outer loop is ``for tid in prange(threads)``. It is compiled twice from the same
source, on first need: parallel, and serial (where ``prange`` is ``range``). ``Kernel.__call__`` picks:

* serial in a forked child: Numba's OpenMP layer kills a process that enters it after a fork;
* serial for work too small to be worth waking threads;
* behind a lock where Numba's threading layer is workqueue, which aborts the process on concurrent entry;
* parallel otherwise, on as many threads as ``numba.get_num_threads()`` says. It is asked, never set.

Both builds give the same bits: kernels split their sums by the problem alone, never by the number of threads.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pathlib
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

#: dtype name -> what the kernels see: 16-bit floats travel as their bits (int16 means bfloat16)
STORED = {"float32": np.float32, "float64": np.float64, "float16": np.uint16, "bfloat16": np.int16}
#: below this many elementary operations a region runs on the calling thread
SMALL = 200_000

_entry = threading.Lock()
_local = threading.local()
_forked = False


def _after_fork() -> None:
    global _forked, _entry
    _forked = True
    _entry = threading.Lock()  # another thread of the parent may have held the old one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def thread_count(work: int) -> int:
    """Threads a region of ``work`` elementary operations may use: 1 means the serial build.

    >>> thread_count(10)
    1
    """
    if _forked or work < SMALL:
        return 1
    import numba

    return int(numba.get_num_threads())


class Kernel:
    """A function of the form ``body(..., threads)`` and its two builds."""

    def __init__(self, body: Callable[..., None]) -> None:
        self.body = body
        self._serial: Any = None
        self._parallel: Any = None

    def __call__(self, threads: int, *args: Any) -> None:
        """Run ``body(*args, threads)`` on that many threads, as ``thread_count`` gave them."""
        if threads == 1:
            if self._serial is None:
                self._serial = _compile(self.body, parallel=False)
            self._serial(*args, 1)
            return
        if self._parallel is None:
            self._parallel = _compile(self.body, parallel=True)
        if _layer() == "workqueue":
            with _entry:
                self._parallel(*args, threads)
        else:
            self._parallel(*args, threads)


def _compile(body: Callable[..., None], parallel: bool) -> Any:
    """One build, kept on disk under a name of its own (Numba's cache does not tell parallel from serial)."""
    from numba import njit

    copy = FunctionType(body.__code__, body.__globals__, body.__name__, body.__defaults__, body.__closure__)
    copy.__qualname__ = f"{body.__qualname__}_{'parallel' if parallel else 'serial'}"
    copy.__module__ = body.__module__
    # _nrt=False: the arrays are the caller's; to count references to them would cost an atomic addition a slice
    build = njit(parallel=parallel, nogil=True, cache=True, error_model="numpy", _nrt=False)(copy)
    # Numba stamps a cached build with its own file only; these call functions of their neighbours
    cache_file: Any = getattr(getattr(build, "_cache", None), "_cache_file", None)
    if hasattr(cache_file, "_source_stamp"):
        cache_file._source_stamp = _sources()
        cache_file.save = functools.partial(_save_alone, cache_file.save, pathlib.Path(cache_file._index_path))
    return build


def _save_alone(save: Callable[[Any, Any], None], index: pathlib.Path, key: Any, data: Any) -> None:
    """Numba's cache keeps a build, while no other process keeps one of the same function.

    Two processes that read its index at once give their builds, of other types, the same file name: later calls would
    load one type's machine code for the other.
    """
    from numbadnn import stored

    with stored.lock_folder(index.parent):
        save(key, data)


@functools.cache
def _sources() -> str:
    """Digest of every source file of this package."""
    digest = hashlib.sha256()
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _layer() -> str:
    """The threading layer in use; starts Numba's threads where nobody has."""
    import numba
    from numba.np.ufunc import parallel

    parallel._launch_threads()  # idempotent and locked inside
    return str(numba.threading_layer())


def scratch(nbytes: int) -> np.ndarray:
    """This Python thread's scratch memory: at least ``nbytes`` bytes from a multiple of 64, contents undefined.

    It is kept and grown, so that a call does not pay for fresh pages; the next call from the same thread reuses it.
    """
    buffer = getattr(_local, "buffer", None)
    if buffer is None or buffer.nbytes < nbytes:
        _local.buffer = buffer = None  # let the old one go first
        fresh = np.empty(nbytes + 128, np.uint8)
        start = -fresh.ctypes.data % 64
        _local.buffer = buffer = fresh[start : start + -(-nbytes // 64) * 64]
    return buffer


def address(array: Any) -> int:
    """Where element (0, ..., 0) of a NumPy array lies."""
    return int(array.__array_interface__["data"][0])


_kernels: dict[Callable[..., None], Kernel] = {}


def kernel_of(body: Callable[..., None]) -> Kernel:
    """The one Kernel of a body, so that every plan shares its builds."""
    return _kernels.setdefault(body, Kernel(body))
