"""Batch normalisation in JAX, with the features along any axis."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from numbadnn.config import Options
from numbadnn.jax.call import Work, compute
from numbadnn.jax.mapped import arrays_of, by_axis, mapped, options_in_force, twice


@dataclass(frozen=True)
class Norm:
    """Of arrays (before, features, after), with parameters (1, features, 1)."""

    epsilon: float
    backend: str | None
    options: Options

    def work(self, function: str, arrays: int, results: int) -> Work:
        arguments = (("epsilon", self.epsilon), ("mode", "spatial"))
        name = f"batch_normalization_{function}"
        return Work(name, (None,) * arrays, (None,) * results, arguments, self.backend, self.options)

    def train(self, x: Any, gamma: Any, beta: Any) -> Any:
        """The result alone, as JAX can derive it."""
        wide = x.astype(gamma.dtype)
        mean = wide.mean((0, 2), keepdims=True)
        var = ((wide - mean) ** 2).mean((0, 2), keepdims=True)
        return ((wide - mean) / jnp.sqrt(var + self.epsilon) * gamma + beta).astype(x.dtype)

    def test(self, x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
        return ((x - mean) * gamma / jnp.sqrt(var + self.epsilon) + beta).astype(x.dtype)


#: features of each of the mapped arrays are features
_fold = by_axis(lambda _: 1)
_train = mapped(lambda n, *arrays: compute(n.work("train", 3, 3), *arrays), _fold)
_train_grad = mapped(lambda n, *arrays: compute(n.work("train_grad", 5, 3), *arrays), _fold)
_test = mapped(lambda n, *arrays: compute(n.work("test", 5, 1), *arrays), _fold)
_test_grad = mapped(lambda n, *arrays: compute(n.work("test_grad", 5, 5), *arrays), _fold)


def _train_grad_twin(norm: Norm, x: Any, dy: Any, gamma: Any, mean: Any, invstd: Any) -> Any:
    """The statistics are those of x: what they change by is in x's gradient."""
    return jax.vjp(norm.train, x, gamma, jnp.zeros_like(gamma))[1](dy)


def _test_grad_twin(norm: Norm, x: Any, dy: Any, gamma: Any, mean: Any, var: Any) -> Any:
    return jax.vjp(norm.test, x, gamma, jnp.zeros_like(gamma), mean, var)[1](dy)


_train_grad_of_all = twice(_train_grad, _train_grad_twin)
_test_grad_of_all = twice(_test_grad, _test_grad_twin)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def train(norm: Norm, x: Any, gamma: Any, beta: Any) -> Any:
    """The result, the mean and 1 / sqrt(variance + epsilon)."""
    return _train(norm, x, gamma, beta)


def _train_saved(norm: Norm, x: Any, gamma: Any, beta: Any) -> Any:
    x, gamma, beta = x.value, gamma.value, beta.value
    y, mean, invstd = train(norm, x, gamma, beta)
    return (y, mean, invstd), (x, gamma, mean, invstd)


def _train_back(norm: Norm, saved: Any, cotangents: Any) -> Any:
    x, gamma, mean, invstd = saved
    dy, dmean, dinvstd = cotangents
    dx, dgamma, dbeta = jnp.zeros_like(x), jnp.zeros_like(gamma), jnp.zeros_like(gamma)
    if not isinstance(dy, SymbolicZero):
        dx, dgamma, dbeta = _train_grad_of_all(norm, x, dy, gamma, mean, invstd)
    count = x.shape[0] * x.shape[2]
    if not isinstance(dmean, SymbolicZero):
        dx = dx + (dmean / count).astype(x.dtype)
    if not isinstance(dinvstd, SymbolicZero):
        dx = dx - (dinvstd * (x - mean) * invstd**3 / count).astype(x.dtype)
    return dx, dgamma, dbeta


train.defvjp(_train_saved, _train_back, symbolic_zeros=True)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def test(norm: Norm, x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
    return _test(norm, x, gamma, beta, mean, var)[0]


test.defvjp(
    lambda norm, x, gamma, beta, mean, var: (test(norm, x, gamma, beta, mean, var), (x, gamma, mean, var)),
    lambda norm, saved, dy: _test_grad_of_all(norm, saved[0], dy, *saved[1:]),
)
_jitted_train, _jitted_test = jax.jit(train, static_argnums=0), jax.jit(test, static_argnums=0)


def _lined(x: Any, feature_axis: int, parameters: dict[str, Any]) -> tuple[Any, list[Any]]:
    axis = feature_axis % x.ndim
    shape = x.shape
    for name, value in parameters.items():
        if value.shape != (shape[axis],):
            raise ValueError(f"{name}: expected shape ({shape[axis]},), one number a feature, got {value.shape}")
    lined = x.reshape(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    return lined, [value.reshape(1, -1, 1) for value in parameters.values()]


def batch_norm(
    x: Any,
    scale: Any,
    bias: Any,
    feature_axis: int = 1,
    epsilon: float = 1e-5,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Normalised by the statistics of the batch: (y, mean, invstd), the last two (features,) as scale and bias are.

    ``y = (x - mean) * invstd * scale + bias``, mean and biased variance over every axis but ``feature_axis``,
    ``invstd = 1 / sqrt(variance + epsilon)``. Differentiable in all three results.

    >>> import jax.numpy as jnp, numbadnn.jax
    >>> y, mean, invstd = numbadnn.jax.batch_norm(jnp.array([[1.0], [3.0]]), jnp.ones(1), jnp.zeros(1), epsilon=0.0)
    >>> y.ravel().tolist(), mean.tolist(), invstd.tolist()
    ([-1.0, 1.0], [2.0], [1.0])
    """
    array, gamma, beta = arrays_of(x=x, scale=scale, bias=bias)
    lined, parameters = _lined(array, feature_axis, {"scale": gamma, "bias": beta})
    norm = Norm(float(epsilon), *options_in_force(backend, determinism))
    y, mean, invstd = _jitted_train(norm, lined, *parameters)
    return y.reshape(array.shape), mean.ravel(), invstd.ravel()


def batch_norm_inference(
    x: Any,
    scale: Any,
    bias: Any,
    mean: Any,
    var: Any,
    feature_axis: int = 1,
    epsilon: float = 1e-5,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> jax.Array:
    """Normalised by given statistics: ``(x - mean) * scale / sqrt(var + epsilon) + bias``, each (features,).

    >>> import jax.numpy as jnp, numbadnn.jax
    >>> one = jnp.ones(1)
    >>> numbadnn.jax.batch_norm_inference(jnp.array([[1.0], [5.0]]), one, one, one, 4 * one, epsilon=0.0).ravel().tolist()
    [1.0, 3.0]
    """
    array, *rest = arrays_of(x=x, scale=scale, bias=bias, mean=mean, var=var)
    lined, parameters = _lined(array, feature_axis, dict(zip(("scale", "bias", "mean", "var"), rest, strict=True)))
    norm = Norm(float(epsilon), *options_in_force(backend, determinism))
    return _jitted_test(norm, lined, *parameters).reshape(array.shape)
