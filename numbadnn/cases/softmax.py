"""Cases of softmax: a contract of small shapes, every one with three algorithms and two modes, and shapes in use."""

from __future__ import annotations

from collections.abc import Iterator

from numbadnn.cases import Case, edge
from numbadnn.cases.layouts import DTYPES, operand, sizes, table
from numbadnn.problem import Spec
from numbadnn.problems.softmax import SoftmaxProblem


def cases() -> Iterator[Case]:
    """The contract, shapes in use, then equal large logits."""
    yield from _contract()
    yield from _in_use()
    for dtype in DTYPES:
        for algo, shape in (("log", (6, 1000)), ("accurate", (6, 1000)), ("log", (6, 17, 3, 2))):
            name = f"softmax/equal/{algo}-{len(shape)}d/{dtype}"
            yield edge(name, _softmax("softmax", shape, dtype, "", algo, "channel"), "equal")


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
many-channels 1x150x4x10
channels-1000 1x1000x32
channels-2100 1x2100x8
long-rows     2x20008      dtypes=*
long-odd      2x33001
longest       1x140000
long-padded   2x40001      layout=rows
long-shifted  2x20003      layout=unaligned
"""


def _softmax(op: str, shape: tuple[int, ...], dtype: str, layout: str, algo: str, mode: str) -> str:
    def spec(is_output: bool) -> Spec:
        return operand(dtype, shape, layout, is_output)

    if op == "softmax":
        return str(SoftmaxProblem(op, spec(True), x=spec(False), algo=algo, mode=mode))
    return str(SoftmaxProblem(op, spec(False), dy=spec(False), dx=spec(True), algo=algo, mode=mode))


def _contract() -> Iterator[Case]:
    for number, (name, (shape,), fields) in enumerate(table(_CONTRACT_SOFTMAX)):
        others = ("float16", "bfloat16", "float64")
        dtypes = DTYPES if fields.get("dtypes") == "*" else ("float32", others[number % 3])
        modes = ("channel",) if sizes(shape)[2:] == () else ("channel", "instance")  # of rank 2 they are the same
        for op in ("softmax", "softmax_grad"):
            for i, (algo, mode) in enumerate((a, m) for m in modes for a in ("accurate", "log", "fast")):
                for dtype in dtypes if len(dtypes) == 4 else (dtypes[i % 2],):
                    text = _softmax(op, sizes(shape), dtype, fields.get("layout", ""), algo, mode)
                    yield Case(f"{op}/{name}/{algo}-{mode}/{dtype}", text, frozenset({"contract"}))
    for i, dtype in enumerate(DTYPES):  # operands of two layouts
        for shape in ("2x8x5x3", "2x21x4x9"):
            one, other = f"{dtype}:{shape}", f"{dtype}:{shape}:nhwc"
            algo = ("log", "accurate")[i % 2]
            for op, operands in (
                ("softmax", f"x={one} y={other}"),
                ("softmax_grad", f"dy={other} y={one} dx={other}"),
                ("softmax_grad", f"dy={other} y={one} dx={one}"),
            ):
                text = str(SoftmaxProblem.parse(f"{op} {operands} algo={algo}"))
                name = f"{op}/layouts-{shape}-{operands.count('nhwc')}/{algo}-channel/{dtype}"
                tags = {"contract", "simulate"} if shape == "2x8x5x3" and i == 0 else {"contract"}
                yield Case(name, text, frozenset(tags))
    for dtype in DTYPES:  # two modes, one meaning
        yield Case(
            f"softmax/rows/accurate-instance/{dtype}",
            _softmax("softmax", (5, 7), dtype, "", "accurate", "instance"),
            frozenset({"contract"}),
        )


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


def _in_use() -> Iterator[Case]:
    for name, (full, small), f in table(_SOFTMAX):
        for op in ("softmax", "softmax_grad"):
            for dtype in ("float32", "float16"):
                texts = [_softmax(op, sizes(s), dtype, "", f["algo"], f.get("mode", "channel")) for s in (full, small)]
                yield Case(f"{op}/{name}/{dtype}", texts[0], frozenset({"validate", "bench"}), texts[1])
