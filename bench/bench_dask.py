"""numbadnn.dask beside the undivided call: bits, workers, memory, overhead, bytes read, other libraries, GPUs if there are any.

``python bench/bench_dask.py [bits workers overhead reads peers memory gpus ...] [--problems N] [--seed N] [--device cuda]
[--jobs N] [--seconds N] [--gib N] [--limit N] [--folder PATH]``; without names all but ``memory`` and ``gpus``. Each section
replaces its rows in bench/results. Times are the least of calls in turn; beside them stand the processor's, which other
processes spoil less.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask_gpus
import dask_problems
import numpy as np
from harness import least, save, table

import numbadnn
import numbadnn.dask as nd
from numbadnn import reference

RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def bits(options: Any) -> list[dict[str, Any]]:
    """Random problems in random chunks, compared with the undivided call to the bit, by ``--jobs`` processes."""
    end = time.time() + options.seconds
    shares = [(options, job, end) for job in range(options.jobs)]
    if options.jobs == 1:
        parts = [_share(*shares[0])]
    else:
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            parts = pool.starmap(_share, shares, chunksize=1)
    tried = sum((part for part, _ in parts), collections.Counter[str]())
    wrong = [problem for _, found in parts for problem in found]
    print(*wrong, sep="\n", file=sys.stderr)
    on = f" on {options.device}" if options.device else ""
    return [
        {"case": f"bits{on} {f}", "problems": n, "differ": sum(w.startswith(f"{f}(") for w in wrong), "seed": options.seed}
        for f, n in sorted(tried.items())
    ]  # fmt: skip


def _share(options: Any, job: int, end: float) -> tuple[collections.Counter[str], list[str]]:
    """What one of the processes tries: (problems of each function, those that differ)."""
    tried, wrong = collections.Counter[str](), []
    problems = itertools.islice(dask_problems.problems(options.seed), job, options.problems, options.jobs)
    device = None
    if options.device:
        from numba import cuda

        device = job % len(cuda.gpus)
        problems = (p for p in problems if p.arrays[0].dtype != "bfloat16")  # which Numba's arrays lack
    where = {} if device is None else {"device": f"cuda:{device}"}
    with numbadnn.using(determinism="batch_invariant" if device is None else "gpu_to_gpu"):
        for problem in problems:
            if time.time() > end:
                break
            tried[problem.function] += 1
            try:
                whole = problem.undivided() if device is None else _on(device, problem)
                found = problem.divided(**where).compute(scheduler="threads", num_workers=2)
            except Exception as error:
                wrong.append(f"{problem}: {type(error).__name__}: {error}")
            else:
                if not dask_problems.same_bits(whole, found):
                    wrong.append(str(problem))
    return tried, wrong


def _on(device: int, problem: dask_problems.Problem) -> np.ndarray:
    """The undivided result of a GPU, as an array of NumPy."""
    from numba import cuda

    with cuda.gpus[device]:
        there = problem._replace(arrays=tuple(map(cuda.to_device, problem.arrays)))
        return there.undivided().copy_to_host()


def workers(options: Any) -> list[dict[str, Any]]:
    """Gradients of the weights and batch norm on 1, 2 and 4 processes: the same bits, and how far from the reference."""
    import distributed

    x, dy = normal(4, 8, 64, 60), normal(4, 16, 64, 60)
    cut = da.from_array(x, chunks=(1, 8, 17, 23)), da.from_array(dy, chunks=(3, 16, 20, 60))
    one = np.ones((1, 8, 1, 1), np.float32)
    weights = nd.conv2d_grad_wrt_weights(*cut, (16, 8, 3, 3), border_mode=1)
    lazy = (weights, *nd.batch_normalization_train(cut[0], one, 0 * one, "spatial"))
    found = {}
    for n in (1, 2, 4):
        with (
            distributed.LocalCluster(
                n_workers=n, threads_per_worker=1, dashboard_address=None, memory_limit=0
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            found[n] = client.gather(client.compute(lazy))
    exact = reference.conv2d_grad_wrt_weights(x, dy, (16, 8, 3, 3), border_mode=1)
    size = reference.conv2d_grad_wrt_weights_magnitude(x, dy, (16, 8, 3, 3), border_mode=1)
    length = dy.size // dy.shape[1]
    bound = length * 2**-24 / (1 - length * 2**-24) * size + 2**-24 * abs(exact)
    same = all(a.tobytes() == b.tobytes() for n in (2, 4) for a, b in zip(found[1], found[n], strict=True))
    return [
        {
            "case": "workers 1, 2, 4",
            "same bits": same,
            "weights' error/bound": float((abs(found[1][0] - exact) / bound).max()),
        }
    ]


def memory(options: Any) -> list[dict[str, Any]]:
    """A volume of ``--gib`` in a process that may have ``--limit`` GiB."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        command = [
            sys.executable,
            str(Path(__file__).with_name("dask_memory.py")),
            folder,
            str(options.gib),
            str(options.limit),
        ]
        environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}  # what is freed goes back to the system
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return [{"case": f"memory {options.gib:g} GiB of {options.limit:g}", **json.loads(done.stdout.splitlines()[-1])}]


OVERHEAD = (
    ("conv3d 5x5x5, 1 channel", nd.conv3d, (1, 1, 256, 512, 512), (1, 1, 64, 512, 512), (1, 1, 5, 5, 5), {"border_mode": "half"}),
    ("conv2d 3x3, 16 channels", nd.conv2d, (16, 16, 512, 512), (4, 16, 512, 512), (16, 16, 3, 3), {"border_mode": "half"}),
    ("conv2d 3x3, 16 channels, rows", nd.conv2d, (1, 16, 8192, 512), (1, 16, 2048, 512), (16, 16, 3, 3), {"border_mode": "half"}),
)  # fmt: skip


def overhead(options: Any) -> list[dict[str, Any]]:
    """Chunks of 64 MiB left as they are, stored into an array, or computed as one, beside the undivided call."""
    rows = []
    for case, function, shape, chunks, filters, keywords in OVERHEAD:
        x, w = normal(*shape), normal(*filters)
        own = getattr(numbadnn, function.__name__)
        out = own(x, w, **keywords)
        lazy = function(da.from_array(x, chunks=chunks, name=False), w, **keywords)
        stored = np.empty_like(out)
        calls = {
            "undivided": lambda: own(x, w, **keywords),  # noqa: B023
            "undivided, out": lambda: own(x, w, out=out, **keywords),  # noqa: B023
            "chunks": lambda: lazy.persist(scheduler="threads", num_workers=1),  # noqa: B023
            "stored": lambda: da.store(lazy, stored, lock=False, scheduler="threads", num_workers=1),  # noqa: B023
            "computed": lambda: lazy.compute(scheduler="threads", num_workers=1),  # noqa: B023
        }
        best = least(calls, options.rounds)
        assert np.array_equal(out, stored)
        row: dict[str, Any] = {"case": f"overhead {case}", "seconds": best["undivided"][0]}
        for name in ("chunks", "stored", "computed", "undivided, out"):
            for kind, clock in enumerate(("wall", "processor")):
                row[f"{name}: {clock}"] = best[name][kind] / best["undivided"][kind]
        rows.append(row)
    return rows


def reads(options: Any) -> list[dict[str, Any]]:
    """Bytes that are fetched from a zarr store, beside those of the windows."""
    import zarr
    from zarr.storage import LocalStore, WrapperStore

    fetched = []

    class Counting(WrapperStore):
        async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
            found = await super().get(key, *args, **kwargs)
            if found is not None and "/c/" in f"/{key}":
                fetched.append(len(found))
            return found

    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for stored, chunk in ((8, 64), (16, 64), (8, 36)):
            z = zarr.create_array(
                Counting(LocalStore(f"{folder}/{stored}-{chunk}")), shape=(1, 1, 256, 128, 128), chunks=(1, 1, stored, 128, 128),
                dtype="float32", compressors=None,
            )  # fmt: skip
            z[...] = normal(*z.shape)
            x = da.from_zarr(z, chunks=(1, 1, chunk, 128, 128), name=f"{stored}-{chunk}")
            fetched.clear()
            nd.conv3d(x, normal(1, 1, 5, 5, 5), border_mode="half").compute(scheduler="sync")
            pieces = -(-256 // chunk)
            plane, row = 128 * 128 * 4, stored * 128 * 128 * 4
            exact = (256 + 4 * (pieces - 1)) * plane
            # a window begins and ends within a row of chunks
            more = (sum(fetched) - exact) / row / (2 * pieces - 2)  # the ends of the volume are no ends of windows
            rows.append({
                "case": f"reads, chunks of {chunk} planes stored in {stored}", "MB fetched": sum(fetched) / 1e6,
                "MB seen": exact / 1e6, "rows of chunks more, an end": more,
            })  # fmt: skip
    return rows


def peers(options: Any) -> list[dict[str, Any]]:
    """map_overlap with numbadnn, and dask-image, where they are right: odd windows and stride 1."""
    from dask_image import ndfilters

    rows = []
    for shape, chunks, window in (((256, 256, 256), (64, 256, 256), (5, 5, 5)), ((4096, 4096), (1024, 4096), (7, 7))):
        x, w = normal(*shape), normal(*window)
        axes, cut = len(shape), da.from_array(x, chunks=chunks, name=False)
        function, own = getattr(nd, f"conv{axes}d"), getattr(numbadnn, f"conv{axes}d")
        filters = w[None, None]

        def padded(block: Any) -> Any:
            return own(block[None, None], filters, border_mode="half")[0, 0]  # noqa: B023

        depth = tuple(n // 2 for n in window)
        ours = function(cut[None, None], filters, border_mode="half")[0, 0]
        overlapping = cut.map_overlap(padded, depth=depth, boundary=0, dtype=x.dtype)
        image = ndfilters.convolve(cut, w, mode="constant")
        results = {"ours": ours, "map_overlap": overlapping, "dask_image": image}
        whole = own(x[None, None], filters, border_mode="half")[0, 0]
        right = {name: bool(np.allclose(r.compute(), whole, rtol=1e-4, atol=1e-4)) for name, r in results.items()}
        targets = {name: np.empty_like(whole) for name in results}
        calls = {
            name: lambda name=name, r=r: da.store(r, targets[name], lock=False, scheduler="threads", num_workers=2)  # noqa: B023
            for name, r in results.items()
        }
        best = least(calls, options.rounds)
        row: dict[str, Any] = {
            "case": f"peers {'x'.join(map(str, shape))}, {'x'.join(map(str, window))}",
            "seconds": best["ours"][0],
        }
        for name in ("map_overlap", "dask_image"):
            row |= {f"{name} right": right[name], f"vs {name}": best[name][0] / best["ours"][0]}
            row[f"vs {name}, processor"] = best[name][1] / best["ours"][1]
        assert right["ours"]
        rows.append(row)
    return rows


SECTIONS = {f.__name__: f for f in (bits, workers, overhead, reads, peers, memory)} | {"gpus": dask_gpus.run}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], default=[])
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", help="cuda: bits on GPUs")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the problems")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no problem after these")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gib", type=float, default=16.0)
    parser.add_argument("--limit", type=float, default=4.0)
    parser.add_argument("--folder", default=None, help="where volumes are written")
    options = parser.parse_args()
    dask.config.set({"distributed.worker.memory.terminate": False})
    for name in options.sections or [s for s in SECTIONS if s not in ("memory", "gpus")]:
        rows = SECTIONS[name](options)
        print(table(rows, list(dict.fromkeys(k for row in rows for k in row))), flush=True)
        print("written to", save("dask", rows, of="case", load=os.getloadavg()[0]))


if __name__ == "__main__":
    main()
