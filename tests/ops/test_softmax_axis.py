"""softmax over any axis: against the reference, without a copy, in whatever layout."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import reference
from numbadnn.arrays import view_of
from numbadnn.call.seen import merged, seen_spec, seen_views
from numbadnn.kernels.softmax.layout import layout_of
from numbadnn.kernels.softmax.softmax import apart
from numbadnn.problem import Policy

RNG = np.random.default_rng(5)
X = RNG.standard_normal((3, 4, 5, 6)).astype("float32")
LAYOUTS: dict[str, np.ndarray] = {
    "packed": X,
    "channels last": X.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2),
    "strided": np.repeat(X, 2, 2)[:, :, ::2],
    "turned": X.T,
    "one of a size": X[:, :1],
    "repeated": np.broadcast_to(X[:1], X.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("algo", ("accurate", "log", "fast"))
def test_every_axis(layout: str, algo: Any) -> None:
    x = LAYOUTS[layout]
    for axis in range(-4, 4):
        y = numbadnn.softmax(x, algo, axis=axis)
        exact = reference.softmax(x, algo, axis=axis)
        moved = np.moveaxis(x, axis, 1)
        bound = np.moveaxis(reference.softmax_bound(moved, algo, "channel", 2.0**-24, 2.0**-24, 2.0**-126), 1, axis)
        assert y.shape == x.shape and np.all(np.abs(y - exact) <= bound)
        dy = np.asarray(RNG.standard_normal(x.shape), "float32")
        dx = numbadnn.softmax_grad(dy, y, algo, axis=axis)
        pair = np.moveaxis(dy, axis, 1), np.moveaxis(y, axis, 1)
        limit = np.moveaxis(
            reference.softmax_grad_bound(*pair, algo, "channel", 2.0**-24, 2.0**-24, 2.0**-126), 1, axis
        )
        assert np.all(np.abs(dx - reference.softmax_grad(dy, y, algo, axis=axis)) <= limit)


@pytest.mark.parametrize("level", ["batch_invariant", "gpu_to_gpu"])
@pytest.mark.parametrize("axis", (2, 3))
def test_the_batch_decides_nothing(axis: int, level: Any) -> None:
    """Of one image, all axes but the first may lie in memory as one: kernels fold them, and add in other orders."""
    for shape, channels in itertools.product(((5, 10, 12, 8), (5, 8, 1, 10), (4, 9, 30, 1)), (False, True)):
        cut = np.empty((shape[0], shape[2], shape[3] + 2, shape[1]), np.float32).transpose(0, 3, 1, 2)
        one, other = cut[..., 1:-1], np.empty(shape, np.float32)
        x, dy = (other, one) if channels else (one, other)
        x[...], dy[...] = RNG.standard_normal((2, *shape))
        with numbadnn.using(determinism=level):
            both = [numbadnn.softmax(x, axis=axis), numbadnn.softmax_grad(dy, x, axis=axis)]
            for i in range(shape[0]):
                alone = (
                    numbadnn.softmax(x[i : i + 1], axis=axis),
                    numbadnn.softmax_grad(dy[i : i + 1], x[i : i + 1], axis=axis),
                )
                assert all(np.array_equal(a[0], b[i]) for a, b in zip(alone, both, strict=True))


@pytest.mark.parametrize("axis", (2, 3))
def test_kernels_of_a_gpu_see_one_image_as_in_any_batch(axis: int) -> None:
    policy = Policy(device=0, determinism="batch_invariant")
    for x in LAYOUTS.values():
        with numbadnn.using(determinism="batch_invariant"):
            found = [numbadnn.explain(numbadnn.softmax, part, axis=axis).problem for part in (x, x[:1])]
        whole, one = (layout_of(apart(problem, policy)) for problem in found)
        assert (whole.kept[1:], whole.reduced) == (one.kept[1:], one.reduced)


def test_vectors_and_destinations() -> None:
    v = X[0, 0, 0]
    assert np.allclose(numbadnn.softmax(v, axis=0), np.exp(v) / np.exp(v).sum())
    for out in (np.empty(X.shape, "f4"), np.empty(X.shape[::-1], "f4").T, np.empty((3, 4, 5, 12), "f4")[..., ::2]):
        assert numbadnn.softmax(X, axis=-1, out=out) is out
        assert np.allclose(out, numbadnn.softmax(X.reshape(-1, 6)).reshape(X.shape), rtol=2.0**-20, atol=0)
    assert numbadnn.softmax(X[:0], axis=-1).shape == (0, 4, 5, 6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_copied(layout: str) -> None:
    array = LAYOUTS[layout]
    spec = view_of(array, "x").spec()
    for axis in range(4):
        first, *before = merged(tuple(range(axis)), (spec,)) or ((),)
        axes = (first, (axis,), *before, *merged(tuple(range(axis + 1, 4)), (spec,)))
        (seen,) = seen_views([view_of(array, "x")], (axes,))
        assert np.shares_memory(seen.address, array) and seen.spec() == seen_spec(spec, axes)
        assert seen.address.shape == seen.shape == seen_spec(spec, axes).shape
        strides = zip(seen.address.strides, seen.strides, seen.shape, strict=True)
        assert all(a == 4 * s for a, s, n in strides if n > 1)


def test_axes_that_follow_each_other_are_one() -> None:
    numbadnn.softmax(X, axis=-1)
    last = numbadnn.last_call()
    assert last is not None and last.problem.startswith("softmax x=float32:60x6 y=float32:60x6")
    numbadnn.softmax(X, axis=1)
    assert str(numbadnn.explain(numbadnn.softmax, X, axis=1).problem) == str(
        numbadnn.explain(numbadnn.softmax, X).problem
    )


@pytest.mark.parametrize(
    ("error", "message", "more"),
    (
        (ValueError, r"axis: expected an integer from -4 to 3 for shape \(3, 4, 5, 6\), got 4", {"axis": 4}),
        (TypeError, r"axis: expected an integer or None, got 'last'", {"axis": "last"}),
        (ValueError, r"axis: expected None beside mode='instance', got 1", {"axis": 1, "mode": "instance"}),
    ),
)
def test_bad_axes(error: type[Exception], message: str, more: dict[str, Any]) -> None:
    with pytest.raises(error, match=message):
        numbadnn.softmax(X, **more)
    with pytest.raises(
        ValueError, match=r"x: expected at least 2 dimensions, got 1 \(shape \(6,\)\); axis=0 takes a vector"
    ):
        numbadnn.softmax(X[0, 0, 0])
