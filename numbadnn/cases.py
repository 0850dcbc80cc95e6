"""Named problems, read by tests, validate, bench and tune alike; add a line here and all of them have it.

A case is a name and the text of a problem (``str(problem)``, which parses back). Tags say who reads it: ``contract``, small
and full of edges; ``validate`` and ``bench``, layers of networks in use, full size, with a smaller copy of the same layer
(``small``) for machines without a GPU. Every convolution stands for its three directions.

>>> find(["softmax/attention/float16"])[0].text
'softmax x=float16:32768x512 y=float16:32768x512 algo=accurate mode=channel'
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from numbadnn import shapes
from numbadnn.ops.conv import DIRECTIONS, ConvProblem
from numbadnn.ops.softmax import SoftmaxProblem
from numbadnn.problem import Spec, channels_last_strides, contiguous_strides, normalised_strides
from numbadnn.registry import FAMILY
from numbadnn.validate.data import make_arrays

__all__ = ["Case", "all_cases", "find", "make_arrays", "parse"]

DTYPES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class Case:
    """A name, a problem as text, who reads it; ``small`` is the same layer made smaller ("" = it is small already)."""

    name: str
    text: str
    tags: frozenset[str]
    small: str = ""

    @property
    def op(self) -> str:
        return self.text.split(None, 1)[0]

    def problem(self, small: bool = False) -> Any:
        return parse(self.small if small and self.small else self.text)


def parse(text: str) -> Any:
    """The problem that a line of text describes; ValueError says what was expected.

    >>> parse("softmax x=float32:2x5").algo
    'accurate'
    """
    op = text.split(None, 1)[0] if text.strip() else ""
    if op not in FAMILY:
        raise ValueError(f"expected a problem that begins with one of {', '.join(FAMILY)}, got {text!r}")
    return (ConvProblem if FAMILY[op] == "conv" else SoftmaxProblem).parse(text)


def find(names: Iterable[str], tag: str = "validate") -> list[Case]:
    """Cases by name, pattern (``resnet50/*``), tag, operation (its cases of ``tag``) or problem line; no names: all of ``tag``.

    Raises ValueError, with what is near, for a name that means nothing.
    """
    chosen: dict[str, Case] = {}
    for name in list(names) or [tag]:
        chosen.update((case.name, case) for case in _named(name, tag))
    return list(chosen.values())


def _named(name: str, tag: str) -> list[Case]:
    cases = all_cases()
    if name in FAMILY:
        return [c for c in cases.values() if c.op == name and tag in c.tags]
    if name in cases:
        return [cases[name]]
    if "=" in name:
        return [Case(name, str(parse(name)), frozenset())]
    matching = [c for c in cases.values() if name in c.tags or fnmatch.fnmatchcase(c.name, name)]
    if not matching:
        near = difflib.get_close_matches(name, [*FAMILY, *cases], n=5, cutoff=0.5) or [*FAMILY, "contract", "validate"]
        raise ValueError(
            f"expected an operation, a case, a pattern or a problem line, got {name!r}; near it: {', '.join(near)}"
        )
    return matching


@functools.cache
def all_cases() -> dict[str, Case]:
    """Every case by its name."""
    cases: dict[str, Case] = {}
    for case in (*_contract_conv(), *_contract_softmax(), *_layers(), *_softmaxes()):
        if case.name in cases:
            raise ValueError(f"two cases are called {case.name!r}")
        cases[case.name] = case
    return cases


# ---- the contract: convolutions --------------------------------------------------------------------------------------

#: name, x, w, and what differs from a plain "valid" convolution; dtypes "*" = all four, else float32 and the next in turn
_CONTRACT = """
valid             2x3x8x9    4x3x3x2   dtypes=*
full              2x3x6x7    4x3x3x2   border=full
half              2x4x7x8    6x4x3x3   border=half dtypes=*
half-even         1x3x7x6    2x3x4x2   border=half
pad1              2x3x7x6    5x3x3x3   border=1
pad2x0            2x3x7x6    5x3x3x3   border=2,0
asymmetric        2x3x7x6    4x3x3x3   border=1,0,0,2 dtypes=*
asymmetric-s2     1x4x9x8    3x4x3x3   border=0,1,2,1 stride=2,2
large-pad         1x2x4x5    3x2x3x3   border=5,4
stride2           2x3x9x10   4x3x3x3   border=1 stride=2,2 dtypes=*
stride3x1         2x3x11x7   4x3x3x3   stride=3,1
stride-past       1x2x10x9   2x2x2x2   stride=4,3
dilation2         1x3x9x10   4x3x3x3   border=2 dilation=2,2 dtypes=*
dilation1x3       1x3x8x12   2x3x3x3   border=half dilation=1,3
stride-dilation   2x3x12x11  4x3x3x3   border=full stride=2,3 dilation=3,2
correlation       2x3x7x7    4x3x3x3   flip=0 border=1 dtypes=*
correlation-odd   1x2x9x8    3x2x4x3   flip=0 border=0,2,1,0 stride=2,1 dilation=1,2
groups2           2x6x7x6    4x3x3x3   groups=2 border=1 dtypes=*
groups3-stride    1x9x8x8    6x3x2x3   groups=3 stride=2,2
depthwise         2x8x7x7    8x1x3x3   groups=8 border=1 dtypes=*
depthwise-x2      1x4x9x8    8x1x3x3   groups=4 border=half stride=2,2
depthwise-nhwc    2x16x8x7   16x1x3x3  groups=16 border=1 x=nhwc w=nhwc y=nhwc dtypes=*
1x1               2x8x6x5    12x8x1x1  dtypes=*
1x1-stride        2x5x7x7    6x5x1x1   stride=2,2
1x1-pad           1x3x4x4    2x3x1x1   border=1
whole-image       3x4x5x5    6x4x5x5
one-pixel         1x1x1x1    1x1x1x1
one-channel       4x1x9x9    1x1x3x3
nhwc              2x16x7x6   8x16x3x3  border=1 x=nhwc w=nhwc y=nhwc dtypes=*
nhwc-odd          2x5x7x6    7x5x3x3   border=half stride=2,1 x=nhwc w=nhwc y=nhwc
nhwc-groups       1x16x6x6   8x8x3x3   groups=2 border=1 x=nhwc w=nhwc y=nhwc
nhwc-image-only   2x4x6x7    3x4x3x3   x=nhwc
tile              1x32x12x12 32x32x3x3 border=1 dtypes=*
tile-nhwc         2x64x8x8   64x64x3x3 border=1 x=nhwc w=nhwc y=nhwc dtypes=*
long-sum          1x96x5x5   4x96x3x3  border=1
many-images       33x2x4x4   3x2x2x2
alpha             2x3x7x6    4x3x3x3   border=1 alpha=-0.5 dtypes=*
beta              2x3x7x6    4x3x3x3   border=1 alpha=2 beta=0.5 dtypes=*
accumulate        2x4x6x6    4x4x3x3   border=half stride=2,2 beta=1
alpha-beta        1x3x8x8    4x3x3x3   border=half alpha=0.3 beta=0.7
alpha-zero        1x2x5x5    2x2x3x3   alpha=0 beta=1
beta-nhwc         2x8x5x6    8x8x3x3   border=1 beta=-1 x=nhwc w=nhwc y=nhwc
rows-padded       2x3x7x6    4x3x3x3   border=1 x=rows w=rows y=rows dtypes=*
reversed          2x3x7x6    4x3x3x3   border=1 x=reversed w=reversed y=reversed dtypes=*
broadcast-image   3x4x6x6    4x4x3x3   border=1 x=broadcast
broadcast-filters 2x4x6x6    5x4x3x3   w=broadcast
broadcast-grad    2x4x6x6    5x4x3x3   y=broadcast
transposed        2x3x7x6    4x3x3x3   border=1 x=transposed w=transposed y=transposed
steps             2x3x6x5    4x3x3x3   border=1 stride=2,1 x=steps w=steps y=steps
unaligned         2x4x7x8    8x4x3x3   border=1 x=unaligned w=unaligned y=unaligned dtypes=*
unaligned-nhwc    2x8x7x8    8x8x3x3   border=1 x=nhwc,unaligned w=nhwc,unaligned y=nhwc,unaligned
"""


def _strides(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """The element strides of a layout: what memory may look like besides packed."""
    *outer, last = shape
    packed = contiguous_strides(shape)
    if layout == "nhwc":
        return channels_last_strides(shape)
    if layout == "rows":  # rows longer than what is used of them
        return (*(s * (last + 3) for s in contiguous_strides(tuple(outer))), 1)
    if layout == "reversed":  # the last axis backwards
        return (*packed[:-1], -1)
    if layout == "broadcast":  # one image (filter) seen many times
        return (0, *contiguous_strides(shape[1:]))
    if layout == "transposed":  # the last two axes swapped in memory
        swapped = contiguous_strides((*shape[:-2], shape[-1], shape[-2]))
        return (*swapped[:-2], swapped[-1], swapped[-2])
    if layout == "steps":  # every other element
        return tuple(2 * s for s in packed)
    return packed


def _spec(dtype: str, shape: tuple[int, ...], layout: str = "", is_output: bool = False) -> Spec:
    words = layout.split(",")
    if is_output and "broadcast" in words:  # no two results may share an address
        words.remove("broadcast")
    strides = normalised_strides(shape, _strides(shape, words[0] if words else ""))
    return Spec(dtype, shape, strides, "unaligned" not in words)


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split("x"))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(","))


def _border(text: str) -> Any:
    """A border mode as the public functions take it: a name, a number, a pair or a pair of pairs."""
    if text in ("valid", "full", "half"):
        return text
    values = _numbers(text)
    return {1: values[0], 2: values}.get(len(values), (values[:2], values[2:]))


def _conv(op: str, dtype: str, x: tuple[int, ...], w: tuple[int, ...], f: dict[str, str]) -> str:
    """The problem line of one direction of a convolution with fields as in ``_CONTRACT``."""
    stride, dilation = _numbers(f.get("stride", "1,1")), _numbers(f.get("dilation", "1,1"))
    padding = shapes.padding_pairs(_border(f.get("border", "valid")), w[2:], dilation)
    y = shapes.get_conv_output_shape(x, w, padding, stride, dilation)
    operands = zip("xwy", (x, w, y), strict=True)
    specs = [_spec(dtype, s, f.get(n, ""), DIRECTIONS[op][1] == n) for n, s in operands]  # type: ignore[arg-type]
    x_spec, w_spec, y_spec = specs
    flip, groups = f.get("flip", "1") == "1", int(f.get("groups", "1"))
    alpha, beta = float(f.get("alpha", "1")), float(f.get("beta", "0"))
    return str(ConvProblem(op, x_spec, w_spec, y_spec, padding, stride, dilation, flip, groups, alpha, beta))


def _rows(table: str) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """(name, plain words, name=value words) of each line of a table."""
    for line in table.strip().splitlines():
        name, *words = line.split()
        yield name, [v for v in words if "=" not in v], dict(v.split("=", 1) for v in words if "=" in v)


def _contract_conv() -> Iterator[Case]:
    for number, (name, (x, w), fields) in enumerate(_rows(_CONTRACT)):
        others = ("float16", "bfloat16", "float64")
        dtypes = DTYPES if fields.get("dtypes") == "*" else ("float32", others[number % 3])
        for op in DIRECTIONS:
            for dtype in dtypes:
                text = _conv(op, dtype, _shape(x), _shape(w), fields)
                yield Case(f"{op}/{name}/{dtype}", text, frozenset({"contract"}))


# ---- the contract: softmax -------------------------------------------------------------------------------------------

#: name, shape, layouts; every one with three algorithms, two modes, two operations
_CONTRACT_SOFTMAX = """
rows          5x7          dtypes=*
one-column    4x1
one-row       1x33
classes       3x1000       dtypes=*
power-of-two  4x1024
odd           3x1237       dtypes=*
long          2x9001
many-rows     300x16
rank3         3x10x6
images        2x5x4x6      dtypes=*
images-wide   1x21x9x11
rank5         2x3x2x4x3
rank6         2x3x2x1x3x2
nhwc          2x8x5x3      layout=nhwc dtypes=*
rows-padded   4x37         layout=rows dtypes=*
reversed      3x65         layout=reversed
broadcast     4x19         layout=broadcast
transposed    24x18        layout=transposed
steps         3x40         layout=steps
image-steps   2x6x3x4      layout=steps
unaligned     3x260        layout=unaligned dtypes=*
unaligned-odd 5x131x3      layout=unaligned
"""


def _softmax(op: str, shape: tuple[int, ...], dtype: str, layout: str, algo: str, mode: str) -> str:
    def spec(is_output: bool) -> Spec:
        return _spec(dtype, shape, layout, is_output)

    if op == "softmax":
        return str(SoftmaxProblem(op, spec(True), x=spec(False), algo=algo, mode=mode))
    return str(SoftmaxProblem(op, spec(False), dy=spec(False), dx=spec(True), algo=algo, mode=mode))


def _contract_softmax() -> Iterator[Case]:
    for number, (name, (shape,), fields) in enumerate(_rows(_CONTRACT_SOFTMAX)):
        others = ("float16", "bfloat16", "float64")
        dtypes = DTYPES if fields.get("dtypes") == "*" else ("float32", others[number % 3])
        modes = ("channel",) if _shape(shape)[2:] == () else ("channel", "instance")  # of rank 2 they are the same
        for op in ("softmax", "softmax_grad"):
            for i, (algo, mode) in enumerate((a, m) for m in modes for a in ("accurate", "log", "fast")):
                for dtype in dtypes if len(dtypes) == 4 else (dtypes[i % 2],):
                    text = _softmax(op, _shape(shape), dtype, fields.get("layout", ""), algo, mode)
                    yield Case(f"{op}/{name}/{algo}-{mode}/{dtype}", text, frozenset({"contract"}))
    for dtype in DTYPES:  # two modes, one meaning
        yield Case(
            f"softmax/rows/accurate-instance/{dtype}",
            _softmax("softmax", (5, 7), dtype, "", "accurate", "instance"),
            frozenset({"contract"}),
        )


# ---- layers of networks ----------------------------------------------------------------------------------------------

#: images of full and small size, network/layer, x, w; the small copy has fewer images and the small side
_LAYERS = """
resnet50/conv1            3x224x224   64x3x7x7     border=3 stride=2,2 small=112
resnet50/conv2-3x3        64x56x56    64x64x3x3    border=1
resnet50/conv3-3x3-s2     128x56x56   128x128x3x3  border=1 stride=2,2 small=28
resnet50/conv4-1x1        256x14x14   1024x256x1x1
resnet50/conv5-3x3        512x7x7     512x512x3x3  border=1
resnet50/shortcut-s2      256x56x56   512x256x1x1  stride=2,2 small=28
vgg16/conv1-2             64x224x224  64x64x3x3    border=1 small=48
vgg16/conv4-2             512x28x28   512x512x3x3  border=1 small=14
mobilenetv2/expand        24x56x56    144x24x1x1
mobilenetv2/depthwise     144x56x56   144x1x3x3    border=1 groups=144 small=28
mobilenetv2/depthwise-s2  192x28x28   192x1x3x3    border=1 groups=192 stride=2,2
resnext50/grouped         128x56x56   128x4x3x3    border=1 groups=32 small=28
resnext50/grouped-s2      512x28x28   512x16x3x3   border=1 groups=32 stride=2,2 small=14
unet/encoder              64x284x284  128x64x3x3   small=44
unet/bottom-dilated       256x32x32   256x256x3x3  border=half dilation=2,2 small=16
unet/up-2x2-s2            64x128x128  128x64x2x2   stride=2,2 small=32
"""
IMAGES, SMALL_IMAGES = 8, 2
_SHORT = {"conv2d": "forward", "conv2d_grad_wrt_inputs": "grad-inputs", "conv2d_grad_wrt_weights": "grad-weights"}


def _layers() -> Iterator[Case]:
    for name, (image, filters), fields in _rows(_LAYERS):
        c, h, w = _shape(image)
        side = int(fields.pop("small", h))
        for op in DIRECTIONS:
            for dtype, layout in (("float32", ""), ("float16", "nhwc")):
                f = {**fields, "x": layout, "w": layout, "y": layout}
                text = _conv(op, dtype, (IMAGES, c, h, w), _shape(filters), f)
                small = _conv(op, dtype, (SMALL_IMAGES, c, side, side), _shape(filters), f)
                yield Case(f"{name}/{_SHORT[op]}/{dtype}", text, frozenset({"validate", "bench"}), small)


#: full and small shape, algorithms; each forward and gradient, float32 and float16
_SOFTMAX = """
classifier    4096x1000       256x1000      algo=accurate
vocabulary    2048x32768      32x32768      algo=log
attention     32768x512       1024x512      algo=accurate
attention-odd 8192x1237       512x1237      algo=fast
segmentation  8x21x512x512    1x21x128x128  algo=accurate
pixelwise     4x150x128x128   1x150x48x48   algo=log
heatmap       64x17x64x48     4x17x64x48    algo=accurate mode=instance
"""


def _softmaxes() -> Iterator[Case]:
    for name, (full, small), f in _rows(_SOFTMAX):
        for op in ("softmax", "softmax_grad"):
            for dtype in ("float32", "float16"):
                texts = [_softmax(op, _shape(s), dtype, "", f["algo"], f.get("mode", "channel")) for s in (full, small)]
                yield Case(f"{op}/{name}/{dtype}", texts[0], frozenset({"validate", "bench"}), texts[1])
