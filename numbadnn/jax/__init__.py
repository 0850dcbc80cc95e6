"""numbadnn's operations inside JAX's computations: under ``jit``, ``grad``, ``vmap``, ``scan`` and ``shard_map``.

>>> import jax, jax.numpy as jnp, numbadnn.jax
>>> loss = lambda w, x: jnp.sum(numbadnn.jax.conv(x, w, (1, 1), "SAME") ** 2)
>>> jax.jit(jax.grad(loss))(jnp.ones((4, 3, 3, 3)), jnp.ones((2, 3, 8, 8))).shape
(4, 3, 3, 3)
"""

from __future__ import annotations

OLDEST = (0, 5, 0)

try:
    import jax
except ImportError as error:
    raise ImportError(
        f"numbadnn.jax needs JAX, which cannot be imported ({error}): pip install 'numbadnn[jax]'"
    ) from None
if jax.__version_info__ < OLDEST:
    raise ImportError(
        f"numbadnn.jax needs JAX {'.'.join(map(str, OLDEST))} or newer, found {jax.__version__}: pip install 'numbadnn[jax]'"
    )

from numbadnn.jax.check import Check, check  # noqa: E402
from numbadnn.jax.convolution import (  # noqa: E402
    causal_conv1d,
    conv,
    conv_general_dilated,
    conv_transpose,
)
from numbadnn.jax.dropout import dropout  # noqa: E402
from numbadnn.jax.norm import batch_norm, batch_norm_inference  # noqa: E402
from numbadnn.jax.pool import avg_pool, max_pool, sum_pool  # noqa: E402
from numbadnn.jax.rnn import rnn  # noqa: E402
from numbadnn.jax.softmax import log_softmax, softmax  # noqa: E402
from numbadnn.jax.spatial import affine_grid, grid_sample, upsample_bilinear  # noqa: E402
from numbadnn.jax.unshared import conv_general_dilated_local, unshared_conv  # noqa: E402

__all__ = [
    "Check",
    "affine_grid",
    "avg_pool",
    "batch_norm",
    "batch_norm_inference",
    "causal_conv1d",
    "check",
    "conv",
    "conv_general_dilated",
    "conv_general_dilated_local",
    "conv_transpose",
    "dropout",
    "grid_sample",
    "log_softmax",
    "max_pool",
    "rnn",
    "softmax",
    "sum_pool",
    "unshared_conv",
    "upsample_bilinear",
]
