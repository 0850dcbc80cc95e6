"""numbadnn's operations on Dask arrays: larger than memory, on several processes, machines or GPUs.

>>> import dask.array as da, numpy as np, numbadnn.dask as nd
>>> x = da.ones((1, 3, 64, 64), chunks=(1, 3, 32, 32), dtype="float32")
>>> y = nd.conv2d(x, np.ones((8, 3, 5, 5), "float32"), border_mode="half")
>>> y.chunks, y.dtype, float(y[0, 0, 32, 32].compute())
(((1,), (8,), (32, 32), (32, 32)), dtype('float32'), 75.0)

Each function has the name and the parameters of numbadnn's own; nothing is computed before ``compute`` or ``store``.
"""

from __future__ import annotations

try:
    import dask.array
except ImportError as error:
    raise ImportError(
        f"numbadnn.dask needs Dask, which cannot be imported ({error}): pip install 'numbadnn[dask]'"
    ) from None
if "expr" in dask.array.Array.__module__:  # its arrays have expressions in place of the layers of a graph
    raise ImportError(
        "numbadnn.dask needs arrays with graphs: set Dask's option array.query-planning to False before dask.array is imported "
        "(DASK_ARRAY__QUERY_PLANNING=False)"
    )

from numbadnn.dask.chunking import suggest_chunks
from numbadnn.dask.elementwise import batch_normalization_test, softmax, softmax_grad
from numbadnn.dask.operations import (
    bilinear_upsampling,
    bilinear_upsampling_grad,
    causal_conv1d,
    causal_conv1d_grad_wrt_inputs,
    conv1d,
    conv1d_grad_wrt_inputs,
    conv2d,
    conv2d_grad_wrt_inputs,
    conv2d_transpose,
    conv3d,
    conv3d_grad_wrt_inputs,
    conv3d_transpose,
    frac_bilinear_upsampling,
    pool,
    pool_grad,
)
from numbadnn.dask.sums import (
    batch_normalization_train,
    causal_conv1d_grad_wrt_weights,
    conv1d_grad_wrt_weights,
    conv2d_grad_wrt_weights,
    conv3d_grad_wrt_weights,
)

__all__ = [
    "batch_normalization_test",
    "batch_normalization_train",
    "bilinear_upsampling",
    "bilinear_upsampling_grad",
    "causal_conv1d",
    "causal_conv1d_grad_wrt_inputs",
    "causal_conv1d_grad_wrt_weights",
    "conv1d",
    "conv1d_grad_wrt_inputs",
    "conv1d_grad_wrt_weights",
    "conv2d",
    "conv2d_grad_wrt_inputs",
    "conv2d_grad_wrt_weights",
    "conv2d_transpose",
    "conv3d",
    "conv3d_grad_wrt_inputs",
    "conv3d_grad_wrt_weights",
    "conv3d_transpose",
    "frac_bilinear_upsampling",
    "pool",
    "pool_grad",
    "softmax",
    "softmax_grad",
    "suggest_chunks",
]
