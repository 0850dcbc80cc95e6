"""The spatial transformer: the reference by law, Theano's case and what it never tested (borders, NaN), bad input."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import numbadnn
from numbadnn import reference
from numbadnn.cases import parse
from numbadnn.problem import Policy
from numbadnn.registry import implementations
from numbadnn.validate.oracle import Trial

RNG = np.random.default_rng(13)
IDENTITY = np.array([[[1.0, 0, 0], [0, 1, 0]]])


def bilinear(image, column, row):
    """One channel at one point, from the hat functions over all pixels."""
    h, w = image.shape
    across = np.maximum(0, 1 - np.abs(np.arange(w) - column))
    down = np.maximum(0, 1 - np.abs(np.arange(h) - row))
    return down @ image @ across


# ---- the reference ---------------------------------------------------------------------------------------------------


def test_the_reference_is_the_sum_of_hats():
    img, grid = RNG.standard_normal((2, 3, 5, 4)), RNG.uniform(-1.7, 1.7, (2, 6, 7, 2))
    y = reference.spatialtf_sampler(img, grid)
    for n, c, i, j in np.ndindex(*y.shape):
        x_at, y_at = (grid[n, i, j] + 1) / 2 * (3, 4)
        assert np.isclose(y[n, c, i, j], bilinear(img[n, c], x_at, y_at), rtol=1e-12, atol=1e-13)


def test_the_reference_agrees_with_pytorch():
    torch = pytest.importorskip("torch")
    from torch.nn.functional import affine_grid, grid_sample

    img, theta = RNG.standard_normal((3, 2, 6, 9)), RNG.normal(0, 0.5, (3, 2, 3)) + IDENTITY
    grid = reference.spatialtf_grid(theta, (3, 2, 5, 7))
    assert np.allclose(grid, affine_grid(torch.tensor(theta), (3, 2, 5, 7), align_corners=True).numpy(), atol=1e-14)
    img_t, grid_t = torch.tensor(img, requires_grad=True), torch.tensor(grid, requires_grad=True)
    y = grid_sample(img_t, grid_t, align_corners=True)
    assert np.allclose(reference.spatialtf_sampler(img, grid), y.detach().numpy(), atol=1e-13)
    dy = RNG.standard_normal(tuple(y.shape))
    y.backward(torch.tensor(dy))
    dimg, dgrid = reference.spatialtf_sampler_grad(img, grid, dy)
    assert np.allclose(dimg, img_t.grad.numpy(), atol=1e-12) and np.allclose(dgrid, grid_t.grad.numpy(), atol=1e-12)


def test_the_reference_of_the_whole_transformer():
    img, theta = RNG.standard_normal((3, 2, 6, 9)), RNG.normal(0, 0.5, (3, 2, 3)) + IDENTITY
    y = reference.spatialtf(img, theta, 0.25, 1.5)
    assert y.shape == (3, 2, 9, 3)
    assert np.allclose(y, numbadnn.spatialtf(img, theta, 0.25, 1.5), rtol=1e-12, atol=1e-13)
    assert np.array_equal(reference.spatialtf(img, np.repeat(IDENTITY, 3, 0)), img)
    with pytest.raises(ValueError, match="scale_width, scale_height: expected positive numbers"):
        reference.spatialtf(img, theta, 0)


def test_gradients_by_differences():
    img, theta = RNG.standard_normal((2, 3, 6, 5)), RNG.normal(0, 0.3, (2, 2, 3)) + IDENTITY
    dims = (2, 3, 4, 7)
    dy = RNG.standard_normal(dims)

    def loss(img, theta):
        return (reference.spatialtf_sampler(img, reference.spatialtf_grid(theta, dims)) * dy).sum()

    grid = reference.spatialtf_grid(theta, dims)
    dimg, dgrid = numbadnn.spatialtf_sampler_grad(img, grid, dy)
    dtheta = numbadnn.spatialtf_grid_grad(dgrid)
    for _ in range(5):
        a, b = RNG.standard_normal(img.shape), RNG.standard_normal(theta.shape)
        h = 1e-7
        assert np.isclose((loss(img + h * a, theta) - loss(img - h * a, theta)) / (2 * h), (dimg * a).sum(), rtol=1e-5)
        assert np.isclose(
            (loss(img, theta + h * b) - loss(img, theta - h * b)) / (2 * h), (dtheta * b).sum(), rtol=1e-4
        )


# ---- Theano's case, and what it never tested -------------------------------------------------------------------------


def test_theanos_half_turn():
    """test_dnn_spatialtf: 16 x 16 images turned by 180 degrees, scales .25 and .75."""
    img = RNG.random((5, 3, 16, 16)).astype(np.float32)
    theta = np.tile(np.array([[[-1, 0, 0], [0, -1, 0]]], np.float32), (5, 1, 1))
    y = numbadnn.spatialtf(img, theta, scale_width=0.25, scale_height=0.75)
    assert y.shape == (5, 3, 12, 4)  # width comes first
    columns, rows = np.linspace(15, 0, 4), np.linspace(15, 0, 12)
    for i, j in np.ndindex(12, 4):
        assert np.isclose(y[2, 1, i, j], bilinear(img[2, 1].astype(float), columns[j], rows[i]), rtol=1e-5)


def test_identity_copies_and_sizes_round_up():
    img = RNG.standard_normal((1, 2, 9, 17))
    assert np.allclose(numbadnn.spatialtf(img, IDENTITY), img, rtol=1e-14)
    assert numbadnn.spatialtf(img, IDENTITY, scale_width=0.3, scale_height=1.5).shape == (1, 2, 14, 6)


def test_outside_the_image_is_zero():
    img = np.full((1, 1, 3, 3), 16.0)
    half = 0.5  # of a pixel: a pixel is as wide as 1 here
    points = [[-1 - half, -1 - half], [1 + half, 0], [0, -2], [-5, 5], [1e30, 0], [np.inf, 0]]
    y = numbadnn.spatialtf_sampler(img, np.array([[points]]))
    assert np.allclose(y[0, 0, 0], [4, 8, 0, 0, 0, 0])


def test_an_axis_of_one_has_coordinate_zero():
    grid = numbadnn.spatialtf_grid(IDENTITY, (1, 1, 1, 1))
    assert np.array_equal(grid, np.zeros((1, 1, 1, 2)))
    img, dy = np.full((1, 1, 1, 1), 3.0), np.ones((1, 1, 1, 2))
    grid = np.array([[[[0.7, -9.0], [5.0, 0.0]]]])
    assert np.array_equal(numbadnn.spatialtf_sampler(img, grid), [[[[3.0, 3.0]]]])
    dimg, dgrid = numbadnn.spatialtf_sampler_grad(img, grid, dy)
    assert np.array_equal(dimg, [[[[2.0]]]]) and np.array_equal(dgrid, np.zeros((1, 1, 2, 2)))


SPECIAL = (np.nan, np.inf, -np.inf, 3e38, -1e30)


def special_trial(layout):
    """Points that are NaN, infinite or huge, and an image with NaN and inf where no weight reaches."""
    from numbadnn.cases import parse

    problem = parse(
        f"spatialtf_sampler_grad img=float32:1x8x4x5{layout} grid=float32:1x3x7x2 dy=float32:1x8x3x7{layout}"
    )
    grid = RNG.uniform(-1.2, 1.2, (1, 3, 7, 2)).astype(np.float32)
    grid[0, 0, : len(SPECIAL), 0] = SPECIAL
    grid[0, 1, : len(SPECIAL), 1] = SPECIAL
    grid[0, 2, :3] = (1e38, -1e38), (-3e38, 3e38), (np.inf, -np.inf)  # too far in pixels, to opposite sides
    img, dy = (RNG.standard_normal(s).astype(np.float32) for s in ((1, 8, 4, 5), (1, 8, 3, 7)))
    return Trial(problem, (img, grid, dy))


@pytest.mark.parametrize("layout", ("", ":nhwc"))
def test_points_that_are_not_finite(layout):
    trial = special_trial(layout)
    results = numbadnn.spatialtf_sampler_grad(*trial.inputs)
    assert np.isnan(trial.values[1]).any() and not np.isnan(trial.values[0]).any()
    assert not trial.values[1][0, 2, :3].any()
    assert trial.compare(results, "ieee").ok
    y = numbadnn.spatialtf_sampler(*trial.inputs[:2])
    assert np.array_equal(np.isnan(y), np.isnan(reference.spatialtf_sampler(*trial.inputs[:2])))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ("", ":nhwc"))
def test_points_that_are_not_finite_on_a_gpu(layout):
    judged_on_a_gpu(special_trial(layout))


@pytest.mark.gpu
def test_static_shared_memory_counts_on_a_gpu():
    """47,232 bytes that are dynamic and 2,564 that are static pass 48 KB together: the launch was refused."""
    problem = parse("spatialtf_sampler_grad img=float32:1x24x2x24 grid=float32:1x22x15x2 dy=float32:1x24x22x15")
    judged_on_a_gpu(Trial.of(problem))


def judged_on_a_gpu(trial):
    from numbadnn.validate.check import Row, Subject, judge

    ran = 0
    for impl in implementations("spatialtf_sampler_grad"):
        if impl.backend == "numba" and not impl.supports(trial.problem, Policy(device=0)):
            row = judge(
                Row("", impl.name, "", "ok"), impl, Subject("", trial.problem, trial), Policy(device=0), timed=False
            )
            assert row.status == "ok", row.reason
            ran += 1
    assert ran > 0


@pytest.mark.slow(60)
def test_shared_memory_under_the_simulator():
    from simulated import checks_passed

    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    assert checks_passed("spatial") >= 6


def test_what_has_no_weight_is_not_looked_at():
    img = np.array([[[[1.0, np.nan], [2.0, np.inf]]]])
    y = numbadnn.spatialtf_sampler(img, np.array([[[[-1.0, 0.0], [-2.0, -1.0], [-3.0, 9.0]]]]))
    assert np.array_equal(y[0, 0, 0], [1.5, 0.5, 0.0])


def test_what_has_no_weight_gets_no_gradient():
    """A point on a pixel alone gives that pixel its gradient; its neighbours get 0, be it NaN or infinite."""
    img, grid = np.ones((1, 2, 3, 3), np.float32), np.zeros((1, 1, 1, 2), np.float32)
    dy = np.array([np.nan, np.inf], np.float32).reshape(1, 2, 1, 1)
    expected = np.zeros_like(img)
    expected[0, :, 1, 1] = dy[0, :, 0, 0]
    assert np.array_equal(reference.spatialtf_sampler_grad(img, grid, dy)[0], expected, equal_nan=True)
    assert np.array_equal(numbadnn.spatialtf_sampler_grad(img, grid, dy)[0], expected, equal_nan=True)


def test_a_grid_of_more_precision_keeps_positions():
    img = RNG.standard_normal((1, 4, 3, 2000)).astype(np.float16)
    theta = np.array([[[0.31, 0, 0.17], [0, 1, 0]]], np.float32)
    y = numbadnn.spatialtf(img, theta)
    assert y.dtype == np.float16
    exact = reference.spatialtf_sampler(img, reference.spatialtf_grid(theta, (1, 4, 3, 2000)))
    assert np.abs(y - exact).max() < 4e-3


def test_every_result_of_one_batch_is_that_of_its_image():
    img, grid, dy = (RNG.standard_normal(s).astype("f4") for s in ((4, 3, 6, 7), (4, 5, 5, 2), (4, 3, 5, 5)))
    grid = np.clip(grid, -1.1, 1.1)
    dimg, dgrid = numbadnn.spatialtf_sampler_grad(img, grid, dy)
    one = numbadnn.spatialtf_sampler_grad(img[2:3], grid[2:3], dy[2:3])
    assert np.array_equal(dimg[2:3], one[0]) and np.array_equal(dgrid[2:3], one[1])


def test_nothing_is_made_of_fresh_memory(monkeypatch):
    """The CPU's tables come uninitialised: NaN in them must not show."""
    from numbadnn.cpu.spatial import spatial

    class Poisoned:
        def __getattr__(self, name):
            return getattr(np, name)

        def empty(self, shape, dtype):
            return np.full(shape, np.nan, dtype) if np.dtype(dtype).kind == "f" else np.ones(shape, dtype)

    monkeypatch.setattr(spatial, "np", Poisoned())
    for layout in ("", ":nhwc"):
        trial = special_trial(layout)
        assert trial.compare(numbadnn.spatialtf_sampler_grad(*trial.inputs), "ieee").ok


def test_empty_batch():
    img, grid = np.zeros((0, 3, 4, 5), np.float32), np.zeros((0, 2, 2, 2), np.float32)
    assert numbadnn.spatialtf(img, np.zeros((0, 2, 3), np.float32)).shape == (0, 3, 4, 5)
    dimg, dgrid = numbadnn.spatialtf_sampler_grad(img, grid, np.zeros((0, 3, 2, 2), np.float32))
    assert dimg.shape == img.shape and dgrid.shape == grid.shape
    assert numbadnn.spatialtf_grid_grad(dgrid).shape == (0, 2, 3)


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ((3, 1, 3), (3, 2, 1), (1, 2, 3), (3, 2, 3, 1)))
def test_theta_of_another_shape(shape):
    with pytest.raises(ValueError, match="theta: expected shape"):
        numbadnn.spatialtf_grid(np.zeros(shape), (3, 1, 2, 2))
    with pytest.raises(ValueError, match="theta: expected shape"):
        numbadnn.spatialtf(np.zeros((3, 1, 4, 4)), np.zeros(shape))


@pytest.mark.parametrize(
    ("img", "grid", "text"),
    [
        ((2, 3, 0, 4), (2, 2, 2, 2), "img: expected at least one"),
        ((2, 0, 4, 4), (2, 2, 2, 2), "img: expected at least one"),
        ((2, 3, 4, 4), (2, 0, 2, 2), "grid: expected at least one"),
        ((2, 3, 4, 4), (1, 2, 2, 2), "grid: expected 2 images"),
        ((2, 3, 4, 4), (2, 2, 2, 3), "grid: expected a last axis of 2"),
        ((2, 3, 4), (2, 2, 2, 2), "img: expected 4 dimensions"),
        ((2, 3, 4, 4), (2, 2, 2), "grid: expected 4 dimensions"),
    ],
)
def test_bad_samplers(img, grid, text):
    with pytest.raises(ValueError, match=text):
        numbadnn.spatialtf_sampler(np.zeros(img), np.zeros(grid))


def test_a_gradient_of_another_dtype_than_the_images_is_refused():
    """It was read as if it had the image's: numbers out of nothing, and past its end."""
    img, grid, dy = (
        RNG.standard_normal((1, 2, 5, 4)),
        RNG.uniform(-1, 1, (1, 3, 3, 2)),
        RNG.standard_normal((1, 2, 3, 3)),
    )
    for one in ("float16", ml_dtypes.bfloat16, "float32", "float64"):
        for other in ("float16", ml_dtypes.bfloat16, "float32", "float64"):
            a, b = img.astype(one), dy.astype(other)
            if a.dtype == b.dtype:
                continue
            with pytest.raises(TypeError, match=f"^dy: expected img's dtype {a.dtype}, got {b.dtype}"):
                numbadnn.spatialtf_sampler_grad(a, grid, b)
    dimg, dgrid = numbadnn.spatialtf_sampler_grad(img, grid, dy)
    assert np.isfinite(dimg).all() and np.abs(dimg).sum() > 0 and dgrid.shape == grid.shape
    with pytest.raises(TypeError, match="^dy: expected img's dtype float32, got float64"):
        parse("spatialtf_sampler_grad img=float32:1x2x5x4 grid=float32:1x3x3x2 dy=float64:1x2x3x3")


def test_the_maps_are_not_written_over():
    memory = np.zeros(22, "f4")
    theta = memory[:6].reshape(1, 2, 3)
    theta[0, 0, 0] = theta[0, 1, 1] = 1
    kept, img = theta.copy(), RNG.standard_normal((1, 1, 4, 4)).astype("f4")
    with pytest.raises(ValueError, match="^out: expected memory of its own, got an array that overlaps an input"):
        numbadnn.spatialtf(img, theta, out=memory[2:18].reshape(1, 1, 4, 4))
    assert np.array_equal(theta, kept)
    out = memory[6:].reshape(1, 1, 4, 4)
    assert numbadnn.spatialtf(img, theta, out=out) is out and np.allclose(out, img, atol=1e-6)


def test_other_bad_input():
    img, grid = np.zeros((2, 3, 4, 4)), np.zeros((2, 5, 6, 2))
    with pytest.raises(ValueError, match="dy: expected shape"):
        numbadnn.spatialtf_sampler_grad(img, grid, np.zeros((2, 3, 6, 5)))
    with pytest.raises(ValueError, match="out: expected a tuple of 2"):
        numbadnn.spatialtf_sampler_grad(img, grid, np.zeros((2, 3, 5, 6)), out=np.zeros((2, 3, 4, 4)))
    for dims in ((2, 3, 4), (2, 3, 0, 4), 5, (2, 3, 4.5, 4)):
        with pytest.raises(ValueError, match="out_dims"):
            numbadnn.spatialtf_grid(np.zeros((2, 2, 3)), dims)
    for scale, error in ((0, ValueError), (-1, ValueError), (np.inf, ValueError), ("x", TypeError)):
        with pytest.raises(error, match="scale_width"):
            numbadnn.spatialtf(img, np.zeros((2, 2, 3)), scale_width=scale)
    with pytest.raises(TypeError, match="img"):
        numbadnn.spatialtf_sampler(img.astype(int), grid)
    with pytest.raises(ValueError, match="dgrid"):
        numbadnn.spatialtf_grid_grad(np.zeros((2, 5, 6, 3)))


def test_records_of_a_slice_are_counted_in_32_bits():
    """Of images whose points together are 2**31 and more some are taken at a time, however much memory there may be."""
    from numbadnn.kernels.spatial.spatial import images_a_slice
    from numbadnn.problems.spatial import SpatialProblem

    def problem(n, h, w):
        shapes = f"img=float16:{n}x1x8x8 grid=float32:{n}x{h}x{w}x2 dy=float16:{n}x1x{h}x{w}"
        return SpatialProblem.parse(f"spatialtf_sampler_grad {shapes}")

    plenty = Policy(workspace_limit=2**60)
    assert images_a_slice(problem(300, 2896, 2896), plenty, "planes") * 2896**2 < 2**31
    assert images_a_slice(problem(200, 2896, 2896), plenty, "planes") == 200
    (planes,) = (i for i in implementations("spatialtf_sampler_grad") if i.name == "numba.spatial_planes")
    assert "2**31 points" in planes.supports(problem(1, 46341, 46341), plenty)


def test_theano_names():
    from numbadnn.theano.dnn_ops import spatial as theano

    img, theta = RNG.standard_normal((2, 3, 5, 5)), np.tile(IDENTITY, (2, 1, 1))
    with numbadnn.using(fallback="allow"):
        grid = theano.GpuDnnTransformerGrid()(theta, img.shape)
        y = theano.GpuDnnTransformerSampler()(img, grid)
        dimg, dgrid = theano.GpuDnnTransformerGradI()(img, grid, np.ones_like(img))
        assert np.allclose(y, img) and np.allclose(theano.dnn_spatialtf(img, theta), img)
        assert dimg.shape == img.shape and theano.GpuDnnTransformerGradT()(dgrid).shape == (2, 2, 3)
        with pytest.raises(TypeError, match="img"):
            theano.GpuDnnTransformerSampler()(img[0], grid)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_identity_of_16_bits_copies(dtype):
    """Specification 1.9; the grid in between has float32, as one of 16 bits is off by pixels."""
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    img = np.random.default_rng(0).random((2, 3, 129, 512)).astype(kind)
    y = numbadnn.spatialtf(img, np.tile(IDENTITY, (2, 1, 1)).reshape(2, 2, 3).astype(kind))
    wide = numbadnn.spatialtf(img, np.tile(IDENTITY, (2, 1, 1)).reshape(2, 2, 3).astype("f4"))
    assert y.dtype == kind and np.array_equal(y, wide)
    assert np.abs(y.astype("f8") - img.astype("f8")).max() <= np.finfo("f2").eps / 8 or np.array_equal(y, img)
