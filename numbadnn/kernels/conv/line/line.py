"""``numba.line``: causal_conv1d, at three quarters of the speed of a copy as long as the sums are short.

Lines of whole pieces of 16 bytes have kernels of their own: ``line_channels`` where each channel stands alone, ``line_tiles``
and ``line_dense`` for many, and on tensor cores, of 16-bit types, ``line_toeplitz`` for the one, ``line_octets`` and
``line_halves`` for the other, of float32 ``line_twofold`` and, on Hopper, ``line_boxes``; all others, at any strides, that in
``device/kernels.py``.
Steps and filters of a thread, and few taps, are frozen into a kernel, all else is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import Any

from numbadnn.kernels.build.launch import Kernel, sequence
from numbadnn.kernels.build.plans import around, one_launch
from numbadnn.kernels.build.support import LIMIT32, accumulator_of, device_reason, reach_reason
from numbadnn.kernels.conv.line import boxes as line_boxes
from numbadnn.kernels.conv.line import channels as line_channels
from numbadnn.kernels.conv.line import dense as line_dense
from numbadnn.kernels.conv.line import halves as line_halves
from numbadnn.kernels.conv.line import octets as line_octets
from numbadnn.kernels.conv.line import tiles as line_tiles
from numbadnn.kernels.conv.line import toeplitz as line_toeplitz
from numbadnn.kernels.conv.line import twofold as line_twofold
from numbadnn.kernels.conv.line.boxes_config import BoxesConfig
from numbadnn.kernels.conv.line.channels import first_tap
from numbadnn.kernels.conv.line.channels_config import THREADS, ChannelConfig
from numbadnn.kernels.conv.line.dense import MOST_FROZEN_TAPS, MULTIPROCESSORS, SHARED_BYTES, filters_of, room_of
from numbadnn.kernels.conv.line.dense_config import DenseConfig
from numbadnn.kernels.conv.line.halves_config import LineHalvesConfig
from numbadnn.kernels.conv.line.octets_config import OctetsConfig
from numbadnn.kernels.conv.line.tiles_config import TilesConfig
from numbadnn.kernels.conv.line.toeplitz import ToeplitzConfig
from numbadnn.kernels.conv.line.twofold_config import TwofoldConfig
from numbadnn.problem import ITEMSIZE, Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable, Impl, register


@dataclass(frozen=True, slots=True)
class LineConfig:
    """``steps`` x ``filters`` sums a thread; ``taps`` frozen (0: an argument); ``room``: numbers in shared memory.

    ``packed``: the steps that a thread reads, and those that it writes, are neighbours of its neighbours' in memory.
    """

    steps: int
    filters: int
    taps: int
    room: int
    packed: bool = False


Config = (
    LineConfig
    | BoxesConfig
    | ChannelConfig
    | DenseConfig
    | LineHalvesConfig
    | OctetsConfig
    | TilesConfig
    | ToeplitzConfig
    | TwofoldConfig
)
#: whose kernels are other modules'
FAMILIES: dict[type, Any] = {
    BoxesConfig: line_boxes,
    ChannelConfig: line_channels,
    DenseConfig: line_dense,
    LineHalvesConfig: line_halves,
    OctetsConfig: line_octets,
    TilesConfig: line_tiles,
    ToeplitzConfig: line_toeplitz,
    TwofoldConfig: line_twofold,
}
TENSOR_CORES = BoxesConfig, LineHalvesConfig, OctetsConfig, ToeplitzConfig, TwofoldConfig


def heuristic(problem: ConvProblem, policy: Policy) -> Config:
    """Tensor cores, channels by themselves, or tiles of steps and filters."""
    acc = accumulator_of(problem.x.dtype, policy)
    return (
        line_octets.heuristic(problem, policy)
        or line_halves.heuristic(problem, policy)
        or line_toeplitz.heuristic(problem, policy)
        or line_channels.heuristic(problem)
        or line_boxes.heuristic(problem, policy)
        or line_twofold.heuristic(problem, policy)
        or line_tiles.heuristic(problem, acc)
        or line_dense.heuristic(problem, acc)
        or line_config(problem, acc)
    )


def line_config(problem: ConvProblem, acc: str = "float32") -> LineConfig:
    """Tiles at any strides: the fewer filters, the more steps."""
    K, (C, taps) = problem.w.shape[0] // problem.groups, (problem.w.shape[1], problem.taps[1])
    filters = filters_of(K, C * taps, acc)
    steps = 8 if filters == 1 else 4
    frozen = taps if taps <= MOST_FROZEN_TAPS else 0
    packed = problem.x.strides[3] * problem.stride[1] == 1 == problem.y.strides[3]
    return LineConfig(steps, filters, frozen, room_of(C * taps, filters), packed)


def kernel(dtype: str, acc: str, config: LineConfig) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.line.device import kernels as _line_kernels

        return _line_kernels.forward(dtype, acc, *astuple(config))

    parameters = "ptr ptr ptr i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64*3 i64 i64*3 i64*3"
    name = f"line {dtype} {acc} " + " ".join(str(int(v)) for v in astuple(config))
    return Kernel(name, parameters, build, THREADS)


def _supports(problem: ConvProblem, policy: Policy) -> str:
    if problem.unshared:
        return "needs one filter for all positions (not unshared)"
    if (
        room_of(problem.w.shape[1] * problem.taps[1], 1) * ITEMSIZE[accumulator_of(problem.x.dtype, policy)]
        > SHARED_BYTES
    ):
        return f"needs a filter of at most {SHARED_BYTES} bytes"
    if policy.precision == "float16":
        return "accumulates in float32 or float64, not in float16"
    if policy.precision == "float32" and problem.x.dtype == "float64":
        return "accumulates float64 data in float64, not in float32"
    if reason := reach_reason(problem):
        return reason
    reach = problem.x.shape[3] * max(problem.stride) + problem.padding[1][0] + THREADS * 8
    if max(reach, problem.y.size) >= LIMIT32:
        return "needs lines of fewer than 2**31 steps"
    return device_reason(policy)


def _plan(problem: ConvProblem, policy: Policy, config: Config | None = None) -> Executable:
    dtype, acc, device = problem.x.dtype, accumulator_of(problem.x.dtype, policy), policy.device
    config = config or heuristic(problem, policy)
    on_tensor_cores, family = isinstance(config, TENSOR_CORES), FAMILIES.get(type(config))
    if family:
        chosen = family.kernel(dtype, config) if on_tensor_cores else family.kernel(dtype, acc, config)
        launch = family.prepare(problem, device, config, chosen)
    else:
        assert isinstance(config, LineConfig)
        chosen = kernel(dtype, acc, config)
        launch = _prepare(problem, device, config, chosen)
    arithmetic = "ieee" if problem.x.dtype == "float32" else "tensor_core"
    if isinstance(config, BoxesConfig):
        direct = sequence("x w y", [(launch, "x y x w y")])
        return around(direct, {"kernel": chosen.name, "config": config}, 0, "ieee", "run_to_run", SEQUENCE)
    declared = (arithmetic, "run_to_run") if on_tensor_cores else ("ieee", "gpu_to_gpu")
    return one_launch(chosen, launch, config, *declared, SEQUENCE)


def _prepare(problem: ConvProblem, device: int, config: LineConfig, chosen: Kernel) -> Any:
    (N, _, _, _), (_, K, _, Q), w = problem.x.shape, problem.y.shape, problem.w
    K //= problem.groups
    tiles, blocks_of_filters = -(-Q // (THREADS * config.steps)), -(-K // config.filters)
    k, c = w.strides[:2]
    start, s = first_tap(problem)
    scalars = (
        *(blocks_of_filters, tiles, problem.groups, K, w.shape[1], problem.taps[1], Q),
        *(problem.padding[1][0], problem.stride[1], problem.dilation[1]),
        *((*problem.x.strides[:2], problem.x.strides[3]), start, (k, c, s)),
        (*problem.y.strides[:2], problem.y.strides[3]),
    )
    grid = (blocks_of_filters * tiles * problem.groups * N, 1, 1)
    return chosen.prepare(device, grid, (THREADS, 1, 1), scalars)


def _rank(problem: ConvProblem) -> float:
    """Microseconds, from an H200: memory, or the products of whole blocks, of which a multiprocessor has one at least."""
    config = heuristic(problem, Policy())
    if isinstance(config, OctetsConfig):
        return 4 + max(problem.bytes / 2.5e6, problem.flops / 1.5e8)
    if isinstance(config, ToeplitzConfig):
        return 3 + problem.bytes / 3.0e6
    if isinstance(config, LineHalvesConfig):
        return 5 + max(problem.bytes / 2.2e6, problem.flops / 1.5e8)
    if isinstance(config, ChannelConfig):
        return 3 + max(problem.bytes / 3.3e6, problem.flops / 2.5e7)
    if isinstance(config, BoxesConfig):
        return 8.5 + max(problem.bytes / 4e6, problem.flops / 1.7e8)
    if isinstance(config, TwofoldConfig):
        return 6 + problem.bytes / 3.4e6 + problem.flops / 1.6e8
    if isinstance(config, LineConfig):
        return 3 + max(problem.bytes / 2.2e6, problem.flops / 1.2e7)
    if isinstance(config, TilesConfig):
        blocks = max(line_tiles.blocks_of(problem, config), line_tiles.ENOUGH_BLOCKS)
        terms = problem.w.shape[1] * problem.taps[1]
        return 4 + problem.bytes / 8e6 + 2 * blocks * config.high * config.wide * terms / 4.6e7
    (N, _, _, Q), (K, C), taps = problem.x.shape, problem.w.shape[:2], problem.taps[1]
    span, groups = THREADS * config.vec * config.pieces, problem.groups
    blocks = N * groups * -(-Q // span) * -(-K // (groups * config.filters))
    products = max(blocks, MULTIPROCESSORS) * span * config.filters * C * taps
    many_sums = config.vec * config.pieces * config.filters > line_dense.MOST_SUMS
    return 4 + max(problem.bytes / 3.0e6, 2 * products / (3.6e7 if many_sums else 2.4e7))


def kernels() -> Iterator[Kernel]:
    """Few filters and many, frozen taps and not, each dtype among them."""
    yield kernel("float32", "float32", LineConfig(8, 1, 4, 256, True))
    yield kernel("bfloat16", "float32", LineConfig(4, 8, 0, 1024))
    yield kernel("float64", "float64", LineConfig(4, 4, 3, 256))
    for family in FAMILIES.values():
        yield from family.kernels()


register(Impl("causal_conv1d", "numba", "numba.line", _supports, _plan, _rank, "ieee", "gpu_to_gpu"))
