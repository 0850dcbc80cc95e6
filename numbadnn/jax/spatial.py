"""Sampling in JAX: images at the points of a grid, grids of affine maps, bilinear upsampling."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from numbadnn.config import Options
from numbadnn.jax.call import Axes, Work, compute
from numbadnn.jax.mapped import adjoint, arrays_of, by_axis, fold_in, mapped, options_in_force, twice, unfold

#: numbadnn's axes of images, by the names of layouts
LAYOUTS: dict[str, Axes] = {"NCHW": None, "NHWC": (0, 3, 1, 2)}


@dataclass(frozen=True)
class Spatial:
    """``arguments``: the ratios of upsampling, or the rows and columns of a grid."""

    axes: Axes
    arguments: tuple[Any, ...]
    backend: str | None
    options: Options

    def work(self, function: str, axes: Sequence[Axes], outs: Sequence[Axes], **arguments: Any) -> Work:
        given = tuple(sorted(arguments.items()))
        return Work(function, tuple(axes), tuple(outs), given, self.backend, self.options)


_all_images = by_axis(lambda _: 0)


def _more_points(sample: Any, static: Spatial, size: int, batched: tuple[bool, ...], arrays: Any) -> Any:
    """Several grids of one image are one grid of more rows."""
    if batched != (False, True):
        return _all_images(sample, static, size, batched, arrays)
    image, grid = arrays
    rows = 2 if static.axes is None else 1
    return (unfold(sample(static, image, fold_in(grid, 1))[0], rows, size),)


_sample = mapped(
    lambda s, img, grid: compute(s.work("spatialtf_sampler", (s.axes, None), (s.axes,)), img, grid), _more_points
)
_sample_grad = mapped(
    lambda s, img, grid, dy: compute(
        s.work("spatialtf_sampler_grad", (s.axes, None, s.axes), (s.axes, None)), img, grid, dy
    ),
    _all_images,
)


def _by_jax(static: Spatial, image: Any, grid: Any) -> Any:
    """The same for JAX to derive: gradients of gradients."""
    x = image if static.axes is None else jnp.transpose(image, (0, 3, 1, 2))
    count, channels, height, width = x.shape
    at = [(grid[..., 1] + 1) / 2 * (height - 1), (grid[..., 0] + 1) / 2 * (width - 1)]
    low = [jnp.floor(jax.lax.stop_gradient(a)) for a in at]
    found = 0.0
    for down in (0, 1):
        for right in (0, 1):
            row, column = low[0] + down, low[1] + right
            weight = (1 - jnp.abs(at[0] - row) if down else row + 1 - at[0]) * (
                1 - jnp.abs(at[1] - column) if right else column + 1 - at[1]
            )
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            i, j = (jnp.clip(a, 0, n - 1).astype(int) for a, n in ((row, height), (column, width)))
            pixels = x[jnp.arange(count)[:, None, None], :, i, j]  # (N, rows, columns, C)
            found = found + jnp.where(inside, weight, 0)[..., None] * pixels
    y = jnp.moveaxis(found, -1, 1).astype(image.dtype)
    return y if static.axes is None else jnp.transpose(y, (0, 2, 3, 1))


_sample_grad_of_all = twice(
    _sample_grad, lambda s, img, grid, dy: jax.vjp(functools.partial(_by_jax, s), img, grid)[1](dy)
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def sample(static: Spatial, image: Any, grid: Any) -> Any:
    return _sample(static, image, grid)[0]


sample.defvjp(
    lambda static, image, grid: (sample(static, image, grid), (image, grid)),
    lambda static, saved, dy: _sample_grad_of_all(static, *saved, dy),
)


def _make_grid(static: Spatial, theta: Any) -> Any:
    dims = (theta.shape[0], 1, *static.arguments)
    return compute(static.work("spatialtf_grid", (None,), (None,), out_dims=dims), theta)


_grid = mapped(_make_grid, _all_images)
_grid_grad = mapped(lambda s, dgrid: compute(s.work("spatialtf_grid_grad", (None,), (None,)), dgrid), _all_images)
grid_of, _ = adjoint(lambda s, theta: _grid(s, theta)[0], lambda s, dgrid: _grid_grad(s, dgrid)[0])


def _enlarge(static: Spatial, x: Any) -> Any:
    ratio = static.arguments[:2]
    return compute(static.work("bilinear_upsampling", (static.axes,), (static.axes,), frac_ratio=ratio), x)


def _enlarge_grad(static: Spatial, dy: Any) -> Any:
    *ratio, rows, columns = static.arguments
    n, c = dy.shape[0], dy.shape[1 if static.axes is None else -1]
    work = static.work(
        "bilinear_upsampling_grad",
        (static.axes,),
        (static.axes,),
        frac_ratio=tuple(ratio),
        input_shape=(n, c, rows, columns),
    )
    return compute(work, dy)


_up = mapped(_enlarge, _all_images)
_up_grad = mapped(_enlarge_grad, _all_images)
upsampled, _ = adjoint(lambda s, x: _up(s, x)[0], lambda s, dy: _up_grad(s, dy)[0])
_jitted_sample, _jitted_grid, _jitted_up = (jax.jit(f, static_argnums=0) for f in (sample, grid_of, upsampled))


def _layout(layout: str) -> Axes:
    if layout not in LAYOUTS:
        raise ValueError(f"layout: expected one of {', '.join(LAYOUTS)}, got {layout!r}")
    return LAYOUTS[layout]


def grid_sample(
    image: Any, grid: Any, layout: str = "NCHW", *, backend: str | None = None, determinism: str | None = None
) -> jax.Array:
    """Sample images at the points of a grid (N, H', W', 2), bilinearly; pixels outside count as 0, corners lie at -1 and 1.

    >>> import jax.numpy as jnp, numbadnn.jax
    >>> numbadnn.jax.grid_sample(jnp.array([[[[2.0, 4.0]]]]), jnp.zeros((1, 1, 1, 2))).item()
    3.0
    """
    x, points = arrays_of(image=image, grid=grid)
    how = options_in_force(backend, determinism)
    return _jitted_sample(Spatial(_layout(layout), (), *how), x, points)


def affine_grid(
    theta: Any, size: Sequence[int], *, backend: str | None = None, determinism: str | None = None
) -> jax.Array:
    """The grid (N, rows, columns, 2) of affine maps theta (N, 2, 3); ``size`` is (rows, columns).

    >>> import jax.numpy as jnp, numbadnn.jax
    >>> numbadnn.jax.affine_grid(jnp.array([[[1.0, 0, 0], [0, 1, 0]]]), (1, 3))[0, 0].tolist()
    [[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
    """
    (maps,) = arrays_of(theta=theta)
    rows, columns = map(int, size)
    return _jitted_grid(Spatial(None, (rows, columns), *options_in_force(backend, determinism)), maps)


def upsample_bilinear(
    image: Any,
    ratio: Any,
    layout: str = "NCHW",
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> jax.Array:
    """Enlarge images by an integer ``ratio``, a fraction (p, q), or ((p, q) of rows, (p, q) of columns), bilinearly.

    The coordinates are those of ``numbadnn.bilinear_upsampling``.

    >>> import jax.numpy as jnp, numbadnn.jax
    >>> numbadnn.jax.upsample_bilinear(jnp.array([[[[1.0, 2.0]]]]), 2)[0, 0, 0].tolist()
    [1.0, 1.5, 2.0, 2.0]
    """
    (x,) = arrays_of(image=image)
    pair = (ratio, 1) if isinstance(ratio, int) else tuple(ratio)
    pairs = tuple(map(tuple, pair)) if isinstance(pair[0], Sequence) else (pair, pair)
    axes = _layout(layout)
    if x.ndim != 4:
        raise ValueError(f"image: expected four axes, {layout}, got shape {x.shape}")
    rows, columns = x.shape[2:] if axes is None else x.shape[1:3]
    static = Spatial(axes, (*pairs, rows, columns), *options_in_force(backend, determinism))
    return _jitted_up(static, x)
