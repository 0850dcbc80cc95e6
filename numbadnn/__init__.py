"""numbadnn: deep-learning primitives on any array, fast everywhere, and provably right.

NumPy arrays run on the CPU; Numba, CuPy, PyTorch and JAX device arrays run on the GPU, where each call is computed by
cuDNN or by the project's own Numba CUDA kernels. ``explain`` says which and why, ``using`` decides otherwise, and
``numbadnn validate`` checks every implementation against an independent float64 reference. Importing loads no CUDA.
"""

from __future__ import annotations

import importlib
from typing import Any

from numbadnn.config import using
from numbadnn.dispatch import cache_info, clear_caches, explain, last_call, plan
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
from numbadnn.launch import Plan
from numbadnn.ops.conv import conv2d, conv2d_grad_wrt_inputs, conv2d_grad_wrt_weights
from numbadnn.ops.softmax import softmax, softmax_grad

__version__ = "0.1.0"

__all__ = [
    "BackendUnavailableError",
    "CaptureError",
    "CudnnError",
    "DeterminismError",
    "NotSupportedError",
    "NumbaDNNError",
    "Plan",
    "PlanMissError",
    "WorkspaceError",
    "cache_info",
    "clear_caches",
    "conv2d",
    "conv2d_grad_wrt_inputs",
    "conv2d_grad_wrt_weights",
    "explain",
    "last_call",
    "plan",
    "softmax",
    "softmax_grad",
    "using",
]

_MODULES = ("reference", "cudnn", "shapes", "validate")


def __getattr__(name: str) -> Any:
    """The public modules, imported when first used."""
    if name in _MODULES:
        return importlib.import_module(f"numbadnn.{name}")
    raise AttributeError(f"module 'numbadnn' has no attribute {name!r}")
