"""Where libcudnn may be, in the order in which the places are asked; nothing here loads anything.

The path the user gave; a libcudnn this process has already mapped (two of them in one process would share nothing and
fail in odd ways, so a mapped one is *the* one); the pip wheel nvidia-cudnn-cu12 or -cu13; CUDA_PATH, CUDA_HOME;
LD_LIBRARY_PATH; whatever the system's loader finds. Every place leaves a line in the trail, found or not.
cuda-pathfinder is not asked: it cannot say where a library lies, but only load it, for good and before it was looked at.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from numbadnn.errors import is_passing

SONAME = "libcudnn.so.9"
MAPS = "/proc/self/maps"
_MAIN = re.compile(r"libcudnn\.so(\.\d+)*$")
_ANY = re.compile(r"libcudnn(_\w+)?\.so(\.\d+)*$")


def mapped(maps: str = MAPS, every: bool = False) -> list[str]:
    """Paths of libcudnn in this process's memory; ``every``: its sub-libraries too."""
    try:
        lines = Path(maps).read_bytes().split(b"\n")  # a name may hold any byte but this
    except OSError as error:
        if is_passing(error):
            raise  # a second libcudnn might be loaded beside what is not seen
        return []
    # address perms offset dev inode path; the path may hold spaces, and need not be UTF-8
    paths = {os.fsdecode(fields[5]) for line in lines if len(fields := line.split(None, 5)) == 6}
    pattern = _ANY if every else _MAIN
    return sorted(p for p in paths if pattern.match(os.path.basename(p)))


def directories(maps: str = MAPS) -> list[str]:
    """The folders that the mapped libcudnn and its sub-libraries come from; one, unless something is wrong."""
    return sorted({os.path.dirname(os.path.realpath(p)) for p in mapped(maps, every=True)})


def wheel_folders() -> list[str]:
    """Folders of installed ``nvidia.cudnn`` packages."""
    try:
        spec = importlib.util.find_spec("nvidia.cudnn")
    except (ImportError, ValueError):
        return []
    return list(spec.submodule_search_locations or []) if spec else []


def wheel_name() -> str:
    """The distribution that is installed, as ``nvidia-cudnn-cu13 9.19.0``, or what it would be called."""
    for name in ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "nvidia-cudnn-cu12/-cu13"


def places(explicit: str | None = None) -> Iterator[tuple[str, str | None]]:
    """(place, path) in order; path None where the place has no libcudnn; the last is a bare name for the loader."""
    if explicit:
        yield f"NUMBADNN_CUDNN_LIBRARY={explicit}", explicit
        return
    found = mapped()
    for path in found or (None,):
        yield "already mapped in this process", path
    if found:
        return
    wheels: list[Path | None] = [Path(f) / "lib" for f in wheel_folders()]
    yield from _in_folders(f"wheel {wheel_name()}", wheels or [None])
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        root = os.environ.get(variable)
        names = ("lib64", "lib", "lib/x86_64-linux-gnu") if root else ()
        yield from _in_folders(variable, [Path(root or "") / s for s in names] or [None])
    entries: list[Path | None] = [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    yield from _in_folders("LD_LIBRARY_PATH", entries or [None])
    yield "system loader", SONAME


def _in_folders(name: str, folders: Sequence[Path | None]) -> Iterator[tuple[str, str | None]]:
    for folder in folders:
        place = f"{name}: {folder}" if folder else f"{name}: not set" if name.isupper() else name
        path = folder / SONAME if folder else None
        yield place, str(path) if path and path.is_file() else None


def header_version(library: str) -> int | None:
    """The version that cudnn_version.h beside the library states (../include), or None where there is no header."""
    include = Path(os.path.realpath(library)).parent.parent / "include"
    for name in ("cudnn_version.h", "cudnn_version_v9.h"):
        try:
            text = (include / name).read_text(errors="replace")
        except OSError:
            continue
        parts = [re.search(rf"#define\s+CUDNN_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCHLEVEL")]
        if all(parts):
            major, minor, patch = (int(p.group(1)) for p in parts if p)
            return major * 10000 + minor * 100 + patch
    return None
