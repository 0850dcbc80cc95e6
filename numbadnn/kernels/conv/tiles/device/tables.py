"""Where a convolution's elements lie, as two tables that make all three directions the same matrix product.

A row (or a term) of the product is a *position* or a *tap* of a channel. What position p meets with tap t lies at
``offset(p) + offset(t)``, and is padding where ``bits(p) & bits(t)`` is not 0: a tap's bits name its place along each
axis, a position's are the taps that fall outside, and bit 31. What does not exist has all bits (position) or bit 31
alone (tap), so that it meets nothing. The third number is the offset in the operand that is not gathered. Forward: rows
are output positions, terms taps. Gradient of the filters: the other way round. Gradient of the image: rows are the
image's positions, gathering from y, in ``stride`` phases along each axis, each of which meets only its own taps.

    row   = offset in what is gathered | bits | offset in the result | how many blocks of terms it has
    terms = (offset in what is gathered | bits) of each in a block, then (offset in the other | 1, or 0 for none) of each
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.cuda import cuda, device, i32, i64, u32
from numbadnn.kernels.lang.words import write_pair, write_words

THREADS = 256
#: what a tap adds that the phase has not: no coordinate is that large
NONE = 1 << 30
#: the bit of what does not exist; as an offset, no place to write to
LAST_BIT = -(2**31)


def _split() -> Any:
    """``split(i, sizes) -> (a, b, c, d)``: i = ((a * sizes[0] + b) * sizes[1] + c) * sizes[2] + d."""

    @device
    def split(i, sizes):
        high = i32(u32(i) // u32(sizes[2]))
        middle = i32(u32(high) // u32(sizes[1]))
        first = i32(u32(middle) // u32(sizes[0]))
        return first, i32(middle - first * sizes[0]), i32(high - middle * sizes[1]), i32(i - high * sizes[2])

    return split


def _along(inputs: bool) -> tuple[Any, Any, Any]:
    """(coordinate, shift, nth): one axis; ``inputs``: of the gradient of the image.

    ``coordinate(at, phase, padding, stride)``: where tap 0 would meet what is gathered, rounded down; ``shift(tap, phase,
    padding, dilation, stride)``: what a tap adds to it; ``nth(number, phase, taps, padding, dilation, stride)``: (how many
    taps a phase has, which has this number, what it adds).
    """

    @device
    def coordinate(at, phase, padding, stride):
        return i32(at * stride - padding)

    @device
    def shift(tap, phase, padding, dilation, stride):
        return i32(tap * dilation)

    @device
    def nth(number, phase, taps, padding, dilation, stride):
        return taps, number, i32(number * dilation)

    if not inputs:
        return coordinate, shift, nth

    @device
    def coordinate_back(at, phase, padding, stride):
        return i32(u32(at * stride + phase + padding) // u32(stride))

    @device
    def shift_back(tap, phase, padding, dilation, stride):
        ahead = i32(phase + padding)
        ahead = i32(ahead - i32(u32(ahead) // u32(stride)) * stride)
        behind = i32(tap * dilation + stride - ahead)
        whole = i32(u32(behind) // u32(stride))
        return i32(1 - whole) if whole * stride == behind else i32(NONE)

    @device
    def nth_back(number, phase, taps, padding, dilation, stride):
        seen, found, adds = i32(0), i32(0), i32(0)
        for tap in range(taps):
            added = shift_back(i32(tap), phase, padding, dilation, stride)
            if added != NONE:
                found, adds = (i32(tap), added) if seen == number else (found, adds)
                seen = i32(seen + 1)
        return seen, found, adds

    return coordinate_back, shift_back, nth_back


def _outside(shift: Any) -> Any:
    """``outside(at, phase, taps, extent, ...)``: a bit for each tap that meets nothing."""

    @device
    def outside(at, phase, taps, extent, padding, dilation, stride):
        bits = i32(0)
        for tap in range(taps):
            met = i32(at + shift(i32(tap), phase, padding, dilation, stride))
            if met < 0 or met >= extent:
                bits = i32(bits | i32(i32(1) << i32(tap)))
        return bits

    return outside


def _position(inputs: bool) -> Any:
    """``position(i, phases, geometry, sizes) -> (offset, bits, other offset, whether there is one)``."""
    split, (coordinate, shift, _) = _split(), _along(inputs)
    outside = _outside(shift)

    @device
    def position(i, phases, count, geometry, places, limits, extents, strides, others):
        taps, padding, stride, dilation = geometry
        n, a, b, c = split(i, places)
        d, h, w = (
            coordinate(a, phases[0], padding[0], stride[0]),
            coordinate(b, phases[1], padding[1], stride[1]),
            coordinate(c, phases[2], padding[2], stride[2]),
        )
        bits = outside(w, phases[2], taps[2], extents[2], padding[2], dilation[2], stride[2])
        high = outside(h, phases[1], taps[1], extents[1], padding[1], dilation[1], stride[1])
        bits = i32(i32(bits << taps[1]) | high)
        high = outside(d, phases[0], taps[0], extents[0], padding[0], dilation[0], stride[0])
        bits = i32(i32(bits << taps[0]) | high)
        if inputs:
            a, b, c = i32(a * stride[0] + phases[0]), i32(b * stride[1] + phases[1]), i32(c * stride[2] + phases[2])
        there = i < count and a < limits[0] and b < limits[1] and c < limits[2]
        offset = i32(n * strides[0] + d * strides[2] + h * strides[3] + w * strides[4])
        other = i32(n * others[0] + a * others[1] + b * others[2] + c * others[3])
        return offset if there else i32(0), i32(bits | i32(LAST_BIT)) if there else i32(-1), other, there

    return position


def _tap(inputs: bool, taps_first: bool) -> tuple[Any, Any]:
    """``members(phases, geometry)``: how many taps a phase has along each axis; ``tap``: as ``position``."""
    split, (_, _, nth) = _split(), _along(inputs)

    @device
    def members(phases, geometry):
        taps, padding, stride, dilation = geometry
        t, _, _ = nth(i32(0), phases[0], taps[0], padding[0], dilation[0], stride[0])
        r, _, _ = nth(i32(0), phases[1], taps[1], padding[1], dilation[1], stride[1])
        s, _, _ = nth(i32(0), phases[2], taps[2], padding[2], dilation[2], stride[2])
        return t, r, s

    @device
    def tap(i, phases, counted, channels, geometry, strides, w_start, w_strides):
        taps, padding, stride, dilation = geometry
        ts, rs, ss = counted
        area = i32(ts * rs * ss)
        there = i < channels * area
        sizes = (i32(max(ts, i32(1))), i32(max(rs, i32(1))), i32(max(ss, i32(1))))
        if taps_first:
            number = i32(u32(i) // u32(channels))
            channel = i32(i - number * channels)
        else:
            channel = i32(u32(i) // u32(sizes[0] * sizes[1] * sizes[2]))
            number = i32(i - channel * area)
        _, t, r, s = split(number, sizes)
        _, t, d = nth(t, phases[0], taps[0], padding[0], dilation[0], stride[0])
        _, r, h = nth(r, phases[1], taps[1], padding[1], dilation[1], stride[1])
        _, s, w = nth(s, phases[2], taps[2], padding[2], dilation[2], stride[2])
        bits = i32(i32(i32(1) << t) | i32(i32(1) << i32(taps[0] + r)) | i32(i32(1) << i32(taps[0] + taps[1] + s)))
        offset, other = i32(0), i32(0)
        if there:
            offset = i32(channel * strides[1] + d * strides[2] + h * strides[3] + w * strides[4])
            other = i32(w_start + channel * w_strides[0] + t * w_strides[1] + r * w_strides[2] + s * w_strides[3])
        return offset, bits if there else i32(LAST_BIT), other, there

    return members, tap


def tables(direction: str, taps_first: bool) -> Callable[..., None]:
    """Write ``rows`` and ``terms``; ``taps_first``: channels count within taps, else taps within channels.

    ``counts``: positions of a phase, rows and terms of one (up to the next tile), terms of a tile. ``places``: how
    positions are counted; ``limits``: those there are; ``extents``: those there are of what is gathered.
    """
    inputs, weights = direction == "grad_inputs", direction == "grad_weights"
    split, position, (members, tap) = _split(), _position(inputs), _tap(inputs, taps_first)

    def kernel(
        rows, terms, phase_count, counts, channels, taps, padding, stride, dilation, places, limits, extents, strides,
        others, w_start, w_strides,
    ):  # fmt: skip
        number = i32(i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x)
        is_row = number < phase_count * counts[1]
        each = counts[1] if is_row else counts[2]
        number = number if is_row else i32(number - phase_count * counts[1])
        phase = i32(u32(number) // u32(each))
        if phase >= phase_count:
            return
        i = i32(number - phase * each)
        geometry = (taps, padding, stride, dilation)
        _, j, k, l = split(phase, stride)
        phases = (j, k, l) if inputs else (i32(0), i32(0), i32(0))
        counted = members(phases, geometry)
        if is_row != weights:
            offset, bits, other, there = position(
                i, phases, counts[0], geometry, places, limits, extents, strides, others
            )
        else:
            offset, bits, other, there = tap(i, phases, counted, channels, geometry, strides, w_start, w_strides)
        last = i32(1) if there else i32(0)
        if is_row:
            length = counts[0]
            if not weights:
                t, r, s = counted
                length = i32(channels * t * r * s)
            last = i32(u32(length + counts[3] - 1) // u32(counts[3]))
        if not there:
            other = i32(LAST_BIT) if is_row else i32(0)
        if is_row:
            write_words(rows + i64(number) * 16, offset, bits, other, last)
        else:  # a block of terms: first what tells of the gathered operand, then of the other
            inside = i32(i - i32(u32(i) // u32(counts[3])) * counts[3])
            address = terms + i64(number - inside) * 16 + i64(inside) * 8
            write_pair(address, offset, bits)
            write_pair(address + i64(counts[3]) * 8, other, last)

    return kernel
