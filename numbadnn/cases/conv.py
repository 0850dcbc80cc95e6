"""Cases of convolution: a contract of small shapes with every option, and layers of networks. Each has three directions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numbadnn import shapes
from numbadnn.cases import Case
from numbadnn.cases.layouts import DTYPES, numbers, operand, sizes, table
from numbadnn.ops.conv import DIRECTIONS, ConvProblem


def cases() -> Iterator[Case]:
    """The contract, then layers."""
    yield from _contract()
    yield from _layers()


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


def _border(text: str) -> Any:
    """A border mode as the public functions take it: a name, a number, a pair or a pair of pairs."""
    if text in ("valid", "full", "half"):
        return text
    values = numbers(text)
    return {1: values[0], 2: values}.get(len(values), (values[:2], values[2:]))


def _conv(op: str, dtype: str, x: tuple[int, ...], w: tuple[int, ...], f: dict[str, str]) -> str:
    """The problem line of one direction of a convolution with fields as in ``_CONTRACT``."""
    stride, dilation = numbers(f.get("stride", "1,1")), numbers(f.get("dilation", "1,1"))
    padding = shapes.padding_pairs(_border(f.get("border", "valid")), w[2:], dilation)
    y = shapes.get_conv_output_shape(x, w, padding, stride, dilation)
    operands = zip("xwy", (x, w, y), strict=True)
    specs = [operand(dtype, s, f.get(n, ""), DIRECTIONS[op][1] == n) for n, s in operands]  # type: ignore[arg-type]
    x_spec, w_spec, y_spec = specs
    flip, groups = f.get("flip", "1") == "1", int(f.get("groups", "1"))
    alpha, beta = float(f.get("alpha", "1")), float(f.get("beta", "0"))
    return str(ConvProblem(op, x_spec, w_spec, y_spec, padding, stride, dilation, flip, groups, alpha, beta))


def _contract() -> Iterator[Case]:
    for number, (name, (x, w), fields) in enumerate(table(_CONTRACT)):
        others = ("float16", "bfloat16", "float64")
        dtypes = DTYPES if fields.get("dtypes") == "*" else ("float32", others[number % 3])
        for op in DIRECTIONS:
            for dtype in dtypes:
                text = _conv(op, dtype, sizes(x), sizes(w), fields)
                yield Case(f"{op}/{name}/{dtype}", text, frozenset({"contract"}))


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
    for name, (image, filters), fields in table(_LAYERS):
        c, h, w = sizes(image)
        side = int(fields.pop("small", h))
        for op in DIRECTIONS:
            for dtype, layout in (("float32", ""), ("float16", "nhwc")):
                f = {**fields, "x": layout, "w": layout, "y": layout}
                text = _conv(op, dtype, (IMAGES, c, h, w), sizes(filters), f)
                small = _conv(op, dtype, (SMALL_IMAGES, c, side, side), sizes(filters), f)
                yield Case(f"{name}/{_SHORT[op]}/{dtype}", text, frozenset({"validate", "bench"}), small)
