"""``theano.gpuarray.dnn``'s pooling: dnn_pool and the op classes, called with arrays.

All run as under ``using(backend="cudnn")``, the fallback policy in force. Windows, strides and paddings may be tuples, lists or
integer arrays; the first number belongs to axis 2 of the image. Source: docs/explanation/semantics.md#pooling.
"""

from __future__ import annotations

from typing import Any

import numbadnn
from numbadnn.ops.pool import mode_of, parameters
from numbadnn.option_types import PoolMode
from numbadnn.problems.pool import MODES, check_windows
from numbadnn.theano.config import cudnn_first
from numbadnn.theano.dnn_ops.library import DnnBase

__all__ = ["GpuDnnPool", "GpuDnnPoolBase", "GpuDnnPoolDesc", "GpuDnnPoolGrad", "dnn_pool"]


def dnn_pool(img: Any, ws: Any, stride: Any = None, mode: PoolMode = "max", pad: Any = None) -> Any:
    """``numbadnn.pool`` of an image (N, C, rows, columns[, third]): stride defaults to ones, pad to zeros."""
    with cudnn_first():
        return numbadnn.pool(img, ws, stride, mode, pad)


class GpuDnnPoolBase(DnnBase):
    """What the two op classes share: ``mode``, one of numbadnn.pool's or "average", else ValueError."""

    def __init__(self, mode: PoolMode = "max") -> None:
        super().__init__()
        mode = mode_of(mode)
        if not isinstance(mode, str) or mode not in MODES:
            raise ValueError(f"mode: expected one of {', '.join(MODES)}, average, got {mode!r}")
        self.mode: PoolMode = mode


class GpuDnnPool(GpuDnnPoolBase):
    """``GpuDnnPool(mode)(img, ws, stride, pad)``: the pooled image."""

    def __call__(self, img: Any, ws: Any, stride: Any, pad: Any) -> Any:
        with cudnn_first():
            return numbadnn.pool(img, ws, stride, self.mode, pad)


class GpuDnnPoolGrad(GpuDnnPoolBase):
    """``GpuDnnPoolGrad(mode)(inp, out, out_grad, ws, stride, pad)``: the gradient in the image."""

    def __call__(self, inp: Any, out: Any, out_grad: Any, ws: Any, stride: Any, pad: Any) -> Any:
        with cudnn_first():
            return numbadnn.pool_grad(inp, out, out_grad, ws, stride, self.mode, pad)


class GpuDnnPoolDesc:
    """The parameters of a pooling, as old pickles hold them; called, it is itself.

    ``ws``, ``stride`` (None: ones) and ``pad`` (None: zeros) agree in the number of axes, two or three, and ``mode`` is one of
    pooling's, else ValueError.
    """

    def __init__(self, ws: Any = (1, 1), stride: Any = None, mode: PoolMode = "max", pad: Any = None) -> None:
        self.mode = GpuDnnPoolBase(mode).mode
        self.ws, self.stride, self.pad, _ = parameters((ws, stride, mode, pad))
        check_windows(self.ws, self.stride, self.pad)

    def __call__(self) -> GpuDnnPoolDesc:
        return self

    def get_ndim(self) -> int:
        return len(self.ws)
