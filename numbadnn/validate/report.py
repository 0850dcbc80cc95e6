"""What validate found, for people and for programs: progress while it runs, a table, and the exit status.

With rich (``numbadnn[cli]``) there is a progress bar and colour; without it the same table in plain text.
"""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator

from numbadnn.validate.check import Row
from numbadnn.validate.documents.columns import TERMINAL, aligned, legend

OK, MISMATCH, USAGE, CANNOT_RUN, INCOMPLETE = 0, 1, 2, 3, 4
#: what shells give a program that Ctrl-C ended, and the reason of the cases that were left out for it
INTERRUPTED, BY_CTRL_C = 130, "interrupted"
#: the status of a case that was left out because the time was over
NOT_RUN = "not run"
HEADER = tuple(column.title for column in TERMINAL)
RIGHT = {3, 5, 8}
#: columns that a narrow terminal does without, the first one first
DISPENSABLE = ("at", "speed", "ULP", "same bits", "integers", "error/bound")
SHOWN_REASONS = 12


def exit_status(rows: list[Row]) -> int:
    """0 all good, 1 a mismatch or an error, 130 interrupted, 4 the time was over before all was run, 3 nothing can run here."""
    found = {row.status for row in rows}
    if found & {"mismatch", "error"}:
        return MISMATCH
    if any(row.reason == BY_CTRL_C for row in rows):
        return INTERRUPTED
    if NOT_RUN in found:
        return INCOMPLETE
    return OK if found & {"ok", "erratum"} else CANNOT_RUN


def left_out(rows: list[Row]) -> int:
    """How many cases were not begun because the time was over."""
    return sum(row.status == NOT_RUN for row in rows)


def cells(row: Row) -> tuple[str, ...]:
    """One line of the table."""

    def yes(value: bool | None) -> str:
        return "" if value is None else "yes" if value else "NO"

    worst = "" if row.worst is None else f"{row.worst:.3f}"
    where = ",".join(map(str, row.where))
    rate = f"{row.speed:.3g} {row.speed_unit}" if row.speed else ""
    # where a sum cancels to almost nothing, ULPs of what is left run into millions; the bound knows, this number does not
    ulp = "" if row.ulp is None else str(row.ulp) if row.ulp < 10**5 else f"{row.ulp:.1e}"
    return (row.case, row.impl, row.status, worst, where, ulp, yes(row.exact), yes(row.same_bits), rate)


def shown(rows: list[Row]) -> list[Row]:
    """Refusals are counted, not listed."""
    return [row for row in rows if row.status in ("ok", "mismatch", "erratum", "error")]


def summary(rows: list[Row], seconds: float, how_far: str = "") -> str:
    """Counts by result, why things were left out, and at last ``how_far`` it came where the time did not suffice."""
    counts = collections.Counter(row.status for row in rows)
    words = {
        "ok": "agree",
        "mismatch": "DISAGREE",
        "erratum": "show a known erratum",
        "error": "failed with an error",
        "refused": "refused",
        "skipped": "skipped",
        NOT_RUN: NOT_RUN,
    }
    text = (
        ", ".join(f"{counts[status]} {word}" for status, word in words.items() if counts[status]) or "nothing was run"
    )
    lines = [f"{text}; {seconds:.0f} s", *_repeated(rows)]
    why = collections.Counter(
        (row.status, row.reason.splitlines()[0]) for row in rows if row.status in ("refused", "skipped", NOT_RUN)
    )
    for (status, reason), count in why.most_common(SHOWN_REASONS):
        impls = sorted({row.impl for row in rows if row.status == status and row.reason.startswith(reason)})
        lines.append(f"  {status} {count} x {', '.join(impls)}: {reason}")
    if len(why) > SHOWN_REASONS:
        lines.append(f"  and {len(why) - SHOWN_REASONS} other reasons (--json FILE has them all)")
    return "\n".join([*lines, how_far] if how_far else lines)


def _repeated(rows: list[Row]) -> list[str]:
    """How many results were computed several times, and whether their bits were the same."""
    runs = sorted({row.runs for row in rows if row.runs})
    found = collections.Counter((row.runs, row.same_bits) for row in rows if row.runs)
    return [
        f"  {n} runs, same bits: {found[n, True]} results"
        + (f"; other bits: {found[n, False]}" if found[n, False] else "")
        for n in runs
    ]


def details(rows: list[Row]) -> str:
    """Every mismatch, known erratum and error with its problem line, which ``validate`` takes back as an argument."""
    wrong = [row for row in rows if row.status in ("mismatch", "erratum", "error")]
    return "\n".join(f"{row.status}: {row.case} on {row.impl}\n  {row.reason}\n  {row.problem}" for row in wrong)


def plain_table(rows: list[Row]) -> str:
    return "\n".join(aligned([HEADER, *(cells(row) for row in shown(rows))], RIGHT))


def fitting_columns(rows: list[Row], width: int) -> list[int]:
    """Which columns a terminal so wide has room for: which case and implementation, and how it went, go last."""
    lines = [HEADER, *(cells(row) for row in shown(rows))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    kept = list(range(len(HEADER)))
    for name in DISPENSABLE:
        if sum(widths[i] + 2 for i in kept) - 2 > width:
            kept.remove(HEADER.index(name))
    return kept


def has_rich() -> bool:
    return importlib.util.find_spec("rich") is not None


def show(rows: list[Row], seconds: float, how_far: str = "") -> None:
    """Print the table and what its columns mean, what went wrong, and the summary."""
    if shown(rows):
        kept = list(range(len(HEADER)))
        if has_rich() and sys.stdout.isatty():
            kept = _rich_table(rows)
        else:
            print(plain_table(rows))
        print("\n" + legend(tuple(TERMINAL[i] for i in kept)))
    for text in (details(rows), summary(rows, seconds, how_far)):
        if text:
            print("\n" + text)


def _rich_table(rows: list[Row]) -> list[int]:
    """Print the table, and say which columns there was room for."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    kept = fitting_columns(rows, console.width)
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    for i in kept:
        table.add_column(HEADER[i], justify="right" if i in RIGHT else "left", overflow="fold", no_wrap=i > 1)
    for row in shown(rows):
        line = cells(row)
        table.add_row(*(line[i] for i in kept), style="" if row.status == "ok" else "bold red")
    console.print(table)
    return kept


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[str, int], None]]:
    """``advance(what, done)``: a bar on the terminal; without rich or a terminal, a line now and then on stderr."""
    if has_rich() and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=total)
            yield lambda what, done: bar.update(task, completed=done, description=what)
        return

    def advance(what: str, done: int) -> None:
        if done % 25 == 0:
            print(f"{done}/{total} {what}", file=sys.stderr, flush=True)

    yield advance
