"""``numba.depthwise``: convolutions with one channel a group, at the speed of their bytes.

Each thread slides down a strip of rows with a small tile of columns (NCHW) or channels (NHWC) in registers; the device
code is in ``_depthwise_*``. Taps, stride, left padding and tile are frozen into a kernel, all else is an argument. No
atomics: the gradient of the filters is two sums in a fixed order, and its bits depend on the problem alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any

from numbadnn.kernels._launch import Kernel, blocks
from numbadnn.kernels._plans import one_launch
from numbadnn.kernels._support import LIMIT32, accumulator_of, device_reason
from numbadnn.ops.conv import OPERATIONS, ConvProblem
from numbadnn.problem import ITEMSIZE, Policy, Spec
from numbadnn.registry import Executable, Impl, register

THREADS = 128
MOST_TAPS = 7  # along an axis
FINISHERS = 16  # threads that share an element of the weights' gradient in the second sum
#: threads that fill a GPU, fewer of those with more than MUCH elements; blocks that fill 132 multiprocessors twice over
ENOUGH_THREADS, ENOUGH_LARGE, MUCH, ENOUGH_BLOCKS = 1 << 17, 1 << 15, 8, 2 * 132 * 8


@dataclass(frozen=True, slots=True)
class Tile:
    """What a thread has of one output row; ``load`` and ``store``: elements an access of its operand may have."""

    channels_last: bool
    columns: int
    channels: int
    load: int
    store: int


@dataclass(frozen=True, slots=True)
class DepthwiseConfig:
    """``rows``: a strip's rows of y. For the weights' gradient ``lanes``: channel groups of a block, ``splits``: of positions."""

    taps: tuple[int, int]
    stride: tuple[int, int]
    left: int
    tile: Tile
    many: bool
    rows: int
    lanes: int = 1
    splits: int = 1
    resident: int = 1


def heuristic(problem: ConvProblem) -> DepthwiseConfig:
    """The widest aligned tile whose taps fit the registers; strips as measured on an H200, shorter where threads are few."""
    taps, (down, across) = _pair(problem.taps), _pair(problem.stride)
    weights, few = problem.direction == "grad_weights", math.prod(taps) <= 9
    many = problem.w.shape[0] > problem.groups
    tile = _tile(problem, taps, (down, across), many)
    N, K, P, Q = problem.y.shape
    lines, steps = N * K // tile.channels * -(-Q // tile.columns), P
    if problem.direction == "grad_inputs":
        lines, steps = (
            N * problem.x.shape[1] // tile.channels * -(-problem.x.shape[3] // tile.columns),
            _complete(problem),
        )
    halves = problem.x.itemsize == 2 and tile.channels_last
    if weights:
        rows = 28 if few else 14
    else:
        rows = 28 if not few or halves or (down > 1 and problem.direction == "forward") else 7
    wanted = ENOUGH_LARGE if tile.columns * tile.channels > MUCH else ENOUGH_THREADS
    # many taps of 16-bit channels: what a strip reads above its first row costs more than idle multiprocessors
    shortest = rows if halves and not few and not weights else 4
    strips = max(1, -(-steps // rows), min(-(-wanted // lines), -(-steps // shortest)))
    lanes = splits = 1
    if weights:
        channel_groups = K // tile.channels
        while tile.channels_last and lanes < min(32, channel_groups):
            lanes *= 2
        items = N * -(-Q // tile.columns) * strips
        wanted = ENOUGH_BLOCKS // -(-channel_groups // lanes)
        splits = max(1, min(wanted, -(-items * lanes // THREADS), 65535))
    resident = _resident(problem, tile) if few else 1
    return DepthwiseConfig(
        taps, (down, across), problem.padding[1][0], tile, many, -(-steps // strips), lanes, splits, resident
    )


def space(problem: ConvProblem) -> list[DepthwiseConfig]:
    """Every configuration worth timing, the heuristic's first: other strips, and other tiles of 16-bit channels."""
    best = heuristic(problem)
    found = [best]
    for columns, channels in _tiles(problem, best):
        tile = replace(best.tile, columns=columns, channels=channels, load=channels, store=channels)
        found += [replace(best, tile=tile, rows=rows) for rows in (4, 7, 14, 28, 56)]
    return list(dict.fromkeys(found))


def _tiles(problem: ConvProblem, best: DepthwiseConfig) -> list[tuple[int, int]]:
    """(columns, channels) of tiles worth timing, the heuristic's first."""
    found = [(best.tile.columns, best.tile.channels)]
    few = math.prod(best.taps) <= 9
    if few and problem.x.itemsize == 2 and best.tile.channels_last and problem.direction != "grad_weights":
        widest = 1 if best.many else min(_aligned(problem.x, 1, 4), _aligned(problem.y, 1, 4))
        found += [tile for tile in ((4, 2), (2, 4), (4, 4)) if tile[1] <= widest]
    return list(dict.fromkeys(found))


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    first, second = values
    return first, second


def _resident(problem: ConvProblem, tile: Tile) -> int:
    """Blocks a multiprocessor: fewer registers a thread and more threads, as far as nothing spills."""
    size, stride = problem.x.itemsize, problem.stride[1]
    if problem.direction != "grad_weights":
        return 6 if size == 2 and not tile.channels_last else 1
    if stride > 1 or (size == 2 and tile.channels_last):
        return 1
    return {2: 6, 4: 8, 8: 1}[size]


def _complete(problem: ConvProblem) -> int:
    """How many rows of y complete a row of the image: the steps of the gradient with respect to it."""
    top, down = problem.padding[0][0], problem.stride[0]
    return (problem.x.shape[2] - 1 + top) // down - top // down + 1


def _tile(problem: ConvProblem, taps: tuple[int, int], stride: tuple[int, int], many: bool) -> Tile:
    """Up to 16 bytes of the operand read; fewer where the taps need the registers or the memory is not aligned."""
    source, target = (problem.y, problem.x) if problem.direction == "grad_inputs" else (problem.x, problem.y)
    size, area, across = source.itemsize, math.prod(taps), stride[1]
    weights, grad_inputs = problem.direction == "grad_weights", problem.direction == "grad_inputs"
    if not _channels_last(problem):
        most = {2: 8 if area <= 9 else 4, 4: 4, 8: 2}[size] if area <= 25 else 2 if size < 8 else 1
        if weights and across > 1 and area <= 9:
            most = min(most, 2 if size == 4 else 4)
        columns = max(_aligned(target, 3, most), across if grad_inputs else 1)
        reach = columns // across if grad_inputs else columns * across
        return Tile(False, columns, 1, _aligned(source, 3, min(reach, 16 // size)), _aligned(target, 3, columns))
    most, columns = (2, 4) if area <= 9 and size < 8 else (2, 2) if area <= 25 and size < 8 else (1, 2)
    if weights:
        most, columns = (2 if size == 2 and area <= 9 and across == 1 else 1), (4 if area <= 25 and size < 8 else 1)
    elif size == 2 and area <= 9:
        most = 4
    if grad_inputs and size == 4 and across > 1:
        most, columns = (2 if area <= 9 else 1), 2
    width = 1 if many else min(_aligned(source, 1, most), _aligned(target, 1, most))
    if width > 2 and across > 1 and not grad_inputs:
        columns = 2
    return Tile(True, max(columns, across if grad_inputs else 1), width, width, width)


def _aligned(spec: Spec, axis: int, most: int) -> int:
    """The largest power of two up to ``most`` that divides the extent along ``axis`` and every other stride."""
    width = most if spec.aligned else 1
    others = [s for i, s in enumerate(spec.strides) if i != axis and spec.shape[i] > 1]
    while width > 1 and any(v % width for v in (spec.shape[axis], *others)):
        width //= 2
    return width


def _channels_last(problem: ConvProblem) -> bool:
    """Whether both images have neighbouring channels next to each other, rather than neighbouring columns."""
    return _unit(problem, 1) and not _unit(problem, 3)


def _unit(problem: ConvProblem, axis: int) -> bool:
    return all(s.strides[axis] == 1 or s.shape[axis] == 1 for s in (problem.x, problem.y))


def kernel(direction: str, dtype: str, acc: str, config: DepthwiseConfig) -> Kernel:
    """The kernel of one direction; strips and splits are arguments and no part of it."""

    def build() -> Callable[..., None]:
        if direction == "grad_weights":
            from numbadnn.kernels._depthwise_weights import weights as make
        elif direction == "forward":
            from numbadnn.kernels._depthwise_kernels import forward as make
        else:
            from numbadnn.kernels._depthwise_kernels import inputs as make
        return make(dtype, acc, config)

    start = "ptr ptr ptr i32 i32 i32 i32 i32 i32 i32*2 i32*2 i32 i64*2 i32*2"
    real = "f64" if acc == "float64" else "f32"
    end = " i64*2 i32*2" if direction == "grad_weights" else f" i64 i64*3 i64*2 i32*2 {real} {real}"
    frozen = (
        *config.taps,
        *config.stride,
        config.left,
        *astuple(config.tile),
        config.many,
        config.lanes,
        config.resident,
    )
    name = f"depthwise_{direction} {dtype} {acc} " + " ".join(str(int(v)) for v in frozen)
    return Kernel(name, start + end, build, THREADS, config.resident)


def finish_kernel(dtype: str, acc: str, taps: tuple[int, int]) -> Kernel:
    """The second sum of the weights' gradient."""

    def build() -> Callable[..., None]:
        from numbadnn.kernels._depthwise_weights import finish

        return finish(dtype, acc, *taps)

    real = "f64" if acc == "float64" else "f32"
    name = f"depthwise_finish {dtype} {acc} {taps[0]} {taps[1]}"
    return Kernel(name, f"ptr ptr i32 i32 i32 i64 i64*3 {real} {real}", build, THREADS)


def _supports(problem: ConvProblem, policy: Policy) -> str:
    if problem.axes != 2 or problem.unshared:
        return "needs two spatial axes and shared filters"
    if problem.w.shape[1] != 1 or problem.groups != problem.x.shape[1]:
        return "needs as many groups as channels"
    if any(d != 1 and n > 1 for d, n in zip(problem.dilation, problem.taps, strict=True)):
        return "has no kernel for dilated filters"
    if max(problem.stride) > 2 or max(problem.taps) > MOST_TAPS:
        return f"needs strides of 1 or 2 and at most {MOST_TAPS} taps an axis"
    if not (_unit(problem, 3) or _unit(problem, 1)):
        return "needs neighbouring columns or neighbouring channels next to each other in memory"
    if policy.precision == "float16":
        return "accumulates in float32 or float64, not in float16"
    if policy.precision == "float32" and problem.x.dtype == "float64":
        return "accumulates float64 data in float64, not in float32"
    rows = [abs(s.strides[2]) * s.shape[2] + abs(s.strides[3]) * s.shape[3] for s in (problem.x, problem.y)]
    if max(problem.x.size, problem.y.size, *rows) >= LIMIT32:
        return "needs images of fewer than 2**31 elements"
    return device_reason(policy)


def _flipped(problem: ConvProblem) -> tuple[int, tuple[int, int, int]]:
    """Where the first tap lies, and the filters' strides along filters, rows and columns."""
    k, _, *taps = problem.w.strides
    if not problem.flip:
        return 0, (k, taps[0], taps[1])
    start = sum((n - 1) * s for n, s in zip(problem.taps, taps, strict=True))
    return start, (k, -taps[0], -taps[1])


def _plan(problem: ConvProblem, policy: Policy, config: DepthwiseConfig | None = None) -> Executable:
    config = config or heuristic(problem)
    acc, dtype = accumulator_of(problem.x.dtype, policy), problem.x.dtype
    if problem.direction == "grad_weights":
        return _plan_weights(problem, policy, config, acc)
    chosen = kernel(problem.direction, dtype, acc, config)
    N, K, P, Q = problem.y.shape
    _, C, H, W = problem.x.shape
    forward = problem.direction == "forward"
    (channels, steps, width) = (K, P, Q) if forward else (C, _complete(problem), W)
    groups, strips = -(-width // config.tile.columns), -(-steps // config.rows)
    count = N * (channels // config.tile.channels) * groups * strips
    start, w_strides = _flipped(problem)
    scalars = (
        *(count, K // C, groups, strips, config.rows, channels, (H, W), (P, Q), problem.padding[0][0]),
        *(problem.x.strides[:2], problem.x.strides[2:], start, w_strides, problem.y.strides[:2], problem.y.strides[2:]),
        *(problem.alpha, problem.beta),
    )
    launch = chosen.prepare(policy.device, blocks(count, THREADS), (THREADS, 1, 1), scalars)
    return one_launch(chosen, launch, config)


def _plan_weights(problem: ConvProblem, policy: Policy, config: DepthwiseConfig, acc: str) -> Executable:
    """Two launches; the table between them is the workspace."""
    N, K, P, Q = problem.y.shape
    _, C, H, W = problem.x.shape
    groups, strips = -(-Q // config.tile.columns), -(-P // config.rows)
    chosen = kernel(problem.direction, problem.x.dtype, acc, config)
    scalars = (
        *(N * groups * strips, K // C, groups, strips, config.rows, K, (H, W), (P, Q), problem.padding[0][0]),
        *(problem.x.strides[:2], problem.x.strides[2:], problem.y.strides[:2], problem.y.strides[2:]),
    )
    grid = (-(-(K // config.tile.channels) // config.lanes), config.splits, 1)
    first = chosen.prepare(policy.device, grid, (THREADS, 1, 1), scalars)
    return with_finish(problem, policy, first, acc, config.splits, {"kernel": chosen.name, "config": config})


def with_finish(
    problem: ConvProblem, policy: Policy, first: Any, acc: str, splits: int, facts: dict[str, Any]
) -> Executable:
    """A gradient of filters: ``first(stream, x, y, table)``, then the sums over the table's splits into the filters."""
    K, _, R, S = problem.w.shape
    count = K * R * S
    start, w_strides = _flipped(problem)
    sums = (count, splits, K, start, w_strides, problem.alpha, problem.beta)
    grid = blocks(count, THREADS // FINISHERS)
    second = finish_kernel(problem.x.dtype, acc, (R, S)).prepare(policy.device, grid, (THREADS, 1, 1), sums)

    def direct(stream: int, x: int, y: int, w: int, workspace: int) -> None:
        first(stream, x, y, workspace)
        second(stream, workspace, w)

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        direct(stream, inputs[0], inputs[1], outputs[0], workspace)

    return Executable(run, splits * count * ITEMSIZE[acc], "ieee", "gpu_to_gpu", facts, direct)


def _space(problem: ConvProblem, policy: Policy) -> list[DepthwiseConfig]:
    return space(problem)


def _rank(problem: ConvProblem) -> float:
    """Microseconds, to be held against cuDNN's: hopeful where every engine of its was slower on an H200, else as measured."""
    if problem.direction == "grad_weights":
        # two launches, the sums of a block, its taps
        return 20 + max(problem.flops / 6e6, problem.bytes / (1.6e6 if _channels_last(problem) else 4.5e6))
    if OPERATIONS[problem.op].arrangement:  # one row: a strip ends where it begins
        filled = 1.6e6 if problem.w.shape[0] > problem.groups else 2.2e6
        return 2 + problem.bytes / (filled if problem.x.itemsize > 2 else 0.8 * filled)
    slower = _channels_last(problem) and problem.direction == "forward" and max(problem.stride) > 1
    return 2 + problem.bytes / (1.4e6 if slower else 4.5e6)


def kernels() -> Iterator[Kernel]:
    """Each direction, both layouts, 3x3 and 5x5, strides 1 and 2."""
    for op, dtype, layout, taps, stride in (
        ("conv2d", "float32", "", 3, 1),
        ("conv2d_grad_wrt_inputs", "float16", ":nhwc", 5, 2),
        ("conv2d_grad_wrt_weights", "float32", "", 3, 1),
        ("conv2d_grad_wrt_weights", "bfloat16", ":nhwc", 3, 2),
    ):
        line = f"{op} x={dtype}:2x64x32x32{layout} w={dtype}:64x1x{taps}x{taps} groups=64 stride={stride},{stride}"
        problem = ConvProblem.parse(f"{line} pad={taps // 2},{taps // 2},{taps // 2},{taps // 2}")
        yield kernel(problem.direction, dtype, "float64" if dtype == "float64" else "float32", heuristic(problem))
    yield finish_kernel("float32", "float32", (3, 3))


for _op, _operation in OPERATIONS.items():
    if _operation.axes == 2:
        register(Impl(_op, "numba", "numba.depthwise", _supports, _plan, _rank, "ieee", "gpu_to_gpu", space=_space))
