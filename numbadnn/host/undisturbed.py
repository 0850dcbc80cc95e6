"""Work that nothing may break off half way: what imports, loads or compiles with Numba, and what registers implementations.

Numba cannot go on from the middle: an exception that a signal handler raises inside it leaves half of its modules, or of its
tables, and every later call fails. Inside ``undisturbed()``

* no handler of a signal runs (Ctrl-C above all): what came is handed on at the end, and nothing is lost;
* no garbage is collected, so that no ``__del__``, weakref or gc callback of the user's runs in its middle;
* there is room on the stack: RecursionError comes at the beginning or not at all.

It nests, costs microseconds and is entered on cold paths alone. ``load_numba`` imports all of Numba or nothing of it.
"""

from __future__ import annotations

import _signal  # what ``signal`` makes of it, names for numbers, takes ten times as long
import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

#: frames that an import, a compilation or a plan may need below its caller; twice what was seen
NEEDED = 400


class _Mine(threading.local):
    depth = 0


_mine = _Mine()
_SIGNALS = tuple(map(int, signal.valid_signals()))
#: signal -> its handler, while that is put aside; only the main thread handles signals
_aside: dict[int, Callable[..., Any]] = {}
_came: list[int] = []
_counting = threading.RLock()
_inside, _collecting = 0, False  # threads; whether garbage was collected before the first


class undisturbed:
    """Inside, neither a signal's handler nor the garbage collector runs in this thread; see the module."""

    def __enter__(self) -> None:
        if _mine.depth:
            _mine.depth += 1
            return
        _check_room()
        _mine.depth = 1
        try:
            _collect_nothing()
            if threading.current_thread() is threading.main_thread():
                _put_aside()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        _mine.depth -= 1
        if _mine.depth:
            return
        try:
            if _aside and threading.current_thread() is threading.main_thread():
                _put_back()
        finally:
            _collect_again()
        _hand_on()


def _check_room() -> None:
    """RecursionError, while nothing is begun, where the caller is too deep for what may follow."""
    limit, depth, frame = sys.getrecursionlimit(), 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    if depth + NEEDED > limit:
        raise RecursionError(
            f"the first call of a problem needs {NEEDED} frames of the stack, {max(0, limit - depth)} of {limit} are left: "
            "make it where less of the program is waiting, or raise sys.setrecursionlimit"
        )


def _note(number: int, frame: object) -> None:
    if number not in _came:
        _came.append(number)


def _put_aside() -> None:
    for number in _SIGNALS:
        handler = _signal.getsignal(number)
        if callable(handler) and handler is not _note:
            with contextlib.suppress(ValueError):  # another interpreter than the first handles no signals
                _aside[number] = handler
                _signal.signal(number, _note)


def _put_back() -> None:
    """The handlers as they were; one of them may run, and raise, before the last is back."""
    while _aside:
        number, handler = next(iter(_aside.items()))
        try:
            if _signal.getsignal(number) is _note:  # else somebody has set another inside
                _signal.signal(number, handler)
        finally:
            del _aside[number]
            if _aside:
                _put_back()


def _hand_on() -> None:
    """What came goes to its handlers; one that raises does not keep the others from theirs."""
    if _came and threading.current_thread() is threading.main_thread():
        number = _came.pop(0)
        try:
            signal.raise_signal(number)
        finally:
            _hand_on()


def _collect_nothing() -> None:
    global _inside, _collecting
    with _counting:
        if not _inside:
            _collecting = gc.isenabled()
            gc.disable()
        _inside += 1


def _collect_again() -> None:
    global _inside
    with _counting:
        _inside -= 1
        if not _inside and _collecting:
            gc.enable()


def _after_fork() -> None:
    """The child has this thread alone: what another one had put aside is put back."""
    global _counting, _inside, _one_thread
    _counting, _one_thread = threading.RLock(), threading.RLock()
    others = _inside > bool(_mine.depth)
    _inside = int(bool(_mine.depth))
    if not _mine.depth:
        _came.clear()
        _put_back()
        if others and _collecting:
            gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def imported(name: str) -> Any:
    """The module of that name, None where nobody has asked for it or another thread is still importing it."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


#: what is imported as one: its packages
_WHOLE = {"numba": ("numba", "llvmlite"), "numba.cuda": ("numba.cuda", "numba_cuda")}
_loaded: set[str] = set()
_one_thread = threading.RLock()


def load_numba(cuda: bool = False) -> None:
    """Import Numba, all or nothing: a failed import can be repeated.

    One thread does it, others wait: Numba's own locks do not keep several apart.
    """
    name = "numba.cuda" if cuda else "numba"
    if name in _loaded:
        return
    with undisturbed(), _one_thread:
        if name in _loaded:
            return
        if cuda:
            load_numba()
        before = set(sys.modules)
        try:
            importlib.import_module(name)
        except BaseException:
            if name not in before:  # else somebody has what was imported before
                _forget(set(sys.modules) - before, _WHOLE[name])
            raise
        _loaded.add(name)


def ready_to_compile() -> None:
    """Have Numba import and register what it needs to compile for the CPU; one thread does it.

    That takes longer than to import Numba: a process that finds its kernels on disk goes without.
    """
    if "tables" in _loaded:
        return
    from numbadnn.host.numba_names import cpu_target, global_compiler_lock

    with undisturbed(), global_compiler_lock:
        if "tables" not in _loaded:
            fill_tables(cpu_target)
            _loaded.add("tables")


def fill_tables(target: Any) -> None:
    """Have Numba fill its tables of a target's functions and types as a whole, for it cannot go on where it was broken off.

    It does so when it first compiles for the target. The caller holds the target's lock of the compiler.
    """
    kept = dict(vars(target))
    with undisturbed():
        try:
            target.typing_context.refresh()
            target.target_context.refresh()
        except BaseException:
            vars(target).clear()
            vars(target).update(kept)
            raise


def _forget(names: set[str], packages: tuple[str, ...]) -> None:
    """Take half of a package out again, so that the next import begins anew."""
    for name in names:
        if f"{name}.".startswith(tuple(f"{package}." for package in packages)):
            module = sys.modules.pop(name)
            parent, _, last = name.rpartition(".")
            if parent in sys.modules and getattr(sys.modules[parent], last, None) is module:
                delattr(sys.modules[parent], last)
