"""The compiled host function that issues a convolution through the C calls; see ``_shim`` for what a table is.

cudnnConvolutionForward, BackwardData and BackwardFilter take the same arguments: handle, alpha, a's descriptor, a, b's
descriptor, b, convolution, algorithm, workspace, its size, beta, the result's descriptor, the result.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from numba import int32, njit

from numbadnn._hostcall import call_address, load_u64
from numbadnn.cudnn._shim import _CONTEXT, _CONTEXT_OUT, _CURRENT

# words of a table, after the three that check the context
_FUNCTION, _HANDLE, _ALPHA, _BETA, _A, _B, _OUT, _CONVOLUTION, _ALGORITHM, _SIZE = (8 * word for word in range(3, 13))


def table(
    current: int,
    context: int,
    function: int,
    handle: int,
    scalars: int,
    tensors: Sequence[int],
    convolution: int,
    algorithm: int,
    workspace_bytes: int,
) -> ctypes.Array[ctypes.c_uint64]:
    """``scalars`` is the address of alpha, beta 8 bytes further on; ``tensors`` the descriptors in the order of the call."""
    words = [
        current, context, 0, function, handle, scalars, scalars + 8, *tensors, convolution, algorithm, workspace_bytes,
    ]  # fmt: skip
    return (ctypes.c_uint64 * len(words))(*words)


@njit("int64(int64, int64, int64, int64, int64)", nogil=True, cache=True)
def convolve(words, a, b, out, workspace):  # type: ignore[no-untyped-def]
    """0, WRONG_CONTEXT, or step * 2**32 + status as in ``_shim.STEPS``."""
    status = call_address(load_u64(words + _CURRENT), words + _CONTEXT_OUT)
    if status != 0:
        return status
    if load_u64(words + _CONTEXT_OUT) != load_u64(words + _CONTEXT):
        return -1
    status = call_address(
        load_u64(words + _FUNCTION),
        load_u64(words + _HANDLE),
        load_u64(words + _ALPHA),
        load_u64(words + _A),
        a,
        load_u64(words + _B),
        b,
        load_u64(words + _CONVOLUTION),
        int32(load_u64(words + _ALGORITHM)),
        workspace,
        load_u64(words + _SIZE),
        load_u64(words + _BETA),
        load_u64(words + _OUT),
        out,
    )
    return (9 << 32) + status if status != 0 else 0
