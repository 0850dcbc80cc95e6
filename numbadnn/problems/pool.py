"""Pooling and its gradient over the last two or three axes: the problem.

A window of ``window`` elements slides by ``stride`` over the image with ``pad`` elements around it that hold nothing: output
o of an axis sees the elements o*stride - pad ... o*stride - pad + window - 1 that are inside. As pad < window and the
window fits the padded image, every window holds at least one element of the image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from numbadnn.parameters import check_rank
from numbadnn.problem import Spec, integers, operand

MODES = ("max", "max_deterministic", "average_inc_pad", "average_exc_pad", "sum")

OPERANDS = {"pool": ("x", "y"), "pool_grad": ("x", "y", "dy", "dx")}


@dataclass(frozen=True, slots=True)
class PoolProblem:
    """pool: ``x`` -> ``y``; pool_grad: ``x``, ``y`` (the forward output), ``dy`` -> ``dx``. One dtype for all.

    x and dx are (N, C, spatial...), y and dy (N, C, output spatial...); ``window``, ``stride`` and ``pad`` have one number
    a spatial axis.
    """

    op: str
    x: Spec
    y: Spec
    dy: Spec | None
    dx: Spec | None
    window: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    mode: str = "max"

    @staticmethod
    def of(
        op: str,
        specs: dict[str, Spec],
        window: tuple[int, ...],
        stride: tuple[int, ...],
        pad: tuple[int, ...],
        mode: str,
    ) -> PoolProblem:
        """The problem of these operands, by name."""
        return PoolProblem(op, specs["x"], specs["y"], specs.get("dy"), specs.get("dx"), window, stride, pad, mode)

    #: name of the destination keyword of the public function
    @property
    def out_argument(self) -> str:
        return "out" if self.op == "pool" else "result"

    @property
    def inputs(self) -> tuple[Spec, ...]:
        return (self.x,) if self.op == "pool" else (self.x, self.y, self.dy)  # type: ignore[return-value]

    @property
    def output(self) -> Spec:
        return self.y if self.op == "pool" else self.dx  # type: ignore[return-value]

    @property
    def outputs(self) -> tuple[Spec, ...]:
        return (self.output,)

    @property
    def is_max(self) -> bool:
        return self.mode in ("max", "max_deterministic")

    @property
    def flops(self) -> int:
        return self.y.size * math.prod(self.window)

    @property
    def bytes(self) -> int:
        """What must move: the gradient of an average needs dy and dx, that of a maximum x too, neither y."""
        if self.op == "pool":
            return (self.x.size + self.y.size) * self.x.itemsize
        return (self.x.size * (2 if self.is_max else 1) + self.y.size) * self.x.itemsize

    @property
    def keywords(self) -> dict[str, Any]:
        """The parameters as keyword arguments of the public function, and of the reference."""
        return {"ws": self.window, "stride": self.stride, "mode": self.mode, "pad": self.pad}

    def __str__(self) -> str:
        operands = " ".join(f"{n}={getattr(self, n)}" for n in OPERANDS[self.op])
        axes = " ".join(f"{n}={'x'.join(map(str, getattr(self, n)))}" for n in ("window", "stride", "pad"))
        return f"{self.op} {operands} {axes} mode={self.mode}"

    @staticmethod
    def parse(text: str) -> PoolProblem:
        """The inverse of ``str``; operands left out are packed like x, stride is the window, pad zero, mode max.

        >>> str(PoolProblem.parse("pool x=float32:2x3x8x8 window=2x2"))
        'pool x=float32:2x3x8x8 y=float32:2x3x4x4 window=2x2 stride=2x2 pad=0x0 mode=max'
        """
        op, *words = text.split()
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        known = {*OPERANDS.get(op, ()), "window", "stride", "pad", "mode"}
        if op not in OPERANDS or len(fields) != len(words) or not {"x", "window"} <= set(fields) <= known:
            raise ValueError(f"expected '{op} x=SPEC window=2x2' and stride=.. pad=.. mode=.., got {text!r}")
        x = operand(fields["x"])
        window = integers("window", fields["window"], "x")
        stride = integers("stride", fields["stride"], "x") if "stride" in fields else window
        pad = integers("pad", fields["pad"], "x") if "pad" in fields else (0,) * len(window)
        mode = fields.get("mode", "max")
        spatial = output_sizes("x", x.shape, window, stride, pad, mode)
        shapes = {"y": (*x.shape[:2], *spatial), "dx": x.shape}
        shapes["dy"] = shapes["y"]
        specs: dict[str, Spec | None] = dict.fromkeys(("y", "dy", "dx"))
        for name in OPERANDS[op][1:]:
            shape = shapes[name]
            given = fields.get(name) or str(Spec.of(x.dtype, shape, x.layout))
            spec = operand(given, result=name == OPERANDS[op][-1])
            if (spec.dtype, spec.shape) != (x.dtype, shape):
                raise ValueError(f"{name}: expected {x.dtype} {shape}, got {spec}")
            specs[name] = spec
        assert specs["y"] is not None
        return PoolProblem(op, x, specs["y"], specs["dy"], specs["dx"], window, stride, pad, mode)


PROBLEM = PoolProblem


def check_windows(window: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...], least: int = 2) -> None:
    """Windows of ``least`` axes or more, their steps and the padding fit each other, else ValueError."""
    if not least <= len(window) <= 3:
        raise ValueError(f"ws: expected {'1, 2' if least == 1 else '2'} or 3 integers, got {window}")
    for what, values, least in (("ws", window, 1), ("stride", stride, 1), ("pad", pad, 0)):
        if len(values) != len(window):
            raise ValueError(f"{what}: expected {len(window)} integers, as ws has, got {values}")
        if min(values) < least:
            raise ValueError(f"{what}: expected integers of at least {least}, got {values}")
    if any(p >= w for p, w in zip(pad, window, strict=True)):
        raise ValueError(f"pad: expected less than the window {window} on every axis, got {pad}")


def output_sizes(
    name: str,
    shape: tuple[int, ...],
    window: tuple[int, ...],
    stride: tuple[int, ...],
    pad: tuple[int, ...],
    mode: Any,
    least: int = 2,
) -> tuple[int, ...]:
    """The output's spatial sizes, after every check that the parameters and the image's shape admit; ``least``: axes."""
    if mode not in MODES:
        hint = "; average_exc_pad leaves the padding out" if isinstance(mode, str) and mode in ("avg", "mean") else ""
        raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}{hint}")
    check_windows(window, stride, pad, least)
    check_rank(name, shape, len(window) + 2, f"for a window {window}")
    spatial = shape[2:]
    if min(spatial) < 1:
        raise ValueError(f"{name}: expected spatial axes of at least one element, got shape {shape}")
    if any(w > n + 2 * p for n, w, p in zip(spatial, window, pad, strict=True)):
        raise ValueError(f"ws: expected no more than the padded image of {name}, {shape} with pad {pad}, got {window}")
    return tuple((n + 2 * p - w) // s + 1 for n, w, s, p in zip(spatial, window, stride, pad, strict=True))
