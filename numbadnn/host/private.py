"""Files that machine code and pickles are loaded from: in folders that only their owner can touch, checked when read.

Such a folder is a real one, belongs to the user and has mode 0700; any other is not used. A file in it is one line of JSON
(format, key, SHA-256 and facts) and then bytes. It is used only if it is the user's, the line is whole, its key is the one
asked for and the bytes have that SHA-256; anything else is as if there were none. Writing goes to a temporary name and is
renamed, so that a reader never sees half a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from numbadnn.errors import is_passing, warn

#: where the system has no numbers of users (Windows), what lies below a user's folder is nobody else's
_USERS = hasattr(os, "getuid")


def usable(folder: Path, create: bool = False) -> bool:
    """Whether ``folder`` is a real folder of this user with mode 0700 (made so if ``create`` and it is missing)."""
    if create:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        status = os.lstat(folder)
    except (OSError, ValueError):
        return False
    if not _USERS:
        return stat.S_ISDIR(status.st_mode)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and status.st_mode & 0o777 == 0o700


def read(path: Path, form: str, key: str) -> tuple[dict[str, Any], bytes] | None:
    """The facts and the bytes of ``path``; None where there is nothing that can be trusted."""
    if not usable(path.parent):
        return None
    try:
        with open(path, "rb") as file:
            if _USERS and os.fstat(file.fileno()).st_uid != os.getuid():
                return None  # a folder that another user put in its place after it was looked at
            first, image = file.read().split(b"\n", 1)
        head = json.loads(first)
        wanted = {"format": form, "key": key, "sha256": hashlib.sha256(image).hexdigest()}
        return (head, image) if all(head.get(name) == value for name, value in wanted.items()) else None
    except (OSError, ValueError, AttributeError):
        return None


def unusable(folder: Path) -> str:
    """Why nothing that is executed is kept in a folder, or ""."""
    if usable(folder, create=True):
        return ""
    if folder.is_relative_to(os.devnull):
        return "this user has no home folder"
    return f"{folder} cannot be made, or is no folder of this user with mode 0700"


def write(path: Path, form: str, key: str, image: bytes, **facts: str) -> str:
    """Keep bytes; why they are not kept where the folder may not be used or the disk refuses (all works without), or ""."""
    if why := unusable(path.parent):
        return why
    head = {"format": form, "key": key, "sha256": hashlib.sha256(image).hexdigest(), **facts}
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(json.dumps(head).encode() + b"\n" + image)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        return "" if is_passing(error) else f"{path.parent} cannot be written: {error.strerror or error}"
    return ""


#: why nothing is kept that no folder cures
UNREAD = "the library's code cannot be read"
_said: set[str] = set()


def say_unkept(why: str) -> None:
    """Warn once a process, if ``why`` is not "", that compiled code is not kept."""
    if why and not _said:
        _said.add(why)
        cure = "" if why == UNREAD else ": make room there, or set NUMBADNN_CACHE_DIR to another folder of your own"
        warn(f"each process compiles anew, for {why}{cure}")
