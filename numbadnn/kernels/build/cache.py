"""Compiled kernels on disk: one file each, in a folder that only its owner can touch, checked when read.

A file is one line of JSON (format, key, kernel, entry point, architecture, assembler, SHA-256) and then the binary. It is
used only if the line is whole, its key is the one asked for and the binary has that SHA-256; anything else is a miss,
and is compiled and written again. Writing goes to a temporary name and is renamed, so that a reader never sees half a
file. A folder that belongs to someone else or that others may write or read is not used: machine code is loaded from it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import NamedTuple

from numbadnn.host import files as stored

_FORMAT = "numbadnn-kernel-1"


class Binary(NamedTuple):
    """A loadable image and the name of its entry point; ``by``: what assembled it."""

    image: bytes
    entry: str
    by: str


@functools.cache
def source_hash() -> str:
    """A hash of every kernel source: any edit makes every stored binary a miss."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def key_of(*parts: str) -> str:
    """The cache key of what a binary was made from."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def default_folder() -> Path:
    """``~/.cache/numbadnn/kernels`` or where XDG_CACHE_HOME says."""
    return stored.cache_folder() / "kernels"


def usable(folder: Path, create: bool = False) -> bool:
    """Whether ``folder`` is a real folder of this user with mode 0700 (made so if ``create`` and it is missing)."""
    if create:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700


def read(folder: Path, key: str) -> Binary | None:
    """The stored binary of ``key``, None where there is none that can be trusted."""
    if not usable(folder):
        return None
    try:
        first, image = (folder / f"{key}.kernel").read_bytes().split(b"\n", 1)
        head = json.loads(first)
        wanted = {"format": _FORMAT, "key": key, "sha256": hashlib.sha256(image).hexdigest()}
        if any(head.get(name) != value for name, value in wanted.items()):
            return None
        return Binary(image, str(head["entry"]), str(head["assembler"]))
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def write(folder: Path, key: str, binary: Binary, **facts: str) -> bool:
    """Store a binary; False where the folder may not be used or the disk refuses (the kernel works all the same)."""
    if not usable(folder, create=True):
        return False
    head = {"format": _FORMAT, "key": key, "sha256": hashlib.sha256(binary.image).hexdigest()}
    head |= {"entry": binary.entry, "assembler": binary.by, **facts}
    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(json.dumps(head).encode() + b"\n" + binary.image)
            os.replace(temporary, folder / f"{key}.kernel")
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError:
        return False
    return True
