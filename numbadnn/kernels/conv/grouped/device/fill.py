"""What a block of ``numba.grouped_halves`` brings into shared memory: part of an image, and the filters of some groups.

Pixels lie [row][remainder of the column by the stride][column], so that what neighbouring results meet through one tap are
neighbours. What is outside the image, and terms that no tap has, are zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.grouped.config import ZEROS, GroupedHalvesConfig
from numbadnn.kernels.lang.async_copies import copy_or_zero
from numbadnn.kernels.lang.bits import load_bits
from numbadnn.kernels.lang.cuda import SIMULATED, WORD, cuda, device, i32, i64, u32
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted

#: pixels and words that a thread asks memory for at a time
PIXELS, WORDS = 4, 8
SIZE = 2


def _write_at() -> Callable[..., None]:
    if SIMULATED:

        def twin(shared, address, word):
            shared[address // 4] = word

        return twin

    @emitted(None, ARRAY, i32, u32)
    def write(builder, shared, address, word):
        builder.store(word, builder.inttoptr(address, word.type.as_pointer(3)))

    return write


#: ``write_at(shared, address, word)``: a word of shared memory by address, so that what is known of it becomes an immediate
write_at = _write_at()


def column_slot(across: int) -> Callable[..., Any]:
    """``slot(column, slots)``: where in its row a column lies; ``slots`` columns have one remainder by ``across``."""

    @device
    def slot(column, slots):
        if across == 1:
            return i32(column)
        nearby = i32(u32(column) // u32(across))
        return i32((column - nearby * across) * slots + nearby)

    return slot


def fill_image(
    load: int, across: int, pitch: int, threads: int, channels: int
) -> tuple[Callable[..., Any], Callable[..., None]]:
    """``begin(columns)``, and ``fill(shared, base, source, first, count, corner, halo, image, strides, place)``: copies begin.

    ``source`` is where the image starts, ``first`` the first channel of a block, which has so many ``channels``, the image
    ``count``; ``strides`` are those of channels, rows and columns; ``columns`` is halo[1]. Pixels lie ``pitch`` bytes apart. A
    thread has the same channels of pixels that lie a fixed number apart, and walks them by additions from ``place`` on, which
    ``begin`` works out once: (its share of the channels, first row and column, rows and columns to the next).
    """
    shares = channels // load
    apart = threads // shares
    copy, slot = copy_or_zero(SIZE * load), column_slot(across)

    @device
    def begin(columns):
        pixel = i32(u32(cuda.threadIdx.x) // u32(shares))
        row = i32(u32(pixel) // u32(columns))
        down = i32(u32(apart) // u32(columns))
        share = i32(cuda.threadIdx.x - pixel * shares)
        return share, row, i32(pixel - row * columns), down, i32(apart - down * columns)

    @device
    def fill(shared, base, source, first, count, corner, halo, image, strides, place):
        share, row, column, down, right = place
        there = first + share * load < count
        start = source + i64(first + share * load) * SIZE
        to = i32(base + share * (load * SIZE))
        while row < halo[0]:
            h, v = i32(corner[0] + row), i32(corner[1] + column)
            inside = there and h >= 0 and h < image[0] and v >= 0 and v < image[1]
            address = start + i64(i32(h * strides[1] + v * strides[2])) * SIZE
            at = i32(to + (row * (halo[2] * across) + slot(column, halo[2])) * pitch)
            copy(shared, at, address if inside else source, inside)
            row = i32(row + down)
            column = i32(column + right)
            row = i32(row + 1) if column >= halo[1] else row
            column = i32(column - halo[1]) if column >= halo[1] else column

    return begin, fill


def few_channels(channels: int, threads: int) -> tuple[Any, Any]:
    """(read, words) of an image of at most four channels, read one by one: of PIXELS at a time, so that loads overlap.

    ``read(held, start, source, corner, halo, image, strides)``: those of this thread from number ``start`` of the tile on;
    ``words(held, i) -> (low, high)`` of the i-th of them, four channels, zeros where there are fewer.
    """
    half = load_bits(SIZE)

    @device
    def read(held, start, source, corner, halo, image, strides):
        pixels = i32(halo[0] * halo[1])
        for i in range(PIXELS):
            pixel = i32(start + i * threads)
            row = i32(u32(pixel) // u32(halo[1]))
            h, v = i32(corner[0] + row), i32(corner[1] + pixel - row * halo[1])
            inside = pixel < pixels and h >= 0 and h < image[0] and v >= 0 and v < image[1]
            address = source + (i64(i32(h * strides[1] + v * strides[2])) * SIZE if inside else i64(0))
            kept = u32(0xFFFF) if inside else u32(0)
            for c in range(channels):
                held[i * channels + c] = u32(half(address + i64(i32(c * strides[0])) * SIZE) & kept)

    @device
    def words(held, i):
        low, high = held[i * channels], u32(0)
        if channels > 1:
            low = u32(low | (held[i * channels + min(1, channels - 1)] << u32(16)))
        if channels > 2:
            high = held[i * channels + min(2, channels - 1)]
        if channels > 3:
            high = u32(high | (held[i * channels + channels - 1] << u32(16)))
        return low, high

    return read, words


def gather_image(config: GroupedHalvesConfig) -> Callable[..., None]:
    """``fill`` for images of at most four channels."""
    across, threads, count = config.across, config.threads, PIXELS * config.channels
    slot, (read, words) = column_slot(across), few_channels(config.channels, config.threads)

    @device
    def fill(shared, base, source, first, channels, corner, halo, image, strides, place):
        held = cuda.local.array(count, WORD)
        pixels = i32(halo[0] * halo[1])
        for start in range(i32(cuda.threadIdx.x), pixels, PIXELS * threads):
            read(held, start, source, corner, halo, image, strides)
            for i in range(PIXELS):
                pixel = i32(start + i * threads)
                row = i32(u32(pixel) // u32(halo[1]))
                if pixel < pixels:
                    place = i32(row * (halo[2] * across) + slot(i32(pixel - row * halo[1]), halo[2]))
                    at = u32(ZEROS // 4 + 2 * place)
                    low, high = words(held, i)
                    shared[at] = low
                    shared[u32(at + u32(1))] = high

    return fill


def fill_filters(config: GroupedHalvesConfig) -> Callable[..., None]:
    """``fill(shared, base, offset, w, first, groups, counts, strides)``: rows [group][result] of terms [tap][channel].

    Where a term's results lie together, and its terms do not, rows [group][tap][channel] of results.

    ``first``: of the block's groups; ``counts``: rows and columns of taps; ``strides`` of groups, results, channels and both axes
    of taps. ``base`` is the address of shared memory, where ``offset`` bytes on the filters begin.
    """
    if config.rows:
        return _copy_rows(config)
    return _copy_filters(config) if config.packed else _turn_filters(config)


def _copy_rows(config: GroupedHalvesConfig) -> Callable[..., None]:
    threads, pitch, channels, eights = config.threads, config.filter_pitch, config.channels, config.eights
    terms = 16 * config.every
    count, copy = config.groups * terms * eights, copy_or_zero(SIZE * 8)

    @device
    def fill(shared, base, offset, w, first, groups, counts, strides):
        for e in range(i32(cuda.threadIdx.x), count, threads):
            line = i32(u32(e) // u32(eights))
            eight = i32(e - line * eights)
            group = i32(u32(line) // u32(terms))
            term = i32(line - group * terms)
            tap = i32(u32(term) // u32(channels))
            row = i32(u32(tap) // u32(max(counts[1], i32(1))))
            inside = tap < counts[0] * counts[1] and first + group < groups
            where = i32((first + group) * strides[0] + eight * 8 + (term - tap * channels) * strides[2])
            where = i32(where + row * strides[3] + (tap - row * counts[1]) * strides[4])
            to = i32(base + offset + line * pitch + eight * (SIZE * 8))
            copy(shared, to, w + i64(where) * SIZE if inside else w, inside)

    return fill


def _copy_filters(config: GroupedHalvesConfig) -> Callable[..., None]:
    piece, threads, pitch = config.piece, config.threads, config.filter_pitch
    each, results, per_group = config.capacity // piece, config.results, config.eights * 8
    pieces = config.steps * 16 // piece
    count = config.groups * per_group * pieces
    copy = copy_or_zero(SIZE * piece)

    @device
    def fill(shared, base, offset, w, first, groups, counts, strides):
        for e in range(i32(cuda.threadIdx.x), count, threads):
            line = i32(u32(e) // u32(pieces))
            term = i32(e - line * pieces)
            group = i32(u32(line) // u32(per_group))
            result = i32(line - group * per_group)
            tap = i32(u32(term) // u32(each))
            row = i32(u32(tap) // u32(max(counts[1], i32(1))))
            inside = tap < counts[0] * counts[1] and result < results and first + group < groups
            where = i32((first + group) * strides[0] + result * strides[1] + (term - tap * each) * piece)
            where = i32(where + row * strides[3] + (tap - row * counts[1]) * strides[4])
            to = i32(base + offset + line * pitch + term * (SIZE * piece))
            copy(shared, to, w + i64(where) * SIZE if inside else w, inside)

    return fill


def _turn_filters(config: GroupedHalvesConfig) -> Callable[..., None]:
    """One term at a time, two to a word; neighbouring threads have neighbouring results where these lie together in memory."""
    threads, pitch, channels = config.threads, config.filter_pitch, config.channels
    pairs, results, per_group = config.capacity // 2, config.results, config.eights * 8
    along, lines, words = config.along, config.groups * config.eights * 8, config.steps * 8
    count, half, twice = lines * words, load_bits(SIZE), 2 * WORDS

    @device
    def place(e):
        if along:
            word = i32(u32(e) // u32(lines))
            return i32(e - word * lines), word
        line = i32(u32(e) // u32(words))
        return line, i32(e - line * words)

    @device
    def fill(shared, base, offset, w, first, groups, counts, strides):
        held = cuda.local.array(twice, WORD)
        for start in range(i32(cuda.threadIdx.x), count, WORDS * threads):
            for i in range(WORDS):
                line, word = place(i32(start + i * threads))
                group = i32(u32(line) // u32(per_group))
                result = i32(line - group * per_group)
                tap = i32(u32(word) // u32(pairs))
                channel = i32(2 * (word - tap * pairs))
                row = i32(u32(tap) // u32(max(counts[1], i32(1))))
                inside = tap < counts[0] * counts[1] and result < results and first + group < groups
                inside = inside and start + i * threads < count
                where = i32((first + group) * strides[0] + result * strides[1] + channel * strides[2])
                where = i32(where + row * strides[3] + (tap - row * counts[1]) * strides[4])
                low, high = inside and channel < channels, inside and channel + 1 < channels
                here = w + i64(where) * SIZE
                bits = half(here if low else w)
                held[2 * i] = bits if low else u32(0)
                bits = half(here + i64(strides[2]) * SIZE if high else w)
                held[2 * i + 1] = bits if high else u32(0)
            for i in range(WORDS):
                line, word = place(i32(start + i * threads))
                if start + i * threads < count:
                    at = u32((offset + line * pitch) // 4 + word)
                    shared[at] = u32(held[2 * i] | (held[2 * i + 1] << u32(16)))

    return fill
