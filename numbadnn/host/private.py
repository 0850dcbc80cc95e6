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


def write(path: Path, form: str, key: str, image: bytes, **facts: str) -> bool:
    """Keep bytes; False where the folder may not be used or the disk refuses (all works without)."""
    if not usable(path.parent, create=True):
        return False
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
    except OSError:
        return False
    return True
