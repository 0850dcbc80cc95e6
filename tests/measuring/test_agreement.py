"""Two results, the same up to rounding or not: on all of them, on pieces, on small integers."""

from __future__ import annotations

import numpy as np
import pytest

from numbadnn.measuring import agreement


def noise(size: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(size).astype(dtype)


@pytest.mark.parametrize(("dtype", "within", "beyond"), [("float64", 1e-14, 1e-10), ("float32", 1e-6, 3e-4)])
def test_rounding_agrees_and_less_precision_does_not(dtype: str, within: float, beyond: float) -> None:
    a = noise(1000, dtype)
    assert agreement.disagreement((a * (1 + within),), (a,), "ieee") == ""
    why = agreement.disagreement((a, a * (1 + beyond)), (a, a), "ieee")
    assert why.startswith("output 2 differs by")
    if dtype == "float32":
        assert agreement.disagreement((a * (1 + beyond),), (a,), "tf32") == ""


def test_what_is_not_finite_must_be_so_in_both() -> None:
    a = noise(100, "float32")
    b = a.copy()
    a[3] = b[3] = np.nan
    assert agreement.disagreement((a,), (b,), "ieee") == ""
    b[4] = np.inf
    assert "not finite" in agreement.disagreement((a,), (b,), "ieee")


def test_pieces_cover_both_ends_and_do_not_overlap() -> None:
    for size in (1, agreement.SAMPLE, agreement.SAMPLE + 1, 10 * agreement.SAMPLE + 7):
        found = agreement.pieces(size)
        assert found[0].start == 0 and found[-1].stop == size
        assert sum(p.stop - p.start for p in found) == min(size, agreement.SAMPLE)
    big = np.arange(3 * agreement.SAMPLE)
    (some,) = agreement.sampled((big,))
    assert len(some) == agreement.SAMPLE and some[0] == 0 and some[-1] == big[-1]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_integers_are_the_same_but_for_the_sign_of_zero(dtype: str) -> None:
    a = np.array([0, 1, -2, np.nan], dtype)
    b = a.copy()
    b[0] = -0.0
    assert agreement.same_integers((a,), (b,)) == ""
    b[1:3] = 5
    assert agreement.same_integers((a,), (b,)) == "output 1 differs in 2 elements on small integers"
    b[3] = 1
    assert "in 3 elements" in agreement.same_integers((a, a), (b, a))
