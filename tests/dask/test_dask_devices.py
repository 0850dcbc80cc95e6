"""numbadnn.dask on GPUs: chunks of NumPy through lanes, chunks of CuPy where they are; the lanes themselves without a GPU too."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

da = pytest.importorskip("dask.array")

import numbadnn  # noqa: E402
import numbadnn.dask as nd  # noqa: E402
from numbadnn.dask import devices  # noqa: E402
from numbadnn.errors import BackendUnavailableError  # noqa: E402

X = np.random.default_rng(0).standard_normal((2, 8, 40, 36)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((16, 8, 5, 3)).astype(np.float32)
KEYWORDS: dict[str, Any] = {"border_mode": ((2, 1), (0, 2)), "subsample": (2, 1)}


class FakeLane(devices.Lane):
    """A lane whose GPU is NumPy; two tasks never have it at once."""

    used: list[int] = []

    def __init__(self, device: int) -> None:
        self.device, self.busy, self.memory = device, threading.Lock(), {}

    def pinned(self, slot: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        block = self.memory[slot] = np.full(shape, np.nan, dtype)
        return block

    def call(self, function: Any, blocks: Any, weights: Any, keywords: Any) -> np.ndarray:
        assert self.busy.acquire(blocking=False)
        assert all(block is self.memory[slot] for slot, block in enumerate(blocks) if slot in self.memory)
        FakeLane.used.append(self.device)
        found = function(*blocks, *weights, **keywords)
        self.busy.release()
        return found


def test_chunks_go_round_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: tuple({"device": n} for n in range(3)))
    monkeypatch.setattr(devices, "Lane", FakeLane)
    devices._made.cache_clear()
    FakeLane.used.clear()
    x, options = da.from_array(X, chunks=(1, 8, 7, 9)), {"determinism": "batch_invariant"}
    with numbadnn.using(**options):
        y = nd.conv2d(x, W, devices="all", **KEYWORDS)
        whole = numbadnn.conv2d(X, W, **KEYWORDS)
    assert np.array_equal(y.compute(scheduler="sync"), whole)
    assert FakeLane.used[:7] == [0, 1, 2, 0, 1, 2, 0] and len(FakeLane.used) == y.npartitions
    assert np.array_equal(y.compute(scheduler="threads", num_workers=6), whole)
    FakeLane.used.clear()
    assert np.array_equal(nd.softmax(x, device="cuda:1").compute(), nd.softmax(x).compute())
    assert set(FakeLane.used) == {1}
    with pytest.raises(BackendUnavailableError, match=r"devices: expected numbers of \[0, 1, 2\], got 7"):
        nd.softmax(x, devices=[0, 7]).compute(scheduler="sync")
    devices._made.cache_clear()


@pytest.mark.parametrize(("processors", "lanes"), [(1, 2), (8, 4), (64, 6)])
def test_threads_that_begin_at_once_share_the_lanes(
    monkeypatch: pytest.MonkeyPatch, processors: int, lanes: int
) -> None:
    def slow() -> tuple[dict[str, int], ...]:
        time.sleep(0.02)
        return ({"device": 0}, {"device": 1})

    monkeypatch.setattr(devices, "gpus", slow)
    monkeypatch.setattr(devices, "processors", lambda: processors)
    monkeypatch.setattr(devices, "Lane", FakeLane)
    devices._made.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(devices.lanes, [()] * 8))
    assert all(each is found[0] for each in found) and found[0].qsize() == 2 * lanes
    devices._made.cache_clear()


def test_without_a_gpu_the_task_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: ())
    lazy = nd.conv2d(da.from_array(X), W, device="cuda")
    with pytest.raises(BackendUnavailableError, match='device="cuda": '):
        lazy.compute(scheduler="sync")


@pytest.mark.slow(5)
def test_a_lane_in_the_simulator() -> None:
    """Copies to and from a simulated GPU: pinned memory is used again, filters are copied once."""
    pytest.importorskip("numba_cuda")
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[-1] == "passed"


def main() -> None:
    from numba import cuda

    lane, filters, seen = devices.Lane(0), np.arange(4.0), []

    def function(block: Any, weights: Any, *, factor: float, stream: Any) -> Any:
        assert stream is lane.stream
        seen.append(weights)
        return cuda.to_device(block.copy_to_host() * factor + weights.copy_to_host(), stream=stream)

    first = None
    for n in (3, 2):
        block = lane.pinned(0, (n, 4), np.float64)
        first = block if first is None else first
        assert np.shares_memory(first, block)
        block[...] = n
        found = lane.call(function, [block], [filters], {"factor": 2.0})
        assert np.array_equal(found, np.full((n, 4), 2.0 * n) + filters)
        assert not np.shares_memory(found, lane.pinned("result", (n, 4), np.float64))
    assert seen[0] is seen[1]

    def result(value: float) -> Any:
        block[...] = value
        return lane.call(function, [block], [filters], {"factor": 1.0})

    del found
    kept = [result(value) for value in range(devices.RESULTS + 2)]  # more than pinned memory is lent for
    assert all(np.array_equal(r, np.full((2, 4), float(v)) + filters) for v, r in enumerate(kept))
    part, place = kept[0][1:, ::2], kept[0].ctypes.data
    kept.clear()
    again = [result(7.0), result(8.0), result(9.0)]
    assert np.array_equal(part, filters[None, ::2])  # a view keeps the memory it looks at
    assert place not in [r.ctypes.data for r in again]
    del part, again
    assert place in [r.ctypes.data for r in [result(7.0), result(8.0)]]  # and once it is gone, it is lent again
    lane.call(function, [block], [filters.copy()], {"factor": 1.0})
    assert seen[-1] is not seen[0]
    print("passed")


# ---- with GPUs -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("where", [{"device": "cuda"}, {"devices": "all"}])
def test_chunks_of_numpy_stream_through_gpus(where: dict[str, Any], dtype: Any) -> None:
    x, w = X.astype(dtype), W.astype(dtype)
    chunked = da.from_array(x, chunks=(1, 8, 11, 13))
    y = nd.conv2d(chunked, w, **KEYWORDS, **where)
    dy = da.from_array(np.asarray(numbadnn.conv2d(x, w, **KEYWORDS)), chunks=(1, 16, 7, 9))
    weights = nd.conv2d_grad_wrt_weights(chunked, dy, w.shape, **KEYWORDS, **where)
    for lazy, right in (
        (y, numbadnn.conv2d(x, w, **KEYWORDS)),
        (nd.pool(chunked, (3, 3), (2, 2), "max", (1, 1), **where), numbadnn.pool(x, (3, 3), (2, 2), "max", (1, 1))),
        (nd.softmax(chunked, **where), numbadnn.softmax(x)),
        (weights, numbadnn.conv2d_grad_wrt_weights(x, dy.compute(), w.shape, **KEYWORDS)),
    ):
        found = lazy.compute(scheduler="threads", num_workers=4)
        assert isinstance(found, np.ndarray) and found.dtype == right.dtype
        scale = abs(right.astype(np.float64)).max()
        assert abs(found.astype(np.float64) - right).max() <= 40 * np.finfo(dtype).eps * scale


@pytest.mark.gpu
def test_chunks_of_cupy_stay_on_the_gpu() -> None:
    cupy = pytest.importorskip("cupy")
    x = da.from_array(cupy.asarray(X), chunks=(1, 8, 11, 13), asarray=False)
    for filters in (W, cupy.asarray(W)):
        y = nd.conv2d(x, filters, **KEYWORDS)
        assert isinstance(y._meta, cupy.ndarray)
        found = y.compute()
        right = numbadnn.conv2d(X, W, **KEYWORDS)
        assert isinstance(found, cupy.ndarray)
        assert abs(found.get() - right).max() <= 40 * np.finfo(np.float32).eps * abs(right).max()
    pooled = nd.pool(x, (3, 3), (2, 2), "max", (1, 1)).compute()
    assert np.array_equal(pooled.get(), numbadnn.pool(X, (3, 3), (2, 2), "max", (1, 1)))
    one = cupy.ones((1, 8, 1, 1), cupy.float32)
    out, mean, _ = nd.batch_normalization_train(x, one, one, "spatial")
    assert isinstance(mean.compute(), cupy.ndarray) and isinstance(out.compute(), cupy.ndarray)


@pytest.mark.gpu
def test_the_same_bits_on_a_gpu() -> None:
    """bench/bench_dask.py does the same for hundreds of problems."""
    cupy = pytest.importorskip("cupy")
    with numbadnn.using(determinism="gpu_to_gpu"):
        whole = numbadnn.conv2d(cupy.asarray(X), cupy.asarray(W), **KEYWORDS).get()
        found = nd.conv2d(da.from_array(X, chunks=(1, 8, 11, 13)), W, device="cuda", **KEYWORDS).compute()
    assert found.tobytes() == whole.tobytes()


if __name__ == "__main__":
    main()
