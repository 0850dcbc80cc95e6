"""Problems that random ones once showed us slow at: ``bench_random_shapes.py --hard`` measures these, as it does those."""

from __future__ import annotations

from collections.abc import Iterator

from random_problems import ARITHMETIC, Drawn

from numbadnn.cases import networks, parse

FIRST = "x={t}:64x3x224x224 w={t}:64x3x7x7 pad=3,3,3,3 stride=2,2"
ONE_3D = "x={t}:2x1x96x96x96{l} w={t}:32x1x3x3x3{l} pad=1,1,1,1,1,1"
CHANNELS = "x={t}:32x144x56x56{l} w={t}:144x1x3x3{l} pad=1,1,1,1 groups=144"
NARROW = "x={t}:32x144x28x28{l} w={t}:32x144x1x1{l}"

#: what it is, the arithmetic, the problem with {t} for its type and {l} for the layout
LINES = (
    ("softmax", "fp16", "softmax_grad dy={t}:16x256x128x128:nhwc algo=log"),
    ("softmax", "fp16", "softmax_grad dy={t}:16x21x512x512:nhwc algo=log"),
    *(("one channel", a, "conv3d " + ONE_3D.replace("{l}", l)) for a in ("fp16", "bf16") for l in ("", ":nhwc")),
    ("one channel", "fp32", "conv3d_grad_wrt_inputs " + ONE_3D.replace("{l}", "")),
    *(("one channel", a, "conv2d_grad_wrt_inputs x={t}:1x1x28x28 w={t}:32x1x3x3 pad=1,1,1,1") for a in ("fp16", "bf16")),
    ("first layer", "bf16", "conv2d " + FIRST),
    *(("depthwise", "fp16", "conv2d_grad_wrt_weights " + CHANNELS.replace("{l}", l)) for l in ("", ":nhwc")),
    ("depthwise", "fp16", "conv2d x={t}:32x1152x7x7:nhwc w={t}:1152x1x5x5:nhwc pad=2,2,2,2 groups=1152"),
    ("1x1", "fp16", "conv2d_grad_wrt_inputs " + NARROW.replace("{l}", ":nhwc")),
    ("1x1", "tf32", "conv2d " + NARROW.replace("{l}", "")),
    ("1x1", "fp32", "conv2d x={t}:32x320x7x7 w={t}:1280x320x1x1"),
    ("groups", "fp16", "conv2d x={t}:32x128x56x56:nhwc w={t}:128x4x3x3:nhwc pad=1,1,1,1 groups=32"),
    ("groups", "fp16", "conv2d x={t}:32x256x28x28:nhwc w={t}:256x8x3x3:nhwc pad=1,1,1,1 groups=32"),
)  # fmt: skip


def problems() -> Iterator[Drawn]:
    """Those of LINES, then middle layers of a 3-D U-Net in all directions, with TF32 and in 16 bits."""
    number = 0
    for family, arithmetic, line in LINES:
        dtype, precision = ARITHMETIC[arithmetic]
        plain = " flip=0" if line.startswith("conv") else ""
        yield Drawn(number, family, parse(line.format(t=dtype) + plain), precision)
        number += 1
    for layer in networks.layers("unet3d"):
        for arithmetic, layout in (
            (("tf32", "nchw"), ("fp16", "nchw"), ("fp16", "nhwc")) if layer.name in ("2b", "3b") else ()
        ):
            dtype, precision = ARITHMETIC[arithmetic]
            for direction in ("forward", "grad-inputs", "grad-weights"):
                yield Drawn(number, "unet3d", networks.problem(layer, direction, dtype, layout), precision)
                number += 1
