"""corr_mm and corr3d_mm: convolution that never turns its filters, with sizes inferred where they are unique, in float64."""

from __future__ import annotations

from typing import Any

from numbadnn.reference.conv import _forward, _grad_inputs, _grad_weights
from numbadnn.reference.conv_geometry import Float64, Sizes, _count, _counts, _float64, _padding, _Parameters

ONES = (1, 1, 1)


def _corr(border_mode: Any, subsample: Any, filter_dilation: Any, num_groups: Any, unshared: bool) -> _Parameters:
    return _Parameters(border_mode, subsample, False, filter_dilation, num_groups, unshared)


def _given(shape: Any, axes: int, known: bool, when: str) -> Sizes | None:
    """The sizes of a call, None where they are to be inferred; ValueError where several would do."""
    if shape is not None:
        return _counts("shape", shape, axes, 1)
    if not known:
        raise ValueError(f"shape: required where {when}, got None")
    return None


def _weights(axes: int, img: Any, topgrad: Any, shape: Any, p: _Parameters) -> Float64:
    x, dy = _float64("img", img, axes + 2), _float64("topgrad", topgrad, axes + 2)
    strides = _counts("subsample", p.subsample, axes, 1)
    known = set(strides) == {1} and p.border_mode != "half"
    taps = _given(shape, axes, known, "subsample is not 1 or border_mode is 'half'")
    if taps is None:
        taps = _taps_between(x.shape[2:], dy.shape[2:], p)
    regions = dy.shape[2:] if p.unshared else ()
    channels = x.shape[1] // _count("num_groups", p.num_groups, 1)
    return _grad_weights(axes, x, dy, (dy.shape[1], *regions, channels, *taps), None, p)


def _taps_between(image: Sizes, out: Sizes, p: _Parameters) -> Sizes:
    """How many taps make ``image`` into ``out`` with stride 1: a window of (k-1)*d + 1 loses (k-1)*d positions.

    Under 'full' it gains them; other padding adds what it says.
    """
    dilation = _counts("filter_dilation", p.filter_dilation, len(image), 1)
    if p.border_mode == "full":
        lost = [o - i for i, o in zip(image, out, strict=True)]
    else:
        added = map(sum, _padding(p.border_mode, (1,) * len(image)))
        lost = [i + more - o for i, more, o in zip(image, added, out, strict=True)]
    return tuple(n // d + 1 for n, d in zip(lost, dilation, strict=True))


def _inputs(axes: int, kern: Any, topgrad: Any, shape: Any, p: _Parameters) -> Float64:
    w = _float64("kern", kern, 2 * axes + 2 if p.unshared else axes + 2)
    dy = _float64("topgrad", topgrad, axes + 2)
    strides = _counts("subsample", p.subsample, axes, 1)
    image = _given(shape, axes, set(strides) == {1}, "subsample is not 1")
    if image is None:
        dilation = _counts("filter_dilation", p.filter_dilation, axes, 1)
        extent = tuple((k - 1) * d + 1 for k, d in zip(w.shape[-axes:], dilation, strict=True))
        added = map(sum, _padding(p.border_mode, extent))
        image = tuple(o + e - 1 - more for o, e, more in zip(dy.shape[2:], extent, added, strict=True))
    return _grad_inputs(axes, dy, w, (None, None, *image), None, p)


def corr_mm(
    img: Any,
    kern: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
) -> Float64:
    """``conv2d`` with ``filter_flip=False``: (N, C, H, W) and (F, C/g, R, S) giving (N, F, P, Q).

    >>> corr_mm([[[[1.0, 2.0, 3.0]]]], [[[[1.0, 10.0]]]])
    array([[[[21., 32.]]]])
    """
    return _forward(2, img, kern, (None, None), _corr(border_mode, subsample, filter_dilation, num_groups, unshared))


def corr_mm_grad_weights(
    img: Any,
    topgrad: Any,
    shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
) -> Float64:
    """The adjoint of ``corr_mm`` in its filters; ``shape`` = (R, S), inferred where it is unique, else a ValueError.

    >>> corr_mm_grad_weights([[[[1.0, 2.0, 3.0]]]], [[[[1.0, 10.0]]]])
    array([[[[21., 32.]]]])
    """
    p = _corr(border_mode, subsample, filter_dilation, num_groups, unshared)
    return _weights(2, img, topgrad, shape, p)


def corr_mm_grad_inputs(
    kern: Any,
    topgrad: Any,
    shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
) -> Float64:
    """The adjoint of ``corr_mm`` in its images; ``shape`` = (H, W), inferred where it is unique, else a ValueError.

    >>> corr_mm_grad_inputs([[[[1.0, 10.0]]]], [[[[1.0, 1.0]]]])
    array([[[[ 1., 11., 10.]]]])
    """
    p = _corr(border_mode, subsample, filter_dilation, num_groups, unshared)
    return _inputs(2, kern, topgrad, shape, p)


def corr3d_mm(
    img: Any,
    kern: Any,
    border_mode: Any = "valid",
    subsample: Any = ONES,
    filter_dilation: Any = ONES,
    num_groups: int = 1,
) -> Float64:
    """``corr_mm`` with three spatial axes: (N, C, D, H, W) and (F, C/g, T, R, S) giving (N, F, O, P, Q).

    >>> corr3d_mm([[[[[1.0, 2.0, 3.0]]]]], [[[[[1.0, 10.0]]]]]).ravel()
    array([21., 32.])
    """
    return _forward(3, img, kern, (None, None), _corr(border_mode, subsample, filter_dilation, num_groups, False))


def corr3d_mm_grad_weights(
    img: Any,
    topgrad: Any,
    shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = ONES,
    filter_dilation: Any = ONES,
    num_groups: int = 1,
) -> Float64:
    """The adjoint of ``corr3d_mm`` in its filters; ``shape`` = (T, R, S), as in ``corr_mm_grad_weights``.

    >>> corr3d_mm_grad_weights([[[[[1.0, 2.0, 3.0]]]]], [[[[[1.0, 10.0]]]]]).ravel()
    array([21., 32.])
    """
    return _weights(3, img, topgrad, shape, _corr(border_mode, subsample, filter_dilation, num_groups, False))


def corr3d_mm_grad_inputs(
    kern: Any,
    topgrad: Any,
    shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = ONES,
    filter_dilation: Any = ONES,
    num_groups: int = 1,
) -> Float64:
    """The adjoint of ``corr3d_mm`` in its images; ``shape`` = (D, H, W), as in ``corr_mm_grad_inputs``.

    >>> corr3d_mm_grad_inputs([[[[[1.0, 10.0]]]]], [[[[[1.0, 1.0]]]]]).ravel()
    array([ 1., 11., 10.])
    """
    return _inputs(3, kern, topgrad, shape, _corr(border_mode, subsample, filter_dilation, num_groups, False))
