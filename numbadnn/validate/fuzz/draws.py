"""Random calls of the public functions, a function a family: shapes, strides, alignment, dtypes, options and destinations.

What is drawn is a ``Call`` with arrays of zeros; values come from the law of the problem that the public function makes of it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import numbadnn
from numbadnn import dispatch
from numbadnn.cases.layouts import operand
from numbadnn.measuring.data import buffer
from numbadnn.problem import ITEMSIZE
from numbadnn.problems.dropout import DropoutState
from numbadnn.problems.rnn_network import GATES, Network
from numbadnn.validate.fuzz.picks import Pick

LAYOUTS = ("", "", "nhwc", "rows", "reversed", "broadcast", "transposed", "steps", ",unaligned", "rows,unaligned")
#: what all arrays of a call are like, as most are; None: each has a layout of its own
ALIKE = (None, "", "", "nhwc", "nhwc")
#: kinds of convolutions
CONVOLUTIONS = ("any", "any", "plain", "plain", "plain", "grouped", "depthwise", "unshared", "unshared")
#: where a result goes: mostly to a new array
DESTINATIONS = (None, None, None, "", "nhwc", "rows", "reversed", "transposed", "steps", ",unaligned")
#: functions of two operations, which have no problem of their own
COMPOSED = ("spatialtf", "separable_conv2d", "separable_conv3d")
SCALES = (0.0, 1.0, 1.0, 0.5, -2.0, 3.25)
#: what is drawn from; a short run may take fewer, each costs the CPU's kernels a compilation
DTYPES = tuple(sorted(ITEMSIZE))


@dataclass(frozen=True)
class Call:
    """A public function with good arguments: arrays, other positional arguments, keywords."""

    function: str
    arrays: tuple[np.ndarray, ...]
    others: tuple[Any, ...]
    keywords: dict[str, Any]

    def __repr__(self) -> str:
        arrays = ", ".join(map(_shown, self.arrays))
        keywords = {name: _shown(value) for name, value in self.keywords.items()}
        return f"{self.function}({arrays}, {self.others}, {keywords})"


def _shown(value: Any) -> str:
    if isinstance(value, tuple) and any(isinstance(v, np.ndarray) for v in value):
        return f"({', '.join(map(_shown, value))})"
    return f"{value.dtype.name}{value.shape}{value.strides}" if isinstance(value, np.ndarray) else repr(value)


def problem_of(call: Call) -> Any:
    """The problem that the public function makes of a call; ValueError and TypeError are its own."""
    function = getattr(numbadnn, call.function)
    return dispatch.intercept("problem", function, (*call.arrays, *call.others), dict(call.keywords))


def _array(pick: Pick, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Zeros in a random layout, or in the one that this call's arrays all have."""
    return _zeros(dtype, shape, pick.one(LAYOUTS) if pick.alike is None else pick.alike)


def _zeros(dtype: str, shape: tuple[int, ...], layout: str, is_output: bool = False) -> np.ndarray:
    if layout.split(",")[0] in ("nhwc", "transposed") and len(shape) < 3:
        layout = ""
    return buffer(operand(dtype, shape, layout, is_output), 0).array


def with_destination(pick: Pick, call: Call) -> Call:
    """The same with ``out=`` in a layout of its own, now and then; and with alpha and beta where the function has them."""
    layout = pick.one(DESTINATIONS) if pick.alike is None else pick.one((None, None, pick.alike))
    scales = (pick.one(SCALES), pick.one(SCALES))
    if layout is None or call.function in COMPOSED:
        return call
    try:
        outputs = problem_of(call).outputs
    except ValueError:
        return call
    arrays = tuple(_zeros(s.dtype, s.shape, layout, is_output=True) for s in outputs)
    parameters = inspect.signature(getattr(numbadnn, call.function)).parameters
    name = "result" if "result" in parameters else "out"
    keywords = {**call.keywords, name: arrays if len(arrays) > 1 else arrays[0]}
    if "alpha" in parameters:
        keywords |= dict(zip(("alpha", "beta"), scales, strict=True))
    return replace(call, keywords=keywords)


# ---- families --------------------------------------------------------------------------------------------------------


def convolutions(pick: Pick) -> Call:
    """conv2d and conv3d, and their gradients: any, and such as layers are, which have kernels of their own."""
    kind, direction = pick.one(CONVOLUTIONS), pick.one(("", "_grad_wrt_inputs", "_grad_wrt_weights"))
    axes, dtype, plain = pick.one((2, 2, 2, 3)) if kind in ("any", "plain") else 2, pick.one(DTYPES), kind != "any"
    taps, keywords = _windows(pick, axes, plain and pick.number(0, 3) > 0)
    n, c, k = pick.size(3, 20), pick.size(4, 48), pick.size(5, 48)
    groups = pick.one((1, 1, 2, 3)) if kind == "any" else 1
    if kind == "grouped":
        groups, c, k = pick.size(3, 8), pick.one((4, 8, 16, 32)), pick.one((4, 8, 16, 32))
    if kind == "depthwise":
        groups, c, k = pick.size(4, 64), 1, pick.one((1, 1, 2))
    keywords["num_groups"] = groups
    image = tuple(pick.size(10, 24) if axes == 2 else pick.size(6, 9) for _ in range(axes))
    x, w = _array(pick, dtype, (n, c * groups, *image)), _array(pick, dtype, (k * groups, c, *taps))
    forward = Call(f"conv{axes}d", (x, w), (), keywords)
    try:
        y = problem_of(forward).y.shape
        if kind == "unshared":  # a filter for each position of the output
            w = _array(pick, dtype, (k * groups, *y[2:], c, *taps))
            forward = Call("conv2d", (x, w), (), keywords | {"unshared": True})
    except ValueError:  # the filters do not fit the image
        return forward
    grad = _array(pick, dtype, y)
    if direction == "_grad_wrt_inputs":
        return Call(f"conv{axes}d{direction}", (grad, w), (x.shape,), forward.keywords)
    if direction == "_grad_wrt_weights":
        return Call(f"conv{axes}d{direction}", (x, grad), (w.shape,), forward.keywords)
    return forward


def _windows(pick: Pick, axes: int, plain: bool) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Taps of the filters and how they go over the image; ``plain``: square ones, as most layers have them."""
    if plain:
        taps, stride, border = pick.one((1, 2, 3, 3, 3, 5)), pick.one((1, 1, 2)), pick.one(("half", "half", "valid"))
        return (min(taps, 6 - axes),) * axes, {"border_mode": border, "subsample": (stride,) * axes}
    pairs = tuple((pick.number(0, 3), pick.number(0, 3)) for _ in range(axes))
    steps = [[pick.one((1, 1, 2, 3)) for _ in range(axes)] for _ in range(2)]
    as_lists = pick.flag()
    return tuple(pick.number(1, 6 - axes) for _ in range(axes)), {
        "border_mode": pick.one(("valid", "half", "full", 1, (1,) * axes, pairs)),
        "subsample": steps[0] if as_lists else tuple(steps[0]),
        "filter_dilation": steps[1] if as_lists else tuple(steps[1]),
        "filter_flip": pick.flag(),
    }


def softmaxes(pick: Pick) -> Call:
    rank, rows, dtype = pick.number(2, 5), pick.flag(), pick.one(DTYPES)
    others, gradient = (pick.one(("accurate", "log", "fast")), pick.one(("channel", "instance"))), pick.flag()
    shape = tuple(pick.size(9, 40 if rank < 4 else 9) for _ in range(rank))
    if rows:
        shape = (pick.size(5, 40), pick.free(1, 3000))
    arrays = tuple(_array(pick, dtype, shape) for _ in range(1 + gradient))
    return Call("softmax_grad" if gradient else "softmax", arrays, others, {})


def pools(pick: Pick) -> Call:
    axes, dtype, gradient = pick.one((2, 2, 3)), pick.one(DTYPES), pick.flag()
    window = tuple(pick.number(1, 4) for _ in range(axes))
    others = (
        window,
        tuple(pick.number(1, 3) for _ in range(axes)),
        pick.one(("max", "max_deterministic", "average_inc_pad", "average_exc_pad", "sum")),
        tuple(pick.number(0, w - 1) for w in window),
    )
    image = tuple(pick.size(9, 40) if axes == 2 else pick.size(6, 9) for _ in range(axes))
    x = _array(pick, dtype, (pick.size(3, 8), pick.size(5, 24), *image))
    forward = Call("pool", (x,), others, {})
    if not gradient:
        return forward
    try:
        shape = problem_of(forward).y.shape
    except ValueError:
        return forward
    return Call("pool_grad", (x, _array(pick, dtype, shape), _array(pick, dtype, shape)), others, {})


def norms(pick: Pick) -> Call:
    rank, mode, dtype = pick.number(2, 5), pick.one(("per-activation", "spatial")), pick.one(DTYPES)
    name, epsilon, running = pick.one(("train", "test", "train_grad", "test_grad")), pick.one((1e-4, 0.5)), pick.flag()
    shape = tuple(pick.size(6, 64 if rank < 4 else 12) for _ in range(rank))
    small = (1, *shape[1:]) if mode == "per-activation" else (1, shape[1], *(1,) * (len(shape) - 2))
    like_x, others = (2, 3) if "grad" in name else (1, 2 if name == "train" else 4)
    kept = "float32" if ITEMSIZE[dtype] == 2 and pick.flag() else dtype  # as training in mixed precision has them
    arrays = tuple(_array(pick, dtype, shape) for _ in range(like_x))
    arrays += tuple(_array(pick, kept, small) for _ in range(others))
    keywords: dict[str, Any] = {}
    if name == "train" and running:
        keywords = {f"running_{what}": _array(pick, kept, small) for what in ("mean", "var")}
        keywords["running_average_factor"] = pick.one((0.1, 0.75))
    return Call(f"batch_normalization_{name}", arrays, (mode, epsilon), keywords)


def upsamplings(pick: Pick) -> Call:
    dtype, gradient = pick.one(DTYPES), pick.flag()
    pairs = tuple((pick.number(1, 4), pick.number(1, 3)) for _ in range(2))
    ratios: tuple[dict[str, Any], ...] = ({"ratio": pick.number(1, 4)}, {"frac_ratio": pairs[0]}, {"frac_ratio": pairs})
    keywords = pick.one(ratios)
    shape = (pick.size(3, 6), pick.size(9, 24), pick.size(7, 30), pick.size(7, 30))
    forward = Call("bilinear_upsampling", (_array(pick, dtype, shape),), (), keywords)
    if not gradient:
        return forward
    dy = _array(pick, dtype, problem_of(forward).output.shape)
    return Call("bilinear_upsampling_grad", (dy,), (shape,), keywords)


def samplers(pick: Pick) -> Call:
    """The spatial transformer: its grid, its sampler, their gradients, and all of it."""
    dtype, name = pick.one(DTYPES), pick.one(("", "_grid", "_grid_grad", "_sampler", "_sampler", "_sampler_grad"))
    scale = pick.one((1, 2, 0.5))
    shape = (pick.size(3, 8), pick.size(18, 32), pick.size(8, 24), pick.size(8, 24))
    n, points = shape[0], (pick.size(6, 24), pick.size(6, 24))
    if name == "_grid_grad":
        return Call("spatialtf_grid_grad", (_array(pick, dtype, (n, *points, 2)),), (), {})
    if name == "_grid":
        return Call("spatialtf_grid", (_array(pick, dtype, (n, 2, 3)),), ((n, 1, *points),), {})
    img = _array(pick, dtype, shape)
    if not name:
        return Call("spatialtf", (img, _array(pick, dtype, (n, 2, 3))), (scale,), {})
    arrays = [img, _array(pick, dtype, (n, *points, 2))]
    if name == "_sampler_grad":
        arrays.append(_array(pick, dtype, (*shape[:2], *points)))
    return Call(f"spatialtf{name}", tuple(arrays), (), {})


def dropouts(pick: Pick) -> Call:
    rank, p, dtype = pick.number(1, 5), pick.one((0.0, 0.1, 0.5, 0.75, 1.0)), pick.one(DTYPES)
    gradient, shape = pick.flag(), tuple(pick.size(9, 60 if rank < 4 else 9) for _ in range(rank))
    seed, offset = pick.free(0, 2**64 - 1), pick.free(0, 2**40)
    array = _array(pick, dtype, shape)
    if gradient:
        return Call("dropout_grad", (array,), (DropoutState(p, seed >> 1, offset, shape, "philox"),), {})
    return Call("dropout", (array,), (p,), {"seed": seed, "offset": offset})


def recurrences(pick: Pick) -> Call:
    """Networks of 1 to 4 layers, in one direction or both, with and without lengths."""
    dtype, layers = pick.one([d for d in DTYPES if d != "bfloat16"]), pick.one((1, 1, 2, 2, 3, 4))
    mode, both, skip = pick.one(tuple(GATES)), pick.flag(), pick.number(0, 3) == 3
    backward, has_lengths, given = pick.flag(), pick.flag(), {n: pick.flag() for n in ("cx", "dy", "dhy", "dcy")}
    steps, batch = pick.size(4, 9), pick.size(5, 64)
    # the kernels that keep their state are compiled for each size of it
    hidden = pick.size(5, 130) if pick.flag() else pick.one((8, 32, 64, 96, 128))
    width = hidden if skip else pick.size(5, 64)
    keywords: dict[str, Any] = {
        "hidden_size": hidden,
        "num_layers": layers,
        "rnn_mode": mode,
        "input_mode": "skip" if skip else "linear",
        "direction_mode": "bidirectional" if both else "unidirectional",
    }
    network = Network(**keywords)
    if has_lengths:
        keywords["lengths"] = [pick.free(1, steps) for _ in range(batch)]
    state, output = (layers * network.directions, batch, hidden), (steps, batch, hidden * network.directions)
    shapes = {"cx": state, "dy": output, "dhy": state, "dcy": state}
    possible = [n for n in (shapes if backward else ("cx",)) if n in ("dy", "dhy") or network.has_cell]
    names = [n for n in possible if given[n]]
    first = ((network.blocks(width)[1],), (steps, batch, width), state)
    arrays = tuple(_array(pick, dtype, s) for s in (*first, *(shapes[n] for n in names)))
    if backward:
        return Call("rnn_backward", arrays, (), {**keywords, "given": tuple(names)})
    return Call("rnn_forward", arrays, (), keywords)


def derived(pick: Pick) -> Call:
    """What is made of convolutions: corr_mm, transposed and separable convolution, conv3d on frames."""
    kind, axes, dtype = pick.one(("corr", "transpose", "separable", "frames")), pick.one((2, 2, 3)), pick.one(DTYPES)
    n, c, k = pick.size(3, 8), pick.size(4, 24), pick.size(5, 24)
    taps = tuple(pick.number(1, 5 - axes) for _ in range(axes))
    border, direction = pick.one(("valid", "half", "full")), pick.one(("", "_grad_inputs", "_grad_weights"))
    keywords: dict[str, Any] = {"border_mode": border}
    if kind == "frames":
        taps, image = tuple(pick.number(1, 2) for _ in range(3)), tuple(pick.size(5, 8) for _ in range(3))
        arrays = _array(pick, dtype, (n, image[0], c, *image[1:])), _array(pick, dtype, (k, taps[0], c, *taps[1:]))
        return Call("conv3d2d", arrays, (), keywords)
    image = tuple(pick.size(8, 16) if axes == 2 else pick.size(5, 8) for _ in range(axes))
    keywords |= {name: tuple(pick.number(1, 2) for _ in range(axes)) for name in ("subsample", "filter_dilation")}
    x, w = _array(pick, dtype, (n, c, *image)), _array(pick, dtype, (k, c, *taps))
    if kind == "separable":
        depthwise, pointwise = _array(pick, dtype, (2 * c, 1, *taps)), _array(pick, dtype, (k, 2 * c, *(1,) * axes))
        return Call(f"separable_conv{axes}d", (x, depthwise, pointwise), (c,), keywords)
    stem = "corr_mm" if axes == 2 else "corr3d_mm"
    forward = Call(stem, (x, w), (), keywords)
    if kind == "corr" and not direction:
        return forward
    try:
        y = _array(pick, dtype, problem_of(forward).y.shape)
    except ValueError:  # the filters do not fit the image
        return forward
    if kind == "transpose":
        keywords["input_dilation"] = keywords.pop("subsample")
        return Call(f"conv{axes}d_transpose", (y, w), (x.shape,), keywords)
    if direction == "_grad_inputs":
        return Call(f"{stem}{direction}", (w, y), (image,), keywords)
    return Call(f"{stem}{direction}", (x, y), (taps,), keywords)


def lines(pick: Pick) -> Call:
    """Causal convolution of long and short lines."""
    dtype, taps, flip = pick.one(DTYPES), pick.number(1, 5), pick.flag()
    groups = pick.one((1, 1, 1, 2))
    keywords = {
        "subsample": pick.one((1, 1, 2, 3)), "filter_dilation": pick.number(1, 5), "filter_flip": flip,
        "num_groups": groups,
    }  # fmt: skip
    n, c, k, line = pick.size(3, 6), pick.size(4, 64), pick.size(5, 64), pick.size(40, 300)
    arrays = _array(pick, dtype, (n, c * groups, line)), _array(pick, dtype, (k * groups, c, taps))
    return Call("causal_conv1d", arrays, (), keywords)


#: several times what has the most implementations, and what issues the most launches; forms take them in turn
FAMILIES: tuple[Callable[[Pick], Call], ...] = (
    convolutions, softmaxes, recurrences, convolutions, pools, norms, convolutions, samplers, lines, recurrences, convolutions,
    dropouts, derived, upsamplings,
)  # fmt: skip


def draw(pick: Pick, family: Callable[[Pick], Call] | None = None) -> Call:
    """A call of a function of a family, or of any."""
    pick.alike = pick.one(ALIKE)
    return with_destination(pick, (family or pick.one(FAMILIES))(pick))


def composed(call: Call) -> Any:
    """The result of a function that is two operations, by calling these; None where it is one."""
    keywords = {name: value for name, value in call.keywords.items() if name != "out"}
    if call.function == "spatialtf":
        (img, theta), (scale,) = call.arrays, call.others
        n, c, h, w = img.shape
        grid = numbadnn.spatialtf_grid(theta, (n, c, h, math.ceil(w * scale)))
        return numbadnn.spatialtf_sampler(img, grid)
    if call.function.startswith("separable"):
        conv = getattr(numbadnn, call.function.removeprefix("separable_"))
        x, depthwise, pointwise = call.arrays
        return conv(conv(x, depthwise, num_groups=call.others[0], **keywords), pointwise)
    return None
