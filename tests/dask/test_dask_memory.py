"""numbadnn.dask beyond memory: zarr in and zarr out in a process that may not have as much, and what is read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

da = pytest.importorskip("dask.array")
zarr = pytest.importorskip("zarr")

import numbadnn  # noqa: E402
import numbadnn.dask as nd  # noqa: E402

#: 320 MiB of float32, and what the process may have beside what it has when all is imported
SHAPE, MORE = (1, 1, 320, 512, 512), 256 << 20


def volume(path: Path, shape: tuple[int, ...], chunks: tuple[int, ...]) -> Any:
    return zarr.create_array(str(path), shape=shape, chunks=chunks, dtype="float32", overwrite=True)


@pytest.mark.slow(10)
def test_a_volume_larger_than_memory(tmp_path: Path) -> None:
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}  # what is freed goes back to the system
    command = [sys.executable, __file__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[-1] == "passed"
    z = zarr.open_array(str(tmp_path / "y"))
    at = (0, slice(None), slice(254, 258), slice(100, 104), slice(508, 512))
    x = np.broadcast_to(plane(np.arange(253, 259))[:, None, None], (6, 6, 6))[None, None]
    expected = numbadnn.conv3d(np.ascontiguousarray(x), filters(), border_mode=((0, 0), (0, 0), (0, 1)))
    assert np.array_equal(z[at], expected[0, :, :, :, -4:])


def plane(depth: np.ndarray) -> np.ndarray:
    """What every voxel of a slice at this depth is."""
    return (depth % 7).astype(np.float32)


def filters() -> np.ndarray:
    return np.arange(27, dtype=np.float32).reshape(1, 1, 3, 3, 3)


def main(folder: Path) -> None:
    import resource

    x, y = (volume(folder / name, SHAPE, (1, 1, 8, 512, 512)) for name in "xy")
    for depth in range(0, SHAPE[2], 32):
        x[0, 0, depth : depth + 32] = np.broadcast_to(
            plane(np.arange(depth, depth + 32))[:, None, None], (32, 512, 512)
        )
    nd.conv3d(da.ones((1, 1, 8, 64, 64), dtype="float32"), filters(), border_mode=1).compute(
        num_workers=2
    )  # compile, start threads
    used = int(
        next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData")).split()[
            1
        ]
    )
    resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + MORE,) * 2)
    try:
        np.ones(SHAPE, np.float32)
    except MemoryError:
        # half of it for arrays: zarr packs and unpacks beside them, and threads have stacks
        chunks = nd.suggest_chunks(nd.conv3d, x, filters(), memory=MORE // 2, workers=2, border_mode=1)
        result = nd.conv3d(da.from_zarr(x, chunks=chunks), filters(), border_mode=1)
        da.store(result, y, lock=False, scheduler="threads", num_workers=2)  # to_zarr merges chunks of uneven sizes
        print("passed")


class Counted:
    """A zarr array that notes which elements are asked for."""

    def __init__(self, array: Any) -> None:
        self.array, self.asked = array, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.array, name)

    def __getitem__(self, slices: Any) -> Any:
        self.asked.append(slices)
        return self.array[slices]


Counted.__module__ = "zarr.counted"


@pytest.mark.parametrize("wrap", [da.from_zarr, da.from_array])
def test_of_zarr_each_piece_reads_what_it_sees(tmp_path: Path, wrap: Any) -> None:
    z = volume(tmp_path / "x", (1, 2, 24, 20), (1, 2, 8, 10))
    z[...] = np.random.default_rng(0).standard_normal(z.shape)
    x = wrap(z, chunks=(1, 2, 12, 20))
    counted = Counted(z)
    key = f"original-{x.name}"
    x.dask.layers[key].mapping[key] = counted
    w = np.ones((3, 2, 5, 3), np.float32)
    y = nd.conv2d(x, w, border_mode="half")
    assert np.array_equal(y.compute(scheduler="sync"), numbadnn.conv2d(z[...], w, border_mode="half"))
    # outputs 0 ... 11 and 12 ... 23 with two rows more, a row of chunks after the other
    assert sorted((s[2].start, s[2].stop) for s in counted.asked) == [(0, 8), (8, 14), (10, 16), (16, 24)]


def test_zarr_itself_is_taken(tmp_path: Path) -> None:
    z = volume(tmp_path / "x", (2, 2, 24, 20), (1, 1, 8, 10))
    z[...] = np.random.default_rng(0).standard_normal(z.shape)
    y = nd.pool(z, (3, 3), (2, 2))
    assert y.chunks == ((1, 1), (2,), (4, 4, 3), (5, 4))
    assert np.array_equal(y.compute(), numbadnn.pool(z[...], (3, 3), (2, 2)))


def test_filters_of_lines_may_be_stored(tmp_path: Path) -> None:
    z = volume(tmp_path / "w", (4, 2, 3), (2, 1, 3))
    z[...] = np.random.default_rng(0).standard_normal(z.shape)
    x = np.ones((1, 2, 9), np.float32)
    assert np.array_equal(nd.conv1d(x, z).compute(), numbadnn.conv1d(x, z[...]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
