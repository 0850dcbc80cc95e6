"""The page about numbadnn.dask says what happens, and the example that it names works."""

from __future__ import annotations

import doctest
import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dask.array")
pytest.importorskip("zarr")

ROOT = Path(__file__).parents[2]


@pytest.mark.slow(5)
def test_the_page_about_large_arrays() -> None:
    page = ROOT / "docs/how-to/larger-than-memory.md"
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried > 15 and not failed
    assert "```python" not in page.read_text()  # which nobody would run


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
