"""Modules of kernels whose names a plan needs, without importing them, and Numba with them.

``module(name)`` is the module itself where Numba is there already. Else it stands in for it with what an earlier process found:
constants as they are on this machine, and kernels by name (``Body``), which are imported when they must be compiled. What was
not found before, or is something else, imports the module. Constants lie in a file (JSON) in the folder of kept builds, under a
key of ``native.stamp``.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import sys
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

from numbadnn.cpu.lang import native
from numbadnn.host import files, private
from numbadnn.host.undisturbed import load_numba, undisturbed
from numbadnn.registry import Summation

_FORMAT = "numbadnn-names-1"
_modules: dict[str, Any] = {}
_stand_ins: dict[str, Any] = {}


class Body(NamedTuple):
    """A kernel's function by its name."""

    module: str
    name: str

    def function(self) -> Any:
        """The function itself; imports Numba."""
        return getattr(_real(self.module), self.name)

    def __call__(self, *args: Any) -> Any:
        return self.function()(*args)


class _StandIn:
    """A module's constants and kernels."""

    def __init__(self, name: str, known: dict[str, Any]) -> None:
        self._name = name
        self.__dict__.update({n: _decoded(v, name) for n, v in known.items()})

    def __getattr__(self, name: str) -> Any:
        return getattr(_real(self._name), name)


def module(name: str) -> Any:
    """A module of ``numbadnn.cpu`` that imports Numba, or what stands in for it."""
    if name in _modules:
        return _modules[name]
    if native.without_numba():
        if name in _stand_ins:
            return _stand_ins[name]
        if known := _known(_file()[0]).get(name):
            return _stand_ins.setdefault(name, _StandIn(name, known))
    return _real(name)


def names(of: str, *wanted: str) -> Any:
    """``from of import wanted``: a tuple, or the one."""
    found = module(of)
    values = tuple(getattr(found, name) for name in wanted)
    return values if len(values) > 1 else values[0]


def body_of(function: Any) -> Body | None:
    """A kernel's function by its name; None for one that cannot be found by it."""
    if isinstance(function, Body):
        return function
    found = Body(function.__module__, function.__qualname__)
    inside = found.module.startswith("numbadnn.cpu.")
    return found if inside and getattr(sys.modules.get(found.module), found.name, None) is function else None


def name_of(function: Any) -> str:
    """A kernel's own name, be it the function or what stands in for it."""
    return str(function.name if isinstance(function, Body) else function.__name__)


def _real(name: str) -> Any:
    load_numba()
    with undisturbed():
        _modules[name] = found = importlib.import_module(name)
        if native.can_keep():
            _remember(name, found)
    return found


def _remember(name: str, found: Any) -> None:
    path, key = _file()
    known, encoded = _known(path), {}
    if name in known:
        return
    for attribute, value in vars(found).items():
        if attribute.startswith("__"):
            continue
        try:
            encoded[attribute] = _encoded(value, name)
        except TypeError:
            continue
    known[name] = encoded
    private.write(path, _FORMAT, key, json.dumps(known).encode())


@functools.cache
def _known(path: Path) -> dict[str, Any]:
    found = private.read(path, _FORMAT, path.stem)
    try:
        return dict(json.loads(found[1])) if found else {}
    except ValueError:
        return {}


def _file() -> tuple[Path, str]:
    key = hashlib.sha256("\0".join([_FORMAT, native.stamp()]).encode()).hexdigest()[:40]
    return files.builds_folder() / f"{key}.names", key


def _encoded(value: Any, name: str) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (tuple, list):
        return {type(value).__name__: [_encoded(v, name) for v in value]}
    if type(value) is dict:
        return {"dict": [[_encoded(k, name), _encoded(v, name)] for k, v in value.items()]}
    if type(value) is Summation:
        return {"Summation": [_encoded(v, name) for v in (value.chains, value.rest, value.lanes)]}
    if type(value) is FunctionType and value.__module__ == name:
        return {"kernel": value.__name__}
    raise TypeError


def _decoded(value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        return value
    ((what, parts),) = value.items()
    if what == "kernel":
        return Body(name, parts)
    if what == "dict":
        return {_decoded(k, name): _decoded(v, name) for k, v in parts}
    values = [_decoded(v, name) for v in parts]
    return values if what == "list" else tuple(values) if what == "tuple" else Summation(*values)
