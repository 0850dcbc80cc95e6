"""bilinear_upsampling and its gradient: the problem.

A ratio is a reduced fraction p/q an axis. Every call becomes ``ratio=((p, q), (p, q))`` for rows and columns; an integer
ratio is p/1, so that one problem stands for all four spellings of the specification.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from numbadnn.parameters import LARGEST, whole
from numbadnn.problem import Spec, integers, operand

#: a reduced fraction for rows, one for columns
Ratio = tuple[tuple[int, int], tuple[int, int]]


def output_size(n: int, p: int, q: int) -> int:
    """ceil(n * p / q): how many samples an axis of n becomes.

    >>> output_size(3, 3, 2)
    5
    """
    return -(-n * p // q)


def source(o: int, n: int, p: int, q: int) -> tuple[int, int, int]:
    """(i, j, f): output o lies at f / p of the way from sample i to sample j; f = 0 where it needs only one.

    >>> [source(o, 2, 3, 1) for o in range(6)]
    [(0, 0, 0), (0, 0, 0), (0, 1, 1), (0, 1, 2), (1, 1, 0), (1, 1, 0)]
    """
    at = min(max(o * q - (p - 1) // 2, 0), (n - 1) * p)
    i, f = divmod(at, p)
    return i, i + (f > 0), f


@dataclass(frozen=True, slots=True)
class UpsampleProblem:
    """bilinear_upsampling: ``x`` -> ``y``; bilinear_upsampling_grad: ``y`` (the gradient of the output) -> ``x``.

    Both (N, C, rows, columns) of one dtype; ``ratio`` = ((p, q), (p, q)) for rows and columns, reduced.
    """

    op: str
    x: Spec
    y: Spec
    ratio: Ratio

    @property
    def inputs(self) -> tuple[Spec, ...]:
        return (self.x,) if self.op == "bilinear_upsampling" else (self.y,)

    @property
    def output(self) -> Spec:
        return self.y if self.op == "bilinear_upsampling" else self.x

    @property
    def outputs(self) -> tuple[Spec, ...]:
        return (self.output,)

    @property
    def keywords(self) -> dict[str, Any]:
        more = {} if self.op == "bilinear_upsampling" else {"input_shape": self.x.shape}
        return {**more, "frac_ratio": self.ratio}

    @property
    def flops(self) -> int:
        return 6 * self.y.size

    @property
    def bytes(self) -> int:
        return self.x.size * self.x.itemsize + self.y.size * self.y.itemsize

    def __str__(self) -> str:
        (a, b), (c, d) = self.ratio
        return f"{self.op} x={self.x} y={self.y} ratio={a}/{b},{c}/{d}"

    @staticmethod
    def parse(text: str) -> UpsampleProblem:
        """The inverse of ``str``; ``y`` left out is packed like ``x``, one ratio stands for both axes.

        >>> str(UpsampleProblem.parse("bilinear_upsampling x=float32:1x2x3x4 ratio=2"))
        'bilinear_upsampling x=float32:1x2x3x4 y=float32:1x2x6x8 ratio=2/1,2/1'
        """
        op, *words = text.split()
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        known = op in ("bilinear_upsampling", "bilinear_upsampling_grad") and len(fields) == len(words)
        if not known or not {"x", "ratio"} <= set(fields) <= {"x", "y", "ratio"}:
            raise ValueError(f"expected 'bilinear_upsampling[_grad] x=SPEC [y=SPEC] ratio=P[/Q][,P[/Q]]', got {text!r}")
        pairs = [integers("ratio", "/".join(f"{r}/1".split("/")[:2]), "/") for r in fields["ratio"].split(",")]
        ratio = reduced(tuple(pairs) if len(pairs) > 1 else (pairs[0], pairs[0]), "ratio")
        forward = op == "bilinear_upsampling"
        x = operand(fields["x"], result=not forward)
        shape = output_shape(x.shape, ratio)
        y = operand(fields.get("y") or str(Spec.of(x.dtype, shape, x.layout)), result=forward)
        if (y.shape, y.dtype) != (shape, x.dtype):
            raise ValueError(f"expected y of {x.dtype} {shape}, got {text!r}")
        return UpsampleProblem(op, x, y, ratio)


PROBLEM = UpsampleProblem


def output_shape(shape: tuple[int, ...], ratio: Ratio) -> tuple[int, ...]:
    """The shape that an (N, C, rows, columns) image of this shape becomes."""
    return (*shape[:2], *(output_size(n, p, q) for n, (p, q) in zip(shape[2:], ratio, strict=True)))


def integer(name: str, value: Any) -> int:
    try:
        number = whole(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {value!r}") from None
    if number > LARGEST:
        raise ValueError(f"{name}: expected an integer of at most 2**40, got {value!r}")
    return number


def reduced(ratio: Any, name: str) -> Ratio:
    """((p, q), (p, q)), each divided by its greatest common divisor."""
    pairs = []
    for pair in ratio:
        if len(pair) != 2:
            raise ValueError(f"{name}: expected (p, q) or ((p, q), (p, q)), got {ratio!r}")
        p, q = (integer(name, v) for v in pair)
        if p < 1 or q < 1:
            raise ValueError(f"{name}: expected positive integers, got {ratio!r}")
        d = math.gcd(p, q)
        pairs.append((p // d, q // d))
    if len(pairs) != 2:
        raise ValueError(f"{name}: expected (p, q) or ((p, q), (p, q)), got {ratio!r}")
    return pairs[0], pairs[1]
