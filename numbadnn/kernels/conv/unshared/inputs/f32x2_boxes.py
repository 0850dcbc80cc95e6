"""The workspace of ``f32x2.py`` in boxes, and the kernel that reduces it: ``device/f32x2_reduce.py``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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
from numbadnn.kernels.conv.unshared.parts.tile import receptive_field
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem


def strips_of(problem: ConvProblem, config: InputsF32x2Config) -> int:
    """Rows of positions, ``rows`` at a time."""
    return -(-problem.y.shape[2] // config.rows)


def parts_of(problem: ConvProblem, config: InputsF32x2Config) -> int:
    """How many blocks the columns of all strips are dealt to."""
    return -(-strips_of(problem, config) * problem.y.shape[3] // config.places)


def box_of(problem: ConvProblem, config: InputsF32x2Config) -> tuple[int, int]:
    """Rows and columns of pixels that a block's columns of a strip reach, at most."""
    return receptive_field(problem, config.tile)


def most_boxes(problem: ConvProblem, config: InputsF32x2Config) -> int:
    """That may hold a pixel: of as many strips and, in each, of as many blocks as its positions can be in."""
    strips = -(-box_of(problem, config)[0] // (config.rows * problem.stride[0]))
    columns = -(-problem.taps[1] // problem.stride[1])
    return strips * (-(-(columns - 1) // config.places) + 1)


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

    parameters = (
        "ptr ptr ptr ptr i32 i32 i32 i32 "
        + "i32*2 " * 6
        + "i32 i32*2 i32 i32 i32 i32 "
        + "i64*2 " * 4
        + "i64*4 i64*4 i64*3 f32 f32"
    )
    threads = LANES * images // WIDTH
    return Kernel(
        f"unshared inputs twofold collect {images} {ahead}", parameters, build, threads, 1024 // threads, True
    )


def reducing_boxes(problem: ConvProblem, policy: Policy, config: InputsF32x2Config) -> Any:
    """The launch that adds boxes."""
    (N, C, H, W), w, box = problem.x.shape, problem.w, box_of(problem, config)
    threads = LANES * config.images // WIDTH
    boxes = most_boxes(problem, config)
    ahead = next((n for n in AHEAD_OF_SUMS if boxes <= n), AHEAD_OF_SUMS[-1])
    most = -(-boxes // ahead) * ahead
    each = max(1, min(REDUCED, C * H * W * threads // LANES // REDUCERS))
    forgotten = config.images * 4 == LINE and boxes_bytes(problem, config) >= LARGE
    scalars = (
        *(N, w.shape[0] // problem.groups, w.shape[3], problem.groups, (H, W), problem.y.shape[2:]),
        *(tuple(low for low, _ in problem.padding), problem.taps, problem.stride, config.tile),
        *(strips_of(problem, config), box, int(problem.flip), most, each, int(forgotten)),
        *(reciprocal(n) for n in (W, config.rows * problem.stride[0], problem.stride[1], config.places)),
        *(problem.x.strides, tuple(4 * step for step in problem.y.strides), tuple(4 * step for step in w.strides[:3])),
        *(problem.alpha, problem.beta),
    )
    grid, block = (-(-(H * W) // LANES), -(-C // each), 1), (threads, 1, 1)
    shared = 4 * (2 * config.images * (LANES + 1) + LANES * most)
    return reduce_kernel(config.images, ahead).prepare(policy.device, grid, block, scalars, shared)
