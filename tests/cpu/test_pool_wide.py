"""Pooling on the CPU by windows as wide as a row, and by strides far apart: no memory that grows with either, right results."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import reference

pytest.importorskip("numba")
RNG = np.random.default_rng(0)
MODES = ("max", "average_inc_pad", "average_exc_pad")
#: (image, window, stride, pad): whole images, and a row of few wide windows
WIDE = [((7, 9), (7, 9), (7, 9), (0, 0)), ((5, 8), (3, 10), (2, 10), (1, 1)), ((2, 8), (2, 8), (1, 1), (0, 0))]


def kernel() -> str:
    last = numbadnn.last_call()
    assert last is not None
    return str(last.facts["kernel"])


def scratch() -> int:
    last = numbadnn.last_call()
    assert last is not None
    return last.scratch_bytes


def images(*shape: int) -> list[np.ndarray]:
    """The same numbers with neighbours in several axes, and cut out of larger arrays."""
    n, c, h, w = shape
    plain = RNG.standard_normal(shape)
    turned = np.ascontiguousarray(plain.transpose(3, 2, 0, 1)).transpose(2, 3, 1, 0)
    cut = np.full((n + 1, c + 2, h, 2 * w), np.nan)[:n, 1 : c + 1, :, ::2]
    cut[...] = plain
    return [plain, turned, cut]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("image, window, stride, pad", WIDE)
def test_channels_one_by_one(image: Any, window: Any, stride: Any, pad: Any, mode: str) -> None:
    more: dict[str, Any] = {"stride": stride, "mode": mode, "pad": (0, 0) if mode == "average_exc_pad" else pad}
    if mode == "average_exc_pad" and pad != (0, 0):
        window = (3, 8)
    for n, c in ((3, 2), (2, 3)):
        for x in images(n, c, *image):
            y = numbadnn.pool(x, window, **more)
            assert kernel() == "cells"
            right = reference.pool(x, window, **more)
            np.testing.assert_allclose(y, right, 1e-13, 1e-14)
            dy = RNG.standard_normal(y.shape)
            dx = numbadnn.pool_grad(x, y, dy, window, **more)
            assert kernel().startswith("cells")
            np.testing.assert_allclose(dx, reference.pool_grad(x, y, dy, window, **more), 1e-13, 1e-14)


def test_a_long_line_needs_no_scratch() -> None:
    x = np.ones((1, 1, 1 << 20), np.float32)
    with numbadnn.using(workspace_limit="1MiB"):
        for window, outputs in ((x.size, 1), (x.size // 4, 4)):
            y = numbadnn.pool(x, window, stride=window, mode="average_inc_pad")
            assert scratch() <= 1 << 20 and y.shape == (1, 1, outputs) and (y == 1).all()
            dx = numbadnn.pool_grad(x, y, y, window, stride=window, mode="sum")
            assert scratch() <= 1 << 20 and (dx == 1).all()
        narrow = numbadnn.pool(x, 2, stride=2, mode="sum")  # slower than with 8 MiB, and not refused
        assert (narrow == 2).all()


def test_tables_do_not_grow_with_the_stride() -> None:
    x = np.ones((1, 1, 1 << 20), np.float32)
    y = numbadnn.pool(x, 3, stride=1 << 19, mode="sum")
    peaks = []
    for run in (
        lambda: numbadnn.pool(x, 3, stride=(1 << 19) - 1, mode="sum"),
        lambda: numbadnn.pool_grad(x, y, y, 3, stride=1 << 19, mode="sum"),
    ):
        tracemalloc.start()
        run()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[0] < 1 << 20 and peaks[1] < 48 << 20, peaks  # the gradient: four words a column, and dx


def test_no_scratch_for_threads_without_a_job() -> None:
    x = np.ones((1, 1, 1, 1 << 18), np.float32)
    sizes = []
    for threads in (1, 64):
        with numbadnn.using(threads=threads):
            numbadnn.pool(x, (1, 3), stride=(1, 2), mode="sum")
            sizes.append(scratch())
    assert sizes[0] == sizes[1] > 0
