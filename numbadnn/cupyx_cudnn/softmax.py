"""``cupyx.cudnn``'s softmax over one axis, and its gradient."""

from __future__ import annotations

from typing import Any

import numbadnn
from numbadnn.cupyx_cudnn._arrays import check, check_shape, choice
from numbadnn.option_types import SoftmaxAlgo

#: by cuDNN's numbers, CUDNN_SOFTMAX_FAST = 0 and so on
ALGORITHMS: tuple[SoftmaxAlgo, ...] = ("fast", "accurate", "log")


def softmax_forward(x: Any, axis: int, algorithm: int) -> Any:
    """The softmax of x over one axis, of any rank; ``algorithm`` is one of CUDNN_SOFTMAX_FAST, _ACCURATE and _LOG."""
    check(x=x)
    word = choice("algorithm", algorithm, ALGORITHMS)
    return numbadnn.softmax(x, word, axis=axis)


def softmax_backward(y: Any, gy: Any, axis: int, algorithm: int) -> Any:
    """The gradient in x of ``softmax_forward``, from its result y and the gradient gy in that."""
    check(y=y, gy=gy)
    check_shape("gy", gy, y.shape)
    word = choice("algorithm", algorithm, ALGORITHMS)
    return numbadnn.softmax_grad(gy, y, word, axis=axis)
