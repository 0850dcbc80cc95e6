"""``theano.tensor.nnet.conv3d2d``: conv3d of signals with time before channels, once made of conv2d."""

from __future__ import annotations

from typing import Any

import numbadnn

__all__ = ["conv3d"]


def conv3d(
    signals: Any, filters: Any, signals_shape: Any = None, filters_shape: Any = None, border_mode: Any = "valid"
) -> Any:
    """``numbadnn.conv3d2d``: (N, T, C, H, W) with (F, S, C, R, S') gives (N, T', F, H', W').

    >>> import numpy as np
    >>> conv3d(np.ones((1, 3, 1, 2, 2), "float32"), np.ones((1, 2, 1, 2, 2), "float32")).ravel()
    array([8., 8.], dtype=float32)
    """
    return numbadnn.conv3d2d(signals, filters, signals_shape, filters_shape, border_mode)
