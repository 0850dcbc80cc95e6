"""Builds of the CPU's kernels that run without Numba: a process that finds all on disk does not import it, which takes 0.3 s.

Beside Numba's own build its machine code is kept alone (``host/images.py``), under a key of the kernel's name, of what its
arguments are, and of all that ``stamp`` says: the code of the library, versions, Numba's settings, the processor. A file is
read as every kept build is (``host/private.py``). Where one is missing or cannot be placed, Numba is imported and goes its way,
and from then on its own dispatcher is called, which tells arguments apart in C, 0.4 to 1.4 us a call faster. ``stamp`` is ""
where nothing of this is done.
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
from numpy import ndarray

from numbadnn.host import files, images, private, sources
from numbadnn.host.bounded import remember
from numbadnn.host.compiling import was_found
from numbadnn.host.undisturbed import undisturbed

_FORMAT = "numbadnn-image-1"
_PROCESSOR = re.compile(rb"^(vendor_id|cpu family|model|model name|stepping|flags)\s*:.*$", re.MULTILINE)
#: of an array's flags: C's order, Fortran's, aligned, writable
_LAYOUT = 0x1 | 0x2 | 0x100 | 0x400
_tuples: dict[int, tuple[Any, Any]] = {}
#: types of tuples that hold numbers alone
_numbers: set[tuple[Any, ...]] = set()
_ONE = {int, float, bool, *(np.dtype(t).type for t in "?bhilBHILfd")}


def without_numba() -> bool:
    """Whether kernels are looked for here: nobody has imported Numba, and this machine's objects are known."""
    return "numba" not in sys.modules and bool(_fixed())


def stamp() -> str:
    """What all images depend on, as text; "" where they are not used."""
    settings = sorted(f"{n}={v}" for n, v in os.environ.items() if n.startswith("NUMBA_") and sources.is_of_code(n[6:]))
    return "\0".join([_fixed(), *settings]) if _fixed() else ""


def can_keep() -> bool:
    """Whether what this process compiles, which has imported Numba, is what ``stamp`` says."""
    return bool(stamp()) and sources.are_the_environments()


@functools.cache
def _fixed() -> str:
    """The part that stays as it is as long as this process lives."""
    if not images.possible() or os.path.exists(".numba_config.yaml"):  # which Numba reads
        return ""
    code, processor = [sources.package("numbadnn.cpu"), sources.package("numbadnn.host")], _processor()
    compilers = [_version("numba"), _version("llvmlite")]
    if not all((*code, processor, *compilers)):
        return ""
    return "\0".join([_FORMAT, sys.version, np.__version__, *compilers, processor, *code])


def _processor() -> str:
    """What the system says of the first processor: LLVM compiles for what it can."""
    try:
        with open("/proc/cpuinfo", "rb") as file:
            first = file.read(16384).split(b"\n\n")[0]
    except OSError:
        return ""
    return b"\n".join(m[0] for m in _PROCESSOR.finditer(first)).decode()


def _version(package: str) -> str:
    """Of an installed package that need not be imported: where it is, and when that was written; "" where no file says."""
    try:
        spec = importlib.util.find_spec(package)
        status = os.stat(str(spec and spec.origin))
    except (ImportError, ValueError, OSError):  # a frozen program
        return ""
    return f"{spec and spec.origin} {status.st_size} {status.st_mtime_ns}"


def kinds_of(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What of the arguments decides which build they need. Hot."""
    found: list[Any] = []
    for value in args:
        its = type(value)
        if its is ndarray:
            found += value.dtype, value.ndim, value.flags.num & _LAYOUT
        elif its is int or its in _ONE:
            found.append(its)
        else:
            found.append(_kind(value))
    return tuple(found)


def _kind(value: Any) -> Any:
    """Of what is neither an array nor a number. A plan's geometry, of many numbers, is remembered with its own."""
    its = type(value)
    if its is tuple:
        types = tuple(map(type, value))
        return its, types if types in _numbers else _kinds_in(value, types)
    known = _tuples.get(id(value))
    if known is not None and known[1] is value:
        return known[0]
    if not issubclass(its, tuple):
        return its
    types = tuple(map(type, value))
    found = its, _kinds_in(value, types)
    if types in _numbers:
        remember(_tuples, id(value), (found, value))
    return found


def _kinds_in(value: tuple[Any, ...], types: tuple[Any, ...]) -> tuple[Any, ...]:
    if _ONE.issuperset(types):
        _numbers.add(types)
        return types
    return kinds_of(value)


def described(kinds: tuple[Any, ...]) -> str:
    """``kinds_of`` as text, the same in every process; TypeError for what images are not kept of."""
    words = []
    for found in kinds:
        if isinstance(found, int):  # axes, layout
            words.append(str(found))
        elif found in _ONE:
            words.append(found.__name__)
        elif isinstance(found, np.dtype) and found.isnative and found.kind in "biuf":
            words.append(found.str)
        elif isinstance(found, tuple):
            words.append(f"{found[0].__module__}.{found[0].__qualname__}({described(found[1])})")
        else:
            raise TypeError(f"no image for {found!r}")
    return " ".join(words)


def _file(name: str, kinds: tuple[Any, ...]) -> tuple[Path, str]:
    key = hashlib.sha256("\0".join([stamp(), name, described(kinds)]).encode()).hexdigest()[:40]
    return files.builds_folder() / f"{key}.image", key


class Builds:
    """A kernel's builds by what their arguments are; ``compiled()`` is asked for Numba's dispatcher where one is missing.

    ``names``: what they may call beside Numba's helpers.
    """

    def __init__(self, name: str, names: dict[str, int], compiled: Callable[[], Any]) -> None:
        self.name, self.names, self.compiled = name, names, compiled
        self.known: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        kinds = kinds_of(args)
        run = self.known.get(kinds)
        if run is None:
            with undisturbed():
                run = self.known[kinds] = self._found(kinds) or self.compiled()
        return run(*args)

    def _found(self, kinds: tuple[Any, ...]) -> Callable[..., Any] | None:
        """The kept image for such arguments; None where there is none that can be used."""
        try:
            path, key = _file(self.name, kinds)
            found = private.read(path, _FORMAT, key)
            made = found and images.function(found[1], found[0]["entry"], self.names)
        except (TypeError, ValueError, LookupError, AttributeError, struct.error, ImportError, OSError):
            return None
        if made:
            was_found()
        return made or None


def keep(name: str, build: Any, args: tuple[Any, ...]) -> None:
    """Keep the machine code of a dispatcher's build for ``args`` where it reads none of Python's objects."""
    from numbadnn.host import symbols
    from numbadnn.host.numba_names import lookup_environment

    if not can_keep():
        return
    found = build.overloads.get(tuple(map(build.typeof_pyval, args)))
    if found is None or found.lifted or found.objectmode or found.library.has_dynamic_globals:
        return
    try:
        path, key = _file(name, kinds_of(args))
        if private.read(path, _FORMAT, key):
            return
        image = symbols.image_of(found.library)
        read = map(lookup_environment, images.environments(image))
    except (TypeError, ValueError, RuntimeError, struct.error):
        return
    if not any(environment and environment.consts for environment in (*read, found.environment)):
        private.write(path, _FORMAT, key, image, function=name, entry=found.fndesc.llvm_cpython_wrapper_name)
