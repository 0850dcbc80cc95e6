"""Builds of the CPU's kernels that run without Numba: a process that finds all on disk does not import it, which takes 0.3 s.

Beside Numba's own build its machine code is kept alone (``host/kept_images.py``), under a key of the kernel's name, of what its
arguments are, and of ``stamp``. Where a file is missing or cannot be placed, Numba is imported and goes its way, and from then
on its own dispatcher is called, which tells arguments apart in C, 0.4 to 1.4 us a call faster.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from numbadnn.host import kept_images
from numbadnn.host.bounded import remember
from numbadnn.host.undisturbed import undisturbed

_PACKAGE = "numbadnn.cpu"
#: of an array's flags: C's order, Fortran's, aligned, writable
_LAYOUT = 0x1 | 0x2 | 0x100 | 0x400
_tuples: dict[int, tuple[Any, Any]] = {}
#: types of tuples that hold numbers alone
_numbers: set[tuple[Any, ...]] = set()
_ONE = {int, float, bool, *(np.dtype(t).type for t in "?bhilBHILfd")}


def without_numba() -> bool:
    """Whether kernels are looked for here: nobody has imported Numba, and this machine's objects are known."""
    return "numba" not in sys.modules and kept_images.are_used(_PACKAGE)


def stamp() -> str:
    """What all images depend on, as text; "" where they are not used."""
    return kept_images.stamp(_PACKAGE)


def can_keep() -> bool:
    """Whether what this process compiles, which has imported Numba, is what ``stamp`` says."""
    return kept_images.can_keep(_PACKAGE)


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
    return kept_images.file(stamp(), name, described(kinds))


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
        except TypeError:
            return None
        return kept_images.found(path, key, self.names)


def keep(name: str, build: Any, args: tuple[Any, ...]) -> None:
    """Keep the machine code of a dispatcher's build for ``args``."""
    found = build.overloads.get(tuple(map(build.typeof_pyval, args)))
    if found is None or not can_keep():
        return
    try:
        path, key = _file(name, kinds_of(args))
    except TypeError:
        return
    kept_images.keep(path, key, name, found)
