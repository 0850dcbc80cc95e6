"""What the build of the documentation takes from the code itself: no option, command or implementation is left out."""

import argparse
import doctest
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import numbadnn
from numbadnn.__main__ import _parser
from numbadnn.cases import find
from numbadnn.config import OPTIONS
from numbadnn.registry import FAMILY, implementations

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of docs/_ext."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    yield importlib.import_module
    for path in (ROOT / "docs" / "_ext").glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_every_option_is_in_the_table_with_its_default(module: Any) -> None:
    text = module("made_pages").options()
    lines = {line.split("`")[1]: line for line in text.splitlines()[2:]}
    assert set(lines) == set(OPTIONS)
    assert all(OPTIONS[name].environment in line for name, line in lines.items())
    assert (
        "`1024MiB`" in lines["workspace_limit"] and "`auto`" in lines["backend"] and "`false`" in lines["plan_strict"]
    )
    described = (ROOT / "docs" / "reference" / "options.md").read_text()
    assert [name for name in OPTIONS if f"`{name}`" not in described] == []


def test_every_command_and_argument_is_in_the_page(module: Any) -> None:
    text = module("made_pages").commands()
    (found,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    for name, command in found.choices.items():
        section = text.partition(f"## numbadnn {name}\n")[2].partition("\n## ")[0]
        assert section and all(option in section for a in command._actions for option in a.option_strings)


def test_every_operation_and_implementation_is_in_the_tables(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made_pages = module("made_pages")
    monkeypatch.setattr(sys.modules["implementation_pages"], "refused", lambda: {"numba.direct": ["needs *this*"]})
    operations, lines, conditions = made_pages.operations(), made_pages.lines(), made_pages.conditions()
    names = {impl.name for op in FAMILY for impl in implementations(op)}
    assert [n for n in names if f"`{n}`" not in operations or f"\n`{n}`\n" not in conditions] == []
    assert [op for op in FAMILY if f"| `{op}` |" not in operations or f"| `{op}` |" not in lines] == []
    assert "- needs \\*this\\*\n" in conditions


def test_every_module_of_theanos_names_is_in_the_page(module: Any) -> None:
    text = module("made_pages").theano()
    public = {name for name in dir(numbadnn.theano) if not name.startswith("_")}
    homes = {getattr(getattr(numbadnn.theano, name), "__module__", "") for name in public}
    homes = {home for home in homes if home.startswith("numbadnn.theano.")}
    assert len(homes) > 10 and [home for home in homes if f"automodule:: {home}\n" not in text] == []


def test_refusals_are_those_of_the_register(module: Any) -> None:
    refusals = module("refusals")
    (impl,) = (i for i in implementations("conv2d", ["numba"]) if i.name == "numba.corrmm_by_grad_inputs")
    problems = [case.problem() for case in find(["contract"]) if case.op == "conv2d"]
    assert "needs one filter for all positions (not unshared)" in refusals.reasons(impl, problems)


def test_a_name_that_no_page_has_is_found(module: Any) -> None:
    missing = module("every_name").missing
    documented = {f"numbadnn.{name}" for name in numbadnn.__all__} - {"numbadnn.pool"}
    found = missing(documented, ("numbadnn",))
    assert found == ["numbadnn.pool"]
    assert missing(documented | {f"{numbadnn.pool.__module__}.pool"}, ("numbadnn",)) == []


@pytest.mark.parametrize(("status", "code"), [("working", 0), ("broken", 1)])
def test_the_verdict_on_links_is_the_exit_status(status: str, code: int, tmp_path: Path) -> None:
    row = {"status": status, "uri": "https://a", "filename": "x.md", "lineno": 3, "info": "404 Client Error"}
    (tmp_path / "output.json").write_text(json.dumps(row) + "\n")
    ran = subprocess.run(
        [sys.executable, ROOT / "docs" / "_ext" / "gone.py", tmp_path / "output.json"], capture_output=True
    )
    assert (ran.returncode, b"https://a" in ran.stderr) == (code, bool(code))


@pytest.mark.parametrize("name", ["refusals", "gone", "schema", "source_links"])
def test_examples_of_the_steps(module: Any, name: str) -> None:
    outcome = doctest.testmod(module(name))
    assert outcome.attempted and not outcome.failed


def test_every_public_name_is_in_a_page_of_the_reference() -> None:
    """``make docs`` asks Sphinx the same, of every package."""
    pages = "\n".join((ROOT / "docs" / "reference" / name).read_text() for name in ("api.md", "errors.md"))
    written = set(re.findall(r"^   (\w+)$|^\.\. auto\w+:: (\w+)$", pages, re.M))
    assert sorted(set(numbadnn.__all__) - {name for pair in written for name in pair}) == []


def test_links_to_headings_that_are_not_there_are_found(module: Any, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "rules.html").write_text('<h2 id="pooling">')
    (tmp_path / "made" / "pool.html").write_text(
        '<a href="../rules.html#pooling"><a href="../rules.html#softmax"><a href="../gone.html#x">'
    )
    found = module("source_links").lost(tmp_path)
    assert sorted(found) == ["made/pool.html: ../gone.html#x", "made/pool.html: ../rules.html#softmax"]
