"""softmax and its gradient: the problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numbadnn.problem import Spec, operand

ALGOS = ("fast", "accurate", "log")

MODES = ("channel", "instance")


@dataclass(frozen=True, slots=True)
class SoftmaxProblem:
    """softmax: ``x`` -> ``y``; softmax_grad: ``dy``, ``y`` (the forward output) -> ``dx``. All of one shape and dtype.

    ``algo`` fast, accurate or log; ``mode`` channel (over axis 1) or instance (over all axes but 0). In softmax ``y``
    is the output, in softmax_grad ``dx`` is; the operands an operation does not have are None.
    """

    op: str
    y: Spec
    x: Spec | None = None
    dy: Spec | None = None
    dx: Spec | None = None
    algo: str = "accurate"
    mode: str = "channel"

    @property
    def inputs(self) -> tuple[Spec, ...]:
        return (self.x,) if self.op == "softmax" else (self.dy, self.y)  # type: ignore[return-value]

    @property
    def output(self) -> Spec:
        return self.y if self.op == "softmax" else self.dx  # type: ignore[return-value]

    @property
    def outputs(self) -> tuple[Spec, ...]:
        return (self.output,)

    @property
    def flops(self) -> int:
        return 5 * self.y.size

    @property
    def bytes(self) -> int:
        return sum(s.size * s.itemsize for s in (*self.inputs, self.output))

    @property
    def keywords(self) -> dict[str, Any]:
        """The parameters as keyword arguments of the public function, and of the reference."""
        return {"algo": self.algo, "mode": self.mode}

    def __str__(self) -> str:
        operands = " ".join(f"{n}={s}" for n in ("x", "dy", "y", "dx") if (s := getattr(self, n)) is not None)
        return f"{self.op} {operands} algo={self.algo} mode={self.mode}"

    @staticmethod
    def parse(text: str) -> SoftmaxProblem:
        """The inverse of ``str``; operands left out are packed like the first one.

        >>> str(SoftmaxProblem.parse("softmax x=float32:2x5"))
        'softmax x=float32:2x5 y=float32:2x5 algo=accurate mode=channel'
        """
        op, *words = text.split()
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        names = {"softmax": ("x", "y"), "softmax_grad": ("dy", "y", "dx")}.get(op)
        if (
            names is None
            or len(fields) != len(words)
            or names[0] not in fields
            or not set(fields) <= {*names, "algo", "mode"}
        ):
            raise ValueError(f"expected 'softmax x=SPEC' or 'softmax_grad dy=SPEC' and algo=.. mode=.., got {text!r}")
        first = operand(fields[names[0]])
        if len(first.shape) < 2:
            raise ValueError(f"{names[0]}: expected at least 2 axes, got {fields[names[0]]!r}")
        packed = Spec.of(first.dtype, first.shape, first.layout)
        specs = {n: operand(fields[n], result=n == names[-1]) if n in fields else packed for n in names}
        if any((s.dtype, s.shape) != (first.dtype, first.shape) for s in specs.values()):
            raise ValueError(f"expected operands of one dtype and shape, got {text!r}")
        algo, mode = fields.get("algo", "accurate"), fields.get("mode", "channel")
        check_choices(algo, mode)
        return SoftmaxProblem(op, **specs, algo=algo, mode=mode)


PROBLEM = SoftmaxProblem


def check_choices(algo: Any, mode: Any) -> None:
    if algo not in ALGOS:
        hint = f"; an axis is axis={algo}" if isinstance(algo, int) and not isinstance(algo, bool) else ""
        raise ValueError(f"algo: expected one of {', '.join(ALGOS)}, got {algo!r}{hint}")
    if mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
