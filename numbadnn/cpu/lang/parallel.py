"""Run parallel regions of the CPU's kernels. This is the only way into them.

A kernel here is a plain function whose outer loop is ``for tid in prange(threads)``. It is compiled twice from the same
source, on first need: parallel, and serial (where ``prange`` is ``range``). ``Kernel.__call__`` picks:

* serial in a forked child: Numba's OpenMP layer kills a process that enters it after a fork;
* serial for work too small to be worth waking threads;
* behind a lock where Numba's threading layer is workqueue, which aborts the process on concurrent entry;
* parallel otherwise, on as many threads as the option ``threads`` says: those of the process's quota, where it says nothing,
  and never more than ``numba.get_num_threads()``, which a call may lower for itself and sets back.

Threads wait for one another asleep (``_passive``). Beside a busy processor a thread that waits actively keeps the other from its
processor for whole slices of the scheduler.

Both builds give the same bits: kernels split their sums by the problem alone, never by the number of threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import math
import os
import pathlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from numbadnn import config
from numbadnn.arrays.numpy_ import address as address
from numbadnn.cpu.lang import later, native
from numbadnn.errors import is_passing
from numbadnn.host import layer
from numbadnn.host.quota import processors
from numbadnn.host.undisturbed import load_numba
from numbadnn.problem import Spec

#: dtype name -> what the kernels see: 16-bit floats travel as their bits (int16 means bfloat16)
STORED = {"float32": np.float32, "float64": np.float64, "float16": np.uint16, "bfloat16": np.int16}
#: bytes of a line of memory, and of a run in which those at its ends do not matter
LINE, LONG = 64, 2048
#: below this many elementary operations a region runs on the calling thread
SMALL = 200_000

_entry = threading.RLock()  # a call may come in the middle of another, while Numba compiles that one
_local = threading.local()
_forked = False


def _after_fork() -> None:
    global _forked, _entry
    _forked = True
    _entry = threading.RLock()  # another thread of the parent may have held the old one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def thread_count(work: int) -> int:
    """Threads a region of ``work`` elementary operations may use: 1 means the serial build.

    >>> thread_count(10)
    1
    """
    if _forked or work < SMALL:
        return 1
    return min(config.current().threads or processors(), int(_masking()[0]()))


def most_scratch(work: int, capacity: Callable[[int], int]) -> int:
    """What a plan says of its scratch: ``capacity(threads)`` bytes, for the most that ``thread_count`` may give a call here.

    One thread alone may take longer stretches, and so more memory than each of many.
    """
    if work < SMALL:
        return capacity(1)
    return max(capacity(1), capacity(config.current().threads or processors()))


class Kernel:
    """A function of the form ``body(..., threads)`` and its two builds."""

    def __init__(self, body: Callable[..., None]) -> None:
        self.body = body
        self._serial: Any = None  # Numba's dispatcher, or what runs without Numba
        self._parallel: Any = None

    def __call__(self, threads: int, *args: Any) -> None:
        """Run ``body(*args, threads)`` on that many threads, as ``thread_count`` gave them."""
        if threads == 1:
            if self._serial is None:
                self._serial = self._without_numba(parallel=False) or self._with_numba(parallel=False)
            self._serial(*args, 1)
            return
        if self._parallel is None:
            self._parallel = self._without_numba(parallel=True) or self._with_numba(parallel=True)
        build = self._parallel
        _on(threads, build if isinstance(build, native.Builds) else _in_turn(build), args)

    def compile(self, *args: Any) -> None:
        """Both builds for arguments of these types; nothing runs."""
        import numba

        from numbadnn.host.undisturbed import undisturbed

        with undisturbed(), warnings.catch_warnings():
            # of what has nothing to share out among threads, as a table of a few numbers has not
            warnings.simplefilter("ignore", numba.NumbaPerformanceWarning)
            for build in (self._with_numba(parallel=False), self._with_numba(parallel=True)):
                given = (*args, 1)
                build.compile(tuple(map(build.typeof_pyval, given)))
                build.made(build, given)

    def _without_numba(self, parallel: bool) -> native.Builds | None:
        """The builds for a process that has not imported Numba; the first that is not on disk ends that."""
        body = later.body_of(self.body)
        if body is None or not native.without_numba():
            return None
        names: dict[str, int] = {}
        if parallel:
            if (started := start_threads()) is None:
                return None
            names = started.names
        return native.Builds(_called(body, parallel), names, functools.partial(self._instead, parallel))

    def _instead(self, parallel: bool) -> Any:
        """What is run in place of a build that is not on disk."""
        build = self._with_numba(parallel)
        return _in_turn(build) if parallel else build

    def _with_numba(self, parallel: bool) -> Any:
        """Numba's dispatcher, which takes the place of builds that run without."""
        build = self._parallel if parallel else self._serial
        if build is None or isinstance(build, native.Builds):
            build = _compile(self.body, parallel)
            if parallel:
                self._parallel = build
            else:
                self._serial = build
        return build


def _called(body: later.Body, parallel: bool) -> str:
    return f"{'.'.join(body)}{' parallel' if parallel else ''}"


def _on(threads: int, build: Any, args: tuple[Any, ...]) -> None:
    """Run a parallel build on so many of Numba's threads; the number is this thread's own, and as before after."""
    get, put = _masking()
    before = get()
    if before == threads:
        build(*args, threads)
        return
    put(threads)
    try:
        build(*args, threads)
    finally:
        put(before)


@functools.cache
def _masking() -> tuple[Callable[[], int], Callable[[int], None]]:
    """What tells and sets how many of Numba's threads this thread may use; they are started."""
    if started := start_threads():
        return started.get_num_threads, started.set_num_threads
    import numba

    return numba.get_num_threads, numba.set_num_threads


@contextlib.contextmanager
def both_builds() -> Iterator[None]:
    """Inside, a kernel that is called is compiled for one thread and for several, whichever the call needs."""
    run = Kernel.__call__

    def compile_and_run(self: Kernel, threads: int, *args: Any) -> None:
        self.compile(*args)
        run(self, threads, *args)

    Kernel.__call__ = compile_and_run  # type: ignore[method-assign]
    try:
        yield
    finally:
        Kernel.__call__ = run  # type: ignore[method-assign]


def _compile(body: Callable[..., None], parallel: bool) -> Any:
    """One build, kept on disk."""
    from numbadnn.host import sources
    from numbadnn.host.builds import compiled

    # _nrt=False: the arrays are the caller's; to count references to them would cost an atomic addition a slice
    options = {"parallel": parallel, "nogil": True, "error_model": "numpy", "_nrt": False}
    named = later.body_of(body)

    def keep(build: Any, args: tuple[Any, ...]) -> None:
        if named:
            native.keep(_called(named, parallel), build, args)

    function = body.function() if isinstance(body, later.Body) else body
    return compiled(function, sources.package("numbadnn.cpu"), keep, **options)  # it calls its neighbours


def _in_turn(build: Any) -> Any:
    """A parallel build of Numba's, or what runs it while no other thread runs one."""
    return functools.partial(_alone, build) if _one_at_a_time() else build


def _alone(build: Any, *args: Any) -> None:
    with _entry:
        build(*args)


@functools.cache
def _one_at_a_time() -> bool:
    """Whether Numba's own threads are workqueue's; started by this. A program may choose it after ours, of OpenMP, run."""
    if alone := start_threads():
        from numbadnn.host.numba_names import parallel

        with _number_stays(_openmp(alone)):
            parallel._launch_threads()
    import numba

    return str(numba.threading_layer()) == "workqueue"


@functools.cache
def start_threads() -> layer.Layer | None:
    """Start Numba's threads where nobody has; the layer, where they were started without Numba."""
    with _passive():
        alone = layer.layer() if native.without_numba() else None
        if alone is None:
            load_numba()
        openmp = _openmp(alone)
    with _number_stays(openmp):
        if alone:
            alone.start()
        else:
            from numbadnn.host.numba_names import parallel

            parallel._launch_threads()  # idempotent and locked inside
    if openmp and alone:
        _end_before_forks(openmp)
    return alone


@contextlib.contextmanager
def _number_stays(openmp: ctypes.CDLL | None) -> Iterator[None]:
    """Inside, whatever starts OpenMP's threads sets this thread's number of them, which PyTorch and others go by too."""
    before = openmp.omp_get_max_threads() if openmp else 0
    try:
        yield
    finally:
        if openmp:
            openmp.omp_set_num_threads(before)


def _end_before_forks(openmp: ctypes.CDLL) -> None:
    """End the threads of a Python thread that forks; its next region starts them anew.

    A child has none of them. Numba, imported there, does not know that they were started, and would wait for them for ever.
    """
    if hasattr(os, "register_at_fork") and hasattr(openmp, "omp_pause_resource_all"):  # since OpenMP 5.0
        os.register_at_fork(before=functools.partial(openmp.omp_pause_resource_all, 2))


@contextlib.contextmanager
def _passive() -> Iterator[None]:
    """Inside, GNU's OpenMP is loaded to wait asleep. What is loaded already stays as it is, and so does what the user said."""
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    if any(name in os.environ for name in names):
        yield
        return
    os.environ["OMP_WAIT_POLICY"] = "passive"
    try:
        yield
    finally:
        os.environ.pop("OMP_WAIT_POLICY", None)


def _openmp(alone: layer.Layer | None) -> ctypes.CDLL | None:
    """The OpenMP that Numba's layer is bound to, if any: one that everybody in the process sees comes before its own."""
    if alone:
        libraries = iter((ctypes.CDLL(None), alone.library))
    else:
        try:
            omppool = importlib.import_module("numba.np.ufunc.omppool")
        except ImportError:
            return None
        libraries = map(ctypes.CDLL, (None, omppool.__file__))
    return next((library for library in libraries if hasattr(library, "omp_set_num_threads")), None)


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


@functools.cache
def _last_cache() -> int:
    """Bytes of the last of the caches; 0 where the system does not say."""
    try:
        text = pathlib.Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text(encoding="ascii")
        return int(text.removesuffix("K\n")) << 10
    except (OSError, ValueError) as error:
        if is_passing(error):
            raise
        return 0


def past_caches(nbytes: int, run: int) -> bool:
    """Whether a call that moves so many bytes writes its result past the caches, which hold less; ``run``: side by side.

    Runs must be whole lines of memory, or long: parts of a line that are written both ways cost more than is won, 7.1 ms for 2.0
    of bilinear upsampling to rows of 224 bytes. That a result begins with a line is looked at in each call (``begins_line``).
    """
    return 0 < _last_cache() < nbytes and (run % LINE == 0 or run >= LONG)


def pixel_bytes(result: Spec) -> int:
    """Whole lines that every pixel begins and ends with, in bytes, of a result whose channels are neighbours; else 1."""
    run = math.gcd(result.shape[1], result.strides[0], *result.strides[2:]) * result.itemsize
    return 1 if run % LINE else run


def begins_line(address: int) -> bool:
    return address % LINE == 0


_kernels: dict[Any, Kernel] = {}


def kernel_of(body: Any) -> Kernel:
    """The one Kernel of a body, so that every plan shares its builds; of a function or its name (``later.Body``)."""
    found = _kernels.get(body)
    if found is None:
        name = later.body_of(body) or body
        found = _kernels.get(name) or _kernels.setdefault(name, Kernel(body))
        _kernels[body] = found
    return found
