"""The gradient of the images where filters are infinite: a position outside y gives no product, so it must give no NaN.

The products of ``gather.py`` and ``conv/last/last.py`` meet zeros there, and zero times infinity is NaN. (Forward they
are the image's padding and part of the sum.) Loading this module imports Numba.
"""

from __future__ import annotations

from numbadnn.cpu.conv.micro import NV
from numbadnn.cpu.lang.elements import accsize, load1, peek, poke
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import has_nan, lanes, load_acc, multiply_add, zeros


@inner
def finite(tile, rows, like):
    """Whether all sums of the first rows of a tile are."""
    size = lanes(like) * accsize(like)
    wrong, wrong2 = zeros(like), zeros(like)
    for v in range(0, rows * NV, 2):  # infinity times zero is NaN, as NaN times zero is
        wrong = multiply_add(load_acc(tile + v * size, like), zeros(like), wrong)
        wrong2 = multiply_add(load_acc(tile + (v + 1) * size, like), zeros(like), wrong2)
    return not has_nan(multiply_add(wrong, wrong, wrong2))


@inner
def sum_inside(tile, steps, channels, pixels, src, filters, offsets, taps, phase, geo, m0, j0, like):
    """Sum anew what is not finite of the first channels and pixels of a tile: channel m0 + i at pixel j0 + j of the phase.

    ``steps``: in the tile, between channels and between pixels; ``src`` and ``filters`` are the group's, ``offsets`` and ``taps``
    the phase's.
    """
    for i in range(channels):
        row = (m0 + i) * geo.a_row
        infinite = 0
        for k in range(len(offsets)):
            infinite += load1(filters, row + offsets[k], like) * 0 != 0
        for j in range(pixels if infinite else 0):
            at = i * steps[0] + j * steps[1]
            if peek(tile, at, like) * 0 != 0:
                poke(tile, at, _sum(src, filters, row, offsets, taps, phase, geo, j0 + j, like), like)


@inner
def _sum(src, filters, row, offsets, taps, phase, geo, pixel, like):
    """One sum, over the taps that meet the image; NaN as soon as it is that. ``pixel``: of the rows as they are laid out."""
    line, q = divmod(pixel, phase[13])
    slices, p = divmod(line, phase[12])
    n, o = divmod(slices, phase[0])
    total = 0.0
    if p >= phase[1] or q >= phase[2]:
        return total  # between rows: it belongs to no output
    for t in range(len(taps)):
        d, h, w = o * geo.step_d + taps[t, 0], p * geo.step_h + taps[t, 1], q * geo.step_w + taps[t, 2]
        if 0 <= d < geo.D and 0 <= h < geo.H and 0 <= w < geo.W:
            at = n * geo.src_n + d * geo.src_d + h * geo.src_h + w * geo.src_w
            for c in range(len(offsets) // len(taps)):
                value = load1(src, at + c * geo.src_c, like)
                total += value * load1(filters, row + offsets[c * len(taps) + t], like)
            if total != total:
                return total
    return total
