"""conv1d, pooling of lines and softmax over any axis on a GPU: right, in the caller's axes, by cuDNN and by our kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import reference

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng(4)


def numbers(*shape: int) -> np.ndarray:
    return RNG.integers(-2, 3, shape).astype("float32")


@pytest.mark.parametrize("backend", ("cudnn", "numba", None))
def test_lines_and_axes(backend: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    def on_gpu(array: np.ndarray) -> Any:
        return torch.from_numpy(array).cuda()

    x, w = numbers(4, 16, 40), numbers(8, 16, 3)
    how: dict[str, Any] = {"border_mode": "half", "subsample": 2}
    exact = reference.conv1d(x, w, **how)
    g = numbers(*exact.shape)
    y = numbadnn.conv1d(on_gpu(x), on_gpu(w), backend=backend, **how)
    assert np.array_equal(y.cpu(), exact)
    dx = numbadnn.conv1d_grad_wrt_inputs(on_gpu(g), on_gpu(w), x.shape, backend=backend, **how)
    assert np.array_equal(dx.cpu(), reference.conv1d_grad_wrt_inputs(g, w, x.shape, **how))
    dw = numbadnn.conv1d_grad_wrt_weights(on_gpu(x), on_gpu(g), w.shape, backend=backend, **how)
    assert np.array_equal(dw.cpu(), reference.conv1d_grad_wrt_weights(x, g, w.shape, **how))
    pooled = numbadnn.pool(on_gpu(x), 2, 2, backend=backend)
    assert np.array_equal(pooled.cpu(), reference.pool(x, 2, 2))
    # of another order than x, which cuDNN's softmax does not take
    out = torch.empty((4, 16, 40), device="cuda") if backend == "cudnn" else torch.empty((4, 40, 16), device="cuda").mT
    assert numbadnn.softmax(on_gpu(x), axis=-1, backend=backend, out=out) is out
    assert np.allclose(out.cpu(), reference.softmax(x, axis=-1), rtol=1e-5, atol=1e-7)
    for _ in range(2):  # the second time from the plan that was remembered
        assert np.array_equal(numbadnn.conv1d(on_gpu(x), on_gpu(w), backend=backend, **how).cpu(), exact)
