"""``cupyx.cudnn``'s pooling of two or three axes and its gradient."""

from __future__ import annotations

from typing import Any

import numbadnn
from numbadnn.cupyx_cudnn._arrays import check, check_shape, choice
from numbadnn.problems.pool import output_sizes

#: by cuDNN's numbers, CUDNN_POOLING_MAX = 0 and so on
MODES = ("max", "average_inc_pad", "average_exc_pad", "max_deterministic")


def _parameters(x: Any, y: Any, ksize: Any, stride: Any, pad: Any, mode: Any) -> dict[str, Any]:
    ws, steps, padding = tuple(ksize), tuple(stride), tuple(pad)
    word = choice("mode", mode, MODES)
    check_shape("y", y, (*x.shape[:2], *output_sizes("x", tuple(x.shape), ws, steps, padding, word)))
    return {"ws": ws, "stride": steps, "mode": word, "pad": padding}


def pooling_forward(x: Any, y: Any, ksize: Any, stride: Any, pad: Any, mode: int) -> Any:
    """Pool x (N, C, ...) into y, which is returned; ``mode`` is one of ``CUDNN_POOLING_...``

    ValueError unless y has the size of the windows that lie in the padded image. Windows that stick out of it, as Chainer's
    cover_all had, are ``numbadnn.theano.pool_2d``'s with ignore_border=False.
    """
    check(x=x, y=y)
    numbadnn.pool(x, **_parameters(x, y, ksize, stride, pad, mode), out=y)
    return y


def pooling_backward(x: Any, y: Any, gy: Any, ksize: Any, stride: Any, pad: Any, mode: int) -> Any:
    """The gradient in x of ``pooling_forward``, from its result y and the gradient gy in that."""
    check(x=x, y=y, gy=gy)
    check_shape("gy", gy, y.shape)
    return numbadnn.pool_grad(x, y, gy, **_parameters(x, y, ksize, stride, pad, mode))
