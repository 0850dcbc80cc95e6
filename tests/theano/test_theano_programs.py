"""Programs as they were written for Theano: their import lines with ``numbadnn.`` put before ``theano``, and their calls.

Each result is compared with NumPy or the float64 reference. A warning is an error here, as everywhere in these tests.
"""

from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from numbadnn import reference

RNG = np.random.default_rng(41)


def imported(lines: str) -> SimpleNamespace:
    """What the import lines of a program define."""
    names: dict[str, Any] = {}
    exec(re.sub(r"\b(from|import) theano\b", r"\1 numbadnn.theano", lines), names)
    return SimpleNamespace(**names)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("float32")


def close(found: Any, expected: Any) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def blocks_of_two(x: Any) -> Any:
    """(N, C, H, W) -> (N, C, H // 2, W // 2, 2, 2)."""
    n, c, h, w = x.shape
    return x[:, :, : h // 2 * 2, : w // 2 * 2].reshape(n, c, h // 2, 2, w // 2, 2).swapaxes(3, 4)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


LENET = (
    """from theano.tensor.signal import downsample
from theano.tensor.nnet import conv
import theano.tensor as T""",
    """from theano.tensor.signal import pool
from theano.tensor.nnet import conv2d
import theano.tensor as T""",
)


@pytest.mark.parametrize("lines", LENET)
def test_lenet_of_the_tutorial_in_its_two_editions(lines: str) -> None:
    m = imported(lines)
    x, w, b = normal(3, 1, 12, 11), normal(4, 1, 5, 5), normal(4)
    if hasattr(m, "conv"):
        with pytest.warns(DeprecationWarning, match="deprecated"):
            conv_out = m.conv.conv2d(input=x, filters=w, filter_shape=w.shape, image_shape=x.shape)
        pooled = m.downsample.max_pool_2d(input=conv_out, ds=(2, 2), ignore_border=True)
    else:
        conv_out = m.conv2d(input=x, filters=w, filter_shape=w.shape, input_shape=x.shape)
        pooled = m.pool.pool_2d(input=conv_out, ws=(2, 2), ignore_border=True)
    expected = blocks_of_two(reference.conv2d(x, w)).max((4, 5))
    close(pooled, expected)
    hidden = np.tanh(pooled + b[None, :, None, None]).reshape(3, -1)
    weights = normal(hidden.shape[1], 10)
    close(m.T.nnet.softmax(hidden @ weights), softmax(hidden.astype("f8") @ weights))


LASAGNE = """import theano.tensor as T
from theano.tensor.signal.pool import pool_2d
from theano.sandbox.cuda import dnn
from theano.sandbox.cuda.blas import GpuCorrMM"""


def test_layers_of_lasagne() -> None:
    m = imported(LASAGNE)
    x, w = normal(2, 4, 9, 8), normal(6, 4, 3, 3)
    assert m.dnn.dnn_available() or m.dnn.dnn_available.msg
    y = m.dnn.dnn_conv(img=x, kerns=w, subsample=(2, 1), border_mode=(1, 1), conv_mode="cross")  # Conv2DDNNLayer
    expected = reference.conv2d(x, w, border_mode=(1, 1), subsample=(2, 1), filter_flip=False)
    close(y, expected)
    close(GpuCorrMM_of(m, w)(x, np.ascontiguousarray(w[:, :, ::-1, ::-1])), reference.conv2d(x, w, subsample=(2, 1)))
    with pytest.warns(DeprecationWarning, match="old name of"):  # Pool2DLayer of the years of ds, st and padding
        found = m.pool_2d(x, ds=(2, 2), st=(2, 2), ignore_border=True, padding=(1, 1), mode="average_exc_pad")
    close(found, reference.pool(x, (2, 2), (2, 2), "average_exc_pad", (1, 1)))
    close(m.dnn.dnn_pool(x, (3, 2), (2, 2), "max", (1, 0)), reference.pool(x, (3, 2), (2, 2), "max", (1, 0)))
    op = m.T.nnet.abstract_conv.AbstractConv2d_gradInputs(  # TransposedConv2DLayer
        imshp=(None, 4, 9, 8), kshp=w.shape, subsample=(2, 1), border_mode=(1, 1), filter_flip=False
    )
    close(op(w, y, (9, 8)), reference.conv2d_grad_wrt_inputs(y, w, x.shape, None, (1, 1), (2, 1), False))
    gamma, beta = normal(1, 4, 1, 1), normal(1, 4, 1, 1)  # BatchNormDNNLayer
    out, mean, invstd = m.dnn.dnn_batch_normalization_train(x, gamma, beta, "spatial", 1e-4)
    wide = x.astype("f8")
    std = np.sqrt(wide.var((0, 2, 3), keepdims=True) + 1e-4)
    close(out, (wide - wide.mean((0, 2, 3), keepdims=True)) / std * gamma + beta)
    close(mean, wide.mean((0, 2, 3), keepdims=True))
    close(invstd, 1 / std)


def GpuCorrMM_of(m: SimpleNamespace, w: Any) -> Any:
    """Conv2DMMLayer's op."""
    return m.GpuCorrMM(subsample=(2, 1), border_mode=(0, 0))


DCGAN = "from theano.sandbox.cuda.dnn import GpuDnnConvDesc, GpuDnnConv, GpuDnnConvGradI, dnn_conv, dnn_pool"


def test_deconvolution_of_dcgan() -> None:
    """``gpu_contiguous`` and ``gpu_alloc_empty`` are the array's library's own here."""
    m = imported(DCGAN)
    x, w = normal(2, 6, 4, 4), normal(6, 3, 5, 5)
    out = np.empty((2, 3, 8, 8), "float32")
    desc = m.GpuDnnConvDesc(border_mode=(2, 2), subsample=(2, 2), conv_mode="conv")(out.shape, w.shape)
    image = m.GpuDnnConvGradI()(w, x, out, desc)
    close(image, reference.conv2d_grad_wrt_inputs(x, w, out.shape, None, (2, 2), (2, 2)))
    close(m.dnn_conv(image, w, subsample=(2, 2), border_mode=(2, 2)), reference.conv2d(image, w, None, None, 2, (2, 2)))


BLOCKS = """from theano import tensor
from theano.tensor.nnet import bn
from theano.tensor.nnet.abstract_conv import AbstractConv2d_gradInputs, get_conv_output_shape
from theano.tensor.signal.pool import pool_2d, Pool"""


def test_bricks_of_blocks() -> None:
    m = imported(BLOCKS)
    x, w = normal(2, 3, 9, 9), normal(5, 3, 2, 2)
    shape = m.get_conv_output_shape(x.shape, w.shape, "valid", (1, 1))
    y = m.tensor.nnet.relu(m.tensor.nnet.conv2d(x, w, input_shape=x.shape, filter_shape=w.shape))
    expected = np.maximum(reference.conv2d(x, w), 0)
    assert y.shape == shape == (2, 5, 8, 8)
    close(y, expected)
    for ignore_border, size in ((True, 3), (False, 4)):  # the last of four windows at 0, 2, 4 and 6 holds two rows
        pooled = m.pool_2d(y, (3, 3), stride=(2, 2), ignore_border=ignore_border, mode="max")
        assert tuple(m.Pool.out_shape(y.shape, (3, 3), stride=(2, 2), ignore_border=ignore_border)) == pooled.shape
        starts = range(0, 2 * size, 2)
        close(pooled, np.stack([[expected[..., i : i + 3, j : j + 3].max((2, 3)) for j in starts] for i in starts])
              .transpose(2, 3, 0, 1))  # fmt: skip
    mean, std, gamma, beta = normal(5, 1, 1), abs(normal(5, 1, 1)) + 1, normal(5, 1, 1), normal(5, 1, 1)
    found = m.bn.batch_normalization(y, gamma, beta, mean, std)
    close(found, gamma * (expected - mean) / std + beta)


LSTM = """import theano.tensor as tensor
from theano.gpuarray.dnn import RNNBlock"""


def test_lstm_step_of_the_tutorial_and_the_block_agree() -> None:
    """The tutorial's step in its own names, with the block's parameters; both against it in float64."""
    m = imported(LSTM)
    steps, batch, size = 4, 3, 5
    block = m.RNNBlock("float32", size, 1, "lstm")
    params = normal(block.get_param_size([batch, size])) * 0.3
    parts = [a.astype("f8") for a in block.split_params(params, 0, [batch, size])]
    W, U = np.concatenate(parts[0:8:2], 1), np.concatenate(parts[8:16:2], 1)
    b = np.concatenate(parts[1:8:2]) + np.concatenate(parts[9:16:2])
    x, h, c = normal(steps, batch, size), np.zeros((batch, size)), np.zeros((batch, size))

    def _slice(a: Any, n: int) -> Any:
        return a[:, n * size : (n + 1) * size]

    seen = []
    for x_ in x.astype("f8"):
        preact = h @ U + x_ @ W + b
        i, f = m.tensor.nnet.sigmoid(_slice(preact, 0)), m.tensor.nnet.sigmoid(_slice(preact, 1))
        close(i, 1 / (1 + np.exp(-_slice(preact, 0))))
        c = f * c + i * np.tanh(_slice(preact, 2))
        h = m.tensor.nnet.sigmoid(_slice(preact, 3)) * np.tanh(c)
        seen.append(h)
    zeros = np.zeros((1, batch, size), "float32")
    y, hy, cy = block.apply(params, x, zeros, zeros)
    close(y, np.stack(seen))
    close(hy[0], h)
    close(cy[0], c)


@pytest.mark.parametrize("path", ("theano.gpuarray.dnn", "theano.sandbox.cuda.dnn"))
def test_a_spatial_transformer_that_turns_half_the_image(path: str) -> None:
    m = imported(f"from {path} import dnn_spatialtf")
    img, theta = normal(2, 3, 6, 5), np.tile(np.array([[-1, 0, 0], [0, -1, 0]], "float32"), (2, 1, 1))
    close(m.dnn_spatialtf(img, theta, scale_width=1, scale_height=1), img[..., ::-1, ::-1])


UPSAMPLING = """import theano.tensor as T
from theano.tensor.nnet.abstract_conv import bilinear_upsampling"""


def test_upsampling_of_a_segmentation_network() -> None:
    m = imported(UPSAMPLING)
    x = normal(2, 3, 4, 5)
    y = m.bilinear_upsampling(input=x, ratio=3, batch_size=2, num_input_channels=3, use_1D_kernel=False)
    rows, columns = (np.clip((np.arange(3 * n) - 1) / 3, 0, n - 1) for n in (4, 5))
    lines = np.apply_along_axis(lambda a: np.interp(rows, np.arange(4), a), 2, x.astype("f8"))
    close(y, np.apply_along_axis(lambda a: np.interp(columns, np.arange(5), a), 3, lines))
    assert m.T.nnet.abstract_conv.bilinear_upsampling is m.bilinear_upsampling


KERAS = """from theano import tensor as T
from theano.tensor.signal import pool
from theano.tensor.nnet import conv3d2d"""


def test_backend_of_keras() -> None:
    m = imported(KERAS)
    x, gamma, beta = normal(4, 6, 5, 3), normal(3), normal(3)  # channels last: axes 0, 1, 2
    out, mean, stdinv = m.T.nnet.bn.batch_normalization_train(x, gamma, beta, (0, 1, 2), 1e-3)
    wide = x.astype("f8")
    var = wide.var((0, 1, 2))
    close(out, (wide - wide.mean((0, 1, 2))) / np.sqrt(var + 1e-3) * gamma + beta)
    close(mean, wide.mean((0, 1, 2)))
    close(1 / stdinv**2, var + 1e-3)
    test = m.T.nnet.bn.batch_normalization_test(x, gamma, beta, mean, 1 / stdinv**2, (0, 1, 2), 1e-3)
    close(test, (wide - wide.mean((0, 1, 2))) / np.sqrt(var + 2e-3) * gamma + beta)
    volume = normal(2, 2, 4, 6, 4)
    pooled = m.pool.pool_3d(volume, ws=(2, 2, 2), stride=(2, 2, 2), ignore_border=True, pad=(0, 0, 0), mode="max")
    close(pooled, volume.reshape(2, 2, 2, 2, 3, 2, 2, 2).max((3, 5, 7)))
    frames, taps = normal(1, 3, 2, 5, 5), normal(4, 2, 2, 3, 3)
    close(m.conv3d2d.conv3d(frames, taps), reference.conv3d2d(frames, taps))


@pytest.mark.parametrize("path", ("theano.tensor.nnet.neighbours", "theano.sandbox.neighbours"))
def test_patches_of_a_sparse_coder(path: str) -> None:
    m = imported(f"from {path} import images2neibs")
    x = normal(2, 3, 7, 8)
    found = m.images2neibs(x, neib_shape=(3, 4), neib_step=(2, 2))
    places = [(n, c, i, j) for n in range(2) for c in range(3) for i in (0, 2, 4) for j in (0, 2, 4)]
    assert np.array_equal(found, np.stack([x[n, c, i : i + 3, j : j + 4].ravel() for n, c, i, j in places]))


PATHS = {
    "tensor.nnet": "nnet", "tensor.nnet.bn": "bn", "tensor.nnet.conv": "conv", "tensor.nnet.abstract_conv": "abstract_conv",
    "tensor.nnet.conv3d2d": "conv3d2d", "tensor.nnet.corr": "corrmm", "tensor.nnet.neighbours": "neighbours", "nnet.bn": "bn",
    "tensor.signal.pool": "pool", "tensor.signal.downsample": "downsample", "gpuarray.dnn": "dnn", "gpuarray.blas": "corrmm",
    "sandbox.cuda.dnn": "dnn", "sandbox.cuda.blas": "corrmm", "sandbox.neighbours": "neighbours", "nnet.conv": "conv",
}  # fmt: skip


def test_a_module_is_one_object_under_all_its_paths_whichever_comes_first() -> None:
    """In processes of their own, for an import leaves its traces; a copy would be a second module of one file."""
    code = """
import importlib, sys
for path, own in sys.argv[1:] and [a.split("=") for a in sys.argv[1:]]:
    module = importlib.import_module("numbadnn.theano." + path)
    names = {}
    exec(f"import numbadnn.theano.{path} as found", names)
    assert names["found"] is module is importlib.import_module("numbadnn.theano." + own), path
files = {}
for name, module in list(sys.modules.items()):
    if name.startswith("numbadnn") and getattr(module, "__file__", None):
        assert files.setdefault(module.__file__, module) is module, name
for wrong in ("nnet.pool", "nnet.softmax", "tensor.conv", "tensor.nnet.rnn", "dnn.rnn"):
    try:
        importlib.import_module("numbadnn.theano." + wrong)
    except ModuleNotFoundError:
        continue
    raise AssertionError(wrong)
"""
    pairs = [f"{path}={own}" for path, own in PATHS.items()]
    for order in (pairs, pairs[::-1]):
        subprocess.run([sys.executable, "-c", code, *order], check=True)
