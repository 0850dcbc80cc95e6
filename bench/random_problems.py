"""Problems as networks have them, drawn by number: what bench_random_shapes.py measures.

``draw(seed, number)`` always gives the same problem, of a family, which is what is left out when a model is judged: sizes, odd
ones too, come from ranges and not from a list of known networks. Three in four are convolutions, of all directions.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from numbadnn import shapes
from numbadnn.cases import parse
from numbadnn.problem import Spec, contiguous_strides, normalised_strides
from numbadnn.problems.conv import OPERATIONS, ConvProblem
from numbadnn.problems.norm import LIKE_X, OPERANDS, TRAIN, TRAIN_GRAD, NormProblem, parameter_shape
from numbadnn.problems.rnn import make
from numbadnn.problems.rnn_network import Network

#: dtype and the option fp32_precision
ARITHMETIC = {
    "fp32": ("float32", "ieee"), "tf32": ("float32", "tf32"), "fp16": ("float16", "ieee"), "bf16": ("bfloat16", "ieee")
}  # fmt: skip
SUFFIX = {"forward": "", "grad_inputs": "_grad_wrt_inputs", "grad_weights": "_grad_wrt_weights"}
#: what is larger takes long to measure, and says no more
MOST_BYTES, MOST_FLOPS = 6e8, 4e11


class Drawn(NamedTuple):
    """A problem, its family and the option fp32_precision."""

    number: int
    family: str
    problem: Any
    precision: str


class Layer(NamedTuple):
    """A convolution without its direction: images, channels, filters, sizes, taps and what is done with them."""

    images: int
    channels: int
    filters: int
    sizes: tuple[int, ...]
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1


class Dice:
    """Random numbers in the way that sizes of networks are distributed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.one_of = self.random.choice

    def size(self, least: float, most: float) -> int:
        """A whole number; each doubling is as likely as another."""
        return round(math.exp(self.random.uniform(math.log(least), math.log(most))))

    def width(self, least: float, most: float) -> int:
        """Channels: mostly a multiple of eight or sixteen, sometimes any number."""
        n = self.size(least, most)
        step = self.one_of((1, 8, 8, 16, 32))
        return max(step, round(n / step) * step) if n >= 2 * step else n

    def images(self, most: float = 128) -> int:
        n = self.size(1, most)
        return n if self.random.random() < 0.3 else 1 << round(math.log2(n))

    def likely(self, chance: float) -> bool:
        return self.random.random() < chance


# ---- families of convolutions ----------------------------------------------------------------------------------------


def _square(d: Dice, n: int, c: int, k: int, size: int, taps: int, stride: int = 1, dilation: int = 1, groups: int = 1, axes: int = 2) -> Layer:  # fmt: skip  # noqa: E501
    """One size and one filter in all axes, padded so that stride 1 keeps the size, now and then not at all."""
    pad = 0 if taps > 1 and d.likely(0.15) and size > dilation * (taps - 1) else dilation * (taps // 2)
    other = size if d.likely(0.7) else d.size(max(1, size / 2, dilation * (taps - 1) + 1), size * 2)
    sizes = (size,) * (axes - 1) + (other,)
    return Layer(n, c, k, sizes, (taps,) * axes, (stride,) * axes, (pad,) * axes, (dilation,) * axes, groups)


def residual(d: Dice) -> Layer:
    """3x3 layers of residual networks."""
    return _square(d, d.images(), d.width(32, 768), d.width(32, 768), d.size(7, 112), 3, d.one_of((1, 1, 1, 2)))


def pointwise(d: Dice) -> Layer:
    """1x1 layers, of bottlenecks and of inverted ones."""
    return _square(d, d.images(), d.width(16, 2048), d.width(16, 2048), d.size(4, 112), 1, d.one_of((1, 1, 1, 1, 2)))


def depthwise(d: Dice) -> Layer:
    c = d.width(16, 1536)
    return _square(d, d.images(), c, c, d.size(7, 112), d.one_of((3, 3, 5, 7)), d.one_of((1, 1, 2)), groups=c)


def grouped(d: Dice) -> Layer:
    groups, each = d.one_of((2, 4, 8, 16, 32, 64)), d.one_of((4, 8, 16, 32, 48))
    return _square(d, d.images(), groups * each, groups * each, d.size(7, 56), 3, d.one_of((1, 1, 2)), groups=groups)


def first(d: Dice) -> Layer:
    """Images of one to four channels."""
    taps = d.one_of((3, 3, 5, 7, 11))
    stride = d.one_of((1, 2, 2, 4) if taps > 3 else (1, 1, 2))
    return _square(d, d.images(), d.one_of((1, 1, 2, 3, 3, 3, 4)), d.width(8, 128), d.size(28, 320), taps, stride)


def patches(d: Dice) -> Layer:
    """Filters side by side: vision transformers, downsampling of ConvNeXt."""
    p, c = d.one_of((2, 2, 4, 8, 14, 16)), d.one_of((3, 3, 96, 192, 256))
    side = p * d.size(4, 28)
    return Layer(d.images(64), c, d.width(64, 1024), (side,) * 2, (p,) * 2, (p,) * 2, (0, 0), (1, 1))


def segmentation(d: Dice) -> Layer:
    """Large images, few of them, and dilated filters."""
    taps, dilation = d.one_of((1, 3, 3, 3)), d.one_of((1, 1, 2, 4, 6))
    return _square(d, d.images(8), d.width(16, 512), d.width(1, 512), d.size(16, 320), taps, dilation=dilation)


def generator(d: Dice) -> Layer:
    """4x4 filters with stride 2, which transposed convolutions turn round."""
    return _square(d, d.images(64), d.width(3, 512), d.width(16, 512), 2 * d.size(4, 64), 4, 2)._replace(pad=(1, 1))


def volume(d: Dice) -> Layer:
    """Three axes: scans and videos."""
    c = d.one_of((1, 3)) if d.likely(0.25) else d.width(8, 256)
    sizes = d.size(4, 96)
    return _square(d, d.images(8), c, d.width(8, 256), sizes, d.one_of((1, 3, 3, 3, 5)), d.one_of((1, 1, 2)), axes=3)


def line(d: Dice) -> Layer:
    """One axis, as an image of one row: speech, text, series."""
    taps, length = d.one_of((1, 2, 3, 3, 5, 9, 16, 31)), d.size(48, 16000)
    stride, dilation = d.one_of((1, 1, 1, 2)), d.one_of((1, 1, 2, 8, 32))
    pad = dilation * (taps - 1) // 2
    c = d.width(1, 1024)
    groups, k = (c, c) if d.likely(0.2) and c > 8 else (1, d.width(8, 1024))
    length = max(length, dilation * taps)
    return Layer(d.images(64), c, k, (1, length), (1, taps), (1, stride), (0, pad), (1, dilation), groups)


def uneven(d: Dice) -> Layer:
    """Anything: filters of two sizes, odd channels."""
    taps = (d.one_of((1, 2, 3, 5, 7)), d.one_of((1, 3, 4, 7, 9)))
    pad = tuple(t // 2 for t in taps)
    stride, dilation = (d.one_of((1, 1, 2)), d.one_of((1, 1, 3))), (1, d.one_of((1, 1, 2)))
    sizes = (d.size(9, 160), d.size(17, 160))
    return Layer(d.images(), d.size(1, 1024), d.size(1, 1024), sizes, taps, stride, pad, dilation)


def small(d: Dice) -> Layer:
    """A single image, or few of little: what is asked for once, and waits for a launch."""
    images, taps = d.one_of((1, 1, 1, 2, 4)), d.one_of((1, 3, 3, 5))
    return _square(d, images, d.width(1, 256), d.width(4, 256), d.size(5, 40), taps)


FAMILIES: dict[str, Callable[[Dice], Layer]] = {
    f.__name__: f
    for f in (
        residual, pointwise, depthwise, grouped, first, patches, segmentation, generator, volume, line, uneven,
        small,
    )
}  # fmt: skip


def convolution(layer: Layer, direction: str, dtype: str, layout: str) -> ConvProblem:
    x = (layer.images, layer.channels, *layer.sizes)
    w = (layer.filters, layer.channels // layer.groups, *layer.taps)
    padding = tuple((p, p) for p in layer.pad)
    y = shapes.assert_conv_shape(shapes.get_conv_output_shape(x, w, padding, layer.stride, layer.dilation))
    op = f"conv{len(layer.sizes)}d{SUFFIX[direction]}"

    def spec(name: str, shape: tuple[int, ...]) -> Spec:
        made = Spec.of(dtype, shape, layout)
        result = OPERATIONS[op].output == name
        return made if result else Spec(dtype, shape, normalised_strides(shape, made.strides))

    specs = spec("x", x), spec("w", w), spec("y", y)
    return ConvProblem(op, *specs, padding, layer.stride, layer.dilation, False, layer.groups)


# ---- all else --------------------------------------------------------------------------------------------------------


def pooling(d: Dice, dtype: str, layout: str) -> Any:
    axes = d.one_of((2, 2, 3))
    window, op = d.one_of((2, 3, 3, 5)), d.one_of(("pool", "pool_grad"))
    stride, pad = d.one_of((1, 2, window)), d.one_of((0, window // 2))
    size = max(window, d.size(7, 112 if axes == 2 else 64))
    shape = (d.images(64), d.width(1, 512), *(size,) * axes)
    mode = d.one_of(("max", "max", "average_inc_pad", "average_exc_pad"))

    def each(n: int) -> str:
        return "x".join([str(n)] * axes)

    x = Spec.of(dtype, shape, layout)
    return parse(f"{op} x={x} window={each(window)} stride={each(stride)} pad={each(pad)} mode={mode}")


def softmax(d: Dice, dtype: str, layout: str) -> Any:
    rows = d.likely(0.6)
    shape = (d.size(1, 65536), d.size(2, 65536)) if rows else (d.images(64), d.size(2, 1000), *(d.size(4, 512),) * 2)
    op, algo = d.one_of(("softmax", "softmax_grad")), d.one_of(("accurate", "log"))
    return parse(f"{op} {'x' if op == 'softmax' else 'dy'}={Spec.of(dtype, shape, '' if rows else layout)} algo={algo}")


def norm(d: Dice, dtype: str, layout: str) -> Any:
    op = d.one_of((TRAIN, TRAIN_GRAD))
    shape = (d.images(), d.width(8, 1024), *(d.size(4, 128),) * d.one_of((2, 2, 3)))

    def spec(name: str) -> Spec:
        like_x = name in LIKE_X
        return Spec.of(dtype, shape, layout) if like_x else Spec.of("float32", parameter_shape(shape, "spatial"))

    names, results = OPERANDS[op]
    count = 3 if op == TRAIN else len(names)  # without running averages
    return NormProblem(op, tuple(map(spec, names[:count])), tuple(map(spec, results[:3])), "spatial", 1e-5)


def recurrent(d: Dice, dtype: str, layout: str) -> Any:
    """Inference of a whole sequence."""
    mode = d.one_of(("lstm", "lstm", "gru", "rnn_tanh"))
    steps, images, width, hidden = d.size(8, 400), d.images(), d.width(16, 512), d.width(32, 1024)
    both = d.one_of(("unidirectional", "unidirectional", "bidirectional"))
    network = Network(hidden, d.one_of((1, 1, 2)), mode, "linear", both)
    state = (network.num_layers * network.directions, images, hidden)
    made = {"w": (network.blocks(width)[1],), "x": (steps, images, width), "hx": state}
    made |= {"cx": state} if network.has_cell else {}
    specs = {name: Spec(dtype, shape, contiguous_strides(shape)) for name, shape in made.items()}
    return make("rnn_forward", network, specs)


OTHERS: dict[str, Callable[[Dice, str, str], Any]] = {f.__name__: f for f in (pooling, softmax, norm, recurrent)}


def draw(seed: int, number: int) -> Drawn:
    """The problem of a number: of twelve in sixteen a convolution. What is too large is drawn again."""
    d = Dice(hash((seed, number)))
    while True:
        arithmetic = d.one_of(tuple(ARITHMETIC))
        dtype, precision = ARITHMETIC[arithmetic]
        layout = d.one_of(("", "nhwc"))
        family = d.one_of((*FAMILIES, *OTHERS))
        try:
            if family in FAMILIES:
                direction = d.one_of(tuple(SUFFIX))
                problem: Any = convolution(FAMILIES[family](d), direction, dtype, layout)
            else:
                problem = OTHERS[family](d, dtype, layout)
        except (ValueError, TypeError):  # a window larger than what it lies on, or a dtype that an operation has not
            continue
        if problem.bytes <= MOST_BYTES and problem.flops <= MOST_FLOPS:
            return Drawn(number, family, problem, precision)
