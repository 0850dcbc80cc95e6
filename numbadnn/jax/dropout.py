"""Dropout in JAX: the mask follows from a seed, so nothing is kept for the gradient."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numbadnn.config import Options
from numbadnn.jax.call import Work, compute
from numbadnn.jax.mapped import arrays_of, mapped, options_in_force


@dataclass(frozen=True)
class Dropout:
    """``seed``: where it is known when the call is traced."""

    rate: float
    seed: int | None
    backend: str | None
    options: Options

    def work(self) -> Work:
        arguments: tuple[tuple[str, Any], ...] = (("dropout", self.rate),)
        words = () if self.seed is not None else ("seed",)
        arguments += () if self.seed is None else (("seed", self.seed),)
        return Work("dropout", (None,), (None,), arguments, self.backend, self.options, words)


#: each of the mapped arrays has its elements numbered from 0, so they follow each other
_dropout = mapped(lambda d, x, *seed: compute(d.work(), x, *seed), lambda *_: None)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def apply(dropout: Dropout, x: Any, *seed: Any) -> Any:
    """Linear in x, and its own transpose."""
    return _dropout(dropout, x, *seed)[0]


apply.defvjp(
    lambda d, x, *seed: (apply(d, x, *seed), seed),
    lambda d, seed, g: (apply(d, g, *seed), *(np.zeros(s.shape, jax.dtypes.float0) for s in seed)),
)
_jitted = jax.jit(apply, static_argnums=0)


def dropout(x: Any, rate: float, seed: Any, *, backend: str | None = None, determinism: str | None = None) -> jax.Array:
    """Each element is 0 with probability ``rate``, else divided by ``1 - rate``, as ``numbadnn.dropout`` does by that seed.

    ``seed``: an integer, then part of the trace; or an array of one integer, or a key of ``jax.random``: a number that is
    computed. On a GPU the host waits for a computed one.

    >>> import jax, jax.numpy as jnp, numbadnn.jax
    >>> sorted(set(numbadnn.jax.dropout(jnp.ones(64), 0.5, jax.random.key(0)).tolist()))
    [0.0, 2.0]
    """
    (array,) = arrays_of(x=x)
    how = options_in_force(backend, determinism)
    if isinstance(seed, (int, np.integer)):
        return _jitted(Dropout(float(rate), int(seed), *how), array)
    if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        seed = jax.random.bits(seed)
    if seed.shape != () or not jnp.issubdtype(seed.dtype, jnp.integer):
        raise TypeError(f"seed: expected an integer, an array of one integer or a key, got {seed.dtype} {seed.shape}")
    return _jitted(Dropout(float(rate), None, *how), array, seed)
