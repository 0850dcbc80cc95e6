"""Dropout and its gradient: the problem.

Whether element i (in C order, whatever the strides) is kept follows from seed, offset and i alone: it is when word
(offset + i) mod 4 of Philox4x32-10, for the counter (offset + i) div 4 and the key seed, is at least round(p * 2**32). So the
gradient makes the mask anew, a part of an array has the mask of the whole from its offset on, and every backend has the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from numbadnn.parameters import real
from numbadnn.problem import Spec, integer, number, operand

#: default seed, as the specification has it
SEED = 4242

OPTIONS = ("p", "generator", "seed", "offset")
OPERANDS = {"dropout": ("x", "y"), "dropout_grad": ("dy", "dx")}


class DropoutState(NamedTuple):
    """What ``dropout_grad`` needs to make the mask of a forward call again. Opaque; may be pickled."""

    p: float
    seed: int
    offset: int
    shape: tuple[int, ...]
    generator: str


@dataclass(frozen=True, slots=True)
class DropoutProblem:
    """dropout: ``x`` -> ``y``; dropout_grad: ``dy`` -> ``dx``: the same arithmetic. ``generator``: philox, or cudnn's own.

    ``words``, seed and offset, are arguments of the launch: problems that differ in them alone are one to whoever chooses.
    """

    op: str
    source: Spec
    output: Spec
    p: float = 0.5
    generator: str = "philox"
    words: tuple[int, int] = field(default=(SEED, 0), compare=False)

    MEANT: ClassVar = ("words",)

    @property
    def inputs(self) -> tuple[Spec, ...]:
        return (self.source,)

    @property
    def outputs(self) -> tuple[Spec, ...]:
        return (self.output,)

    @property
    def threshold(self) -> int:
        """An element is kept where its random word is at least this."""
        return round(self.p * 2.0**32)

    @property
    def scale(self) -> float:
        """What a kept element is multiplied by."""
        return 1.0 / (1.0 - self.p) if self.p < 1 else 0.0

    @property
    def flops(self) -> int:
        return self.source.size

    @property
    def bytes(self) -> int:
        return 2 * self.source.size * self.source.itemsize

    @property
    def keywords(self) -> dict[str, Any]:
        """The parameters as keyword arguments of the public function, and of the reference."""
        if self.op == "dropout":
            return {"dropout": self.p, "seed": self.words[0], "offset": self.words[1]}
        return {"state": DropoutState(self.p, *self.words, self.source.shape, self.generator)}

    def __str__(self) -> str:
        first, last = OPERANDS[self.op]
        generator = "" if self.generator == "philox" else f" generator={self.generator}"
        words = zip(("seed", "offset"), self.words, (SEED, 0), strict=True)
        others = "".join(f" {name}={value}" for name, value, default in words if value != default)
        return f"{self.op} {first}={self.source} {last}={self.output} p={self.p!r}{generator}{others}"

    @staticmethod
    def parse(text: str) -> DropoutProblem:
        """The inverse of ``str``; an output left out is packed like the input.

        >>> str(DropoutProblem.parse("dropout x=float32:2x5 p=0.25"))
        'dropout x=float32:2x5 y=float32:2x5 p=0.25'
        """
        op, *words = text.split()
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        first, last = OPERANDS.get(op, ("", ""))
        if len(fields) != len(words) or first not in fields or not set(fields) <= {first, last, *OPTIONS}:
            raise ValueError(f"expected 'dropout x=SPEC p=..' or 'dropout_grad dy=SPEC p=..', got {text!r}")
        source = operand(fields[first])
        packed = Spec.of(source.dtype, source.shape, source.layout)
        output = Spec.parse(fields[last]) if last in fields else packed
        if (output.dtype, output.shape) != (source.dtype, source.shape):
            raise ValueError(f"expected operands of one dtype and shape, got {text!r}")
        generator = fields.get("generator", "philox")
        seed = integer("seed", fields.get("seed", str(SEED))), integer("offset", fields.get("offset", "0"))
        p = check_probability(number("p", fields.get("p", "0.5")))
        return DropoutProblem(op, source, output, p, generator, seed)


PROBLEM = DropoutProblem


def check_probability(value: Any) -> float:
    try:
        p = real(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"dropout: expected a number, got {value!r}") from None
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: expected a probability from 0 to 1, got {value!r}")
    return p
