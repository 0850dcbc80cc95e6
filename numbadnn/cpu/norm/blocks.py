"""What batch normalization makes of an element: formulas for ``lang/blocks.py``.

``apply_line``: out = (x - m) * a + b, dy * a + (x - m) * b + c, or dy * a, where ``m``, ``a``, ``b`` and ``c`` are numbers (a run
of one channel) or lines (a channel for each element). ``add_moments`` and ``add_sums`` add what each element gives to lines.
Loading this module imports Numba.
"""

from __future__ import annotations

from numbadnn.cpu.lang.blocks import adder, applier
from numbadnn.cpu.lang.typed import inner


def _forward(builder, x, dy, m, a, b, c):
    return builder.fadd(builder.fmul(builder.fsub(x(), m), a), b)


def _gradient(builder, x, dy, m, a, b, c):
    around = builder.fadd(builder.fmul(builder.fsub(x(), m), b), c)
    return builder.fadd(builder.fmul(dy(), a), around)


def _scaled(builder, x, dy, m, a, b, c):
    return builder.fmul(dy(), a)


def _moments(builder, x, dy, centre):
    d = builder.fsub(x(), centre)
    return d, builder.fmul(d, d)


def _sums(builder, x, dy, centre):
    v, d = dy(), builder.fsub(x(), centre)
    return v, builder.fmul(v, d), d


#: to lines of d and of d * d; of dy, of dy * d and of d
add_moments, add_sums = adder(_moments), adder(_sums)
_apply_forward, _apply_gradient, _apply_scaled = applier(_forward), applier(_gradient), applier(_scaled)


@inner
def apply_line(kind, out, x, dy, given, n, like, past):
    """n neighbouring elements of like's type: kinds 0, 1 and 2 of the formulas above; ``past`` the caches, where that can be."""
    if kind == 0:
        _apply_forward(out, x, dy, given, n, like, past)
    elif kind == 1:
        _apply_gradient(out, x, dy, given, n, like, past)
    else:
        _apply_scaled(out, x, dy, given, n, like, past)
