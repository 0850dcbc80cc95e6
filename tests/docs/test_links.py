"""Links between pages lead to a file, and to a heading of it; so do the "Source:" lines of docstrings."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import numbadnn

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them: small letters, hyphens for spaces, no other marks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in re.findall(r"^#+ +(.+)$", text, re.M)
    }


def missing(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere."""
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        leads_to = (page.parent / path).resolve() if path else page
        if not leads_to.exists() or (anchor and anchor not in anchors(leads_to)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    assert not missing(page)


#: where the code speaks of a page: "docs/explanation/semantics.md#pooling"
NAMED = re.compile(r"\b(?:docs|spec)/[\w/-]+\.md(?:#[\w-]+)?")


def named_in_code() -> list[tuple[str, str]]:
    """(file, page with its heading) wherever a docstring, an error or a comment of the package names a page."""
    files = [path for folder in ("numbadnn", "bench", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]
    return [
        (path.relative_to(ROOT).as_posix(), page) for path in files for page in NAMED.findall(path.read_text("utf-8"))
    ]


def test_pages_that_the_code_names_are_there() -> None:
    found = named_in_code()
    lost = [(file, page) for file, page in found if missing_page(page)]
    assert not lost
    assert sum("semantics.md#" in page for _, page in found) > 50


def missing_page(named: str) -> bool:
    path, _, anchor = named.partition("#")
    page = ROOT / path
    return not page.is_file() or (bool(anchor) and anchor not in anchors(page))


def test_every_public_function_has_a_source_that_is_there() -> None:
    """What computes says where its rules stand: the docstring's "Source:" names a page of docs/."""
    computes = [f for f in map(numbadnn.__dict__.get, numbadnn.__all__) if callable(f) and takes_backend(f)]
    without = [
        f.__name__
        for f in computes
        if not re.search(r"Source: .*docs/explanation/", " ".join((f.__doc__ or "").split()))
    ]
    assert len(computes) > 35 and not without


def takes_backend(function: Any) -> bool:
    return not isinstance(function, type) and "backend" in inspect.signature(function).parameters


def test_a_page_that_is_not_there_is_found() -> None:
    assert missing_page("spec/semantics.md") and missing_page("docs/explanation/semantics.md#nothing")
    assert not missing_page("docs/explanation/semantics.md#pooling")


#: a file or folder of the repository in backquotes; the guide to a new operation names some that are to be written
QUOTED = re.compile(r"`((?:numbadnn|tests|bench|docs|examples)/[\w./-]*\w/?)`")
TO_BE_WRITTEN = "response"


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES])
def test_files_that_a_page_names_are_there(page: Path) -> None:
    named = {name for name in QUOTED.findall(page.read_text(encoding="utf-8")) if TO_BE_WRITTEN not in name}
    assert not [name for name in named if not (ROOT / name).exists()]


def test_a_link_to_nothing_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `two`, three\n[a](#one-two-three) [b](#four) [c](page.md) [d](other.md#x) [e](https://f)\n")
    assert missing(page) == ["#four", "other.md#x"]
