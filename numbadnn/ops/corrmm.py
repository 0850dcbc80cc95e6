"""corr_mm and corr3d_mm: correlation as a matrix product over a Toeplitz matrix, by such implementations and no others.

They are conv2d and conv3d that never flip the filters, with shapes inferred where they are unique. On the GPU ``numba.corrmm``
runs, whatever the dispatcher would choose: the documented extra memory is its. On the CPU it is ``cpu.im2col``, which has
blocks of the Toeplitz matrix in a cache, and ``cpu.corrmm``, which has the matrix of an image, where that is excluded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never

from numbadnn import config, dispatch, parameters, shapes
from numbadnn.arrays import View
from numbadnn.dispatch import Request
from numbadnn.ops import conv_build
from numbadnn.ops.habits import refuse
from numbadnn.option_types import Backend

#: what multiplies by a Toeplitz matrix
TOEPLITZ = ("*.corrmm", "cpu.im2col")
Build = Callable[[list[View], list[View], tuple[Any, ...]], Request]
FORWARD = conv_build.Names("img", "kern", subsample="subsample")
WEIGHTS = conv_build.Names("img", "topgrad", filter_shape="shape")
INPUTS = conv_build.Names("topgrad", "kern", image_shape="shape")


def _parameters(hint: Any, shared: tuple[Any, ...]) -> tuple[Any, ...]:
    """The parameters of conv2d's builders: no second hint, never flipped, alpha 1 and beta 0."""
    border_mode, subsample, filter_dilation, num_groups, unshared = shared
    return (hint, None, border_mode, subsample, False, filter_dilation, num_groups, unshared, 1.0, 0.0, None, None)


def _run(build: Build, a: Any, b: Any, params: tuple[Any, ...], backend: Any, out: Any, stream: Any) -> Any:
    with config.in_force(only=TOEPLITZ):
        return dispatch.call2(build, a, b, params, backend, out, stream)


def _run_reversed(build: Build, kern: Any, topgrad: Any, *more: Any) -> Any:
    """Of (kern, topgrad), as the specification orders them; the problem has the filters last."""
    with config.in_force(only=TOEPLITZ):
        return dispatch.call2_reversed(build, kern, topgrad, *more)


def _check_parameters(border_mode: Any, subsample: Any, axes: int) -> None:
    """What would leave a size unknown, as sizes that are not unique do, is an error of its own."""
    parameters.positive_ints("subsample", subsample, axes)
    shapes.padding_pairs(border_mode, (1,) * axes)


def _inferred_kernel(img: View, top: View, border_mode: Any, subsample: Any, dilation: Any) -> tuple[int | None, ...]:
    """The filters' sizes, in the words of the caller: channels and groups are checked with everything else."""
    try:
        return shapes.get_conv_gradweights_shape(img.shape, top.shape, border_mode, subsample, dilation)[2:]
    except ValueError as error:
        raise ValueError(str(error).replace("top_shape:", "topgrad:")) from None


def _check_inferred(name: str, view: View, of: str, shape: tuple[int, ...], least: int) -> None:
    """``shape`` was inferred from an argument that may have been wrong: the error names that one."""
    if min(shape) < least:
        raise ValueError(
            f"{name}: expected sizes that some {of} give, got {view.shape[2:]}, which asks for {of} of {shape}"
        )


def _forward(op: str) -> Build:
    inner = conv_build.forward(op, FORWARD)

    @dispatch.operation("img", "kern")
    def build(views: list[View], out_views: list[View], shared: tuple[Any, ...]) -> Request:
        return inner(views, out_views, _parameters(None, shared))

    return build


def _grad_weights(op: str, axes: int) -> Build:
    inner = conv_build.grad_weights(op, WEIGHTS)

    @dispatch.operation("img", "topgrad")
    def build(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
        (img, top), (shape, *rest) = views, params
        shared = tuple(rest)
        for name, view in zip(("img", "topgrad"), views, strict=True):
            conv_build.check_rank(name, view, axes + 2)
        border_mode, subsample, dilation, groups, unshared = shared
        if shape is None:
            _check_parameters(border_mode, subsample, axes)
            inferred = _inferred_kernel(img, top, border_mode, subsample, dilation)
            shape = tuple(n for n in inferred if n is not None)
            if len(shape) != axes:
                raise ValueError("shape: required where subsample is not 1 or border_mode is 'half', got None")
            _check_inferred("topgrad", top, "filters", shape, 1)
        elif not isinstance(shape, (tuple, list)) or len(shape) != axes:
            raise ValueError(f"shape: expected the {axes} sizes of the filters, got {shape!r}")
        channels = img.shape[1] // conv_build.groups_of(groups)
        regions = top.shape[2:] if unshared else ()
        full = (top.shape[1], *regions, channels, *shape)
        return inner(views, out_views, _parameters(full, shared))

    return build


def _grad_inputs(op: str, axes: int) -> Build:
    inner = conv_build.grad_inputs(op, INPUTS)

    @dispatch.operation("topgrad", "kern")
    def build(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
        (top, kern), (shape, *rest) = views, params
        shared = tuple(rest)
        border_mode, subsample, dilation, groups, unshared = shared
        conv_build.check_rank("topgrad", top, axes + 2)
        conv_build.check_filter_rank("kern", kern, axes, unshared)
        if shape is None:
            _check_parameters(border_mode, subsample, axes)
            inferred = shapes.get_conv_gradinputs_shape(
                kern.shape, top.shape, border_mode, subsample, dilation, conv_build.groups_of(groups)
            )
            shape = tuple(n for n in inferred[-axes:] if n is not None)
            if len(shape) != axes:
                raise ValueError("shape: required where subsample is not 1, got None")
            _check_inferred("topgrad", top, "images", shape, 0)
        elif not isinstance(shape, (tuple, list)) or len(shape) != axes:
            raise ValueError(f"shape: expected the {axes} sizes of the images, got {shape!r}")
        return inner(views, out_views, _parameters((None, None, *shape), shared))

    return build


_corr, _corr3d = _forward("conv2d"), _forward("conv3d")
_corr_weights = _grad_weights("conv2d_grad_wrt_weights", 2)
_corr3d_weights = _grad_weights("conv3d_grad_wrt_weights", 3)
_corr_inputs, _corr3d_inputs = _grad_inputs("conv2d_grad_wrt_inputs", 2), _grad_inputs("conv3d_grad_wrt_inputs", 3)


def corr_mm(
    img: Any,
    kern: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
    *,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Correlation of images with filters by matrix products: ``conv2d`` with ``filter_flip=False``.

    y[n,k,p,q] = sum over c,r,s of img[n, c, p*sh + r*dh - top, q*sw + s*dw - left] * kern[k,c,r,s].

    img: (N, C, H, W); kern: (K, C/num_groups, R, S), unshared (K, P, Q, C/num_groups, R, S); result (N, K, P, Q).
    float16, bfloat16, float32, float64; mixed dtypes upcast. Extra memory: on the GPU the Toeplitz matrix of one image,
    C*R*S*P*Q elements, or of a group of images, within the workspace limit; on the CPU blocks of it, which fit a cache,
    and a copy of the filters.
    Source: docs/explanation/semantics.md#correlation-by-matrix-products.

    Raises ValueError for shapes or parameters that do not fit, TypeError for other arrays or unshared filters without
    six axes, NotSupportedError where, on a GPU, one matrix exceeds the workspace limit.

    >>> import numpy as np, numbadnn
    >>> x = np.arange(9, dtype="float32").reshape(1, 1, 3, 3)
    >>> numbadnn.corr_mm(x, np.ones((1, 1, 2, 2), "float32"))[0, 0]
    array([[ 8., 12.],
           [20., 24.]], dtype=float32)
    """
    if unknown:
        refuse(unknown)
    params = (border_mode, subsample, filter_dilation, num_groups, unshared)
    return _run(_corr, img, kern, params, backend, out, stream)


def corr_mm_grad_weights(
    img: Any,
    topgrad: Any,
    shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
    *,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``corr_mm`` with respect to its filters.

    w[k,c,r,s] = sum over n,p,q of img[n, c, p*sh + r*dh - top, q*sw + s*dw - left] * topgrad[n,k,p,q].

    img: (N, C, H, W); topgrad: (N, K, P, Q); ``shape`` = (R, S), needed where subsample is not 1 or border_mode is
    'half', else inferred; result (K, C/num_groups, R, S), unshared (K, P, Q, C/num_groups, R, S), summed over the batch
    alone. Dtypes and errors as corr_mm, and ValueError for a shape that cannot be.
    Source: docs/explanation/semantics.md#correlation-by-matrix-products.

    >>> import numpy as np, numbadnn
    >>> numbadnn.corr_mm_grad_weights(np.ones((1, 1, 3, 3)), np.ones((1, 1, 2, 2)))[0, 0]
    array([[4., 4.],
           [4., 4.]])
    """
    if unknown:
        refuse(unknown)
    params = (shape, border_mode, subsample, filter_dilation, num_groups, unshared)
    return _run(_corr_weights, img, topgrad, params, backend, out, stream)


def corr_mm_grad_inputs(
    kern: Any,
    topgrad: Any,
    shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
    *,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``corr_mm`` with respect to its images, its exact adjoint.

    kern: (K, C/num_groups, R, S), unshared (K, P, Q, C/num_groups, R, S); topgrad: (N, K, P, Q); ``shape`` = (H, W),
    needed where subsample is not 1, else inferred; result (N, C, H, W), of topgrad's library and channels-last where that
    is. Dtypes and errors as corr_mm, and ValueError for a shape that would give another output.
    Source: docs/explanation/semantics.md#correlation-by-matrix-products.

    >>> import numpy as np, numbadnn
    >>> numbadnn.corr_mm_grad_inputs(np.ones((1, 1, 2, 2)), np.ones((1, 1, 1, 1)))[0, 0]
    array([[1., 1.],
           [1., 1.]])
    """
    if unknown:
        refuse(unknown)
    params = (shape, border_mode, subsample, filter_dilation, num_groups, unshared)
    return _run_reversed(_corr_inputs, kern, topgrad, params, backend, out, stream)


def corr3d_mm(
    img: Any,
    kern: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    filter_dilation: Any = (1, 1, 1),
    num_groups: int = 1,
    *,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """``corr_mm`` with three spatial axes.

    y[n,k,o,p,q] = sum over c,t,r,s of img[n, c, o*sd + t*dd - front, ...] * kern[k,c,t,r,s].

    img: (N, C, D, H, W); kern: (K, C/num_groups, T, R, S). Dtypes, memory and errors as corr_mm.
    Source: docs/explanation/semantics.md#correlation-by-matrix-products.

    >>> import numpy as np, numbadnn
    >>> numbadnn.corr3d_mm(np.ones((1, 1, 2, 2, 2)), np.ones((1, 1, 2, 2, 2))).item()
    8.0
    """
    if unknown:
        refuse(unknown)
    params = (border_mode, subsample, filter_dilation, num_groups, False)
    return _run(_corr3d, img, kern, params, backend, out, stream)


def corr3d_mm_grad_weights(
    img: Any,
    topgrad: Any,
    shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    filter_dilation: Any = (1, 1, 1),
    num_groups: int = 1,
    *,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``corr3d_mm`` with respect to its filters; ``shape`` = (T, R, S), as in ``corr_mm_grad_weights``.

    Source: docs/explanation/semantics.md#correlation-by-matrix-products.

    >>> import numpy as np, numbadnn
    >>> numbadnn.corr3d_mm_grad_weights(np.ones((1, 1, 2, 2, 2)), np.ones((1, 1, 2, 2, 2))).item()
    8.0
    """
    if unknown:
        refuse(unknown)
    params = (shape, border_mode, subsample, filter_dilation, num_groups, False)
    return _run(_corr3d_weights, img, topgrad, params, backend, out, stream)


def corr3d_mm_grad_inputs(
    kern: Any,
    topgrad: Any,
    shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    filter_dilation: Any = (1, 1, 1),
    num_groups: int = 1,
    *,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradient of ``corr3d_mm`` with respect to its images; ``shape`` = (D, H, W), as in ``corr_mm_grad_inputs``.

    Source: docs/explanation/semantics.md#correlation-by-matrix-products.

    >>> import numpy as np, numbadnn
    >>> numbadnn.corr3d_mm_grad_inputs(np.ones((1, 1, 1, 1, 2)), np.ones((1, 1, 1, 1, 1))).shape
    (1, 1, 1, 1, 2)
    """
    if unknown:
        refuse(unknown)
    params = (shape, border_mode, subsample, filter_dilation, num_groups, False)
    return _run_reversed(_corr3d_inputs, kern, topgrad, params, backend, out, stream)
