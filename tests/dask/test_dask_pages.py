"""The page about numbadnn.dask says what happens, and the example that it names works."""

from __future__ import annotations

import doctest
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dask.array")
pytest.importorskip("zarr")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/larger-than-memory.md"


@pytest.mark.slow(5)
def test_the_page_about_large_arrays() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried > 15 and not failed
    assert "```python" not in PAGE.read_text()  # which nobody would run


def measured(results: str) -> dict[str, Any]:
    """case -> row of what bench_dask.py found."""
    found = json.loads((ROOT / "bench/results" / results).read_text())["dask"]["rows"]
    return {row["case"]: row for row in found}


def test_the_page_says_what_was_measured_on_the_cpu() -> None:
    page, rows = PAGE.read_text(), measured("amd_epyc_2_threads.json")
    bits = [row for case, row in rows.items() if case.startswith("bits ")]
    assert sum(row["differ"] for row in bits) == 0
    tried = sum(row["problems"] for row in bits)
    assert f"{tried} of {tried} as the undivided call's" in page
    memory = rows["memory 16 GiB of 4"]
    assert f"a peak of {memory['peak GiB']:.2f} GiB, {memory['of allowed']:.2f} of 1.25 x" in page
    one, images, cut = (row["chunks: processor"] for case, row in rows.items() if case.startswith("overhead "))
    assert f"| {one:.2f} |" in page and f"| {images:.2f}; {cut:.2f} |" in page
    volume, plane = (row for case, row in rows.items() if case.startswith("peers "))
    for name in ("map_overlap", "dask_image"):
        assert f"| {volume[f'vs {name}']:.1f} and {plane[f'vs {name}']:.1f} times as fast |" in page


@pytest.mark.slow(5)
def test_the_learned_filter_is_better_than_a_gaussian(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("big_volume", ROOT / "examples/big_volume.py")
    assert spec is not None and spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    lines: list[str] = []
    found = example.run(tmp_path, 56, "4MiB", None, lines.append)
    assert "chunks of 56 slices" not in lines[0]
    errors = found["errors"]
    assert errors["learned"] < errors["gaussian"] < errors["scan"] / 3
    if importlib.util.find_spec("matplotlib"):
        example.plot(found, tmp_path / "plot.png")
        assert (tmp_path / "plot.png").stat().st_size > 10_000
