"""Sizes and padding of convolutions: which input, kernel and output sizes fit together. Pure integers, no arrays.

One formula rules every axis: with ``dk = (k - 1) * d + 1`` the extent of a dilated kernel of ``k`` taps,

    o = floor((i + pl + pr - dk) / s) + 1

where ``valid`` pads nothing, ``full`` pads ``dk - 1`` on both sides, ``half`` pads ``dk // 2`` on both sides, an
integer pads itself on both sides and a pair pads left and right. Everything here is that formula, solved for one of
its terms, one axis at a time. None stands for an unknown size and makes unknown what depends on it. Names and
signatures are those of Theano's ``theano.tensor.nnet.abstract_conv``; where Theano was wrong the docstring says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from numbadnn.parameters import as_int, positive_ints
from numbadnn.shape_arguments import (
    Pair,
    axis_modes,
    axis_padding,
    kernel_shape_of,
    known_ints,
    shape_of,
    size_or_none,
    step_or_none,
)

Shape = Sequence[int | None]
T = TypeVar("T")


# ---- padding ---------------------------------------------------------------------------------------------------------


def padding_pairs(border_mode: Any, kernel_shape: Sequence[int], dilation: Any = None) -> tuple[Pair, ...]:
    """The zeros added before and after each spatial axis, ``((left, right), ...)``.

    ``kernel_shape`` are the spatial sizes of the kernel *before* dilation. ValueError for a list, an unknown name, a
    negative number, a tuple that has not one entry (integer or pair) for each axis.

    >>> padding_pairs("half", (3, 4), (2, 1))
    ((2, 2), (2, 2))
    >>> padding_pairs((1, (0, 2)), (3, 3))
    ((1, 1), (0, 2))
    """
    convdim = len(kernel_shape)
    if border_mode is None:
        raise ValueError("border_mode: expected 'valid', 'full', 'half', an integer or a tuple, got None")
    sizes = positive_ints("kernel shape", tuple(kernel_shape), convdim)
    steps = (1,) * convdim if dilation is None else positive_ints("filter_dilation", dilation, convdim)
    modes = axis_modes(border_mode, convdim)
    return tuple(axis_padding(m, (k - 1) * d + 1) for m, k, d in zip(modes, sizes, steps, strict=True))


def border_mode_to_pad(mode: Any, convdim: int, kshp: Sequence[int]) -> tuple[Pair, ...]:
    """The padding of each axis as ``convdim`` pairs, ``kshp`` being the kernel's sizes *already dilated*.

    As in Theano a bare integer is refused (ValueError), although its documents allow it: give a tuple, or call
    ``padding_pairs``. A tuple of another length is a ValueError, an entry that is no pair a NotImplementedError.

    >>> border_mode_to_pad("full", 2, (3, 5))
    ((2, 2), (4, 4))
    """
    if not isinstance(mode, tuple | str):
        raise ValueError(
            f"invalid border_mode {mode!r}: expected 'valid', 'full', 'half' or a tuple of length {convdim}"
        )
    sizes = positive_ints("kshp", kshp, as_int("convdim", convdim, 1))
    modes = axis_modes(mode, len(sizes))
    if any(isinstance(m, tuple) and len(m) != 2 for m in modes):
        raise NotImplementedError(f"border_mode: expected integers or pairs of integers, got {mode!r}")
    return tuple(axis_padding(m, k) for m, k in zip(modes, sizes, strict=True))


# ---- forward ---------------------------------------------------------------------------------------------------------


def get_conv_shape_1axis(
    image_shape: int | None, kernel_shape: int | None, border_mode: Any, subsample: int | None, dilation: int | None = 1
) -> int | None:
    """Output size of one axis, ``floor((i + pl + pr - dk) / s) + 1``; None if any size is None.

    ``border_mode`` is a name, an integer or a pair (left, right). The result may be <= 0: ``assert_conv_shape`` checks.

    >>> get_conv_shape_1axis(12, 5, "half", 1, 2)
    12
    """
    i, k = size_or_none("image_shape", image_shape), size_or_none("kernel_shape", kernel_shape)
    s, d = step_or_none("subsample", subsample), step_or_none("dilation", dilation)
    if i is None or k is None or border_mode is None or s is None or d is None:
        return None
    dilated = (k - 1) * d + 1
    left, right = axis_padding(border_mode, dilated)
    return window_count(i, k, left, right, s, d)


def window_count(size: Any, kernel: Any, left: Any, right: Any, stride: Any, dilation: Any) -> Any:
    """How many windows of ``kernel`` elements fit an axis, unchecked: of integers, or of symbols of them.

    >>> window_count(12, 5, 4, 4, 1, 2)
    12
    """
    return (size + left + right - ((kernel - 1) * dilation + 1)) // stride + 1


def get_conv_output_shape(
    image_shape: Shape, kernel_shape: Shape, border_mode: Any, subsample: Sequence[int], filter_dilation: Any = None
) -> tuple[int | None, ...]:
    """Shape of the output, ``(N, F, o, ...)``, from the shapes of the image and of the kernel; None gives None.

    ``kernel_shape`` is (F, C/g, k, ...) or, unshared, (F, oH, oW, C/g, kH, kW). Groups do not matter. Sizes <= 0 are
    returned as computed: ``assert_conv_shape`` refuses them.

    >>> get_conv_output_shape((3, 2, 12, 9), (4, 2, 5, 6), "half", (1, 2), (2, 1))
    (3, 4, 12, 5)
    """
    image = shape_of("image_shape", image_shape)
    axes = _axes("image_shape", image, border_mode, subsample, filter_dilation)
    kernel = kernel_shape_of(kernel_shape, len(axes))
    sizes = zip(image[2:], kernel[-len(axes) :], axes, strict=True)
    return (image[0], kernel[0], *(get_conv_shape_1axis(i, k, *axis) for i, k, axis in sizes))


def _axes(
    name: str, shape: Shape, border_mode: Any, subsample: Any, filter_dilation: Any
) -> list[tuple[Any, int | None, int | None]]:
    """(border mode, subsample, dilation) of each spatial axis of an array of this shape."""
    convdim = len(shape) - 2
    if convdim < 1:
        raise ValueError(f"{name}: expected (batch, channels, sizes...), got {tuple(shape)!r}")
    steps = known_ints("filter_dilation", (1,) * convdim if filter_dilation is None else filter_dilation, convdim)
    modes = axis_modes(border_mode, convdim)
    return list(zip(modes, known_ints("subsample", subsample, convdim), steps, strict=True))


def conv_flops(
    image_shape: Sequence[int],
    kernel_shape: Sequence[int],
    border_mode: Any = "valid",
    subsample: Any = None,
    filter_dilation: Any = None,
    num_groups: int = 1,
) -> int:
    """Multiplications and additions of the direct sum, ``2 * N * F * prod(o) * C/g * prod(k)``; padding counts too.

    All sizes must be known; ValueError where channels, filters, groups or an unshared kernel's regions do not fit.

    >>> conv_flops((1, 64, 56, 56), (64, 64, 3, 3), "half")
    231211008
    """
    image = _known("image_shape", shape_of("image_shape", image_shape))
    convdim = len(image) - 2
    kernel = _known("kernel_shape", kernel_shape_of(kernel_shape, convdim))
    stride, groups = (1,) * convdim if subsample is None else subsample, as_int("num_groups", num_groups, 1)
    channels = groups * kernel[-convdim - 1]
    if channels != image[1]:
        raise ValueError(f"image_shape[1]: expected num_groups * (channels of a filter) = {channels}, got {image[1]}")
    if kernel[0] % groups:
        raise ValueError(f"num_groups: expected a divisor of the kernel's {kernel[0]} filters, got {groups}")
    found = get_conv_output_shape(image, kernel, border_mode, stride, filter_dilation)
    if None in found:
        raise ValueError("border_mode, subsample and filter_dilation: expected all of them known, got a None")
    batch, filters, *out = assert_conv_shape(found)
    if len(kernel) > convdim + 2 and kernel[1 : convdim + 1] != tuple(out):
        raise ValueError(
            f"kernel_shape: expected a filter for each output position {tuple(out)}, got {kernel[1 : convdim + 1]}"
        )
    return 2 * batch * filters * math.prod(out) * math.prod(kernel[-convdim - 1 :])


def _known(name: str, shape: tuple[int | None, ...]) -> tuple[int, ...]:
    """The shape, ValueError where one of its entries is None."""
    known = tuple(n for n in shape if n is not None)
    if len(known) != len(shape):
        raise ValueError(f"{name}: expected integers, got {shape}")
    return known


# ---- gradients -------------------------------------------------------------------------------------------------------


def get_conv_gradweights_shape_1axis(
    image_shape: int | None, top_shape: int | None, border_mode: Any, subsample: int | None, dilation: int | None
) -> int | None:
    """Kernel size of one axis from the sizes of image and output; None where it is not unique (s > 1, or 'half').

    ``valid``: (i - o)/d + 1, ``full``: (o - i)/d + 1, padded: (i + pl + pr - o)/d + 1. Theano divided into a float for
    d > 1; here the result is an integer, and sizes no kernel fits (a remainder) are a ValueError.

    >>> get_conv_gradweights_shape_1axis(12, 8, "valid", 1, 2)
    3
    """
    i, o = size_or_none("image_shape", image_shape), size_or_none("top_shape", top_shape)
    s, d = step_or_none("subsample", subsample), step_or_none("dilation", dilation)
    if i is None or o is None or border_mode is None or s is None or d is None:
        return None
    left, right = axis_padding(border_mode, 1)  # a name other than full and half does not depend on the kernel
    if s != 1 or border_mode == "half":
        return None
    reach = o - i if border_mode == "full" else i + left + right - o
    if reach % d:
        raise ValueError(
            f"top_shape: no kernel of dilation {d} under border_mode {border_mode!r} takes an image of size {i} to an "
            f"output of size {o}: expected sizes {d} * (k - 1) apart"
        )
    return reach // d + 1


def get_conv_gradweights_shape(
    image_shape: Shape,
    top_shape: Shape,
    border_mode: Any,
    subsample: Sequence[int],
    filter_dilation: Any = None,
    num_groups: int = 1,
    unshared: bool = False,
) -> tuple[int | None, ...]:
    """Shape of the kernel, ``(F, C/g, k, ...)``, from the shapes of the image and of the output (``top``).

    unshared: ``(F, oH, oW, C/g, kH, kW)``. A size is None where subsample is not 1 or border_mode is 'half'. With
    groups Theano returned (F/g, C, ...), and floats under dilation; both are mended here.

    >>> get_conv_gradweights_shape((3, 4, 9, 9), (3, 6, 5, 4), "valid", (1, 1), num_groups=2)
    (6, 2, 5, 6)
    """
    image, top = shape_of("image_shape", image_shape), shape_of("top_shape", top_shape)
    axes = _axes("image_shape", image, border_mode, subsample, filter_dilation)
    groups = as_int("num_groups", num_groups, 1)
    if unshared and len(axes) != 2:
        raise NotImplementedError(f"unshared: expected a 2D convolution, got {len(axes)} spatial axes")
    if len(top) != len(image):
        raise ValueError(f"top_shape: expected {len(image)} entries as image_shape has, got {top}")
    channels = image[1]
    if channels is not None:
        if channels % groups:
            raise ValueError(f"image_shape[1]: expected a multiple of num_groups = {groups}, got {channels}")
        channels //= groups
    sizes = zip(image[2:], top[2:], axes, strict=True)
    kernel = [get_conv_gradweights_shape_1axis(i, o, *axis) for i, o, axis in sizes]
    regions = top[2:] if unshared else ()
    return (top[1], *regions, channels, *kernel)


def get_conv_gradinputs_shape_1axis(
    kernel_shape: int | None, top_shape: int | None, border_mode: Any, subsample: int | None, dilation: int | None
) -> int | None:
    """Image size of one axis from the sizes of kernel and output, ``o + dk - 1 - pl - pr``; None if subsample is not 1.

    >>> get_conv_gradinputs_shape_1axis(3, 8, "valid", 1, 2)
    12
    """
    k, o = size_or_none("kernel_shape", kernel_shape), size_or_none("top_shape", top_shape)
    s, d = step_or_none("subsample", subsample), step_or_none("dilation", dilation)
    if k is None or o is None or border_mode is None or s is None or d is None:
        return None
    dilated = (k - 1) * d + 1
    left, right = axis_padding(border_mode, dilated)
    return o + dilated - 1 - left - right if s == 1 else None


def get_conv_gradinputs_shape(
    kernel_shape: Shape,
    top_shape: Shape,
    border_mode: Any,
    subsample: Sequence[int],
    filter_dilation: Any = None,
    num_groups: int = 1,
) -> tuple[int | None, ...]:
    """Shape of the image, ``(N, g * C/g, i, ...)``, from the shapes of the kernel and of the output (``top``).

    A size is None where subsample is not 1. For an unshared kernel (F, oH, oW, C/g, kH, kW) the channels are its fourth
    entry; Theano read the second, the output's height.

    >>> get_conv_gradinputs_shape((6, 2, 5, 6), (3, 6, 5, 4), "valid", (1, 1), num_groups=2)
    (3, 4, 9, 9)
    """
    top = shape_of("top_shape", top_shape)
    axes = _axes("top_shape", top, border_mode, subsample, filter_dilation)
    kernel = kernel_shape_of(kernel_shape, len(axes))
    channels = kernel[-len(axes) - 1]
    groups = as_int("num_groups", num_groups, 1)
    sizes = zip(kernel[-len(axes) :], top[2:], axes, strict=True)
    image = [get_conv_gradinputs_shape_1axis(k, o, *axis) for k, o, axis in sizes]
    return (top[0], None if channels is None else channels * groups, *image)


def check_conv_gradinputs_shape(
    image_shape: Shape,
    kernel_shape: Shape,
    output_shape: Shape,
    border_mode: Any,
    subsample: Sequence[int],
    filter_dilation: Any = None,
) -> bool:
    """Whether an image of ``image_shape`` gives an output of ``output_shape``; None fits anything.

    False if the ranks disagree or a known entry of ``output_shape``, batch and filters included, is not the computed
    one.

    >>> check_conv_gradinputs_shape((1, 1, 6, 7), (1, 1, 3, 3), (1, 1, 2, None), "valid", (2, 2))
    True
    """
    image, kernel, output = (
        shape_of(name, shape)
        for name, shape in (
            ("image_shape", image_shape),
            ("kernel_shape", kernel_shape),
            ("output_shape", output_shape),
        )
    )
    rank = len(image)
    unshared = rank == 4 and len(kernel) == 6
    if len(output) != rank or not (unshared or len(kernel) == rank):
        return False
    if any(np.ndim(s) == 1 and len(s) != rank - 2 for s in (subsample, filter_dilation)):
        return False
    computed = get_conv_output_shape(image, kernel, border_mode, subsample, filter_dilation)
    return all(o is None or c is None or o == c for o, c in zip(output, computed, strict=True))


# ---- assertions ------------------------------------------------------------------------------------------------------


def assert_conv_shape(shape: Shape) -> tuple[Any, ...]:
    """``shape`` as a tuple if a convolution may produce it: batch, channels >= 0, spatial sizes > 0; else ValueError.

    >>> assert_conv_shape((0, 4, 1, 1))
    (0, 4, 1, 1)
    """
    sizes = shape_of("shape", shape)
    for axis, size in enumerate(sizes):
        if size is not None and (size < 0 or (axis >= 2 and size == 0)):
            bound = "< 0" if axis < 2 else "<= 0"
            raise ValueError(f"The convolution would produce an invalid shape (dim[{axis}]: {size} {bound})")
    return sizes


def assert_shape(x: T, expected_shape: Shape | None, msg: str = "Unexpected shape.") -> T:
    """``x`` itself if its shape is the expected one (None fits anything); else AssertionError with ``msg`` and both shapes.

    None, and Nones alone, expect nothing, not even a rank.

    >>> import numpy as np
    >>> assert_shape(np.zeros((2, 3)), (None, 3)).shape
    (2, 3)
    """
    if expected_shape is None:
        return x
    expected_shape = shape_of("expected_shape", expected_shape)
    if all(e is None for e in expected_shape):
        return x
    if not hasattr(x, "shape"):
        raise TypeError(f"x: expected an array, got {type(x).__name__}")
    shape = tuple(x.shape)
    known = [e is None or e == n for e, n in zip(expected_shape, shape, strict=False)]
    if len(shape) != len(expected_shape) or not all(known):
        raise AssertionError(f"{msg} Expected {tuple(expected_shape)}, got {shape}.")
    return x
