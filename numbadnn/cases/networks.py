"""The convolutions of networks: what the bench runs, ``numbadnn tune NETWORK`` measures and the rank learns from.

A line is a layer: image, filters, and what is not 1 or 0 of stride, padding and groups. ``cases`` makes of a network the three
directions in a dtype and layout, at the batch size it is measured with; ``latency`` are layers of them all with one image. They
are not among ``all_cases``: tests and validate take the fewer layers of ``cases/conv.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from numbadnn import shapes
from numbadnn.cases import Case
from numbadnn.problem import Spec, normalised_strides
from numbadnn.problems.conv import OPERATIONS, ConvProblem

#: network -> images in a batch, and its layers
NETWORKS = {
    "resnet50": (
        32,
        """
conv1           3x224x224     64x3x7x7       stride=2 pad=3
2a-1x1          64x56x56      64x64x1x1
2b-3x3          64x56x56      64x64x3x3      pad=1
2c-1x1          64x56x56      256x64x1x1
2d-1x1          256x56x56     64x256x1x1
3a-1x1          256x56x56     128x256x1x1
3b-3x3-s2       128x56x56     128x128x3x3    stride=2 pad=1
3c-1x1          128x28x28     512x128x1x1
3-shortcut      256x56x56     512x256x1x1    stride=2
3d-1x1          512x28x28     128x512x1x1
3b-3x3          128x28x28     128x128x3x3    pad=1
4a-1x1          512x28x28     256x512x1x1
4b-3x3-s2       256x28x28     256x256x3x3    stride=2 pad=1
4c-1x1          256x14x14     1024x256x1x1
4-shortcut      512x28x28     1024x512x1x1   stride=2
4d-1x1          1024x14x14    256x1024x1x1
4b-3x3          256x14x14     256x256x3x3    pad=1
5a-1x1          1024x14x14    512x1024x1x1
5b-3x3-s2       512x14x14     512x512x3x3    stride=2 pad=1
5c-1x1          512x7x7       2048x512x1x1
5-shortcut      1024x14x14    2048x1024x1x1  stride=2
5d-1x1          2048x7x7      512x2048x1x1
5b-3x3          512x7x7       512x512x3x3    pad=1
""",
    ),
    "vgg16": (
        16,
        """
1-1             3x224x224     64x3x3x3       pad=1
1-2             64x224x224    64x64x3x3      pad=1
2-1             64x112x112    128x64x3x3     pad=1
2-2             128x112x112   128x128x3x3    pad=1
3-1             128x56x56     256x128x3x3    pad=1
3-2             256x56x56     256x256x3x3    pad=1
4-1             256x28x28     512x256x3x3    pad=1
4-2             512x28x28     512x512x3x3    pad=1
5-1             512x14x14     512x512x3x3    pad=1
""",
    ),
    "mobilenetv2": (
        32,
        """
first           3x224x224     32x3x3x3       stride=2 pad=1
1-depthwise     32x112x112    32x1x3x3       pad=1 groups=32
1-project       32x112x112    16x32x1x1
2-expand        16x112x112    96x16x1x1
2-depthwise-s2  96x112x112    96x1x3x3       stride=2 pad=1 groups=96
2-project       96x56x56      24x96x1x1
2-expand-2      24x56x56      144x24x1x1
2-depthwise     144x56x56     144x1x3x3      pad=1 groups=144
2-project-2     144x56x56     24x144x1x1
3-depthwise-s2  144x56x56     144x1x3x3      stride=2 pad=1 groups=144
3-project       144x28x28     32x144x1x1
3-expand        32x28x28      192x32x1x1
3-depthwise     192x28x28     192x1x3x3      pad=1 groups=192
4-depthwise-s2  192x28x28     192x1x3x3      stride=2 pad=1 groups=192
4-project       192x14x14     64x192x1x1
4-expand        64x14x14      384x64x1x1
4-depthwise     384x14x14     384x1x3x3      pad=1 groups=384
5-project       384x14x14     96x384x1x1
5-expand        96x14x14      576x96x1x1
6-depthwise-s2  576x14x14     576x1x3x3      stride=2 pad=1 groups=576
6-expand        160x7x7       960x160x1x1
6-depthwise     960x7x7       960x1x3x3      pad=1 groups=960
7-project       960x7x7       320x960x1x1
last            320x7x7       1280x320x1x1
""",
    ),
    "resnext50": (
        32,
        """
2a-1x1          64x56x56      128x64x1x1
2b-grouped      128x56x56     128x4x3x3      pad=1 groups=32
2c-1x1          128x56x56     256x128x1x1
3a-1x1          256x56x56     256x256x1x1
3b-grouped-s2   256x56x56     256x8x3x3      stride=2 pad=1 groups=32
3b-grouped      256x28x28     256x8x3x3      pad=1 groups=32
3c-1x1          256x28x28     512x256x1x1
4a-1x1          512x28x28     512x512x1x1
4b-grouped-s2   512x28x28     512x16x3x3     stride=2 pad=1 groups=32
4b-grouped      512x14x14     512x16x3x3     pad=1 groups=32
4c-1x1          512x14x14     1024x512x1x1
5b-grouped-s2   1024x14x14    1024x32x3x3    stride=2 pad=1 groups=32
5b-grouped      1024x7x7      1024x32x3x3    pad=1 groups=32
""",
    ),
    "efficientnetb0": (
        32,
        """
first           3x224x224     32x3x3x3       stride=2 pad=1
1-depthwise     32x112x112    32x1x3x3       pad=1 groups=32
1-project       32x112x112    16x32x1x1
2-depthwise-s2  96x112x112    96x1x3x3       stride=2 pad=1 groups=96
2-expand        24x56x56      144x24x1x1
3-5x5-s2        144x56x56     144x1x5x5      stride=2 pad=2 groups=144
3-project       144x28x28     40x144x1x1
3-expand        40x28x28      240x40x1x1
3-5x5           240x28x28     240x1x5x5      pad=2 groups=240
4-3x3-s2        240x28x28     240x1x3x3      stride=2 pad=1 groups=240
4-project       240x14x14     80x240x1x1
4-expand        80x14x14      480x80x1x1
4-3x3           480x14x14     480x1x3x3      pad=1 groups=480
5-5x5           480x14x14     480x1x5x5      pad=2 groups=480
5-expand        112x14x14     672x112x1x1
6-5x5-s2        672x14x14     672x1x5x5      stride=2 pad=2 groups=672
6-project       672x7x7       192x672x1x1
6-expand        192x7x7       1152x192x1x1
6-5x5           1152x7x7      1152x1x5x5     pad=2 groups=1152
7-project       1152x7x7      320x1152x1x1
last            320x7x7       1280x320x1x1
""",
    ),
    "unet3d": (
        2,
        """
first           4x64x64x64    32x4x3x3x3     pad=1
1b              32x64x64x64   64x32x3x3x3    pad=1
2a              64x32x32x32   64x64x3x3x3    pad=1
2b              64x32x32x32   128x64x3x3x3   pad=1
3b              128x16x16x16  256x128x3x3x3  pad=1
4b              256x8x8x8     512x256x3x3x3  pad=1
up3             768x16x16x16  256x768x3x3x3  pad=1
up1             192x64x64x64  64x192x3x3x3   pad=1
last            64x64x64x64   3x64x1x1x1
""",
    ),
    "latency": (
        1,
        """
resnet-conv1    3x224x224     64x3x7x7       stride=2 pad=3
resnet-2b       64x56x56      64x64x3x3      pad=1
resnet-3c       128x28x28     512x128x1x1
resnet-3b       128x28x28     128x128x3x3    pad=1
resnet-4b-s2    256x28x28     256x256x3x3    stride=2 pad=1
resnet-4d       1024x14x14    256x1024x1x1
resnet-4b       256x14x14     256x256x3x3    pad=1
resnet-5c       512x7x7       2048x512x1x1
resnet-5b       512x7x7       512x512x3x3    pad=1
vgg-2-2         128x112x112   128x128x3x3    pad=1
mobilenet-2     144x56x56     144x1x3x3      pad=1 groups=144
mobilenet-last  320x7x7       1280x320x1x1
resnext-3b      256x28x28     256x8x3x3      pad=1 groups=32
""",
    ),
}
DIRECTIONS = ("forward", "grad-inputs", "grad-weights")
_SUFFIX = dict(zip(DIRECTIONS, ("", "_grad_wrt_inputs", "_grad_wrt_weights"), strict=True))
#: what ``numbadnn tune NETWORK`` measures a network in
SETTINGS = (("float16", "nhwc"), ("float32", "nchw"))


class Layer(NamedTuple):
    """One convolution: ``image`` without the batch, (C, H, W) or (C, D, H, W)."""

    network: str
    name: str
    images: int
    image: tuple[int, ...]
    filters: tuple[int, ...]
    stride: int
    pad: int
    groups: int


def layers(network: str) -> list[Layer]:
    """The distinct convolutions of a network; KeyError for one that is not among NETWORKS.

    >>> layers("resnet50")[0].image
    (3, 224, 224)
    """
    images, lines = NETWORKS[network]
    found = []
    for line in lines.strip().splitlines():
        name, image, filters, *words = line.split()
        fields = {k: int(v) for k, v in (word.split("=") for word in words)}
        x, w = (tuple(map(int, text.split("x"))) for text in (image, filters))
        found.append(
            Layer(network, name, images, x, w, fields.get("stride", 1), fields.get("pad", 0), fields.get("groups", 1))
        )
    return found


def problem(layer: Layer, direction: str, dtype: str, layout: str = "nchw", images: int | None = None) -> ConvProblem:
    """One direction of a layer as a correlation, packed in "nchw" or "nhwc" (volumes too).

    >>> str(problem(layers("vgg16")[0], "forward", "float16", "nhwc").y)
    'float16:16x64x224x224:nhwc'
    """
    axes = len(layer.image) - 1
    x, w = (images or layer.images, *layer.image), layer.filters
    stride, padding, dilation = (layer.stride,) * axes, ((layer.pad, layer.pad),) * axes, (1,) * axes
    y = shapes.assert_conv_shape(shapes.get_conv_output_shape(x, w, padding, stride, dilation))
    op = f"conv{axes}d{_SUFFIX[direction]}"

    def spec(name: str, shape: tuple[int, ...]) -> Spec:
        """Inputs are normalised as arrays are, outputs are as the library allocates them: what is tuned here is found then."""
        made = Spec.of(dtype, shape, "nhwc" if layout == "nhwc" else "")
        return made if OPERATIONS[op].output == name else Spec(dtype, shape, normalised_strides(shape, made.strides))

    x_spec, w_spec, y_spec = spec("x", x), spec("w", w), spec("y", y)
    return ConvProblem(op, x_spec, w_spec, y_spec, padding, stride, dilation, False, layer.groups)


def cases(network: str, settings: tuple[tuple[str, str], ...] = SETTINGS) -> Iterator[Case]:
    """Every layer of a network, three directions, in these dtypes and layouts; small copies are of two images."""
    for dtype, layout in settings:
        for layer in layers(network):
            for direction in DIRECTIONS:
                text = str(problem(layer, direction, dtype, layout))
                small = str(problem(layer, direction, dtype, layout, min(2, layer.images)))
                yield Case(f"{network}/{layer.name}/{direction}/{dtype}-{layout}", text, frozenset({"bench"}), small)
