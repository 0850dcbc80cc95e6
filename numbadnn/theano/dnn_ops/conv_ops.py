"""The op classes of theano.gpuarray.dnn's convolutions; the functions are in ``conv.py``.

Source: docs/explanation/semantics.md#theanos-cudnn-functions."""

from __future__ import annotations

from typing import Any

from numbadnn import shapes
from numbadnn.call.operands import named_view
from numbadnn.ops import conv_build
from numbadnn.theano._named import check, compute
from numbadnn.theano.config import cudnn_first
from numbadnn.theano.dnn_ops.conv import (
    _FORWARD,
    _check_algorithm_3d,
    _flip,
    _gradinput,
    _gradweight,
    _options,
    _workmem,
)
from numbadnn.theano.dnn_ops.library import DnnBase

__all__ = [
    "GpuDnnConv",
    "GpuDnnConv3d",
    "GpuDnnConv3dGradI",
    "GpuDnnConv3dGradW",
    "GpuDnnConvDesc",
    "GpuDnnConvGradI",
    "GpuDnnConvGradW",
]


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
