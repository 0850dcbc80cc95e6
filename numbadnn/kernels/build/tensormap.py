"""TMA descriptors: made by the driver for address 0, passed by value, their address replaced in each call.

A descriptor (CUtensorMap, 128 bytes) tells the copy engine an array's address, extents, strides and the box that one
copy moves. As a kernel parameter it needs no memory of its own. Numba has no such parameter: a kernel takes sixteen
words in its place, and ``by_value`` turns them into one parameter of 128 bytes in the PTX. The address is the
descriptor's first word.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any

from numbadnn.gpu import driver as _driver
from numbadnn.gpu.context import ensure_context
from numbadnn.kernels.build import simulate

#: CUtensorMapDataType; "tf32" is float32 in memory, rounded by the copy
DATA_TYPES = {"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "tf32": 11}
_SWIZZLE_128B = 3
#: CUtensorMapL2promotion by bytes
_L2_PROMOTION = {128: 2, 256: 3}


def by_value(ptx: str, parameters: str) -> str:
    """The PTX with each ``map`` of ``parameters`` as one 64-byte aligned parameter, and placeholders replaced by its name."""
    from numbadnn.kernels.lang.hopper import (
        placeholder,
    )  # with Numba, which a host module imports no sooner than it compiles

    head = re.search(r"\.entry\s+\w+\s*\((.*?)\)", ptx, re.DOTALL)
    if not head:
        raise ValueError("expected an entry point with parameters")
    declared = [line.strip() for line in head[1].split(",")]
    kept, names = [], []
    for word in parameters.split():
        name, _, count = word.partition("*")
        words = 16 if name == "map" else int(count or 1)
        mine, declared = declared[:words], declared[words:]
        if name == "map":
            names.append(mine[0].split()[-1])
            mine = [f".param .align 64 .b8 {names[-1]}[128]"]
        kept += mine
    if declared:
        raise ValueError(f"expected the parameters {parameters!r}, got {len(declared)} more")
    ptx = ptx[: head.start(1)] + "\n\t" + ",\n\t".join(kept) + "\n" + ptx[head.end(1) :]
    for index, name in enumerate(names):
        ptx = ptx.replace(placeholder(index), name)
    return ptx


def encode(
    dtype: str,
    extents: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    swizzled: bool = True,
    fetch: int = 256,
) -> bytes:
    """A descriptor without address, innermost axis first, 128-byte swizzle or none, zeros outside.

    ``strides`` are in bytes, of the axes after the first (which is packed): multiples of 16 below 2**40. ``fetch``: so many
    bytes of memory come to the L2 cache together.
    """
    rank = len(extents)
    shape = ((ctypes.c_uint32 * rank)(*box), (ctypes.c_uint32 * rank)(*(1,) * rank))
    swizzle = _SWIZZLE_128B if swizzled else 0
    return _encode("cuTensorMapEncodeTiled", dtype, extents, strides, shape, swizzle, _L2_PROMOTION[fetch])


def described(
    device: int,
    dtype: str,
    how: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    swizzled: bool = True,
    fetch: int = 256,
) -> Any:
    """``encode`` of (extents, strides, box) in the context of ``device``, or what the simulator has in its place."""
    if simulate.active():
        return simulate.Tensor(dtype, *how, swizzled)
    with ensure_context(device):
        return encode(dtype, *how, swizzled, fetch)


def encode_window(
    dtype: str,
    extents: tuple[int, ...],
    strides: tuple[int, ...],
    lower: tuple[int, ...],
    upper: tuple[int, ...],
    steps: tuple[int, ...],
    box: tuple[int, int],
) -> bytes:
    """A descriptor of images (channels, width, height, images) for copies of ``box`` channels by pixels (im2col mode).

    Pixels are taken ``steps`` (width, height) apart from ``lower`` to the image's last plus ``upper``, row after row, image
    after image. Corners are from -128 to 127, steps at most 8.
    """
    spatial = len(lower)
    corners = ((ctypes.c_int * spatial)(*lower), (ctypes.c_int * spatial)(*upper))
    channels, pixels = box
    steps_of_all = (ctypes.c_uint32 * len(extents))(1, *steps, 1)
    shape = (*corners, ctypes.c_uint32(channels), ctypes.c_uint32(pixels), steps_of_all)
    return _encode("cuTensorMapEncodeIm2col", dtype, extents, strides, shape)


def _encode(
    function: str,
    dtype: str,
    extents: tuple[int, ...],
    strides: tuple[int, ...],
    shape: Any,
    swizzle: int = _SWIZZLE_128B,
    promotion: int = _L2_PROMOTION[256],
) -> bytes:
    rank = len(extents)
    memory = ctypes.create_string_buffer(128 + 64)
    start = ctypes.addressof(memory) + -ctypes.addressof(memory) % 64
    arrays = ((ctypes.c_uint64 * rank)(*extents), (ctypes.c_uint64 * (rank - 1))(*strides))
    kind, zero = ctypes.c_int(DATA_TYPES[dtype]), ctypes.c_int(0)
    _driver.call(
        function, ctypes.c_void_p(start), kind, ctypes.c_uint32(rank), ctypes.c_void_p(16), *arrays, *shape,
        zero, ctypes.c_int(swizzle), ctypes.c_int(promotion), zero,
    )  # fmt: skip
    return ctypes.string_at(start, 128)
