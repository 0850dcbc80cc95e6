"""Machine code that runs without Numba, on disk: the object that a function was compiled to, in a file of its own.

It lies beside Numba's own build (``builds.py``), under a key of the function's name and of all that ``stamp`` says: the code
of the library, versions, Numba's settings, the processor. A file is read as every kept build is (``private.py``) and placed
in memory by ``images.py``. ``stamp`` is "" where nothing of this is done.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from numbadnn.host import files, images, private, sources
from numbadnn.host.compiling import was_found

FORMAT = "numbadnn-image-1"
_PROCESSOR = re.compile(rb"^(vendor_id|cpu family|model|model name|stepping|flags)\s*:.*$", re.MULTILINE)


def stamp(*packages: str) -> str:
    """What all images made of these imported packages of the library depend on, as text; "" where none are used."""
    return "\0".join([_fixed(packages), *sources.settings()]) if are_used(*packages) else ""


def are_used(*packages: str) -> bool:
    """Whether there is a ``stamp``; it need not be made, for which the environment is read."""
    return bool(_fixed(packages))


def can_keep(*packages: str) -> bool:
    """Whether what this process compiles, which has imported Numba, is what ``stamp`` says."""
    return are_used(*packages) and not sources.deviations()


@functools.cache
def _fixed(packages: tuple[str, ...]) -> str:
    """The part that stays as it is as long as this process lives."""
    if not images.possible() or os.path.exists(sources.NUMBAS_FILE):
        return ""
    code, processor = [sources.package(name) for name in (*packages, "numbadnn.host")], _processor()
    compilers = [installed("numba"), installed("llvmlite")]
    if not all((*code, processor, *compilers)):
        return ""
    return "\0".join([FORMAT, sys.version, np.__version__, *compilers, processor, *code])


def _processor() -> str:
    """What the system says of the first processor: LLVM compiles for what it can."""
    try:
        with open("/proc/cpuinfo", "rb") as file:
            first = file.read(16384).split(b"\n\n")[0]
    except OSError:
        return ""
    return b"\n".join(m[0] for m in _PROCESSOR.finditer(first)).decode()


def installed(package: str) -> str:
    """Of a package that need not be imported: where it is, and when that was written; "" where no file says."""
    try:
        spec = importlib.util.find_spec(package)
        status = os.stat(str(spec and spec.origin))
    except (ImportError, ValueError, OSError):  # a frozen program
        return ""
    return f"{spec and spec.origin} {status.st_size} {status.st_mtime_ns}"


def file(*made_of: str) -> tuple[Path, str]:
    """Where the image made of this lies, and its key."""
    key = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:40]
    return files.builds_folder() / f"{key}.image", key


def found(path: Path, key: str, names: dict[str, int]) -> Callable[..., Any] | None:
    """The function of an image; None where there is none that can be used. ``names``: what it may call, as ``images`` has it."""
    kept = private.read(path, FORMAT, key)
    try:
        made = kept and images.function(kept[1], kept[0]["entry"], names)
    except (TypeError, ValueError, LookupError, AttributeError, struct.error, ImportError, OSError):
        return None
    if made:
        was_found()
    return made or None


def keep(path: Path, key: str, name: str, build: Any) -> None:
    """Keep the machine code of a build of Numba's, a CompileResult, where it reads none of Python's objects."""
    from numbadnn.host import symbols
    from numbadnn.host.numba_names import lookup_environment

    if build.lifted or build.objectmode or build.library.has_dynamic_globals or private.read(path, FORMAT, key):
        return
    try:
        image = symbols.image_of(build.library)
        read = map(lookup_environment, images.environments(image))
    except (TypeError, ValueError, RuntimeError, struct.error):
        return
    if not any(environment and environment.consts for environment in (*read, build.environment)):
        private.write(path, FORMAT, key, image, function=name, entry=build.fndesc.llvm_cpython_wrapper_name)
