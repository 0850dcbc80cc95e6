"""The README and the page of speeds show what was measured; and the package asks for what it uses."""

import importlib.util
import re
import sys
import tomllib
from typing import Any

from folders import ROOT

README = (ROOT / "README.md").read_text()


def summary() -> Any:
    """bench/speed_summary.py as a module."""
    spec = importlib.util.spec_from_file_location("speed_summary", ROOT / "bench/speed_summary.py")
    assert spec is not None and spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_is_a_screen_and_a_half() -> None:
    assert len(README.splitlines()) <= 130


def test_every_speed_is_one_of_the_results() -> None:
    speed, page = summary(), (ROOT / "docs/reference/speed.md").read_text()
    front = speed.table(speed.FRONT)
    assert "\n".join(front) in README and len(front) == 10
    for lines in (
        speed.table(speed.DETAIL),
        front[:3],
        speed.table(speed.KERNELS),
        *split(speed.calls()),
        speed.busy(),
    ):
        assert "\n".join(lines) in page
    slower = re.search(r"Where it is slower:.*?\n\n", README, re.S)
    assert slower is not None
    figures = re.findall(r"\d\.\d\d", slower[0])
    assert len(figures) > 4 and set(figures) <= set(re.findall(r"\d\.\d\d", page))


def split(lines: list[str]) -> list[list[str]]:
    return [part.split("\n") for part in "\n".join(lines).split("\n\n")]


def test_a_ratio_is_the_others_time_over_ours() -> None:
    speed = summary()
    group = next(g for g in speed.FRONT if g.against == "passes")
    rows = [row for row in speed.rows_of(group.machine, "rnn") if group.admits(row)]
    assert group.ratios()[0] == rows[0]["torch fwd ms"] / rows[0]["fwd ms"] and len(group.ratios()) == 2 * len(rows)
    assert speed.geometric_mean([1.0, 4.0]) == 2.0


def test_every_extra_is_in_the_page_on_installing_and_every_folder_in_that_on_the_design() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    install, design = ((ROOT / page).read_text() for page in ("docs/how-to/install.md", "docs/explanation/design.md"))
    assert [extra for extra in extras if f"`{extra}`" not in install] == []
    folders = [path.name for path in (ROOT / "numbadnn").iterdir() if path.is_dir() and not path.name.startswith("__")]
    assert len(folders) > 15 and [name for name in folders if f"{name}/" not in design] == []


def test_every_dependency_is_imported_and_what_tests_run_is_in_the_source_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    code = "\n".join(path.read_text() for path in (ROOT / "numbadnn").rglob("*.py"))
    for requirement in project["project"]["dependencies"]:
        name = re.split(r"[<>=]", requirement)[0]
        if name == "scipy":  # Numba imports it
            continue
        assert re.search(rf"^\s*(import|from) {name}\b", code, re.M), f"{name} is not imported"
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {"/numbadnn", "/tests", "/bench", "/examples", "/docs"} <= set(included)
