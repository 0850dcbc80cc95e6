"""Random problems of extreme sizes, as lines: one pixel, one image, 65,536 of either, more than 2**31 elements, any layout."""

from __future__ import annotations

import random
import re
from typing import Any

from numbadnn import cases
from numbadnn.cases.layouts import DTYPES, operand
from numbadnn.problem import Spec
from numbadnn.problems.pool import MODES
from numbadnn.problems.rnn_network import GATES, Network

SIZES = (
    *(
        1,
        2,
        3,
        4,
        5,
        7,
        8,
        13,
        16,
        17,
        31,
        32,
        33,
        56,
        64,
        65,
        100,
        128,
        130,
        224,
        256,
        257,
        512,
        1000,
        1024,
        2048,
        4100,
    ),
    *(17000, 65535, 65536, 2**20 - 1, 2**24, 2**31 - 2049, 2**31 - 1, 2**31 + 8),
)
SMALL = (1, 1, 2, 3, 4, 8, 16, 32, 64, 96, 128, 256, 512)
#: bytes of an operand: more than a GPU has
MOST = 2**38
#: of what may be launched for a part of the images at a time
MANY_IMAGES = 70_000
LAYOUTS = ("", "", "nhwc", "rows", "reversed", "broadcast", "transposed", "steps", ",unaligned", "rows,unaligned")
_OPERAND = re.compile(r"(\w+)=(float16|bfloat16|float32|float64):([\dx]+)(\S*)")


def line(family: str, r: random.Random) -> str:
    """One problem that an operand of a GPU's memory can have."""
    while True:
        try:
            text = str(cases.parse(_FAMILIES[family](r)))
            problem = cases.parse(_laid_out(text, r) if r.random() < 0.4 else text)
        except ValueError:
            continue
        specs = (*problem.inputs, *problem.outputs)
        if all(s.size and (s.span[1] - s.span[0]) * s.itemsize < MOST and s.size < MOST for s in specs):
            return str(problem)


def _size(r: random.Random) -> int:
    return r.choice(SIZES) if r.random() < 0.4 else r.choice(SIZES[:26])


def _sizes(r: random.Random, count: int) -> tuple[int, ...]:
    """Of which seldom more than one is large."""
    found = [r.choice(SMALL) for _ in range(count)]
    for _ in range(r.choice((0, 1, 1, 2, count))):
        found[r.randrange(count)] = _size(r)
    return tuple(found)


def _seldom_huge(r: random.Random, numbers: tuple[int, ...]) -> int:
    return r.choice(numbers) if r.random() < 0.98 else r.choice((65536, 2**31 - 1, 2**31, 2**33))


def _by(numbers: Any) -> str:
    return "x".join(map(str, numbers))


def _commas(numbers: Any) -> str:
    return ",".join(map(str, numbers))


def layout(r: random.Random, rank: int, wanted: str | None = None) -> str:
    """``wanted`` or a random layout, or the packed one where the rank has it not."""
    chosen = r.choice(LAYOUTS) if wanted is None else wanted
    return "" if chosen.split(",")[0] in ("nhwc", "transposed") and rank < 3 else chosen


def _laid_out(text: str, r: random.Random) -> str:
    """The line with its operands in memory as a random layout has them, the same one for all or one each."""
    problem, same = cases.parse(text), r.choice(LAYOUTS) if r.random() < 0.6 else None

    def other(found: re.Match[str]) -> str:
        shape = tuple(map(int, found[3].split("x")))
        chosen = layout(r, len(shape), same)
        causal = text.startswith("causal") and found[1] == "y"  # its outputs have an axis less than its line
        is_output = causal or found[0].split("=", 1)[1] in map(str, problem.outputs)
        return f"{found[1]}={operand(found[2], shape, chosen, is_output)}"

    return _OPERAND.sub(other, text)


def _conv(r: random.Random) -> str:
    axes, dtype, layout = r.choice((2, 2, 3)), r.choice(DTYPES), r.choice(("", ":nhwc"))
    unshared = axes == 2 and r.random() < 0.2
    groups = r.choice((1, 1, 1, 1, 2, 4, 32, _size(r)))
    inner, outer = (r.choice((1, 1, 2, 3, 4, 8, 16, 32, 64, _size(r))) for _ in range(2))
    taps = [r.choice((1, 1, 2, 3, 3, 3, 4, 5, 7, 11)) for _ in range(axes)]
    steps, apart = ([_seldom_huge(r, (1, 1, 1, 1, 2, *more)) for _ in range(axes)] for more in ((3, 7), (5,)))
    pads = [_seldom_huge(r, (0, 1, 1, 2, 5)) for _ in range(2 * axes)]
    images, *sizes = _sizes(r, 1 + axes)
    images = min(images, max(MANY_IMAGES // groups, 16))
    op = f"conv{axes}d" + r.choice(("", "_grad_wrt_inputs", "_grad_wrt_weights"))
    if axes == 2 and r.random() < 0.2:
        op, sizes[0], taps[0], steps[0], apart[0] = "causal_conv1d", 1, 1, 1, 1
        pads = [0, 0, (taps[1] - 1) * apart[1], 0]
    outs = [
        (n + a + b - (k - 1) * d - 1) // s + 1
        for n, a, b, k, s, d in zip(sizes, pads[::2], pads[1::2], taps, steps, apart, strict=True)
    ]
    if min(outs) < 1:
        raise ValueError("filters larger than the image")
    x = f"{dtype}:{_by((images, groups * inner, *sizes))}{layout}"
    w = f"{dtype}:{_by((groups * outer, *(outs if unshared else ()), inner, *taps))}{'' if unshared else layout}"
    return (
        f"{op} x={x} w={w} pad={_commas(pads)} stride={_commas(steps)} dilation={_commas(apart)} groups={groups} "
        f"flip={r.choice((0, 1))} alpha={r.choice((1, 1, 2))} beta={r.choice((0, 0, 1))}"
    )


def _softmax(r: random.Random) -> str:
    x = f"{r.choice(DTYPES)}:{_by(_sizes(r, r.choice((2, 2, 3, 4, 5))))}"
    names = r.choice((("softmax", "x"), ("softmax_grad", "dy")))
    mode = f"algo={r.choice(('accurate', 'log', 'fast'))} mode={r.choice(('channel', 'instance'))}"
    second = f" y={x}" if names[1] == "dy" else ""
    return f"{names[0]} {names[1]}={x}{second} {mode}"


def _pool(r: random.Random) -> str:
    axes = r.choice((2, 2, 3))
    window = [r.choice((1, 2, 2, 3, 3, 5, 7, _size(r))) for _ in range(axes)]
    stride = [_seldom_huge(r, (1, 2, 2, 3, n)) for n in window]
    pad = [r.choice((0, 0, n // 2, n - 1)) for n in window]
    op, layout, mode = r.choice(("pool", "pool_grad")), r.choice(("", ":nhwc")), r.choice(MODES)
    x = f"{r.choice(DTYPES)}:{_by(_sizes(r, 2 + axes))}{layout}"
    return f"{op} x={x} window={_by(window)} stride={_by(stride)} pad={_by(pad)} mode={mode}"


def _norm(r: random.Random) -> str:
    op = "batch_normalization_" + r.choice(("train", "test", "train_grad", "test_grad"))
    rank = r.choice((1, 2, 3, 4, 4, 5))
    layout = r.choice(("", ":nhwc")) if rank > 2 else ""
    return f"{op} x={r.choice(DTYPES)}:{_by(_sizes(r, rank))}{layout} mode={r.choice(('spatial', 'per-activation'))}"


def _upsample(r: random.Random) -> str:
    op, layout = r.choice(("bilinear_upsampling", "bilinear_upsampling_grad")), r.choice(("", ":nhwc"))
    ratios = [f"{r.choice((1, 2, 2, 3, 4, 9, _size(r)))}/{r.choice((1, 1, 2, 3))}" for _ in range(2)]
    return f"{op} x={r.choice(DTYPES)}:{_by(_sizes(r, 4))}{layout} ratio={','.join(ratios)}"


def _spatial(r: random.Random) -> str:
    (images, channels, height, width, tall, wide), dtype = _sizes(r, 6), r.choice(DTYPES)
    images = min(images, MANY_IMAGES)
    grid = f"{dtype}:{_by((images, tall, wide, 2))}"
    image = f"{dtype}:{_by((images, channels, height, width))}{r.choice(('', ':nhwc'))}"
    out = f"{dtype}:{_by((images, channels, tall, wide))}{r.choice(('', ':nhwc'))}"
    return r.choice(
        (
            f"spatialtf_grid theta={dtype}:{images}x2x3 grid={grid}",
            f"spatialtf_grid_grad dgrid={grid}",
            f"spatialtf_sampler img={image} grid={grid}",
            f"spatialtf_sampler_grad img={image} grid={grid} dy={out}",
            f"spatialtf_sampler_grad img={image} grid={grid} dy={out}",
        )
    )


def _dropout(r: random.Random) -> str:
    op, name = r.choice((("dropout", "x"), ("dropout_grad", "dy")))
    x = f"{r.choice(DTYPES)}:{_by(_sizes(r, r.choice((1, 2, 4))))}"
    return f"{op} {name}={x} p={r.choice((0.0, 0.5, 1.0))}"


def _rnn(r: random.Random) -> str:
    """Few steps and layers, each of which is a launch."""
    steps, layers, dtype = r.choice((1, 2, 3)), r.choice((1, 1, 2)), r.choice(("float16", "float32", "float64"))
    batch, width = _sizes(r, 2)
    hidden = width if (skip := r.random() < 0.2) else r.choice((1, 32, 64, 128, 256, 512, 1024, _size(r)))
    direction = r.choice(("unidirectional", "bidirectional"))
    network = Network(hidden, layers, r.choice(tuple(GATES)), "skip" if skip else "linear", direction)
    state, output = (layers * network.directions, batch, hidden), (steps, batch, hidden * network.directions)
    shapes = {"w": (network.blocks(width)[1],), "x": (steps, batch, width), "hx": state}
    shapes |= {"cx": state} if network.has_cell else {}
    op = r.choice(("rnn_forward", "rnn_backward"))
    if op == "rnn_backward":
        shapes |= {"dy": output, "dhy": state} | ({"dcy": state} if network.has_cell else {})
    operands = " ".join(f"{name}={Spec.of(dtype, shape)}" for name, shape in shapes.items())
    return (
        f"{op} {operands} mode={network.rnn_mode} hidden={hidden} layers={layers} input={network.input_mode} "
        f"direction={direction}"
    )


_FAMILIES = {
    "conv": _conv,
    "softmax": _softmax,
    "pool": _pool,
    "norm": _norm,
    "upsample": _upsample,
    "spatial": _spatial,
    "dropout": _dropout,
    "rnn": _rnn,
}
FAMILIES = tuple(_FAMILIES)
