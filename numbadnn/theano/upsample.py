"""``theano.tensor.nnet``'s bilinear upsampling, on any backend. Source: docs/explanation/semantics.md#bilinear-upsampling."""

from __future__ import annotations

from typing import Any

import numpy as np

import numbadnn
from numbadnn.ops.upsample import bilinear_upsampling, frac_bilinear_upsampling
from numbadnn.theano import config

__all__ = ["bilinear_kernel_1D", "bilinear_kernel_2D", "bilinear_upsampling", "frac_bilinear_upsampling"]


def bilinear_kernel_1D(ratio: Any, normalize: bool = True) -> np.ndarray:
    """``numbadnn.bilinear_kernel_1D`` of ``config.floatX``.

    >>> bilinear_kernel_1D(2)
    array([0.5, 1. , 0.5])
    """
    return numbadnn.bilinear_kernel_1D(ratio, normalize, dtype=config.floatX)


def bilinear_kernel_2D(ratio: Any, normalize: bool = True) -> np.ndarray:
    """``numbadnn.bilinear_kernel_2D`` of ``config.floatX``.

    >>> bilinear_kernel_2D(1)
    array([[1.]])
    """
    return numbadnn.bilinear_kernel_2D(ratio, normalize, dtype=config.floatX)
