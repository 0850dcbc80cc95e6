"""Batch normalization on strided memory: what its kernels share, and how they work. Results are rounded once, at the end.

Three steps, each in two shapes of loop. ``moments`` and ``sums`` reduce pieces of the channels: (count, mean, M2), or the sums
that gradients need; their pieces follow from the problem alone and are joined in order, so that no thread count changes a
bit. ``apply`` then walks the elements once more. In ``rows.py`` a run of neighbouring elements belongs to one channel
(NCHW), in ``columns.py`` to as many channels as it is long (NHWC, per-activation): there a line holds as many rows as fit,
and what is a number a channel is repeated for each, so that every loop is as long as a line.

Elements are taken from memory itself where it holds what a line would, whole runs at once; results go to a line that is no
operand's, as a loop that may overwrite what it reads is not vectorised. Elements are centred in the type of the lines,
float32 or float64, before they are squared: around the mean of the first line of a piece, or the mean given, so that a
large mean costs nothing. Sums of lines are added in float64.

``kept``, ``outer``, ``red`` and ``step`` hold one element stride for each operand; dtypes are numbers, see
``lang/typed.py``. Each thread has LINES lines at ``lines``, of like's type. ``direct``: all operands have neighbours,
of the type of the array ``stored``, which are widened and rounded in registers and need no line. Loading this module
imports Numba.
"""

from __future__ import annotations

from numbadnn.cpu.lang.typed import inner

#: elements of a line in scratch, lines of a thread, and from one to the next
LINE, LINES, PITCH = 1024, 7, 1088


@inner
def product(shape):
    total = 1
    for n in shape:
        total *= n
    return total


@inner
def share(total, parts, part):
    return total * part // parts, total * (part + 1) // parts


@inner
def line_at(lines, tid, number, like):
    """Address of one of a thread's lines."""
    return lines + (tid * LINES + number) * PITCH * like.itemsize


@inner
def finite(value):
    """The value to centre around: 0 for one that would turn all else into NaN."""
    return value if abs(value) < float("inf") else 0.0


@inner
def element(base, offset, stored):
    """The address of an element."""
    return base + offset * stored.itemsize
