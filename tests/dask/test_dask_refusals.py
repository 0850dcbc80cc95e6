"""numbadnn.dask refuses what it would get wrong: other kinds of chunks, chunks that are not what they are said to be."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

da = pytest.importorskip("dask.array")

import numbadnn  # noqa: E402
import numbadnn.dask as nd  # noqa: E402
from numbadnn import config  # noqa: E402

X = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
W = np.ones((4, 3, 3, 3), np.float32)
ONE = np.ones((1, 3, 1, 1), np.float32)


class Coordinates:
    """Elements as another library has them, which no array of NumPy can be made of."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype, self.ndim = array, array.shape, array.dtype, array.ndim

    def __getitem__(self, index: Any) -> Coordinates:
        return type(self)(self.array[index])

    def astype(self, dtype: Any) -> Coordinates:
        return type(self)(self.array.astype(dtype))

    def __array_function__(self, *args: Any) -> Any:
        return NotImplemented

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError


class OnAGpu(Coordinates):
    """What CuPy's arrays are to Dask."""

    @property
    def __cuda_array_interface__(self) -> Any:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (0, False), "version": 3}


def test_chunks_on_a_gpu_do_not_go_through_one() -> None:
    x = chunked(OnAGpu(X), asarray=False, meta=OnAGpu(X[:0, :0, :0, :0]))
    assert type(nd.conv2d(x, W)._meta) is OnAGpu
    for call in (lambda how: nd.conv2d(x, W, **how), lambda how: nd.softmax(x, **how)):
        for how in ({"device": "cuda"}, {"devices": "all"}):
            with pytest.raises(ValueError, match="device: expected None for chunks that are on a GPU, .*OnAGpu"):
                call(how)


def chunked(array: Any, **how: Any) -> Any:
    return da.from_array(array, chunks=(1, 3, 5, 4), **how)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: nd.conv2d(x, W),
        lambda x: nd.conv2d_grad_wrt_weights(x, X, (3, 3, 1, 1)),
        nd.softmax,
        lambda x: nd.batch_normalization_train(x, ONE, ONE, "spatial"),
        lambda x: nd.conv2d(X, x),
    ],
)
@pytest.mark.parametrize("kind", ["MaskedArray", "Coordinates"])
def test_chunks_of_other_kinds_are_refused(call: Any, kind: str) -> None:
    if kind == "MaskedArray":
        x = da.ma.masked_greater(chunked(X), 1)
    else:
        x = chunked(Coordinates(X), asarray=False, meta=Coordinates(X[:0, :0, :0, :0]))
    with pytest.raises(
        TypeError, match=rf"\w+: expected chunks that are arrays of NumPy or CuPy, got {kind}: make such"
    ):
        call(x)


def test_a_mask_of_filters_is_not_lost() -> None:
    with pytest.raises(TypeError, match="filters: expected a plain numpy.ndarray, got MaskedArray"):
        nd.conv2d(X, np.ma.masked_greater(W, 1))


@pytest.mark.parametrize(
    ("other", "error", "words"),
    [
        (lambda b: np.ma.masked_greater(b, 1), TypeError, "expected a chunk that is an array of NumPy, .* got MaskedArray"),
        (lambda b: b.astype(np.float64), TypeError, "expected a chunk of float32, .* got float64: tell map_blocks"),
        (lambda b: b[:, :, :1], ValueError, r"expected a chunk of at least \(1, 3, \d, \d\), .* got one of \(1, 3, 1,"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("chunks", [(1, 3, 8, 8), (1, 3, 5, 4)])
def test_chunks_that_are_not_as_said_are_refused(other: Any, error: type, words: str, chunks: Any) -> None:
    x = da.from_array(X, chunks=chunks).map_blocks(other, meta=np.empty((0,) * 4, np.float32))
    with pytest.raises(error, match=words):
        nd.conv2d(x, W).compute(scheduler="sync")


def test_memory_maps_are_arrays(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=X.shape)
    mapped[...] = X
    for x in (mapped, chunked(mapped), chunked(mapped).map_blocks(lambda b: b)):
        assert np.array_equal(nd.pool(x, (3, 3), (2, 2)).compute(), numbadnn.pool(X, (3, 3), (2, 2)))


def test_filters_are_arrays_of_known_sizes() -> None:
    with pytest.raises(TypeError, match="filters: expected an array, got list"):
        nd.conv2d(X, W.tolist())
    w = da.from_array(W)
    with pytest.raises(
        ValueError, match=r"filters: .* those of axis 0 are not known: call compute_chunk_sizes\(\) first"
    ):
        nd.conv2d(X, w[w[:, 0, 0, 0] > 0])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: nd.suggest_chunks(nd.softmax, X), "function: expected one of conv1d, .*, got 'softmax'"),
        (lambda: nd.suggest_chunks(nd.conv2d_grad_wrt_weights, X, filter_shape=W.shape), "function: expected one of"),
        (lambda: nd.suggest_chunks(nd.conv2d, X, W, workers=0), "workers: expected None or a number of at least 1, got 0"),
        (lambda: nd.suggest_chunks(nd.conv2d, X, W, memory="lots"), "memory: expected bytes or a size .*, got 'lots'"),
        (
            lambda: nd.suggest_chunks(nd.pool, da.from_array(X)[da.from_array(X)[:, 0, 0, 0] > -9], ws=(2, 2)),
            "img: .* those of axis 0 are not known",
        ),
    ],
)  # fmt: skip
def test_no_chunks_can_be_suggested(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_chunks_of_lines_and_of_nothing_are_suggested() -> None:
    line, w = np.zeros((3, 2, 1000), np.float32), np.ones((2, 2, 5), np.float32)
    chunks = nd.suggest_chunks(nd.conv1d, line, w, memory="8KiB", workers=1, border_mode="half")
    assert chunks[:2] == (1, 2) and 1.25 * 4 * (2 * (2 * chunks[2] + 4) + w.size) <= 8192 < 1.25 * 4 * 2 * (
        2 * chunks[2] + 16
    )
    assert nd.conv1d(da.from_array(line, chunks=chunks), w, border_mode="half").numblocks[2] == -(-1000 // chunks[2])
    assert nd.suggest_chunks(nd.pool, line, memory="8KiB", workers=1, ws=2)[:2] == (1, 2)
    assert nd.suggest_chunks(nd.conv2d, X[:0], W, memory="1B") == (0, 3, 8, 8)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The options that softmax is computed under."""
    found: list[Any] = []
    compute = numbadnn.softmax

    def softmax(*args: Any, **kwargs: Any) -> Any:
        found.append(config.current())
        return compute(*args, **kwargs)

    monkeypatch.setattr(numbadnn, "softmax", softmax)
    yield found
    numbadnn.set_options(determinism=None, workspace_limit=None)


def test_options_that_nobody_set_are_the_workers_own(seen: list[Any]) -> None:
    with numbadnn.using(determinism="batch_invariant"):
        lazy = nd.softmax(chunked(X))
    numbadnn.set_options(workspace_limit="3MiB")  # as another process has it
    seen.clear()
    lazy.compute(scheduler="sync")
    assert {(o.determinism, o.workspace_limit) for o in seen} == {("batch_invariant", 3 << 20)}


def test_options_of_the_process_go_with_the_graph(seen: list[Any]) -> None:
    numbadnn.set_options(determinism="gpu_to_gpu")
    lazy = nd.softmax(chunked(X))
    numbadnn.set_options(determinism=None)
    seen.clear()
    lazy.compute(scheduler="sync")
    assert {o.determinism for o in seen} == {"gpu_to_gpu"}


def test_arrays_of_expressions_are_refused() -> None:
    environment = os.environ | {"DASK_ARRAY__QUERY_PLANNING": "True"}
    code = "import numbadnn.dask"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert "ImportError: numbadnn.dask needs arrays with graphs: set Dask's option array.query-planning" in done.stderr
