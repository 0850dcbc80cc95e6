"""Cases of bilinear upsampling: a contract of small shapes, and layers of networks in use. Each has two directions."""

from __future__ import annotations

from collections.abc import Iterator

from numbadnn.cases import Case
from numbadnn.cases.layouts import DTYPES, operand, sizes, table
from numbadnn.problems.upsample import UpsampleProblem, output_shape

OPS = ("bilinear_upsampling", "bilinear_upsampling_grad")


def cases() -> Iterator[Case]:
    """The contract, then layers."""
    yield from _contract()
    yield from _layers()


#: name, x; dtypes "*" = all four, else float32 and the next in turn; "small" ones run in the simulator too
_CONTRACT = """
twice           2x3x4x8     ratio=2 dtypes=* simulate=1
thrice          1x2x3x8     ratio=3 dtypes=* simulate=1
four            1x2x3x4     ratio=4
seven           1x1x3x3     ratio=7
once            1x2x3x5     ratio=1
odd-width       2x1x5x7     ratio=2
odd-thrice      1x3x3x5     ratio=3
one-pixel       2x3x1x1     ratio=3
one-row         1x2x1x9     ratio=2
many-planes     33x2x2x3    ratio=2
wide            1x1x2x70    ratio=2
nhwc            2x8x3x4     ratio=2 x=nhwc y=nhwc dtypes=* simulate=1
nhwc-thrice     1x16x3x3    ratio=3 x=nhwc y=nhwc
nhwc-odd        1x5x4x3     ratio=2 x=nhwc y=nhwc
nhwc-to-nchw    1x8x3x4     ratio=2 x=nhwc
rectangle       1x2x3x4     ratio=2,3
fraction        1x2x2x2     ratio=7/4,5/3 dtypes=* simulate=1
fraction-small  2x3x9x11    ratio=3/5,2/7
fraction-nhwc   1x8x5x4     ratio=3/2 x=nhwc y=nhwc
shrink          1x2x12x13   ratio=1/4
rows-padded     2x3x4x5     ratio=2 x=rows y=rows
reversed        2x3x4x5     ratio=2 x=reversed y=reversed
broadcast       3x2x4x4     ratio=2 x=broadcast y=broadcast
transposed      2x2x4x6     ratio=3 x=transposed y=transposed
steps           2x2x4x6     ratio=2 x=steps y=steps
unaligned       2x3x4x8     ratio=2 x=unaligned y=unaligned
"""


def _text(op: str, dtype: str, x: tuple[int, ...], f: dict[str, str]) -> str:
    ratio = UpsampleProblem.parse(f"{op} x=float32:1x1x1x1 ratio={f['ratio']}").ratio
    forward = op == OPS[0]
    x_spec = operand(dtype, x, f.get("x", ""), not forward)
    return str(UpsampleProblem(op, x_spec, operand(dtype, output_shape(x, ratio), f.get("y", ""), forward), ratio))


def _contract() -> Iterator[Case]:
    for number, (name, (x,), fields) in enumerate(table(_CONTRACT)):
        dtypes = DTYPES if fields.get("dtypes") == "*" else ("float32", ("float16", "bfloat16", "float64")[number % 3])
        for op in OPS:
            for dtype in dtypes:
                tags = {"contract"} | (
                    {"simulate"} if "simulate" in fields and dtype in ("float32", "float16") else set()
                )
                yield Case(f"{op}/{name}/{dtype}", _text(op, dtype, sizes(x), fields), frozenset(tags))


#: full and small shape, ratio
_LAYERS = """
fcn/score-2x        8x21x128x128    2x21x32x32     ratio=2
segnet/decoder-2x   8x64x112x112    2x64x28x28     ratio=2
unet/up-2x          8x128x128x128   1x128x32x32    ratio=2
fpn/top-down-2x     8x256x56x56     1x256x14x14    ratio=2
superres/3x         8x64x96x96      1x64x24x24     ratio=3
deeplab/8x          4x21x65x65      1x21x33x33     ratio=8
gan/resize-3:2      8x64x96x96      1x64x24x24     ratio=3/2
"""


def _layers() -> Iterator[Case]:
    for name, (full, small), fields in table(_LAYERS):
        for op in OPS:
            for dtype, layout in (("float32", ""), ("float16", "nhwc")):
                f = {**fields, "x": layout, "y": layout}
                direction = "forward" if op == OPS[0] else "grad"
                texts = [_text(op, dtype, sizes(s), f) for s in (full, small)]
                yield Case(f"{name}/{direction}/{dtype}", texts[0], frozenset({"validate", "bench"}), texts[1])
