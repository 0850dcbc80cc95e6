"""Which gradients of unshared filters of 16-bit types go to tensor cores, and in what blocks; ``_unshared_weights_halves``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import Any

from numbadnn.kernels._launch import Kernel
from numbadnn.kernels._support import accumulator_of
from numbadnn.ops.conv import ConvProblem
from numbadnn.problem import Policy
from numbadnn.registry import Executable

#: terms that a warp has at once
LANES, TILE = 32, 32
MOST_IMAGES, MOST_WARPS = 32, 8
#: of a block: two fit a multiprocessor, and one the smallest; blocks that fill the GPU
SHARED_BYTES, ENOUGH_BLOCKS = 99 * 1024, 180
#: fewer leave most rows of a product idle
FEWEST_FILTERS = 4


@dataclass(frozen=True, slots=True)
class WeightsHalvesConfig:
    """A block has ``places`` positions, ``parts`` warps for each, and ``filters`` (16 or 32) at a time.

    ``vec``: terms of an access.
    """

    images: int
    filters: int
    places: int
    parts: int
    vec: int
    tall: int
    channels: int
    resident: int = 2

    @property
    def threads(self) -> int:
        return LANES * self.places * self.parts


def seen_of(problem: ConvProblem, positions: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of the image that so many rows and columns of positions see."""
    axes = zip(positions, problem.stride, problem.taps, problem.dilation, strict=True)
    down, right = ((n - 1) * step + (taps - 1) * apart + 1 for n, step, taps, apart in axes)
    return down, right


def wide_of(problem: ConvProblem, places: int) -> int:
    """Columns of the image that so many positions of a row see."""
    return (places - 1) * problem.stride[1] + (problem.taps[1] - 1) * problem.dilation[1] + 1


def room_of(problem: ConvProblem, config: WeightsHalvesConfig) -> int:
    """Terms of a block, whole tiles."""
    return -(-config.channels * math.prod(problem.taps) // TILE) * TILE


def shared_bytes(problem: ConvProblem, config: WeightsHalvesConfig) -> int:
    box = config.channels * math.prod(seen_of(problem, (config.tall, config.places)))
    tops = config.tall * config.places * config.filters
    return 4 * (room_of(problem, config) + (box + tops) * config.images // 2)


def heuristic(problem: ConvProblem, policy: Policy) -> WeightsHalvesConfig | None:
    """None where the threads of ``numba.unshared`` are to do it."""
    w, N, Q = problem.w, problem.x.shape[0], problem.y.shape[3]
    if not problem.unshared or problem.direction != "grad_weights" or w.itemsize != 2:
        return None
    if accumulator_of(w.dtype, policy) != "float32" or policy.determinism not in ("run_to_run", "not_guaranteed"):
        return None  # how tensor cores round differs from one to the next
    K, C = w.shape[0] // problem.groups, w.shape[3]
    if N > MOST_IMAGES or K < FEWEST_FILTERS:
        return None
    images, filters = max(8, 1 << (N - 1).bit_length()), 16 if K <= 16 else 32
    rows, few = problem.y.shape[2] * problem.groups, -(-Q // 8) * problem.y.shape[2] * problem.groups < ENOUGH_BLOCKS
    tall = max(
        1, min(4, rows, problem.taps[0] // (2 * problem.stride[0]))
    )  # taps reach over each other: pixels are gathered less often
    found = []
    few = few and images == 8
    for places in (5, 4, 2, 1) if few else (8, 5, 4, 2, 1):
        for channels in (C, *(c for c in (64, 32, 16, 8, 4, 2, 1) if c < C)):
            vec, parts = vector(problem, channels), max(1, round(MOST_WARPS / places))
            config = WeightsHalvesConfig(images, filters, places, parts, vec, tall, channels)
            if shared_bytes(problem, config) <= SHARED_BYTES:
                used = Q / (-(-Q // places) * places)
                found.append((vec * (used if few else used >= 0.9), channels >= min(C, 8), places, channels, config))
                break
    return max(found, key=lambda f: f[:4])[4] if found else None


def vector(problem: ConvProblem, channels: int, most: int = 8) -> int:
    """The most terms of a filter that one access may have, in every filter, from every ``channels``-th channel on."""
    w = problem.w
    vec = most if w.aligned else 1
    while vec > 1 and any(
        v % vec for v in (math.prod(w.shape[3:]), channels * math.prod(problem.taps), *w.strides[:3])
    ):
        vec //= 2
    return vec


def kernel(dtype: str, config: WeightsHalvesConfig) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels import _unshared_weights_halves

        return _unshared_weights_halves.weights(dtype, config)

    facts = (*astuple(config)[:6], config.resident)
    parameters = "ptr ptr ptr i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32*2 i32*2 i32*2 i32*2 i32*2 i32 i32*2 "
    parameters += "i64*4 i64*3 i64*4 f32 f32"
    name = f"unshared weights halves {dtype} " + " ".join(str(v) for v in facts)
    return Kernel(name, parameters, build, config.threads, config.resident)


def plan(problem: ConvProblem, policy: Policy, config: WeightsHalvesConfig) -> Executable:
    chosen = kernel(problem.x.dtype, config)
    (N, _, H, W), (_, K, P, Q), w = problem.x.shape, problem.y.shape, problem.w
    slices, across = -(-w.shape[3] // config.channels), -(-Q // config.places)
    scalars = (
        *(slices, across, problem.groups, N, K // problem.groups, w.shape[3], config.channels, P, Q),
        *(room_of(problem, config), (H, W), w.shape[4:], tuple(low for low, _ in problem.padding)),
        *(problem.stride, problem.dilation, int(problem.flip), seen_of(problem, (config.tall, config.places))),
        *(problem.x.strides, w.strides[:3], problem.y.strides, problem.alpha, problem.beta),
    )
    grid = (slices * across * problem.groups * -(-P // config.tall), 1, 1)
    launch = chosen.prepare(policy.device, grid, (config.threads, 1, 1), scalars, shared_bytes(problem, config))

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        launch(stream, inputs[0], inputs[1], outputs[0])

    facts = {"kernel": chosen.name, "config": config}
    return Executable(run, 0, "tensor_core", "run_to_run", facts, launch.direct)


def kernels() -> Iterator[Kernel]:
    """Few images and many."""
    yield kernel("float16", WeightsHalvesConfig(8, 32, 8, 1, 8, 1, 1))
    yield kernel("bfloat16", WeightsHalvesConfig(32, 16, 4, 2, 4, 2, 1))
