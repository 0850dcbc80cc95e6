"""Cases of pooling: a contract of small shapes with every mode, window, stride and padding, and layers of networks in use."""

from __future__ import annotations

from collections.abc import Iterator

from numbadnn.cases import Case, edge
from numbadnn.cases.layouts import DTYPES, operand, sizes, table
from numbadnn.problem import Spec
from numbadnn.problems.pool import MODES, PoolProblem


def cases() -> Iterator[Case]:
    """The contract, a few for the simulator, layers in use, then windows of nothing but -inf."""
    yield from _contract()
    yield from _simulated()
    yield from _in_use()
    for dtype in DTYPES:
        for layout in ("", "nhwc"):
            text = str(_problem("pool", dtype, (2, 8, 9, 8), layout, "3x3", "2x2", "1x1", "max"))
            yield edge(f"pool/lowest{'-' + layout if layout else ''}/{dtype}", text, "lowest")


#: name, x, window, stride, pad; two modes each in turn (max always), two dtypes, both operations
_CONTRACT = """
halves         2x3x8x16    2x2 2x2 0x0  dtypes=*
halves-odd     2x3x7x9     2x2 2x2 0x0
stem           2x4x16x16   3x3 2x2 1x1  dtypes=*
overlap-odd    1x3x11x13   3x3 2x2 0x0
same           1x2x8x8     3x3 1x1 1x1
wide-window    1x2x12x24   5x7 2x3 2x3
gaps           2x2x9x16    2x2 3x4 0x0
uneven         1x2x9x12    3x2 1x2 2x0
whole-image    2x5x7x7     7x7 1x1 0x0
one-pixel      3x4x1x1     1x1 1x1 0x0
ones           1x2x5x6     1x1 2x2 0x0
tail           1x1x4x9     2x4 2x4 1x3
nhwc           2x8x10x12   2x2 2x2 0x0  layout=nhwc dtypes=*
nhwc-stem      2x16x9x9    3x3 2x2 1x1  layout=nhwc dtypes=*
nhwc-odd       2x3x7x6     3x3 2x2 1x1  layout=nhwc
nhwc-many      1x520x3x4   2x2 1x1 1x1  layout=nhwc
rows-padded    2x3x6x8     2x2 2x2 0x0  layout=rows
reversed       2x3x6x7     3x3 2x2 1x1  layout=reversed
broadcast      3x2x6x8     2x2 2x2 0x0  layout=broadcast
transposed     2x3x8x6     3x2 2x1 1x1  layout=transposed
steps          2x2x6x6     2x2 2x2 0x0  layout=steps
overlap-even   3x2x13x24   3x3 2x2 1x1  dtypes=*
overlap-pad    2x2x6x8     3x3 2x2 1x2  dtypes=*
overlap-part   1x1x7x1060  3x3 2x2 1x1
nhwc-same      2x8x9x7     3x3 1x1 1x1  layout=nhwc dtypes=*
nhwc-part      1x4x5x139   3x2 2x1 0x1  layout=nhwc
unaligned      2x3x8x16    3x3 2x2 1x1  layout=unaligned
unaligned-nhwc 2x8x6x6     2x2 2x2 0x0  layout=nhwc,unaligned
cubes          1x3x4x8x8   2x2x2 2x2x2 0x0x0  dtypes=*
cubes-stem     1x2x5x9x8   3x3x3 2x2x2 1x1x1
cubes-odd      1x2x5x7x9   2x3x2 2x2x1 1x1x0
cubes-nhwc     1x8x4x6x6   2x2x2 2x2x2 0x0x0  layout=nhwc
cubes-flat     1x2x3x8x8   1x3x3 1x2x2 0x1x1
cubes-same     1x2x4x5x8   3x3x3 1x1x1 1x1x1
cubes-rows     1x2x5x6x16  3x3x3 2x2x2 1x1x1  dtypes=*
cubes-last     1x8x5x6x7   3x3x3 2x2x2 1x1x1  layout=nhwc dtypes=*
"""


def _problem(
    op: str, dtype: str, shape: tuple[int, ...], layout: str, window: str, stride: str, pad: str, mode: str
) -> PoolProblem:
    text = f"{op} x={operand(dtype, shape, layout)} window={window} stride={stride} pad={pad} mode={mode}"
    packed = PoolProblem.parse(text)

    def spec(name: str, is_output: bool) -> Spec | None:
        made: Spec | None = getattr(packed, name)
        return None if made is None else operand(dtype, made.shape, layout, is_output)

    x, y = operand(dtype, shape, layout), spec("y", op == "pool")
    assert y is not None
    return PoolProblem(
        op, x, y, spec("dy", False), spec("dx", True), packed.window, packed.stride, packed.pad, packed.mode
    )


def _contract() -> Iterator[Case]:
    others = MODES[1:]
    for number, (name, (shape, window, stride, pad), fields) in enumerate(table(_CONTRACT)):
        every = fields.get("dtypes") == "*"
        dtypes = DTYPES if every else (("float32", *DTYPES)[number % 5],)
        for op in ("pool", "pool_grad"):
            for i, dtype in enumerate(dtypes):
                mode = others[(number + i) % 4]
                for m in ("max", mode):
                    problem = _problem(op, dtype, sizes(shape), fields.get("layout", ""), window, stride, pad, m)
                    yield Case(f"{op}/{name}/{m}/{dtype}", str(problem), frozenset({"contract"}))


_SIMULATED = """
tiles      1x1x4x8    2x2 2x2 0x0 float32  max
stem       1x1x6x8    3x3 2x2 1x1 float16  max
exclusive  1x1x5x6    3x3 2x2 1x1 bfloat16 average_exc_pad
nhwc       1x4x4x4    3x3 2x2 1x1 float32  max layout=nhwc
same       1x2x5x6    3x3 1x1 1x1 bfloat16 max
pad        1x1x6x8    3x3 2x2 1x2 float32  max
nhwc-same  1x8x4x3    3x3 1x1 1x1 float16  max layout=nhwc
nhwc-forty 1x40x2x2   2x2 1x1 1x1 float32  max layout=nhwc
cubes      1x1x3x4x8  3x3x3 2x2x2 1x1x1 float16  max
cubes-mean 1x1x3x4x5  3x3x3 2x2x2 1x1x1 float32  average_exc_pad
cubes-last 1x4x3x4x3  3x3x3 1x2x1 1x1x1 float32  average_exc_pad layout=nhwc
"""


def _simulated() -> Iterator[Case]:
    for name, (shape, window, stride, pad, dtype, mode), fields in table(_SIMULATED):
        for op in ("pool", "pool_grad"):
            problem = _problem(op, dtype, sizes(shape), fields.get("layout", ""), window, stride, pad, mode)
            yield Case(f"{op}/simulated/{name}", str(problem), frozenset({"simulate"}))


#: full and small shape, window, stride, pad, mode; each forward and gradient, float32 and float16
_LAYERS = """
vgg16          32x64x224x224     1x8x56x56    2x2 2x2 0x0 max
resnet50-stem  32x64x112x112     1x8x56x56    3x3 2x2 1x1 max
resnet50-nhwc  32x64x112x112     1x8x28x28    3x3 2x2 1x1 max  layout=nhwc
alexnet        128x64x55x55      2x8x55x55    3x3 2x2 0x0 max
inception      32x192x28x28      1x8x28x28    3x3 1x1 1x1 max
densenet       32x256x56x56      1x8x28x28    2x2 2x2 0x0 average_inc_pad
pool-features  32x2048x7x7       2x64x7x7     7x7 1x1 0x0 average_inc_pad
exclusive      32x192x35x35      1x8x35x35    3x3 1x1 1x1 average_exc_pad
c3d            8x64x16x112x112   1x4x4x28x28  2x2x2 2x2x2 0x0x0 max
i3d-stem       8x64x16x112x112   1x4x4x28x28  1x3x3 1x2x2 0x1x1 max
"""


def _in_use() -> Iterator[Case]:
    for name, (full, small, window, stride, pad, mode), fields in table(_LAYERS):
        for op in ("pool", "pool_grad"):
            for dtype in ("float32", "float16"):
                layout = fields.get("layout", "")
                texts = [str(_problem(op, dtype, sizes(s), layout, window, stride, pad, mode)) for s in (full, small)]
                yield Case(f"{op}/{name}/{dtype}", texts[0], frozenset({"validate", "bench"}), texts[1])
