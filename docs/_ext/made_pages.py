"""The parts of the reference that the code itself says, written to docs/made/include before Sphinx reads its sources.

Pages of docs/reference include them. A file is written when its text changes, so that a second build reads little again.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from numbadnn import config
from numbadnn.__main__ import _parser
from numbadnn.cases import find
from numbadnn.registry import DETERMINISM, FAMILY, Impl, implementations

DOCS = Path(__file__).parents[1]
#: headings of families whose stem is no word
TITLES = {
    "conv": "Convolution",
    "norm": "Batch normalization",
    "spatial": "Spatial transformers",
    "rnn": "Recurrent networks",
}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown; bars in cells are escaped."""
    lines = [list(head), *(list(row) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def options() -> str:
    """Every option: its name, its environment variable, what it may be, its default."""
    rows = (
        (f"`{o.name}`", f"`{o.environment}`", o.values, f"`{shown(o.name, o.default)}`")
        for o in config.OPTIONS.values()
    )
    return table(("`using(...)`", "environment", "values", "default"), rows)


def shown(name: str, value: Any) -> str:
    """A default as a user would write it."""
    if name == "workspace_limit":
        return f"{value >> 20}MiB"
    if name == "backend" and value == ():
        return "auto"
    return (
        str(value).lower()
        if isinstance(value, bool)
        else ",".join(value)
        if isinstance(value, tuple)
        else value or "none"
    )


def commands() -> str:
    """Every command with its help, from the parser itself."""
    parser = _parser()
    (found,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    parts = []
    for choice in found._choices_actions:
        command = found.choices[choice.dest]
        command.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=92)
        parts.append(f"## numbadnn {choice.dest}\n\n{sentence(choice.help)}\n\n```text\n{command.format_help()}```\n")
    return "\n".join(parts)


def sentence(text: str | None) -> str:
    """With a capital letter and a full stop."""
    return f"{text[0].upper()}{text[1:]}." if text else ""


def operations() -> str:
    """Operation x backend: names of implementations, in the order of the register."""
    backends = ("cpu", "numba", "cudnn")
    rows = (
        (
            f"`{op}`",
            *(" ".join(f"`{i.name}`" for i in implementations(op, [b])) or "-" for b in backends),
        )
        for op in FAMILY
    )
    return table(("operation", *backends), rows)


def lines() -> str:
    """Operation -> the words of its line that the contract's cases use, and a case that has the most of them."""
    rows = []
    for op in FAMILY:
        texts = [case.text.split()[1:] for case in find(["contract"]) if case.op == op]
        words = dict.fromkeys(word.partition("=")[0] for text in texts for word in text)
        most = max(texts, key=lambda text: (len(text), -len(" ".join(text))))
        rows.append(
            (
                f"`{op}`",
                " ".join(f"`{word}`" for word in words),
                f"`{' '.join([op, *most])}`",
            )
        )
    return table(("operation", "words", "a case"), rows)


def conditions() -> str:
    """A section a family; an entry an implementation: what it computes, what it promises, what it refuses and why."""
    reasons, parts = refused(), []
    for family in dict.fromkeys(FAMILY.values()):
        ops = [op for op, of in FAMILY.items() if of == family]
        named: dict[str, list[Impl]] = {}
        for op in ops:
            for impl in implementations(op):
                named.setdefault(impl.name, []).append(impl)
        parts.append(f"## {TITLES.get(family, family.capitalize())}\n")
        parts += [entry(name, impls, len(ops), reasons.get(name, [])) for name, impls in sorted(named.items())]
    return "\n".join(parts)


def refused() -> dict[str, list[str]]:
    """What ``refusals`` finds, in a process of its own: it sets the simulator's variable."""
    return json.loads(subprocess.check_output([sys.executable, str(Path(__file__).with_name("refusals.py"))]))


def entry(name: str, impls: list[Impl], of: int, reasons: list[str]) -> str:
    """One implementation, as a list of definitions."""
    computes = "all operations of the family" if len(impls) == of else ", ".join(f"`{impl.op}`" for impl in impls)
    promises = sorted({impl.determinism for impl in impls}, key=DETERMINISM.index)
    arithmetic = dict.fromkeys(impl.arithmetic for impl in impls)
    lines = [
        f"`{name}`",
        f": {computes}; arithmetic {', '.join(arithmetic)}; determinism {', '.join(promises)}",
    ]
    if all(impl.complete for impl in impls):
        lines.append("\n  Takes every problem of its operations.")
    if reasons:
        lines.append("\n  Refuses, in the words of `explain`:\n")
        lines += ["  - " + reason.replace("*", "\\*") for reason in reasons]
    return "\n".join(lines) + "\n"


def write(app: Any) -> None:
    folder = DOCS / "made" / "include"
    folder.mkdir(parents=True, exist_ok=True)
    for make in (options, commands, lines, operations, conditions):
        path, text = folder / f"{make.__name__}.md", make()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
