"""numbadnn.dask on threads: the bits of the undivided call, lazy, with errors that say what to do."""

from __future__ import annotations

import inspect
import itertools
import math
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

da = pytest.importorskip("dask.array")
import dask  # noqa: E402
from dask.graph_manipulation import clone  # noqa: E402

import numbadnn  # noqa: E402
import numbadnn.dask as nd  # noqa: E402
from numbadnn import config, reference  # noqa: E402
from numbadnn.dask import graph  # noqa: E402
from numbadnn.dask.work import Split  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import dask_problems  # noqa: E402

RANDOM = np.random.default_rng(0)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(
    "family", ["convolution", "gradient", "transpose", "pooling", "pooling_gradient", "upsampling", "causal"]
)
def test_chunks_have_the_bits_of_the_whole(family: str) -> None:
    """bench/bench_dask.py does the same for thousands."""
    drawn = dask_problems.problems(7, [getattr(dask_problems, family)])
    with numbadnn.using(determinism="batch_invariant"):
        for problem in itertools.islice(drawn, 16):
            whole, lazy = problem.undivided(), problem.divided()
            assert (lazy.dtype, lazy.shape, lazy._meta.dtype) == (whole.dtype, whole.shape, whole.dtype), problem
            assert dask_problems.same_bits(whole, lazy.compute(scheduler="threads", num_workers=2)), problem


def test_a_chunk_and_its_border_are_computed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "LEAST_CHUNK", 0)
    split = 0
    with numbadnn.using(determinism="batch_invariant"):
        for problem in itertools.islice(dask_problems.problems(8, [dask_problems.convolution]), 40):
            whole, lazy = problem.undivided(), problem.divided()
            split += any(isinstance(task[0], Split) for task in lazy.dask.layers[lazy.name].values())
            assert dask_problems.same_bits(whole, lazy.compute(scheduler="threads", num_workers=2)), problem
    assert split > 10


def in_rows(x: np.ndarray, rows: int) -> Any:
    """Chunks that are views; ``from_array`` would copy them, into C order."""
    n, c, height, width = x.shape
    chunks = {("rows", 0, 0, i, 0): x[:, :, rows * i : rows * i + rows] for i in range(height // rows)}
    return da.Array(chunks, "rows", ((n,), (c,), (rows,) * (height // rows), (width,)), dtype=x.dtype)


@pytest.mark.parametrize("unshared", [False, True])
def test_large_chunks_are_not_copied(unshared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(1, 4, 24, 20)
    w = normal(3, 24, 20, 4, 3, 3) if unshared else normal(3, 4, 3, 3)
    keywords: dict[str, Any] = {"border_mode": 1, "unshared": unshared}
    whole, seen = numbadnn.conv2d(x, w, **keywords), []
    monkeypatch.setattr(graph, "LEAST_CHUNK", 4 * 4 * 8 * 20)
    y = nd.conv2d(in_rows(x, 8), w, **keywords)
    compute = numbadnn.conv2d

    def conv2d(block: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append((block.shape[2], np.shares_memory(block, x)))
        return compute(block, *args, **kwargs)

    monkeypatch.setattr(numbadnn, "conv2d", conv2d)
    assert np.array_equal(y.compute(scheduler="sync"), whole)
    assert sorted(seen) == [(3, False)] * 4 + [(8, True)] * 3


@pytest.mark.parametrize("least", [0, 1 << 40])
def test_channels_last_stay_last(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "LEAST_CHUNK", least)
    x, w = np.moveaxis(normal(2, 21, 18, 8), -1, 1), normal(4, 8, 3, 3)
    with numbadnn.using(determinism="batch_invariant"):
        whole, y = numbadnn.conv2d(x, w, border_mode="half"), nd.conv2d(in_rows(x, 7), w, border_mode="half")
    parts = [part.compute() for part in y.to_delayed().ravel()]
    assert whole.strides[1] == 4 and all(part.strides[1] == 4 for part in parts)
    assert np.array_equal(np.concatenate(parts, 2), whole)


def test_filters_for_each_position() -> None:
    x = normal(2, 3, 9, 8)
    y = numbadnn.conv2d(x, normal(4, 3, 3, 2), border_mode=((1, 2), (0, 1)), subsample=(2, 1))
    w = normal(4, *y.shape[2:], 3, 3, 2)
    keywords = {"border_mode": ((1, 2), (0, 1)), "subsample": (2, 1), "unshared": True}
    whole = numbadnn.conv2d(x, w, **keywords)
    assert np.array_equal(nd.conv2d(da.from_array(x, chunks=(1, 3, 4, 3)), w, **keywords).compute(), whole)
    back = nd.conv2d_grad_wrt_inputs(da.from_array(whole, chunks=(2, 4, 2, 3)), w, x.shape, **keywords).compute()
    assert np.array_equal(back, numbadnn.conv2d_grad_wrt_inputs(whole, w, x.shape, **keywords))


def whole_numbers(*shape: int) -> np.ndarray:
    """Whose sums are exact."""
    return RANDOM.integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gradients_of_filters_for_each_position(dtype: Any) -> None:
    x, dy, w = whole_numbers(3, 4, 9, 8).astype(dtype), whole_numbers(3, 6, 5, 8).astype(dtype), (6, 5, 8, 2, 3, 2)
    keywords: dict[str, Any] = {"border_mode": ((1, 2), (0, 1)), "subsample": (2, 1), "num_groups": 2, "unshared": True}
    whole = numbadnn.conv2d_grad_wrt_weights(x, dy, w, **keywords)
    lazy = nd.conv2d_grad_wrt_weights(
        da.from_array(x, chunks=(2, 4, 4, 3)), da.from_array(dy, chunks=(1, 6, 2, 3)), w, **keywords
    )
    assert lazy.chunks == ((6,), (2, 2, 1), (3, 3, 2), (2,), (3,), (2,)) and lazy.dtype == dtype
    assert np.array_equal(lazy.compute(scheduler="threads", num_workers=2), whole)


def test_lines_with_filters_for_each_position() -> None:
    x, w = whole_numbers(2, 3, 20), whole_numbers(4, 10, 3, 3)
    keywords: dict[str, Any] = {"border_mode": 1, "subsample": 2, "unshared": True}
    y = numbadnn.conv1d(x, w, **keywords)
    chunked, dy = da.from_array(x, chunks=(1, 3, 7)), da.from_array(y, chunks=(2, 4, 3))
    assert np.array_equal(nd.conv1d(chunked, w, **keywords).compute(), y)
    back = nd.conv1d_grad_wrt_inputs(dy, w, x.shape, **keywords)
    assert np.array_equal(back.compute(), numbadnn.conv1d_grad_wrt_inputs(y, w, x.shape, **keywords))
    weights = nd.conv1d_grad_wrt_weights(chunked, dy, w.shape, **keywords)
    assert np.array_equal(weights.compute(), numbadnn.conv1d_grad_wrt_weights(x, y, w.shape, **keywords))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("axes", [2, 3])
def test_the_weights_gradient_is_within_its_bound(axes: int, dtype: Any) -> None:
    x, w = normal(2, 4, *(9, 12, 11)[:axes], dtype=dtype), normal(6, 2, *(3, 2, 4)[:axes], dtype=dtype)
    keywords = {"border_mode": ((1, 2), (0, 3), (2, 0))[:axes], "subsample": (2, 1, 1)[:axes], "num_groups": 2}
    dy = normal(*getattr(numbadnn, f"conv{axes}d")(x, w, **keywords).shape, dtype=dtype)
    name = f"conv{axes}d_grad_wrt_weights"
    chunked = da.from_array(x, chunks=(1, 4, *(4, 5, 6)[:axes])), da.from_array(dy, chunks=(2, 6, *(2, 5, 3)[:axes]))
    lazy = getattr(nd, name)(*chunked, (None, None, *w.shape[2:]), **keywords)
    assert (lazy.shape, lazy.dtype) == (w.shape, dtype)
    one, many = lazy.compute(scheduler="sync"), lazy.compute(scheduler="threads", num_workers=4)
    assert one.tobytes() == many.tobytes()
    exact = getattr(reference, name)(x, dy, w.shape, **keywords)
    size = reference.conv_magnitude(getattr(reference, name), x, dy, w.shape, **keywords)
    unit = np.finfo(np.float32 if dtype == np.float16 else dtype).eps / 2
    length = dy.size // dy.shape[1] + 1
    bound = length * unit / (1 - length * unit) * size + np.finfo(dtype).eps / 2 * abs(exact)
    assert (abs(one.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize("mode", ["spatial", "per-activation"])
@pytest.mark.parametrize("shape", [(6, 3, 5, 4), (6, 3)])
def test_batch_normalization(mode: str, shape: tuple[int, ...]) -> None:
    x = normal(*shape) + 1000
    parameters = tuple(1 if axis == 0 or (axis > 1 and mode == "spatial") else n for axis, n in enumerate(shape))
    gamma, beta, mean, var = (normal(*parameters) ** 2 + 0.5 for _ in range(4))
    chunked = da.from_array(x, chunks=(4, 3, *(2, 3)[: len(shape) - 2]))
    lazy = nd.batch_normalization_train(chunked, gamma, beta, mode, 1e-3, 0.3, mean, var)
    one, many = dask.compute(*lazy, scheduler="sync"), dask.compute(*lazy, scheduler="threads", num_workers=4)
    exact = reference.batch_normalization_train(x, gamma, beta, mode, 1e-3, 0.3, mean, var)
    plain = numbadnn.batch_normalization_train(x, gamma, beta, mode, 1e-3, 0.3, mean, var)
    for a, b, right, ours, found in zip(one, many, exact, plain, lazy, strict=True):
        assert a.tobytes() == b.tobytes()
        assert (found.dtype, found.shape) == (ours.dtype, ours.shape) == (a.dtype, a.shape)
        # statistics are rounded once, and no worse than those of the undivided call
        assert abs(a - right).max() <= max(abs(ours - right).max(), np.finfo(np.float32).eps * abs(right).max())
    test = nd.batch_normalization_test(chunked, gamma, beta, mean, var, mode)
    assert np.array_equal(test.compute(), numbadnn.batch_normalization_test(x, gamma, beta, mean, var, mode))


def test_batches_of_nothing() -> None:
    one = np.ones((1, 3), np.float32)
    out, mean, invstd = nd.batch_normalization_train(da.zeros((0, 3), dtype="float32"), one, one)
    assert out.compute().shape == (0, 3)
    assert np.isnan(mean.compute()).all() and np.isnan(invstd.compute()).all()
    assert nd.conv2d(da.zeros((0, 3, 5, 5), dtype="float32"), np.ones((2, 3, 3, 3), "float32")).compute().shape == (
        0,
        2,
        3,
        3,
    )


def test_empty_chunks_beside_one_element_are_not_repeats_of_it() -> None:
    x, one = normal(1, 3, 1, 4), np.ones((1, 3, 1, 1), np.float32)
    chunks = ((0, 1, 0), (3,), (1, 0), (2, 0, 2))
    cut = da.from_array(x, chunks=chunks)
    assert np.array_equal(nd.softmax(cut).compute(), numbadnn.softmax(x))
    assert np.array_equal(nd.softmax_grad(cut, x).compute(), numbadnn.softmax_grad(x, x))
    found = nd.batch_normalization_train(cut, one, 0 * one, "spatial")[0].compute()
    np.testing.assert_allclose(found, numbadnn.batch_normalization_train(x, one, 0 * one, "spatial")[0], rtol=1e-5)


@pytest.mark.parametrize("placed", [((0, 1),), ((3, 1),), ((0, 1), (5, 1)), ((0, 1), (5, -1)), ((1, np.nan), (5, 1))])
def test_batch_normalization_of_infinities_has_the_undivided_statistics(placed: tuple[tuple[int, float], ...]) -> None:
    x, one = normal(6, 3, 4, 5).astype(np.float64), np.ones((1, 3, 1, 1))
    for image, sign in placed:
        x[image, 1, 2, 3] = sign * np.inf
    expected = numbadnn.batch_normalization_train(x, one, one, "spatial", running_mean=one, running_var=one)
    cut = da.from_array(x, chunks=(2, 3, 3, 5))
    found = dask.compute(*nd.batch_normalization_train(cut, one, one, "spatial", running_mean=one, running_var=one))
    for ours, right in zip(found, expected, strict=True):
        assert np.allclose(ours, right, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_infinities_of_several_chunks_are_added_in_silence() -> None:
    x = np.ones((2, 1, 4, 4), np.float16)
    dy, opposite = x.copy(), x.copy()
    dy[0, 0, 0, 0], dy[1, 0, 0, 0], opposite[0] = np.inf, -np.inf, 60000
    for top in (dy, opposite):
        found = nd.conv2d_grad_wrt_weights(da.from_array(x, chunks=1), da.from_array(top, chunks=2), (1, 1, 1, 1))
        np.testing.assert_array_equal(found.compute(), numbadnn.conv2d_grad_wrt_weights(x, top, (1, 1, 1, 1)))
    one = np.ones((1, 1, 1, 1), np.float32)
    mean = nd.batch_normalization_train(da.from_array(dy, chunks=(1, 1, 4, 4)), one, one, "spatial")[1]
    assert np.isnan(mean.compute()).all()


@pytest.mark.parametrize(("mode", "chunks"), [("channel", (2, 3, 4, 2)), ("instance", (1, 3, 6, 5))])
def test_softmax(mode: str, chunks: tuple[int, ...]) -> None:
    x, dy = normal(4, 3, 6, 5), normal(4, 3, 6, 5)
    how, unit = ("log", mode), 2.0**-24
    y = nd.softmax(da.from_array(x, chunks=chunks), *how).compute()
    bound = reference.softmax_bound(x, *how, unit, unit)
    assert (abs(y - reference.softmax(x, *how)) <= bound).all()
    dx = nd.softmax_grad(da.from_array(dy, chunks=chunks), y, *how).compute()
    bound = reference.softmax_grad_bound(dy, y, *how, unit, unit)
    assert (abs(dx - reference.softmax_grad(dy, y, *how)) <= bound).all()


def test_softmax_over_an_axis() -> None:
    x = normal(4, 3, 6)
    found = nd.softmax(da.from_array(x, chunks=(2, 1, 6)), axis=-1).compute()
    np.testing.assert_allclose(found, numbadnn.softmax(x, axis=-1), rtol=1e-6)
    with pytest.raises(ValueError, match=r"x: expected one chunk of axis 1, .* got 3: rechunk\(\{1: -1\}\)"):
        nd.softmax(da.from_array(x, chunks=(2, 1, 6)), axis=1)


def test_lines() -> None:
    x, w = normal(2, 4, 41), normal(6, 2, 5)
    keywords: dict[str, Any] = {"subsample": 2, "filter_dilation": 3, "num_groups": 2}
    with numbadnn.using(determinism="batch_invariant"):
        chunked = da.from_array(x, chunks=(1, 4, 7))
        for name, more in (("conv1d", {"border_mode": ((2, 7),)}), ("causal_conv1d", {})):
            y = getattr(numbadnn, name)(x, w, **keywords, **more)
            dy = da.from_array(y, chunks=(1, 6, 4))
            assert np.array_equal(getattr(nd, name)(chunked, w, **keywords, **more).compute(), y)
            back = getattr(nd, f"{name}_grad_wrt_inputs")(dy, w, x.shape, **keywords, **more)
            assert np.array_equal(
                back.compute(), getattr(numbadnn, f"{name}_grad_wrt_inputs")(y, w, x.shape, **keywords, **more)
            )
            weights = getattr(nd, f"{name}_grad_wrt_weights")(chunked, dy, w.shape, **keywords, **more).compute()
            exact = getattr(numbadnn, f"{name}_grad_wrt_weights")(
                *(a.astype(float) for a in (x, y)), w.shape, **keywords, **more
            )
            assert abs(weights - exact).max() <= 2 * y.shape[2] * 2**-23 * (
                abs(exact).max() + abs(x).max() * abs(y).max()
            )
        assert np.array_equal(nd.pool(chunked, 3, 2, "max", 1).compute(), numbadnn.pool(x, 3, 2, "max", 1))


def test_nothing_is_computed_before_it_is_asked_for() -> None:
    def explode(block: Any) -> Any:
        raise RuntimeError("computed")

    x = da.ones((2, 3, 8, 8), chunks=(1, 3, 4, 4), dtype="float16").map_blocks(
        explode, meta=np.empty((0,) * 4, "float16")
    )
    w = da.ones((4, 3, 3, 3), chunks=(2, 3, 3, 3), dtype="float16").map_blocks(
        explode, meta=np.empty((0,) * 4, "float16")
    )
    one = np.ones((1, 3, 1, 1), "float32")
    y = nd.conv2d(x, w, border_mode="half")
    made = [
        y, nd.pool(x, (2, 2)), nd.softmax(x), nd.conv2d_grad_wrt_weights(x, y, w.shape, border_mode="half"),
        nd.conv2d_grad_wrt_inputs(y, w, x.shape, border_mode="half"), nd.bilinear_upsampling(x, 2),
        nd.batch_normalization_train(x, one, one, "spatial")[0],
    ]  # fmt: skip
    for lazy in made:
        assert lazy.dtype == np.float16 and isinstance(lazy._meta, np.ndarray)
        with pytest.raises(RuntimeError, match="computed"):
            lazy.compute(scheduler="sync")


def test_filters_are_one_key_whatever_the_chunks() -> None:
    w = normal(64, 32, 3, 3)
    y = nd.conv2d(da.zeros((1, 32, 40, 40), chunks=(1, 32, 4, 4), dtype="float32"), w)
    (optimised,) = dask.optimize(y)
    tasks = dict(optimised.__dask_graph__())
    assert len(tasks) > 100
    assert sum(len(pickle.dumps(task)) > w.nbytes for task in tasks.values()) == 1


def test_filters_are_those_of_the_call() -> None:
    x, w = normal(2, 3, 9, 9), normal(4, 3, 3, 3)
    right, lazy = numbadnn.conv2d(x, w), nd.conv2d(da.from_array(x, chunks=(1, 3, 5, 9)), w)
    before = lazy.compute(scheduler="sync")
    w *= 2  # as a step of training does
    for found in (before, lazy.compute(scheduler="sync")):
        assert np.allclose(found, right, rtol=1e-5, atol=1e-5)
    assert np.allclose(nd.conv2d(x, w).compute(scheduler="sync"), 2 * right, rtol=1e-5, atol=1e-5)


def test_the_options_in_force_go_with_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    compute = numbadnn.softmax

    def softmax(*args: Any, **kwargs: Any) -> Any:
        seen.append(config.current().determinism)
        return compute(*args, **kwargs)

    with numbadnn.using(determinism="batch_invariant", workspace_limit="3MiB"):
        lazy = pickle.loads(pickle.dumps(nd.softmax(da.ones((4, 3), chunks=(2, 3)))))
    monkeypatch.setattr(numbadnn, "softmax", softmax)
    lazy.compute(scheduler="threads")
    assert seen == ["batch_invariant"] * 2


def test_names_follow_from_what_is_asked_for() -> None:
    x, w = da.ones((1, 1, 9, 9), chunks=(1, 1, 4, 4)), np.ones((1, 1, 3, 3))
    assert nd.conv2d(x, w).name == nd.conv2d(x, w.copy()).name
    with numbadnn.using(determinism="batch_invariant"):
        other = nd.conv2d(x, w).name
    assert len({nd.conv2d(x, w).name, nd.conv2d(x, w, border_mode=1).name, nd.conv2d(x, 2 * w).name, other}) == 4


def test_signatures_are_numbadnns_own() -> None:
    for name in nd.__all__:
        if name != "suggest_chunks":
            *own, unknown = inspect.signature(getattr(numbadnn, name)).parameters
            assert list(inspect.signature(getattr(nd, name)).parameters) == [*own, "device", "devices", unknown]
    with pytest.raises(TypeError, match=r"conv2d.*stride.*subsample"):
        nd.conv2d(da.from_array(X), W, stride=2)


X, W = np.zeros((2, 3, 8, 8), np.float32), np.zeros((4, 3, 3, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: nd.conv2d(da.from_array(X, chunks=(2, 1, 8, 8)), W),
            r"input: expected one chunk of the channels \(axis 1\), got 3: rechunk\(\{1: -1\}\)",
        ),
        (
            lambda: nd.softmax(da.from_array(X, chunks=(1, 3, 4, 8)), mode="instance"),
            r"x: expected one chunk of axis 2, which is normalised over, got 2: rechunk\(\{2: -1\}\)",
        ),
        (lambda: nd.conv2d(da.from_array(X), W, out=X), "out: expected None, a Dask result is an array of its own"),
        (lambda: nd.conv2d(da.from_array(X), W, beta=1.0), "beta: expected 0, as there is no out, got 1.0"),
        (lambda: nd.conv2d(da.from_array(X), W, stream=0), "stream: expected None, each task runs on a stream of its worker"),
        (lambda: nd.conv2d(da.from_array(X), W, num_groups=2), "num_groups: expected a divisor of the 3 channels"),
        (lambda: nd.conv2d(da.from_array(X), W, device="gpu"), 'device: expected None, "cpu", "cuda" or "cuda:N", got \'gpu\''),
        (lambda: nd.conv2d(da.from_array(X), W, devices="cuda"), "devices: expected None, .* got 'cuda'"),
        (
            lambda: nd.causal_conv1d(X[0], np.zeros((4, 8, 8, 3), np.float32), unshared=True),
            "unshared: expected False, pieces of causal_conv1d have shared filters",
        ),
        (lambda: nd.suggest_chunks(nd.conv2d, X, W, memory="99B", workers=1), "memory: expected at least .* bytes .*, got '99B'"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_says_what_to_do(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_chunks_of_unknown_sizes_are_refused() -> None:
    x = da.ones((8, 3, 4, 4), chunks=(4, 3, 4, 4))
    unknown = x[x[:, 0, 0, 0] > 0]
    with pytest.raises(ValueError, match=r"img: .* those of axis 0 are not known: call compute_chunk_sizes\(\) first"):
        nd.pool(unknown, (2, 2))
    assert nd.pool(unknown.compute_chunk_sizes(), (2, 2)).compute().shape == (8, 3, 3, 3)


def test_other_arguments_than_arrays_are_refused() -> None:
    with pytest.raises(TypeError, match="input: expected a Dask array, or an array to make one of, got list"):
        nd.conv2d([1], W)


@pytest.mark.parametrize(
    ("function", "w", "shape", "parameters"),
    [
        ("pool", None, (3, 1, 19, 16), {"ws": (3, 2), "stride": (1, 1)}),  # two images and one: the larger comes first
        ("conv2d", (3, 1, 5, 5), (1, 1, 30, 20), {"border_mode": "full"}),  # the last chunk has the most outputs
        ("conv2d", (3, 1, 1, 1), (1, 1, 28, 20), {"subsample": 2}),  # windows see less than a chunk
    ],
)
def test_the_largest_of_suggested_chunks_fits(function: str, w: Any, shape: Any, parameters: Any) -> None:
    x, filters = np.zeros(shape, np.float32), [] if w is None else [np.zeros(w, np.float32)]
    call = getattr(nd, function)
    for memory in range(3000, 40000, 500):
        try:
            chunks = nd.suggest_chunks(call, x, *filters, memory=memory, workers=1, **parameters)
        except ValueError:
            continue
        cut = da.from_array(x, chunks=chunks)
        held = [max(map(math.prod, itertools.product(*a.chunks))) for a in (cut, call(cut, *filters, **parameters))]
        assert 1.25 * 4 * (sum(held) + sum(f.size for f in filters)) <= memory


def test_a_source_is_part_of_the_graph() -> None:
    zarr = pytest.importorskip("zarr")
    x = da.from_zarr(zarr.array(normal(1, 1, 8, 8)), chunks=(1, 1, 4, 4))
    y = nd.pool(x, (3, 3), (1, 1))
    assert y.dask.dependencies[y.name] == set(x.dask.layers)
    assert np.array_equal(clone(y, omit=x).compute(), y.compute())


def test_suggested_chunks_fit() -> None:
    x, w = np.broadcast_to(np.float32(0), (4, 2, 300, 200, 100)), np.ones((2, 2, 5, 5, 5), np.float32)
    chunks = nd.suggest_chunks(nd.conv3d, x, w, memory="64MiB", workers=2, border_mode="half")
    assert chunks[:2] == (1, 2) and chunks[3:] == (200, 100)
    with_border = chunks[2] + 4
    assert 1.25 * 2 * (4 * 2 * (with_border + chunks[2]) * 200 * 100 + w.nbytes) <= 64 << 20
    assert 1.25 * 2 * (4 * 2 * (with_border + chunks[2] + 2) * 200 * 100 + w.nbytes) > 64 << 20
    assert nd.suggest_chunks(nd.pool, x, memory="64GiB", ws=(2, 2, 2)) == x.shape
