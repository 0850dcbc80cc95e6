"""The gradient of the images where filters have few positions: filters and gradient exchange their roles.

``dx[i] = sum over p of dy[p] * w[i + pad - p * stride]``. Taken tap by tap, most products are with positions outside of y:
a filter of n x n over one position costs n**4 for n**2. Taken position by position, the filters are the image that is read,
and y's gradient is what it is multiplied by: the lists of ``gather.py``, with a tap for each position.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from numbadnn.cpu.conv.geometry import Geometry
from numbadnn.cpu.conv.terms import Terms, named
from numbadnn.problems.conv import ConvProblem

#: taps that a pixel meets for each position: with fewer, more positions lie inside, and pixels are read side by side
ENOUGH = 2


def few_positions(problem: ConvProblem) -> bool:
    """Whether to compute it so; filters whose taps lie apart have pixels between them that meet none."""
    if problem.direction != "grad_inputs" or problem.unshared:
        return False
    apart = any(d > 1 and n > 1 for d, n in zip(problem.dilation, problem.taps, strict=True))
    positions, taps = math.prod(problem.y.shape[2:]), math.prod(problem.taps)
    return not apart and taps > ENOUGH * positions * math.prod(problem.stride)


def position_terms(problem: ConvProblem, block: tuple[int, int], rows: int, planes: bool) -> tuple[Any, Terms]:
    """Geometry and lists of ``gather.py``, of volumes: what is read are the filters, what multiplies is y's gradient."""

    x, w, y, G = problem.x, problem.w, problem.y, problem.groups
    Kg, Cg, turned = w.shape[0] // G, w.shape[1], -1 if problem.flip else 1
    geo = Geometry(
        M=x.shape[0],
        G=G,
        a_group=Kg * y.strides[1],
        a_row=y.strides[0],
        **named("", "DHW", problem.taps),
        src_group=Kg * w.strides[0],
        src_c=w.strides[0],
        src_n=w.strides[1],
        **named("src_", "dhw", [turned * s for s in w.strides[2:]]),
        **named("step_", "dhw", (1, 1, 1)),
        out_group=Cg * x.strides[1],
        out_m=x.strides[0],
        out_n=x.strides[1],
        **named("out_", "dhw", x.strides[2:]),
        outside=1,
    )
    axes = zip(y.shape[2:], problem.stride, problem.padding, y.strides[2:], strict=True)
    places = [[(low - p * step, p * stride) for p in range(n)] for n, step, (low, _), stride in axes]
    taps = [(*(at for at, _ in tap), sum(offset for _, offset in tap)) for tap in itertools.product(*places)]
    terms = Terms(Cg, (1, 1, 1) if planes else None)
    terms.add_phase(x.shape[2:], 0, taps, Kg, y.strides[1], G * -(-geo.M // rows), block)
    return geo, terms


def begin_of(problem: ConvProblem) -> int:
    """The element of the filters that is read first: flipped ones are read from their ends."""
    if not problem.flip:
        return 0
    return sum((n - 1) * s for n, s in zip(problem.taps, problem.w.strides[2:], strict=True))
