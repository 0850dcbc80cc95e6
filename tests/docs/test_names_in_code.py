"""Docstrings and comments name files and modules that exist: who follows one must get there."""

import re
from collections.abc import Iterator
from pathlib import Path

from folders import ROOT

FILES = [path.relative_to(ROOT) for folder in ("numbadnn", "bench", "tests") for path in (ROOT / folder).rglob("*.py")]
#: by any number of its last parts, so that a docstring may name it from the folder, the wing or the root
KNOWN = {"/".join(path.parts[-n:]) for path in FILES for n in range(1, len(path.parts) + 1)}
NAMED = re.compile(r"(?<![\w*./-])(?:\w+/)*\w+\.py\b")
PRIVATE = re.compile(r"``(_\w+)\.(?!py`)\w+``")


def lost_in(text: str, known: set[str] = KNOWN) -> Iterator[str]:
    """What the docstrings and comments of a module name that is not there."""
    parts = text.split('"""')
    code = "\n".join(parts[::2])
    words = "\n".join((*parts[1::2], *re.findall("#.*", code)))
    yield from (name for name in NAMED.findall(words) if name not in known)
    private = (name for name in PRIVATE.findall(words) if f"{name}.py" not in known)
    yield from (name for name in private if not re.search(rf"\b{name}\b", code))


def test_files_and_modules_that_code_names_are_there() -> None:
    lost = {
        str(path): found
        for path in FILES
        if path.parts[0] != "tests" and (found := list(lost_in((ROOT / path).read_text(encoding="utf-8"))))
    }
    assert not lost


def test_what_is_not_there_is_found() -> None:
    text = '"""As ``there.py``, not ``gone.py``; ``_old.apply``, ``_kept.apply``."""\n_kept = 1  # see wing/there.py\n'
    assert list(lost_in(text, {"there.py", "device/there.py"})) == ["gone.py", "wing/there.py", "_old"]
    assert Path("tests/docs/test_names_in_code.py") in FILES
