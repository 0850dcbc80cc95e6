"""softmax and its gradient: the problem, and the public functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numbadnn import dispatch
from numbadnn.arrays import View
from numbadnn.dispatch import Request
from numbadnn.call.operands import input_spec, output_spec, result_dtype
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
        _check_choices(algo, mode)
        return SoftmaxProblem(op, **specs, algo=algo, mode=mode)


PROBLEM = SoftmaxProblem


def _check_choices(algo: Any, mode: Any) -> None:
    if algo not in ALGOS:
        raise ValueError(f"algo: expected one of {', '.join(ALGOS)}, got {algo!r}")
    if mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")


def _check_rank(name: str, view: View) -> None:
    if len(view.shape) < 2:
        raise ValueError(f"{name}: expected at least 2 dimensions, got {len(view.shape)} (shape {view.shape})")


def _one(out_views: list[View]) -> View | None:
    if len(out_views) > 1:
        raise ValueError(f"out: expected one array, got a tuple of {len(out_views)}")
    return out_views[0] if out_views else None


@dispatch.operation("x")
def _build_softmax(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    (x,) = views
    _check_choices(*params)
    _check_rank("x", x)
    y = output_spec(x.shape, x.dtype, x, _one(out_views))
    return Request(SoftmaxProblem("softmax", y, x=x.spec(), algo=params[0], mode=params[1]))


@dispatch.operation("dy", "sm")
def _build_softmax_grad(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
    dy, sm = views
    _check_choices(*params)
    _check_rank("dy", dy)
    if sm.shape != dy.shape:
        raise ValueError(f"sm: expected dy's shape {dy.shape}, got {sm.shape}")
    if sm.dtype != dy.dtype:
        raise TypeError(f"sm: expected dy's dtype {dy.dtype}, got {sm.dtype}")
    dtype = result_dtype(views)
    dx = output_spec(dy.shape, dtype, dy, _one(out_views))
    y = input_spec(sm, dtype)
    return Request(SoftmaxProblem("softmax_grad", y, dy=dy.spec(), dx=dx, algo=params[0], mode=params[1]))


def softmax(
    x: Any,
    algo: str = "accurate",
    mode: str = "channel",
    *,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Softmax of an array of rank >= 2: ``y = exp(x - max) / sum(exp(x - max))``, or its logarithm for ``algo="log"``.

    ``mode="channel"`` normalises over axis 1 at every other position, ``"instance"`` over all axes but 0. ``algo``
    accurate and log subtract the maximum; fast may. A row with NaN or +inf, or of nothing but -inf, gives NaN. Result:
    x's shape, dtype (float16, bfloat16, float32, float64) and library. Source: spec/semantics.md 1.6.

    Raises ValueError for a rank below 2 or an unknown algo or mode, TypeError for other dtypes.

    >>> import numpy as np, numbadnn
    >>> numbadnn.softmax(np.zeros((1, 4), "float32"))
    array([[0.25, 0.25, 0.25, 0.25]], dtype=float32)
    """
    return dispatch.call1(_build_softmax, x, (algo, mode), backend, out, stream)


def softmax_grad(
    dy: Any,
    sm: Any,
    algo: str = "accurate",
    mode: str = "channel",
    *,
    backend: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of ``softmax`` from its *output* sm: ``dx = sm * (dy - sum(dy * sm))``; log: ``dy - exp(sm) * sum(dy)``.

    dy and sm have one shape and dtype; algo and mode are those of the forward call. Errors as softmax, and ValueError or
    TypeError where dy and sm differ. Source: spec/semantics.md 1.6.

    >>> import numpy as np, numbadnn
    >>> numbadnn.softmax_grad(np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]]))
    array([[ 0.25, -0.25]])
    """
    return dispatch.call2(_build_softmax_grad, dy, sm, (algo, mode), backend, out, stream)
