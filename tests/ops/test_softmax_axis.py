"""softmax over any axis: against the reference, without a copy, in whatever layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import reference
from numbadnn.arrays import view_of
from numbadnn.call.seen import merged, seen_spec, seen_views

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
