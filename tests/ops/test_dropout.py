"""Dropout: Philox against its published vectors, one mask everywhere, its distribution, its state, and what is refused."""

import pickle

import numpy as np
import pytest

import numbadnn
from numbadnn import reference
from numbadnn.problems.dropout import DropoutProblem, DropoutState

#: counter, key, words: the known answers of Random123 1.14 (kat_vectors, philox4x32 with 10 rounds)
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_known_answers(counter, key, words):
    assert tuple(int(w) for w in reference.philox4x32(np.array(counter, np.uint32), key)) == words


def test_the_cpus_philox_is_the_references():
    import numba

    from numbadnn.cpu.dropout.loops import philox_words

    @numba.njit
    def drawn(words, count, first, seed):  # what kernels call has no wrapper for Python
        philox_words(words, count, first, seed)

    words = np.zeros(32, np.uint32)
    for seed, first in ((0, 0), (4242, 2**33 + 5), (-1, 2**61 - 3)):
        drawn(words, 8, first, seed)
        np.testing.assert_array_equal(words, reference.dropout_words(32, seed, 4 * first))


def mask(shape=(64, 33), p=0.3, **options):
    return numbadnn.dropout(np.ones(shape, "float32"), p, **options)[0] != 0


def test_the_mask_follows_from_the_index_alone():
    whole = mask((40, 33))
    x = np.ones((80, 66), "float32")
    for view in (x[::2, ::2], x[:40, :33], x[:40, :33][::-1], np.ones((33, 40), "float32").T):
        np.testing.assert_array_equal(numbadnn.dropout(view, 0.3)[0] != 0, whole)
    for dtype in ("float16", "float64"):
        np.testing.assert_array_equal(numbadnn.dropout(np.ones((40, 33), dtype), 0.3)[0] != 0, whole)
    last = np.ones((2, 5, 4, 8), "float32").transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(numbadnn.dropout(last, 0.3)[0] != 0, mask((2, 8, 5, 4)))


@pytest.mark.parametrize("first", [1, 4, 7, 33])
def test_a_part_has_the_mask_of_the_whole(first):
    whole = mask((100,))
    np.testing.assert_array_equal(mask((100 - first,), offset=first), whole[first:])


def test_seeds_differ():
    assert (mask(seed=1) != mask(seed=2)).any() and (mask(seed=1) != mask(seed=1 + 2**32)).any()
    np.testing.assert_array_equal(mask(seed=2**64 - 1), mask(seed=-1))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_distribution(p):
    """Shares, neighbours and columns within five standard deviations of independent draws."""
    kept = mask((512, 512), p).astype(float)
    deviation = np.sqrt(p * (1 - p))
    assert abs(kept.mean() - (1 - p)) < 5 * deviation / 512
    for axis in (0, 1):
        means = kept.mean(axis)
        assert np.abs(means - (1 - p)).max() < 5.5 * deviation / np.sqrt(512)
    centred = kept - kept.mean()
    for step in (1, 2, 3, 4, 8, 512):
        flat = centred.ravel()
        assert abs((flat[step:] * flat[:-step]).mean()) < 5 * deviation**2 / 512


def test_p_of_0_and_1():
    x = np.array([1.0, np.nan, np.inf, -2.0])
    np.testing.assert_array_equal(numbadnn.dropout(x, 0.0)[0], x)
    np.testing.assert_array_equal(numbadnn.dropout(x, 1.0)[0], 0)


def test_what_is_dropped_is_zero_whatever_it_was():
    y, _ = numbadnn.dropout(np.full(1000, np.nan), 0.5)
    assert 400 < (y == 0).sum() < 600 and np.isnan(y[y != 0]).all()


def test_state_is_small_picklable_and_makes_the_mask_again():
    x = np.ones((300, 400), "float32")
    y, state = numbadnn.dropout(x, 0.4, 99, offset=12)
    stored = pickle.dumps(state)
    assert len(stored) < 300
    np.testing.assert_array_equal(numbadnn.dropout_grad(x, pickle.loads(stored)), y)
    np.testing.assert_array_equal(numbadnn.dropout_grad(x.astype("float64"), state) != 0, y != 0)


def test_the_state_does_not_follow_what_the_caller_does_to_his_p():
    p = np.array(0.5)
    y, state = numbadnn.dropout(np.ones(64), p)
    p[...] = 0
    assert type(state.p) is float
    np.testing.assert_array_equal(numbadnn.dropout_grad(np.ones(64), state), y)


def test_the_gradient_is_the_adjoint():
    rng = np.random.default_rng(0)
    x, g = rng.standard_normal((2, 50, 20))
    y, state = numbadnn.dropout(x, 0.3)
    assert (y * g).sum() == pytest.approx((x * numbadnn.dropout_grad(g, state)).sum())


def test_plans_are_shared_by_seeds():
    x = np.ones(16, "float32")
    numbadnn.dropout(x, 0.5)
    before = numbadnn.cache_info().misses
    for seed in range(5):
        numbadnn.dropout(x, 0.5, seed, offset=seed)
    assert numbadnn.cache_info().misses == before


def test_empty_arrays():
    y, state = numbadnn.dropout(np.zeros((0, 3)), 0.5)
    assert y.shape == (0, 3) and numbadnn.dropout_grad(y, state).shape == (0, 3)


@pytest.mark.parametrize(
    ("error", "text", "arguments"),
    [
        (ValueError, "dropout: expected a probability from 0 to 1, got 1.5", (1.5,)),
        (ValueError, "dropout: expected a probability", (-0.1,)),
        (ValueError, "dropout: expected a probability", (float("nan"),)),
        (TypeError, "dropout: expected a number", ("half",)),
        (TypeError, "seed: expected an integer", (0.5, 1.5)),
        (ValueError, "seed: expected an integer from", (0.5, 2**64)),
    ],
)
def test_bad_input(error, text, arguments):
    with pytest.raises(error, match=text):
        numbadnn.dropout(np.ones(4), *arguments)


def test_more_bad_input():
    x = np.ones(4)
    with pytest.raises(ValueError, match="offset: expected an integer from 0"):
        numbadnn.dropout(x, 0.5, offset=-1)
    with pytest.raises(TypeError, match="state: expected what dropout returned"):
        numbadnn.dropout_grad(x, (0.5, 1, 0, (4,)))
    with pytest.raises(ValueError, match=r"dy: expected shape \(4,\)"):
        numbadnn.dropout_grad(np.ones(5), numbadnn.dropout(x, 0.5)[1])
    with pytest.raises(TypeError, match="x: "):
        numbadnn.dropout(np.ones(4, int), 0.5)
    with pytest.raises(numbadnn.NotSupportedError, match="offset: cuDNN's dropout"):
        numbadnn.dropout(x, 0.5, offset=4, backend="cudnn")


def test_cudnns_own_is_never_chosen():
    with numbadnn.using(backend="cudnn", fallback="allow"):
        np.testing.assert_array_equal(numbadnn.dropout(np.ones(64), 0.5)[0] != 0, mask((64,), 0.5))
    with pytest.raises(numbadnn.NumbaDNNError):
        numbadnn.dropout(np.ones(4), 0.5, backend="cudnn")


def test_a_problem_is_one_line():
    for text in ("dropout x=float32:2x8x2x2:nhwc p=0.25", "dropout_grad dy=float16:7 p=1.0 generator=cudnn"):
        problem = DropoutProblem.parse(text)
        assert DropoutProblem.parse(str(problem)) == problem
    with pytest.raises(ValueError, match="expected"):
        DropoutProblem.parse("dropout y=float32:3")


def test_theanos_op():
    from numbadnn.theano import GpuDnnDropoutOp

    x = np.ones(32)
    y, state = GpuDnnDropoutOp(inplace=True)(x, 0.5)
    assert y is x and isinstance(state, DropoutState)
    np.testing.assert_array_equal(numbadnn.dropout_grad(np.ones(32), state), x)


# ---- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(37,), (16, 33), (8, 16, 12, 10), (4096, 33)])
@pytest.mark.parametrize("offset", [0, 3, 8])
@pytest.mark.parametrize("last", [False, True])
def test_the_gpu_has_the_cpus_mask(shape, offset, last):
    torch = pytest.importorskip("torch")
    x = torch.randn(shape)
    if last and x.ndim == 4:
        x = x.to(memory_format=torch.channels_last)
    on_cpu, _ = numbadnn.dropout(x, 0.4, 7, offset=offset)
    on_gpu, state = numbadnn.dropout(x.cuda(), 0.4, 7, offset=offset, backend="numba")
    assert torch.equal(on_cpu != 0, on_gpu.cpu() != 0)
    assert torch.equal(numbadnn.dropout_grad(x.cuda(), state), on_gpu)


@pytest.mark.gpu
def test_cudnns_own_dropout():
    torch = pytest.importorskip("torch")
    from numbadnn import cudnn

    if not cudnn.available():
        pytest.skip(f"no cudnn: {cudnn.available().reason}")
    x = torch.ones(1_000_003, device="cuda")
    y, state = numbadnn.dropout(x, 0.3, backend="cudnn")
    assert numbadnn.last_call().impl == "cudnn.dropout"
    assert torch.equal(numbadnn.dropout_grad(x, state), y) and numbadnn.last_call().impl == "cudnn.dropout"
    kept = (y != 0).double().mean().item()
    assert abs(kept - 0.7) < 5 * np.sqrt(0.21 / x.numel())
    np.testing.assert_allclose(y[y != 0].cpu(), 1 / 0.7, rtol=1e-6)
    assert not torch.equal(numbadnn.dropout(x, 0.3, 5, backend="cudnn")[0], y)


@pytest.mark.parametrize("order", "CF")
def test_numbers_past_2_to_the_63_are_counters_without_a_sign(order):
    offset, shape, p = 2**63 - 9, (20, 4, 5), 0.5
    x = np.ones(shape, "f4", order=order)
    want = reference.dropout(x, p, 7, offset)
    y, state = numbadnn.dropout(x, p, 7, offset=offset)
    assert np.array_equal(y, want) and np.array_equal(numbadnn.dropout_grad(x, state), want)
