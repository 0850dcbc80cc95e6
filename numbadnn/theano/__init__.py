"""The specification's own names and signatures: code written for Theano's operations changes one import.

Every name of ``theano.gpuarray.dnn``, ``theano.sandbox.cuda.dnn`` and ``theano.tensor.nnet`` that means something without a
graph compiler stands here, called with arrays and giving arrays. Modules here and in ``dnn_ops`` hold them by family, each
with its ``__all__``; they are gathered when first asked for. ``conv``, ``conv3d2d`` and ``abstract_conv`` are modules of the
specification that have functions of a name used elsewhere, so they keep theirs: ``numbadnn.theano.conv.conv2d`` is the old
one. ``dnn`` and ``nnet`` are this module under the specification's names. ``tensor``, ``gpuarray`` and ``sandbox`` lead to the
same modules by Theano's paths: ``numbadnn.theano.tensor.nnet``, ``numbadnn.theano.tensor.signal.pool``. Flags are
``numbadnn.theano.config``.

>>> import numpy as np
>>> from numbadnn.theano import conv2d, config
>>> conv2d(np.ones((1, 1, 2, 2), "float32"), np.ones((1, 1, 2, 2), "float32")).shape
(1, 1, 1, 1)
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from numbadnn.arrays.untraced import leave_out

#: modules of the specification; the others are families of names
_MODULES = ("abstract_conv", "config", "conv", "conv3d2d", "dnn", "gpuarray", "nnet", "sandbox", "tensor")
_names: dict[str, str] = {}


def _families() -> list[str]:
    """Modules of names, of this package and of ``dnn_ops``."""
    here = [m.name for m in pkgutil.iter_modules(__path__) if not m.ispkg and m.name not in _MODULES]
    below = [f"dnn_ops.{m.name}" for m in pkgutil.iter_modules([f"{__path__[0]}/dnn_ops"])]
    return [name for name in (*here, *below) if not name.startswith("_")]


def _gathered() -> dict[str, str]:
    """name -> module of this package, for the names of every family."""
    if not _names:
        found = {"conv2d": "nnet"}
        for family in _families():
            module = importlib.import_module(f"{__name__}.{family}")
            leave_out(vars(module).values())
            for name in module.__all__:
                if name == family or found.setdefault(name, family) != family:
                    raise ImportError(f"{name} of {family} is a module here, or the name of another's")
        for name in importlib.import_module(f"{__name__}.abstract_conv").__all__:
            found.setdefault(name, "abstract_conv")  # conv2d is nnet's here, the upsampling its family's
        _names.update(found)
    return _names


def __getattr__(name: str) -> Any:
    if name == "__all__":  # for "import *", there and in dnn and nnet
        return __dir__()
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if not name.startswith("_") and name in _gathered():
        return getattr(importlib.import_module(f"{__name__}.{_names[name]}"), name)
    hint = (
        "" if name.startswith("_") else "; docs/how-to/port-from-theano.md says what is here, and what to write instead"
    )
    raise AttributeError(f"module 'numbadnn.theano' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*_gathered(), *_MODULES})
