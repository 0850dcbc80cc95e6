"""The module that computes on an array's elements, for what is put together of operations: ``numpy``, ``cupy`` and so on."""

from __future__ import annotations

import importlib
from typing import Any

from numbadnn.arrays import library_of

_MODULES = {"numpy": "numpy", "cupy": "cupy", "torch": "torch", "jax": "jax.numpy"}


def namespace(array: Any, argument: str = "input") -> Any:
    """The array's library as a module; TypeError for what is no array, or has no arithmetic of its own.

    >>> import numpy as np
    >>> namespace(np.ones(2)).__name__
    'numpy'
    """
    name = _MODULES.get(library_of(array, argument).name)
    if name is None:
        raise TypeError(
            f"{argument}: expected an array of NumPy, CuPy, PyTorch or JAX, got {type(array).__qualname__}, which has no "
            "arithmetic; cupy.asarray and torch.as_tensor take it without a copy"
        )
    return importlib.import_module(name)


def transposed(array: Any, axes: tuple[int, ...]) -> Any:
    """A view with its axes in this order."""
    return array.permute(axes) if hasattr(array, "permute") else array.transpose(axes)
