"""Lines of the CPU backend: their sums, dot products and maxima, and the exponential of their elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_parts import from_python
from numba import njit

from numbadnn.cpu.lang import lines as _lines
from numbadnn.cpu.lang.exp import exp
from numbadnn.cpu.lang.lines import LANES, RUN, view

line_sum, line_dot, line_moments, line_joint, line_largest = map(
    from_python, (_lines.line_sum, _lines.line_dot, _lines.line_moments, _lines.line_joint, _lines.line_largest)
)

TYPES = (np.float32, np.float64)
LENGTHS = (1, 7, LANES - 1, LANES, LANES + 1, 3 * LANES, 1000, RUN + LANES + 1)


def padded(values: Any, dtype: Any) -> np.ndarray:
    """The values, and behind them what no result may hold."""
    return np.concatenate([np.asarray(values, dtype), np.full(LANES, np.nan, dtype)])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", LENGTHS)
def test_reductions_take_all_elements_and_nothing_behind_them(n: int, dtype: Any) -> None:
    rng = np.random.default_rng(n)
    x, y = rng.integers(-9, 10, n), rng.integers(-9, 10, n)
    assert line_sum(padded(x, dtype), n) == x.sum()
    assert line_dot(padded(x, dtype), padded(y, dtype), n) == x @ y
    d = x - 3
    assert line_moments(padded(x, dtype), dtype(3), n) == (d.sum(), d @ d)
    assert line_joint(padded(x, dtype), padded(y, dtype), dtype(3), n) == (y.sum(), y @ d, d.sum())
    for place in {0, n // 2, n - 1}:
        low = -100.0 - rng.random(n)
        low[place] = -50
        assert line_largest(padded(low, dtype), n) == -50


def test_a_long_sum_of_float32_stays_accurate() -> None:
    x = np.random.default_rng(0).random(1_000_000, np.float32)
    exact = x.astype(np.float64).sum()
    assert abs(line_sum(padded(x, np.float32), len(x)) - exact) < 1e-7 * exact  # one after the other: some 1e-5


@njit
def powers(t: Any) -> None:
    for i in range(len(t)):
        t[i] = exp(t[i])


@pytest.mark.parametrize(("dtype", "least"), [(np.float32, -87.0), (np.float64, -708.0)])
def test_exp_is_within_two_units_in_the_last_place(dtype: Any, least: float) -> None:
    x = np.linspace(least, 0, 100_001).astype(dtype)
    got, exact = x.copy(), np.exp(x.astype(np.longdouble))
    powers(got)
    assert np.max(np.abs(got - exact) / np.spacing(exact.astype(dtype))) < 2


@pytest.mark.parametrize("dtype", TYPES)
def test_exp_of_special_values(dtype: Any) -> None:
    x = np.array([0, -np.inf, np.nan, -1e30], dtype)
    powers(x)
    np.testing.assert_array_equal(x, np.array([1, 0, np.nan, 0], dtype))
    tiny = float(np.finfo(dtype).smallest_subnormal)
    deep = np.array([np.log(tiny) + 5], dtype)  # subnormal results are kept
    exact = float(np.exp(deep.astype(np.longdouble))[0] / tiny)
    powers(deep)
    assert float(deep[0]) / tiny == pytest.approx(exact, abs=1)


def test_a_view_is_of_the_memory_named() -> None:
    @njit
    def put(address: int, like: Any) -> None:
        view(address, 2, 3, like)[1] = 5.0

    memory = np.zeros(8)
    put(memory.ctypes.data, memory)
    np.testing.assert_array_equal(memory, [0, 0, 0, 5, 0, 0, 0, 0])
