"""Runs of elements to and from float64 on the CPU: every 16-bit pattern, ties and ranges of the rounding, any length and step."""

import ml_dtypes
import numpy as np
import pytest
from kernel_parts import from_python

pytest.importorskip("numba")

TYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def fetched(array: np.ndarray, name: str, n: int, offset: int = 0, step: int = 1) -> np.ndarray:
    from numbadnn.cpu.lang.typed import CODE, fetch

    buffer = np.full(n, -7.0)
    from_python(fetch)(buffer, n, array.ctypes.data, offset, step, CODE[name])
    return buffer


def flushed(values: np.ndarray, name: str) -> np.ndarray:
    from numbadnn.cpu.lang.typed import CODE, flush

    out = np.zeros(len(values), TYPES[name])
    from_python(flush)(np.asarray(values, np.float64), len(values), out.ctypes.data, 0, 1, CODE[name])
    return out


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_pattern_of_16_bits_is_read_exactly_and_written_back(name: str) -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    stored = patterns.view(TYPES[name])
    got = fetched(stored, name, 65536)
    with np.errstate(invalid="ignore"):  # some patterns are signalling NaNs
        np.testing.assert_array_equal(got, stored.astype(np.float64))
    np.testing.assert_array_equal(np.signbit(got), patterns >= 0x8000)
    back, number = flushed(got, name), ~np.isnan(got)
    np.testing.assert_array_equal(back.view(np.uint16)[number], patterns[number])
    assert np.isnan(back[~number].astype(np.float32)).all()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_rounding_is_to_nearest_even(name: str) -> None:
    patterns = np.arange(0x7800 if name == "float16" else 0x7F00, dtype=np.uint16)
    low, high = (p.view(TYPES[name]).astype(np.float64) for p in (patterns, (patterns + 1).astype(np.uint16)))
    middle = (low + high) / 2  # exact, and exact in float32
    even = np.where(patterns % 2 == 0, low, high)
    np.testing.assert_array_equal(flushed(middle, name).astype(np.float64), even)
    np.testing.assert_array_equal(flushed(-middle, name).astype(np.float64), -even)
    above = np.nextafter(middle.astype(np.float32), np.float32(np.inf)).astype(np.float64)
    np.testing.assert_array_equal(flushed(above, name).astype(np.float64), high)


def test_what_is_too_large_for_float16_becomes_infinite() -> None:
    got = flushed(np.array([65504, 65519.996, 65520, 1e30, -65520, np.inf]), "float16").astype(np.float64)
    np.testing.assert_array_equal(got, [65504, 65504, np.inf, np.inf, -np.inf, np.inf])


@pytest.mark.parametrize("name", list(TYPES))
@pytest.mark.parametrize(
    ("n", "offset", "step"), [(1, 3, 1), (15, 0, 1), (16, 1, 1), (37, 5, 1), (9, 2, 3), (9, 40, -4)]
)
def test_lengths_offsets_and_steps(name: str, n: int, offset: int, step: int) -> None:
    array = np.arange(64).astype(TYPES[name])
    want = offset + step * np.arange(n, dtype=np.float64)
    np.testing.assert_array_equal(fetched(array, name, n, offset, step), want)
