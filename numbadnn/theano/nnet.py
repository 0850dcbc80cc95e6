"""``theano.tensor.nnet`` by its own name: every name of ``numbadnn.theano``, and the conv2d that is nnet's own."""

from __future__ import annotations

import warnings
from typing import Any

import numbadnn
from numbadnn.theano import abstract_conv, bn, conv, conv3d2d, corrmm, neighbours
from numbadnn.theano._paths import place

corr = corr3d = corrmm
# Theano's modules below this one, for imports from them: ``from numbadnn.theano.nnet.abstract_conv import ...``
place(
    __name__,
    abstract_conv=abstract_conv,
    bn=bn,
    conv=conv,
    conv3d2d=conv3d2d,
    corr=corr,
    corr3d=corr3d,
    neighbours=neighbours,
)


def conv2d(
    input: Any,
    filters: Any,
    input_shape: Any = None,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_flip: bool = True,
    image_shape: Any = None,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
    **kwargs: Any,
) -> Any:
    """``numbadnn.conv2d`` with the specification's order of parameters and what it had deprecated.

    ``image_shape`` is the old name of ``input_shape`` (a warning; ValueError with both). ``imshp_logical`` and
    ``kshp_logical`` are a ValueError, other unknown keywords a warning. numbadnn's own (``backend``, ``out``, ``alpha``
    ...) are handed on. Source: docs/explanation/semantics.md#convolutions.

    >>> import numpy as np
    >>> conv2d(np.ones((1, 1, 2, 2), "float32"), np.ones((1, 1, 2, 2), "float32")).item()
    4.0
    """
    for name in ("imshp_logical", "kshp_logical"):
        if name in kwargs:
            raise ValueError(f"Keyword argument '{name}' for conv2d is not supported anymore.")
    own = ("alpha", "beta", "algo", "precision", "backend", "out", "stream")
    known = {name: kwargs.pop(name) for name in own if name in kwargs}
    if kwargs:
        warnings.warn(f"Keyword arguments {sorted(kwargs)} for conv2d are ignored", stacklevel=2)
    if image_shape is not None:
        warnings.warn(
            "The `image_shape` keyword argument to `conv2d` is deprecated, it has been renamed to `input_shape`.",
            DeprecationWarning,
            stacklevel=2,
        )
        if input_shape is not None:
            raise ValueError("input_shape and image_shape should not be provided at the same time.")
        input_shape = image_shape
    return numbadnn.conv2d(
        input, filters, input_shape, filter_shape, border_mode, subsample, filter_flip, filter_dilation, num_groups,
        unshared, **known,
    )  # fmt: skip


def __getattr__(name: str) -> Any:
    from numbadnn import theano

    # getattr would find the package's __path__, with which this would be a package too, of copies of its modules
    return theano.__getattr__(name)


def __dir__() -> list[str]:
    from numbadnn import theano

    return dir(theano)
