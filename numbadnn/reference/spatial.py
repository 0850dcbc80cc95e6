"""The spatial transformer from its definition, in float64: the oracle.

With ends(m)[k] the k-th of m numbers evenly spaced over [-1, 1] (0 for m = 1), a grid is ``theta @ (x_t, y_t, 1)``. A grid
point (x, y) lies at column ``(x + 1)/2*(W - 1)`` and row ``(y + 1)/2*(H - 1)`` of an image, and the sample there is

    sum over pixels (i, j) of img[i, j] * max(0, 1 - |column - j|) * max(0, 1 - |row - i|),

in which pixels outside the image are 0 and pixels of weight 0 are not looked at, nor given a gradient. The slope of that in
the column is taken between floor(column) and the pixel to its right; in the row between floor(row) and the pixel below. A
point that is NaN gives NaN, and takes part in no pixel's gradient; one at infinity lies outside like any other far one.
Bounds stand in ``spatial_bounds``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def ends(size: int) -> Float64:
    """``size`` numbers evenly spaced over [-1, 1], ends included; [0] for one.

    >>> ends(3)
    array([-1.,  0.,  1.])
    """
    return (2.0 * np.arange(size) - (size - 1)) / max(size - 1, 1)


def spatialtf_grid(theta: Any, out_dims: Any) -> Float64:
    """The grid (N, H, W, 2) of affine maps (N, 2, 3) for an output of ``out_dims`` = (N, C, H, W), in float64.

    >>> spatialtf_grid([[[1, 0, 0], [0, 1, 0]]], (1, 1, 2, 1))[0, :, 0]
    array([[ 0., -1.],
           [ 0.,  1.]])
    """
    theta = np.asarray(theta, np.float64)
    n, _, h, w = out_dims
    if theta.shape != (n, 2, 3):
        raise ValueError(f"theta: expected shape ({n}, 2, 3), got {theta.shape}")
    x, y = ends(w)[None, None, :, None], ends(h)[None, :, None, None]
    t = theta[:, None, None]
    return np.ascontiguousarray(t[..., 0] * x + t[..., 1] * y + t[..., 2])


def spatialtf_grid_grad(dgrid: Any) -> Float64:
    """The gradient (N, 2, 3) in theta of a grid's gradient (N, H, W, 2), in float64.

    >>> spatialtf_grid_grad([[[[1.0, 0.0], [3.0, 0.0]]]])[0, 0]
    array([2., 0., 4.])
    """
    g = np.asarray(dgrid, np.float64)
    x, y = ends(g.shape[2])[None, None, :, None], ends(g.shape[1])[None, :, None, None]
    return np.stack([(g * x).sum((1, 2)), (g * y).sum((1, 2)), g.sum((1, 2))], axis=2)


class Cells(NamedTuple):
    """Where points lie: the pixel above and left of each (j, i), and how far to the right and below of it (u, v).

    ``sound`` is False where a point is NaN or so far out that it meets no pixel; such points have j = i = -2.
    """

    j: NDArray[np.int64]
    i: NDArray[np.int64]
    u: Float64
    v: Float64
    sound: NDArray[np.bool_]


def positions(grid: Any, height: int, width: int) -> tuple[Float64, Float64]:
    """Columns and rows of grid points, in pixels."""
    g = np.asarray(grid, np.float64)
    with np.errstate(invalid="ignore"):
        return (g[..., 0] + 1) / 2 * (width - 1), (g[..., 1] + 1) / 2 * (height - 1)


def cells(column: Float64, row: Float64, height: int, width: int) -> Cells:
    """The cell of each point; between -1 and the size a point may touch the image."""
    sound = (column > -1) & (column < width) & (row > -1) & (row < height)
    x, y = np.where(sound, column, -2.0), np.where(sound, row, -2.0)
    j, i = np.floor(x), np.floor(y)
    return Cells(j.astype(np.int64), i.astype(np.int64), x - j, y - i, sound)


def pixels(img: Float64, i: NDArray[np.int64], j: NDArray[np.int64]) -> Float64:
    """img[n, :, i, j] as (N, C, H', W'), 0 outside the image."""
    n, _, h, w = img.shape
    inside = (i >= 0) & (i < h) & (j >= 0) & (j < w)
    batch = np.arange(n)[:, None, None]
    taken = img[batch, :, np.clip(i, 0, h - 1), np.clip(j, 0, w - 1)]  # (N, H', W', C)
    return np.moveaxis(np.where(inside[..., None], taken, 0.0), 3, 1)


def corners(c: Cells) -> list[tuple[NDArray[np.int64], NDArray[np.int64], Float64, Float64]]:
    """(row, column, weight along the rows' axis, weight along the columns' axis) of the four pixels of each point."""
    return [
        (c.i, c.j, 1 - c.v, 1 - c.u),
        (c.i, c.j + 1, 1 - c.v, c.u),
        (c.i + 1, c.j, c.v, 1 - c.u),
        (c.i + 1, c.j + 1, c.v, c.u),
    ]


def spatialtf_sampler(img: Any, grid: Any) -> Float64:
    """Images (N, C, H, W) at the points of a grid (N, H', W', 2): (N, C, H', W'), in float64. The formula opens this module.

    >>> spatialtf_sampler([[[[2.0, 4.0]]]], [[[[0.0, 0.0], [2.0, 0.0]]]])
    array([[[[3., 2.]]]])
    """
    img = np.asarray(img, np.float64)
    column, row = positions(grid, *img.shape[2:])
    c = cells(column, row, *img.shape[2:])
    y = np.zeros((*img.shape[:2], *column.shape[1:]))
    with np.errstate(invalid="ignore"):
        for i, j, a, b in corners(c):
            weight = (a * b)[:, None]
            y += np.where(weight != 0, weight * pixels(img, i, j), 0.0)
        return np.where((np.isnan(column) | np.isnan(row))[:, None], np.nan, y)


def slopes(img: Float64, i: Any, j: Any, u: Float64, v: Float64) -> tuple[Float64, Float64]:
    """The slopes of the interpolation along columns and along rows, in cells (i, j) at (u, v): (N, C, H', W') each."""
    v00, v01 = pixels(img, i, j), pixels(img, i, j + 1)
    v10, v11 = pixels(img, i + 1, j), pixels(img, i + 1, j + 1)
    u, v = u[:, None], v[:, None]
    return (1 - v) * (v01 - v00) + v * (v11 - v10), (1 - u) * (v10 - v00) + u * (v11 - v01)


def spatialtf_sampler_grad(img: Any, grid: Any, dy: Any) -> tuple[Float64, Float64]:
    """(dimg, dgrid): the gradients in image and grid from that in the sampler's output (N, C, H', W'), in float64.

    >>> dimg, dgrid = spatialtf_sampler_grad([[[[2.0, 4.0], [2.0, 4.0]]]], [[[[0.0, 0.0]]]], [[[[1.0]]]])
    >>> dimg[0, 0], dgrid[0, 0, 0]
    (array([[0.25, 0.25],
           [0.25, 0.25]]), array([1., 0.]))
    """
    img, dy = np.asarray(img, np.float64), np.asarray(dy, np.float64)
    h, w = img.shape[2:]
    column, row = positions(grid, h, w)
    c = cells(column, row, h, w)
    with np.errstate(invalid="ignore"):
        weights = [(i, j, (a * b)[:, None]) for i, j, a, b in corners(c)]
        dimg = scatter(img.shape, [(i, j, np.where(weight == 0, 0, weight * dy)) for i, j, weight in weights])
        right, down = slopes(img, c.i, c.j, c.u, c.v)
        dgrid = np.stack([(dy * right).sum(1) * (w - 1) / 2, (dy * down).sum(1) * (h - 1) / 2], axis=-1)
        unsound = np.where(np.isnan(column) | np.isnan(row), np.nan, 0.0)[..., None]
        return dimg, np.where(c.sound[..., None], dgrid, unsound)


def scatter(shape: tuple[int, ...], terms: list[tuple[Any, Any, Float64]]) -> Float64:
    """Add (N, C, H', W') terms to the pixels (i, j) of images of this shape; terms outside are dropped."""
    n, c, h, w = shape
    total = np.zeros((n, h * w, c))
    for i, j, term in terms:
        for image in range(n):
            inside = (i[image] >= 0) & (i[image] < h) & (j[image] >= 0) & (j[image] < w)
            at = (i[image] * w + j[image])[inside]
            np.add.at(total[image], at, np.moveaxis(np.broadcast_to(term, (n, c, *i.shape[1:]))[image], 0, 2)[inside])
    return np.ascontiguousarray(np.moveaxis(total.reshape(n, h, w, c), 3, 1))


def spatialtf(img: Any, theta: Any, scale_width: float = 1, scale_height: float = 1) -> Float64:
    """Images (N, C, H, W) through affine maps (N, 2, 3): grid, then sampler, (N, C, ceil(H*scale_height), ceil(W*scale_width)).

    >>> spatialtf([[[[1.0, 2.0], [3.0, 4.0]]]], [[[-1.0, 0, 0], [0, -1, 0]]])[0, 0]
    array([[4., 3.],
           [2., 1.]])
    """
    n, c, h, w = np.shape(img)
    size = (math.ceil(h * scale_height), math.ceil(w * scale_width))
    if min(size) < 1:
        raise ValueError(f"scale_width, scale_height: expected positive numbers, got {scale_width!r}, {scale_height!r}")
    return spatialtf_sampler(img, spatialtf_grid(theta, (n, c, *size)))
