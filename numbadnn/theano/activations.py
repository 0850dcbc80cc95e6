"""``theano.tensor.nnet``'s relu, sigmoid and softmax, of arrays of NumPy, CuPy, PyTorch and JAX."""

from __future__ import annotations

from typing import Any

import numbadnn
from numbadnn.arrays.namespace import namespace
from numbadnn.errors import warn

__all__ = ["relu", "sigmoid", "softmax"]


def relu(x: Any, alpha: Any = 0) -> Any:
    """x where it is positive, else ``alpha * x``: a number, or an array that broadcasts against x. NaN stays NaN.

    >>> import numpy as np
    >>> relu(np.array([-2.0, 3.0])), relu(np.array([-2.0, 3.0]), alpha=0.5)
    (array([0., 3.]), array([-1.,  3.]))
    """
    namespace(x, "x")
    positive = x.clip(0)
    return positive if isinstance(alpha, (int, float)) and alpha == 0 else positive + alpha * x.clip(max=0)


def sigmoid(x: Any) -> Any:
    """``1 / (1 + exp(-x))``, without an overflow for any x.

    >>> import numpy as np
    >>> sigmoid(np.array([-1e4, 0.0, 1e4]))
    array([0. , 0.5, 1. ])
    """
    xp = namespace(x, "x")
    small = xp.exp(-abs(x))
    return xp.where(x >= 0, 1 / (1 + small), small / (1 + small))


def softmax(c: Any) -> Any:
    """The softmax of each row of a matrix, ``numbadnn.softmax``; a vector is a matrix of one row, with Theano's warning.

    >>> import numpy as np
    >>> softmax(np.zeros((1, 2)))
    array([[0.5, 0.5]])
    """
    rank = len(getattr(c, "shape", ()))
    if rank not in (1, 2):
        raise ValueError(
            f"c: expected a matrix or a vector, got {rank} dimensions; numbadnn.softmax takes any rank >= 2"
        )
    if rank == 1:
        warn("softmax of a vector gives a matrix of one row: say softmax(c[None, :])", DeprecationWarning)
        c = c[None, :]
    return numbadnn.softmax(c)
