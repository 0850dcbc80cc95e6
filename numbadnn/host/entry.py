"""Compiled host functions by name: ``entry("numbadnn.kernels.build.shim", "launch_shim")`` imports no Numba where it is on disk.

Such a function has one signature and is made by ``hostcall.kept``. Its machine code is kept (``kept_images.py``), under a
key of the code of the package that its module lies in; it may use nothing of the library beyond that package and ``host``.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable

from numbadnn.host import kept_images
from numbadnn.host.undisturbed import load_numba, undisturbed


@functools.cache
def entry(module: str, name: str) -> Callable[..., int]:
    """What Python calls of the function, without Numba's dispatcher, which costs a tenth of a microsecond."""
    package = module.rpartition(".")[0]
    with undisturbed():
        importlib.import_module(package)
        stamp = kept_images.stamp(package)
        path, key = kept_images.file(stamp, module, name)
        return (stamp and kept_images.found(path, key, {})) or _compiled(module, name)


def _compiled(module: str, name: str) -> Callable[..., int]:
    """Of the imported module, and Numba with it; kept for the next process."""
    load_numba()
    function = getattr(importlib.import_module(module), name)
    (signature,) = function.signatures
    build, package = function.overloads[signature], module.rpartition(".")[0]
    if kept_images.can_keep(package):
        kept_images.keep(*kept_images.file(kept_images.stamp(package), module, name), name, build)
    return build.entry_point


def address_of(library: ctypes.CDLL, name: str) -> int:
    """The address of the C function ``name`` of a loaded library; AttributeError where it has none."""
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None
    return address
