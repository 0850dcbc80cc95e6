"""float32 as two float16 of a common scale: nearly exactly, but for numbers that ``common_scale`` tells of."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

from numbadnn.kernels.lang.scaled_halves import (
    APART,
    NOTHING,
    common_scale,
    extremes,
    halve_pair,
    halve_pair_twin,
    widest,
)

#: exponents from the least to the largest of which nothing is lost
SPREAD = 28


def scale_of(block: np.ndarray, spread: int = SPREAD) -> tuple[int, int, int]:
    """What ``common_scale`` makes of all numbers of a block."""
    seen = NOTHING
    with np.errstate(over="ignore"):
        for word in block.view(np.uint32):
            seen = widest.py_func(word, *seen)
    return tuple(int(v) for v in common_scale.py_func(*extremes.py_func(*seen), spread))


def number(bits: int) -> float:
    return float(np.array([bits], np.uint32).view(np.float32)[0])


def in_halves(block: np.ndarray, scale: int) -> np.ndarray:
    """h1 and h2 of each number."""
    pairs = block.view(np.uint32).reshape(-1, 2)
    words = np.empty((len(pairs), 2), np.uint32)
    for w, pair in zip(words, pairs, strict=True):
        halve_pair_twin(w, 0, 1, *pair, scale)
    return words.T.copy().view(np.float16).astype(np.float64)


@pytest.mark.parametrize("exponent", [-58, -20, 0, 3, 40, 59])
@pytest.mark.parametrize("largest", [1.0, 1.5, 1.998, 1.9999999])
@pytest.mark.parametrize("lower", [0, 3])
def test_numbers_are_the_sum_of_two_halves(exponent: int, largest: float, lower: int) -> None:
    random = np.random.default_rng(exponent + 100)
    block = (random.uniform(-2, 2, 2000) * 2.0 ** random.integers(-SPREAD - lower, 0, 2000)).astype(np.float32)
    block[:3] = largest, 0, -largest
    block = block * np.float32(2.0**exponent)
    scale, inverse, limit = scale_of(block, SPREAD + lower)
    assert number(scale) * number(inverse) == 1
    upper, rest = in_halves(block, scale)
    assert np.isfinite(upper).all() and np.isfinite(rest).all()
    found, magnitude = (
        np.abs(upper + rest / APART - block * np.float64(number(scale))),
        np.abs(block.astype(np.float64)),
    )
    magnitude *= number(scale)
    assert (found <= np.maximum(2.0**-23 * magnitude, 2.0**-36)).all()
    told = (block != 0) & (np.abs(block).view(np.uint32) <= limit)
    assert (found <= 2.0 ** (lower - 23) * magnitude)[~told].all()
    assert 0 < told.sum() < 500 and (magnitude[told] < 2.0 ** (-12 - lower)).all()


def test_what_has_no_scale_is_told() -> None:
    for value in (np.inf, -np.inf, np.nan, 1e-38, 1e-45, 3e38, 2.0**-61, 2.0**62):
        block = np.array([0, value, 0, -value], np.float32)
        assert scale_of(block) == (127 << 23, 127 << 23, 0x7FFFFFFF)
    assert scale_of(np.zeros(4, np.float32))[2] == 0
    assert scale_of(np.array([1, 2.0**-26, 0, 1], np.float32))[2] == 0


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of Numba: so small a grid is slow
def test_a_gpu_halves_as_numpy_does() -> None:
    from numbadnn.kernels.lang.cuda import cuda, i32, types

    @cuda.jit
    def kernel(x, words, scale):  # type: ignore[no-untyped-def]
        i, parts = cuda.grid(1), cuda.local.array(2, types.uint32)
        if i < x.shape[0]:
            halve_pair(parts, i32(0), i32(1), x[i, 0], x[i, 1], i32(scale))
            words[i, 0], words[i, 1] = parts[0], parts[1]

    block = (np.random.default_rng(1).normal(size=4096) * 2.0 ** np.linspace(-40, 6, 4096)).astype(np.float32)
    x, scale = block.view(np.uint32).reshape(-1, 2), scale_of(block)[0]
    words, ours = cuda.to_device(np.empty_like(x)), np.empty_like(x)
    kernel[16, 128](cuda.to_device(x), words, scale)
    for w, pair in zip(ours, x, strict=True):
        halve_pair_twin(w, 0, 1, *pair, scale)
    assert np.array_equal(words.copy_to_host(), ours)
