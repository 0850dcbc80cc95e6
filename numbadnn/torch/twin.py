"""Gradients of gradients that no kernel computes: from the same function in PyTorch's own operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def of_gradient(
    function: Callable[..., Any], inputs: tuple[Any, ...], cotangent: Any, outer: tuple[Any, ...]
) -> tuple[Any, ...]:
    """What a gradient of ``function`` changes by, in ``inputs`` and in ``cotangent``, times ``outer``.

    The gradient is (inputs, cotangent) -> what ``torch.func.vjp(function, *inputs)`` gives for ``cotangent``.
    """

    def gradient(*arrays: Any) -> Any:
        *given, dy = arrays
        return torch.func.vjp(function, *given)[1](dy)

    # a cotangent may be a tuple, as the function's results are
    return torch.func.vjp(gradient, *inputs, cotangent)[1](tuple(outer))
