"""``numba.grouped_halves``: convolutions of 16-bit types with few channels a group, in three directions.

Four to 32 channels a group, or an image of up to four: too few for products as large as ``numba.implicit_gemm``'s, and a
matter of bytes. Each block reads its part of an image once, for all taps, and multiplies in registers and shared memory
(``device/grouped.py``); a gradient of strides has all its phases from the same part of y. Any stride, dilation and padding
forward; the sums' order is fixed by the filters' sizes alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.build.plans import one_launch
from numbadnn.kernels.build.support import LIMIT32, device_reason, float32_reason, reach_reason
from numbadnn.kernels.conv.grouped import config as configurations
from numbadnn.kernels.conv.grouped import weights as grouped_halves_weights
from numbadnn.kernels.conv.grouped.access import CHANNELS, load_width, put_width
from numbadnn.kernels.conv.grouped.config import GroupedHalvesConfig
from numbadnn.kernels.conv.grouped.walk import Walk
from numbadnn.kernels.conv.parts import in_parts
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable, Impl, register

PARAMETERS = Arguments(
    *("ptr:3", "i32 count", "i32*3 blocks", "i32*2 tile", "i32*3 halo", "i32*2 image output", "i32 groups down"),
    *("i32*2 apart origin top left tall broad step starts_down starts_along", "i32*5 w_strides"),
    *("i64 source_step", "i32*3 source_strides", "i64 result_step", "i32*2 result_strides", "f32 alpha beta"),
)


def kernel(direction: str, dtype: str, config: GroupedHalvesConfig) -> Kernel:
    """The kernel of these groups; the tile is an argument and no part of it."""
    # the tile is an argument of the kernel
    arguments = (dtype, replace(config, tile=(1, 1)), direction == "grad_inputs")
    made_by = "conv.grouped.device.grouped.convolve"
    return Kernel.of("grouped_halves", made_by, arguments, PARAMETERS, config.threads, config.resident)


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Why it cannot, "" if it can."""
    if problem.axes != 2 or problem.unshared:
        return "needs two spatial axes and shared filters"
    if problem.x.itemsize != 2:
        return "needs float16 or bfloat16"
    if reason := float32_reason(policy) or reach_reason(problem):
        return reason
    specs = (problem.x, problem.w, problem.y)
    if not all(s.size for s in specs):
        return "needs operands that are not empty"
    # of one image: what is taken must not depend on how many there are
    within = (_image(problem.x), problem.w, _image(problem.y))
    if max(abs(v) for s in within for v in s.span) >= LIMIT32 or max(map(_edge, specs[::2])) >= LIMIT32 // 4:
        return "needs images, filters and coordinates whose offsets fit 32 bits"
    if problem.direction == "grad_weights":
        return grouped_halves_weights.supports(problem, policy) or device_reason(policy)
    walk = Walk.of(problem)
    if reason := _channels_reason(walk):
        return reason
    if problem.direction == "grad_inputs" and max(problem.stride) > 2:
        return "has a gradient of the image for strides of 1 and 2"
    config = configurations.heuristic(problem)
    if config is None:
        return "needs fewer taps, or a smaller part of the image for a row of results"
    if walk.source.shape[0] * math.prod(_counts(walk, config)) >= LIMIT32:
        return "needs fewer than 2**31 blocks"
    return device_reason(policy)


def _channels_reason(walk: Walk) -> str:
    few = walk.groups == 1 and 0 < walk.channels <= 4
    if walk.channels not in CHANNELS and not few:
        return "needs 4, 8, 16 or 32 channels a group, or an image of at most 4"
    if (walk.groups > 1 and walk.results % 2) or walk.results > configurations.MOST_RESULTS:
        return f"needs an even number of results a group, at most {configurations.MOST_RESULTS}"
    if not load_width(walk) or not put_width(walk, 1):
        return "needs aligned channels-last images"
    return ""


def _image(spec: Spec) -> Spec:
    """The first image."""
    return replace(spec, shape=(1, *spec.shape[1:]))


def _edge(spec: Any) -> int:
    return int(max(spec.shape[2:]))


def plan(problem: ConvProblem, policy: Policy, config: Any = None) -> Executable:
    """One launch; of the filters' gradient two."""
    if problem.direction == "grad_weights":
        return grouped_halves_weights.plan(problem, policy, config)
    config, walk = config or configurations.heuristic(problem), Walk.of(problem)
    assert config is not None, "supports() said that one fits"
    chosen = kernel(problem.direction, problem.x.dtype, config)
    counts = _counts(walk, config)
    grid = blocks(-(-walk.source.shape[0] // config.images) * math.prod(counts), 1)
    scalars = chosen.values(_geometry(problem, walk, config), blocks=counts)
    launch = chosen.prepare(policy.device, grid, (config.threads, 1, 1), scalars, config.shared_bytes(walk))
    return one_launch(chosen, launch, config, "tensor_core", "batch_invariant", SEQUENCE)


def _counts(walk: Walk, config: GroupedHalvesConfig) -> tuple[int, int, int]:
    """Tiles down and along an image, and bundles of groups."""
    (height, width), (down, along) = walk.positions, config.tile
    return -(-height // down), -(-width // along), -(-walk.groups // config.groups)


def _geometry(problem: ConvProblem, walk: Walk, config: GroupedHalvesConfig) -> dict[str, Any]:
    """What the kernel takes besides the number of its blocks."""
    rows, columns, w = walk.rows, walk.columns, problem.w.strides
    down, along = w[2:]
    filters = problem.w.shape[0] // problem.groups
    within = (w[0], w[1]) if problem.direction == "forward" else (w[1], w[0])
    return {
        "count": walk.source.shape[0],
        "tile": config.tile,
        "halo": config.halo(walk),
        "image": walk.source.shape[2:],
        "output": walk.result.shape[2:],
        "groups": walk.groups,
        "down": rows.stride,
        "apart": (rows.apart, columns.apart),
        "origin": (rows.origin, columns.origin),
        "top": tuple(low - rows.origin for low in rows.lows),
        "left": tuple(low - columns.origin for low in columns.lows),
        "tall": rows.counts,
        "broad": columns.counts,
        "step": (rows.step, columns.step),
        "starts_down": tuple(first * down for first in rows.firsts),
        "starts_along": tuple(first * along for first in columns.firsts),
        "w_strides": (filters * w[0], *within, rows.turn * down, columns.turn * along),
        "source_step": walk.source.strides[0],
        "source_strides": walk.source.strides[1:],
        "result_step": walk.result.strides[0],
        "result_strides": walk.result.strides[2:],
        "alpha": problem.alpha,
        "beta": problem.beta,
    }


def _space(problem: ConvProblem, policy: Policy) -> list[Any]:
    if problem.direction == "grad_weights":
        return list(grouped_halves_weights.configurations.space(problem, policy.workspace_limit))
    return configurations.space(problem)


def rank(problem: ConvProblem) -> float:
    """Microseconds: two fifths of the speed of a copy; to be held against what was measured of others."""
    if problem.axes != 2 or problem.unshared:
        return math.inf
    if problem.direction == "grad_weights":
        return grouped_halves_weights.rank(problem)
    return 8 + max(problem.bytes / 1.8e6, problem.flops / 2e8)


def kernels() -> Iterator[Kernel]:
    """Each number of channels a group, both directions, both orders of the filters, images of few channels."""
    for line in (
        "conv2d x=float16:32x128x56x56:nhwc w=float16:128x4x3x3:nhwc pad=1,1,1,1 groups=32",
        "conv2d x=bfloat16:32x256x56x56:nhwc w=bfloat16:256x8x3x3 pad=1,1,1,1 stride=2,2 groups=32",
        "conv2d x=float16:32x1024x7x7:nhwc w=float16:1024x32x3x3:nhwc pad=1,1,1,1 groups=32",
        "conv2d x=float16:32x3x224x224:nhwc w=float16:64x3x7x7:nhwc pad=3,3,3,3 stride=2,2",
        "conv2d_grad_wrt_inputs x=float16:32x512x28x28:nhwc w=float16:512x16x3x3:nhwc pad=1,1,1,1 stride=2,2 groups=32",
        "conv2d_grad_wrt_inputs x=bfloat16:32x128x56x56:nhwc w=bfloat16:128x4x3x3:nhwc pad=1,1,1,1 groups=32",
    ):
        problem = ConvProblem.parse(line)
        config = configurations.heuristic(problem)
        assert config is not None
        yield kernel(problem.direction, problem.x.dtype, config)
    yield from grouped_halves_weights.kernels()


for _op in ("conv2d", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights"):
    _level = "run_to_run" if _op == "conv2d_grad_wrt_weights" else "batch_invariant"
    _how = ("numba", "numba.grouped_halves", supports, plan, rank, "tensor_core", _level)
    register(in_parts(Impl(_op, *_how, space=_space)))
