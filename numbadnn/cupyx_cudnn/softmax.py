"""``cupyx.cudnn``'s softmax over one axis, and its gradient."""

from __future__ import annotations

import math
from typing import Any

import numbadnn
from numbadnn.cupyx_cudnn._arrays import check, check_shape, choice

#: by cuDNN's numbers, CUDNN_SOFTMAX_FAST = 0 and so on
ALGORITHMS = ("fast", "accurate", "log")


def _split(array: Any, axis: int) -> tuple[int, int, int]:
    """The shape with what is before and after the axis put together."""
    if not -array.ndim <= axis < array.ndim:
        raise ValueError(f"axis: expected one of {array.ndim} axes, got {axis!r}")
    axis %= array.ndim
    return math.prod(array.shape[:axis]), array.shape[axis], math.prod(array.shape[axis + 1 :])


def softmax_forward(x: Any, axis: int, algorithm: int) -> Any:
    """The softmax of x over one axis, of any rank; ``algorithm`` is one of CUDNN_SOFTMAX_FAST, _ACCURATE and _LOG."""
    check(x=x)
    word = choice("algorithm", algorithm, ALGORITHMS)
    return numbadnn.softmax(x.reshape(_split(x, axis)), word).reshape(x.shape)


def softmax_backward(y: Any, gy: Any, axis: int, algorithm: int) -> Any:
    """The gradient in x of ``softmax_forward``, from its result y and the gradient gy in that."""
    check(y=y, gy=gy)
    check_shape("gy", gy, y.shape)
    word, shape = choice("algorithm", algorithm, ALGORITHMS), _split(y, axis)
    return numbadnn.softmax_grad(gy.reshape(shape), y.reshape(shape), word).reshape(y.shape)
