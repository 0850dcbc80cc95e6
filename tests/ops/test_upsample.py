"""Bilinear upsampling: the reference against Theano's construction and golden values, what was never tested there, bad input."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import numbadnn
from numbadnn import reference
from numbadnn.problem import Policy
from numbadnn.problems.upsample import UpsampleProblem
from numbadnn.registry import implementations
from numbadnn.validate.execute import execute

RNG = np.random.default_rng(9)


def transposed(x, ratio):
    """Theano's way along the last axis: pad by the edge, convolve with the kernel between r - 1 zeros, cut."""
    r, n = ratio, x.shape[-1]
    padded = np.concatenate([x[..., :1], x, x[..., -1:]], axis=-1)
    full = np.zeros((*x.shape[:-1], r * (n + 1) + 2 * r - 1))
    for i in range(n + 2):
        for k, w in enumerate(reference.bilinear_kernel_1D(r, dtype="float64")):
            full[..., r * i + k] += w * padded[..., i]
    start = 2 * r - (r - 1) // 2 - 1
    return full[..., start : start + r * n]


# ---- the reference ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", (True, False))
@pytest.mark.parametrize("ratio", range(1, 10))
def test_kernels(ratio, normalize):
    line = [min(k, 2 * ratio - k) for k in range(1, 2 * ratio)]
    scale = ratio if normalize else 1
    one = numbadnn.bilinear_kernel_1D(ratio, normalize)
    assert one.dtype == np.float32 and np.allclose(one, np.array(line) / scale, rtol=1e-6)
    two = numbadnn.bilinear_kernel_2D(ratio, normalize=normalize, dtype="float64")
    assert np.allclose(two, np.outer(line, line) / scale**2)


def test_kernel_of_two_ratios():
    whole = np.outer([1, 2, 1], [1, 2, 3, 2, 1])  # rows by 2, columns by 3
    assert np.array_equal(numbadnn.bilinear_kernel_2D((2, 3), normalize=False), whole)
    assert np.allclose(numbadnn.bilinear_kernel_2D((2, 3), dtype="float64"), whole / 6, rtol=1e-15)
    with pytest.raises(ValueError, match="ratio"):
        numbadnn.bilinear_kernel_2D((2, 3, 4))
    with pytest.raises(ValueError, match="positive"):
        numbadnn.bilinear_kernel_1D(0)
    for large in (2**62, 2**63):
        with pytest.raises(ValueError, match="^ratio: expected an integer of at most"):
            numbadnn.bilinear_kernel_1D(large)
    for bad in (1.5, True, np.array([2]), "2", None):
        with pytest.raises(TypeError, match="ratio: expected an integer"):
            numbadnn.bilinear_kernel_1D(bad)
    for bad in ("int32", "bool", "U3", "complex64", ">f4", "float128", object, None, "nonsense"):
        for kernel in (numbadnn.bilinear_kernel_1D, numbadnn.bilinear_kernel_2D):
            with pytest.raises(TypeError, match="^dtype: expected one of float16, bfloat16, float32, float64, got"):
                kernel(2, dtype=bad)
    for bad in ("no", np.array([1, 2]), 2, None):
        with pytest.raises((TypeError, ValueError), match="^normalize: expected True or False"):
            numbadnn.bilinear_kernel_1D(2, bad)
    for name in ("float16", "bfloat16", np.float64, np.dtype("float32")):
        assert numbadnn.bilinear_kernel_1D(2, dtype=name).dtype == np.dtype(name)
    for two in (np.array(2), np.int8(2)):  # a scalar, as the specification has it
        assert np.array_equal(numbadnn.bilinear_kernel_1D(two, False), [1, 2, 1])
        assert np.array_equal(numbadnn.bilinear_kernel_2D((two, 3), normalize=False), whole)


@pytest.mark.parametrize("ratio", range(2, 10))
def test_reference_is_theanos_transposed_convolution(ratio):
    for shape in ((1, 1, 2, 2), (2, 3, 3, 5)):
        x = RNG.standard_normal(shape)
        rows = np.swapaxes(transposed(np.swapaxes(x, 2, 3), ratio), 2, 3)
        assert np.allclose(reference.bilinear_upsampling(x, ratio), transposed(rows, ratio), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (2, [1, 1.5, 2, 2]),
        (3, [1, 1, 4 / 3, 5 / 3, 2, 2]),
        (4, [1, 1, 1.25, 1.5, 1.75, 2, 2, 2]),
    ],
)
def test_golden_rows(ratio, expected):
    y = numbadnn.bilinear_upsampling(np.array([[[[1.0, 2.0]]]]), ratio)
    assert np.allclose(y[0, 0, 0], expected, rtol=1e-15)


def test_golden_fractions():
    """Theano's own: ((7, 4), (5, 3)) of [[1, 2], [3, 4]], whole steps of 4/7 and 3/5 from the first coordinate on."""
    y = numbadnn.frac_bilinear_upsampling(np.arange(1.0, 5).reshape(1, 1, 2, 2), ((7, 4), (5, 3)))
    rows = [0, 1 / 7, 5 / 7, 1]  # (4*o - 3)/7 held within [0, 1]
    columns = [0, 1 / 5, 4 / 5, 1]  # (3*o - 2)/5
    expected = 1 + 2 * np.array(rows)[:, None] + np.array(columns)
    assert y.shape == (1, 1, 4, 4) and np.allclose(y[0, 0], expected, rtol=1e-14)


@pytest.mark.parametrize(("p", "q"), ((3, 2), (2, 3), (5, 4), (1, 3), (24, 20), (6, 2)))
def test_a_fraction_is_the_whole_ratio_thinned(p, q):
    x = RNG.standard_normal((2, 1, 5, 7))
    d = math.gcd(p, q)
    whole = reference.bilinear_upsampling(x, p // d)[..., :: q // d, :: q // d]
    assert np.allclose(numbadnn.frac_bilinear_upsampling(x, (p, q)), whole, rtol=1e-14)
    large = numbadnn.frac_bilinear_upsampling(np.zeros((1, 1, 200, 7)), (p, q))
    assert large.shape == (1, 1, math.ceil(200 * p / q), math.ceil(7 * p / q))  # (24, 20): 240


@pytest.mark.parametrize("ratio", ((2, 2), (3, 2), ((7, 4), (1, 2)), ((4, 1), (3, 1))))
def test_gradient_is_the_adjoint(ratio):
    ratio = ratio if isinstance(ratio[0], tuple) else (ratio, ratio)
    x = RNG.standard_normal((2, 3, 4, 5))
    y = reference.bilinear_upsampling(x, frac_ratio=ratio)
    g = RNG.standard_normal(y.shape)
    dx = numbadnn.bilinear_upsampling_grad(g, x.shape, frac_ratio=ratio)
    assert np.isclose((y * g).sum(), (x * dx).sum(), rtol=1e-12)


def test_a_constant_image_stays_constant_and_its_gradient_counts():
    x = np.full((1, 2, 3, 4), 2.5, np.float32)
    assert np.allclose(numbadnn.bilinear_upsampling(x, 3), 2.5, rtol=1e-6)
    dx = numbadnn.bilinear_upsampling_grad(np.ones((1, 2, 9, 12)), x.shape, 3)
    assert np.isclose(dx.sum(), 2 * 9 * 12)


# ---- the public functions --------------------------------------------------------------------------------------------


def test_every_spelling_is_one_problem():
    x = RNG.standard_normal((1, 2, 3, 4)).astype(np.float32)
    first = numbadnn.bilinear_upsampling(x, ratio=2)
    problem = numbadnn.last_call().problem
    others = (
        numbadnn.bilinear_upsampling(x, 2, use_1D_kernel=False),
        numbadnn.bilinear_upsampling(x, frac_ratio=(4, 2), batch_size=1, num_input_channels=2),
        numbadnn.bilinear_upsampling(x, frac_ratio=((2, 1), (2, 1)), use_1D_kernel=False),
        numbadnn.frac_bilinear_upsampling(x, (2, 1)),
    )
    for y in others:
        assert np.array_equal(y, first) and numbadnn.last_call().problem == problem
    assert UpsampleProblem.parse(problem).ratio == ((2, 1), (2, 1))


def test_layout_and_dtype_follow_the_input():
    x = RNG.standard_normal((2, 3, 4, 8)).astype(ml_dtypes.bfloat16).transpose(0, 3, 1, 2)
    y = numbadnn.bilinear_upsampling(x, 2)
    assert y.dtype == x.dtype and y.shape == (2, 8, 6, 8) and y.strides[1] == y.itemsize
    dx = numbadnn.bilinear_upsampling_grad(y, x.shape, 2)
    assert dx.strides == x.strides


def test_out_may_have_any_strides():
    x = RNG.standard_normal((1, 2, 3, 4))
    room = np.full((1, 2, 12, 16), np.nan)
    out = room[:, :, ::-2, ::2]
    assert numbadnn.bilinear_upsampling(x, 2, out=out) is out
    assert np.allclose(out, reference.bilinear_upsampling(x, 2)) and np.isnan(room[..., 1::2]).all()


@pytest.mark.parametrize("shape", ((0, 3, 4, 4), (2, 0, 4, 4)))
def test_no_images_or_channels(shape):
    y = numbadnn.bilinear_upsampling(np.zeros(shape, np.float32), 2)
    assert y.shape == (*shape[:2], 8, 8)
    assert numbadnn.bilinear_upsampling_grad(y, shape, 2).shape == shape


BAD = (
    (dict(), ValueError, "either ratio or frac_ratio"),
    (dict(ratio=2, frac_ratio=(2, 1)), ValueError, "either ratio or frac_ratio"),
    (dict(ratio=0), ValueError, "positive"),
    (dict(ratio=-2), ValueError, "positive"),
    (dict(ratio=1.5), TypeError, "integer"),
    (dict(frac_ratio=1.5), ValueError, "frac_ratio"),
    (dict(frac_ratio=3), ValueError, "frac_ratio"),
    (dict(frac_ratio=(3, 2, 1)), ValueError, "frac_ratio"),
    (dict(frac_ratio=(3, 0)), ValueError, "positive"),
    (dict(frac_ratio=((3, 2), 2)), ValueError, "frac_ratio"),
    (dict(frac_ratio=((3, 2), (2,))), ValueError, "frac_ratio"),
    (dict(ratio=2, batch_size=3), ValueError, "batch_size"),
    (dict(ratio=2, num_input_channels=3), ValueError, "num_input_channels"),
)


@pytest.mark.parametrize(("arguments", "error", "text"), BAD, ids=lambda v: str(v)[:40])
def test_bad_arguments(arguments, error, text):
    with pytest.raises(error, match=text):
        numbadnn.bilinear_upsampling(np.zeros((1, 2, 3, 4), np.float32), **arguments)


def test_bad_arrays():
    with pytest.raises(ValueError, match="input: expected 4 dimensions"):
        numbadnn.bilinear_upsampling(np.zeros((2, 3, 4), np.float32), 2)
    with pytest.raises(ValueError, match="at least one pixel"):
        numbadnn.bilinear_upsampling(np.zeros((1, 2, 0, 4), np.float32), 2)
    with pytest.raises(TypeError, match="input"):
        numbadnn.bilinear_upsampling(np.zeros((1, 2, 3, 4), np.int32), 2)
    with pytest.raises(ValueError, match="out: expected shape"):
        numbadnn.bilinear_upsampling(np.zeros((1, 2, 3, 4)), 2, out=np.zeros((1, 2, 6, 7)))
    dy = np.zeros((1, 2, 6, 8))
    for shape in ((1, 2, 3), (1, 2, 3, 5), (1, 3, 3, 4), (1, 2, None, 4), 7):
        with pytest.raises(ValueError, match="input_shape"):
            numbadnn.bilinear_upsampling_grad(dy, shape, 2)
    assert numbadnn.bilinear_upsampling_grad(dy, [None, None, 3, 4], 2).shape == (1, 2, 3, 4)


def test_same_bits_on_any_number_of_threads():
    from numba import get_num_threads, set_num_threads

    x = RNG.standard_normal((3, 5, 40, 41)).astype(np.float32)
    before, found = get_num_threads(), []
    try:
        for threads in {1, before}:
            set_num_threads(threads)
            y = numbadnn.bilinear_upsampling(x, frac_ratio=(5, 2))
            found.append((y.tobytes(), numbadnn.bilinear_upsampling_grad(y, x.shape, frac_ratio=(5, 2)).tobytes()))
    finally:
        set_num_threads(before)
    assert len(set(found)) == 1


def test_a_result_that_no_memory_holds_is_refused_at_once(monkeypatch):
    import time

    x = np.ones((1, 1, 4, 4), np.float32)
    begin = time.process_time()
    for call in (numbadnn.bilinear_upsampling, lambda *args: numbadnn.explain(numbadnn.bilinear_upsampling, *args)):
        with pytest.raises(
            ValueError, match=r"out: a result of float32 \(1, 1, 40000000, 40000000\) takes 64000000000000"
        ):
            call(x, 10**7)
    with pytest.raises(ValueError, match=f"ratio: expected an integer of at most 2\\*\\*40, got {2**70}"):
        numbadnn.bilinear_upsampling(x, 2**70)
    asked = []

    def refuse(size, dtype):
        asked.append(size)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("numbadnn.call.operands.np.empty", refuse)
        with pytest.raises(
            MemoryError, match=r"out: .*\(1, 1, 400000, 400000\) takes 640000000000 bytes, which this machine"
        ):
            numbadnn.bilinear_upsampling(x, 10**5)
    assert asked == [640000000000] and time.process_time() - begin < 2


def test_a_large_ratio_is_not_refused():
    x = np.array([[[[0.0, 1.0], [2.0, 3.0]]]], np.float32)
    y = numbadnn.bilinear_upsampling(x, frac_ratio=((10**5, 1), (1, 1)))
    assert y.shape == (1, 1, 200000, 2) and y[0, 0, 0, 0] == 0 and y[0, 0, -1, 1] == 3
    assert abs(float(y[0, 0, 100000, 0]) - 1) < 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ("float32", "float16"))
@pytest.mark.parametrize("ratio", ("2", "3", "4", "3,2"))
def test_kernels_agree_to_the_bit(dtype, ratio):
    """Every kernel multiplies and adds in one order, one rounding a step, however many channels an access of it has."""
    x, found = RNG.standard_normal((2, 8, 7, 16)).astype(dtype), {}
    for channels, layout in ((8, ""), (8, ":nhwc"), (4, ":nhwc"), (2, ":nhwc")):
        part = x[:, :channels]
        problem = UpsampleProblem.parse(f"bilinear_upsampling x={dtype}:2x{channels}x7x16{layout} ratio={ratio}")
        for impl in implementations("bilinear_upsampling"):
            if impl.backend == "numba" and not impl.supports(problem, Policy(device=0)):
                (result,) = execute(impl, problem, Policy(device=0), (part,), None, 1).results
                found[impl.name, channels, layout] = np.asarray(result)
    expected = found["numba.upsample_general", 8, ""]
    assert len({name for name, *_ in found}) == 3
    for (_, channels, _), result in found.items():
        assert np.array_equal(result, expected[:, :channels])
