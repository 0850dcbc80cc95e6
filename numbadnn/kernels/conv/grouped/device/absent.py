"""Recompute sums of the images' gradient of ``device/grouped.py`` that are NaN: see ``conv/device/absent.py``."""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.device.absent import any_nan, put_in
from numbadnn.kernels.conv.grouped.config import GroupedHalvesConfig
from numbadnn.kernels.lang.access import load
from numbadnn.kernels.lang.cuda import device, f32, i32, i64, u32

SIZE = 2


def mend_sums(dtype: str, config: GroupedHalvesConfig) -> Callable[..., None]:
    """``mend(total, own, k, group, groups, tile, source, w, corner, counts, step, apart, image, strides, w_strides)``.

    ``own``: a lane's first position of the tile; ``k``: its first result of ``group``, the warp's first; ``source``: where the
    image begins; ``w``: the phase's first tap; ``corner``: what the tile's first position meets with it; ``apart``: positions.
    """
    channels, results, wide, read = config.channels, config.results, config.wide, load(dtype, "float32")
    count = 4 * wide * config.bunch
    wrong, put = any_nan(count), put_in("float32", count)

    @device
    def add(source, w, row, column, counts, step, image, stride, w_stride, row_stride, column_stride, tap_strides):
        total = f32(0)
        for r in range(counts[0]):
            for s in range(counts[1]):
                h, v = i32(row + r * step[0]), i32(column + s * step[1])
                if h >= 0 and h < image[0] and v >= 0 and v < image[1]:
                    x = i32(h * row_stride + v * column_stride)
                    at = i32(r * tap_strides[0] + s * tap_strides[1])
                    for c in range(channels):
                        tap = read(w + i64(i32(at + c * w_stride)) * SIZE)
                        total = f32(total + read(source + i64(i32(x + c * stride)) * SIZE) * tap)
        return total

    @device
    def mend(total, own, k, group, groups, tile, source, w, corner, counts, step, apart, image, strides, w_strides):
        if wrong(total, 0):
            for slot in range(count):
                number = i32(u32(slot) // u32(4 * wide))
                n = i32(u32(slot - number * (4 * wide)) // u32(4))
                position, result = i32(own + 8 * ((slot >> 1) & 1)), i32(k + n * 8 + (slot & 1))
                mine = i32(group + number)
                if position < tile[0] * tile[1] and result < results and mine < groups:
                    i = i32(u32(position) // u32(tile[1]))
                    row, column = i32(corner[0] + i * apart[0]), i32(corner[1] + (position - i * tile[1]) * apart[1])
                    pixels = source + i64(mine * channels) * i64(strides[0]) * SIZE
                    taps = w + (i64(mine) * w_strides[0] + i64(result) * w_strides[1]) * SIZE
                    value = add(
                        pixels, taps, row, column, counts, step, image, strides[0], w_strides[2], strides[1], strides[2],
                        (w_strides[3], w_strides[4]),
                    )  # fmt: skip
                    put(total, 0, i32(slot), value)

    return mend
