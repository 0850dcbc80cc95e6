"""``theano.gpuarray.dnn``'s spatial transformer: dnn_spatialtf and the op classes, called with arrays.

All run as under ``using(backend="cudnn")``, the fallback policy in force.
Source: docs/explanation/semantics.md#spatial-transformers.
"""

from __future__ import annotations

from typing import Any

import numbadnn
from numbadnn.theano.config import cudnn_first
from numbadnn.theano.dnn_ops.library import DnnBase

__all__ = [
    "GpuDnnTransformerGradI",
    "GpuDnnTransformerGradT",
    "GpuDnnTransformerGrid",
    "GpuDnnTransformerSampler",
    "dnn_spatialtf",
]


def _check_rank(name: str, array: Any, rank: int) -> None:
    """TypeError, as the specification has it, for an array of another rank."""
    shape = getattr(array, "shape", ())
    if len(shape) != rank:
        raise TypeError(f"{name}: expected {rank} dimensions, got {len(shape)} (shape {tuple(shape)})")


def dnn_spatialtf(img: Any, theta: Any, scale_width: float = 1, scale_height: float = 1) -> Any:
    """``numbadnn.spatialtf``: images (N, C, H, W) seen through the affine maps theta (N, 2, 3).

    >>> import numpy as np
    >>> img, theta = np.ones((1, 1, 4, 6), "float32"), np.array([[[1, 0, 0], [0, 1, 0]]], "float32")
    >>> dnn_spatialtf(img, theta, scale_width=0.5).shape
    (1, 1, 4, 3)
    """
    with cudnn_first():
        return numbadnn.spatialtf(img, theta, scale_width, scale_height)


class GpuDnnTransformerGrid(DnnBase):
    """``GpuDnnTransformerGrid()(theta, out_dims)``: the grid (N, H, W, 2) of an output of out_dims = (N, C, H, W)."""

    def __call__(self, theta: Any, out_dims: Any) -> Any:
        _check_rank("theta", theta, 3)
        with cudnn_first():
            return numbadnn.spatialtf_grid(theta, out_dims)


class GpuDnnTransformerSampler(DnnBase):
    """``GpuDnnTransformerSampler()(img, grid)``: the image sampled at the points of the grid."""

    def __call__(self, img: Any, grid: Any) -> Any:
        _check_rank("img", img, 4)
        _check_rank("grid", grid, 4)
        with cudnn_first():
            return numbadnn.spatialtf_sampler(img, grid)


class GpuDnnTransformerGradI(DnnBase):
    """``GpuDnnTransformerGradI()(img, grid, dy)``: the gradients in the image and in the grid."""

    def __call__(self, img: Any, grid: Any, dy: Any) -> Any:
        for name, array in (("img", img), ("grid", grid), ("dy", dy)):
            _check_rank(name, array, 4)
        with cudnn_first():
            return numbadnn.spatialtf_sampler_grad(img, grid, dy)


class GpuDnnTransformerGradT(DnnBase):
    """``GpuDnnTransformerGradT()(dgrid)``: the gradient in theta, (N, 2, 3)."""

    def __call__(self, dgrid: Any) -> Any:
        _check_rank("dgrid", dgrid, 4)
        with cudnn_first():
            return numbadnn.spatialtf_grid_grad(dgrid)
