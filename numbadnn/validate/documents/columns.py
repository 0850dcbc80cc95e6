"""What each column of a report means: the terminal's legend, the page's, and the header of the CSV file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple


class Column(NamedTuple):
    """``key`` of a flat row (``flat.rows``), its title, one sentence that says what stands there, and its kind.

    ``long``: text that may be broken anywhere.
    """

    key: str
    title: str
    legend: str
    number: bool = False
    long: bool = False


CASE = Column("case", "case", "what was computed: the name of a case, or its problem line", long=True)
IMPL = Column(
    "impl",
    "implementation",
    "what computed it; (simulator): the CUDA kernel in Numba's simulator, on the CPU",
    long=True,
)
TIME = Column("time_us", "time (us)", "median time of a call in microseconds; empty: not timed", True)
NOTES = Column(
    "notes", "notes", "what went wrong; otherwise what the implementation says about how it computed", long=True
)
FASTEST = Column("ratio", "of fastest", "its time over the time of the fastest implementation of the same case", True)

_VALIDATE = (
    CASE,
    IMPL,
    Column(
        "result",
        "result",
        "ok: every element within its bound; mismatch: one is not; erratum: a mismatch known of this cuDNN; error: it failed",
    ),
    Column(
        "worst", "error/bound", "the largest error over what rounding can explain at that element; 1 is the limit", True
    ),
    Column("where", "at", "the index of the element with that error"),
    Column(
        "ulp", "ULP", "the largest error in units in the last place; huge where a sum cancels, which is no fault", True
    ),
    Column("exact", "integers", "whether small integers come out right to the bit; empty: not a direct sum"),
    Column("same_bits", "same bits", "whether every run on the same data gave the same bits"),
    Column("speed", "speed", "work or traffic of the problem over the time of a call; empty: not timed", True),
)
#: what the terminal shows of a validation; it has no room for the others
TERMINAL = _VALIDATE
_ARITHMETIC = Column(
    "arithmetic",
    "arithmetic",
    "the rounding that the bound assumes: ieee, tensor_core, half_products, given_mean, tf32, tf32_cut, half, fft or winograd",
)

_DETERMINISM = (
    CASE,
    IMPL,
    Column("dtype", "dtype", "the type of the result"),
    Column("declared", "declared", "the level of determinism that the implementation declares"),
    Column("reached", "reached", "the highest level that the trials on this machine support"),
    Column(
        "result",
        "result",
        "ok: no trial contradicts what is declared; wanting: one does; not tried: none could; failed: it did not run",
    ),
    Column("trials", "trials", "what was changed, and whether the bits stayed the same", long=True),
    NOTES,
)

_BENCH = (
    CASE,
    IMPL,
    Column("result", "result", "chosen: what a call would run; timed: another that can; refused: one that cannot"),
    TIME,
    Column("least_us", "least (us)", "the shortest time of a call in microseconds", True),
    FASTEST,
    NOTES,
)

_TUNE = (
    CASE,
    IMPL,
    Column(
        "config",
        "configuration",
        "tiles, threads and the like; empty: what the implementation takes by itself",
        long=True,
    ),
    Column(
        "result", "result", "kept: the fastest; timed: slower; left out: wrong, failed or not reached, as the notes say"
    ),
    TIME,
    FASTEST,
    Column("untuned", "untuned", "the time of what would run without tuning, over the time of the fastest", True),
    NOTES,
)

_MODEL = (
    Column("number", "#", "the place of the node in the order of computation", True),
    Column("name", "node", "the name of the node in the model", long=True),
    Column("node_op", "operator", "the ONNX operator"),
    Column(
        "impl", "implementation", "what computed it; numpy: an operator that numbadnn has no operation for", long=True
    ),
    Column("result", "result", "ok: the node alone is within its bound; mismatch: it is not; the rest is not judged"),
    Column("local", "local error", "error/bound of the node alone, on exact inputs; 1 is the limit", True),
    Column(
        "carried",
        "carried error",
        "the largest error with all that came before it in the model's own types, over the largest exact number",
        True,
    ),
    TIME,
    NOTES,
)

#: kind of document -> its columns; ``problem`` and ``replay`` stand in the CSV file besides
COLUMNS: dict[str, tuple[Column, ...]] = {
    "validate": (*_VALIDATE, TIME, _ARITHMETIC, NOTES),
    "check": (*_VALIDATE, TIME, _ARITHMETIC, NOTES),
    "determinism": _DETERMINISM,
    "bench": _BENCH,
    "tuning": _TUNE,
    "model": _MODEL,
}


def aligned(lines: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Lines of text whose columns begin below each other; those numbered in ``right`` end below each other."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (
        (c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    )
    return ["  ".join(cells).rstrip() for cells in padded]


def legend(columns: tuple[Column, ...]) -> str:
    """A line a column, for the terminal.

    >>> print(legend((FASTEST,)))
      of fastest  its time over the time of the fastest implementation of the same case
    """
    width = max(len(c.title) for c in columns)
    return "\n".join(f"  {c.title:{width}}  {c.legend}" for c in columns)
