"""Theano's module paths: a module of this package under more than one name, always as the same object."""

from __future__ import annotations

import sys
from types import ModuleType


def place(package: str, **modules: ModuleType) -> None:
    """Let ``import package.name`` give the module, and all that is placed below it, as it is.

    The import system takes what ``sys.modules`` holds; without an entry it would look for a file, and load a copy.
    """
    for name, module in modules.items():
        setattr(sys.modules[package], name, module)
        own, path = f"{module.__name__}.", f"{package}.{name}"
        below = {path + key[len(own) - 1 :]: found for key, found in sys.modules.items() if key.startswith(own)}
        sys.modules.update({path: module, **below})
