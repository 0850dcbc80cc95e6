"""Results lie as one image does: of a batch that is cut or turned round each image has the bits that it has alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn.problem import Spec

RNG = np.random.default_rng(5)
C, K = 7, 5
W = RNG.standard_normal((K, C, 3, 3)).astype(np.float32)
V = RNG.standard_normal((C, K, 3, 3)).astype(np.float32)
ONE = np.abs(RNG.standard_normal((1, C, 1, 1))).astype(np.float32)
#: calls of a batch, and of what makes an array of its kind of NumPy's
CALLS: dict[str, Any] = {
    "conv2d": lambda x, of: numbadnn.conv2d(x, of(W), border_mode=1),
    "depthwise": lambda x, of: numbadnn.conv2d(x, of(np.repeat(W[:1, :1], C, 0)), num_groups=C),
    "grad_inputs": lambda x, of: numbadnn.conv2d_grad_wrt_inputs(x, of(V), (len(x), K, x.shape[2] + 2, x.shape[3] + 2)),
    "pool": lambda x, of: numbadnn.pool(x, (2, 2), mode="average_inc_pad"),
    "maximum": lambda x, of: numbadnn.pool(x, (3, 2)),
    "upsampling": lambda x, of: numbadnn.bilinear_upsampling(x, 2),
    "batch norm": lambda x, of: numbadnn.batch_normalization_test(x, of(ONE), of(ONE), of(ONE), of(ONE), "spatial"),
    "softmax": lambda x, of: numbadnn.softmax(x, mode="channel"),
    "softmax of images": lambda x, of: numbadnn.softmax(x, mode="instance"),
}
CUTS: dict[str, Any] = {"every second": lambda x: x[::2], "turned": lambda x: x[::-1], "rows": lambda x: x[:, :, 1:]}


def of_batch_and_alone(name: str, of: Any) -> Iterator[tuple[str, Any, Any]]:
    """The result of one image in its batch, and alone."""
    last = of(RNG.standard_normal((6, 9, 10, C)).astype(np.float32)).transpose(0, 3, 1, 2)
    with numbadnn.using(determinism="batch_invariant"):
        for how, cut in CUTS.items():
            x = cut(last)
            yield how, CALLS[name](x, of)[1:2], CALLS[name](x[1:2], of)


@pytest.mark.parametrize("name", CALLS)
def test_an_image_of_a_cut_batch_has_its_own_bits(name: str) -> None:
    for how, among, alone in of_batch_and_alone(name, np.asarray):
        np.testing.assert_array_equal(among, alone, err_msg=how)
        assert all(a.transpose(0, 2, 3, 1).flags.c_contiguous for a in (among, alone)), how


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_an_image_of_a_cut_batch_has_its_own_bits_on_a_gpu(name: str) -> None:
    cupy = pytest.importorskip("cupy")
    for how, among, alone in of_batch_and_alone(name, cupy.asarray):
        np.testing.assert_array_equal(cupy.asnumpy(among), cupy.asnumpy(alone), err_msg=how)


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("float32:4x3x8x8:384,1,24,3", "nhwc"),
        ("float32:4x3x8x8:-192,1,24,3", "nhwc"),
        ("float32:4x3x1x8:48,1,8,3", "nhwc"),  # as a cut batch of one row is normalised
        ("float32:4x3x8x8:384,64,8,1", ""),
        ("float32:4x3x8x8:240,1,30,3", ""),  # columns are left out
        ("float32:4x1x8x8:128,1,8,1", ""),
        ("float32:4x3x8:48,1,3", "nhwc"),
        ("float32:4x3:6,1", ""),
        ("float32:4:2", ""),
    ],
)
def test_one_image_decides_how_results_are_packed(text: str, layout: str) -> None:
    assert Spec.parse(text).layout == layout
    assert not Spec("float32", (), ()).layout
