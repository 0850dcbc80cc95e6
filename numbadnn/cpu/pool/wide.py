"""Windows as wide as a row: each channel by itself, as an image of one channel, by the loops for channels that are neighbours.

Rows that are taken apart by columns (``lines.py``) need a line, of 48 numbers at least, for each column of a window that is as
wide as its stride: 200 bytes an element for the average of a whole row. The other loops need none, add in the same order, and
take 0.04 to 0.3 of the time there (maxima and averages of whole images of 7 x 7 to 224 x 224, float32, on an EPYC).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numbadnn.problem import Spec
from numbadnn.problems.pool import PoolProblem

#: columns of a window from which on its gradient goes so too; two columns have a kernel of their own
GRADIENT = 7
#: bytes of lines that may be many times the row's, as they stay near
NEAR, TIMES = 1 << 20, 8


def is_wide(problem: PoolProblem, window: int, outputs: int, line_bytes: int) -> bool:
    """Whether the channels of this problem go one by one; along a row: its windows, how many, and the bytes of its lines."""
    row = problem.x.shape[-1] * problem.x.itemsize
    if line_bytes > max(NEAR, TIMES * row):
        return True
    return outputs == 1 and (problem.op == "pool" or window >= GRADIENT)


def one_channel(problem: PoolProblem) -> tuple[PoolProblem, int]:
    """The problem of images of one channel each, and the axis, batch or channels, of whose entries each is such a problem."""
    images = 0 if problem.x.shape[0] >= problem.x.shape[1] else 1

    def of(spec: Spec | None) -> Any:
        if spec is None:
            return None
        return replace(
            spec,
            shape=(spec.shape[images], 1, *spec.shape[2:]),
            strides=(spec.strides[images], 1, *spec.strides[2:]),
        )

    x, y, dy, dx = map(of, (problem.x, problem.y, problem.dy, problem.dx))
    return replace(problem, x=x, y=y, dy=dy, dx=dx), 1 - images


def one_by_one(run: Callable[..., None], axis: int, count: int) -> Callable[..., None]:
    """``run`` for each of ``count`` entries of an axis of all arrays."""
    if count == 1:
        return run

    def run_all(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        for i in range(count):
            index = (slice(None),) * axis + (i,)
            run(tuple(a[index] for a in inputs), tuple(a[index] for a in outputs), workspace, stream)

    return run_all
