"""What every operation here is: a function of arrays under ``jit``, ``vmap`` and ``grad``.

``operation`` makes one of a rule for each. The vmap rule folds the mapped axis into an axis that the operation has many of
anyway; where that cannot be, the calls follow each other. The gradients are operations too, so that gradients have gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from numbadnn import config
from numbadnn.jax import call

#: (function, static, axis_size, batched, arrays) -> results with the mapped axis first, or None where it cannot be folded
Fold = Callable[[Any, Any, int, tuple[bool, ...], tuple[Any, ...]], tuple[Any, ...] | None]


def mapped(function: Callable[..., tuple[Any, ...]], fold: Fold) -> Callable[..., tuple[Any, ...]]:
    """``function(static, *arrays)`` with a vmap rule."""

    @functools.lru_cache(maxsize=4096)
    def of(static: Any) -> Any:
        @custom_vmap
        def one(*arrays: Any) -> tuple[Any, ...]:
            return function(static, *arrays)

        @one.def_vmap
        def rule(axis_size: int, in_batched: Any, *arrays: Any) -> tuple[Any, Any]:
            if not axis_size:  # of nothing there are neither images nor groups
                alone = [jax.ShapeDtypeStruct(a.shape[b:], a.dtype) for a, b in zip(arrays, in_batched, strict=True)]
                none = tuple(jnp.zeros((0, *r.shape), r.dtype) for r in jax.eval_shape(one, *alone))
                return call.varying_as(arrays, none), (True,) * len(none)
            found = fold(everywhere, static, axis_size, tuple(in_batched), arrays)
            if found is None:
                found = _in_turn(one, tuple(in_batched), arrays)
            return tuple(found), (True,) * len(found)

        return one

    def everywhere(static: Any, *arrays: Any) -> tuple[Any, ...]:
        # what is traced for the rule knows nothing of the axes of a mesh
        return call.varying_as(arrays, of(static)(*arrays))

    return everywhere


def by_axis(axis: Callable[[Any], int]) -> Fold:
    """Folds the mapped axis of every array and result into the axis that ``axis(static)`` says."""

    def fold(
        function: Any, static: Any, size: int, batched: tuple[bool, ...], arrays: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        into = axis(static)
        whole = [fold_in(spread(a, size, b), into) for a, b in zip(arrays, batched, strict=True)]
        return tuple(unfold(r, into, size) for r in function(static, *whole))

    return fold


def _in_turn(function: Callable[..., Any], batched: tuple[bool, ...], arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """One call after the other."""
    moving = tuple(a for a, b in zip(arrays, batched, strict=True) if b)

    def step(these: tuple[Any, ...]) -> Any:
        left = iter(these)
        return function(*(next(left) if b else a for a, b in zip(arrays, batched, strict=True)))

    return jax.lax.map(step, moving)


def fold_in(array: Any, axis: int) -> Any:
    """The first axis becomes part of ``axis`` of the rest, as its slower half."""
    array = jnp.moveaxis(array, 0, axis)
    shape = array.shape
    return array.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])


def unfold(array: Any, axis: int, size: int) -> Any:
    """The reverse of ``fold_in``."""
    shape = array.shape
    return jnp.moveaxis(array.reshape(*shape[:axis], size, shape[axis] // size, *shape[axis + 1 :]), axis, 0)


def spread(array: Any, size: int, batched: bool) -> Any:
    """With a mapped axis, if it had none: the same for all."""
    return array if batched else jnp.broadcast_to(array, (size, *array.shape))


def options_in_force(backend: str | None, determinism: str | None) -> tuple[str | None, config.Options]:
    """``backend`` and ``determinism`` of a call, checked, with all other options as they are now: part of the trace."""
    if backend is not None and backend not in config.BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(config.BACKENDS)} or None, got {backend!r}")
    if determinism is None:
        return backend, config.current()
    wanted: Any = determinism
    with config.using(determinism=wanted) as options:
        return backend, options


def arrays_of(**named: Any) -> tuple[Any, ...]:
    """The arguments as arrays of JAX; ValueError or TypeError with the name of one that is deleted or no floating point."""
    found = []
    for name, value in named.items():
        if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and value.is_deleted():
            raise ValueError(f"{name}: expected a live JAX array, got one that was deleted (donated to a computation)")
        array = jnp.asarray(value)
        if array.dtype not in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64):
            raise TypeError(f"{name}: expected dtype float16, bfloat16, float32 or float64, got {array.dtype}")
        found.append(array)
    return call.alike(*found)


def same_dtype(**named: Any) -> None:
    (first, one), *others = named.items()
    for name, array in others:
        if array.dtype != one.dtype:
            raise TypeError(f"{name}: expected the dtype of {first}, {one.dtype}, got {array.dtype}")


def twice(
    gradient: Callable[..., tuple[Any, ...]], twin: Callable[..., tuple[Any, ...]]
) -> Callable[..., tuple[Any, ...]]:
    """``gradient(static, *arrays)`` with gradients of its own: those of ``twin``, which states the same for JAX to derive."""

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def function(static: Any, *arrays: Any) -> tuple[Any, ...]:
        return gradient(static, *arrays)

    def forward(static: Any, *arrays: Any) -> tuple[Any, Any]:
        return function(static, *arrays), arrays

    def backward(static: Any, arrays: Any, cotangents: Any) -> Any:
        return jax.vjp(functools.partial(twin, static), *arrays)[1](tuple(cotangents))

    function.defvjp(forward, backward)
    return function


def adjoint(
    forward: Callable[[Any, Any], Any], backward: Callable[[Any, Any], Any]
) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """Two linear functions (static, array) of which each is the other's transpose, and so its gradient."""

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def there(static: Any, x: Any) -> Any:
        return forward(static, x)

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def back(static: Any, g: Any) -> Any:
        return backward(static, g)

    there.defvjp(lambda static, x: (there(static, x), None), lambda static, _, g: (back(static, g),))
    back.defvjp(lambda static, g: (back(static, g), None), lambda static, _, x: (there(static, x),))
    return there, back
