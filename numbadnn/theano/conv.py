"""``theano.tensor.nnet.conv``: the first convolution of all, deprecated there and here."""

from __future__ import annotations

import warnings
from typing import Any

from numbadnn.ops import conv_build
from numbadnn.theano._named import compute

__all__ = ["ConvOp", "conv2d"]

_CONV2D = conv_build.forward("conv2d", conv_build.TWO._replace(image_shape="image_shape"))
_OP = conv_build.forward("conv2d", conv_build.TWO._replace(first="images", image_shape="imshp", filter_shape="kshp"))
#: arguments that only ever chose between equal loops
_SPEED = {"unroll_batch", "unroll_kern", "unroll_patch", "openmp", "version", "verbose", "direction_hint"}
_LOGICAL = {"imshp_logical", "kshp_logical", "kshp_logical_top_aligned"}


def conv2d(
    input: Any,
    filters: Any,
    image_shape: Any = None,
    filter_shape: Any = None,
    border_mode: str = "valid",
    subsample: Any = (1, 1),
    **kargs: Any,
) -> Any:
    """``numbadnn.conv2d`` of (N, C, H, W) with (F, C, R, S), as the specification's oldest function: flipped filters.

    ``border_mode`` is 'valid' or 'full'; no padding, groups or dilation. ``unroll_batch``, ``unroll_kern``,
    ``unroll_patch``, ``openmp``, ``version`` and ``verbose`` change nothing. Raises ValueError for other border modes
    and for logical shapes, TypeError for other arguments; warns that it is deprecated.
    Source: docs/explanation/semantics.md#convolutions.

    >>> import numpy as np, warnings
    >>> x = np.arange(4, dtype="float32").reshape(1, 1, 2, 2)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", DeprecationWarning)
    ...     conv2d(x, np.ones((1, 1, 1, 2), "float32")).ravel()
    array([1., 5.], dtype=float32)
    """
    warnings.warn("theano.tensor.nnet.conv.conv2d is deprecated. Use conv2d instead.", DeprecationWarning, stacklevel=2)
    if border_mode not in ("valid", "full"):
        raise ValueError(f"border_mode: expected 'valid' or 'full', got {border_mode!r}")
    if given := sorted(_LOGICAL & kargs.keys()):
        raise ValueError(f"{given[0]}: expected it left out: logical shapes were dropped from the interface")
    if unknown := sorted(kargs.keys() - _SPEED):
        raise TypeError(f"conv2d() got an unexpected keyword argument {unknown[0]!r}")
    return compute(_CONV2D, input, filters, (image_shape, filter_shape), border_mode, subsample, True, (1, 1), 1)


class ConvOp:
    """The operation behind ``conv2d``: ``ConvOp(output_mode="valid", dx=1, dy=1)(images, filters)``; shapes are hints.

    ``imshp`` are channels and sizes of images, or sizes alone, ``kshp`` sizes of filters, ``nkern`` how many, ``bsize`` how
    many images; ValueError where they contradict the arrays.

    >>> import numpy as np
    >>> ConvOp(output_mode="full")(np.ones((1, 1, 2, 2), "float32"), np.ones((1, 1, 2, 2), "float32")).shape
    (1, 1, 3, 3)
    """

    def __init__(
        self,
        imshp: Any = None,
        kshp: Any = None,
        nkern: int | None = None,
        bsize: int | None = None,
        dx: int = 1,
        dy: int = 1,
        output_mode: str = "valid",
        **kargs: Any,
    ) -> None:
        if output_mode not in ("valid", "full"):
            raise ValueError(f"output_mode: expected 'valid' or 'full', got {output_mode!r}")
        if given := sorted(_LOGICAL & kargs.keys()):
            raise ValueError(f"{given[0]}: expected it left out: logical shapes were dropped from the interface")
        if unknown := sorted(kargs.keys() - _SPEED):
            raise TypeError(f"ConvOp() got an unexpected keyword argument {unknown[0]!r}")
        self.imshp, self.kshp, self.nkern, self.bsize = imshp, kshp, nkern, bsize
        self.dx, self.dy, self.out_mode = dx, dy, output_mode

    def __call__(self, images: Any, filters: Any) -> Any:
        hints = _hint("imshp", self.imshp, self.bsize, (2, 3)), _hint("kshp", self.kshp, self.nkern, (2,))
        return compute(_OP, images, filters, hints, self.out_mode, (self.dx, self.dy), True, (1, 1), 1)


def _hint(name: str, sizes: Any, first: int | None, lengths: tuple[int, ...]) -> tuple[Any, ...]:
    """A shape of four entries, None where nothing is known."""
    given = (None, None) if sizes is None else sizes
    if not isinstance(given, (tuple, list)) or len(given) not in lengths:
        raise ValueError(f"{name}: expected None or {' or '.join(map(str, lengths))} sizes, got {sizes!r}")
    return (first, *(None,) * (3 - len(given)), *given)
