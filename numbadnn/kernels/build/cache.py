"""Compiled kernels on disk: one file each (``private``), found by a key of all that the kernel was made from.

Its line of facts names the kernel, the entry point, the architecture and the assembler.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from numbadnn.host import files, private, sources

_FORMAT = "numbadnn-kernel-2"
#: seconds that a process waits for another that compiles the same kernel, before it does so too
PATIENCE = 60.0


class Binary(NamedTuple):
    """A loadable image and the name of its entry point; ``by``: what assembled it."""

    image: bytes
    entry: str
    by: str


def source_hash() -> str:
    """A hash of every kernel source, "" where they cannot be read: any edit makes every stored binary a miss."""
    return sources.package("numbadnn.kernels")


def key_of(*parts: str) -> str:
    """The cache key of what a binary was made from, besides the sources and Numba's flags; "" without sources."""
    made_of = [source_hash(), sources.flags(cuda=True), *parts]
    return hashlib.sha256("\0".join(made_of).encode()).hexdigest() if made_of[0] else ""


def default_folder() -> Path:
    """``~/.cache/numbadnn/kernels`` or where XDG_CACHE_HOME says."""
    return files.cache_folder() / "kernels"


def read(folder: Path, key: str) -> Binary | None:
    """The stored binary of ``key``, None where there is none that can be trusted."""
    found = private.read(folder / f"{key}.kernel", _FORMAT, key) if key else None
    if found is None or not {"entry", "assembler"} <= found[0].keys():
        return None
    return Binary(found[1], str(found[0]["entry"]), str(found[0]["assembler"]))


def write(folder: Path, key: str, binary: Binary, **facts: str) -> str:
    """Store a binary; why it is not stored, or "" (the kernel works all the same)."""
    facts |= {"entry": binary.entry, "assembler": binary.by}
    return private.write(folder / f"{key}.kernel", _FORMAT, key, binary.image, **facts) if key else private.UNREAD


@contextlib.contextmanager
def turn(folder: Path, keys: Iterable[str]) -> Iterator[None]:
    """Hold the turn to compile these kernels, before which another process may have had it: what is on disk is looked at within.

    The processes of one program come to the same kernel at the same moment. One of them compiles it, for the others too.
    """
    paths = [folder / f"{key}.lock" for key in sorted(keys) if key]
    with contextlib.ExitStack() as held:
        for path in paths:  # in one order, or two processes might wait for each other
            held.enter_context(files.lock_file(path, PATIENCE))
        try:
            yield
        finally:  # who waits has the file open, and finds the kernel on disk; so does whoever makes the file anew
            for path in paths:
                with contextlib.suppress(OSError):
                    path.unlink()
