"""``cupyx.cudnn``'s convolutions: cross-correlations of two or three axes, written into the array that is given for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import numbadnn
from numbadnn import config, parameters, shapes
from numbadnn.cupyx_cudnn._arrays import channels_first, check, check_shape
from numbadnn.cupyx_cudnn.constants import CUDNN_TENSOR_NCHW

_limit: int | None = None


def get_max_workspace_size() -> int:
    """Bytes that a convolution may take besides its arrays: as set here, else the option workspace_limit."""
    return config.current().workspace_limit if _limit is None else _limit


def set_max_workspace_size(size: int) -> None:
    """Set it, for convolutions by this package's names alone. CuPy's default was 8 MiB; here it is the option's, 1 GiB."""
    global _limit
    _limit = parameters.as_int("size", size, 0)


class _Roles(NamedTuple):
    """The arrays of a convolution by what they are in it, channels first; each with its name in the call."""

    images: tuple[str, Any]
    filters: tuple[str, Any]
    outputs: tuple[str, Any]

    def parameters(self, pad: Any, stride: Any, dilation: Any, groups: Any) -> dict[str, Any]:
        """Those of numbadnn's functions; ValueError where the arrays' shapes do not agree with them."""
        (name, x), (filters_name, w), (outputs_name, y) = self
        for what, array in self:
            if array.ndim not in (4, 5) or array.ndim != x.ndim:
                raise ValueError(
                    f"{what}: expected four or five dimensions, as many as {name} has, got shape {array.shape}"
                )
        axes = x.ndim - 2
        padding = parameters.ints("pad", pad, axes, 0)
        steps = parameters.positive_ints("stride", stride, axes)
        dilations = (1,) * axes if dilation is None else parameters.positive_ints("dilation", dilation, axes)
        groups = parameters.as_int("groups", groups, 1)
        if w.shape[1] * groups != x.shape[1] or w.shape[0] % groups:
            raise ValueError(
                f"{filters_name}: expected filters in {groups} groups, of {x.shape[1]} channels in all ({name}'s), got shape "
                f"{w.shape}"
            )
        check_shape(outputs_name, y, shapes.get_conv_output_shape(x.shape, w.shape, padding, steps, dilations))
        return {
            "border_mode": padding,
            "subsample": steps,
            "filter_flip": False,
            "filter_dilation": dilations,
            "num_groups": groups,
        }


@contextlib.contextmanager
def _options(array: Any, deterministic: bool, auto_tune: bool, tensor_core: str) -> Iterator[str | None]:
    """The options of a call, around it; gives its algorithm, None to leave that to the dispatcher."""
    if tensor_core not in ("always", "auto", "never"):
        raise ValueError(f"tensor_core: expected 'always', 'auto' or 'never', got {tensor_core!r}")
    current = config.current()
    changed: dict[str, Any] = {}
    timed = auto_tune and not deterministic and not isinstance(array, np.ndarray)
    if deterministic and current.determinism == "not_guaranteed":
        changed["determinism"] = "run_to_run"
    if timed and current.fallback == "warn":
        changed["fallback"] = "allow"  # cuDNN times what it has; if it has nothing, there is nothing to be warned of
    if _limit is not None:
        changed["workspace_limit"] = f"{_limit}B"
    with numbadnn.using(**changed) if changed else contextlib.nullcontext():
        yield "time_once" if timed else None


def _add_bias(y: Any, b: Any) -> None:
    """Add a value a channel to an array, channels first."""
    if b.size != y.shape[1]:
        raise ValueError(f"b: expected {y.shape[1]} elements, one a channel of y, got shape {b.shape}")
    y += b.reshape(1, -1, *(1,) * (y.ndim - 2))


def _of(axes: int, ending: str = "") -> Any:
    return getattr(numbadnn, f"conv{axes}d{ending}")


def convolution_forward(
    x: Any, W: Any, b: Any, y: Any, pad: Any, stride: Any, dilation: Any, groups: int, *, auto_tune: bool, tensor_core: str,
    d_layout: int = CUDNN_TENSOR_NCHW, w_layout: int = CUDNN_TENSOR_NCHW,
) -> None:  # fmt: skip
    """Write the cross-correlation of x (N, C, ...) with W (K, C/groups, ...), plus b if it is not None, into y (N, K, ...).

    ``pad``, ``stride`` and ``dilation`` have one number a spatial axis, two or three. Layouts CUDNN_TENSOR_NHWC take the
    channels last, of arrays of four dimensions. ValueError where the shape of y, b or W does not fit.
    """
    check(x=x, W=W, b=b, y=y)
    images, filters = channels_first("x", x, d_layout), channels_first("W", W, w_layout, "w_layout")
    outputs = channels_first("y", y, d_layout)
    fixed = _Roles(("x", images), ("W", filters), ("y", outputs)).parameters(pad, stride, dilation, groups)
    with _options(x, False, auto_tune, tensor_core) as algo:
        _of(x.ndim - 2)(images, filters, **fixed, algo=algo, out=outputs)
    if b is not None:
        _add_bias(outputs, b)


def convolution_backward_data(
    W: Any, x: Any, b: Any, y: Any, pad: Any, stride: Any, dilation: Any, groups: int, *, deterministic: bool,
    auto_tune: bool, tensor_core: str, d_layout: int = CUDNN_TENSOR_NCHW, w_layout: int = CUDNN_TENSOR_NCHW,
) -> None:  # fmt: skip
    """Write the gradient in the images of ``convolution_forward`` (the transposed convolution) into y, plus b if there is one.

    x is the gradient in the forward result, (N, K, ...), and y has the shape of the images, (N, C, ...). Parameters and
    errors as ``convolution_forward``; ``deterministic`` asks for the same bits in each run.
    """
    check(W=W, x=x, b=b, y=y)
    top, filters = channels_first("x", x, d_layout), channels_first("W", W, w_layout, "w_layout")
    images = channels_first("y", y, d_layout)
    fixed = _Roles(("y", images), ("W", filters), ("x", top)).parameters(pad, stride, dilation, groups)
    with _options(x, deterministic, auto_tune, tensor_core) as algo:
        _of(x.ndim - 2, "_grad_wrt_inputs")(top, filters, tuple(images.shape), **fixed, algo=algo, out=images)
    if b is not None:
        _add_bias(images, b)


def convolution_backward_filter(
    x: Any, gy: Any, gW: Any, pad: Any, stride: Any, dilation: Any, groups: int, *, deterministic: bool, auto_tune: bool,
    tensor_core: str, d_layout: int = CUDNN_TENSOR_NCHW, w_layout: int = CUDNN_TENSOR_NCHW,
) -> None:  # fmt: skip
    """Write the gradient in the filters of ``convolution_forward`` into gW (K, C/groups, ...), from x and gy (N, K, ...).

    Parameters and errors as ``convolution_backward_data``.
    """
    check(x=x, gy=gy, gW=gW)
    images, top = channels_first("x", x, d_layout), channels_first("gy", gy, d_layout)
    filters = channels_first("gW", gW, w_layout, "w_layout")
    fixed = _Roles(("x", images), ("gW", filters), ("gy", top)).parameters(pad, stride, dilation, groups)
    with _options(x, deterministic, auto_tune, tensor_core) as algo:
        _of(x.ndim - 2, "_grad_wrt_weights")(images, top, tuple(filters.shape), **fixed, algo=algo, out=filters)
