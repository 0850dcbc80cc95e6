"""``theano.tensor.nnet.corr``, ``corr3d`` and ``gpuarray.blas``: CorrMM, made with parameters and called with arrays.

CorrMM never flips the filters. The names with Gpu in front are the same operations: which device computes is
the arrays' affair. Source: docs/explanation/semantics.md#correlation-by-matrix-products.
"""

from __future__ import annotations

from typing import Any

import numbadnn
from numbadnn.ops.conv_build import truth
from numbadnn.theano._named import check

__all__ = [
    "Corr3dMM",
    "Corr3dMM_gradInputs",
    "Corr3dMM_gradWeights",
    "CorrMM",
    "CorrMM_gradInputs",
    "CorrMM_gradWeights",
    "GpuCorr3dMM",
    "GpuCorr3dMM_gradInputs",
    "GpuCorr3dMM_gradWeights",
    "GpuCorrMM",
    "GpuCorrMM_gradInputs",
    "GpuCorrMM_gradWeights",
]


class _Parameters:
    """What the operations of two axes are made with; ValueError for what no convolution has."""

    _axes = 2

    def __init__(
        self,
        border_mode: Any = "valid",
        subsample: Any = (1, 1),
        filter_dilation: Any = (1, 1),
        num_groups: int = 1,
        unshared: bool = False,
    ) -> None:
        self.subsample, self.filter_dilation = check(self._axes, border_mode, subsample, filter_dilation, num_groups)
        self.border_mode, self.num_groups, self.unshared = border_mode, num_groups, truth("unshared", unshared)

    def _shared(self) -> tuple[Any, ...]:
        return self.border_mode, self.subsample, self.filter_dilation, self.num_groups, self.unshared

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self._shared()}"


class _Parameters3d(_Parameters):
    """The same of three axes, where filters are always shared."""

    _axes = 3

    def __init__(
        self,
        border_mode: Any = "valid",
        subsample: Any = (1, 1, 1),
        filter_dilation: Any = (1, 1, 1),
        num_groups: int = 1,
    ) -> None:
        super().__init__(border_mode, subsample, filter_dilation, num_groups)

    def _shared(self) -> tuple[Any, ...]:
        return super()._shared()[:4]


class CorrMM(_Parameters):
    """``CorrMM(...)(img, kern)`` is ``numbadnn.corr_mm``.

    >>> import numpy as np
    >>> CorrMM()(np.ones((1, 1, 2, 2), "float32"), np.ones((1, 1, 2, 2), "float32")).item()
    4.0
    """

    def __call__(self, img: Any, kern: Any, **more: Any) -> Any:
        return numbadnn.corr_mm(img, kern, *self._shared(), **more)


class CorrMM_gradWeights(_Parameters):
    """``CorrMM_gradWeights(...)(img, topgrad, shape)`` is ``numbadnn.corr_mm_grad_weights``."""

    def __call__(self, img: Any, topgrad: Any, shape: Any = None, **more: Any) -> Any:
        return numbadnn.corr_mm_grad_weights(img, topgrad, shape, *self._shared(), **more)


class CorrMM_gradInputs(_Parameters):
    """``CorrMM_gradInputs(...)(kern, topgrad, shape)`` is ``numbadnn.corr_mm_grad_inputs``."""

    def __call__(self, kern: Any, topgrad: Any, shape: Any = None, **more: Any) -> Any:
        return numbadnn.corr_mm_grad_inputs(kern, topgrad, shape, *self._shared(), **more)


class Corr3dMM(_Parameters3d):
    """``Corr3dMM(...)(img, kern)`` is ``numbadnn.corr3d_mm``."""

    def __call__(self, img: Any, kern: Any, **more: Any) -> Any:
        return numbadnn.corr3d_mm(img, kern, *self._shared(), **more)


class Corr3dMM_gradWeights(_Parameters3d):
    """``Corr3dMM_gradWeights(...)(img, topgrad, shape)`` is ``numbadnn.corr3d_mm_grad_weights``."""

    def __call__(self, img: Any, topgrad: Any, shape: Any = None, **more: Any) -> Any:
        return numbadnn.corr3d_mm_grad_weights(img, topgrad, shape, *self._shared(), **more)


class Corr3dMM_gradInputs(_Parameters3d):
    """``Corr3dMM_gradInputs(...)(kern, topgrad, shape)`` is ``numbadnn.corr3d_mm_grad_inputs``."""

    def __call__(self, kern: Any, topgrad: Any, shape: Any = None, **more: Any) -> Any:
        return numbadnn.corr3d_mm_grad_inputs(kern, topgrad, shape, *self._shared(), **more)


GpuCorrMM, GpuCorrMM_gradWeights, GpuCorrMM_gradInputs = CorrMM, CorrMM_gradWeights, CorrMM_gradInputs
GpuCorr3dMM, GpuCorr3dMM_gradWeights = Corr3dMM, Corr3dMM_gradWeights
GpuCorr3dMM_gradInputs = Corr3dMM_gradInputs
