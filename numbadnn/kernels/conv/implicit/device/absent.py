"""Recompute sums of the images' gradient of ``device/pixels.py`` that are NaN: see ``conv/device/absent.py``.

The copy engine brings zeros where a tap of the filters meets no output. A pixel that lacks no tap keeps its NaN, and so does
one whose terms make NaN: adding ends with the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.device.absent import perhaps_nan, put_in, taken
from numbadnn.kernels.conv.implicit.device.index import divided, located
from numbadnn.kernels.conv.implicit.pixels_config import ROW
from numbadnn.kernels.lang.access import load
from numbadnn.kernels.lang.cuda import cuda, device, f32, i32, i64, u32
from numbadnn.problem import ITEMSIZE


@device
def _along(turn, first, position, phase, lower, base, slope, spread, hop):
    """(the tap that is met in this turn, where it is met)."""
    tap = i32(first + turn * hop)
    return tap, i32(position + lower + i32(u32(base + tap * slope + phase) // u32(spread)))


def _met(axes: int) -> Callable[..., Any]:
    """``met(tap, place, ...)`` -> (whether it meets an output, where that lies in its image, the number of the filter's tap)."""
    deep = axes == 3

    @device
    def met(tap, place, phase, firsts, counts, lower, taps, base, slope, spread, hop, sizes, steps):
        turn_r, turn_s = divided(tap, counts[2])
        turn_t, turn_r = divided(turn_r, counts[1])
        r, y = _along(turn_r, firsts[1], place[2], phase[1], lower[-2], base[-2], slope[-2], spread[-2], hop[-2])
        s, x = _along(turn_s, firsts[2], place[3], phase[2], lower[-1], base[-1], slope[-1], spread[-1], hop[-1])
        there = y >= 0 and y < sizes[-2] and x >= 0 and x < sizes[-1]
        at = place[0] * steps[0] + y * steps[-2] + x * steps[-1]
        if deep:
            t, z = _along(turn_t, firsts[0], place[1], phase[0], lower[0], base[0], slope[0], spread[0], hop[0])
            there = there and z >= 0 and z < sizes[0]
            at += z * steps[1]
            r = i32(t * taps[-2] + r)
        return there, at, i32(r * taps[-1] + s)

    return met


def mend_sums(dtype: str, axes: int, n: int, by_rows: bool) -> Callable[..., None]:
    """``mend(sums, operands, pixel, column, group, share, phase, firsts, counts, ...)``: the sums of 64 pixels by ``n`` columns.

    ``operands``: addresses of the image and of the filters; ``share``: the first step and the one behind the last;
    ``phase``, ``firsts`` and ``counts`` have three axes each, all else what the kernel is told.
    """
    every, size, terms, read = n // 2, ITEMSIZE[dtype], ROW // ITEMSIZE[dtype], load(dtype, "float32")
    suspicious, take, put = perhaps_nan(every), taken("float32", every), put_in("float32", every)
    met, position = _met(axes), located(axes)

    @device
    def mend(
        sums, operands, pixel, column, group, share, phase, firsts, counts, images, depth, width, positions, lower, taps, base,
        slope, spread, hop, tap_start, tap_step, sizes, steps, filter_steps,
    ):  # fmt: skip
        if suspicious(sums, 0):
            thread = i32(cuda.threadIdx.x)
            first = i32(pixel + ((thread >> 5) & 3) * 16 + ((thread & 31) >> 2))
            chunks = i32(u32(depth + terms - 1) // u32(terms))
            for i in range(every):
                old = take(sums, 0, i32(i))
                place = position(i32(first + 8 * ((i >> 1) & 1)), positions)
                mine = i32(column + (thread & 3) * 2 + 8 * (i >> 2) + (i & 1))
                if old != old and mine < width and place[0] < images:
                    lacks = False
                    for step in range(share[0], share[1]):
                        tap, _ = divided(i32(step), chunks)
                        there, _, _ = met(
                            tap, place, phase, firsts, counts, lower, taps, base, slope, spread, hop, sizes, steps
                        )  # fmt: skip
                        lacks = lacks | (not there)
                    total = f32(0)
                    step = share[0] if lacks else share[1]
                    while step < share[1] and total == total:
                        tap, chunk = divided(i32(step), chunks)
                        there, at, tap = met(
                            tap, place, phase, firsts, counts, lower, taps, base, slope, spread, hop, sizes, steps
                        )  # fmt: skip
                        term, end = i32(chunk * terms), min(i32(chunk * terms + terms), depth)
                        while there and term < end and total == total:
                            source = operands[0] + (at + group * depth + term) * size
                            if by_rows:
                                filters = i64(group * width + mine) * filter_steps[0] + term
                            else:
                                filters = i64(group * depth + term) * filter_steps[0] + mine
                            filters += i64(tap_start + tap * tap_step) * filter_steps[1]
                            total = f32(total + read(source) * read(operands[1] + filters * size))
                            term = i32(term + 1)
                        step = i32(step + 1)
                    if lacks:
                        put(sums, 0, i32(i), total)

    return mend
