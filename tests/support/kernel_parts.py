"""Parts of the CPU's kernels as functions that Python can call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


@functools.cache
def from_python(part: Any) -> Callable[..., Any]:
    """A part has no wrapper for Python of its own; this function calls it."""
    from numba import njit

    @njit
    def call(*args: Any) -> Any:
        return part(*args)

    return call  # type: ignore[no-any-return]
