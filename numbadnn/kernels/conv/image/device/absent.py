"""Recompute one result of the images' gradient of ``to_image.py`` or ``to_image_halves.py``: see ``conv/device/absent.py``."""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.lang.access import load
from numbadnn.kernels.lang.cuda import device, f32, i32, i64
from numbadnn.problem import ITEMSIZE


def add_anew(
    dtype: str, taps: tuple[int, int], stride: tuple[int, int], first: tuple[int, int]
) -> Callable[..., float]:
    """``add(source, filters, K, image, strides, w_strides, c, h, w)``: the sum that the host side of the module writes down.

    ``source``: where its image begins, of K channels and ``image`` rows and columns; ``strides`` of channels, rows and columns.
    """
    (R, S), (down, across), (top, left), size, read = taps, stride, first, ITEMSIZE[dtype], load(dtype, "float32")

    @device
    def add(source, filters, K, image, strides, w_strides, c, h, w):
        total = f32(0)
        for k in range(K):
            for r in range(R):
                for s in range(S):
                    row, column = i32(h + top - r), i32(w + left - s)
                    p, q = i32(row // down), i32(column // across)
                    if (
                        row >= 0
                        and p * down == row
                        and p < image[0]
                        and column >= 0
                        and q * across == column
                        and q < image[1]
                    ):
                        at = i32(k * w_strides[0] + c * w_strides[1] + r * w_strides[2] + s * w_strides[3])
                        pixel = read(source + i64(i32(k * strides[0] + p * strides[1] + q * strides[2])) * size)
                        total = f32(total + pixel * read(filters + i64(at) * size))
        return total

    return add
