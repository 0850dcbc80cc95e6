"""``cupyx.cudnn``'s batch normalization: training, inference and the gradient."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

import numbadnn
from numbadnn.cupyx_cudnn._arrays import channels_first, channels_last, check, check_shape, choice
from numbadnn.cupyx_cudnn.constants import CUDNN_TENSOR_NCHW
from numbadnn.option_types import NormMode
from numbadnn.parameters import real

#: by cuDNN's numbers, CUDNN_BATCHNORM_PER_ACTIVATION = 0 and so on; the persistent mode was a faster way to the same
MODES: tuple[NormMode, ...] = ("per-activation", "spatial", "spatial")


class _Batch(NamedTuple):
    """x as numbadnn normalises it, and what its parameters become: a shape, and float32 for a batch of float16."""

    array: Any
    mode: NormMode
    shape: tuple[int, ...]
    dtype: Any

    def parameter(self, name: str, given: Any) -> Any:
        if given.size != math.prod(self.shape):
            raise ValueError(f"{name}: expected {math.prod(self.shape)} elements, got shape {given.shape}")
        return given.astype(self.dtype, copy=False).reshape(self.shape)

    def like(self, x: Any, layout: int, conv2d: bool) -> Any:
        """Another array of x's shape as this one."""
        return channels_first("gy", x, layout) if conv2d else x.reshape(self.array.shape)


def _batch(x: Any, conv2d: bool, cudnn_mode: int, layout: int) -> _Batch:
    """x (N, C, ...), or else its last axis after all others put together, as dense layers have it."""
    mode = choice("cudnn_mode", cudnn_mode, MODES)
    if conv2d:
        array = channels_first("x", x, layout)
    else:
        last = x.shape[-1] if x.ndim else 1
        array = x.reshape(math.prod(x.shape[:-1]), last)
    averaged = (0,) if mode == "per-activation" else (0, *range(2, array.ndim))
    shape = tuple(1 if a in averaged else n for a, n in enumerate(array.shape))
    return _Batch(array, mode, shape, np.dtype("float32") if x.dtype == np.float16 else x.dtype)


def _back(y: Any, x: Any, layout: int, conv2d: bool) -> Any:
    return channels_last(y, layout) if conv2d else y.reshape(x.shape)


def batch_normalization_forward_training_ex(
    x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any, mean: Any, inv_std: Any, eps: float, decay: float,
    is_for_conv2d: bool, cudnn_mode: int, debug: bool, d_layout: int = CUDNN_TENSOR_NCHW,
) -> tuple[Any, ...]:  # fmt: skip
    """Normalise a batch by its own statistics: (None, y, mean, inv_std), or (None, y) where arrays for both are given.

    None stands where CuPy had cuDNN's reserve, which nothing here needs. ``running_mean`` and ``running_var`` become ``decay``
    times themselves plus (1 - decay) times the batch's, its variance times m / (m - 1). ``is_for_conv2d``: x is (N, C, ...), or
    as d_layout says; otherwise its last axis is C. Modes CUDNN_BATCHNORM_PER_ACTIVATION (gamma of every element of an image)
    and _SPATIAL (of every channel). ``debug`` changes nothing.
    """
    check(x=x, gamma=gamma, beta=beta, running_mean=running_mean, running_var=running_var, mean=mean, inv_std=inv_std)
    if (mean is None) != (inv_std is None):
        raise ValueError("mean, inv_std: expected both arrays or None for both, got one")
    batch = _batch(x, is_for_conv2d, cudnn_mode, d_layout)
    given = {"gamma": gamma, "beta": beta, "running_mean": running_mean, "running_var": running_var}
    y, found_mean, found_std, new_mean, new_var = numbadnn.batch_normalization_train(
        batch.array,
        **{name: batch.parameter(name, array) for name, array in given.items()},
        mode=batch.mode,
        epsilon=eps,
        running_average_factor=1.0 - real(decay),
    )
    running_mean[...] = new_mean.reshape(running_mean.shape)
    running_var[...] = new_var.reshape(running_var.shape)
    y = _back(y, x, d_layout, is_for_conv2d)
    if mean is None:
        return None, y, found_mean.reshape(gamma.shape), found_std.reshape(gamma.shape)
    mean[...] = found_mean.reshape(mean.shape)
    inv_std[...] = found_std.reshape(inv_std.shape)
    return None, y


def batch_normalization_forward_training(
    x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any, mean: Any, inv_std: Any, eps: float, decay: float,
    is_for_conv2d: bool, cudnn_mode: int, debug: bool, d_layout: int = CUDNN_TENSOR_NCHW,
) -> Any:  # fmt: skip
    """``batch_normalization_forward_training_ex`` without its first result: (y, mean, inv_std), or y alone."""
    _, *found = batch_normalization_forward_training_ex(
        x, gamma, beta, running_mean, running_var, mean, inv_std, eps, decay, is_for_conv2d, cudnn_mode, debug, d_layout
    )
    return tuple(found) if mean is None else found[0]


def batch_normalization_forward_inference(
    x: Any, gamma: Any, beta: Any, mean: Any, var: Any, eps: float, is_for_conv2d: bool, cudnn_mode: int,
    d_layout: int = CUDNN_TENSOR_NCHW,
) -> Any:  # fmt: skip
    """Normalise a batch by a mean and a variance that are given."""
    check(x=x, gamma=gamma, beta=beta, mean=mean, var=var)
    batch = _batch(x, is_for_conv2d, cudnn_mode, d_layout)
    given = {"gamma": gamma, "beta": beta, "mean": mean, "var": var}
    parameters = {name: batch.parameter(name, array) for name, array in given.items()}
    y = numbadnn.batch_normalization_test(batch.array, **parameters, mode=batch.mode, epsilon=eps)
    return _back(y, x, d_layout, is_for_conv2d)


def batch_normalization_backward(
    x: Any, gamma: Any, gy: Any, mean: Any, inv_std: Any, eps: float, is_for_conv2d: bool, cudnn_mode: int, debug: bool,
    d_layout: int = CUDNN_TENSOR_NCHW, *, reserve_space: Any = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """The gradients in x, gamma and beta of training, from the mean and inv_std that it gave; in gamma's shape, the two.

    They are of float32 for a batch of float16, unless gamma has another dtype: then of x's, as in CuPy. ``reserve_space`` is
    what ``batch_normalization_forward_training_ex`` gave, None.
    """
    check(x=x, gamma=gamma, gy=gy, mean=mean, inv_std=inv_std)
    check_shape("gy", gy, x.shape)
    batch = _batch(x, is_for_conv2d, cudnn_mode, d_layout)
    given = {"gamma": gamma, "mean": mean, "invstd": inv_std}
    parameters = {name: batch.parameter(name, array) for name, array in given.items()}
    gx, *found = numbadnn.batch_normalization_train_grad(
        batch.array, batch.like(gy, d_layout, is_for_conv2d), **parameters, mode=batch.mode, epsilon=eps
    )
    dtype = batch.dtype if gamma.dtype == batch.dtype else x.dtype
    ggamma, gbeta = (g.reshape(gamma.shape).astype(dtype, copy=False) for g in found)
    return _back(gx, x, d_layout, is_for_conv2d), ggamma, gbeta
