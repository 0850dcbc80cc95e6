"""Convolutions in JAX: one bilinear relation between image, filters and result, of which two give the third.

``term`` computes any of the three from the other two, and its gradients are terms again: so gradients of every order are
numbadnn's. Dimension numbers are views: nothing is transposed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax

from numbadnn.config import Options
from numbadnn.jax.call import Axes, Work, compute
from numbadnn.jax.mapped import fold_in, mapped, unfold

#: what a result is computed from
OPERANDS = {"y": ("x", "w"), "x": ("y", "w"), "w": ("x", "y")}
#: the axis that an operand and the result have in common: N images, K filters, C channels
SHARED = {("x", "y"): "N", ("w", "y"): "K", ("y", "x"): "N", ("w", "x"): "C", ("x", "w"): "C", ("y", "w"): "K"}
FUNCTIONS = {"y": "", "x": "_grad_wrt_inputs", "w": "_grad_wrt_weights"}


@dataclass(frozen=True)
class Geometry:
    """How image x, filters w and result y belong together: the ``axes`` of x, w and y, numbadnn's ``shapes`` of x and w."""

    axes: tuple[Axes, Axes, Axes]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    padding: tuple[tuple[int, int], ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    unshared: bool
    flip: bool
    backend: str | None
    options: Options

    def position(self, kind: str, letter: str) -> int:
        """Where numbadnn's array of this kind has N, K or C."""
        if kind == "w":
            return 0 if letter == "K" else len(self.shapes[1]) // 2 if self.unshared else 1
        return 0 if letter == "N" else 1

    def axis(self, kind: str, letter: str) -> int:
        """Where the caller's array has it."""
        axes, position = self.axes["xwy".index(kind)], self.position(kind, letter)
        return position if axes is None else int(axes[position] or 0)

    def times(self, size: int, letter: str) -> Geometry:
        """With so many times as many images, filters, channels or (G) groups."""
        x, w = map(list, self.shapes)
        if letter in "NCG":
            x[self.position("x", "N" if letter == "N" else "C")] *= size
        if letter in "KCG":
            w[self.position("w", "C" if letter == "C" else "K")] *= size
        groups = self.groups * (size if letter == "G" else 1)
        return replace(self, shapes=(tuple(x), tuple(w)), groups=groups)

    def work(self, result: str) -> Work:
        """The call that computes ``result``."""
        x_axes, w_axes, y_axes = self.axes
        axes = {"x": x_axes, "w": w_axes, "y": y_axes}
        spatial = len(self.padding)
        arguments: dict[str, Any] = {
            "border_mode": self.padding, "subsample": self.stride, "filter_dilation": self.dilation,
            "filter_flip": self.flip, "num_groups": self.groups,
        }  # fmt: skip
        if spatial == 2:
            arguments["unshared"] = self.unshared
        if result != "y":
            arguments["input_shape"], arguments["filter_shape"] = self.shapes
        return Work(
            f"conv{spatial}d{FUNCTIONS[result]}",
            tuple(axes[kind] for kind in OPERANDS[result]),
            (axes[result],),
            tuple(sorted(arguments.items())),
            self.backend,
            self.options,
        )


def _fold(
    function: Any, static: tuple[Geometry, str], size: int, batched: tuple[bool, ...], arrays: Any
) -> tuple[Any, ...] | None:
    """Into the axis that the only mapped operand shares with the result; of two mapped ones, into groups."""
    geometry, result = static
    kinds = OPERANDS[result]
    if all(batched):
        grown = geometry.times(size, "G")
        inner = {"x": "C", "w": "K", "y": "K"}
        folded = [fold_in(a, geometry.axis(k, inner[k])) for k, a in zip(kinds, arrays, strict=True)]
        return (unfold(function((grown, result), *folded)[0], geometry.axis(result, inner[result]), size),)
    kind = kinds[batched.index(True)]
    letter = SHARED[kind, result]
    if letter != "N" and geometry.groups > 1:  # the axis has the groups as its slower half
        return None
    grown = geometry.times(size, letter)
    operands = [
        fold_in(a, geometry.axis(k, letter)) if b else a for k, a, b in zip(kinds, arrays, batched, strict=True)
    ]
    return (unfold(function((grown, result), *operands)[0], geometry.axis(result, letter), size),)


_compute = mapped(lambda static, *operands: compute(static[0].work(static[1]), *operands), _fold)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def term(geometry: Geometry, result: str, a: Any, b: Any) -> Any:
    """``result`` ("x", "w" or "y") from the two others, in the order of ``OPERANDS``."""
    return _compute((geometry, result), a, b)[0]


def _forward(geometry: Geometry, result: str, a: Any, b: Any) -> tuple[Any, Any]:
    return term(geometry, result, a, b), (a, b)


def _backward(geometry: Geometry, result: str, operands: Any, cotangent: Any) -> Any:
    known = {result: cotangent, **dict(zip(OPERANDS[result], operands, strict=True))}
    return tuple(term(geometry, kind, *(known[k] for k in OPERANDS[kind])) for kind in OPERANDS[result])


term.defvjp(_forward, _backward)
jitted = jax.jit(term, static_argnums=(0, 1))
