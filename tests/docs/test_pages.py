"""The README and the pages of docs/ run: blocks of Python page by page, commands, and what they are said to print.

A fence of Python may name what it needs behind the language: packages, `gpu`, or `slow`, as in ```` ```python gpu cupy ````. The
blocks of a page run one after the other in one fresh namespace; a block of `text` that follows is what they print. Commands of
`sh` run where they are numbadnn's own, and are looked up where they install or make something. What begins with ``>>>`` runs too.
"""

import contextlib
import doctest
import io
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import numbadnn
from numbadnn.__main__ import _parser, main
from numbadnn.config import OPTIONS

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


class Block(NamedTuple):
    language: str
    needs: tuple[str, ...]
    code: str
    line: int
    prints: str | None


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page; a block of text right behind one of Python is what that prints."""
    fence = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.M | re.S)
    text, found = page.read_text(encoding="utf-8"), []
    matches = list(fence.finditer(text))
    for match, after in zip(matches, [*matches, None][1:], strict=True):
        adjoins = after is not None and after[1] == "text" and not text[match.end() : after.start()].strip()
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(match[1], tuple(match[2].split()), match[3], line, after[3] if after and adjoins else None))
    return found


def programs() -> list[Any]:
    """A test for each page with Python: what runs anywhere, and what needs a GPU with what stands before it."""
    found = []
    for page in PAGES:
        python = [block for block in blocks(page) if block.language == "python"]
        name = page.relative_to(ROOT).as_posix()
        slow = [pytest.mark.slow(10)] if any("slow" in block.needs for block in python) else []
        if any("gpu" not in block.needs for block in python):
            found.append(pytest.param(page, False, id=name, marks=slow))
        if any("gpu" in block.needs for block in python):
            found.append(pytest.param(page, True, id=f"{name}-gpu", marks=[*slow, pytest.mark.gpu]))
    return found


@pytest.mark.parametrize(("page", "gpu"), programs())
def test_the_page_runs(page: Path, gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks(page):
        if block.language != "python" or ("gpu" in block.needs and not gpu):
            continue
        for package in set(block.needs) - {"gpu", "slow"}:
            pytest.importorskip(package)
        run(block, page, namespace)


def run(block: Block, page: Path, namespace: dict[str, Any]) -> None:
    """One block; what it prints is what the page says. Lines of tracebacks are those of the page."""
    code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, namespace)
    if block.prints is not None:
        assert printed.getvalue() == block.prints


#: pages whose examples run beside the tests of the package that they need
OF_PACKAGES = [ROOT / "docs/how-to/jax.md", ROOT / "docs/how-to/larger-than-memory.md"]
SHOWING = [page for page in PAGES if any(block.language == "pycon" for block in blocks(page))]


def test_examples_of_packages_are_on_their_pages() -> None:
    assert set(OF_PACKAGES) <= set(SHOWING)


@pytest.mark.parametrize("page", [page for page in SHOWING if page not in OF_PACKAGES], ids=lambda page: page.stem)
def test_what_the_page_shows_is_what_happens(page: Path) -> None:
    names, runner = {"np": np, "numbadnn": numbadnn}, doctest.DocTestRunner()
    for block in blocks(page):
        if block.language == "pycon":
            examples = doctest.DocTestParser().get_doctest(block.code, names, page.name, str(page), block.line)
            runner.run(examples, clear_globs=False)
            names |= examples.globs
    assert runner.tries and not runner.failures


def commands() -> list[Any]:
    """(a line of `sh` or what a job's `run` says, whether to run it): those of a job are only looked up."""
    found = []
    for page in PAGES:
        for block in blocks(page):
            for number, line in enumerate(block.code.splitlines()):
                name = f"{page.relative_to(ROOT).as_posix()}:{block.line + number}"
                in_job = re.match(r"\s+(?:- )?run: (.*)", line) if block.language == "yaml" else None
                if in_job:
                    found.append(pytest.param(in_job[1], False, id=name))
                elif block.language == "sh" and line.split("#")[0].strip():
                    marks = [pytest.mark.slow(10)] if "numbadnn validate" in line else []
                    found.append(pytest.param(line, True, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("line", "really"), commands())
def test_the_command_works(line: str, really: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line, comments=True)
    while re.fullmatch(r"NUMBADNN_\w+=.*", words[0]):
        name, value = words.pop(0).split("=", 1)
        option = OPTIONS[name.removeprefix("NUMBADNN_").lower()]
        option.parse(value)
    if words[:3] == ["python", "-m", "pip"] or words[0] == "pip":
        assert "install" in words
        check_extras(words)
    elif words[0] == "make":
        rules = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert {word for word in words[1:] if "=" not in word} <= set(rules)
    elif words[0] == "git":
        assert words[1] in ("clone",)
    elif words[0] == "python":
        assert words[1] == "-m" or (ROOT / words[1]).is_file()
    else:
        assert words[0] == "numbadnn"
        _parser().parse_args(words[1:])
        if not really or words[1] in ("tune", "warm"):  # which write into the user's cache folder
            return
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(words[1:]) == 0


def check_extras(words: list[str]) -> None:
    """Every extra that a page installs is one of pyproject.toml."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"\[([\w,]+)\]", " ".join(words))
    assert {extra for extras in named for extra in extras.split(",")} <= set(known)


def test_pages_are_found_and_blocks_are_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n\n```python gpu cupy\nx = 1\n```\n\n```text\n1\n```\n\nb\n```sh\nmake\n```\n")
    first, output, last = blocks(page)
    assert (first.needs, first.code, first.line, first.prints) == (("gpu", "cupy"), "x = 1\n", 4, "1\n")
    assert (output.language, last.language, last.prints) == ("text", "sh", None)
    with pytest.raises(AssertionError):
        run(first._replace(code="print(2)"), page, {})
    assert any("python" in page.read_text() for page in PAGES) and len(PAGES) > 5
