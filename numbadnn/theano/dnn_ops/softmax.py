"""``theano.gpuarray.dnn``'s softmax as op classes; the old page's first argument, the layout, may be left out."""

from __future__ import annotations

from typing import Any

import numbadnn
from numbadnn.call.operands import named_view
from numbadnn.ops.conv_build import check_rank
from numbadnn.theano.config import cudnn_first
from numbadnn.theano.dnn_ops.library import DnnBase

__all__ = ["GpuDnnSoftmax", "GpuDnnSoftmaxBase", "GpuDnnSoftmaxGrad"]


ALGORITHMS = ("fast", "accurate", "log")


class GpuDnnSoftmaxBase(DnnBase):
    """``(algo, mode)``, or as once ``("bc01", algo, mode)``: algo fast, accurate or log, mode instance or channel."""

    def __init__(
        self, *arguments: str, algo: str | None = None, mode: str | None = None, tensor_format: str = "bc01"
    ) -> None:
        super().__init__()
        given = list(arguments)
        if given and given[0] in ("bc01", "b01c"):
            tensor_format = given.pop(0)
        if algo is not None and given and given[0] in ALGORITHMS:
            raise TypeError(f"algo: given twice, as {given[0]!r} and {algo!r}")
        self.algo: Any = algo if algo is not None else given.pop(0) if given else "accurate"
        self.mode: Any = mode if mode is not None else given.pop(0) if given else "channel"
        if tensor_format != "bc01":
            raise ValueError(f"tensor_format: expected 'bc01', got {tensor_format!r}")
        if given:
            raise TypeError(f"expected ('bc01',) algo and mode, got {', '.join(map(repr, given))} besides")
        if self.algo not in ALGORITHMS:
            raise ValueError(f"algo: expected one of fast, accurate, log, got {self.algo!r}")
        if self.mode not in ("instance", "channel"):
            raise ValueError(f"mode: expected 'instance' or 'channel', got {self.mode!r}")


class GpuDnnSoftmax(GpuDnnSoftmaxBase):
    """``GpuDnnSoftmax(algo, mode)(x)``: ``numbadnn.softmax`` of four dimensions, else ValueError.

    >>> import numpy as np
    >>> GpuDnnSoftmax("accurate", "channel")(np.zeros((1, 4, 1, 1), "float32")).ravel()
    array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """

    def __call__(self, x: Any) -> Any:
        check_rank("x", named_view(x, "x"), 4)
        with cudnn_first():
            return numbadnn.softmax(x, self.algo, self.mode)


class GpuDnnSoftmaxGrad(GpuDnnSoftmaxBase):
    """``GpuDnnSoftmaxGrad(algo, mode)(dy, sm)``: ``numbadnn.softmax_grad``, from the forward result."""

    def __call__(self, dy: Any, sm: Any) -> Any:
        check_rank("dy", named_view(dy, "dy"), 4)
        with cudnn_first():
            return numbadnn.softmax_grad(dy, sm, self.algo, self.mode)
