"""The workspace of ``f32x2.py`` in boxes, and the kernel that reduces it: ``device/f32x2_reduce.py``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.launch import Kernel, reciprocal
from numbadnn.kernels.conv.unshared.inputs.f32x2_config import (
    AHEAD_OF_SUMS,
    LANES,
    LARGE,
    LINE,
    REDUCED,
    REDUCERS,
    WIDTH,
    InputsF32x2Config,
)
from numbadnn.kernels.conv.unshared.parts.tile import facts_of, receptive_field
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem


def strips_of(problem: ConvProblem, config: InputsF32x2Config) -> int:
    """Rows of positions, ``rows`` at a time."""
    return -(-problem.y.shape[2] // config.rows)


def parts_of(problem: ConvProblem, config: InputsF32x2Config) -> int:
    """How many blocks the columns of all strips are dealt to."""
    return -(-strips_of(problem, config) * problem.y.shape[3] // config.positions)


def box_of(problem: ConvProblem, config: InputsF32x2Config) -> tuple[int, int]:
    """Rows and columns of pixels that a block's columns of a strip reach, at most."""
    return receptive_field(problem, config.tile)


def most_boxes(problem: ConvProblem, config: InputsF32x2Config) -> int:
    """That may hold a pixel: of as many strips and, in each, of as many blocks as its positions can be in."""
    strips = -(-box_of(problem, config)[0] // (config.rows * problem.stride[0]))
    columns = -(-problem.taps[1] // problem.stride[1])
    return strips * (-(-(columns - 1) // config.positions) + 1)


def boxes_bytes(problem: ConvProblem, config: InputsF32x2Config) -> int:
    """Of all images. A block has a box in each strip that it has columns of; the next one's are counted on from there."""
    boxes = strips_of(problem, config) + parts_of(problem, config)
    return boxes * math.prod(box_of(problem, config)) * problem.x.shape[1] * config.images * 4


def blocks_of(problem: ConvProblem, config: InputsF32x2Config) -> int:
    return parts_of(problem, config) * problem.groups * -(-problem.w.shape[3] // config.channels)


def reduce_kernel(images: int, ahead: int) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.inputs.device import f32x2_reduce

        return f32x2_reduce.reduce(images, ahead)

    parameters = Arguments(
        *("ptr:4", "i32 N K C groups", "i32*2 image output padding taps stride tile", "i32 strips", "i32*2 box"),
        *("i32 flip most each forgotten", "i64*2 by_width by_down by_right by_columns"),
        *("i64*4 x_strides y_steps", "i64*3 w_steps", "f32 alpha beta"),
    )
    threads = LANES * images // WIDTH
    return Kernel(f"unshared inputs twofold reduce {images} {ahead}", parameters, build, threads, 1024 // threads, True)


def reducing_boxes(problem: ConvProblem, policy: Policy, config: InputsF32x2Config) -> Any:
    """The launch that adds boxes."""
    _, C, H, W = problem.x.shape
    threads = LANES * config.images // WIDTH
    boxes = most_boxes(problem, config)
    ahead = next((n for n in AHEAD_OF_SUMS if boxes <= n), AHEAD_OF_SUMS[-1])
    most = -(-boxes // ahead) * ahead
    each = max(1, min(REDUCED, C * H * W * threads // LANES // REDUCERS))
    forgotten = config.images * 4 == LINE and boxes_bytes(problem, config) >= LARGE
    chosen, (down, right) = reduce_kernel(config.images, ahead), problem.stride
    scalars = chosen.values(
        facts_of(problem),
        tile=config.tile,
        strips=strips_of(problem, config),
        box=box_of(problem, config),
        most=most,
        each=each,
        forgotten=int(forgotten),
        by_width=reciprocal(W),
        by_down=reciprocal(config.rows * down),
        by_right=reciprocal(right),
        by_columns=reciprocal(config.positions),
        y_steps=tuple(4 * step for step in problem.y.strides),
        w_steps=tuple(4 * step for step in problem.w.strides[:3]),
    )
    grid, block = (-(-(H * W) // LANES), -(-C // each), 1), (threads, 1, 1)
    shared = 4 * (2 * config.images * (LANES + 1) + LANES * most)
    return chosen.prepare(policy.device, grid, block, scalars, shared)
