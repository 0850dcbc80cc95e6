"""numbadnn: deep-learning primitives on any array, fast everywhere, and provably right.

NumPy arrays run on the CPU; Numba, CuPy, PyTorch and JAX device arrays run on the GPU, where each call is computed by
cuDNN or by the project's own Numba CUDA kernels. ``explain`` says which and why, ``using`` decides otherwise, and
``numbadnn validate`` checks every implementation against an independent float64 reference. Importing loads no CUDA.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from numbadnn._version import __version__ as __version__
from numbadnn.arrays.untraced import leave_out
from numbadnn.call.launch import Plan
from numbadnn.call.planning import cache_info, clear_caches
from numbadnn.config import set_options, using
from numbadnn.dispatch import explain, last_call, plan
from numbadnn.errors import (
    BackendUnavailableError,
    CaptureError,
    CudnnError,
    DeterminismError,
    NotSupportedError,
    NumbaDNNError,
    PlanMissError,
    WorkspaceError,
)
from numbadnn.ops import habits
from numbadnn.ops.conv_frames import conv3d2d
from numbadnn.ops.conv_functions import (
    conv2d,
    conv2d_grad_wrt_inputs,
    conv2d_grad_wrt_weights,
    conv3d,
    conv3d_grad_wrt_inputs,
    conv3d_grad_wrt_weights,
)
from numbadnn.ops.conv_line import (
    causal_conv1d,
    causal_conv1d_grad_wrt_inputs,
    causal_conv1d_grad_wrt_weights,
    conv1d,
    conv1d_grad_wrt_inputs,
    conv1d_grad_wrt_weights,
)
from numbadnn.ops.conv_separable import (
    separable_conv2d,
    separable_conv2d_grad_wrt_inputs,
    separable_conv2d_grad_wrt_weights,
    separable_conv3d,
    separable_conv3d_grad_wrt_inputs,
    separable_conv3d_grad_wrt_weights,
)
from numbadnn.ops.conv_transpose import (
    conv2d_transpose,
    conv2d_transpose_grad_wrt_inputs,
    conv2d_transpose_grad_wrt_weights,
    conv3d_transpose,
    conv3d_transpose_grad_wrt_inputs,
    conv3d_transpose_grad_wrt_weights,
)
from numbadnn.ops.corrmm import (
    corr3d_mm,
    corr3d_mm_grad_inputs,
    corr3d_mm_grad_weights,
    corr_mm,
    corr_mm_grad_inputs,
    corr_mm_grad_weights,
)
from numbadnn.ops.dropout import dropout, dropout_grad
from numbadnn.ops.norm import (
    batch_normalization_test,
    batch_normalization_test_grad,
    batch_normalization_train,
    batch_normalization_train_grad,
)
from numbadnn.ops.pool import pool, pool_grad
from numbadnn.ops.rnn_block import RNNBlock
from numbadnn.ops.rnn_functions import rnn_backward, rnn_forward
from numbadnn.ops.rnn_weights import (
    rnn_weights_from_onnx,
    rnn_weights_from_torch,
    rnn_weights_to_onnx,
    rnn_weights_to_torch,
)
from numbadnn.ops.softmax import softmax, softmax_grad
from numbadnn.ops.spatial import (
    spatialtf,
    spatialtf_grid,
    spatialtf_grid_grad,
    spatialtf_sampler,
    spatialtf_sampler_grad,
)
from numbadnn.ops.upsample import (
    bilinear_upsampling,
    bilinear_upsampling_grad,
    frac_bilinear_upsampling,
)

if TYPE_CHECKING:
    from numbadnn.reference.upsample import bilinear_kernel_1D, bilinear_kernel_2D
    from numbadnn.validate.calls import check

__all__ = [
    "BackendUnavailableError",
    "CaptureError",
    "CudnnError",
    "DeterminismError",
    "NotSupportedError",
    "NumbaDNNError",
    "Plan",
    "PlanMissError",
    "RNNBlock",
    "WorkspaceError",
    "batch_normalization_test",
    "batch_normalization_test_grad",
    "batch_normalization_train",
    "batch_normalization_train_grad",
    "bilinear_kernel_1D",
    "bilinear_kernel_2D",
    "bilinear_upsampling",
    "bilinear_upsampling_grad",
    "cache_info",
    "causal_conv1d",
    "causal_conv1d_grad_wrt_inputs",
    "causal_conv1d_grad_wrt_weights",
    "check",
    "clear_caches",
    "conv1d",
    "conv1d_grad_wrt_inputs",
    "conv1d_grad_wrt_weights",
    "conv2d",
    "conv2d_grad_wrt_inputs",
    "conv2d_grad_wrt_weights",
    "conv2d_transpose",
    "conv2d_transpose_grad_wrt_inputs",
    "conv2d_transpose_grad_wrt_weights",
    "conv3d",
    "conv3d2d",
    "conv3d_grad_wrt_inputs",
    "conv3d_grad_wrt_weights",
    "conv3d_transpose",
    "conv3d_transpose_grad_wrt_inputs",
    "conv3d_transpose_grad_wrt_weights",
    "corr3d_mm",
    "corr3d_mm_grad_inputs",
    "corr3d_mm_grad_weights",
    "corr_mm",
    "corr_mm_grad_inputs",
    "corr_mm_grad_weights",
    "dropout",
    "dropout_grad",
    "explain",
    "frac_bilinear_upsampling",
    "last_call",
    "plan",
    "pool",
    "pool_grad",
    "rnn_backward",
    "rnn_forward",
    "rnn_weights_from_onnx",
    "rnn_weights_from_torch",
    "rnn_weights_to_onnx",
    "rnn_weights_to_torch",
    "separable_conv2d",
    "separable_conv2d_grad_wrt_inputs",
    "separable_conv2d_grad_wrt_weights",
    "separable_conv3d",
    "separable_conv3d_grad_wrt_inputs",
    "separable_conv3d_grad_wrt_weights",
    "set_options",
    "softmax",
    "softmax_grad",
    "spatialtf",
    "spatialtf_grid",
    "spatialtf_grid_grad",
    "spatialtf_sampler",
    "spatialtf_sampler_grad",
    "using",
]

leave_out([globals().get(name) for name in __all__])

_MODULES = ("reference", "cudnn", "pieces", "shapes", "theano", "validate")
_OF_REFERENCE = ("bilinear_kernel_1D", "bilinear_kernel_2D")


def __getattr__(name: str) -> Any:
    """The public modules, and what one of them alone defines, imported when first used."""
    if name in _MODULES:
        return importlib.import_module(f"numbadnn.{name}")
    if name in _OF_REFERENCE:
        importlib.import_module("ml_dtypes")  # with it NumPy knows bfloat16 by its name
        return getattr(importlib.import_module("numbadnn.reference"), name)
    if name == "check":
        return importlib.import_module("numbadnn.validate.calls").check
    hint = "" if name.startswith("_") else habits.function(name, __all__)
    raise AttributeError(f"module 'numbadnn' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
