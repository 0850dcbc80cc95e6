"""Builds on disk: what is damaged, misplaced or cannot be written is compiled, and kept in its place where that can be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from numbadnn.host.builds import compiled
from numbadnn.host.hostcall import kept


def body(x):
    return x + 1


def hits(build) -> int:
    return sum(build.stats.cache_hits.values())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    return tmp_path


def flipped(whole: bytes, part: float) -> bytes:
    """One bit is another."""
    at = int(len(whole) * part)
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


@pytest.mark.parametrize("end", ("nbi", "nbc"))
def test_a_damaged_file_is_replaced(folder: Path, end: str) -> None:
    kept("int64(int64)")(body)
    (file,) = folder.rglob(f"*.{end}")
    whole = file.read_bytes()
    for left in (b"", whole[:-1], b"\x80garbage", bytes(len(whole)), *(flipped(whole, i / 9) for i in range(9))):
        file.write_bytes(left)
        build = kept("int64(int64)")(body)
        assert build(41) == 42 and (hits(build) == 0 or left == whole)
        again = kept("int64(int64)")(body)
        assert again(41) == 42 and hits(again) == 1


def test_code_under_another_builds_name_is_not_believed(folder: Path) -> None:
    """A process that ends between writing the index and the code leaves the name of older code in the index."""
    for signature in ("int64(int64)", "float64(float64)"):
        kept(signature)(body)
    first, second = sorted(folder.rglob("*.nbc"))
    first.write_bytes(second.read_bytes())
    build = kept("int64(int64)")(body)
    assert build(41) == 42 and type(build(41)) is int and hits(build) == 0


def test_code_of_other_sources_is_not_believed(folder: Path) -> None:
    compiled(body, "old")(41)
    (code,) = folder.rglob("*.nbc")
    old = code.read_bytes()
    compiled(body, "new")(41)
    code.write_bytes(old)
    build = compiled(body, "new")
    assert build(41) == 42 and hits(build) == 0


def test_a_disk_that_refuses_stops_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("numba.core.caching.IndexDataCacheFile._save_data", full)
        assert kept("int64(int64)")(body)(41) == 42
    assert hits(kept("int64(int64)")(body)) == 0  # the index names code that was never written
    with monkeypatch.context() as patch:
        patch.setattr("numba.core.caching.IndexDataCacheFile._load_index", full)
        assert kept("int64(int64)")(body)(41) == 42
    assert hits(kept("int64(int64)")(body)) == 1


def test_shims_of_processes_that_begin_together_in_a_damaged_folder(tmp_path: Path) -> None:
    code = (
        "from numbadnn.kernels import _shim\n"
        "from numbadnn.cudnn import _call, _shim as graph\n"
        "builds = [_shim.launch_shim, graph.execute_plan]\n"
        "print(sum(sum(b.stats.cache_hits.values()) for b in builds))"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)

    for damaged in (False, True):
        for file in tmp_path.rglob("*.nb?"):
            file.write_bytes(file.read_bytes()[: 100 if damaged else None])
        together = [start(), start()]
        assert [p.communicate()[1] or p.returncode for p in together] == [0, 0]
        alone = start()
        assert alone.communicate()[0] == "2\n" and alone.returncode == 0
