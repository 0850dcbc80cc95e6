"""What Numba compiles for the host, kept on disk: found again by the next process, or compiled again.

Numba keeps a build in two files, an index of types and the machine code of one. Left to itself it

* raises what reading a damaged file raises, and leaves the file as it is;
* believes machine code whose damage the pickle does not notice, and code that lies under the name of another build, as an
  interrupted process leaves it behind;
* lets two processes that read the index at once give two builds one name;
* raises where the disk refuses to write.

Here a build carries the sources and the types it was made for and a digest, one process writes at a time, and whatever is
wrong with a file is a build that is not there: it is compiled and kept in its place. Importing this module imports Numba.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import pickle
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from numbadnn.host import files as stored
from numbadnn.host.undisturbed import load_numba, undisturbed

load_numba()
from numba import njit  # noqa: E402
from numba.core.compiler_lock import global_compiler_lock  # noqa: E402

_holder = 0  # the thread that forks now


def _before_fork() -> None:
    """A child that is forked while another thread compiles would find the compiler locked for ever: wait until it is not.

    Ctrl-C ends the wait: Python prints it, as it does with all that such a hook raises, and forks.
    """
    global _holder
    global_compiler_lock.acquire()
    _holder = threading.get_ident()


def _after_fork() -> None:
    global _holder
    if _holder == threading.get_ident():
        _holder = 0
        global_compiler_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def compiled(body: Callable[..., Any], stamp: str, unkept: Callable[[], None] = lambda: None, **options: Any) -> Any:
    """``njit(**options)(body)`` kept on disk; ``stamp``: of all sources that it is made of.

    Calls ``unkept`` where Numba finds no folder that it may write to: the build then serves this process alone.
    """
    try:
        build = njit(**options, cache=True)(body)
    except (RuntimeError, UnicodeEncodeError) as error:  # NUMBA_CACHE_DIR takes no source whose path is not UTF-8
        if isinstance(error, RuntimeError) and "cannot cache" not in str(error):
            raise
        unkept()
        return _undisturbed(njit(**options)(body))
    cache: Any = getattr(build, "_cache", None)
    file: Any = getattr(cache, "_cache_file", None)
    if hasattr(file, "_source_stamp"):
        file._source_stamp = stamp
        file.load, file.save = partial(_load, file, file.load), partial(_save, file, file.save)
        cache.save_overload = partial(_save_if_there_is_room, cache.save_overload)
    return _undisturbed(build)


def _undisturbed(build: Any) -> Any:
    """The same, compiled or loaded from disk as a whole; a call that it is ready for does not come here."""
    make = build._compile_for_args

    def whole(*args: Any, **kwargs: Any) -> Any:
        with undisturbed():
            return make(*args, **kwargs)

    build._compile_for_args = whole
    return build


def digest(paths: Any, root: pathlib.Path | None = None) -> str:
    """Of the contents of these files and, with ``root``, of their names below it."""
    found = hashlib.sha256()
    for path in sorted(map(pathlib.Path, paths)):
        if root:
            found.update(path.relative_to(root).as_posix().encode() + b"\0")
        found.update(path.read_bytes() + b"\0")
    return found.hexdigest()


def _load(file: Any, load: Callable[[Any], Any], key: Any) -> Any:
    """The build of ``key``; None where there is none, or what is there is not that."""
    try:
        stamp, made_for, sha256, image = load(key)
        if (stamp, made_for, sha256) == (file._source_stamp, key, hashlib.sha256(image).digest()):
            return pickle.loads(image)
    except Exception:  # whatever a file that holds something else may raise
        return None
    return None


def _save(file: Any, save: Callable[[Any, Any], None], key: Any, data: Any) -> None:
    """Keep a build, while no other process keeps one in this folder; an index that cannot be read is begun anew."""
    image = file._dump(data)
    entry = (file._source_stamp, key, hashlib.sha256(image).digest(), image)
    index = pathlib.Path(file._index_path)
    with stored.lock_folder(index.parent):
        try:
            save(key, entry)
        except OSError:
            raise
        except Exception:
            index.unlink(missing_ok=True)
            save(key, entry)


def _save_if_there_is_room(save: Callable[[Any, Any], None], signature: Any, build: Any) -> None:
    """Keep a build; where the disk refuses, it serves this process all the same."""
    with contextlib.suppress(OSError):
        save(signature, build)
