"""Numba's threads for machine code that runs without Numba: its OpenMP layer, loaded from its extension module alone.

Numba would choose it too: nobody has named another (``NUMBA_THREADING_LAYER``), and there is no TBB, which would come first.
Imported later, Numba finds the same library with its threads started. Importing this module imports no Numba.
"""

from __future__ import annotations

import ctypes
import functools
import os

from numbadnn.host import images

#: what Numba calls the functions that parallel code calls, and what they are called in the code where that is another name
_CALLED = {"parallel_for": "numba_parallel_for"}
_NAMES = (
    "parallel_for", "do_scheduling_signed", "do_scheduling_unsigned", "allocate_sched", "deallocate_sched", "get_num_threads",
    "set_num_threads", "get_thread_id", "set_parallel_chunksize", "get_parallel_chunksize", "get_sched_size",
)  # fmt: skip


class Layer:
    """The layer; ``names``: what code calls -> its address. ``start`` starts its threads, once a process."""

    def __init__(self, found: dict[str, int], file: str) -> None:
        self.names = {_CALLED.get(name, name): found[name] for name in _NAMES}
        self.library = ctypes.CDLL(file)
        self.get_num_threads = ctypes.CFUNCTYPE(ctypes.c_int)(found["get_num_threads"])
        self.set_num_threads = ctypes.CFUNCTYPE(None, ctypes.c_int)(found["set_num_threads"])
        self._launch = ctypes.CFUNCTYPE(None, ctypes.c_int)(found["launch_threads"])

    def start(self) -> None:
        self._launch(threads())
        self.set_num_threads(threads())


def threads() -> int:
    """How many Numba starts; 0 where it does not take what the user asks for, and says so."""
    try:
        return max(0, int(os.environ.get("NUMBA_NUM_THREADS") or len(os.sched_getaffinity(0))))
    except ValueError:
        return 0


@functools.cache
def layer() -> Layer | None:
    """OpenMP's, None where Numba would take another or there is none."""
    if any(name.startswith("NUMBA_THREADING_LAYER") for name in os.environ) or not threads():
        return None
    try:
        ctypes.CDLL("libtbb.so.12")
        return None
    except OSError:
        pass
    try:
        found, file = images.extension("numba.np.ufunc.omppool")
        return Layer({name: value for name, value in vars(found).items() if isinstance(value, int)}, file)
    except (ImportError, KeyError, ValueError, OSError):
        return None
