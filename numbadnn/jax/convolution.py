"""The convolutions as ``jax.lax`` has them: padding in pairs, strides, dilations, groups, and dimension numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from numbadnn.jax.conv import Geometry, jitted
from numbadnn.jax.lax_arguments import Axes, axes, each, padding_pairs, rank, seen_shape
from numbadnn.jax.mapped import arrays_of, options_in_force, same_dtype


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> jax.Array:
    """``jax.lax.conv_general_dilated``, in one, two or three axes; arguments as there.

    Every order of axes that ``dimension_numbers`` can name is read and written as it lies. ``lhs_dilation`` makes a transposed
    convolution, with strides of 1. Both arrays have one dtype: float16, bfloat16, float32 or float64.

    >>> import jax.numpy as jnp, numbadnn.jax
    >>> x, w = jnp.ones((1, 5, 5, 3)), jnp.ones((3, 3, 3, 8))
    >>> numbadnn.jax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")).shape
    (1, 5, 5, 8)
    """
    lhs, rhs = arrays_of(lhs=lhs, rhs=rhs)
    same_dtype(lhs=lhs, rhs=rhs)
    spatial = rank(lhs, rhs)
    numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    x_axes, w_axes, y_axes = axes(numbers.lhs_spec), axes(numbers.rhs_spec), axes(numbers.out_spec)
    x, w = seen_shape(lhs.shape, x_axes), seen_shape(rhs.shape, w_axes)
    stride, apart = each("window_strides", window_strides, spatial), each("lhs_dilation", lhs_dilation, spatial)
    dilation = each("rhs_dilation", rhs_dilation, spatial)
    spread = [(n - 1) * d + 1 for n, d in zip(x[2:], apart, strict=True)]
    pairs = padding_pairs(padding, spread, w[2:], stride, dilation)
    if set(apart) == {1}:
        how = options_in_force(backend, determinism)
        geometry = Geometry(
            (x_axes, w_axes, y_axes), (x, w), pairs, stride, dilation, feature_group_count, False, False, *how
        )
        return jitted(geometry, "y", lhs, rhs)
    if set(stride) != {1}:
        raise ValueError(
            f"window_strides: expected ones where there is an lhs_dilation, got {window_strides!r} with {lhs_dilation!r}"
        )
    if feature_group_count > 1:
        rhs, w_axes = _groups_turned(rhs, w_axes, feature_group_count), (0, 1, *range(2, len(w_axes)))
        filters = tuple(rhs.shape)
    else:
        w_axes = (w_axes[1], w_axes[0], *w_axes[2:])
        filters = (w[1], w[0], *w[2:])
    reach = [(r - 1) * d for r, d in zip(w[2:], dilation, strict=True)]
    far = [
        (max(low - r, 0), max(high - r, 0)) for r, (low, high) in zip(reach, pairs, strict=True)
    ]  # no window reaches there
    cut = tuple((max(r - low, 0), max(r - high, 0)) for r, (low, high) in zip(reach, pairs, strict=True))
    large = tuple(n + r - low - high for n, (low, high), r in zip(spread, cut, reach, strict=True))
    how = options_in_force(backend, determinism)
    geometry = Geometry(
        (y_axes, w_axes, x_axes),
        ((x[0], w[0], *large), filters),
        cut,
        apart,
        dilation,
        feature_group_count,
        False,
        True,
        *how,
    )
    result = jitted(geometry, "x", lhs, rhs)
    if not any(map(any, far)):
        return result
    margins = [(0, 0)] * lhs.ndim
    for axis, pair in zip(y_axes[2:], far, strict=True):
        if axis is not None:
            margins[axis] = pair
    return jnp.pad(result, margins)


def _groups_turned(rhs: Any, axes: Axes, groups: int) -> Any:
    """Filters (O, I/groups, ...) as (I, O/groups, ...): a copy, as no view of them is that."""
    given = (
        jnp.expand_dims(rhs.transpose([a for a in axes if a is not None]), 2) if None in axes else rhs.transpose(axes)
    )
    outs, ins, *window = given.shape
    turned = given.reshape(groups, outs // groups, ins, *window).swapaxes(1, 2)
    return turned.reshape(groups * ins, outs // groups, *window)


def conv(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Any,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> jax.Array:
    """``jax.lax.conv``: images (N, C, ...), filters (K, C, ...).

    >>> import jax.numpy as jnp, numbadnn.jax
    >>> numbadnn.jax.conv(jnp.ones((1, 1, 3, 3)), jnp.ones((1, 1, 2, 2)), (1, 1), "VALID")[0, 0].tolist()
    [[4.0, 4.0], [4.0, 4.0]]
    """
    return conv_general_dilated(lhs, rhs, window_strides, padding, backend=backend, determinism=determinism)


def conv_transpose(
    lhs: Any,
    rhs: Any,
    strides: Sequence[int],
    padding: Any,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> jax.Array:
    """``jax.lax.conv_transpose``; arguments as there, channels last unless ``dimension_numbers`` say otherwise.

    >>> import jax.numpy as jnp, numbadnn.jax
    >>> numbadnn.jax.conv_transpose(jnp.ones((1, 4, 4, 2)), jnp.ones((3, 3, 2, 5)), (2, 2), "SAME").shape
    (1, 8, 8, 5)
    """
    lhs, rhs = arrays_of(lhs=lhs, rhs=rhs)
    spatial = rank(lhs, rhs)
    if dimension_numbers is None:
        letters = "DHW"[3 - spatial :]
        dimension_numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    stride = tuple(map(int, strides))
    dilation = (1,) * spatial if rhs_dilation is None else tuple(map(int, rhs_dilation))
    if isinstance(padding, str):
        seen = [(rhs.shape[a] - 1) * d + 1 for a, d in zip(numbers.rhs_spec[2:], dilation, strict=True)]
        padding = [_transposed_padding(k, s, padding) for k, s in zip(seen, stride, strict=True)]
    if transpose_kernel:
        rhs = jnp.flip(rhs, numbers.rhs_spec[2:]).swapaxes(numbers.rhs_spec[0], numbers.rhs_spec[1])
    return conv_general_dilated(
        lhs, rhs, (1,) * spatial, padding, stride, dilation, numbers, backend=backend, determinism=determinism
    )


def _transposed_padding(window: int, stride: int, padding: str) -> tuple[int, int]:
    """What makes of n pixels n * stride ("SAME"), or all that the windows reach ("VALID")."""
    if padding == "SAME":
        total = window + stride - 2
        low = window - 1 if stride > window - 1 else -(-total // 2)
    elif padding == "VALID":
        total, low = window + stride - 2 + max(window - stride, 0), window - 1
    else:
        raise ValueError(f"padding: expected SAME, VALID or pairs, got {padding!r}")
    return low, total - low


def causal_conv1d(
    lhs: Any,
    rhs: Any,
    window_stride: int = 1,
    rhs_dilation: int = 1,
    feature_group_count: int = 1,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> jax.Array:
    """A convolution in time that sees nothing of the future: (N, C, T) with (K, C / groups, S) gives (N, K, ceil(T / stride)).

    The last entry of a filter meets the present.

    >>> import jax.numpy as jnp, numbadnn.jax
    >>> x, w = jnp.arange(1.0, 6).reshape(1, 1, 5), jnp.array([[[100.0, 10, 1]]])
    >>> numbadnn.jax.causal_conv1d(x, w).ravel().tolist()
    [1.0, 12.0, 123.0, 234.0, 345.0]
    """
    before = (jnp.shape(rhs)[-1] - 1) * rhs_dilation
    return conv_general_dilated(
        lhs, rhs, (window_stride,), [(before, 0)], None, (rhs_dilation,), None, feature_group_count,
        backend=backend, determinism=determinism,
    )  # fmt: skip
