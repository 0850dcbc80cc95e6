"""Random calls of the public functions, a strategy a family: shapes, strides, alignment, dtypes and options.

What is drawn is a ``Call`` with arrays of zeros; values come from the law of the problem that the function makes of it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import numbadnn
from numbadnn import dispatch
from numbadnn.cases.layouts import operand
from numbadnn.measuring.data import buffer
from numbadnn.problem import ITEMSIZE
from numbadnn.problems.dropout import DropoutState
from numbadnn.problems.rnn_network import GATES, Network

LAYOUTS = ("", "", "nhwc", "rows", "reversed", "broadcast", "transposed", "steps", ",unaligned", "rows,unaligned")


class Call(NamedTuple):
    """A public function with good arguments: arrays, other positional arguments, keywords."""

    function: str
    arrays: tuple[np.ndarray, ...]
    others: tuple[Any, ...]
    keywords: dict[str, Any]

    def __repr__(self) -> str:
        arrays = ", ".join(f"{a.dtype.name}{a.shape}{a.strides}" for a in self.arrays)
        return f"{self.function}({arrays}, {self.others}, {self.keywords})"


def _array(draw: Any, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Zeros in a random layout; the values come from the family's law."""
    layout = draw(st.sampled_from(LAYOUTS))
    if layout.split(",")[0] in ("nhwc", "transposed") and len(shape) < 3:
        layout = ""
    return buffer(operand(dtype, shape, layout), 0).array


#: what is drawn from; a short run may take fewer, each costs the CPU's kernels a compilation
DTYPES = tuple(sorted(ITEMSIZE))


def _dtype(draw: Any) -> str:
    return draw(st.sampled_from(DTYPES))


def _sizes(draw: Any, count: int, most: int) -> tuple[int, ...]:
    return tuple(draw(st.integers(1, most)) for _ in range(count))


@st.composite
def convolutions(draw: Any) -> Call:
    """conv2d and conv3d, and their gradients."""
    axes = draw(st.sampled_from((2, 2, 2, 3)))
    dtype, groups = _dtype(draw), draw(st.sampled_from((1, 1, 1, 2, 3)))
    n, c, k = (draw(st.integers(1, m)) for m in (3, 4, 5))
    taps, image = _sizes(draw, axes, 6 - axes), _sizes(draw, axes, 10 if axes == 2 else 6)
    pairs = tuple((draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in range(axes))
    border = draw(st.sampled_from(("valid", "half", "full", 1, (1,) * axes, pairs)))
    keywords: dict[str, Any] = {
        "border_mode": border,
        "subsample": _sizes(draw, axes, 3),
        "filter_dilation": _sizes(draw, axes, 3),
        "filter_flip": draw(st.booleans()),
        "num_groups": groups,
    }
    if draw(st.booleans()):
        keywords |= {"subsample": list(keywords["subsample"]), "filter_dilation": list(keywords["filter_dilation"])}
    x, w = _array(draw, dtype, (n, c * groups, *image)), _array(draw, dtype, (k * groups, c, *taps))
    forward = Call(f"conv{axes}d", (x, w), (), keywords)
    if axes == 2 and draw(st.integers(0, 3)) == 3:  # a filter for each position of the output
        try:
            positions = problem_of(forward).y.shape[2:]
        except ValueError:
            return forward
        w = _array(draw, dtype, (k * groups, *positions, c, *taps))
        forward = Call("conv2d", (x, w), (), keywords | {"unshared": True})
    direction = draw(st.sampled_from(("", "_grad_wrt_inputs", "_grad_wrt_weights")))
    if not direction:
        return forward
    try:
        y = _array(draw, dtype, problem_of(forward).y.shape)
    except ValueError:  # the filters do not fit the image
        return forward
    if direction == "_grad_wrt_inputs":
        return Call(f"conv{axes}d{direction}", (y, w), (x.shape,), forward.keywords)
    return Call(f"conv{axes}d{direction}", (x, y), (w.shape,), forward.keywords)


@st.composite
def softmaxes(draw: Any) -> Call:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=2, max_size=5)))
    if draw(st.booleans()):
        shape = (draw(st.integers(1, 5)), draw(st.integers(1, 3000)))
    dtype, others = (
        _dtype(draw),
        (draw(st.sampled_from(("accurate", "log"))), draw(st.sampled_from(("channel", "instance")))),
    )
    arrays = [_array(draw, dtype, shape) for _ in range(draw(st.integers(1, 2)))]
    return Call("softmax" if len(arrays) == 1 else "softmax_grad", tuple(arrays), others, {})


@st.composite
def pools(draw: Any) -> Call:
    axes, dtype = draw(st.sampled_from((2, 2, 3))), _dtype(draw)
    image = tuple(draw(st.integers(1, 9 if axes == 2 else 6)) for _ in range(axes))
    window, stride = _sizes(draw, axes, 4), _sizes(draw, axes, 3)
    pad = tuple(draw(st.integers(0, w - 1)) for w in window)
    mode = draw(st.sampled_from(("max", "max_deterministic", "average_inc_pad", "average_exc_pad", "sum")))
    x = _array(draw, dtype, (draw(st.integers(1, 3)), draw(st.integers(1, 5)), *image))
    others = (window, stride, mode, pad)
    forward = Call("pool", (x,), others, {})
    if draw(st.booleans()):
        return forward
    try:
        shape = problem_of(forward).y.shape
    except ValueError:
        return forward
    return Call("pool_grad", (x, _array(draw, dtype, shape), _array(draw, dtype, shape)), others, {})


@st.composite
def norms(draw: Any) -> Call:
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=2, max_size=5)))
    mode, dtype = draw(st.sampled_from(("per-activation", "spatial"))), _dtype(draw)
    small = (1, *shape[1:]) if mode == "per-activation" else (1, shape[1], *(1,) * (len(shape) - 2))
    name = draw(st.sampled_from(("train", "test", "train_grad", "test_grad")))
    like_x, others = (2, 3) if "grad" in name else (1, 2 if name == "train" else 4)
    arrays = [_array(draw, dtype, s) for s in (shape,) * like_x + (small,) * others]
    return Call(f"batch_normalization_{name}", tuple(arrays), (mode, draw(st.sampled_from((1e-4, 0.5)))), {})


@st.composite
def upsamplings(draw: Any) -> Call:
    dtype, shape = _dtype(draw), (draw(st.integers(1, 3)), draw(st.integers(1, 9)), *_sizes(draw, 2, 7))
    pair = st.tuples(st.integers(1, 4), st.integers(1, 3))
    keywords = draw(
        st.one_of(
            st.fixed_dictionaries({"ratio": st.integers(1, 4)}),
            st.fixed_dictionaries({"frac_ratio": st.one_of(pair, st.tuples(pair, pair))}),
        )
    )
    forward = Call("bilinear_upsampling", (_array(draw, dtype, shape),), (), keywords)
    if draw(st.booleans()):
        return forward
    dy = _array(draw, dtype, problem_of(forward).output.shape)
    return Call("bilinear_upsampling_grad", (dy,), (shape,), keywords)


@st.composite
def samplers(draw: Any) -> Call:
    """The spatial transformer: its grid, its sampler, their gradients, and all of it."""
    dtype, shape = _dtype(draw), (draw(st.integers(1, 3)), draw(st.integers(1, 18)), *_sizes(draw, 2, 8))
    n, points = shape[0], _sizes(draw, 2, 6)
    name = draw(st.sampled_from(("", "_grid", "_grid_grad", "_sampler", "_sampler_grad")))
    if name == "_grid_grad":
        return Call("spatialtf_grid_grad", (_array(draw, dtype, (n, *points, 2)),), (), {})
    if name == "_grid":
        return Call("spatialtf_grid", (_array(draw, dtype, (n, 2, 3)),), ((n, 1, *points),), {})
    img = _array(draw, dtype, shape)
    if not name:
        return Call("spatialtf", (img, _array(draw, dtype, (n, 2, 3))), (draw(st.sampled_from((1, 2, 0.5))),), {})
    arrays = [img, _array(draw, dtype, (n, *points, 2))]
    if name == "_sampler_grad":
        arrays.append(_array(draw, dtype, (*shape[:2], *points)))
    return Call(f"spatialtf{name}", tuple(arrays), (), {})


@st.composite
def dropouts(draw: Any) -> Call:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=5)))
    p, dtype = draw(st.sampled_from((0.0, 0.1, 0.5, 0.75, 1.0))), _dtype(draw)
    seed, offset = draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, 2**40))
    array = _array(draw, dtype, shape)
    if draw(st.booleans()):
        return Call("dropout", (array,), (p,), {"seed": seed, "offset": offset})
    return Call("dropout_grad", (array,), (DropoutState(p, seed >> 1, offset, shape, "philox"),), {})


@st.composite
def recurrences(draw: Any) -> Call:
    dtypes = [d for d in DTYPES if d != "bfloat16"]
    steps, batch, width, hidden = _sizes(draw, 4, 5)
    keywords = {
        "hidden_size": hidden,
        "num_layers": draw(st.integers(1, 2)),
        "rnn_mode": draw(st.sampled_from(tuple(GATES))),
        "input_mode": "skip" if width == hidden and draw(st.booleans()) else "linear",
        "direction_mode": draw(st.sampled_from(("unidirectional", "bidirectional"))),
    }
    dtype, network = draw(st.sampled_from(dtypes)), Network(**keywords)
    if draw(st.booleans()):
        keywords["lengths"] = draw(st.lists(st.integers(1, steps), min_size=batch, max_size=batch))
    state, output = (
        (network.num_layers * network.directions, batch, hidden),
        (steps, batch, hidden * network.directions),
    )
    shapes = {"cx": state, "dy": output, "dhy": state, "dcy": state}
    cells = ("cx", "dcy") if network.has_cell else ()
    backward = draw(st.booleans())
    possible = [
        n for n in (("cx", "dy", "dhy", "dcy") if backward else ("cx",)) if n[-2:] not in ("cx", "cy") or n in cells
    ]
    names = [n for n in possible if draw(st.booleans())]
    first = ((network.blocks(width)[1],), (steps, batch, width), state)
    arrays = tuple(_array(draw, dtype, s) for s in (*first, *(shapes[n] for n in names)))
    if backward:
        return Call("rnn_backward", arrays, (), {**keywords, "given": tuple(names)})
    return Call("rnn_forward", arrays, (), keywords)


@st.composite
def derived(draw: Any) -> Call:
    """What is made of convolutions: corr_mm, causal, transposed and separable convolution, conv3d on frames."""
    kind = draw(st.sampled_from(("corr", "causal", "transpose", "separable", "frames")))
    axes, dtype = draw(st.sampled_from((2, 2, 3))), _dtype(draw)
    n, c, k = (draw(st.integers(1, m)) for m in (3, 4, 5))
    if kind == "causal":
        line, taps = draw(st.integers(1, 40)), draw(st.integers(1, 4))
        keywords = {"subsample": draw(st.integers(1, 3)), "filter_dilation": draw(st.integers(1, 5))}
        return Call(
            "causal_conv1d", (_array(draw, dtype, (n, c, line)), _array(draw, dtype, (k, c, taps))), (), keywords
        )
    taps, image = _sizes(draw, axes, 5 - axes), _sizes(draw, axes, 8 if axes == 2 else 5)
    border = draw(st.sampled_from(("valid", "half", "full")))
    if kind == "frames":
        taps, image = _sizes(draw, 3, 2), _sizes(draw, 3, 5)
        arrays = _array(draw, dtype, (n, image[0], c, *image[1:])), _array(draw, dtype, (k, taps[0], c, *taps[1:]))
        return Call("conv3d2d", arrays, (), {"border_mode": border})
    steps = {"subsample": _sizes(draw, axes, 2), "filter_dilation": _sizes(draw, axes, 2)}
    keywords = {"border_mode": border, **steps}
    x, w = _array(draw, dtype, (n, c, *image)), _array(draw, dtype, (k, c, *taps))
    if kind == "separable":
        depthwise, pointwise = _array(draw, dtype, (2 * c, 1, *taps)), _array(draw, dtype, (k, 2 * c, *(1,) * axes))
        return Call(f"separable_conv{axes}d", (x, depthwise, pointwise), (c,), keywords)
    stem = "corr_mm" if axes == 2 else "corr3d_mm"
    forward = Call(stem, (x, w), (), keywords)
    direction = draw(st.sampled_from(("", "_grad_inputs", "_grad_weights")))
    if kind == "corr" and not direction:
        return forward
    try:
        y = _array(draw, dtype, problem_of(forward).y.shape)
    except ValueError:  # the filters do not fit the image
        return forward
    if kind == "transpose":
        keywords["input_dilation"] = keywords.pop("subsample")
        return Call(f"conv{axes}d_transpose", (y, w), (x.shape,), keywords)
    if direction == "_grad_inputs":
        return Call(f"{stem}{direction}", (w, y), (image,), keywords)
    return Call(f"{stem}{direction}", (x, y), (taps,), keywords)


FAMILIES = (
    convolutions, derived, softmaxes, pools, norms, upsamplings, samplers, dropouts, recurrences,
)  # fmt: skip


def calls() -> Any:
    """A call of a function of any family."""
    return st.one_of(*(family() for family in FAMILIES))


def problem_of(call: Call) -> Any:
    """The problem that the public function makes of a call; ValueError and TypeError are its own."""
    function = getattr(numbadnn, call.function)
    return dispatch.intercept("problem", function, (*call.arrays, *call.others), dict(call.keywords))


def composed(call: Call) -> Any:
    """The result of a function that is two operations, by calling these; None where it is one."""
    if call.function == "spatialtf":
        (img, theta), (scale,) = call.arrays, call.others
        n, c, h, w = img.shape
        grid = numbadnn.spatialtf_grid(theta, (n, c, h, math.ceil(w * scale)))
        return numbadnn.spatialtf_sampler(img, grid)
    if call.function.startswith("separable"):
        conv = getattr(numbadnn, call.function.removeprefix("separable_"))
        x, depthwise, pointwise = call.arrays
        return conv(conv(x, depthwise, num_groups=call.others[0], **call.keywords), pointwise)
    return None
