"""What a block of ``device/weights.py`` writes into shared memory itself: images of few channels, a table of positions."""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.grouped.device.fill import PIXELS, few_channels, write_at
from numbadnn.kernels.conv.grouped.weights_config import PIXEL, GroupedWeightsConfig
from numbadnn.kernels.lang.cuda import WORD, cuda, device, i32, u32


def gather_few(config: GroupedWeightsConfig) -> Callable[..., None]:
    """``fill(shared, to, apart, source, corner, halo, image, strides)``: an image of few channels, 8 bytes a pixel.

    Where a position may lie at an odd pixel there is a second image ``apart`` bytes on, one pixel further left: 16 bytes are
    read at a time, at multiples of 16.
    """
    threads, twice, count = config.threads, config.copies == 2, PIXELS * config.channels
    read, words = few_channels(config.channels, config.threads)

    @device
    def fill(shared, to, apart, source, corner, halo, image, strides):
        held = cuda.local.array(count, WORD)
        pixels = i32(halo[0] * halo[1])
        for start in range(i32(cuda.threadIdx.x), pixels, PIXELS * threads):
            read(held, start, source, corner, halo, image, strides)
            for i in range(PIXELS):
                pixel = i32(start + i * threads)
                row = i32(u32(pixel) // u32(halo[1]))
                if pixel < pixels:
                    column = i32(pixel - row * halo[1])
                    at = i32(to + (row * halo[2] + column) * PIXEL)
                    low, high = words(held, i)
                    write_at(shared, at, low)
                    write_at(shared, i32(at + 4), high)
                    if twice and column > 0:
                        write_at(shared, i32(at + apart - PIXEL), low)
                        write_at(shared, i32(at + apart - PIXEL + 4), high)

    return fill


def table_of(config: GroupedWeightsConfig) -> Callable[..., None]:
    """``fill(shared, at, capacity, images, tile, line, apart, stride, image_bytes)``: where each position lies, row and column.

    Of several images rows go on; positions past the last are below every row.
    """
    threads, pitch, few, twice = config.threads, config.pitch, config.few, config.copies == 2

    @device
    def fill(shared, at, capacity, images, tile, line, apart, stride, image_bytes):
        for e in range(i32(cuda.threadIdx.x), capacity, threads):
            i = i32(u32(e) // u32(tile[1]))
            j = i32(e - i * tile[1])
            image = i32(u32(i) // u32(tile[0]))
            down = i32((i - image * tile[0]) * stride[0])
            place = i32(image * image_bytes + (down * line + (j * stride[1] if few else j)) * pitch)
            if twice and (j * stride[1]) % 2 == 1:
                place = i32(place + apart - PIXEL)
            number = i32(i * 65536 + j) if image < images else i32(0x7FFF0000)
            write_at(shared, i32(at + 8 * e), u32(place))
            write_at(shared, i32(at + 8 * e + 4), u32(number))

    return fill
