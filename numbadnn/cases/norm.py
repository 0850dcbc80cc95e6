"""Cases of batch normalization: a contract of small shapes in both modes, and layers of networks in use."""

from __future__ import annotations

from collections.abc import Iterator

from numbadnn.cases import Case, edge
from numbadnn.cases.layouts import DTYPES, operand, sizes, table
from numbadnn.problem import Spec
from numbadnn.problems.norm import LIKE_X, OPERANDS, TRAIN, NormProblem, parameter_shape


def cases() -> Iterator[Case]:
    """The contract, running averages, layers, then channels of one large value."""
    yield from _contract()
    yield from _running()
    yield from _in_use()
    for dtype in DTYPES:
        for name, shape, layout in (
            ("", (10, 5, 10, 10), ""),
            ("-nhwc", (4, 16, 8, 7), "nhwc"),
            ("-many", (3000, 2, 1, 1), ""),
        ):
            fields = {"layout": layout, "gamma": "float64" if dtype == "float64" else "float32", "epsilon": "1e-5"}
            text = _line(TRAIN, "spatial", dtype, shape, fields)
            yield edge(f"{TRAIN}/constant{name}/{dtype}", text, "constant")


#: name, shape, modes (s spatial, p per-activation), layout of x and what has its shape, layout and dtype of the parameters
_CONTRACT = """
vector         7                   modes=s
matrix         6x5                 modes=p
matrix-wide    9x68                modes=s   dtypes=*
rank3          4x3x10              modes=sp
images         2x5x4x6             modes=s   dtypes=*
images-odd     3x7x5x3             modes=sp
images-large   2x3x24x32           modes=s
volumes        2x3x2x4x4           modes=sp
rank6          2x3x2x1x3x2         modes=s
one-channel    4x1x6x6             modes=s
one-position   8x4x1x1             modes=sp
one-image      1x3x4x4             modes=s
one-value      1x4                 modes=s
nhwc           4x8x4x4             modes=s   layout=nhwc dtypes=*
nhwc-odd       3x5x3x2             modes=sp  layout=nhwc
nhwc-wide      2x72x3x3            modes=s   layout=nhwc
rows-padded    4x3x5x8             modes=sp  layout=rows
reversed       4x3x5x8             modes=s   layout=reversed
broadcast      4x3x4x4             modes=s   layout=broadcast
transposed     4x3x4x6             modes=sp  layout=transposed
steps          4x3x4x4             modes=s   layout=steps
unaligned      4x4x4x4             modes=sp  layout=unaligned
mixed          4x3x4x4             modes=s   gamma=float32 dtypes=half
mixed-wide     4x6                 modes=p   gamma=float64
steps-gamma    4x6x2x2             modes=sp  parameters=steps
epsilon-0      4x4x4x4             modes=s   epsilon=0
"""


def _line(op: str, mode: str, dtype: str, shape: tuple[int, ...], f: dict[str, str], running: bool = False) -> str:
    """The problem line of one operation, with fields as in ``_CONTRACT``."""
    count = 3 if op == TRAIN and not running else 5
    inputs, outputs = (names[:count] for names in OPERANDS[op])
    small = parameter_shape(shape, mode)

    def spec(name: str) -> Spec:
        is_output = name in outputs
        if name in LIKE_X:
            return operand(dtype, shape, f.get("layout", ""), is_output)
        return operand(f.get("gamma", dtype), small, f.get("parameters", ""), is_output)

    epsilon = float(f.get("epsilon", "1e-4"))
    specs = [tuple(map(spec, names)) for names in (inputs, outputs)]
    return str(NormProblem(op, specs[0], specs[1], mode, epsilon, 0.3 if running else 0.1))


def _contract() -> Iterator[Case]:
    number = 0
    modes = {"s": "spatial", "p": "per-activation"}
    for name, (shape,), fields in table(_CONTRACT):
        for letter in fields["modes"]:
            for op in OPERANDS:
                number += 1
                asked = fields.get("dtypes", "")
                one = ("float32", "float16", "float32", "bfloat16", "float32", "float64")[number % 6]
                if name == "one-value" and op != TRAIN:
                    continue
                if asked == "half":
                    dtypes: tuple[str, ...] = ("float16", "bfloat16")[number % 2 :][:1]
                else:
                    dtypes = DTYPES[number % 2 :: 2] if asked == "*" else ("float32",) if "gamma" in fields else (one,)
                for dtype in dtypes:
                    tags = {"contract"}
                    if (name, dtype) in (("images-odd", one), ("nhwc", "float16"), ("steps", one)) and letter == "s":
                        tags.add("simulate")
                    text = _line(op, modes[letter], dtype, sizes(shape), fields)
                    yield Case(f"{op}/{name}/{modes[letter]}/{dtype}", text, frozenset(tags))


def _running() -> Iterator[Case]:
    """Training that averages; these have arrays that the public function takes by name, hence no contract of their own."""
    for dtype in DTYPES:
        for shape, mode, layout in (
            ("3x4x4x4", "spatial", ""),
            ("5x6x2x2", "per-activation", ""),
            ("2x8x3x3", "spatial", "nhwc"),
        ):
            text = _line(TRAIN, mode, dtype, sizes(shape), {"layout": layout}, running=True)
            name = f"{TRAIN}/running{'-' + layout if layout else ''}/{mode}/{dtype}"
            yield Case(name, text, frozenset({"contract", "simulate"} if dtype == "float32" else {"contract"}))


#: full and small shape; layouts and dtypes; every operation
_LAYERS = """
resnet50-stem   32x64x112x112   2x64x28x28    mode=spatial
resnet50-deep   64x2048x7x7     4x256x7x7     mode=spatial
resnet50-nhwc   32x256x56x56    2x64x14x14    mode=spatial layout=nhwc
video           8x64x16x28x28   2x16x4x7x7    mode=spatial
dense           4096x1024       256x256       mode=per-activation
"""


def _in_use() -> Iterator[Case]:
    for name, (full, small), f in table(_LAYERS):
        for op in OPERANDS:
            for dtype in ("float32", "float16"):
                more = f | ({"gamma": "float32"} if dtype == "float16" else {})
                texts = [_line(op, f["mode"], dtype, sizes(s), more) for s in (full, small)]
                yield Case(f"{op}/{name}/{dtype}", texts[0], frozenset({"validate", "bench"}), texts[1])
