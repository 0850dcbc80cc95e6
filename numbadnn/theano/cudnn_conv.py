"""``theano.gpuarray.dnn``'s convolutions, and those of ``theano.sandbox.cuda.dnn`` before it: functions and op classes.

All run as under ``using(backend="cudnn")``, the fallback policy in force: what cuDNN cannot do, NumPy arrays for one, runs
elsewhere with a warning. Algorithms and precision that a call leaves open are the flags' (``config.dnn.conv``).
Source: spec/semantics.md 1.4.
"""

from __future__ import annotations

from typing import Any

from numbadnn import parameters, shapes
from numbadnn.call.operands import named_view
from numbadnn.errors import warn
from numbadnn.ops import conv_build
from numbadnn.theano import _direction, config
from numbadnn.theano._named import by_axes, check, compute
from numbadnn.theano.config import cudnn_first
from numbadnn.theano.library import DnnBase

__all__ = [
    "GpuDnnConv",
    "GpuDnnConv3d",
    "GpuDnnConv3dGradI",
    "GpuDnnConv3dGradW",
    "GpuDnnConvDesc",
    "GpuDnnConvGradI",
    "GpuDnnConvGradW",
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
    warning, ValueError with both. ``alpha``, ``beta``, ``out`` and other errors as conv2d. Source: spec/semantics.md 1.4.

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
    """``dnn_conv`` of volumes (N, C, D, H, W); ``algo`` is none, small, fft_tiling or a guess_ or time_ name.

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


class GpuDnnConvDesc:
    """The parameters of a convolution: ``desc = GpuDnnConvDesc("half", (2, 2))(kerns.shape)``; called, it is itself.

    ``border_mode``, ``subsample`` and ``dilation`` agree in the number of axes, else ValueError.
    """

    def __init__(
        self,
        border_mode: Any,
        subsample: Any = (1, 1),
        dilation: Any = None,
        conv_mode: str = "conv",
        precision: str = "float32",
        num_groups: int = 1,
    ) -> None:
        axes = len(subsample) if hasattr(subsample, "__len__") else 0
        if axes not in (2, 3):
            raise ValueError(f"subsample: expected 2 or 3 entries, got {subsample!r}")
        self.subsample, self.dilation = check(axes, border_mode, subsample, dilation, num_groups, "dilation")
        _flip(conv_mode)
        conv_build.named("precision", "precision", precision)
        self.border_mode, self.conv_mode = border_mode, conv_mode
        self.precision, self.num_groups = precision, num_groups

    def __call__(self, *shapes_of_arrays: Any) -> GpuDnnConvDesc:
        return self


class _Convolution(DnnBase):
    """What the three op classes share; ``inplace`` writes into the array given for the result."""

    _axes: tuple[int, ...] = (2, 3)
    _option: str

    def __init__(
        self, algo: str | None = None, inplace: bool = False, num_groups: int = 1, workmem: str | None = None
    ) -> None:
        super().__init__()
        self.algo, self.inplace = _workmem(type(self).__name__, workmem, algo), conv_build.truth("inplace", inplace)
        self.num_groups = conv_build.groups_of(num_groups)
        conv_build.named("algo", self._option, self.algo)
        if self._axes == (3,):
            _check_algorithm_3d(self._option, self.algo)

    def _check(self, desc: Any, **arrays: Any) -> int:
        """The number of spatial axes; TypeError unless both arrays have it and the descriptor is one."""
        ranks = {len(named_view(array, name).shape) for name, array in arrays.items()}
        if len(ranks) != 1 or ranks.isdisjoint(n + 2 for n in self._axes):
            wanted = " or ".join(str(n + 2) for n in self._axes)
            raise TypeError(f"{type(self).__name__}: expected two arrays of {wanted} dimensions, got {sorted(ranks)}")
        if not isinstance(desc, GpuDnnConvDesc):
            raise TypeError(f"desc: expected a GpuDnnConvDesc, got {type(desc).__name__}")
        axes = ranks.pop() - 2
        if len(desc.subsample) != axes:
            raise TypeError(f"desc: expected one of {axes} axes, got {len(desc.subsample)}")
        return axes

    def _groups(self, desc: GpuDnnConvDesc) -> int:
        """The operation's or the descriptor's, whichever is not 1; ValueError where both are and differ."""
        found = {self.num_groups, conv_build.groups_of(desc.num_groups)} - {1}
        if len(found) > 1:
            raise ValueError(
                f"num_groups: expected the {type(self).__name__}'s and the GpuDnnConvDesc's to agree, got "
                f"{self.num_groups} and {desc.num_groups}"
            )
        return found.pop() if found else 1

    def _scaled(self, output: Any, alpha: float | None, beta: float | None) -> dict[str, Any]:
        """alpha, beta and where the result goes: ``output`` itself, or a copy of it where its values count."""
        alpha, beta = 1.0 if alpha is None else alpha, 0.0 if beta is None else beta
        if output is None and (self.inplace or beta):
            raise ValueError(f"output: expected an array with beta={beta} and inplace={self.inplace}, got None")
        into = output if self.inplace or not beta else output.clone() if hasattr(output, "clone") else output.copy()
        return {"alpha": alpha, "beta": beta, "out": into if self.inplace or beta else None}

    @staticmethod
    def get_out_shape(
        ishape: Any, kshape: Any, border_mode: Any, subsample: Any, dilation: Any = None
    ) -> tuple[int | None, ...]:
        """The shape of a convolution's result: ``numbadnn.shapes.get_conv_output_shape``.

        >>> GpuDnnConv.get_out_shape((3, 2, 12, 9), (4, 2, 5, 6), "half", (1, 2), (2, 1))
        (3, 4, 12, 5)
        """
        return shapes.get_conv_output_shape(ishape, kshape, border_mode, subsample, dilation)


class GpuDnnConv(_Convolution):
    """``GpuDnnConv(algo, inplace, num_groups)(img, kern, output, desc, alpha=1, beta=0)``: alpha * conv + beta * output.

    ``output`` may be None where beta is 0. ValueError where it has not the result's shape.
    """

    _option = "algo_fwd"

    def __call__(
        self, img: Any, kern: Any, output: Any, desc: Any, alpha: float | None = None, beta: float | None = None
    ) -> Any:
        axes = self._check(desc, img=img, kern=kern)
        shapes_of_both = tuple(img.shape), tuple(kern.shape)
        expected = self.get_out_shape(*shapes_of_both, desc.border_mode, desc.subsample, desc.dilation)
        received = expected if output is None else named_view(output, "output").shape
        if received != expected:
            raise ValueError(f"impossible convolution output dim: expected {expected} but received {received}")
        options = _options(self._option, axes, self.algo, desc.precision)
        with cudnn_first():
            return compute(
                _FORWARD[axes], img, kern, (None, None), desc.border_mode, desc.subsample, _flip(desc.conv_mode),
                desc.dilation, self._groups(desc), **options, **self._scaled(output, alpha, beta),
            )  # fmt: skip


class GpuDnnConvGradW(_Convolution):
    """``GpuDnnConvGradW(...)(img, topgrad, output, desc, alpha=1, beta=0)``: ``output`` says the filters' shape."""

    _option = "algo_bwd_filter"

    def __init__(
        self, inplace: bool = False, algo: str | None = None, num_groups: int = 1, workmem: str | None = None
    ) -> None:
        super().__init__(algo, inplace, num_groups, workmem)

    def __call__(
        self, img: Any, topgrad: Any, output: Any, desc: Any, alpha: float | None = None, beta: float | None = None
    ) -> Any:
        axes, shape = self._check(desc, img=img, topgrad=topgrad), named_view(output, "output").shape
        return _gradweight(
            axes, img, topgrad, shape, desc.border_mode, desc.subsample, desc.dilation, desc.conv_mode,
            desc.precision, self.algo, self._groups(desc), **self._scaled(output, alpha, beta),
        )  # fmt: skip


class GpuDnnConvGradI(_Convolution):
    """``GpuDnnConvGradI(...)(kern, topgrad, output, desc, alpha=1, beta=0)``: ``output`` says the image's shape."""

    _option = "algo_bwd_data"

    def __init__(
        self, inplace: bool = False, algo: str | None = None, num_groups: int = 1, workmem: str | None = None
    ) -> None:
        super().__init__(algo, inplace, num_groups, workmem)

    def __call__(
        self, kern: Any, topgrad: Any, output: Any, desc: Any, alpha: float | None = None, beta: float | None = None
    ) -> Any:
        axes, shape = self._check(desc, kern=kern, topgrad=topgrad), named_view(output, "output").shape
        return _gradinput(
            axes, kern, topgrad, shape, desc.border_mode, desc.subsample, desc.dilation, desc.conv_mode,
            desc.precision, self.algo, self._groups(desc), **self._scaled(output, alpha, beta),
        )  # fmt: skip


class GpuDnnConv3d(GpuDnnConv):
    """``GpuDnnConv`` of volumes alone: ``GpuDnnConv3d(workmem=None, inplace=False, algo=None)``."""

    _axes = (3,)

    def __init__(self, workmem: str | None = None, inplace: bool = False, algo: str | None = None) -> None:
        super().__init__(algo, inplace, 1, workmem)


class GpuDnnConv3dGradW(GpuDnnConvGradW):
    """``GpuDnnConvGradW`` of volumes alone: ``GpuDnnConv3dGradW(inplace=False, workmem=None, algo=None)``."""

    _axes = (3,)

    def __init__(self, inplace: bool = False, workmem: str | None = None, algo: str | None = None) -> None:
        super().__init__(inplace, algo, 1, workmem)


class GpuDnnConv3dGradI(GpuDnnConvGradI):
    """``GpuDnnConvGradI`` of volumes alone: ``GpuDnnConv3dGradI(inplace=False, workmem=None, algo=None)``."""

    _axes = (3,)

    def __init__(self, inplace: bool = False, workmem: str | None = None, algo: str | None = None) -> None:
        super().__init__(inplace, algo, 1, workmem)
