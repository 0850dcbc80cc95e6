"""Convolutions with filters of their own for each position of the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from numbadnn.jax.conv import Geometry, jitted
from numbadnn.jax.lax_arguments import Axes, axes, each, padding_pairs, rank, seen_shape
from numbadnn.jax.mapped import arrays_of, options_in_force, same_dtype


def conv_general_dilated_local(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Any,
    filter_shape: Sequence[int],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> jax.Array:
    """``jax.lax.conv_general_dilated_local``: filters of its own for each place of the result, in one or two axes.

    ``rhs`` has the result's places where other filters have rows and columns, and C * prod(``filter_shape``) input channels, the
    channels slowest. An ``lhs_dilation`` other than ones is refused. ``unshared_conv`` takes filters as they are read fastest.

    >>> import jax.numpy as jnp, numbadnn.jax
    >>> x, w = jnp.ones((1, 2, 5, 5)), jnp.ones((4, 2 * 3 * 3, 3, 3))
    >>> numbadnn.jax.conv_general_dilated_local(x, w, (1, 1), "VALID", (3, 3)).shape
    (1, 4, 3, 3)
    """
    lhs, rhs = arrays_of(lhs=lhs, rhs=rhs)
    same_dtype(lhs=lhs, rhs=rhs)
    spatial = rank(lhs, rhs)
    if lhs_dilation is not None and set(map(int, lhs_dilation)) != {1}:
        raise ValueError(f"lhs_dilation: expected ones, got {lhs_dilation!r}")
    if spatial == 3:
        raise ValueError(f"lhs: expected one or two spatial axes, got shape {lhs.shape}")
    window = tuple(map(int, filter_shape))
    numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    out, inner, *places = numbers.rhs_spec
    channels = lhs.shape[numbers.lhs_spec[1]]
    if rhs.shape[inner] != channels * math.prod(window):
        raise ValueError(
            f"rhs: expected {channels} * {math.prod(window)} input channels (channels times window), got {rhs.shape[inner]}"
        )
    # the one axis of input channels as C, R, S: a view
    apart = rhs.reshape(*rhs.shape[:inner], channels, *window, *rhs.shape[inner + 1 :])
    moved = lambda axis: axis if axis < inner else axis + len(window)  # noqa: E731
    extra: tuple[int | None, ...] = (None,) if spatial == 1 else ()
    inside = (inner, *extra, *range(inner + 1, inner + 1 + len(window)))
    w_axes = (moved(out), *extra, *map(moved, places), *inside)
    return _unshared(
        lhs,
        apart,
        numbers.lhs_spec,
        w_axes,
        numbers.out_spec,
        window_strides,
        padding,
        rhs_dilation,
        backend,
        determinism,
    )


def unshared_conv(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Any,
    rhs_dilation: Sequence[int] | None = None,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> jax.Array:
    """Filters of its own for each place of the result: images (N, C, H, W), filters (K, P, Q, C, R, S), result (N, K, P, Q).

    Or one axis less: (N, C, T) and (K, P, C, R).

    >>> import jax.numpy as jnp, numbadnn.jax
    >>> numbadnn.jax.unshared_conv(jnp.ones((1, 2, 5, 5)), jnp.ones((4, 3, 3, 2, 3, 3)), (1, 1), "VALID").shape
    (1, 4, 3, 3)
    """
    lhs, rhs = arrays_of(lhs=lhs, rhs=rhs)
    same_dtype(lhs=lhs, rhs=rhs)
    if (lhs.ndim, rhs.ndim) not in ((3, 4), (4, 6)):
        raise ValueError(
            f"rhs: expected (K, P, Q, C, R, S) for images (N, C, H, W), or (K, P, C, R) for (N, C, T), got {rhs.shape} "
            f"for {lhs.shape}"
        )
    w_axes = (0, 1, 2, 3, 4, 5) if rhs.ndim == 6 else (0, None, 1, 2, None, 3)
    own = tuple(range(lhs.ndim))
    return _unshared(lhs, rhs, own, w_axes, own, window_strides, padding, rhs_dilation, backend, determinism)


def _unshared(
    lhs: Any, rhs: Any, x_spec: Any, w_axes: Axes, y_spec: Any, strides: Any, padding: Any, rhs_dilation: Any, backend: Any,
    level: Any,
) -> jax.Array:  # fmt: skip
    spatial = lhs.ndim - 2
    x_axes, y_axes = axes(x_spec), axes(y_spec)
    x, w = seen_shape(lhs.shape, x_axes), seen_shape(rhs.shape, w_axes)
    stride, dilation = each("window_strides", strides, spatial), each("rhs_dilation", rhs_dilation, spatial)
    pairs = padding_pairs(padding, x[2:], w[4:], stride, dilation)
    how = options_in_force(backend, level)
    geometry = Geometry((x_axes, w_axes, y_axes), (x, w), pairs, stride, dilation, 1, True, False, *how)
    return jitted(geometry, "y", lhs, rhs)
