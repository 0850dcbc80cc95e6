"""Boxes of pixels of transposed images, [channel, row, column][image], on their way to shared memory.

Of a pixel's pieces of 32 bytes the i-th lies at i ^ (pixel mod 4), so that four neighbours meet all banks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.unshared.forward.products_config import ProductsConfig
from numbadnn.kernels.conv.unshared.parts.device.box_fill import pixels_of
from numbadnn.kernels.conv.unshared.parts.device.seen import first_position
from numbadnn.kernels.lang.async_copies import copy_or_zero
from numbadnn.kernels.lang.cuda import INT32, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.ptx import thread_here
from numbadnn.kernels.lang.words import read_at


def copies_of(config: ProductsConfig) -> tuple[Callable[..., None], Callable[..., Any], Callable[..., None]]:
    """Where pixels of a box are (``fill``), where those of a tile begin (``corner``), and what copies them."""
    fill = pixels_of(config.threads)
    images, first_of, copy = config.images, first_position(config.tall, config.places), copy_or_zero(16)
    pieces, threads, look, exchanged = images // 4, config.threads, read_at("int32", 2), 64 * (images // 16) - 32

    @device
    def corner(x, strides, tile, blocks, groups, C, stride, padding):
        """The first pixel of what a tile sees: address of this thread's piece of it, row and column."""
        group, p, q = first_of(tile, blocks, groups)
        h, v = i32(p * stride[0] - padding[0]), i32(q * stride[1] - padding[1])
        at = i64(group * C) * strides[1] + i64(h) * strides[2] + i64(v) * strides[3]
        return x + (at + i32(u32(thread_here()) % u32(pieces)) * 4) * 4, h, v

    @device
    def copy_pixels(shared, pixels_at, number, to, at, h0, v0, image):
        """Begin to copy a box; 0 outside the image."""
        where, thread = cuda.local.array(2, INT32), u32(thread_here())
        to = i32(to + i32(thread % u32(pieces)) * 16)
        for i in range(i32(thread // u32(pieces)), number, i32(threads // pieces)):
            look(where, i32(0), shared, i32(pixels_at + i * 8))
            h, v, place = i32(h0 + (where[1] >> 16)), i32(v0 + (where[1] & 0xFFFF)), i32(to + i * (images * 4))
            inside = h >= 0 and h < image[0] and v >= 0 and v < image[1]
            copy(shared, i32(place ^ ((place >> 2) & exchanged)), at + i64(where[0]), inside)

    return fill, corner, copy_pixels
