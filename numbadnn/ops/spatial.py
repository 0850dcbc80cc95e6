"""The spatial transformer (grid of an affine map, bilinear sampling, their gradients): the public functions.

``problems/spatial.py`` holds what they ask for.
"""

from __future__ import annotations

import math
from typing import Any, Never

from numbadnn import dispatch
from numbadnn.arrays import View
from numbadnn.call.operands import check_apart, named_view, output_spec
from numbadnn.dispatch import Request
from numbadnn.ops.habits import refuse
from numbadnn.option_types import Backend
from numbadnn.parameters import LARGEST, check_rank, real, whole
from numbadnn.problem import ITEMSIZE, Spec
from numbadnn.problems.spatial import SpatialProblem, check_dy, shapes_of

# ---- checking --------------------------------------------------------------------------------------------------------


def _outs(out_views: list[View], count: int) -> list[View | None]:
    if out_views and len(out_views) != count:
        raise ValueError(f"out: expected {'one array' if count == 1 else f'a tuple of {count}'}, got {len(out_views)}")
    return list(out_views) or [None] * count


def _packed(shape: tuple[int, ...], dtype: str, first: View, out_view: View | None) -> Spec:
    """A destination that is no image: C order, whatever the layout of the images."""
    return Spec.of(dtype, shape) if out_view is None else output_spec(shape, dtype, first, out_view)


@dispatch.operation("theta")
def _build_grid(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    (theta,), (dims, wide), (out,) = views, params, _outs(out_views, 1)
    try:
        n, _, h, w = (whole(d) for d in dims)
    except (TypeError, ValueError):
        raise ValueError(f"out_dims: expected four integers (N, C, H, W), got {dims!r}") from None
    if n < 0 or h < 1 or w < 1:
        raise ValueError(f"out_dims: expected sizes of at least 1, got {dims!r}")
    shapes_of("spatialtf_grid", {"theta": theta.shape, "grid": (n, h, w, 2)})
    dtype = "float32" if wide and ITEMSIZE[theta.dtype] == 2 else theta.dtype
    grid = _packed((n, h, w, 2), dtype, theta, out)
    return Request(SpatialProblem("spatialtf_grid", theta=theta.spec(), grid=grid))


@dispatch.operation("dgrid")
def _build_grid_grad(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    (dgrid,), (out,) = views, _outs(out_views, 1)
    shapes = shapes_of("spatialtf_grid_grad", {"dgrid": dgrid.shape})
    dtheta = _packed(shapes["dtheta"], dgrid.dtype, dgrid, out)
    return Request(SpatialProblem("spatialtf_grid_grad", dgrid=dgrid.spec(), dtheta=dtheta))


@dispatch.operation("img", "grid")
def _build_sampler(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    (img, grid), (out,) = views, _outs(out_views, 1)
    shapes = shapes_of("spatialtf_sampler", {"img": img.shape, "grid": grid.shape})
    y = output_spec(shapes["y"], img.dtype, img, out)
    return Request(SpatialProblem("spatialtf_sampler", img=img.spec(), grid=grid.spec(), y=y))


@dispatch.operation("img", "grid", "dy")
def _build_sampler_grad(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    (img, grid, dy), (out_img, out_grid) = views, _outs(out_views, 2)
    shapes_of("spatialtf_sampler_grad", {"img": img.shape, "grid": grid.shape, "dy": dy.shape})
    check_dy(img.dtype, dy.dtype)
    dimg = output_spec(img.shape, img.dtype, img, out_img)
    dgrid = _packed(grid.shape, grid.dtype, grid, out_grid)
    specs = {"img": img.spec(), "grid": grid.spec(), "dy": dy.spec()}
    return Request(SpatialProblem("spatialtf_sampler_grad", **specs, dimg=dimg, dgrid=dgrid))


# ---- the public functions --------------------------------------------------------------------------------------------


def spatialtf_grid(
    theta: Any, out_dims: Any, *, backend: Backend | None = None, out: Any = None, stream: Any = None, **unknown: Never
) -> Any:
    """Where an affine map ``theta`` (N, 2, 3) samples: grid (N, H', W', 2) of normalised (x, y), from -1 to 1 inclusive.

    ``grid[n, i, j] = theta[n] @ (x_j, y_i, 1)`` with x_j the j-th of W' numbers evenly spaced over [-1, 1], y_i of H'; on an
    axis of size 1 the coordinate is 0. ``out_dims`` = (N, C, H', W'), of which C is not looked at. Result: theta's dtype and
    library. Source: docs/explanation/semantics.md#spatial-transformers.

    Raises ValueError where theta is not (N, 2, 3) or out_dims not four sizes, TypeError for other dtypes.

    >>> import numpy as np, numbadnn
    >>> numbadnn.spatialtf_grid(np.array([[[1.0, 0, 0], [0, 1, 0]]]), (1, 1, 1, 3))[0, 0]
    array([[-1.,  0.],
           [ 0.,  0.],
           [ 1.,  0.]])
    """
    if unknown:
        refuse(unknown)
    dims = out_dims if type(out_dims) is tuple else _sizes(out_dims)
    return dispatch.call1(_build_grid, theta, (dims, False), backend, out, stream)


def spatialtf_grid_grad(
    dgrid: Any, *, backend: Backend | None = None, out: Any = None, stream: Any = None, **unknown: Never
) -> Any:
    """Gradient of ``spatialtf_grid`` in theta: ``dtheta[n] = sum over points of dgrid[n, i, j] x (x_j, y_i, 1)``.

    dgrid (N, H', W', 2) gives dtheta (N, 2, 3), summed in a fixed order. ValueError for another shape, TypeError for
    other dtypes. Source: docs/explanation/semantics.md#spatial-transformers.

    >>> import numpy as np, numbadnn
    >>> numbadnn.spatialtf_grid_grad(np.ones((1, 2, 2, 2)))
    array([[[0., 0., 4.],
            [0., 0., 4.]]])
    """
    if unknown:
        refuse(unknown)
    return dispatch.call1(_build_grid_grad, dgrid, (), backend, out, stream)


def spatialtf_sampler(
    img: Any, grid: Any, *, backend: Backend | None = None, out: Any = None, stream: Any = None, **unknown: Never
) -> Any:
    """Sample images (N, C, H, W) at the points of a grid (N, H', W', 2), bilinearly: (N, C, H', W').

    A point (x, y) lies at column (x + 1)/2 * (W - 1) and row (y + 1)/2 * (H - 1) (corners of the image at -1 and 1); the
    result is the weighted mean of the four pixels around it, where pixels outside the image count as 0. A point that is
    NaN gives NaN. Result: img's dtype, layout and library; grid may have another dtype.
    Source: docs/explanation/semantics.md#spatial-transformers.

    Raises ValueError for wrong ranks or shapes, images without pixels or channels; TypeError for other dtypes.

    >>> import numpy as np, numbadnn
    >>> numbadnn.spatialtf_sampler(np.array([[[[2.0, 4.0]]]]), np.array([[[[0.0, 0.0], [3.0, 0.0]]]]))
    array([[[[3., 0.]]]])
    """
    if unknown:
        refuse(unknown)
    return dispatch.call2(_build_sampler, img, grid, (), backend, out, stream)


def spatialtf_sampler_grad(
    img: Any,
    grid: Any,
    dy: Any,
    *,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Gradients of ``spatialtf_sampler`` in the image and in the grid from ``dy`` (N, C, H', W'): (dimg, dgrid).

    ``dimg``: each pixel gathers ``weight * dy`` of the points around it, in a fixed order. ``dgrid``: the slope of the
    interpolation, summed over channels; where a point lies on a pixel's own column (row), the slope to its right (below).
    A NaN point gives NaN in dgrid and nothing in dimg. Same errors as the sampler, and TypeError where dy has not img's
    dtype. ``out`` is a pair. Source: docs/explanation/semantics.md#spatial-transformers.

    >>> import numpy as np, numbadnn
    >>> img, grid = np.array([[[[2.0, 4.0]]]]), np.array([[[[0.0, 0.0]]]])
    >>> numbadnn.spatialtf_sampler_grad(img, grid, np.ones((1, 1, 1, 1)))
    (array([[[[0.5, 0.5]]]]), array([[[[1., 0.]]]]))
    """
    if unknown:
        refuse(unknown)
    return dispatch.call_any(_build_sampler_grad, (img, grid, dy), (), backend, out, stream)


def spatialtf(
    img: Any,
    theta: Any,
    scale_width: float = 1,
    scale_height: float = 1,
    *,
    backend: Backend | None = None,
    out: Any = None,
    stream: Any = None,
    **unknown: Never,
) -> Any:
    """Spatial transformer: images (N, C, H, W) sampled where the affine maps ``theta`` (N, 2, 3) send the output's points.

    ``spatialtf_sampler(img, spatialtf_grid(theta, (N, C, ceil(H * scale_height), ceil(W * scale_width))))``: the grid in
    between has theta's dtype, or float32 for one of 16 bits, in which points would lie pixels away. Result: img's dtype,
    layout and library. Source: Jaderberg et al. 2015; docs/explanation/semantics.md#spatial-transformers.

    Raises ValueError for wrong ranks or shapes, images without pixels, scales that are not positive; TypeError for other dtypes.

    >>> import numpy as np, numbadnn
    >>> half_turn = np.array([[[-1.0, 0, 0], [0, -1, 0]]])
    >>> numbadnn.spatialtf(np.array([[[[1.0, 2.0], [3.0, 4.0]]]]), half_turn)[0, 0]
    array([[4., 3.],
           [2., 1.]])
    """
    if unknown:
        refuse(unknown)
    if isinstance(backend, dispatch.Intercept):
        raise TypeError(
            "spatialtf is two operations: ask for the plan of spatialtf_grid and spatialtf_sampler by itself"
        )
    try:
        n, c, h, w = img.shape
    except (AttributeError, ValueError, TypeError):
        shape = named_view(img, "img").shape
        check_rank("img", shape, 4, "(N, C, H, W)")
        n, c, h, w = shape
    if not (h and w):
        raise ValueError(f"img: expected rows and columns of at least 1, got shape {(n, c, h, w)}")
    if not (type(scale_width) is type(scale_height) is int and scale_width == scale_height == 1):
        h, w = _scaled("scale_height", h, scale_height), _scaled("scale_width", w, scale_width)
    if out is not None:  # the sampler, which writes, knows nothing of theta
        check_apart(out if isinstance(out, tuple) else (out,), [named_view(theta, "theta")])
    grid = dispatch.call1(_build_grid, theta, ((n, c, h, w), True), backend, None, stream)
    return dispatch.call2(_build_sampler, img, grid, (), backend, out, stream)


def _scaled(name: str, size: int, scale: Any) -> int:
    """ceil(size * scale)."""
    try:
        factor = real(scale)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name}: expected a number, got {scale!r}") from None
    result = size * factor
    if not (factor > 0 and result <= LARGEST):
        raise ValueError(f"{name}: expected a positive number that gives an axis of at most 2**40, got {scale!r}")
    return math.ceil(result)


def _sizes(value: Any) -> Any:
    try:
        return tuple(value)
    except TypeError:
        raise ValueError(f"out_dims: expected four integers (N, C, H, W), got {value!r}") from None
