"""``numba.first_layer``: a network's first convolution, of an image of up to four channels and a stride of two, in 16-bit types.

Channels last, such an image has too few channels for an operand of a matrix product, and gathering them pixel by pixel costs
more than the product. Here pixels have room for four channels in shared memory, so that two of them are 16 bytes, and a stride
of two moves a window by one pair: the pairs of neighbouring positions are neighbours, which ldmatrix reads as they lie
(``device/first_layer.py``). The sums' order is fixed by the filters' sizes alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.plans import one_launch
from numbadnn.kernels.build.support import LIMIT32, device_reason, float32_reason
from numbadnn.kernels.conv.image.first_layer_config import RESULTS, FirstLayerConfig
from numbadnn.kernels.conv.parts import by_channels_last, in_parts
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable, Impl, register

MOST_STEPS, MOST_CHANNELS = 16, 4
#: of a block, on the multiprocessors that have the least; of all blocks of an H200's, and how many it has
SHARED_BYTES, ALL_SHARED_BYTES, MULTIPROCESSORS = 99 * 1024, 224 * 1024, 132
MOST_COLUMNS, MOST_TIMED = 128, 4
PARAMETERS = Arguments(
    *("ptr:3", "i32 count", "i32*2 tiles image output", "i32 top left", "i64 w_start", "i32*4 w_strides"),
    *("i64 x_step", "i32 x_line", "i64 y_step", "i32*2 y_strides", "f32 alpha beta"),
)


def _tiles(problem: ConvProblem, config: FirstLayerConfig) -> tuple[int, int]:
    """Of an image, down and along."""
    _, _, P, Q = problem.y.shape
    return -(-P // config.rows), -(-Q // config.columns)


def _count(problem: ConvProblem, config: FirstLayerConfig) -> int:
    return problem.y.shape[0] * math.prod(_tiles(problem, config))


def _together(config: FirstLayerConfig) -> int:
    """Blocks of an H200's multiprocessors."""
    return MULTIPROCESSORS * max(1, min(config.resident, ALL_SHARED_BYTES // (config.shared_bytes + 1024)))


def _turns(problem: ConvProblem, config: FirstLayerConfig) -> int:
    """Tiles of the block that has most."""
    return -(-_count(problem, config) // _together(config))


def heuristic(problem: ConvProblem) -> FirstLayerConfig | None:
    """The first that ``space`` lists, None where none fits."""
    return next(iter(space(problem)), None)


def space(problem: ConvProblem) -> list[FirstLayerConfig]:
    """Every configuration worth timing: those that come out even on the multiprocessors; a tile takes what a row does besides."""
    left = problem.padding[1][0]
    wide = problem.y.shape[3]
    parts = -(-wide // MOST_COLUMNS)
    columns = -(-wide // (16 * parts)) * 16
    base = FirstLayerConfig(
        channels=problem.x.shape[1],
        parts=problem.w.shape[0] // RESULTS,
        taps=(problem.taps[0], problem.taps[1]),
        stride=(problem.stride[0], problem.stride[1]),
        front=left % 2,
        skip=-(left + left % 2) % 4,
        rows=4,
        columns=columns,
        warps=4,
        resident=3,
    )
    found = [c for c in (replace(base, rows=rows) for rows in range(1, 9)) if c.shared_bytes <= SHARED_BYTES]
    return sorted(found, key=lambda c: _turns(problem, c) * (c.rows + 1))[:MOST_TIMED]


def kernel(dtype: str, config: FirstLayerConfig) -> Kernel:
    """The kernel of a configuration; sizes and strides are arguments."""
    made_by = "conv.image.device.first_layer.convolve"
    return Kernel.of("first_layer", made_by, (dtype, config), PARAMETERS, config.threads, config.resident)


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Why it cannot, "" if it can."""
    if problem.axes != 2 or problem.unshared or problem.groups > 1:
        return "needs two spatial axes, shared filters and one group"
    if problem.x.itemsize != 2:
        return "needs float16 or bfloat16"
    if reason := float32_reason(policy):
        return reason
    if max(problem.dilation) > 1:
        return "has no kernel for dilated filters"
    if problem.stride[1] not in (2, 4):
        return "needs a stride of 2 or 4 along the rows"
    x, y = problem.x, problem.y
    if not all(s.size for s in (x, problem.w, y)):
        return "needs operands that are not empty"
    channels, results = x.shape[1], y.shape[1]
    if channels > MOST_CHANNELS or results % RESULTS or results // RESULTS not in (1, 2, 4):
        return f"needs an image of at most {MOST_CHANNELS} channels, and 32, 64 or 128 results"
    if not x.aligned or x.strides[3] != channels or (x.strides[1] != 1 and channels > 1):
        return "needs an aligned image whose channels, then pixels are next to each other"
    if x.shape[3] % 4 or x.strides[2] % 4 or x.strides[0] % 4:
        return "needs rows of whole groups of four pixels"
    if not y.aligned or y.strides[1] != 1 or any(s % 8 for s in (y.strides[0], *y.strides[2:])):
        return "needs aligned channels-last results"
    # of one image: what is taken must not depend on how many there are
    images = (replace(spec, shape=(1, *spec.shape[1:])) for spec in (x, y))
    if max(max(-a, b) for a, b in (spec.span for spec in (*images, problem.w))) >= LIMIT32:
        return "needs images and filters whose offsets fit 32 bits"
    config = heuristic(problem)
    if config is None or config.steps > MOST_STEPS:
        return "needs fewer taps"
    return device_reason(policy)


def plan(problem: ConvProblem, policy: Policy, config: FirstLayerConfig | None = None) -> Executable:
    """One launch."""
    config = config or heuristic(problem)
    assert config is not None, "supports() said that one fits"
    chosen = kernel(problem.x.dtype, config)
    x, w, y = problem.x, problem.w, problem.y
    (top, _), (left, _) = problem.padding
    tiles, count = _tiles(problem, config), _count(problem, config)
    start, down, along = 0, w.strides[2], w.strides[3]
    if problem.flip:
        start = (w.shape[2] - 1) * down + (w.shape[3] - 1) * along
        down, along = -down, -along
    scalars = chosen.values(
        count=count,
        tiles=tiles,
        image=x.shape[2:],
        output=y.shape[2:],
        top=top,
        left=left + config.front + config.skip,
        w_start=start,
        w_strides=(w.strides[0], w.strides[1], down, along),
        x_step=x.strides[0],
        x_line=x.strides[2],
        y_step=y.strides[0],
        y_strides=y.strides[2:],
        alpha=problem.alpha,
        beta=problem.beta,
    )
    grid = (min(count, _together(config)), 1, 1)
    launch = chosen.prepare(policy.device, grid, (config.threads, 1, 1), scalars, config.shared_bytes)
    return one_launch(chosen, launch, config, "tensor_core", "batch_invariant", SEQUENCE)


def _space(problem: ConvProblem, policy: Policy) -> list[FirstLayerConfig]:
    return space(problem)


def rank(problem: ConvProblem) -> float:
    """Microseconds: half the speed of a copy."""
    if problem.axes != 2 or problem.unshared or problem.x.itemsize != 2:
        return math.inf
    return 6 + max(problem.bytes / 2.0e6, problem.flops / 2e8)


def kernels() -> Iterator[Kernel]:
    """The first layers of ResNet and of MobileNet."""
    for line in (
        "conv2d x=float16:32x3x224x224:nhwc w=float16:64x3x7x7:nhwc pad=3,3,3,3 stride=2,2",
        "conv2d x=bfloat16:32x3x224x224:nhwc w=bfloat16:32x3x3x3 y=bfloat16:32x32x112x112:nhwc pad=1,1,1,1 stride=2,2",
    ):
        problem = ConvProblem.parse(line)
        config = heuristic(problem)
        assert config is not None
        yield kernel(problem.x.dtype, config)


_HOW = ("numba", "numba.first_layer", supports, plan, rank, "tensor_core", "batch_invariant")
register(in_parts(by_channels_last(Impl("conv2d", *_HOW, space=_space))))
