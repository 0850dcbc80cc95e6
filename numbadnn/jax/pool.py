"""Pooling in JAX: windows over any axes, as ``jax.lax.reduce_window`` has them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from numbadnn.config import Options
from numbadnn.jax.call import Axes, Work, compute
from numbadnn.jax.mapped import arrays_of, by_axis, mapped, options_in_force, twice


@dataclass(frozen=True)
class Pool:
    """Windows over all axes but two; ``axes`` are N, C and those; ``pad`` is the same on both sides."""

    axes: Axes
    window: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    mode: str
    backend: str | None
    options: Options

    def work(self, function: str, arrays: int) -> Work:
        arguments = {"ws": self.window, "stride": self.stride, "mode": self.mode, "pad": self.pad}
        return Work(
            function, (self.axes,) * arrays, (self.axes,), tuple(sorted(arguments.items())), self.backend, self.options
        )

    @property
    def images(self) -> int:
        """The caller's axis of images."""
        assert self.axes is not None and self.axes[0] is not None
        return self.axes[0]

    def by_lax(self, x: Any) -> Any:
        """The maximum of each window as JAX has it, for gradients of gradients."""
        full = {"window": [1] * x.ndim, "stride": [1] * x.ndim, "pad": [0] * x.ndim}
        assert self.axes is not None
        for axis, window, stride, pad in zip(self.axes[2:], self.window, self.stride, self.pad, strict=True):
            if axis is not None:
                full["window"][axis], full["stride"][axis], full["pad"][axis] = window, stride, pad
        pads = [(p, p) for p in full["pad"]]
        return lax.reduce_window(x, -jnp.inf, lax.max, full["window"], full["stride"], pads)


_fold = by_axis(lambda pool: pool.images)
_forward = mapped(lambda pool, x: compute(pool.work("pool", 1), x), _fold)
_gradient = mapped(lambda pool, x, y, g: compute(pool.work("pool_grad", 3), x, y, g), _fold)
#: of maxima: the places where they are are JAX's, for gradients of it
_gradient_of_max = twice(_gradient, lambda pool, x, y, g: jax.vjp(pool.by_lax, x)[1](g))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def apply(pool: Pool, x: Any) -> Any:
    """The pooled image."""
    return _forward(pool, x)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gradient_of_sum(pool: Pool, x: Any, y: Any, g: Any) -> Any:
    """Linear in g, and does not depend on the values of the others."""
    return _gradient(pool, x, y, g)


_gradient_of_sum.defvjp(
    lambda pool, x, y, g: (_gradient(pool, x, y, g), None), lambda pool, _, h: (None, None, apply(pool, h[0]))
)


def _saved(pool: Pool, x: Any) -> Any:
    y = apply(pool, x)
    return y, (x, y)


def _back(pool: Pool, saved: Any, g: Any) -> Any:
    return (_gradient_of_max if pool.mode == "max" else _gradient_of_sum)(pool, *saved, g)


apply.defvjp(_saved, _back)
_jitted = jax.jit(apply, static_argnums=0)


def _kept_axes(window: tuple[int, ...], stride: tuple[int, ...], pads: Any) -> tuple[int, int]:
    """Which axes are N and C: two that the windows do not reach along, the last one rather than one between."""
    plain = [i for i, (w, s, p) in enumerate(zip(window, stride, pads, strict=True)) if (w, s, p) == (1, 1, (0, 0))]
    if len(plain) < 2:
        raise ValueError(f"window_dimensions: expected 1 for two axes (images and channels), got {window}")
    return plain[0], plain[-1] if plain[-1] == len(window) - 1 else plain[1]


def _pool(
    operand: Any, window_dimensions: Sequence[int], window_strides: Sequence[int] | None, padding: Any, mode: str, fill: float,
    backend: str | None, determinism: str | None,
) -> jax.Array:  # fmt: skip
    (x,) = arrays_of(operand=operand)
    dtype = x.dtype
    window = tuple(map(int, window_dimensions))
    stride = (1,) * len(window) if window_strides is None else tuple(map(int, window_strides))
    if not 3 <= x.ndim <= 5 or not len(window) == len(stride) == x.ndim:
        raise ValueError(
            f"window_dimensions, window_strides: expected a number for each of 3 to 5 axes of operand {x.shape}, got "
            f"{window} and {stride}"
        )
    text = isinstance(padding, str)
    pads = tuple(
        (int(a), int(b)) for a, b in (lax.padtype_to_pads(x.shape, window, stride, padding) if text else padding)
    )
    kept = _kept_axes(window, stride, pads)
    spatial = [axis for axis in range(x.ndim) if axis not in kept]
    uneven = [(0, 0) if a == b and a < w else (a, b) for (a, b), w in zip(pads, window, strict=True)]
    factor = None
    if any(map(any, uneven)):
        if mode == "average_exc_pad":
            # of 16 bits a sum may be infinite where the average is not, and would be rounded once more
            x = x.astype(jnp.float32) if x.dtype.itemsize == 2 else x
            mode, factor = "sum", _one_over_counts(x, window, stride, pads)
        x = jnp.pad(x, uneven, constant_values=fill)
    even = tuple(0 if any(uneven[axis]) else pads[axis][0] for axis in spatial)
    axes: Axes = (*kept, *spatial)
    windows, strides = tuple(window[a] for a in spatial), tuple(stride[a] for a in spatial)
    if x.ndim == 3:
        axes, windows, strides, even = (*kept, None, *spatial), (1, *windows), (1, *strides), (0, *even)
    found = _jitted(Pool(axes, windows, strides, even, mode, *options_in_force(backend, determinism)), x)
    return found if factor is None else (found * factor).astype(dtype)


def _one_over_counts(x: Any, window: tuple[int, ...], stride: tuple[int, ...], pads: Any) -> Any:
    """1 / the elements of the operand in each window."""
    counts = np.ones((1,) * x.ndim)
    for axis, (size, w, s, (low, high)) in enumerate(zip(x.shape, window, stride, pads, strict=True)):
        first = np.arange(0, size + low + high - w + 1, s) - low
        along = np.minimum(first + w, size) - np.maximum(first, 0)
        counts = counts * along.reshape([-1 if a == axis else 1 for a in range(x.ndim)])
    return jnp.asarray(1 / np.maximum(counts, 1), x.dtype)


def max_pool(
    operand: Any,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> jax.Array:
    """The maximum of each window: ``jax.lax.reduce_window`` with ``lax.max``, arguments as there.

    Two axes have windows of 1: images and channels, wherever they are. The gradient goes to the first maximum of a window.

    >>> import jax.numpy as jnp, numbadnn.jax
    >>> numbadnn.jax.max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1), (1, 2, 2, 1), (1, 2, 2, 1)).ravel().tolist()
    [5.0, 7.0, 13.0, 15.0]
    """
    return _pool(operand, window_dimensions, window_strides, padding, "max", -jnp.inf, backend, determinism)


def sum_pool(
    operand: Any,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> jax.Array:
    """The sum of each window: ``jax.lax.reduce_window`` with ``lax.add``.

    >>> import jax.numpy as jnp, numbadnn.jax
    >>> numbadnn.jax.sum_pool(jnp.ones((1, 1, 4)), (1, 1, 3), padding="SAME").tolist()
    [[[2.0, 3.0, 3.0, 2.0]]]
    """
    return _pool(operand, window_dimensions, window_strides, padding, "sum", 0.0, backend, determinism)


def avg_pool(
    operand: Any,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    count_include_pad: bool = True,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> jax.Array:
    """The mean of each window, over its whole size or, without ``count_include_pad``, over what lies in the operand.

    >>> import jax.numpy as jnp, numbadnn.jax
    >>> numbadnn.jax.avg_pool(jnp.ones((1, 1, 4)), (1, 1, 3), None, "SAME", False).tolist()
    [[[1.0, 1.0, 1.0, 1.0]]]
    """
    given = (operand, window_dimensions, window_strides, padding)
    mode = "average_inc_pad" if count_include_pad else "average_exc_pad"
    return _pool(*given, mode, 0.0, backend, determinism)
