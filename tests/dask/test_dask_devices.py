"""numbadnn.dask on GPUs: chunks of NumPy through lanes, chunks of CuPy where they are; the lanes themselves without a GPU too."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

da = pytest.importorskip("dask.array")

import numbadnn  # noqa: E402
import numbadnn.dask as nd  # noqa: E402
from numbadnn.dask import devices  # noqa: E402
from numbadnn.dask.lane import RESULTS  # noqa: E402
from numbadnn.errors import BackendUnavailableError  # noqa: E402
from numbadnn.gpu import bindings, context, memory, streams  # noqa: E402

X = np.random.default_rng(0).standard_normal((2, 8, 40, 36)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((16, 8, 5, 3)).astype(np.float32)
KEYWORDS: dict[str, Any] = {"border_mode": ((2, 1), (0, 2)), "subsample": (2, 1)}


class FakeLane(devices.Lane):
    """A lane whose GPU is NumPy; two tasks never have it at once."""

    used: list[int] = []

    def __init__(self, device: int) -> None:
        self.device, self.busy, self.memory, self.settled = device, threading.Lock(), {}, 0

    def from_parts(self, *block: Any) -> None:
        """Nothing is pinned."""

    def settle(self) -> None:
        self.settled += 1

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


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> devices.Lanes:
    """Three GPUs that nobody has used."""
    monkeypatch.setattr(devices, "gpus", lambda: tuple({"device": n} for n in range(3)))
    monkeypatch.setattr(devices, "Lane", FakeLane)
    monkeypatch.setattr(devices, "processors", lambda: 12)
    monkeypatch.setattr(devices, "_lanes", devices.Lanes())
    FakeLane.used.clear()
    return devices._lanes


def test_chunks_go_round_the_gpus(three: devices.Lanes) -> None:
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


def test_a_task_takes_a_lane_of_the_gpu_that_has_the_most_free(three: devices.Lanes) -> None:
    _, second = three.take((0,)), three.take((0,))
    assert [three.take(()).device for _ in range(4)] == [1, 2, 1, 2]
    three.put(second)
    assert three.take((0, 1)) is second  # what is there is used again, whatever the call that it was made for


def test_a_lane_that_is_given_back_is_waited_for(three: devices.Lanes) -> None:
    taken = [three.take((1,)) for _ in range(devices.MOST)]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(three.take, (1,))
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.05)
        three.put(taken[0])
        assert waiting.result(timeout=10) is taken[0]


def test_a_task_that_fails_leaves_nothing_under_way(three: devices.Lanes) -> None:
    with pytest.raises(KeyError), devices.lane((0,)) as failed:
        raise KeyError
    assert failed is not None and failed.settled == 1
    with devices.lane((0,)) as again:
        assert again is failed
    assert failed.settled == 1


@pytest.mark.parametrize(("processors", "lanes"), [(1, 2), (8, 4), (64, 6)])
def test_threads_that_begin_at_once_make_each_lane_once(
    three: devices.Lanes, monkeypatch: pytest.MonkeyPatch, processors: int, lanes: int
) -> None:
    def slow() -> tuple[dict[str, int], ...]:
        time.sleep(0.02)
        return ({"device": 0}, {"device": 1})

    monkeypatch.setattr(devices, "gpus", slow)
    monkeypatch.setattr(devices, "processors", lambda: processors)
    with ThreadPoolExecutor(2 * lanes) as pool:
        found = list(pool.map(three.take, [()] * 2 * lanes))
    assert len({id(each) for each in found}) == 2 * lanes
    assert [sum(each.device == n for each in found) for n in (0, 1)] == [lanes, lanes]


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


class FakeDriver:
    """CUDA's driver where memory of the GPU is memory of the host; what ``pinned_array`` made is pinned."""

    CUstream_flags = types.SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUpointer_attribute = types.SimpleNamespace(CU_POINTER_ATTRIBUTE_MEMORY_TYPE=2)
    CUmemorytype = types.SimpleNamespace(CU_MEMORYTYPE_HOST=1)

    def __init__(self) -> None:
        self.flags: list[int] = []
        self.copied: list[int] = []
        self.pinned: list[np.ndarray] = []
        self.asked = 0

    def cuStreamCreate(self, flags: int) -> tuple[int, int]:
        self.flags.append(flags)
        return 0, 77

    def cuMemcpyHtoDAsync(self, there: int, here: int, nbytes: int, stream: int) -> tuple[int]:
        assert stream == 77 and self.is_pinned(here)
        ctypes.memmove(there, here, nbytes)
        self.copied.append(nbytes)
        return (0,)

    def cuMemsetD8Async(self, there: int, value: int, nbytes: int, stream: int) -> tuple[int]:
        ctypes.memset(there, value, nbytes)
        return (0,)

    def cuPointerGetAttribute(self, attribute: int, address: int) -> tuple[int, int]:
        self.asked += 1
        return (0, 1) if self.is_pinned(address) else (1, 0)

    def is_pinned(self, address: int) -> bool:
        bounds = map(np.lib.array_utils.byte_bounds, self.pinned)
        return any(low <= address < high for low, high in bounds)

    def pinned_array(self, shape: Any, dtype: Any) -> np.ndarray:
        self.pinned.append(np.full(shape, 99, dtype))
        return self.pinned[-1]


def of_the_host(driver: FakeDriver, modules: Any, cuda: Any, array: Any) -> None:
    """Put the driver in place of CUDA's, and what Numba's simulator lacks."""
    for module in modules:
        module.driver = lambda: driver
    modules[0].ensure_context = lambda device: contextlib.nullcontext()
    cuda.pinned_array, cuda.external_stream = driver.pinned_array, lambda raw: cuda.stream()
    array.__cuda_array_interface__ = property(lambda self: self._ary.__array_interface__)


def main() -> None:
    from numba import cuda
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    driver = FakeDriver()
    of_the_host(driver, (context, streams, bindings), cuda, FakeCUDAArray)
    lane = devices.Lane(0)
    assert driver.flags == [1]  # a stream that waits for no other
    used_again(lane)
    from_where_they_lie(lane, driver)
    print("passed")


def used_again(lane: devices.Lane) -> None:
    """Pinned memory, lent for results and given back; filters."""
    from numba import cuda

    filters, seen = np.arange(4.0), []

    def function(block: Any, weights: Any, *, factor: float, stream: Any) -> Any:
        assert stream is lane.stream and memory.current_stream(0) == 77
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
    assert seen[0] is seen[1] and memory.current_stream(0) == 0

    def result(value: float) -> Any:
        block[...] = value
        return lane.call(function, [block], [filters], {"factor": 1.0})

    del found
    kept = [result(value) for value in range(RESULTS + 2)]  # more than pinned memory is lent for
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


def from_where_they_lie(lane: devices.Lane, driver: FakeDriver) -> None:
    """Blocks of parts, some of them pinned, are what ``assemble`` makes of them."""
    random = np.random.default_rng(0)
    for shape in ((2, 3, 9, 64, 128), (1, 1, 5, 300, 128)):
        whole = random.standard_normal(shape, np.float32)
        pinned = driver.pinned_array(shape, np.float32)
        pinned[...] = whole
        cut = [slice(0, 1), slice(1, shape[2] - 1), slice(shape[2] - 1, shape[2])]
        parts = [a[:, :, c] for a, c in zip((whole, pinned, whole), cut, strict=True)]
        for lead in (0, 2):
            into = (*shape[:2], shape[2] + lead, *shape[3:])
            puts = [tuple(slice(0, n) for n in p.shape) for p in parts]
            puts = [(*p[:2], slice(lead + c.start, lead + c.stop), *p[3:]) for p, c in zip(puts, cut, strict=True)]
            right = np.zeros(into, np.float32)
            for part, put in zip(parts, puts, strict=True):
                right[put] = part
            driver.copied.clear()
            driver.asked = 0
            found = lane.from_parts(0, into, np.dtype(np.float32), parts, puts)
            assert found is not None and np.array_equal(found.copy_to_host(), right)
            assert sum(driver.copied) == sum(p.nbytes for p in parts)
            assert driver.asked == 2 * len(parts)  # once about each one's first and last byte
            y = lane.call(lambda block, stream: block, [found], [], {})
            assert np.array_equal(y, right)
        assert lane.from_parts(0, shape, np.dtype(np.float32), [whole], [tuple(map(slice, shape))]) is None
        assert lane.from_parts(0, shape, np.dtype(np.float64), [pinned], [tuple(map(slice, shape))]) is None
        short = pinned[..., :3]  # rows of twelve bytes
        assert lane.from_parts(0, short.shape, np.dtype(np.float32), [short], [tuple(map(slice, short.shape))]) is None


# ---- with GPUs -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.slow(30)
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
def test_chunks_in_pinned_memory_go_from_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba import cuda

    x = np.random.default_rng(0).standard_normal((2, 4, 600, 256), np.float32)
    pinned = cuda.pinned_array(x.shape, np.float32)
    pinned[...] = x
    sent: list[int] = []
    copy = devices.Lane._sent

    def counted(lane: devices.Lane, there: int, here: int, nbytes: int) -> None:
        sent.append(nbytes)
        copy(lane, there, here, nbytes)

    def in_rows(name: str, array: np.ndarray) -> Any:
        """Chunks that are views."""
        chunks = {(name, n, 0, i, 0): array[n : n + 1, :, 200 * i : 200 * i + 200] for n in range(2) for i in range(3)}
        return da.Array(chunks, name, ((1, 1), array.shape[1:2], (200,) * 3, array.shape[3:]), dtype=array.dtype)

    monkeypatch.setattr(devices.Lane, "_sent", counted)
    w = np.random.default_rng(1).standard_normal((4, 4, 5, 3), np.float32)
    how: dict[str, Any] = {"border_mode": ((2, 2), (1, 1))}
    for function, arguments in ((nd.conv2d, (w,)), (nd.softmax, ()), (nd.conv2d_grad_wrt_inputs, (w, x.shape))):
        keywords = {} if function is nd.softmax else how
        found = [
            function(in_rows(name, array), *arguments, device="cuda", **keywords).compute(num_workers=4)
            for name, array in (("pinned", pinned), ("ordinary", x))
        ]
        assert np.array_equal(*found)
        assert sum(sent) > pinned.nbytes // 2  # of the pinned ones, their borders with them
        sent.clear()


@pytest.mark.gpu
@pytest.mark.slow(35)
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
