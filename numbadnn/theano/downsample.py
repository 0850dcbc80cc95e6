"""``theano.tensor.signal.downsample``: the names that ``pool`` had at first, with borders not ignored by default."""

from __future__ import annotations

from typing import Any

from numbadnn.option_types import PoolMode
from numbadnn.theano.pool import Pool, max_pool_2d_same_size, pool_2d  # noqa: F401  max_pool_2d_same_size is one of its names

__all__ = ["DownsampleFactorMax", "max_pool_2d"]


def max_pool_2d(
    input: Any, ds: Any, ignore_border: bool = False, st: Any = None, padding: Any = None, mode: PoolMode = "max"
) -> Any:
    """``pool_2d`` with the old names of its parameters.

    >>> import numpy as np
    >>> max_pool_2d(np.arange(9.0).reshape(3, 3), (2, 2)).shape, max_pool_2d(np.ones((3, 3)), (2, 2), True).shape
    ((2, 2), (1, 1))
    """
    return pool_2d(input, ds, ignore_border, st, padding, mode)


class DownsampleFactorMax:
    """``DownsampleFactorMax(ds, ignore_border, st, padding, mode)(x)``: ``pool_2d`` as an op that is made with its window."""

    out_shape = staticmethod(Pool.out_shape)

    def __init__(
        self, ds: Any, ignore_border: bool = False, st: Any = None, padding: Any = None, mode: PoolMode = "max"
    ) -> None:
        self.ds, self.ignore_border, self.st, self.padding, self.mode = ds, ignore_border, st, padding, mode

    def __call__(self, x: Any) -> Any:
        return max_pool_2d(x, self.ds, self.ignore_border, self.st, self.padding, self.mode)
