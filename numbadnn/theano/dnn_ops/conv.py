"""``theano.gpuarray.dnn``'s convolutions, and those of ``theano.sandbox.cuda.dnn`` before it: the functions.

All run as under ``using(backend="cudnn")``, the fallback policy in force: what cuDNN cannot do, NumPy arrays for one, runs
elsewhere; on a GPU with a warning. Algorithms and precision that a call leaves open are the flags' (``config.dnn.conv``).
Source: docs/explanation/semantics.md#theanos-cudnn-functions.
"""

from __future__ import annotations

from typing import Any

from numbadnn import parameters
from numbadnn.call.operands import named_view
from numbadnn.errors import warn
from numbadnn.ops import conv_build
from numbadnn.theano import _direction, config
from numbadnn.theano._named import by_axes, compute
from numbadnn.theano.config import cudnn_first

__all__ = [
    "dnn_conv",
    "dnn_conv3d",
    "dnn_gradinput",
    "dnn_gradinput3d",
    "dnn_gradweight",
    "dnn_gradweight3d",
]

_RUNTIME = ("guess_once", "guess_on_shape_change", "time_once", "time_on_shape_change")
#: what Theano offered with three spatial axes
_ALGORITHMS_3D = {
    "algo_fwd": ("none", "small", "fft_tiling", *_RUNTIME),
    "algo_bwd_data": ("none", "deterministic", "fft_tiling", *_RUNTIME),
    "algo_bwd_filter": ("none", "small", *_RUNTIME),
}

_FORWARD = by_axes(conv_build.forward, "", first="img", second="kerns", dilation="dilation")
_GRAD_WEIGHTS = by_axes(
    conv_build.grad_weights,
    "_grad_wrt_weights",
    first="img",
    second="topgrad",
    filter_shape="kerns_shp",
    dilation="dilation",
)
_GRAD_INPUTS = by_axes(
    conv_build.grad_inputs,
    "_grad_wrt_inputs",
    first="topgrad",
    second="kerns",
    image_shape="img_shp",
    dilation="dilation",
)


def _flip(conv_mode: str) -> bool:
    if conv_mode not in ("conv", "cross"):
        raise ValueError(f"conv_mode: expected 'conv' or 'cross', got {conv_mode!r}")
    return conv_mode == "conv"


def _workmem(of: str, workmem: str | None, algo: str | None) -> str | None:
    """The algorithm, under its old name too; ``of`` is what it was given to."""
    if workmem is None:
        return algo
    if algo is not None:
        raise ValueError("You can't use both algo and workmem")
    warn(f"{of}: parameter 'workmem' is deprecated. Use 'algo' instead.", DeprecationWarning)
    return workmem


def _check_gradient(precision: str | None, arrays: dict[str, Any]) -> None:
    """TypeError where a gradient would be computed in float16, by the call's precision or the flags'."""
    precision = config.dnn.conv.precision if precision is None else precision
    named = precision == "float16"
    if named or (precision == "as_input" and {named_view(a, n).dtype for n, a in arrays.items()} == {"float16"}):
        raise TypeError("Float16 precision is disabled for cuDNN backward convolutions: use as_input_f32 or float32")


def _check_algorithm_3d(option: str, algo: str | None) -> None:
    if algo not in (None, "auto", *_ALGORITHMS_3D[option]):
        raise ValueError(
            f"algo: expected one of {', '.join(_ALGORITHMS_3D[option])} for a 3-D convolution, got {algo!r}"
        )


def _options(option: str, axes: int, algo: str | None, precision: str | None) -> dict[str, Any]:
    """``algo`` and ``precision`` of a call, the flags' where it leaves them open, None where those do, too."""
    if axes == 3:
        _check_algorithm_3d(option, algo)
    given = config.dnn.conv._given
    return {
        "algo": given(option) if algo is None else algo,
        "precision": given("precision") if precision is None else precision,
    }


def _forward(
    axes: int, img: Any, kerns: Any, border_mode: Any, subsample: Any, dilation: Any, conv_mode: str,
    direction_hint: str | None, algo: str | None, precision: str | None, num_groups: int, **more: Any,
) -> Any:  # fmt: skip
    route = _direction.route(border_mode, subsample, dilation, num_groups, direction_hint)
    if route:
        _check_gradient(precision, {"img": img, "kerns": kerns})
    options = _options("algo_fwd", axes, algo, precision)

    def run(named: str | None = None) -> Any:
        return compute(
            _FORWARD[axes], img, kerns, (None, None), border_mode, subsample, _flip(conv_mode), dilation, num_groups,
            **{**options, "algo": named or options["algo"]}, **more,
        )  # fmt: skip

    with cudnn_first():
        if direction_hint == "forward!":
            return _direction.straight(run)
        if route and direction_hint is not None:
            flag = config.dnn.conv.algo_bwd_data if route == _direction.ROUTES[0] else config.dnn.conv.algo_bwd_filter
            return _direction.by_gradient(route, direction_hint, run, flag)
        return run()


def dnn_conv(
    img: Any,
    kerns: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    dilation: Any = (1, 1),
    conv_mode: str = "conv",
    direction_hint: str | None = None,
    workmem: str | None = None,
    algo: str | None = None,
    precision: str | None = None,
    num_groups: int = 1,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
) -> Any:
    """``numbadnn.conv2d`` of (N, C, H, W) with (F, C/num_groups, R, S), by cuDNN first.

    ``conv_mode``: 'conv' flips the filters, 'cross' does not. ``direction_hint`` chooses between ways to equal results, with
    stride 1 and one group: by the gradient in the image for a 'full' border and 'bprop inputs' or 'forward', by that in the
    filters for 'valid' without dilation and 'bprop weights'; 'forward!' goes straight, None leaves it to the dispatcher.
    ``algo`` is then ignored; a hint that cannot be followed is recorded (``last_call``). Where Theano ran a gradient (for a
    'full' border without any hint, too) computing in float16 is a TypeError. ``workmem`` is the old name of ``algo``: a
    warning, ValueError with both. ``alpha``, ``beta``, ``out`` and other errors as conv2d.
    Source: docs/explanation/semantics.md#theanos-cudnn-functions.

    >>> import numpy as np, warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", RuntimeWarning)  # no cuDNN for NumPy arrays
    ...     dnn_conv(np.ones((1, 1, 2, 2), "float32"), np.ones((1, 1, 2, 2), "float32")).item()
    4.0
    """
    algo = _workmem("dnn_conv", workmem, algo)
    return _forward(
        2, img, kerns, border_mode, subsample, dilation, conv_mode, direction_hint, algo, precision, num_groups,
        alpha=alpha, beta=beta, out=out,
    )  # fmt: skip


def dnn_conv3d(
    img: Any,
    kerns: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    dilation: Any = (1, 1, 1),
    conv_mode: str = "conv",
    direction_hint: str | None = None,
    algo: str | None = None,
    precision: str | None = None,
    num_groups: int = 1,
    *,
    workmem: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
) -> Any:
    """``dnn_conv`` of volumes (N, C, D, H, W); ``algo`` is none, small, fft_tiling or a ``guess_`` or ``time_`` name.

    The later document has no ``workmem`` here, so that it is taken by name alone.
    """
    algo = _workmem("dnn_conv3d", workmem, algo)
    return _forward(
        3, img, kerns, border_mode, subsample, dilation, conv_mode, direction_hint, algo, precision, num_groups,
        alpha=alpha, beta=beta, out=out,
    )  # fmt: skip


def _gradweight(
    axes: int, img: Any, topgrad: Any, kerns_shp: Any, border_mode: Any, subsample: Any, dilation: Any, conv_mode: str,
    precision: str | None, algo: str | None, num_groups: int, **more: Any,
) -> Any:  # fmt: skip
    _check_gradient(precision, {"img": img, "topgrad": topgrad})
    options = _options("algo_bwd_filter", axes, algo, precision)
    shape = parameters.ints("kerns_shp", kerns_shp, axes + 2, 0)
    with cudnn_first():
        return compute(
            _GRAD_WEIGHTS[axes], img, topgrad, (shape, None), border_mode, subsample, _flip(conv_mode), dilation, num_groups,
            **options, **more,
        )  # fmt: skip


def _gradinput(
    axes: int, kerns: Any, topgrad: Any, img_shp: Any, border_mode: Any, subsample: Any, dilation: Any, conv_mode: str,
    precision: str | None, algo: str | None, num_groups: int, **more: Any,
) -> Any:  # fmt: skip
    _check_gradient(precision, {"kerns": kerns, "topgrad": topgrad})
    options = _options("algo_bwd_data", axes, algo, precision)
    shape = parameters.ints("img_shp", img_shp, axes + 2, 0)
    with cudnn_first():
        return compute(
            _GRAD_INPUTS[axes], topgrad, kerns, (shape, None), border_mode, subsample, _flip(conv_mode), dilation, num_groups,
            **options, **more,
        )  # fmt: skip


def dnn_gradweight(
    img: Any,
    topgrad: Any,
    kerns_shp: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    dilation: Any = (1, 1),
    conv_mode: str = "conv",
    precision: str | None = None,
    algo: str | None = None,
    num_groups: int = 1,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
) -> Any:
    """``numbadnn.conv2d_grad_wrt_weights``; ``kerns_shp`` are all four sizes. TypeError for precision 'float16'."""
    return _gradweight(
        2, img, topgrad, kerns_shp, border_mode, subsample, dilation, conv_mode, precision, algo, num_groups,
        alpha=alpha, beta=beta, out=out,
    )  # fmt: skip


def dnn_gradweight3d(
    img: Any,
    topgrad: Any,
    kerns_shp: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    dilation: Any = (1, 1, 1),
    conv_mode: str = "conv",
    precision: str | None = None,
    algo: str | None = None,
    num_groups: int = 1,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
) -> Any:
    """``dnn_gradweight`` of volumes; ``kerns_shp`` are all five sizes."""
    return _gradweight(
        3, img, topgrad, kerns_shp, border_mode, subsample, dilation, conv_mode, precision, algo, num_groups,
        alpha=alpha, beta=beta, out=out,
    )  # fmt: skip


def dnn_gradinput(
    kerns: Any,
    topgrad: Any,
    img_shp: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    dilation: Any = (1, 1),
    conv_mode: str = "conv",
    precision: str | None = None,
    algo: str | None = None,
    num_groups: int = 1,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
) -> Any:
    """``numbadnn.conv2d_grad_wrt_inputs``, filters first; ``img_shp`` are all four sizes. TypeError for 'float16'.

    The result is an array of topgrad's library, and channels-last where that is.
    """
    return _gradinput(
        2, kerns, topgrad, img_shp, border_mode, subsample, dilation, conv_mode, precision, algo, num_groups,
        alpha=alpha, beta=beta, out=out,
    )  # fmt: skip


def dnn_gradinput3d(
    kerns: Any,
    topgrad: Any,
    img_shp: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    dilation: Any = (1, 1, 1),
    conv_mode: str = "conv",
    precision: str | None = None,
    algo: str | None = None,
    num_groups: int = 1,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
) -> Any:
    """``dnn_gradinput`` of volumes; one document's default subsample of (1, 1) is a slip of the pen."""
    return _gradinput(
        3, kerns, topgrad, img_shp, border_mode, subsample, dilation, conv_mode, precision, algo, num_groups,
        alpha=alpha, beta=beta, out=out,
    )  # fmt: skip


# ---- op classes ------------------------------------------------------------------------------------------------------
