"""Softmax in JAX, along any axes that follow each other."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from numbadnn.config import Options
from numbadnn.jax.call import Work, compute
from numbadnn.jax.mapped import arrays_of, by_axis, mapped, options_in_force, twice


@dataclass(frozen=True)
class Softmax:
    """Of arrays (before, n, after), along n."""

    log: bool
    backend: str | None
    options: Options

    def work(self, function: str, arrays: int) -> Work:
        arguments = (("algo", "log" if self.log else "accurate"), ("mode", "channel"))
        return Work(function, (None,) * arrays, (None,), arguments, self.backend, self.options)

    def gradient(self, dy: Any, y: Any) -> tuple[Any]:
        """From the result y, as JAX can derive it."""
        if self.log:
            return (dy - jnp.exp(y) * dy.sum(1, keepdims=True),)
        return (y * (dy - (dy * y).sum(1, keepdims=True)),)


_fold = by_axis(lambda _: 0)
_forward = mapped(lambda s, x: compute(s.work("softmax", 1), x), _fold)
_gradient = mapped(lambda s, dy, y: compute(s.work("softmax_grad", 2), dy, y), _fold)
_gradient_of_all = twice(_gradient, lambda s, dy, y: s.gradient(dy, y))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def apply(softmax: Softmax, x: Any) -> Any:
    return _forward(softmax, x)[0]


def _saved(softmax: Softmax, x: Any) -> Any:
    y = apply(softmax, x)
    return y, y


apply.defvjp(_saved, lambda softmax, y, dy: _gradient_of_all(softmax, dy, y))
_jitted = jax.jit(apply, static_argnums=0)


def _along(x: Any, axis: int | Sequence[int], log: bool, backend: str | None, determinism: str | None) -> jax.Array:
    (array,) = arrays_of(x=x)
    axes = sorted(a % array.ndim for a in ((axis,) if isinstance(axis, int) else axis))
    if axes != list(range(axes[0], axes[0] + len(axes))):
        raise ValueError(f"axis: expected axes that follow each other, got {axis!r}")
    shape, first, last = array.shape, axes[0], axes[-1] + 1
    lined = array.reshape(math.prod(shape[:first]), math.prod(shape[first:last]), math.prod(shape[last:]))
    return _jitted(Softmax(log, *options_in_force(backend, determinism)), lined).reshape(shape)


def softmax(
    x: Any, axis: int | Sequence[int] = -1, *, backend: str | None = None, determinism: str | None = None
) -> jax.Array:
    """``jax.nn.softmax``.

    >>> import jax.numpy as jnp, numbadnn.jax
    >>> numbadnn.jax.softmax(jnp.zeros((2, 4))).tolist()
    [[0.25, 0.25, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25]]
    """
    return _along(x, axis, False, backend, determinism)


def log_softmax(
    x: Any, axis: int | Sequence[int] = -1, *, backend: str | None = None, determinism: str | None = None
) -> jax.Array:
    """``jax.nn.log_softmax``.

    >>> import jax.numpy as jnp, numbadnn.jax
    >>> round(float(numbadnn.jax.log_softmax(jnp.zeros(4))[0]), 4)
    -1.3863
    """
    return _along(x, axis, True, backend, determinism)
