"""How far a right result of the spatial transformer may lie from ``reference/spatial.py``.

``unit`` u is the accumulator's unit roundoff. A position is formed in the accumulator: ``(x + 1) * ((W - 1)/2)``, in any order
of operations, is off by at most d = 3u * (|x| + 1) * (W - 1)/2, and taking floor(position) from it by u more. That moves the
sample by d times the slope there, and where floor(position - d) differs from floor(position + d) the point may be taken to
lie in either cell: a sample and an image's gradient change little by that, the gradient in the grid jumps. So every bound
looks at each cell the point may be taken to lie in (``_candidates``), and the rest is gamma_k of the sums of magnitudes, where
``depth(k)`` takes the place of a long sum's k: the roundings that one of k terms passes through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numbadnn.reference.spatial import Cells, cells, corners, ends, pixels, positions, scatter, slopes

Float64 = NDArray[np.float64]
Depth = Callable[[float], float]


def _gamma(k: Any, unit: float) -> Any:
    return k * unit / (1 - k * unit)


def spatialtf_grid_bound(theta: Any, out_dims: Any, unit: float, depth: Depth = float) -> Float64:
    """gamma_4 of the magnitudes; the coordinates of the output, formed as (2k - (m-1))/(m-1) or 2k/(m-1) - 1, are off by 4u."""
    t = np.abs(np.asarray(theta, np.float64))[:, None, None]
    x, y = (np.abs(ends(n)) for n in (out_dims[3], out_dims[2]))
    x, y = x[None, None, :, None], y[None, :, None, None]
    size = t[..., 0] * x + t[..., 1] * y + t[..., 2]
    return _gamma(4, unit) * size + 4 * unit * (t[..., 0] + t[..., 1] + 0 * size)


def spatialtf_grid_grad_bound(dgrid: Any, unit: float, depth: Depth = float) -> Float64:
    """gamma_{P+3} of the magnitudes of P points, and the error of the coordinates as in ``spatialtf_grid_bound``."""
    g = np.abs(np.asarray(dgrid, np.float64))
    x, y = np.abs(ends(g.shape[2]))[None, None, :, None], np.abs(ends(g.shape[1]))[None, :, None, None]
    total = g.sum((1, 2))
    sizes = np.stack([(g * x).sum((1, 2)), (g * y).sum((1, 2)), total], axis=2)
    coordinates = 4 * unit * np.stack([total, total, 0 * total], axis=2)
    return _gamma(depth(g.shape[1] * g.shape[2]) + 3, unit) * (sizes + coordinates) + coordinates


class _Places:
    """Positions of a grid's points, their cells, and how far off each may be."""

    def __init__(self, grid: Any, height: int, width: int, unit: float) -> None:
        g = np.abs(np.asarray(grid, np.float64))
        self.height, self.width = height, width
        self.column, self.row = positions(grid, height, width)
        self.cells = cells(self.column, self.row, height, width)
        # a NaN has no place; a point at infinity stays there
        self.du = np.nan_to_num(3 * unit * (g[..., 0] + 1) * (width - 1) / 2 + unit, posinf=0.0)
        self.dv = np.nan_to_num(3 * unit * (g[..., 1] + 1) * (height - 1) / 2 + unit, posinf=0.0)

    def candidates(self) -> Iterator[tuple[Cells, NDArray[np.bool_]]]:
        """Each cell a point may be taken to lie in, and where that is a cell not given before."""
        j = [_floor(self.column + s * self.du, self.width) for s in (-1, 1)]
        i = [_floor(self.row + s * self.dv, self.height) for s in (-1, 1)]
        for a in (0, 1):
            for b in (0, 1):
                fresh = ((i[1] != i[0]) if a else np.array(True)) & ((j[1] != j[0]) if b else np.array(True))
                u, v = np.clip(self.column - j[b], 0, 1), np.clip(self.row - i[a], 0, 1)
                yield Cells(j[b], i[a], np.nan_to_num(u), np.nan_to_num(v), self.cells.sound), fresh


def _floor(position: Float64, size: int) -> NDArray[np.int64]:
    return np.floor(np.clip(np.nan_to_num(position, nan=-2.0), -2, size)).astype(np.int64)


def spatialtf_sampler_bound(img: Any, grid: Any, unit: float, depth: Depth = float) -> Float64:
    """Position error times the steepest slope near by; gamma_10 of the sum of weighted magnitudes (7 roundings at most)."""
    img = np.asarray(img, np.float64)
    places = _Places(grid, img.shape[2], img.shape[3], unit)
    moved: Any = 0.0
    for c, _ in places.candidates():
        v00, v01 = pixels(img, c.i, c.j), pixels(img, c.i, c.j + 1)
        v10, v11 = pixels(img, c.i + 1, c.j), pixels(img, c.i + 1, c.j + 1)
        right = np.maximum(np.abs(v01 - v00), np.abs(v11 - v10)) * places.du[:, None]
        down = np.maximum(np.abs(v10 - v00), np.abs(v11 - v01)) * places.dv[:, None]
        moved = np.maximum(moved, right + down)
    size = sum((a * b)[:, None] * pixels(np.abs(img), i, j) for i, j, a, b in corners(places.cells))
    return moved + _gamma(10, unit) * (size + moved)


def spatialtf_sampler_grad_bound(
    img: Any, grid: Any, dy: Any, unit: float, depth: Depth = float
) -> tuple[Float64, Float64]:
    """dimg: a weight moves by at most du + dv; gamma_{k+6} for the k points that may touch a pixel. dgrid: see below."""
    img, dy = np.asarray(img, np.float64), np.abs(np.asarray(dy, np.float64))
    places = _Places(grid, img.shape[2], img.shape[3], unit)
    shift = np.where(places.cells.sound | (places.du + places.dv < 1), places.du + places.dv, 0.0)
    moved, touched = [], []
    for c, fresh in places.candidates():
        for i, j, _, _ in corners(c):
            moved.append((i, j, np.where(fresh, shift, 0.0)[:, None] * dy))
            touched.append((i, j, np.broadcast_to(fresh, shift.shape)[:, None].astype(np.float64)))
    near = scatter(img.shape, moved)
    counts = scatter((img.shape[0], 1, *img.shape[2:]), touched)
    size = scatter(img.shape, [(i, j, (a * b)[:, None] * dy) for i, j, a, b in corners(places.cells)])
    lengths, at = np.unique(counts, return_inverse=True)
    roundings = np.array([depth(k) for k in lengths])[at].reshape(counts.shape)
    return near + _gamma(roundings + 6, unit) * (size + near), _grid_error(img, dy, places, unit, depth)


def _grid_error(img: Float64, dy: Float64, places: _Places, unit: float, depth: Depth) -> Float64:
    """Per channel: how far the slope in any candidate cell is from the exact one, and how it changes across that cell.

    Then |dy| times that over the channels, and gamma_{C+8} of the magnitudes, times half the image's size less one.
    """
    c = places.cells
    right, down = slopes(img, c.i, c.j, c.u, c.v)
    off_right, off_down = np.zeros_like(right), np.zeros_like(down)
    for k, _ in places.candidates():
        r, d = slopes(img, k.i, k.j, k.u, k.v)
        twist = pixels(img, k.i, k.j) - pixels(img, k.i, k.j + 1)
        twist = np.abs(twist - pixels(img, k.i + 1, k.j) + pixels(img, k.i + 1, k.j + 1))
        off_right = np.maximum(off_right, np.abs(r - right) + twist * places.dv[:, None])
        off_down = np.maximum(off_down, np.abs(d - down) + twist * places.du[:, None])
    magnitude = np.abs(img)
    around = [pixels(magnitude, i, j) for i, j, _, _ in corners(c)]
    u, v = c.u[:, None], c.v[:, None]
    rows = (1 - v) * (around[0] + around[1]) + v * (around[2] + around[3])
    columns = (1 - u) * (around[0] + around[2]) + u * (around[1] + around[3])
    rounding = _gamma(depth(img.shape[1]) + 8, unit)
    scale = [(places.width - 1) / 2, (places.height - 1) / 2]
    parts = [(dy * (off + rounding * (size + off))).sum(1) * s
             for off, size, s in zip((off_right, off_down), (rows, columns), scale, strict=True)]  # fmt: skip
    return np.stack(parts, axis=-1)
