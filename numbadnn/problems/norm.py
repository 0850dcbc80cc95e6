"""Batch normalization, for training and for inference, and the gradients of both: the problem.

A *channel* is what one pair of gamma and beta belongs to. ``spatial`` averages over axis 0 and all axes from 2 on, so that a
channel is an index of axis 1; ``per-activation`` averages over axis 0, so that every position is a channel of its own. Every
parameter and statistic has the rank of the inputs, with size 1 on the axes averaged over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from numbadnn.parameters import real
from numbadnn.problem import Spec, number, operand, shown

TRAIN, TEST = "batch_normalization_train", "batch_normalization_test"

TRAIN_GRAD, TEST_GRAD = "batch_normalization_train_grad", "batch_normalization_test_grad"

MODES = ("per-activation", "spatial")

#: operation -> names of its inputs and of its outputs; those of a training pass without running averages come first
OPERANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    TRAIN: (("x", "gamma", "beta", "running_mean", "running_var"), ("y", "mean", "invstd", "new_mean", "new_var")),
    TEST: (("x", "gamma", "beta", "mean", "var"), ("y",)),
    TRAIN_GRAD: (("x", "dy", "gamma", "mean", "invstd"), ("dx", "dgamma", "dbeta")),
    TEST_GRAD: (("x", "dy", "gamma", "mean", "var"), ("dx", "dgamma", "dbeta", "dmean", "dvar")),
}

#: operands with the shape of x
LIKE_X = ("x", "dy", "y", "dx")


@dataclass(frozen=True, slots=True)
class NormProblem:
    """One of the four operations; ``inputs`` and ``outputs`` in the order of OPERANDS.

    x, dy and their results have one shape, all others that of gamma. Every operand has a dtype of its own: y and dx have
    x's, statistics and parameter gradients gamma's. ``factor`` is what running averages take of the new statistic.
    """

    op: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    mode: str = "per-activation"
    epsilon: float = 1e-4
    factor: float = 0.1

    @property
    def x(self) -> Spec:
        return self.inputs[0]

    @property
    def gamma(self) -> Spec:
        return self.inputs[OPERANDS[self.op][0].index("gamma")]

    @property
    def output(self) -> Spec:
        return self.outputs[0]

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes averaged over."""
        return axes_of(self.mode, len(self.x.shape))

    @property
    def averaged(self) -> int:
        """Elements that a channel has."""
        return math.prod(self.x.shape[a] for a in self.axes)

    @property
    def running(self) -> bool:
        return self.op == TRAIN and len(self.inputs) == 5

    @property
    def empty_values(self) -> tuple[float, ...]:
        """What outputs that are not empty hold where the inputs are: no mean of nothing, and gradients that are sums."""
        return (0.0, math.nan, math.nan)[: len(self.outputs)] if self.op == TRAIN else (0.0,) * len(self.outputs)

    @property
    def flops(self) -> int:
        return {TRAIN: 8, TEST: 3, TRAIN_GRAD: 10, TEST_GRAD: 6}[self.op] * self.x.size

    @property
    def bytes(self) -> int:
        return sum(s.size * s.itemsize for s in (*self.inputs, *self.outputs))

    @property
    def keyword_inputs(self) -> tuple[str, ...]:
        """The last inputs, which the public function takes by keyword."""
        return ("running_mean", "running_var") if self.running else ()

    @property
    def keywords(self) -> dict[str, Any]:
        """The parameters as keyword arguments of the public function, and of the reference."""
        more = {"running_average_factor": self.factor} if self.op == TRAIN else {}
        return {"mode": self.mode, "epsilon": self.epsilon, **more}

    def __str__(self) -> str:
        inputs, outputs = OPERANDS[self.op]
        named = [*zip(inputs, self.inputs, strict=False), *zip(outputs, self.outputs, strict=False)]
        text = " ".join(f"{name}={spec}" for name, spec in named)
        factor = f" factor={shown(self.factor)}" if self.running else ""
        return f"{self.op} {text} mode={self.mode} epsilon={self.epsilon!r}{factor}"

    @staticmethod
    def parse(text: str) -> NormProblem:
        """The inverse of ``str``; operands left out are packed like x, in its dtype; ``running_mean`` brings running_var.

        >>> str(NormProblem.parse("batch_normalization_test x=float32:2x3 mode=spatial")).split()[1:3]
        ['x=float32:2x3', 'gamma=float32:1x3']
        """
        op, *words = text.split()
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        inputs, outputs = OPERANDS.get(op, ((), ()))
        known = {*inputs, *outputs, "mode", "epsilon", "factor"}
        if not inputs or len(fields) != len(words) or "x" not in fields or not set(fields) <= known:
            raise ValueError(f"expected '{op} x=SPEC' and {', '.join(sorted(known - {'x'}))}, got {text!r}")
        x, mode = operand(fields["x"]), fields.get("mode", "per-activation")
        if op == TRAIN and not {"running_mean", "running_var"} & set(fields):
            inputs, outputs = inputs[:3], outputs[:3]
        shape = parameter_shape(x.shape, mode)
        gamma = operand(fields["gamma"]) if "gamma" in fields else Spec.of(x.dtype, shape)

        def spec(name: str) -> Spec:
            like_x = name in LIKE_X
            if name in fields:
                given = operand(fields[name], result=name in outputs)
                if given.shape != (x.shape if like_x else shape):
                    raise ValueError(f"{name}: expected shape {x.shape if like_x else shape}, got {given.shape}")
                return given
            if like_x:
                return Spec.of(x.dtype, x.shape, x.layout)
            return Spec.of(gamma.dtype, shape)

        epsilon = check_epsilon(number("epsilon", fields.get("epsilon", "1e-4")))
        factor = check_number("factor", number("factor", fields.get("factor", "0.1")), 0.0, 1.0, "a number from 0 to 1")
        return NormProblem(op, tuple(map(spec, inputs)), tuple(map(spec, outputs)), mode, epsilon, factor)


PROBLEM = NormProblem


def axes_of(mode: str, rank: int) -> tuple[int, ...]:
    """The axes averaged over; ValueError for an unknown mode or rank 0."""
    if mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
    if rank < 1:
        raise ValueError("inputs: expected at least 1 dimension, got a scalar")
    return (0,) if mode == "per-activation" else (0, *range(2, rank))


def parameter_shape(shape: tuple[int, ...], mode: str) -> tuple[int, ...]:
    """The shape of gamma: that of the inputs, with 1 on the axes averaged over.

    >>> parameter_shape((8, 3, 5, 5), "spatial")
    (1, 3, 1, 1)
    """
    axes = axes_of(mode, len(shape))
    return tuple(1 if a in axes else n for a, n in enumerate(shape))


def check_number(name: str, value: Any, low: float, high: float, wanted: str) -> float:
    try:
        given = real(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name}: expected a number, got {value!r}") from None
    if not low <= given <= high:
        raise ValueError(f"{name}: expected {wanted}, got {value!r}")
    return given


def check_epsilon(value: Any) -> float:
    return check_number("epsilon", value, 0.0, 1.7e308, "a finite number >= 0")
