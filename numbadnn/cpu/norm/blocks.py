"""What batch normalization makes of an element: formulas for ``lang/blocks.py``.

``apply_line``: out = (x - m) * a + b, dy * a + (x - m) * b + c, or dy * a, where ``m``, ``a``, ``b`` and ``c`` are numbers (a run
of one channel) or lines (a channel for each element). ``add_moments`` and ``add_sums`` add what each element gives to lines.
Loading this module imports Numba.
"""

from __future__ import annotations

from numbadnn.cpu.lang.blocks import adder, applier
from numbadnn.cpu.lang.typed import inner, into


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


@into
def _of_channel(given, channel):
    """Numbers m, a, b and c of ``apply``, of a table of all channels and an array of the type they are to have."""
    table, real = given[0], given[1].dtype.type
    return real(table[0, channel]), real(table[1, channel]), real(table[2, channel]), real(table[3, channel])


_line_forward, _line_gradient, _line_scaled = applier(_forward), applier(_gradient), applier(_scaled)
_runs_forward, _runs_gradient, _runs_scaled = (applier(f, _of_channel) for f in (_forward, _gradient, _scaled))


@inner
def apply_line(kind, out, x, dy, given, n, like, past):
    """n neighbouring elements of like's type: kinds 0, 1 and 2 of the formulas above; ``past`` the caches, where that can be."""
    if kind == 0:
        _line_forward(out, x, dy, given, n, like, past)
    elif kind == 1:
        _line_gradient(out, x, dy, given, n, like, past)
    else:
        _line_scaled(out, x, dy, given, n, like, past)


@inner
def apply_runs(kind, out, x, dy, steps, table, real, first, end, n, like, past):
    """The same of the channels ``first`` to ``end``, whose runs lie ``steps`` bytes apart; ``real``: of their numbers' type."""
    given = table, real
    if kind == 0:
        _runs_forward(out, x, dy, steps, given, first, end, n, like, past)
    elif kind == 1:
        _runs_gradient(out, x, dy, steps, given, first, end, n, like, past)
    else:
        _runs_scaled(out, x, dy, steps, given, first, end, n, like, past)
