"""Images turned for unshared convolutions, [channel, row, column][image] in the workspace; see ``_unshared_turned``.

The boxes of blocks overlap, so a pixel is read several times. As it lies in memory its images are far apart, and each is a read
of its own; turned once, 16 bytes of them are one asynchronous copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from numbadnn.kernels._launch import Kernel, sequence
from numbadnn.kernels._support import LIMIT32
from numbadnn.ops.conv import ConvProblem
from numbadnn.problem import Policy
from numbadnn.registry import Executable

#: pixels of 4 bytes, and threads, of a block that turns
PIXELS, THREADS = 32, 256


def space_bytes(problem: ConvProblem, images: int) -> int:
    return math.prod(problem.x.shape[1:]) * images * problem.x.itemsize


def fits(problem: ConvProblem, policy: Policy, images: int) -> bool:
    """Whether the workspace may hold them, and 32 bits their offsets."""
    space = space_bytes(problem, images)
    return 0 < space < LIMIT32 and space <= policy.workspace_limit


def strides(problem: ConvProblem, images: int) -> tuple[int, int, int, int]:
    """Of turned images."""
    _, _, H, W = problem.x.shape
    return 1, H * W * images, W * images, images


def kernel(itemsize: int, images: int) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels import _unshared_turned

        return _unshared_turned.turn(itemsize, images)

    return Kernel(f"unshared turn {itemsize} {images}", "ptr ptr i32 i32 i32*2 i64*4", build, THREADS, 4)


def executable(
    problem: ConvProblem, policy: Policy, images: int, launch: Any, arithmetic: str, level: str, facts: dict[str, Any]
) -> Executable:
    """Turns x, then ``launch``, which takes it, the other input and the output."""
    N, C, H, W = problem.x.shape
    _, planes, rows, columns = problem.x.strides
    together = rows == W * columns and planes == H * rows  # then pixels follow each other as those of one row
    scalars = (N, C * H * W, (1, C * H * W) if together else (H, W), problem.x.strides)
    grid = (-(-C * H * W // (PIXELS * 4 // problem.x.itemsize)), 1, 1)
    first = kernel(problem.x.itemsize, images).prepare(policy.device, grid, (THREADS, 1, 1), scalars)
    direct = sequence("x other result space", [(first, "x space"), (launch, "space other result")])

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        direct(stream, *inputs, outputs[0], workspace)

    return Executable(run, space_bytes(problem, images), arithmetic, level, facts, direct)


def kernels() -> Iterator[Kernel]:
    """Both sizes of elements."""
    yield kernel(2, 32)
    yield kernel(4, 16)
