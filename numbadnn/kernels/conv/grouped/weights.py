"""``numba.grouped_halves`` for the filters: each block sums some of the positions, and a second kernel adds these sums."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.launch import Kernel, sequence
from numbadnn.kernels.build.plans import around, one_launch
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.kernels.conv.grouped import weights_config as configurations
from numbadnn.kernels.conv.grouped.access import CHANNELS
from numbadnn.kernels.conv.grouped.weights_config import SPAN, GroupedWeightsConfig, partial_bytes, tiles_of
from numbadnn.problem import Policy, normalised_strides
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

PARAMETERS = Arguments(
    *("ptr:3", "i32 batch images", "i32*3 blocks", "i32*2 tile", "i32*3 halo", "i32*2 image output"),
    *(
        "i32 tiles splits",
        "i32*2 widths",
        "i32 capacity",
        "i32*4 bytes_of",
        "i32*2 stride origin dilation taps",
        "i32 units",
    ),
    *("i64 x_step", "i32*3 x_strides", "i64 y_step", "i32*3 y_strides", "i64 split_stride", "i64*4 strides"),
    *("i64 start", "f32 alpha beta"),
)


def weights_kernel(dtype: str, config: GroupedWeightsConfig) -> Kernel:
    """The kernel of these bundles; images, tile and shares are arguments and no part of it."""
    arguments = (dtype, replace(config, images=1, tile=(1, 1), splits=1))
    made_by = "conv.grouped.device.weights.weights"
    return Kernel.of("grouped_halves_weights", made_by, arguments, PARAMETERS, config.threads, config.resident)


def total_kernel(dtype: str, lanes: int, linear: bool) -> Kernel:
    """The sum over shares, which ``lanes`` warps share; ``linear``: the filters lie as the sums do."""
    parameters = "ptr ptr i32 i64 i32 i32 i32*2 i64*4 f32 f32"
    made_by, arguments = "conv.grouped.device.total.total", (dtype, lanes, linear)
    return Kernel.of("grouped_halves_total", made_by, arguments, parameters, 32 * lanes)


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Why it cannot, "" if it can; what all directions ask for is asked elsewhere."""
    if problem.w.shape[1] not in CHANNELS and not configurations.is_few(problem):
        return "needs 4, 8, 16 or 32 channels a group, or an image of at most 4"
    if not configurations.tall_of(problem):
        return (
            "needs filters that fill products: 16, 32 or 64 of a group of 16 channels, of smaller groups in proportion"
        )
    if not all(configurations.loads(problem)):
        return "needs aligned channels-last images, and an even number of filters"
    if configurations.is_few(problem) and problem.dilation[1] > 1 and problem.taps[1] > 1:
        return "needs neighbouring columns of an image of few channels"
    if math.prod(problem.w.shape) >= LIMIT32:
        return "needs filters of fewer than 2**31 elements"
    if configurations.heuristic(problem, policy.workspace_limit) is None:
        return f"needs a smaller part of the image for a row of positions, or more than {policy.workspace_limit} of workspace"
    return ""


def _linear(problem: ConvProblem) -> tuple[int, int, int, int]:
    """Strides of sums: filters, taps, channels."""
    _, depth, down, along = problem.w.shape
    return down * along * depth, 1, along * depth, depth


def _arguments(problem: ConvProblem, config: GroupedWeightsConfig) -> tuple[Any, ...]:
    """Everything the kernel takes after its addresses."""
    x, y = problem.x, problem.y
    strides, size = (problem.w.strides, 2) if config.direct else (_linear(problem), 4)
    turn = -1 if problem.flip else 1
    start = sum(s * (t - 1) * size for s, t in zip(strides[2:], problem.taps, strict=True)) if problem.flip else 0
    blocks = tiles_of(problem, config)
    return PARAMETERS(
        batch=x.shape[0],
        images=config.images,
        blocks=blocks,
        tile=config.tile,
        halo=config.halo(problem),
        image=x.shape[2:],
        output=y.shape[2:],
        tiles=-(-x.shape[0] // config.images) * blocks[0] * blocks[1],
        splits=config.splits,
        widths=(x.shape[1], y.shape[1]),
        capacity=config.capacity,
        bytes_of=(config.x_bytes(problem), config.y_bytes(), config.image_bytes(problem), config.apart(problem)),
        stride=problem.stride,
        origin=tuple(low for low, _ in problem.padding),
        dilation=problem.dilation,
        taps=problem.taps,
        units=configurations.units(problem),
        x_step=x.strides[0],
        x_strides=x.strides[1:],
        y_step=y.strides[0],
        y_strides=y.strides[1:],
        split_stride=partial_bytes(problem),
        strides=(*strides[:2], turn * strides[2], turn * strides[3]),
        start=start,
        alpha=problem.alpha,
        beta=problem.beta,
    )


def total_launch(problem: ConvProblem, splits: int, device: int) -> Any:
    """The second kernel made ready."""
    w, count = problem.w, math.prod(problem.w.shape)
    # few elements: more threads an element, so that memory is asked for enough at a time
    lanes = next((n for n in (16, 8, 4, 2) if splits >= 2 * n and n * count <= 1 << 20), 1)
    linear = normalised_strides(w.shape, w.strides) == normalised_strides(w.shape, _linear(problem))
    scalars = (splits, partial_bytes(problem), count, w.shape[1], problem.taps, w.strides, problem.alpha, problem.beta)
    grid = (-(-count // SPAN), 1, 1)
    return total_kernel(w.dtype, lanes, linear).prepare(device, grid, (32 * lanes, 1, 1), scalars, 4 * SPAN * lanes)


def plan(problem: ConvProblem, policy: Policy, config: GroupedWeightsConfig | None = None) -> Executable:
    """Two launches, the partial sums between them are the workspace; one where nothing is shared."""
    config = config or configurations.heuristic(problem, policy.workspace_limit)
    assert config is not None, "supports() said that one fits"
    chosen = weights_kernel(problem.x.dtype, config)
    grid = (config.splits * tiles_of(problem, config)[2], 1, 1)
    scalars = _arguments(problem, config)
    main = chosen.prepare(policy.device, grid, (config.threads, 1, 1), scalars, config.shared_bytes(problem))
    if config.direct:
        return one_launch(chosen, main, config, "tensor_core", "run_to_run", SEQUENCE)
    second = total_launch(problem, config.splits, policy.device)
    direct = sequence("x y w space", [(main, "x y space"), (second, "space w")])

    facts = {"kernel": chosen.name, "config": config}
    return around(direct, facts, config.splits * partial_bytes(problem), "tensor_core", "run_to_run", SEQUENCE)


def rank(problem: ConvProblem) -> float:
    """Microseconds: two fifths of the speed of a copy, and the second launch; to be held against what was measured of others."""
    return 12 + max(problem.bytes / 1.8e6, problem.flops / 2e8)


def kernels() -> Iterator[Kernel]:
    """Each number of channels a group, an even and an odd stride of images of few channels, and the sum."""
    for line in (
        "x=float16:32x128x56x56:nhwc w=float16:128x4x3x3:nhwc pad=1,1,1,1 groups=32",
        "x=bfloat16:32x256x56x56:nhwc w=bfloat16:256x8x3x3 pad=1,1,1,1 stride=2,2 groups=32",
        "x=float16:32x512x28x28:nhwc w=float16:512x16x3x3 pad=1,1,1,1 stride=2,2 groups=32",
        "x=float16:32x1024x7x7:nhwc w=float16:1024x32x3x3:nhwc pad=1,1,1,1 groups=32",
        "x=float16:32x3x224x224:nhwc w=float16:64x3x7x7:nhwc pad=3,3,3,3 stride=2,2",
        "x=bfloat16:16x3x224x224:nhwc w=bfloat16:64x3x3x3:nhwc pad=1,1,1,1",
    ):
        problem = ConvProblem.parse(f"conv2d_grad_wrt_weights {line}")
        config = configurations.heuristic(problem)
        assert config is not None
        yield weights_kernel(problem.x.dtype, replace(config, splits=1))
    yield total_kernel("float16", 1, True)
    yield total_kernel("bfloat16", 16, False)
