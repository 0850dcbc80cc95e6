"""``theano.tensor.nnet.abstract_conv``: convolutions on any backend, by the specification's names, and as classes.

``conv2d`` here is the specification's of this name, ``numbadnn.conv2d``; nnet's, which is ``numbadnn.theano.conv2d``, has
``image_shape`` before ``filter_dilation``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn import parameters, reference
from numbadnn.dispatch import frozen
from numbadnn.ops import conv_build
from numbadnn.ops.conv_functions import (
    conv2d,
    conv2d_grad_wrt_inputs,
    conv2d_grad_wrt_weights,
    conv3d,
    conv3d_grad_wrt_inputs,
    conv3d_grad_wrt_weights,
)
from numbadnn.ops.conv_line import causal_conv1d
from numbadnn.ops.conv_separable import separable_conv2d, separable_conv3d
from numbadnn.ops.conv_transpose import conv2d_transpose, conv3d_transpose
from numbadnn.shapes import (
    assert_conv_shape,
    assert_shape,
    border_mode_to_pad,
    check_conv_gradinputs_shape,
    get_conv_gradinputs_shape,
    get_conv_gradinputs_shape_1axis,
    get_conv_gradweights_shape,
    get_conv_gradweights_shape_1axis,
    get_conv_output_shape,
    get_conv_shape_1axis,
)
from numbadnn.theano._named import by_axes, check, compute
from numbadnn.theano.upsample import (
    bilinear_kernel_1D,
    bilinear_kernel_2D,
    bilinear_upsampling,
    frac_bilinear_upsampling,
)

__all__ = [
    "AbstractConv",
    "AbstractConv2d",
    "AbstractConv2d_gradInputs",
    "AbstractConv2d_gradWeights",
    "AbstractConv3d",
    "AbstractConv3d_gradInputs",
    "AbstractConv3d_gradWeights",
    "AbstractConv_gradInputs",
    "AbstractConv_gradWeights",
    "BaseAbstractConv",
    "assert_conv_shape",
    "assert_shape",
    "bilinear_kernel_1D",
    "bilinear_kernel_2D",
    "bilinear_upsampling",
    "border_mode_to_pad",
    "causal_conv1d",
    "check_conv_gradinputs_shape",
    "conv2d",
    "conv2d_grad_wrt_inputs",
    "conv2d_grad_wrt_weights",
    "conv2d_transpose",
    "conv3d",
    "conv3d_grad_wrt_inputs",
    "conv3d_grad_wrt_weights",
    "conv3d_transpose",
    "frac_bilinear_upsampling",
    "get_conv_gradinputs_shape",
    "get_conv_gradinputs_shape_1axis",
    "get_conv_gradweights_shape",
    "get_conv_gradweights_shape_1axis",
    "get_conv_output_shape",
    "get_conv_shape_1axis",
    "separable_conv2d",
    "separable_conv3d",
]

_HINTS = {"image_shape": "imshp", "filter_shape": "kshp"}
_FORWARD = by_axes(conv_build.forward, "", first="img", second="kern", **_HINTS)
_GRAD_INPUTS = by_axes(
    conv_build.grad_inputs, "_grad_wrt_inputs", first="topgrad", second="kern", **(_HINTS | {"image_shape": "shape"})
)
_GRAD_WEIGHTS = by_axes(
    conv_build.grad_weights, "_grad_wrt_weights", first="img", second="topgrad", **(_HINTS | {"filter_shape": "shape"})
)


_DIRECTIONS = "forward", "backprop weights", "backprop inputs"


def _check_direction(direction: Any) -> None:
    if direction not in _DIRECTIONS:
        raise ValueError(f"direction: expected one of {', '.join(map(repr, _DIRECTIONS))}, got {direction!r}")


def _hinted(name: str, hint: Any, shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """``shape``, whose entries may be None: then they are the hint's. ValueError where that contradicts the others."""
    hint = frozen(hint)
    if isinstance(hint, tuple) and len(hint) == len(shape):
        shape = tuple(h if n is None else n for n, h in zip(shape, hint, strict=True))
    conv_build.check_hint(name, hint, shape, "what shape says,")
    return shape


class BaseAbstractConv:
    """What the classes share: their parameters, checked, and the slow convolutions of debugging.

    ``imshp`` and ``kshp`` are hints of the image's and the filters' shapes. ValueError for a ``convdim`` other than 2 and 3
    and for parameters that do not fit it; NotImplementedError for unshared filters with three axes.
    """

    def __init__(
        self,
        convdim: int,
        imshp: Any = None,
        kshp: Any = None,
        border_mode: Any = "valid",
        subsample: Any = None,
        filter_flip: bool = True,
        filter_dilation: Any = None,
        num_groups: int = 1,
        unshared: bool = False,
    ) -> None:
        if convdim not in (2, 3):
            raise ValueError(f"convolution dimension {convdim} is not supported: expected 2 or 3")
        convdim = parameters.as_int("convdim", convdim, 2)
        if unshared and convdim == 3:
            raise NotImplementedError("Unshared 3D convolution is not implemented")
        self.convdim, self.imshp, self.kshp, self.border_mode = convdim, imshp, kshp, border_mode
        self.subsample, self.filter_dilation = check(convdim, border_mode, subsample, filter_dilation, num_groups)
        self.filter_flip, self.num_groups = conv_build.truth("filter_flip", filter_flip), num_groups
        self.unshared = conv_build.truth("unshared", unshared)

    def _compute(self, builds: dict[int, Any], first: Any, second: Any, hints: tuple[Any, Any]) -> Any:
        parameters = (self.border_mode, self.subsample, self.filter_flip, self.filter_dilation, self.num_groups)
        return compute(builds[self.convdim], first, second, hints, *parameters, self.unshared)

    def conv(
        self,
        img: Any,
        kern: Any,
        mode: str = "valid",
        dilation: Any = 1,
        num_groups: int = 1,
        unshared: bool = False,
        direction: str = "forward",
    ) -> np.ndarray:
        """A slow convolution (filters flipped) of NumPy arrays for checking, by the float64 reference, in img's dtype.

        ``mode`` is 'valid' or 'full', ``dilation`` an integer or one an axis. Unshared, ``direction`` may be 'backprop
        weights' (kern is then the output's gradient, the result 6-D) or 'backprop inputs' (img is it); both undo a
        'valid' convolution. Of shared filters all three are the same convolution, as they were in Theano.

        >>> BaseAbstractConv(2).conv(np.ones((1, 1, 2, 2)), np.ones((1, 1, 2, 2)), "full").shape
        (1, 1, 3, 3)
        """
        if mode not in ("valid", "full"):
            raise ValueError(f"invalid mode {mode}, which must be either 'valid' or 'full'")
        _check_direction(direction)
        steps = (dilation,) * self.convdim if np.ndim(dilation) == 0 else dilation
        steps = parameters.positive_ints("dilation", steps, self.convdim)
        more: dict[str, Any] = {"filter_dilation": steps, "num_groups": num_groups}
        if self.convdim == 3:
            if unshared:
                raise NotImplementedError("Unshared 3D convolution is not implemented")
            return reference.conv3d(img, kern, border_mode=mode, **more).astype(img.dtype)
        more["unshared"] = unshared
        if not unshared or direction == "forward":
            return reference.conv2d(img, kern, border_mode=mode, **more).astype(img.dtype)
        if mode != "valid":
            raise ValueError(f"direction: expected 'forward' with mode 'full', got {direction!r}")
        if direction == "backprop weights":
            sizes = [(i - o) // d + 1 for i, o, d in zip(img.shape[2:], kern.shape[2:], steps, strict=True)]
            shape = (None, None, None, None, *sizes)
            return reference.conv2d_grad_wrt_weights(img, kern, shape, **more).astype(img.dtype)
        sizes = [o + (k - 1) * d for o, k, d in zip(img.shape[2:], kern.shape[4:], steps, strict=True)]
        return reference.conv2d_grad_wrt_inputs(img, kern, (None, None, *sizes), **more).astype(img.dtype)

    def unshared2d(self, inp: Any, kern: Any, out_shape: Any, direction: str = "forward") -> np.ndarray:
        """One channel of an unshared convolution, by loops over its positions, of NumPy arrays.

        forward: inp (H, W), kern (P, Q, R, S), result out_shape (P, Q). 'backprop weights': kern (P, Q) is the output's
        gradient, out_shape (P, Q, R, S). 'backprop inputs': inp (P, Q) is it, kern (P, Q, R, S), out_shape (H, W).

        >>> BaseAbstractConv(2).unshared2d(np.ones((1, 2)), np.array([[[[1.0]], [[2.0]]]]), (1, 2))
        array([[1., 2.]])
        """
        if self.convdim != 2:
            raise NotImplementedError("Unshared 3D convolution is not implemented")
        _check_direction(direction)
        out = np.zeros(out_shape, inp.dtype)
        if direction == "forward":
            (rows, cols), (height, width) = out_shape, kern.shape[2:]
        elif direction == "backprop weights":
            rows, cols, height, width = out_shape
        else:
            rows, cols, height, width = kern.shape
        for row in range(rows):
            for col in range(cols):
                seen = (slice(row, row + height), slice(col, col + width))
                if direction == "forward":
                    out[row, col] = np.sum(inp[seen] * kern[row, col, ::-1, ::-1])
                elif direction == "backprop weights":
                    out[row, col] = (kern[row, col] * inp[seen])[::-1, ::-1]
                else:
                    out[seen] += inp[row, col] * kern[row, col, ::-1, ::-1]
        return out

    def flops(self, inp: Any, outp: Any) -> int:
        """Multiplications and additions, from the shapes (image, filters) and (output,); 3-D too, which Theano had not.

        >>> AbstractConv2d().flops([(1, 2, 5, 5), (3, 2, 3, 3)], [(1, 3, 3, 3)])
        972
        """
        image, filters = inp
        (output,) = outp
        if image[1] != filters[-self.convdim - 1] * self.num_groups:
            raise ValueError(f"inp: expected channels of the image = num_groups * those of a filter, got {inp}")
        flops = 2 * image[0] * image[1] * filters[0] // self.num_groups
        for size in (*filters[-self.convdim :], *output[2:]):
            flops *= size
        return int(flops)


class AbstractConv(BaseAbstractConv):
    """``AbstractConv(convdim, ...)(img, kern)``: the convolution; see ``numbadnn.conv2d`` and ``conv3d``."""

    def __call__(self, img: Any, kern: Any) -> Any:
        return self._compute(_FORWARD, img, kern, (self.imshp, self.kshp))


class AbstractConv_gradInputs(BaseAbstractConv):
    """``AbstractConv_gradInputs(convdim, ...)(kern, topgrad, shape)``: ``shape`` are the image's spatial sizes.

    The result is an array of topgrad's library, and channels-last where that is.
    """

    def __call__(self, kern: Any, topgrad: Any, shape: Any = None, add_assert_shape: bool = True) -> Any:
        image = self.imshp
        if shape is not None:
            image = _hinted("imshp", self.imshp, (None, None, *parameters.ints("shape", shape, self.convdim, 0)))
        return self._compute(_GRAD_INPUTS, topgrad, kern, (image, self.kshp))


class AbstractConv_gradWeights(BaseAbstractConv):
    """``AbstractConv_gradWeights(convdim, ...)(img, topgrad, shape)``: ``shape`` are the filters' sizes, or their whole shape."""

    def __call__(self, img: Any, topgrad: Any, shape: Any = None, add_assert_shape: bool = True) -> Any:
        filters = self.kshp
        if shape is not None:
            ahead = 2 + self.convdim if self.unshared else 2
            whole = np.ndim(shape) == 1 and len(shape) == ahead + self.convdim
            front = tuple(shape[:ahead]) if whole else (None,) * ahead
            sizes = parameters.ints("shape", shape[ahead:] if whole else shape, self.convdim, 0)
            filters = _hinted("kshp", self.kshp, (*front, *sizes))
        return self._compute(_GRAD_WEIGHTS, img, topgrad, (filters, self.imshp))


def _of_dimension(base: type, convdim: int, name: str) -> Any:
    """The class of ``base`` without its first parameter, as the specification has one for each dimension."""
    ones = (1,) * convdim

    def __init__(
        self: Any,
        imshp: Any = None,
        kshp: Any = None,
        border_mode: Any = "valid",
        subsample: Any = ones,
        filter_flip: bool = True,
        filter_dilation: Any = ones,
        num_groups: int = 1,
        unshared: bool = False,
    ) -> None:
        base.__init__(  # type: ignore[misc]
            self, convdim, imshp, kshp, border_mode, subsample, filter_flip, filter_dilation, num_groups, unshared
        )

    doc = f"``{base.__name__}`` of {convdim} spatial axes."
    return type(name, (base,), {"__init__": __init__, "__doc__": doc, "__module__": __name__})


AbstractConv2d = _of_dimension(AbstractConv, 2, "AbstractConv2d")
AbstractConv3d = _of_dimension(AbstractConv, 3, "AbstractConv3d")
AbstractConv2d_gradInputs = _of_dimension(AbstractConv_gradInputs, 2, "AbstractConv2d_gradInputs")
AbstractConv3d_gradInputs = _of_dimension(AbstractConv_gradInputs, 3, "AbstractConv3d_gradInputs")
AbstractConv2d_gradWeights = _of_dimension(AbstractConv_gradWeights, 2, "AbstractConv2d_gradWeights")
AbstractConv3d_gradWeights = _of_dimension(AbstractConv_gradWeights, 3, "AbstractConv3d_gradWeights")
