"""The README names what there is: every operation's implementations; and the package asks for what it uses."""

import fnmatch
import re
import tomllib
from pathlib import Path

from numbadnn.registry import FAMILY, implementations

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_every_implementation_is_in_the_table() -> None:
    names = {impl.name for op in FAMILY for impl in implementations(op)}
    families = re.findall(r"numba\.\w+_\*", README)
    missing = [n for n in names if n not in README and not any(fnmatch.fnmatchcase(n, f) for f in families)]
    assert len(names) > 25 and len(families) >= 2 and not missing


def test_every_dependency_is_imported_and_what_tests_run_is_in_the_source_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    code = "\n".join(path.read_text() for path in (ROOT / "numbadnn").rglob("*.py"))
    for requirement in project["project"]["dependencies"]:
        name = re.split(r"[<>=]", requirement)[0]
        if name == "scipy":  # Numba imports it
            continue
        assert re.search(rf"^\s*(import|from) {name}\b", code, re.M), f"{name} is not imported"
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"/numbadnn", "/tests", "/bench", "/examples"} <= set(included)
