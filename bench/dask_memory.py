"""What a process takes for a volume that lies in zarr: convolves it into zarr and prints JSON. bench_dask.py starts it.

``python bench/dask_memory.py FOLDER GIB LIMIT_GIB``: a volume of so many GiB of float32, and so many that the process may have
beside what it has when all is imported.
"""

from __future__ import annotations

import json
import math
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import zarr

import numbadnn
import numbadnn.dask as nd
from numbadnn import pieces
from numbadnn.dask.operations import problem_of

WORKERS, SIDE, SLAB = 2, 1024, 4
FILTERS = np.random.default_rng(1).standard_normal((1, 1, 3, 3, 3)).astype(np.float32)


def volume(path: Path, depth: int) -> Any:
    """Without compression, which takes memory of its own and time."""
    return zarr.create_array(
        str(path), shape=(1, 1, depth, SIDE, SIDE), chunks=(1, 1, SLAB, SIDE, SIDE), dtype="float32", compressors=None,
        overwrite=True, config={"write_empty_chunks": True},
    )  # fmt: skip


def field(name: str) -> int:
    """Bytes of a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) << 10


def allowed(x: Any, chunks: tuple[int, ...]) -> int:
    """1.25 times what the workers hold: a chunk with its border, its result and the filters each."""
    problem = problem_of(numbadnn.conv3d, {"border_mode": 1}, {"input": x, "filters": FILTERS})
    first = slice(chunks[2], 2 * chunks[2])
    piece = pieces.piece(problem, (..., first, slice(None), slice(None)))
    held = 4 * (math.prod(piece.reads[0].shape) + math.prod(piece.shape)) + FILTERS.nbytes
    return int(1.25 * WORKERS * held)


def differences(x: Any, y: Any, depth: int) -> int:
    """Elements that differ from the undivided call, in slabs around seams of zarr's chunks and of ours."""
    found = 0
    for start in np.random.default_rng(2).integers(1, depth - 9, 8):
        block = x[:, :, start - 1 : start + 9]
        found += int(
            (numbadnn.conv3d(block, FILTERS, border_mode=((0, 0), (1, 1), (1, 1))) != y[:, :, start : start + 8]).sum()
        )
    return found


def main(folder: Path, gib: float, limit: float) -> dict[str, Any]:
    depth = int(gib * 2**30) // (4 * SIDE * SIDE)
    x, y = volume(folder / "x", depth), volume(folder / "y", depth)
    slab = np.random.default_rng(0).standard_normal((64, SIDE, SIDE)).astype(np.float32)
    for start in range(0, depth, 64):
        x[0, 0, start : start + 64] = np.roll(slab, start % 61, 0)[: depth - start]
    del slab
    nd.conv3d(da.zeros((1, 1, 8, 256, 256), chunks=(1, 1, 4, 256, 256), dtype="float32"), FILTERS).compute(
        num_workers=WORKERS
    )
    y[:, :, :SLAB] = x[:, :, :SLAB]  # zarr's threads are there from now on
    base, data = field("VmRSS"), field("VmData")
    resource.setrlimit(resource.RLIMIT_DATA, (data + int(limit * 2**30),) * 2)
    Path("/proc/self/clear_refs").write_text("5")  # begin the peak anew
    chunks = nd.suggest_chunks(nd.conv3d, x, FILTERS, memory=int(limit * 2**30), workers=WORKERS, border_mode=1)
    started = time.perf_counter()
    result = nd.conv3d(da.from_zarr(x, chunks=chunks), FILTERS, border_mode=1)
    da.store(result, y, lock=False, scheduler="threads", num_workers=WORKERS)
    seconds = time.perf_counter() - started
    peak = field("VmHWM") - base
    return {
        "GiB": x.nbytes / 2**30, "limit GiB": limit, "chunks": chunks, "workers": WORKERS, "peak GiB": peak / 2**30,
        "allowed GiB": allowed(x, chunks) / 2**30, "of allowed": peak / allowed(x, chunks), "seconds": seconds,
        "GB/s": 2 * x.nbytes / seconds / 1e9, "wrong": differences(x, y, depth),
    }  # fmt: skip


if __name__ == "__main__":
    place = Path(sys.argv[1])
    try:
        print(json.dumps(main(place, float(sys.argv[2]), float(sys.argv[3]))))
    finally:
        for name in "xy":
            shutil.rmtree(place / name, ignore_errors=True)
