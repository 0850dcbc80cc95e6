"""Cases of the spatial transformer: a contract of small shapes for each of its four operations, and networks in use."""

from __future__ import annotations

from collections.abc import Iterator

from numbadnn.cases import Case, edge
from numbadnn.cases.layouts import DTYPES, operand, sizes, table
from numbadnn.problem import Spec
from numbadnn.problems.spatial import OPERANDS, SpatialProblem

OTHERS = ("float16", "bfloat16", "float64")


def cases() -> Iterator[Case]:
    """The contract, networks, then coordinates that are no numbers."""
    yield from _contract()
    yield from _layers()
    for op in ("spatialtf_sampler", "spatialtf_sampler_grad"):
        for dtype in DTYPES:
            for layout in ("", "nhwc"):
                name = f"{op}/nan{'-' + layout if layout else ''}/{dtype}"
                yield edge(name, _text(op, dtype, (2, 8, 5, 9), (4, 6), {"img": layout}), "nan")


#: name, image, size of the grid; a layout for all images, one for the grid; dtypes "*" = all four, else float32 and one more
_CONTRACT = """
small           2x3x5x9       4x6     dtypes=* simulate=1
larger          1x2x4x5       9x7
one-channel     3x1x9x5       5x5
many-channels   2x19x5x5      3x4
wide-row        1x2x3x33      2x70
one-point       2x3x5x3       1x1
one-pixel       2x2x1x1       3x3     simulate=1
one-row         1x3x1x9       2x5
one-column      1x3x7x1       5x2
many-images     33x1x3x3      2x2
same-size       1x2x9x17      9x17
nhwc            2x8x5x5       4x3     img=nhwc dtypes=* simulate=1
nhwc-odd        1x5x5x6       3x7     img=nhwc
nhwc-many       1x48x3x5      5x2     img=nhwc
rows-padded     2x3x5x9       4x6     img=rows grid=rows
reversed        2x3x5x9       4x6     img=reversed grid=reversed
broadcast       3x2x5x5       4x4     img=broadcast grid=broadcast
transposed      2x3x5x9       4x6     img=transposed grid=transposed
steps           2x3x5x9       4x6     img=steps grid=steps
unaligned       2x8x5x9       4x8     img=unaligned grid=unaligned
mixed           2x4x5x9       4x6     mixed=1
many-points     2x19x13x24    17x40   dtypes=*
far-points      1x16x80x104   16x16
few-points      1x16x2x4      16x16
"""


def _text(op: str, dtype: str, image: tuple[int, ...], points: tuple[int, ...], f: dict[str, str]) -> str:
    """The problem line of one operation; ``mixed``: the grid has another dtype than the image."""
    n, c = image[:2]
    layout, grid_layout = f.get("img", ""), f.get("grid", "")
    place = {"float16": "float32", "float32": "float64"}.get(dtype, "float32") if "mixed" in f else dtype
    shapes = {
        "theta": (n, 2, 3), "dtheta": (n, 2, 3), "img": image, "dimg": image, "y": (n, c, *points), "dy": (n, c, *points),
        "grid": (n, *points, 2), "dgrid": (n, *points, 2),
    }  # fmt: skip

    def named(name: str) -> Spec:
        is_grid = name in ("grid", "dgrid")
        words = grid_layout if is_grid else "" if "theta" in name else layout
        is_output = name in OPERANDS[op][1]
        return operand(place if is_grid and "sampler" in op else dtype, shapes[name], words, is_output)

    inputs, outputs = OPERANDS[op]
    return str(SpatialProblem(op, **{name: named(name) for name in (*inputs, *outputs)}))


def _contract() -> Iterator[Case]:
    for number, (name, (image, points), fields) in enumerate(table(_CONTRACT)):
        dtypes = DTYPES if fields.get("dtypes") == "*" else ("float32", OTHERS[number % 3])
        for op in OPERANDS:
            if "sampler" not in op and ("mixed" in fields or "nhwc" in name or "channel" in name):
                continue  # of an image they know the size of its grid alone
            for dtype in dtypes:
                quick = dtype == "float32" or (dtype == "float16" and "sampler_grad" not in op)
                tags = {"contract"} | ({"simulate"} if "simulate" in fields and quick else set())
                yield Case(
                    f"{op}/{name}/{dtype}", _text(op, dtype, sizes(image), sizes(points), fields), frozenset(tags)
                )


#: image and grid in full, then small
_LAYERS = """
stn/mnist         256x1x28x28      28x28     64x1x28x28     28x28
stn/cub           32x3x448x448     224x224   4x3x112x112    56x56
stn/features      32x64x112x112    112x112   2x64x28x28     28x28
rectify/text      64x128x32x100    32x100    4x128x16x50    16x50
"""


def _layers() -> Iterator[Case]:
    for name, words, fields in table(_LAYERS):
        full, small = words[:2], words[2:]
        for op in OPERANDS:
            for dtype, layout in (("float32", ""), ("float16", "nhwc")):
                f = {**fields, "img": layout}
                texts = [_text(op, dtype, sizes(i), sizes(p), f) for i, p in (full, small)]
                yield Case(f"{op}/{name}/{dtype}", texts[0], frozenset({"validate", "bench"}), texts[1])
