"""Cases of convolution: a contract of small shapes with every option, and layers of networks.

Each row of a table stands for the three directions, but those of causal_conv1d and conv3d2d, which have one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numbadnn import shapes
from numbadnn.cases import Case, edge
from numbadnn.cases.layouts import DTYPES, numbers, operand, sizes, table
from numbadnn.problem import Spec
from numbadnn.problems.conv import OPERATIONS, ConvProblem, ours, theirs

TWO = ("conv2d", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights")
THREE = ("conv3d", "conv3d_grad_wrt_inputs", "conv3d_grad_wrt_weights")


def cases() -> Iterator[Case]:
    """The contract, layers, then images of one large number."""
    yield from _contract(TWO, _CONTRACT)
    yield from _contract(TWO, _UNSHARED)
    yield from _contract(THREE, _VOLUMES)
    yield from _contract(("causal_conv1d",), _CAUSAL)
    yield from _contract(("conv3d2d",), _FRAMES)
    yield from _layers()
    yield from _spikes()


def _spikes() -> Iterator[Case]:
    """Where a transform spreads a number over its tile or image, it shows: everything else is 0."""
    for op in TWO:
        for dtype, layout in (("float32", ""), ("float32", ":nhwc"), ("bfloat16", ":nhwc"), ("float16", ":nhwc")):
            for taps, pad in ((3, 1), (5, 2)):
                full, small = (
                    f"{op} x={dtype}:{n}x{c}x{side}x{side}{layout} w={dtype}:{c}x{c}x{taps}x{taps}{layout} "
                    f"pad={pad},{pad},{pad},{pad} flip=0"
                    for n, c, side in ((32, 64, 56), (2, 64, 12))
                )
                name = f"{op}/spike-{taps}x{taps}{layout.replace(':', '-')}/{dtype}"
                yield edge(name, str(ConvProblem.parse(full)), "spike", str(ConvProblem.parse(small)))


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
last-layer        1x16x6x8   3x16x3x3  border=1 x=nhwc w=nhwc y=nhwc dtypes=*
nhwc-image-only   2x4x6x7    3x4x3x3   x=nhwc
first-layer       1x3x9x12   32x3x3x3  border=1 stride=2,2 x=nhwc w=nhwc y=nhwc dtypes=*
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
depthwise-tiny    1x2x3x4    2x1x2x2   groups=2
more-than-65536   65537x1x3x3 2x1x2x2   border=1
"""

#: a filter for each position of the output: w is one of them
_UNSHARED = """
unshared-valid     2x3x5x6    4x3x3x2   unshared=1 dtypes=*
unshared-full      1x2x4x3    3x2x3x3   unshared=1 border=full
unshared-stride    2x4x7x8    6x2x3x3   unshared=1 border=half stride=2,2 groups=2
unshared-dilation  1x3x8x7    2x3x2x3   unshared=1 border=1,0,0,2 stride=1,2 dilation=2,1 flip=0
unshared-depthwise 2x6x5x5    6x1x3x3   unshared=1 border=1 groups=6
unshared-1x1       1x5x4x4    3x5x1x1   unshared=1
unshared-beta      2x2x5x5    2x2x3x3   unshared=1 border=1 alpha=-0.5 beta=2
unshared-strided   2x3x5x5    3x3x2x2   unshared=1 x=reversed w=reversed y=reversed
unshared-steps     1x3x5x5    3x3x2x2   unshared=1 x=nhwc w=steps y=nhwc
unshared-images    19x2x4x4   3x2x2x2   unshared=1 w=unaligned
unshared-places    9x8x7x9    20x8x3x3  unshared=1 border=1 dtypes=*
unshared-channels  32x16x6x13 40x8x5x5  unshared=1 groups=2 flip=0 dtypes=*
unshared-turns     5x4x9x17   36x4x2x3  unshared=1 dilation=1,2 stride=2,1 alpha=2 beta=-1 dtypes=*
"""

_VOLUMES = """
valid           2x3x5x4x6    4x3x3x2x3   dtypes=*
full            1x2x3x4x3    3x2x2x3x2   border=full
half-even       1x3x4x5x5    2x3x2x4x3   border=half
asymmetric      2x3x4x5x4    4x3x3x3x3   border=1,0,0,2,1,1
stride          1x3x7x6x8    4x3x3x3x3   border=1 stride=2,1,3
stride-past     1x2x6x5x9    2x2x2x1x2   stride=4,3,5
dilation        1x3x7x6x8    2x3x3x2x3   border=1,2,1 dilation=1,2,3
stride-dilation 2x2x8x7x6    3x2x2x3x2   border=full stride=2,3,1 dilation=3,1,2 flip=0
groups          1x6x4x4x5    4x3x3x3x2   groups=2 border=1
depthwise       2x6x5x4x6    6x1x3x3x3   groups=6 border=1
1x1x1           2x8x3x4x3    12x8x1x1x1
whole-volume    3x4x3x4x3    6x4x3x4x3
wide            1x2x1x1x150  3x2x1x1x7   border=half
ndhwc           2x8x4x5x3    8x8x3x3x3   border=1 x=nhwc w=nhwc y=nhwc
alpha-beta      1x3x4x4x5    4x3x3x3x3   border=half alpha=2 beta=-0.5
reversed        1x3x4x4x5    4x3x3x3x3   border=1 x=reversed w=reversed y=reversed
steps           1x3x4x4x5    4x3x3x3x3   border=1 stride=2,1,2 x=steps w=transposed y=rows
unaligned       2x4x4x3x4    8x4x3x3x3   border=1 x=unaligned w=unaligned y=unaligned
long-sum        1x40x3x3x3   4x40x3x3x3  border=1
tiny            1x2x3x2x3    2x2x2x2x1
"""

#: an image of one row; the padding is what is left of a line
_CAUSAL = """
plain     2x3x1x19  4x3x1x3  dtypes=*
stride    2x3x1x20  4x3x1x4  stride=1,3
dilation  1x4x1x33  3x4x1x3  dilation=1,5 flip=0
groups    2x6x1x17  4x3x1x2  groups=2
depthwise 2x8x1x40  8x1x1x4  groups=8 dtypes=*
depthwise-dilation 2x8x1x70  8x1x1x2  groups=8 dilation=1,16
depthwise-pieces 1x2x1x1104 2x1x1x3  groups=2 dilation=1,16
long      1x2x1x700 2x2x1x9
one-tap   2x3x1x5   2x3x1x1
past-all  1x2x1x3   2x2x1x4  dilation=1,2
unshared  2x3x1x9   4x3x1x3  unshared=1 stride=1,2
channels  2x20x1x520 40x20x1x3 dilation=1,5 dtypes=*
many-channels 3x72x1x264 80x72x1x2 dilation=1,8 flip=0 dtypes=*
group-channels 2x24x1x64 16x12x1x3 groups=2 dilation=1,40 dtypes=*
filters-64 2x64x1x264 64x64x1x3 dtypes=*
taps      2x2x1x1104 2x1x1x32 groups=2 dtypes=*
taps-apart 1x3x1x552 3x1x1x13 groups=3 dilation=1,2 flip=0 dtypes=*
"""

#: (N, C, T, H, W) and (K, C, S, R, S'), in memory with time before channels
_FRAMES = """
valid  2x3x5x4x4  4x3x3x2x3  frames=1 dtypes=*
full   1x2x3x3x4  3x2x2x3x2  frames=1 border=full
half   2x2x4x4x3  2x2x3x2x2  frames=1 border=half
one    1x3x1x5x5  2x3x1x3x3  frames=1
"""
#: small enough for the CUDA simulator
_SIMULATED = (
    "unshared-1x1/float32", "unshared-1x1/bfloat16", "full/float32", "stride-past/float32", "alpha-beta/float32",
    "plain/float32", "depthwise/float32", "depthwise-dilation/float32", "past-all/float32", "one/float32",
)  # fmt: skip
#: volumes of this name are not
_SLOW = (("conv3d", "depthwise"), ("conv3d_grad_wrt_inputs", "depthwise"))


def _border(text: str) -> Any:
    """A border mode as the public functions take it: a name, a number, one an axis, or a pair an axis."""
    if text in ("valid", "full", "half"):
        return text
    values = numbers(text)
    if len(values) < 4:
        return values[0] if len(values) == 1 else values
    return tuple(zip(values[::2], values[1::2], strict=True))


def _conv(op: str, dtype: str, x: tuple[int, ...], w: tuple[int, ...], f: dict[str, str]) -> str:
    """The problem line of one direction of a convolution with fields as in ``_CONTRACT``."""
    ones = ",1" * (len(x) - 2)
    stride, dilation = numbers(f.get("stride", ones[1:])), numbers(f.get("dilation", ones[1:]))
    padding = shapes.padding_pairs(_border(f.get("border", "valid")), w[2:], dilation)
    if op == "causal_conv1d":
        padding = ((0, 0), ((w[3] - 1) * dilation[1], 0))
    y: Any = shapes.get_conv_output_shape(x, w, padding, stride, dilation)
    if "unshared" in f:
        w = (w[0], *y[2:], *w[1:])
    operands = zip("xwy", (x, w, y), strict=True)
    specs = [operand(dtype, s, f.get(n, ""), OPERATIONS[op].output == n) for n, s in operands]
    if "frames" in f:
        specs = [ours(op, Spec.of(dtype, theirs(op, s).shape)) for s in specs]
    x_spec, w_spec, y_spec = specs
    flip, groups = f.get("flip", "1") == "1", int(f.get("groups", "1"))
    alpha, beta = float(f.get("alpha", "1")), float(f.get("beta", "0"))
    return str(ConvProblem(op, x_spec, w_spec, y_spec, padding, stride, dilation, flip, groups, alpha, beta))


def _contract(ops: tuple[str, ...], rows: str) -> Iterator[Case]:
    for number, (name, (x, w), fields) in enumerate(table(rows)):
        others = ("float16", "bfloat16", "float64")
        dtypes = DTYPES if fields.get("dtypes") == "*" else ("float32", others[number % 3])
        for op in ops:
            for dtype in dtypes:
                text = _conv(op, dtype, sizes(x), sizes(w), fields)
                tags = {"contract"}
                small = f"{name}/{dtype}" in _SIMULATED and (op, name) not in _SLOW
                if rows is not _CONTRACT and small and op not in THREE[2:]:
                    tags.add("simulate")
                yield Case(f"{op}/{name}/{dtype}", text, frozenset(tags))


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

#: the same with volumes, of whom a batch has fewer
_VOLUME_LAYERS = """
c3d/conv1                 3x16x112x112  64x3x3x3x3    border=1 small=12
c3d/conv3                 128x8x28x28   256x128x3x3x3 border=1 small=7
resnet3d/conv1-s2         3x16x112x112  64x3x7x7x7    border=3 stride=1,2,2 small=20
r2plus1d/space            64x8x56x56    144x64x1x3x3  border=0,1,1 small=10
r2plus1d/time             144x8x56x56   64x144x3x1x1  border=1,0,0 small=10
unet3d/bottom             256x8x8x8     512x256x3x3x3 border=1 small=4
"""
#: a filter a position; locally connected layers of a face and of a digit
_UNSHARED_LAYERS = """
deepface/l4               16x63x63      16x16x9x9     unshared=1 small=16
deepface/l5-s2            16x55x55      16x16x7x7     unshared=1 stride=2,2 small=15
locally-connected/32      32x32x32      32x32x3x3     unshared=1 border=1 small=12
"""
#: lines: of speech in samples, in frames, and of tokens
_LINES = """
wavenet/dilated-16        32x1x16000    32x32x1x2     dilation=1,16 small=1500
wavenet/first             1x1x16000     32x1x1x2      small=1500
mamba/depthwise           512x1x4096    512x1x1x4     groups=512 small=300
tcn/strided               64x1x8000     64x64x1x3     stride=1,2 small=700
"""
SMALL_IMAGES = 2
_SHORT = {"forward": "forward", "grad_inputs": "grad-inputs", "grad_weights": "grad-weights"}


def _layers() -> Iterator[Case]:
    yield from _rows(TWO, _LAYERS, 8)
    yield from _rows(TWO, _UNSHARED_LAYERS, 32, layouts=(("float32", ""), ("float16", "")))
    yield from _rows(THREE, _VOLUME_LAYERS, 4)
    yield from _rows(("causal_conv1d",), _LINES, 8, layouts=(("float32", ""), ("float16", "")))


def _rows(
    ops: tuple[str, ...],
    rows: str,
    images: int,
    layouts: tuple[tuple[str, str], ...] = (("float32", ""), ("float16", "nhwc")),
) -> Iterator[Case]:
    """Each layer at full size, with a copy of few images whose sides are no longer than ``small``."""
    for name, (image, filters), fields in table(rows):
        c, *space = sizes(image)
        most = int(fields.pop("small", max(space)))
        for op in ops:
            for dtype, layout in layouts:
                f = {**fields, "x": layout, "w": layout, "y": layout}
                text = _conv(op, dtype, (images, c, *space), sizes(filters), f)
                small = _conv(op, dtype, (SMALL_IMAGES, c, *(min(n, most) for n in space)), sizes(filters), f)
                yield Case(
                    f"{name}/{_SHORT[OPERATIONS[op].direction]}/{dtype}", text, frozenset({"validate", "bench"}), small
                )
