"""``theano.gpuarray.dnn``'s dropout op, as it was meant: it never worked there (docs/explanation/semantics.md#dropout).

It is the library's own dropout on every backend, whose mask the state can make again; cuDNN's own random numbers are to be
had from ``numbadnn.dropout(..., backend="cudnn")``.
"""

from __future__ import annotations

from typing import Any

import numbadnn
from numbadnn.ops.conv_build import truth
from numbadnn.theano._named import check_inplace

__all__ = ["GpuDnnDropoutOp"]


class GpuDnnDropoutOp:
    """op(x, dropout, seed) -> (y, state), y written into x where ``inplace``.

    >>> import numpy as np
    >>> y, state = GpuDnnDropoutOp()(np.ones(4), 1.0)
    >>> y
    array([0., 0., 0., 0.])
    """

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = truth("inplace", inplace)

    def __call__(self, x: Any, dropout: float = 0.0, seed: int = 4242) -> tuple[Any, Any]:
        if self.inplace:
            check_inplace(x=x)
        y, state = numbadnn.dropout(x, dropout, seed)
        if self.inplace:
            x[...] = y
            y = x
        return y, state
