"""JSON files that outlive a process: choices, plans, errata. Data only, written whole or not at all, never executed.

A file is one object with the name of its format. ``read`` checks all of it before anything is used: what is damaged, of
another format or not the user's own is reported once and ignored. ``update`` reads, changes and replaces it under a lock, so
that several processes may add to one file; a damaged file is kept beside the new one as ``NAME.damaged``, and what is no file of
this kind at all (a folder, another program's file that an option names by mistake) is left as it is.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import math
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numbadnn import config
from numbadnn.errors import is_passing, warn
from numbadnn.host.private import usable

Document = dict[str, Any]


def cache_folder(cache_dir: str = "") -> Path:
    """The option ``cache_dir``, or the user's cache folder: that of platformdirs on Linux, but for the two cases below."""
    if cache_dir:
        return absolute(cache_dir)
    named = os.environ.get("XDG_CACHE_HOME", "")  # a relative one is to be ignored, by its specification
    base = named if os.path.isabs(named) else os.path.join(os.path.expanduser("~"), ".cache")
    # of a user without a home nothing is kept: a folder below no folder is neither found nor made
    return Path(base if os.path.isabs(base) else os.devnull, "numbadnn")


class InUse(OSError):
    """A lock that this thread holds already: a call came in the middle of another that writes."""


class NotRegular(OSError):
    """What is no file to be read and replaced: a folder, a device, a pipe."""


def absolute(path: str) -> Path:
    """As the working folder is now; as it is where that was deleted, in which there is nothing."""
    try:
        return Path(path).absolute()
    except OSError:
        return Path(path)


def builds_folder() -> Path:
    """Where the CPU's kernels are kept: below the option ``cache_dir``, ``NUMBA_CACHE_DIR`` or the user's cache folder."""
    chosen, of_numba = config.current().cache_dir, os.environ.get("NUMBA_CACHE_DIR")
    if of_numba and not chosen:  # which several users share, often
        return absolute(of_numba) / f"numbadnn-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    return cache_folder(chosen) / "builds"


def read(path: Path, form: str, private: bool = True) -> Document | None:
    """The document at ``path``; None where there is none, or (reported once) none that can be used.

    ``private``: it must belong to this user and be writable by nobody else.
    """
    try:
        with open(path, encoding="utf-8", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return _ignored(path, NOT_REGULAR)
            if private and hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & stat.S_IWOTH):
                return _ignored(path, "it belongs to another user or everybody may write it")
            document = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IsADirectoryError:
        return _ignored(path, NOT_REGULAR)
    except (OSError, ValueError, RecursionError) as error:
        if is_passing(error):
            raise  # what it holds is in force, and would be left out for as long as the process lives
        return _ignored(path, f"it is damaged: {error}")
    if not isinstance(document, dict) or document.get("format") != form:
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        return _ignored(path, f"expected the format {form!r}, got {found!r}")
    return document


NOT_REGULAR = "it is not a regular file"


def _without_waiting(path: str, flags: int) -> int:
    """Open a pipe that nobody writes to as well."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


_reported: set[tuple[str, str]] = set()


def report(path: Path | str, why: str) -> None:
    """Say once a process what is wrong with a file."""
    if (str(path), why) not in _reported:
        _reported.add((str(path), why))
        warn(f"{path} is ignored: {why}")


def report_unwritten(path: Path, error: OSError) -> None:
    """Say once that a file could not be written; nothing more of what was not read either."""
    report(path, NOT_REGULAR if isinstance(error, NotRegular) else f"it cannot be written: {error}")


def _ignored(path: Path, why: str) -> Document | None:
    report(path, why)
    return None


def update(
    path: Path,
    form: str,
    change: Callable[[Document], None],
    private: bool = True,
    whole: Callable[[Document], bool] = bool,
) -> Document:
    """Read, change and replace a file, under a lock; the document as written.

    One of this format that is not ``whole`` is set aside like one that cannot be read, not added to. OSError where the disk
    refuses, or where a user's path (not ``private``) leads to something that is not ours to replace.
    """
    path = Path(os.path.realpath(path))  # a link is followed, not replaced
    if path.exists() and not path.is_file():
        raise NotRegular(f"{path} is not a regular file")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock_folder(path.parent):
        document = read(path, form, private)
        if document is None or not whole(document):
            _set_aside(path, form, private)
            document = {"format": form}
        change(document)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=1)
                file.write("\n")
            if not private:
                os.chmod(temporary, 0o644)  # a file to be committed is not the user's secret
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    return document


def _set_aside(path: Path, form: str, private: bool) -> None:
    """Rename what could not be read, under a name that is free, and say so; OSError for what is not ours to rename."""
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    if not private and text.strip() not in ("", "{}") and form not in text:
        raise OSError(f"{path} is another program's file, and left as it is")
    names = (path.with_name(f"{path.name}.damaged{'.' * (n > 0)}{n or ''}") for n in itertools.count())
    kept = next(name for name in names if not name.exists())
    os.replace(path, kept)
    report(path, f"what it held is kept in {kept}")


@contextlib.contextmanager
def _flock(path: Path, flags: int, patience: float | None) -> Iterator[None]:
    """Hold a lock that other processes and threads wait for; nothing where the system has none, or refuses it.

    After ``patience`` seconds this one goes on without; None waits for ever.
    """
    try:
        import fcntl

        file = os.open(path, flags, 0o600)
    except (ImportError, OSError):
        yield
        return
    try:
        status = os.fstat(file)
        mine = threading.get_ident(), status.st_dev, status.st_ino
        if mine in _held.values():
            raise InUse(errno.EDEADLK, "this thread holds the lock already", str(path))
        _held[file] = mine
        if not _free(file, fcntl):
            if patience is None:
                fcntl.flock(file, fcntl.LOCK_EX)
            else:
                _wait(lambda: _free(file, fcntl), patience)
        yield
    finally:
        _held.pop(file, None)
        os.close(file)


def _free(file: int, fcntl: Any) -> bool:
    """Take a lock that nobody else holds; False where somebody does. A file system without locks has it free."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _wait(until: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not until() and time.monotonic() < end:
        time.sleep(0.02)


#: descriptors of locks, and who holds which; a forked child has them too, and would wait for itself
_held: dict[int, tuple[int, int, int]] = {}


def _after_fork() -> None:
    while _held:
        os.close(_held.popitem()[0])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def lock_folder(path: Path) -> contextlib.AbstractContextManager[None]:
    """One writer of this user's at a time in a folder; a lock in the folder itself others might hold for ever."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:16]
    return lock_file(locks_folder() / f"folder-{name}.lock")


def lock_file(path: Path, patience: float | None = None) -> contextlib.AbstractContextManager[None]:
    """Hold a lock of this user's; nothing where its folder is not this user's alone, or cannot be made.

    One that is held for longer than ``patience`` seconds is done without.
    """
    if not usable(path.parent, create=True):
        return contextlib.nullcontext()
    return _flock(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), patience)


def locks_folder() -> Path:
    """The folder of this user's locks: below the cache folder that all processes share, or ``cache_dir`` where there is none."""
    shared, own = cache_folder() / "locks", cache_folder(config.current().cache_dir) / "locks"
    return shared if usable(shared, create=True) else own


def as_json(document: Any, **options: Any) -> str:
    """As JSON, which has no word for what is not finite: that is null.

    >>> as_json({"worst": float("inf")})
    '{"worst": null}'
    """
    return json.dumps(_finite(document), allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
