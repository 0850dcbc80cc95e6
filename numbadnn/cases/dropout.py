"""Cases of dropout: a contract of small shapes in every layout and probability, and layers of networks in use."""

from __future__ import annotations

from collections.abc import Iterator

from numbadnn.cases import Case
from numbadnn.cases.layouts import DTYPES, operand, sizes, table
from numbadnn.problems.dropout import DropoutProblem

#: name, shape, probability, layout
_CONTRACT = """
vector       37         p=0.5
one          1          p=0.3
long         4100       p=0.1   dtypes=*
matrix       16x33      p=0.5   dtypes=*
images       2x3x5x7    p=0.75
rank6        2x3x2x1x3x2 p=0.2
none         5x16       p=0
all          5x16       p=1     dtypes=*
rare         64x64      p=0.001
nhwc         2x8x5x4    p=0.5   layout=nhwc dtypes=*
nhwc-odd     3x5x3x2    p=0.3   layout=nhwc
rows         6x32       p=0.5   layout=rows
reversed     6x31       p=0.4   layout=reversed
broadcast    4x19       p=0.5   layout=broadcast
transposed   24x18      p=0.6   layout=transposed
steps        3x40       p=0.5   layout=steps
unaligned    3x260      p=0.5   layout=unaligned dtypes=*
"""


def cases() -> Iterator[Case]:
    """The contract, then layers."""
    number = 0
    for name, (shape,), f in table(_CONTRACT):
        for op in ("dropout", "dropout_grad"):
            number += 1
            one = ("float32", "float16", "bfloat16", "float64")[number % 4]
            for dtype in DTYPES if "dtypes" in f and op == "dropout" else (one,):
                tags = {"contract"}
                if name in ("vector", "images", "nhwc-odd", "steps", "matrix", "unaligned"):
                    tags.add("simulate")
                text = _line(op, dtype, sizes(shape), float(f["p"]), f.get("layout", ""))
                yield Case(f"{op}/{name}/{dtype}", text, frozenset(tags))
    for name, full, small, p in (
        ("transformer", "8192x4096", "64x4096", 0.1),
        ("classifier", "512x4096", "64x512", 0.5),
        ("feature-maps", "32x64x112x112", "2x16x28x28", 0.2),
    ):
        for op in ("dropout", "dropout_grad"):
            for dtype in ("float32", "float16"):
                texts = [_line(op, dtype, sizes(s), p, "") for s in (full, small)]
                yield Case(f"{op}/{name}/{dtype}", texts[0], frozenset({"validate", "bench"}), texts[1])


def _line(op: str, dtype: str, shape: tuple[int, ...], p: float, layout: str) -> str:
    source, result = (operand(dtype, shape, layout, is_output) for is_output in (False, True))
    return str(DropoutProblem(op, source, result, p))
