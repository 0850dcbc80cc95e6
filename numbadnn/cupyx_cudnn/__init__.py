"""CuPy 13's ``cupyx.cudnn``, which CuPy 14 no longer has: the same names and parameters, on CuPy and on NumPy arrays.

A program changes one import: ``from cupyx import cudnn`` becomes ``from numbadnn import cupyx_cudnn as cudnn``; so does ``from
cupy.cuda import cudnn as libcudnn``, for the constants. Results that CuPy wrote into arrays it was given are written there.

Here: convolution in three directions, pooling, batch normalization and softmax with their gradients. Not here: descriptors and
handles, which have nothing to describe; fused operations, activations, CTC; dropout, ``numbadnn.dropout``; and the functions
of recurrent networks, whose weights are packed as a cuDNN before 8 packed them, whose sequences are cut into steps, and whose
reserve is memory of cuDNN: ``numbadnn.RNNBlock`` has the same networks.

Where it differs: NaN goes through maxima; channels last work with a bias; float32 is computed as float32 unless the option
fp32_precision says tf32. ``tensor_core`` is checked and changes nothing: 16-bit numbers run on tensor cores, with sums in
float32, wherever that is fastest. ``deterministic=False`` allows what the option determinism allows, by default nothing else
than True does. ``auto_tune`` has cuDNN time its algorithms in the first call, on a GPU.

>>> import numpy as np
>>> x, w, y = np.ones((1, 2, 4, 4), "f"), np.ones((3, 2, 3, 3), "f"), np.empty((1, 3, 2, 2), "f")
>>> convolution_forward(x, w, None, y, (0, 0), (1, 1), (1, 1), 1, auto_tune=False, tensor_core="auto")
>>> y[0, 0]
array([[18., 18.],
       [18., 18.]], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from numbadnn.cupyx_cudnn.constants import *  # noqa: F403
from numbadnn.cupyx_cudnn.conv import (
    convolution_backward_data,
    convolution_backward_filter,
    convolution_forward,
    get_max_workspace_size,
    set_max_workspace_size,
)
from numbadnn.cupyx_cudnn.norm import (
    batch_normalization_backward,
    batch_normalization_forward_inference,
    batch_normalization_forward_training,
    batch_normalization_forward_training_ex,
)
from numbadnn.cupyx_cudnn.pool import pooling_backward, pooling_forward
from numbadnn.cupyx_cudnn.softmax import softmax_backward, softmax_forward

__all__ = [
    "batch_normalization_backward",
    "batch_normalization_forward_inference",
    "batch_normalization_forward_training",
    "batch_normalization_forward_training_ex",
    "convolution_backward_data",
    "convolution_backward_filter",
    "convolution_forward",
    "get_max_workspace_size",
    "pooling_backward",
    "pooling_forward",
    "set_max_workspace_size",
    "softmax_backward",
    "softmax_forward",
]


def __getattr__(name: str) -> Any:
    hint = "" if name.startswith("_") else "; docs/how-to/from-cupy-cudnn.md says what is here instead"
    raise AttributeError(f"module 'numbadnn.cupyx_cudnn' has no attribute {name!r}{hint}")
