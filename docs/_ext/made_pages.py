"""The parts of the reference that the code itself says, written to docs/made/include before Sphinx reads its sources.

Pages of docs/reference include them. A file is written when its text changes, so that a second build reads little again.
"""

import argparse
import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any

import schema
from implementation_pages import conditions, operations
from page_tables import table

import numbadnn.theano
from numbadnn import config
from numbadnn.__main__ import _parser
from numbadnn.cases import find
from numbadnn.registry import FAMILY

DOCS = Path(__file__).parents[1]


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
    if isinstance(value, bool):
        return str(value).lower()
    return (",".join(value) if isinstance(value, tuple) else value) or "none"


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


def lines() -> str:
    """Operation -> the words of its line that the contract's cases use, and a case that has the most of them."""
    rows = []
    for op in FAMILY:
        texts = [case.text.split()[1:] for case in find(["contract"]) if case.op == op]
        words = dict.fromkeys(word.partition("=")[0] for text in texts for word in text)
        most = max(texts, key=lambda text: (len(text), -len(" ".join(text))))
        named = " ".join(f"`{word}`" for word in words)
        rows.append((f"`{op}`", named, f"`{' '.join([op, *most])}`"))
    return table(("operation", "words", "a case"), rows)


def theano() -> str:
    """A section for each module of Theano's names that holds some, with all of them."""
    found = pkgutil.walk_packages(numbadnn.theano.__path__, "numbadnn.theano.")
    names = [m.name for m in found if not re.search(r"\._|theano\.(tensor|gpuarray|sandbox)\b", m.name)]
    named = [name for name in names if holds_names(vars(importlib.import_module(name)), name)]
    page = "## {0}\n\n```{{eval-rst}}\n.. automodule:: numbadnn.theano.{0}\n   :members:\n```\n"
    return "\n".join(page.format(name.removeprefix("numbadnn.theano.")) for name in named)


def holds_names(module: dict[str, Any], name: str) -> bool:
    """Whether a module says what is public of it, or defines a public function itself."""
    own = (key for key, value in module.items() if getattr(value, "__module__", None) == name)
    return "__all__" in module or name.endswith(".config") or any(not key.startswith("_") for key in own)


def fields() -> str:
    """The keys of reports, from their JSON Schema."""
    return schema.tables((DOCS / "reference" / "report.schema.json").read_text())


def write(app: Any) -> None:
    """Before the pages are built; builders that look at pages afterwards take what is there."""
    folder = DOCS / "made" / "include"
    if app.builder.format != "html" and folder.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for make in (options, commands, lines, operations, conditions, theano, fields):
        path, text = folder / f"{make.__name__}.md", make()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
