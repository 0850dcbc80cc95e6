"""Numbers at the edges of own kernels: sums of very many terms, scales whose squares overflow, numbers that are not finite.

Expected values are closed forms or float64 from the definition. What a GPU takes seconds for runs there; the simulator has the
same kinds of numbers in problems of its size.
"""

import itertools
from typing import Any

import numpy as np
import pytest
from simulated import checks_passed

import numbadnn

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
from numbadnn import cases, reference
from numbadnn.kernels.conv.implicit import weights
from numbadnn.kernels.conv.tiles import model
from numbadnn.kernels.conv.tiles.product import Product

TENTH = float(np.float32(0.1))


@pytest.mark.slow(15)
@pytest.mark.parametrize(
    ("part", "checks"), [("long_sums", 12), ("a_grid_beside_the_image", 2), ("scales", 90), ("not_finite", 240)]
)
def test_numbers_under_the_simulator(part: str, checks: int) -> None:
    assert checks_passed("numbers", part) >= checks


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("n", "longest"), [(32, 1 << 14), (256, 1 << 15), (1024, 1 << 15)])
def test_no_block_adds_very_many_terms_of_a_gradient_of_filters(dtype: str, n: int, longest: int) -> None:
    """One after the other 800,000 are off by several percent; the partial sums of more blocks are few numbers beside that."""
    problem = cases.parse(f"conv2d_grad_wrt_weights x={dtype}:{n}x512x28x28 w={dtype}:512x512x3x3 pad=1,1,1,1")
    product = Product(problem)
    if dtype == "float32":
        _, _, splits = model.estimated(product, False)[0]
        assert product.terms / splits <= longest
    else:
        assert all(product.terms / config.splits <= 4 * longest for config in weights.space(problem))


def on_gpu(array: np.ndarray, last: bool = False) -> Any:
    torch = pytest.importorskip("torch")
    made = torch.from_numpy(array).cuda()
    return made.contiguous(memory_format=torch.channels_last) if last else made


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "last"), [(512, False), (512, True), (2000, False)])
def test_an_average_of_very_many_equal_numbers_is_that_number(n: int, last: bool) -> None:
    x = on_gpu(np.full((1, 4, n, n), 0.1, "f4"), last)
    got = numbadnn.pool(x, (n, n), (1, 1), "average_inc_pad", backend="numba").cpu().numpy()
    np.testing.assert_allclose(got, TENTH, 1e-6)


@pytest.mark.gpu
def test_an_element_that_very_many_windows_see_gets_the_sum_of_their_gradients() -> None:
    x, dy = on_gpu(np.zeros((1, 1, 1199, 1199), "f4")), on_gpu(np.full((1, 1, 600, 600), 0.1, "f4"))
    got = numbadnn.pool_grad(x, dy, dy, (600, 600), (1, 1), "sum", backend="numba")
    np.testing.assert_allclose(float(got[0, 0, 599, 599]), 360_000 * TENTH, 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize(("channels", "last"), [(4, False), (4, True), (16, False)])
def test_very_many_points_on_one_pixel_give_it_their_sum(channels: int, last: bool) -> None:
    n = 300
    img, dy = on_gpu(np.ones((1, channels, 2, 16), "f4"), last), on_gpu(np.full((1, channels, n, n), 0.1, "f4"), last)
    grid = on_gpu(np.full((1, n, n, 2), -1, "f4"))
    got = numbadnn.spatialtf_sampler_grad(img, grid, dy, backend="numba")[0].cpu().numpy()
    np.testing.assert_allclose(got[0, :, 0, 0], n * n * TENTH, 1e-6)


@pytest.mark.gpu
def test_a_gradient_of_filters_sums_over_65537_images() -> None:
    """Each term as often as there are images: 65,537 of them are no limit, and their sum is off by no more than a few."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((1, 4, 32, 32)).astype("f4")
    x = on_gpu(np.ascontiguousarray(np.broadcast_to(images, (65537, 4, 32, 32))))
    dy = on_gpu(np.ones((65537, 1, 6, 6), "f4"))
    shape = 1, 4, 16, 16
    got = numbadnn.conv2d_grad_wrt_weights(x, dy, shape, subsample=(3, 3), filter_flip=False, backend="numba")
    windows = np.lib.stride_tricks.sliding_window_view(images[0].astype("f8"), (16, 16), (1, 2))[:, ::3, ::3]
    one, size = windows.sum((1, 2)), np.abs(windows).sum((1, 2))
    error = np.abs(got.cpu().numpy()[0] - 65537 * one)
    assert (error <= 1e-5 * 65537 * size).all(), (error / (65537 * size)).max()


@pytest.mark.gpu
@pytest.mark.parametrize(("scale", "epsilon"), [(1e20, 1e-5), (1e30, 1e-5), (1e-25, 0.0)])
@pytest.mark.parametrize(
    ("shape", "last"), [((8, 4, 5, 5), False), ((8, 4, 5, 5), True), ((16, 33, 1, 1), False), ((64, 3, 64, 64), False)]
)
def test_batch_normalization_of_numbers_whose_squares_are_out_of_range(
    scale: float, epsilon: float, shape: tuple[int, ...], last: bool
) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) * scale).astype("f4")
    dy = rng.standard_normal(shape).astype("f4")
    d = x.astype("f8") / scale
    d -= d.mean((0, 2, 3), keepdims=True)
    inverse = 1 / np.sqrt((d * d).mean((0, 2, 3), keepdims=True))
    one, zero = (on_gpu(np.full((1, shape[1], 1, 1), n, "f4")) for n in (1, 0))
    given = on_gpu(x, last), one, zero, "spatial", epsilon
    y, mean, invstd = numbadnn.batch_normalization_train(*given, backend="numba")
    np.testing.assert_allclose(y.cpu().numpy(), d * inverse, 0, 1e-5)
    got = numbadnn.batch_normalization_train_grad(
        given[0], on_gpu(dy, last), one, mean, invstd, "spatial", epsilon, backend="numba"
    )
    c = dy * inverse - d * (dy * d).mean((0, 2, 3), keepdims=True) * inverse**3
    np.testing.assert_allclose(got[0].cpu().numpy() * scale, c - c.mean((0, 2, 3), keepdims=True), 0, 2e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("groups", [1, 4])
def test_padding_times_a_filter_that_is_not_finite_is_not_a_number(last: bool, groups: int) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 4, 6, 5)).astype("f4"), rng.standard_normal((8, 4 // groups, 3, 3)).astype("f4")
    w[0, 0, 0, 1] = np.inf
    padded = np.pad(x.astype("f8"), ((0, 0), (0, 0), (1, 1), (1, 1)))
    right = np.zeros((2, 8, 6, 5))
    with np.errstate(invalid="ignore"):
        for k, r, s in itertools.product(range(8), range(3), range(3)):
            first = k // (8 // groups) * (4 // groups)
            seen = padded[:, first : first + 4 // groups, r : r + 6, s : s + 5]
            right[:, k] += (seen * w[k, :, r, s].reshape(1, -1, 1, 1)).sum(1)
    got = numbadnn.conv2d(
        on_gpu(x, last), on_gpu(w, last), border_mode=1, filter_flip=False, num_groups=groups, backend="numba"
    )
    np.testing.assert_allclose(got.cpu().numpy(), right, 1e-5, 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("c", "f", "groups"), [(4, 4, 1), (8, 8, 8), (16, 32, 1), (16, 32, 4), (3, 16, 1)])
def test_a_gradient_has_no_term_where_no_output_lies(c: int, f: int, groups: int, last: bool, dtype: str) -> None:
    rng = np.random.default_rng(0)
    dy, w = rng.standard_normal((2, f, 6, 5)).astype(dtype), rng.standard_normal((f, c // groups, 3, 3)).astype(dtype)
    w[0, 0, 0, 1] = np.inf
    options = {"border_mode": 1, "filter_flip": False, "num_groups": groups}
    with np.errstate(invalid="ignore"):
        right = reference.conv2d_grad_wrt_inputs(dy, w, (2, c, 6, 5), **options)
    assert np.isfinite(right[:, 0, 5]).all() and np.isinf(right[:, 0, :5]).all()
    dy, w = on_gpu(dy, last), on_gpu(w, last)
    got = numbadnn.conv2d_grad_wrt_inputs(dy, w, (2, c, 6, 5), backend="numba", **options).cpu().numpy()
    np.testing.assert_allclose(got, right, 0.02, 0.02)
