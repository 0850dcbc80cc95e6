"""Convolutions and their gradients: the one problem that describes them all.

``x`` (N, C, H, W), ``w`` (K, C/G, R, S) and ``y`` (N, K, P, Q) are always the image, the filters and the output of the
*forward* convolution, whichever of them ``op`` computes; with three spatial axes there is a D, a T and an O before them.
Unshared filters have one for each output position, (K, P, Q, C/G, R, S). Two operations take their arrays in other axes than
the problem's own: causal_conv1d, a line as an image of one row, and conv3d2d, time before channels; ``inputs`` and
``outputs`` are the caller's arrays, ``x``, ``w`` and ``y`` the same memory in the order above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from numbadnn import parameters, shapes
from numbadnn.problem import Spec, integer, integers, normalised_strides, number, shown


class Operation(NamedTuple):
    """What an operation computes: inputs in call order and output, as names of ConvProblem's operands."""

    direction: str  # forward, grad_inputs, grad_weights
    axes: int  # spatial axes of the operands
    inputs: tuple[str, str]
    output: str
    arrangement: str = ""  # how the caller's axes differ from the problem's: "line", "frames"


OPERATIONS = {
    "conv2d": Operation("forward", 2, ("x", "w"), "y"),
    "conv2d_grad_wrt_inputs": Operation("grad_inputs", 2, ("y", "w"), "x"),
    "conv2d_grad_wrt_weights": Operation("grad_weights", 2, ("x", "y"), "w"),
    "conv3d": Operation("forward", 3, ("x", "w"), "y"),
    "conv3d_grad_wrt_inputs": Operation("grad_inputs", 3, ("y", "w"), "x"),
    "conv3d_grad_wrt_weights": Operation("grad_weights", 3, ("x", "y"), "w"),
    "causal_conv1d": Operation("forward", 2, ("x", "w"), "y", "line"),
    "conv3d2d": Operation("forward", 3, ("x", "w"), "y", "frames"),
}
#: the three directions of conv2d -> (inputs in call order, output)
DIRECTIONS = {op: OPERATIONS[op][2:4] for op in OPERATIONS if op.startswith("conv2d")}


@dataclass(frozen=True, slots=True)
class ConvProblem:
    """result = alpha * op + beta * result, with op one of OPERATIONS; padding is ((top, bottom), (left, right)).

    ``flip`` True is convolution (the filter is rotated by 180 degrees), False is correlation.
    """

    op: str
    x: Spec
    w: Spec
    y: Spec
    padding: tuple[tuple[int, int], ...]
    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    flip: bool = True
    groups: int = 1
    alpha: float = 1.0
    beta: float = 0.0

    MEANT: ClassVar = ("alpha", "beta")

    @property
    def direction(self) -> str:
        """forward, grad_inputs or grad_weights."""
        return OPERATIONS[self.op].direction

    @property
    def axes(self) -> int:
        """Spatial axes: 2 or 3."""
        return len(self.stride)

    @property
    def unshared(self) -> bool:
        """Whether there is a filter of its own for each output position."""
        return len(self.w.shape) > self.axes + 2

    @property
    def taps(self) -> tuple[int, ...]:
        """The filters' sizes: (R, S), or (T, R, S)."""
        return self.w.shape[-self.axes :]

    @property
    def input_names(self) -> tuple[str, str]:
        """The operands that are read, in call order."""
        return OPERATIONS[self.op].inputs

    @property
    def output_name(self) -> str:
        return OPERATIONS[self.op].output

    @property
    def inputs(self) -> tuple[Spec, ...]:
        """The caller's arrays."""
        return tuple(theirs(self.op, getattr(self, name)) for name in self.input_names)

    @property
    def output(self) -> Spec:
        return theirs(self.op, getattr(self, self.output_name))

    @property
    def outputs(self) -> tuple[Spec, ...]:
        return (self.output,)

    @property
    def flops(self) -> int:
        """Multiplications and additions of the direct sum, taps that fall on padding included."""
        return 2 * self.y.size * math.prod(self.w.shape[-self.axes - 1 :])

    @property
    def bytes(self) -> int:
        """Each input read once, the output written once (and read once when beta is not 0)."""
        moved = sum(s.size * s.itemsize for s in (self.x, self.w, self.y))
        return moved + (self.output.size * self.output.itemsize if self.beta else 0)

    @property
    def symmetric(self) -> bool:
        return all(low == high for low, high in self.padding)

    @property
    def keywords(self) -> dict[str, Any]:
        """The parameters as keyword arguments of the public function, and of the reference."""
        arrangement = OPERATIONS[self.op].arrangement
        if arrangement == "frames":
            return {"border_mode": _border_names(self)}
        shared = {"filter_flip": self.flip, "num_groups": self.groups}
        if self.unshared or arrangement:
            shared["unshared"] = self.unshared
        if arrangement == "line":
            return {"subsample": self.stride[1], "filter_dilation": self.dilation[1], **shared}
        shape = {"grad_inputs": {"input_shape": self.x.shape}, "grad_weights": {"filter_shape": self.w.shape}}
        return {
            **shape.get(self.direction, {}),
            "border_mode": self.padding,
            "subsample": self.stride,
            "filter_dilation": self.dilation,
            **shared,
            "alpha": self.alpha,
            "beta": self.beta,
        }

    def __str__(self) -> str:
        def listed(values: tuple[int, ...]) -> str:
            return ",".join(map(str, values))

        pad = listed(tuple(p for axis in self.padding for p in axis))
        return (
            f"{self.op} x={self.x} w={self.w} y={self.y} pad={pad} stride={listed(self.stride)} "
            f"dilation={listed(self.dilation)} flip={int(self.flip)} groups={self.groups} "
            f"alpha={shown(self.alpha)} beta={shown(self.beta)}"
        )

    @staticmethod
    def parse(text: str) -> ConvProblem:
        """The inverse of ``str``; left out: no padding, stride and dilation 1, flip 1, groups 1, alpha 1, beta 0, y packed.

        >>> str(ConvProblem.parse("conv2d x=float32:1x2x5x5 w=float32:3x2x3x3 pad=1,1,1,1")).split()[3]
        'y=float32:1x3x5x5'
        """
        op, fields = _fields(text)
        axes = OPERATIONS[op].axes
        x, w = Spec.parse(fields["x"]), Spec.parse(fields["w"])
        check_ranks(axes, x.shape, w.shape)
        x, w = (_as_called(op, name, spec) for name, spec in (("x", x), ("w", w)))

        def numbers(name: str, default: int, count: int) -> tuple[int, ...]:
            values = integers(name, fields[name]) if name in fields else (default,) * count
            if len(values) != count:
                raise ValueError(f"{name}: expected {count} numbers for {op}, got {values}")
            return values

        pad, stride, dilation = numbers("pad", 0, 2 * axes), numbers("stride", 1, axes), numbers("dilation", 1, axes)
        padding = tuple(zip(pad[::2], pad[1::2], strict=True))
        shape = shapes.assert_conv_shape(shapes.get_conv_output_shape(x.shape, w.shape, padding, stride, dilation))
        y = Spec.parse(fields["y"]) if "y" in fields else Spec.of(x.dtype, shape, x.layout)
        if len(y.shape) == len(x.shape):
            y = _as_called(op, "y", y)
        groups = parameters.as_int("groups", integer("groups", fields.get("groups", "1")), 1)
        check_channels(x.shape, w.shape, groups, axes)
        if y.shape != shape or {x.dtype, w.dtype, y.dtype} != {x.dtype}:
            raise ValueError(f"expected y of shape {shape} and one dtype for all operands, got {text!r}")
        check_regions(w.shape, shape, axes)
        alpha, beta = number("alpha", fields.get("alpha", "1")), number("beta", fields.get("beta", "0"))
        if (flip := fields.get("flip", "1")) not in ("0", "1"):
            raise ValueError(f"flip: expected 0 or 1, got {flip!r}")
        problem = ConvProblem(op, x, w, y, padding, stride, dilation, flip == "1", groups, alpha, beta)
        if OPERATIONS[op].arrangement:
            _check_arranged(problem)
        return problem


PROBLEM = ConvProblem


def _fields(text: str) -> tuple[str, dict[str, str]]:
    """The operation and the name=value words of a problem's line."""
    op, *words = text.split()
    if op not in OPERATIONS:
        raise ValueError(f"expected one of {', '.join(OPERATIONS)}, got {op!r}")
    fields = dict(word.split("=", 1) for word in words if "=" in word)
    known = {"x", "w", "y", "pad", "stride", "dilation", "flip", "groups", "alpha", "beta"}
    if len(fields) != len(words) or not {"x", "w"} <= set(fields) <= known:
        raise ValueError(
            f"expected '{op} x=SPEC w=SPEC [y=SPEC] [{'=.. '.join(sorted(known - set('xwy')))}=..]', got {text!r}"
            + _fault(words, known)
        )
    return op, fields


def _fault(words: list[str], known: set[str]) -> str:
    """Which word of a line is not as it should be, to be added to an error.

    >>> _fault(["x=float32:1x1x5x5", "padding=1,1,1,1"], {"x", "w", "pad"})
    ": there is no 'padding'"
    """
    names = [word.partition("=")[0] for word in words]
    plain = [word for word in words if "=" not in word]
    faults = [f"there is no {name!r}" for name in names if name not in known]
    faults += [f"{name!r} has no value" for name in plain if name in known]
    faults += [f"{name}=SPEC is missing" for name in ("x", "w") if name not in names]
    faults += [f"{name!r} is there twice" for name in sorted(known) if names.count(name) > 1]
    return f": {faults[0]}" if faults else ""


def _as_called(op: str, name: str, spec: Spec) -> Spec:
    """An operand as the call has it: an input is the view of an array, whose free strides are canonical in its own axes."""
    if OPERATIONS[op].output == name:
        return spec
    array = theirs(op, spec)
    return ours(op, replace(array, strides=normalised_strides(array.shape, array.strides)))


def check_ranks(axes: int, image: tuple[int, ...], filters: tuple[int, ...]) -> None:
    """An image and filters of ``axes`` spatial axes, else ValueError; unshared filters have two axes of regions more."""
    if len(image) != axes + 2:
        raise ValueError(f"x: expected {axes + 2} axes, got {image}")
    if len(filters) != axes + 2 and (axes != 2 or len(filters) != 6):
        raise ValueError(f"w: expected {axes + 2} axes{', or 6 (unshared)' if axes == 2 else ''}, got {filters}")


def check_channels(
    image: tuple[int, ...],
    filters: tuple[int, ...],
    groups: int,
    axes: int = 2,
    x_name: str = "x",
    w_name: str = "w",
    groups_name: str = "num_groups",
) -> None:
    """Channels, filters and groups fit together, else ValueError."""
    c, k, last = image[1], filters[0], parameters.channels_last(x_name, image, filters[-axes - 1] * groups)
    if c % groups:
        raise ValueError(f"{groups_name}: expected a divisor of the {c} channels of {x_name}, got {groups}{last}")
    if k % groups:
        raise ValueError(f"{groups_name}: expected a divisor of the {k} filters of {w_name}, got {groups}")
    if filters[-axes - 1] != c // groups:
        raise ValueError(
            f"{w_name}: expected {c // groups} channels ({c} channels of {x_name} in {groups} groups), "
            f"got {filters[-axes - 1]}{last or _filters_last(w_name, filters, c // groups, axes)}"
        )


def _filters_last(name: str, filters: tuple[int, ...], channels: int, axes: int) -> str:
    """The same of filters whose last two axes are channels and filters, as other libraries have them."""
    if len(filters) == axes + 2 and filters[-2] == channels:
        return f"; if its axes are (sizes, channels, filters): moveaxis({name}, (-1, -2), (0, 1))"
    return ""


def check_regions(filters: tuple[int, ...], output: tuple[int, ...], axes: int, w_name: str = "w") -> None:
    """Unshared filters: one for each position of the (strided) output, else ValueError."""
    if len(filters) > axes + 2 and filters[1 : axes + 1] != output[2:]:
        raise ValueError(
            f"{w_name}: expected one filter for each output position {output[2:]}, got {filters[1 : axes + 1]}"
        )


# ---- arrays in other axes --------------------------------------------------------------------------------------------


def ours(op: str, spec: Spec) -> Spec:
    """The operand in the problem's axes, from the caller's array: the same memory."""
    arrangement, shape, strides = OPERATIONS[op].arrangement, spec.shape, spec.strides
    if arrangement == "frames":  # (N, T, C, H, W) -> (N, C, T, H, W)
        return Spec(spec.dtype, _swapped(shape), _swapped(strides), spec.aligned)
    if arrangement == "line":  # (N, C, T) -> (N, C, 1, T); unshared filters (K, Q, C, S) -> (K, 1, Q, C, 1, S)
        shape, strides = _with_rows(shape, 1), _with_rows(strides, 0)
        return Spec(spec.dtype, shape, normalised_strides(shape, strides), spec.aligned)
    return spec


def theirs(op: str, spec: Spec) -> Spec:
    """The caller's array, from the operand in the problem's axes: the inverse of ``ours``."""
    arrangement = OPERATIONS[op].arrangement
    if not arrangement:
        return spec
    if arrangement == "frames":
        return Spec(spec.dtype, _swapped(spec.shape), _swapped(spec.strides), spec.aligned)
    kept = (0, 2, 3, 5) if len(spec.shape) == 6 else (0, 1, 3)
    shape, strides = (tuple(values[i] for i in kept) for values in (spec.shape, spec.strides))
    return Spec(spec.dtype, shape, normalised_strides(shape, strides), spec.aligned)


def _swapped(values: tuple[int, ...]) -> tuple[int, ...]:
    first, second, third, *rest = values
    return (first, third, second, *rest)


def _with_rows(values: tuple[int, ...], row: int) -> tuple[int, ...]:
    if len(values) == 4:
        return (values[0], row, values[1], values[2], row, values[3])
    return (*values[:2], row, values[2])


def _border_names(problem: ConvProblem) -> tuple[str, ...]:
    """The border mode of each axis; ValueError for padding that has no name."""
    names = []
    for (low, high), k in zip(problem.padding, problem.taps, strict=True):
        known = {"valid": 0, "full": k - 1, "half": k // 2}
        fitting = [name for name, pad in known.items() if low == high == pad]
        if not fitting:
            raise ValueError(f"pad: {problem.op} expects valid, full or half on each axis, got {problem.padding}")
        names.append(fitting[0])
    return tuple(names)


def _check_arranged(problem: ConvProblem) -> None:
    """What the functions of arranged arrays cannot express is a ValueError."""
    if problem.alpha != 1 or problem.beta != 0:
        raise ValueError(f"{problem.op} has no alpha and beta, got alpha={problem.alpha:g} beta={problem.beta:g}")
    if OPERATIONS[problem.op].arrangement == "frames":
        _border_names(problem)
        plain = problem.stride == problem.dilation == (1, 1, 1) and problem.flip and problem.groups == 1
        if not plain:
            raise ValueError(f"{problem.op} expects stride, dilation, flip and groups left out, got {problem}")
        return
    past = (problem.taps[1] - 1) * problem.dilation[1]
    rows = (problem.x.shape[2], problem.taps[0], problem.stride[0], problem.dilation[0])
    if rows != (1, 1, 1, 1) or problem.padding != ((0, 0), (past, 0)):
        raise ValueError(f"{problem.op} expects images of one row and pad=0,0,{past},0, got {problem}")
