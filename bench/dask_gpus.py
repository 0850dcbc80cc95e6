"""numbadnn.dask through GPUs: conv3d of volumes of host arrays, each result reduced to its maximum; and what the machine allows.

``bench_dask.py gpus`` runs it. A volume is a few host arrays over and over. "pinned": they lie in pinned memory, and go to a GPU
from there; "ordinary": NumPy's own, copied to pinned memory first. Results come back to the host and are reduced there.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask.array as da
import numpy as np
from harness import least, save

import numbadnn
import numbadnn.dask as nd

#: a block of 128 MiB, 8 channels; how many there are
SHAPE, BLOCKS = (1, 8, 128, 512, 64), 4
SCALING = (1, 2, 4, 8)
RATE = "GB/s to the GPUs"
LINK = "GB/s of the link, each of {} GPUs at once and each way"
WEIGHTS = np.random.default_rng(0).standard_normal((8, 8, 3, 3, 3), dtype=np.float32)


def blocks(pinned: bool) -> list[np.ndarray]:
    from numba import cuda

    random = np.random.default_rng(1).standard_normal(1 << 20, dtype=np.float32)
    made = [cuda.pinned_array(SHAPE, np.float32) if pinned else np.empty(SHAPE, np.float32) for _ in range(BLOCKS)]
    for i, block in enumerate(made):
        block.reshape(-1, random.size)[...] = np.roll(random, i)
    return made


def volume_of(made: list[np.ndarray], count: int) -> da.Array:
    """A volume of a few host arrays over and over, of which no copies are made (``from_array`` would make one a block)."""
    name, (n, c, depth, *rest) = f"volume-{count}-{id(made)}", made[0].shape
    graph = {(name, 0, 0, i, 0, 0): made[i % len(made)] for i in range(count)}
    return da.Array(graph, name, ((n,), (c,), (depth,) * count, *((k,) for k in rest)), dtype=made[0].dtype)


def link(numbers: list[int]) -> float:
    """GB/s each way and each GPU, of pinned memory, to and from all of these at once."""
    from numba import cuda

    from numbadnn.gpu.streams import lasting

    ways = []
    for number, back in itertools.product(numbers, (False, True)):
        with cuda.gpus[number]:
            here, there = cuda.pinned_array(SHAPE, np.float32), cuda.device_array(SHAPE, np.float32)
            ways.append((number, cuda.external_stream(lasting(number)), here, there, back))

    def copies() -> None:
        for _ in range(8):
            for number, stream, here, there, back in ways:
                with cuda.gpus[number]:
                    there.copy_to_host(here, stream=stream) if back else there.copy_to_device(here, stream=stream)
        for number, stream, *_ in ways:
            with cuda.gpus[number]:
                stream.synchronize()

    return 8 * ways[0][2].nbytes / least({"": copies}, 3)[""][0] / 1e9


def reading(threads: int) -> float:
    """GB/s that so many threads of the host read from its memory, in maxima of arrays of their own."""
    arrays = [np.ones(SHAPE, np.float32) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = least({"": lambda: list(pool.map(np.max, arrays))}, 3)[""][0]
    return threads * arrays[0].nbytes / seconds / 1e9


def in_memory(block: np.ndarray) -> float:
    """GB/s of the convolution on an array that is on the GPU."""
    from numba import cuda

    there, filters = cuda.to_device(block), cuda.to_device(WEIGHTS)

    def computing() -> None:
        for _ in range(4):
            numbadnn.conv3d(there, filters, border_mode=1)
        cuda.synchronize()

    return 4 * block.nbytes / least({"": computing}, 5)[""][0] / 1e9


def measured(case: str, made: list[np.ndarray], gib: float, n: int, rounds: int, warm: bool = True) -> dict[str, Any]:
    """The rate of a volume of so many GiB through the first ``n`` GPUs; the least of ``rounds``."""
    x = volume_of(made, math.ceil(gib * 2**30 / made[0].nbytes))
    largest = nd.conv3d(x, WEIGHTS, border_mode=1, devices=list(range(n))).max()
    # a GPU answers sooner than a thread reduces what it gave: 128 MiB in some 20 ms
    threads = {"scheduler": "threads", "num_workers": os.cpu_count() or 1}
    best = math.inf
    for turn in range(rounds + warm):
        start = time.perf_counter()
        largest.compute(**threads)
        if turn or not warm:
            best = min(best, time.perf_counter() - start)
    rate = x.nbytes / best / 1e9
    row = {"case": f"gpus {case}", "GPUs": n, "GiB": x.nbytes / 2**30, "seconds": best, RATE: rate}
    print(row, flush=True)
    return row


def scaling(kind: str, memory: str, made: list[np.ndarray], counts: list[int], gib: float, rounds: int) -> list[Any]:
    rows: list[dict[str, Any]] = []
    for n in counts:
        row = measured(f"{kind}, {memory}, {n}", made, gib * (n if kind == "weak" else 1), n, rounds)
        rows.append({**row, "of n times one": row[RATE] / (rows[0][RATE] if rows else row[RATE]) / n})
    return rows


def twice(memory: str, made: list[np.ndarray], allowed: dict[str, float]) -> dict[str, Any]:
    """A volume of twice a GPU's memory through one, beside 0.9 of its link and 0.8 of its rate in memory."""
    from numbadnn.gpu.devices import gpus as present

    gib = 2 * present()[0]["memory_bytes"] / 2**30
    row = measured(f"twice a GPU's memory, {memory}", made, gib, 1, 1, warm=False)
    goal = min(0.9 * allowed[LINK.format(1)], 0.8 * allowed["GB/s in memory"])
    return {**row, "of the goal": row[RATE] / goal}


def run(options: Any) -> list[dict[str, Any]]:
    from numbadnn.gpu.devices import gpus as present

    counts, rounds = [n for n in SCALING if n <= len(present())], min(options.rounds, 2)
    pinned, ordinary = blocks(True), blocks(False)
    allowed = {"GB/s in memory": in_memory(pinned[0])}
    for n in counts:
        allowed[LINK.format(n)] = link(list(range(n)))
    allowed["GB/s that the host reads"] = reading(min(32, os.cpu_count() or 1))
    print(allowed, flush=True)
    rows: list[dict[str, Any]] = [{"case": "gpus, what the machine allows", **allowed}]
    for part in (
        lambda: scaling("strong", "pinned", pinned, counts, 24, rounds),
        lambda: [twice("pinned", pinned, allowed)],
        lambda: scaling("weak", "pinned", pinned, counts, 12, rounds),
        lambda: scaling("strong", "ordinary", ordinary, counts, 24, rounds),
        lambda: [twice("ordinary", ordinary, allowed)],
    ):
        rows += part()
        save("dask", rows, of="case", load=os.getloadavg()[0])  # the rest may take longer than there is time
    return rows
