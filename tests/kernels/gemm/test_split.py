"""float32 as three bfloat16: exactly, but for what ``split_pair`` says it cannot do; on a GPU the same bits as in NumPy."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

from numbadnn.kernels.lang.split import LEFT, least_terms, split_pair, split_pair_twin

TINY = 2.0**-110


def numbers() -> np.ndarray:
    """Pairs of float32 of all magnitudes, and those that are special."""
    bits = np.random.default_rng(5).integers(0, 2**32, 20000, dtype=np.uint32)
    special = [0, -0.0, 1, TINY, np.nextafter(np.float32(TINY), 0), 2.0**-149, 3.4028235e38, np.inf, -np.inf, np.nan]
    return np.append(bits.view(np.float32), np.repeat(np.array(special, np.float32), 2)).reshape(-1, 2)


def in_parts(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The three words of each pair, and what is left."""
    words = np.empty((len(x), 3), np.uint32)
    return words, np.array([split_pair_twin(w, 0, 1, *pair) for w, pair in zip(words, x, strict=True)])


def test_a_float32_is_the_sum_of_its_three_parts() -> None:
    x = numbers()
    words, left = in_parts(x)
    with np.errstate(invalid="ignore"):
        halves = np.stack([words << np.uint32(16), words & np.uint32(0xFFFF0000)]).view(np.float32).astype(np.float64)
        exact = (x == halves.sum(-1).T).all(-1)
    assert exact[left & LEFT == 0].all() and exact.sum() > 7000


def test_what_is_left_tells_of_infinities_nan_and_the_tiny_alone() -> None:
    x = numbers()
    _, left = in_parts(x)
    plain = (np.isfinite(x) & ((np.abs(x) >= TINY) | (x == 0))).all(-1)
    assert (left[plain] & LEFT == 0).all()
    finite = np.isfinite(x).all(-1)
    assert (left[~finite] & LEFT != 0).all() and (~finite).sum() > 50


def test_the_sum_of_a_run_is_within_the_bound_of_ieee() -> None:
    for run in (1, 2, 4):
        k = least_terms(run)
        assert 34 * run + 8 + k / (16 * run) + k / 12 <= k


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*Grid size")
def test_a_gpu_cuts_as_numpy_does() -> None:
    from numbadnn.kernels.lang.cuda import cuda, i32, types

    @cuda.jit
    def kernel(x, words, left):  # type: ignore[no-untyped-def]
        i, parts = cuda.grid(1), cuda.local.array(3, types.uint32)
        if i < left.size:
            left[i] = split_pair(parts, i32(0), i32(1), x[i, 0], x[i, 1])
            for p in range(3):
                words[i, p] = parts[p]

    x = numbers()
    words, left = in_parts(x)
    got_words, got_left = cuda.to_device(np.zeros_like(words)), cuda.to_device(np.zeros_like(left))
    kernel[-(-len(x) // 128), 128](cuda.to_device(x), got_words, got_left)
    numbers_of = np.isfinite(x).all(-1)
    np.testing.assert_array_equal(got_words.copy_to_host()[numbers_of], words[numbers_of])
    np.testing.assert_array_equal(got_left.copy_to_host() & LEFT, left & LEFT)
