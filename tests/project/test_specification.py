"""Every test that specification.md names is there."""

import ast
import re

import pytest
from folders import TESTS

#: the rows; a row goes on in lines that do not begin with a dash
ROWS = (TESTS / "specification.md").read_text(encoding="utf-8").split("\n- ")[1:]


def names_in(file: str) -> list[str]:
    (path,) = TESTS.rglob(f"test_{file}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def named() -> list[tuple[str, str]]:
    """(file, part of a test's name) of all rows; a file holds until another is named."""
    found, file = [], ""
    for match in re.finditer(r"(?:\b([a-z_]+))?::([A-Za-z0-9_]+)", "\n".join(ROWS)):
        file = match[1] or file
        found.append((file, match[2]))
    return found


@pytest.mark.parametrize("file", sorted({file for file, _ in named()}))
def test_named_tests_exist(file: str) -> None:
    names = names_in(file)
    missing = [part for of, part in named() if of == file and not any(part in name for name in names)]
    assert not missing, f"test_{file}.py has no test named {missing}"


def test_every_row_has_a_test() -> None:
    assert len(ROWS) > 60
    assert not [row for row in ROWS if "::" not in row and "contract" not in row]
