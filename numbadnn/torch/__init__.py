"""numbadnn's operations inside PyTorch's computations: gradients, ``torch.compile``, ``torch.func``.

>>> import torch, numbadnn.torch as nt
>>> x, w = torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3, requires_grad=True)
>>> nt.max_pool2d(nt.conv2d(x, w, padding="same").relu(), 2).sum().backward()
>>> w.grad.shape
torch.Size([4, 3, 3, 3])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

OLDEST = (2, 6)

try:
    import torch
except ImportError as error:
    raise ImportError(
        f"numbadnn.torch needs PyTorch, which cannot be imported ({error}): pip install 'numbadnn[torch]'"
    ) from None
if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST:
    raise ImportError(
        f"numbadnn.torch needs PyTorch {'.'.join(map(str, OLDEST))} or newer, found {torch.__version__}: "
        "pip install 'numbadnn[torch]'"
    )

import numbadnn  # noqa: E402
from numbadnn.ops.habits import absent  # noqa: E402
from numbadnn.torch import nn  # noqa: E402
from numbadnn.torch.convert import Conversion, convert  # noqa: E402
from numbadnn.torch.convolution import (  # noqa: E402
    causal_conv1d,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from numbadnn.torch.dropout import dropout  # noqa: E402
from numbadnn.torch.norm import batch_norm  # noqa: E402
from numbadnn.torch.pool import avg_pool1d, avg_pool2d, avg_pool3d, max_pool1d, max_pool2d, max_pool3d  # noqa: E402
from numbadnn.torch.rnn import gru, lstm, rnn_relu, rnn_tanh  # noqa: E402
from numbadnn.torch.softmax import log_softmax, softmax  # noqa: E402
from numbadnn.torch.spatial import affine_grid, grid_sample, upsample_bilinear  # noqa: E402
from numbadnn.torch.unshared import unshared_conv1d, unshared_conv2d, unshared_conv_transpose2d  # noqa: E402
from numbadnn.torch.watch import check, explain  # noqa: E402
from numbadnn.torch.whole import Counts, batch_invariant, counts, deterministic, from_environment  # noqa: E402

from_environment()

__all__ = [
    "Conversion",
    "Counts",
    "affine_grid",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_invariant",
    "batch_norm",
    "causal_conv1d",
    "check",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convert",
    "counts",
    "deterministic",
    "dropout",
    "explain",
    "grid_sample",
    "gru",
    "log_softmax",
    "lstm",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "nn",
    "rnn_relu",
    "rnn_tanh",
    "softmax",
    "unshared_conv1d",
    "unshared_conv2d",
    "unshared_conv_transpose2d",
    "upsample_bilinear",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """No name is found here: the error says where it is."""
        if name == "interpolate":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}: upsample_bilinear")
        raise absent(__name__, name, __all__, (nn, torch.nn.functional, torch.nn, numbadnn))
