"""Operators of one element at a time: a NumPy function, and how many roundings of what size a computation of it has.

An error is ``roundings`` units of ``size``, which is the result where nothing cancels, else the largest number on the way. The
usual libraries compute exponentials, logarithms and the like within 4 units in the last place, which are 8 of its roundings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from numbadnn.validate.model.graph import Node, is_real
from numbadnn.validate.model.nodes.kinds import Given, Kind, Outputs

#: roundings of a function of a library
LIBRARY = 8

Size = Callable[[Node, Given, np.ndarray], Any]


def _kind(function: Callable[..., Any], roundings: int = 1, size: Size | None = None) -> Kind:
    """``function(node, *arrays)``; ``size`` of what is rounded, by default the result."""

    def compute(node: Node, given: Given) -> Outputs:
        with np.errstate(all="ignore"):
            found = np.asarray(function(node, *given))
        real = next((a.dtype for a in given if a is not None and is_real(a.dtype)), found.dtype)
        return (found.astype(real) if is_real(found.dtype) and found.dtype != real else found,)

    def errors(node: Node, given: Given, outputs: Outputs, unit: float) -> Outputs:
        with np.errstate(all="ignore"):
            of = np.abs(outputs[0]) if size is None else size(node, given, outputs[0])
            return (roundings * unit * np.nan_to_num(of, nan=0.0),)

    return Kind(None, compute, errors)


def _exactly(function: Callable[..., Any]) -> Kind:
    """Nothing is rounded."""
    return _kind(function)._replace(errors=None)


def _largest(node: Node, given: Given, result: np.ndarray) -> Any:
    """The size of what goes in and comes out."""
    return sum(np.abs(a) for a in given if a is not None) + np.abs(result)


def _affine(node: Node, given: Given, result: np.ndarray) -> Any:
    return np.abs(node.get("alpha", 0.2) * given[0]) + abs(node.get("beta", 0.5))


def _one(node: Node, given: Given, result: np.ndarray) -> Any:
    """Functions that are computed as something about 1 less 1."""
    return (1 + np.abs(node.get("alpha", 1.0))) * 2 + np.abs(result)


def _hard_sigmoid(node: Node, x: Any) -> Any:
    return np.clip(x * x.dtype.type(node.get("alpha", 0.2)) + x.dtype.type(node.get("beta", 0.5)), 0, 1).astype(x.dtype)


def _hard_swish(node: Node, x: Any) -> Any:
    return x * np.clip(x / 6 + x.dtype.type(0.5), 0, 1).astype(x.dtype)


def _gelu(node: Node, x: Any) -> Any:
    if node.get("approximate", "none") == "tanh":
        return 0.5 * x * (1 + np.tanh(x.dtype.type(np.sqrt(2 / np.pi)) * (x + x.dtype.type(0.044715) * x**3)))
    return 0.5 * x * (1 + scipy.special.erf(x / x.dtype.type(np.sqrt(2))))


def _elu(node: Node, x: Any) -> Any:
    return np.where(x < 0, x.dtype.type(node.get("alpha", 1.0)) * np.expm1(np.minimum(x, 0)), x)


def _selu(node: Node, x: Any) -> Any:
    alpha, scale = (
        x.dtype.type(node.get(n, d)) for n, d in (("alpha", 1.67326319217681884), ("gamma", 1.05070102214813232))
    )
    return scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _celu(node: Node, x: Any) -> Any:
    alpha = x.dtype.type(node.get("alpha", 1.0))
    return np.maximum(x, 0) + np.minimum(alpha * np.expm1(np.minimum(x, 0) / alpha), 0)


def _softplus(node: Node, x: Any) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _power(node: Node, x: Any, y: Any) -> Any:
    return np.power(x, y.astype(x.dtype) if is_real(x.dtype) else y).astype(x.dtype)


def _power_size(node: Node, given: Given, result: np.ndarray) -> Any:
    """Powers may be computed as exp(y log x): the logarithm's error is multiplied by what it is in the exponent."""
    whole = np.asarray(given[1] == np.round(given[1])) & (np.abs(given[1]) <= 3)
    exponent = np.abs(np.log(np.abs(given[0])) * given[1])
    return np.abs(result) * (1 + np.where(whole | ~np.isfinite(exponent), 0, exponent))


def _divide(node: Node, a: Any, b: Any) -> Any:
    if is_real(a.dtype):
        return a / b
    return (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)  # integers: towards zero


def _clip(node: Node, x: Any, low: Any = None, high: Any = None) -> Any:
    low = node.get("min") if low is None else low
    high = node.get("max") if high is None else high
    x = x if low is None else np.maximum(x, np.asarray(low, x.dtype))
    return x if high is None else np.minimum(x, np.asarray(high, x.dtype))


def _mod(node: Node, a: Any, b: Any) -> Any:
    return np.fmod(a, b) if node.get("fmod", 0) else np.mod(a, b)


def _shrink(node: Node, x: Any) -> Any:
    bias, lambd = x.dtype.type(node.get("bias", 0.0)), x.dtype.type(node.get("lambd", 0.5))
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, x.dtype.type(0)))


def _of_all(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def fold(node: Node, first: Any, *others: Any) -> Any:
        for other in others:
            first = function(first, other)
        return first

    return fold


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda node, *arrays: function(*arrays)


_ROUNDED: dict[str, Kind] = {
    "Add": _kind(_plain(np.add)),
    "Sub": _kind(_plain(np.subtract)),
    "Mul": _kind(_plain(np.multiply)),
    "Div": _kind(_divide, 2),
    "Sum": Kind(),
    "Mean": _kind(lambda node, *a: sum(a[1:], a[0]) / a[0].dtype.type(len(a)), 8, _largest),
    "Pow": _kind(_power, LIBRARY, _power_size),
    "Sqrt": _kind(_plain(np.sqrt), 2),
    "Reciprocal": _kind(lambda node, x: 1 / x, 2),
    "Erf": _kind(_plain(scipy.special.erf), LIBRARY, lambda node, given, y: np.abs(y) + np.minimum(np.abs(given[0]), 1)),
    # others compute it as half of 1 + tanh(x / 2)
    "Sigmoid": _kind(_plain(scipy.special.expit), LIBRARY, lambda node, given, y: np.abs(y) + 0.5),
    "HardSigmoid": _kind(_hard_sigmoid, 3, _affine),
    "HardSwish": _kind(_hard_swish, 4, lambda node, given, y: np.abs(given[0]) * (np.abs(given[0]) / 6 + 1)),
    "LeakyRelu": _kind(lambda node, x: np.where(x < 0, x.dtype.type(node.get("alpha", 0.01)) * x, x)),
    "PRelu": _kind(lambda node, x, slope: np.where(x < 0, slope * x, x)),
    "ThresholdedRelu": _kind(lambda node, x: np.where(x > x.dtype.type(node.get("alpha", 1.0)), x, x.dtype.type(0))),
    "Elu": _kind(_elu, LIBRARY, _one),
    "Selu": _kind(_selu, LIBRARY, lambda node, given, y: 4 + np.abs(y)),
    "Celu": _kind(_celu, LIBRARY, _one),
    "Gelu": _kind(_gelu, 2 * LIBRARY, lambda node, given, y: np.abs(given[0]) * (1 + given[0] ** 2) if node.get(
        "approximate", "none") == "tanh" else np.abs(given[0])),
    "Mish": _kind(lambda node, x: x * np.tanh(_softplus(node, x)), 2 * LIBRARY, lambda node, given, y: np.abs(given[0])),
    "Softplus": _kind(_softplus, LIBRARY, lambda node, given, y: 1 + np.abs(y)),
    "Softsign": _kind(lambda node, x: x / (1 + np.abs(x)), 3),
    "Shrink": _kind(_shrink, 1, _largest),
    "Swish": _kind(lambda node, x: x * scipy.special.expit(x * x.dtype.type(node.get("alpha", 1.0))), 2 * LIBRARY,
        lambda node, given, y: np.abs(y) + np.abs(given[0])),
    "Mod": _kind(_mod, 2, _largest),
}  # fmt: skip
_ROUNDED["Sum"] = _kind(_of_all(np.add), 8, _largest)
for _name in ("exp", "log", "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh",
              "arctanh"):  # fmt: skip
    # of a cosine, a logarithm and the like close to zero only the error beside 1 is small
    _sizes = (lambda node, given, y: np.abs(y) + np.minimum(np.abs(given[0]), 1)) if _name != "exp" else None
    _ROUNDED[_name.replace("arc", "a").capitalize()] = _kind(_plain(getattr(np, _name)), LIBRARY, _sizes)

_EXACT: dict[str, Any] = {
    "Abs": np.abs, "Neg": np.negative, "Relu": lambda x: np.maximum(x, x.dtype.type(0)), "Max": None, "Min": None,
    "Floor": np.floor, "Ceil": np.ceil, "Round": np.round, "Sign": np.sign, "Not": np.logical_not,
    "And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor, "Equal": np.equal, "Greater": np.greater,
    "Less": np.less, "GreaterOrEqual": np.greater_equal, "LessOrEqual": np.less_equal,
    "Where": lambda c, a, b: np.where(c, a, b), "IsNaN": np.isnan, "BitwiseNot": np.invert, "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor,
}  # fmt: skip
TABLE: dict[str, Kind] = {
    **_ROUNDED,
    **{name: _exactly(_plain(function)) for name, function in _EXACT.items() if function},
    "Max": _exactly(_of_all(np.maximum)),
    "Min": _exactly(_of_all(np.minimum)),
    "Clip": _exactly(_clip),
}
