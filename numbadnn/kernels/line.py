"""``numba.line``: causal_conv1d, at three quarters of the speed of a copy as long as the sums are short.

Lines of whole pieces of 16 bytes have kernels of their own, in ``_line_channels`` where each channel stands alone, in
``_line_dense`` and, of 16-bit types on tensor cores, ``_line_halves``; all others, at any strides, that in ``_line_kernels``.
Steps and filters of a thread, and few taps, are frozen into a kernel, all else is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any

from numbadnn.kernels import line_halves
from numbadnn.kernels._launch import Kernel
from numbadnn.kernels._support import LIMIT32, accumulator_of, device_reason
from numbadnn.ops.conv import ConvProblem
from numbadnn.problem import ITEMSIZE, Policy
from numbadnn.registry import Executable, Impl, register

THREADS = 128
SHARED_BYTES = 32 * 1024
MOST_FROZEN_TAPS = 4
#: what a thread may have in registers of the steps behind its own, and how many taps are written out
MOST_BEHIND, MOST_WINDOW_TAPS = 32, 32
#: so many steps behind are shared by pieces that are neighbours: fewer accesses, though each less well aligned with the others
MANY_BEHIND = 16
#: products that are written out for a turn
MOST_PRODUCTS = 512
#: steps behind of each of many channels; sums of a thread, and elements that it reads in a turn; blocks that fill the GPU
MULTIPROCESSORS = 132
MOST_DENSE_BEHIND, MOST_SUMS, MOST_SEEN, ENOUGH_BLOCKS = 12, 64, 32, 3 * MULTIPROCESSORS


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


@dataclass(frozen=True, slots=True)
class ChannelConfig:
    """A thread has ``pieces`` of ``vec`` steps; taps and dilation are frozen, or 0: then it is a multiple of ``vec``.

    ``near``: the pieces are neighbours, not a block apart.
    """

    vec: int
    pieces: int
    taps: int
    dilation: int
    near: bool = False


@dataclass(frozen=True, slots=True)
class DenseConfig:
    """A thread has ``pieces`` of ``vec`` steps for ``filters``; ``room``: numbers in shared memory.

    ``taps`` 0: an argument; ``dilation`` 0: a multiple of ``vec``, else it is frozen as the taps are.
    """

    vec: int
    pieces: int
    filters: int
    taps: int
    dilation: int
    room: int

    @property
    def behind(self) -> int:
        """Steps before the own ones that a frozen dilation reaches."""
        return (self.taps - 1) * self.dilation

    @property
    def looks(self) -> int:
        """Pieces read a turn for each piece of results."""
        return -(-self.behind // self.vec) + 1 if self.dilation else max(self.taps, 1)

    @property
    def shift(self) -> int:
        """Where in these the first tap of the first step lies."""
        return -self.behind % self.vec


Config = LineConfig | ChannelConfig | DenseConfig | line_halves.LineHalvesConfig


def _whole(problem: ConvProblem, vec: int) -> bool:
    """Whether lines are whole aligned pieces of ``vec`` steps, one behind the other in memory."""
    x, y = problem.x, problem.y
    if not (
        x.aligned and y.aligned and x.shape[3] % vec == 0 and problem.stride[1] == x.strides[3] == y.strides[3] == 1
    ):
        return False
    return not any(s.strides[i] % vec for s in (x, y) for i in (0, 1) if s.shape[i] > 1)


def channel_config(problem: ConvProblem) -> ChannelConfig | None:
    """Where each channel has a filter of its own and lines are whole pieces of 16 bytes, None elsewhere."""
    vec = 16 // problem.x.itemsize
    if problem.w.shape[:2] != (problem.groups, 1) or not _whole(problem, vec):
        return None
    taps, dilation = problem.taps[1], problem.dilation[1]
    if dilation % vec == 0 or taps == 1:
        return ChannelConfig(vec, 2, 0, 0)
    if (taps - 1) * dilation > MOST_BEHIND or taps > MOST_WINDOW_TAPS:
        return None
    return ChannelConfig(vec, 2, taps, dilation, near=(taps - 1) * dilation >= MANY_BEHIND)


def dense_config(problem: ConvProblem, acc: str = "float32") -> DenseConfig | None:
    """Up to 16 filters; the fewer, the more pieces, as many as the registers hold and as leave blocks enough."""
    vec = 2 if problem.x.itemsize == 8 else 4
    if not _whole(problem, vec):
        return None
    (K, C), taps, dilation = problem.w.shape[:2], problem.taps[1], problem.dilation[1]
    K //= problem.groups
    if dilation % vec == 0 or taps == 1:
        taps, dilation = taps if taps <= MOST_FROZEN_TAPS else 0, 0
    elif (taps - 1) * dilation > MOST_DENSE_BEHIND:
        return None
    filters = _filters(K, C * problem.taps[1], acc)
    while filters * vec * max(taps, 1) > MOST_PRODUCTS:
        filters //= 2
    config = DenseConfig(vec, 1, filters, taps, dilation, _numbers(C * problem.taps[1], filters))
    blocks = problem.x.shape[0] * problem.groups * -(-K // filters) * problem.y.shape[3] // (THREADS * vec)
    most = (
        *(MOST_SUMS // (vec * filters), MOST_SEEN // (vec * config.looks), blocks // ENOUGH_BLOCKS, 4),
        MOST_PRODUCTS // (vec * filters * max(taps, 1)),
    )
    return replace(config, pieces=1 << max(min(most), 1).bit_length() - 1)


def heuristic(problem: ConvProblem, acc: str = "float32") -> Config:
    """Channels by themselves, or tiles of steps and filters."""
    return channel_config(problem) or dense_config(problem, acc) or line_config(problem, acc)


def _filters(K: int, terms: int, acc: str) -> int:
    """Up to 16 filters, as many as the filters of a group fill and shared memory holds."""
    filters = min(16, 1 << (K - 1).bit_length())
    while filters > 1 and _numbers(terms, filters) * ITEMSIZE[acc] > SHARED_BYTES:
        filters //= 2
    return filters


def line_config(problem: ConvProblem, acc: str = "float32") -> LineConfig:
    """Tiles at any strides: the fewer filters, the more steps."""
    K, (C, taps) = problem.w.shape[0] // problem.groups, (problem.w.shape[1], problem.taps[1])
    filters = _filters(K, C * taps, acc)
    steps = 8 if filters == 1 else 4
    frozen = taps if taps <= MOST_FROZEN_TAPS else 0
    packed = problem.x.strides[3] * problem.stride[1] == 1 == problem.y.strides[3]
    return LineConfig(steps, filters, frozen, _numbers(C * taps, filters), packed)


def _numbers(terms: int, filters: int) -> int:
    """Rounded up, so that few kernels are compiled: a power of two, at least 256."""
    return max(256, 1 << (terms * filters - 1).bit_length())


def channel_kernel(dtype: str, acc: str, config: ChannelConfig) -> Kernel:
    """Each channel by itself."""

    def build() -> Callable[..., None]:
        from numbadnn.kernels import _line_channels

        return _line_channels.forward(dtype, acc, config)

    parameters = "ptr ptr ptr i32 i32 i32 i32 i32 i32 i32 i64*2 i64 i64*2 i64*2"
    name = f"line_channels {dtype} {acc} " + " ".join(str(int(v)) for v in astuple(config))
    return Kernel(name, parameters, build, THREADS)


def dense_kernel(dtype: str, acc: str, config: DenseConfig) -> Kernel:
    """Many channels, or many filters."""

    def build() -> Callable[..., None]:
        from numbadnn.kernels import _line_dense

        return _line_dense.forward(dtype, acc, config)

    parameters = "ptr ptr ptr i32 i32 i32 i32 i32 i32 i32 i32 i32 i64*2 i64 i64*3 i64*2"
    name = f"line_dense {dtype} {acc} " + " ".join(str(v) for v in astuple(config))
    return Kernel(name, parameters, build, THREADS)


def kernel(dtype: str, acc: str, config: LineConfig) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels import _line_kernels

        return _line_kernels.forward(dtype, acc, *astuple(config))

    parameters = "ptr ptr ptr i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64*3 i64 i64*3 i64*3"
    name = f"line {dtype} {acc} " + " ".join(str(int(v)) for v in astuple(config))
    return Kernel(name, parameters, build, THREADS)


def _supports(problem: ConvProblem, policy: Policy) -> str:
    if problem.unshared:
        return "needs one filter for all positions (not unshared)"
    if (
        _numbers(problem.w.shape[1] * problem.taps[1], 1) * ITEMSIZE[accumulator_of(problem.x.dtype, policy)]
        > SHARED_BYTES
    ):
        return f"needs a filter of at most {SHARED_BYTES} bytes"
    if policy.precision == "float16":
        return "accumulates in float32 or float64, not in float16"
    if policy.precision == "float32" and problem.x.dtype == "float64":
        return "accumulates float64 data in float64, not in float32"
    reach = problem.x.shape[3] * max(problem.stride) + problem.padding[1][0] + THREADS * 8
    if max(reach, problem.y.size) >= LIMIT32:
        return "needs lines of fewer than 2**31 steps"
    return device_reason(policy)


def _plan(problem: ConvProblem, policy: Policy, config: Config | None = None) -> Executable:
    dtype, acc = problem.x.dtype, accumulator_of(problem.x.dtype, policy)
    config = config or line_halves.heuristic(problem, policy) or heuristic(problem, acc)
    halves = isinstance(config, line_halves.LineHalvesConfig)
    if isinstance(config, line_halves.LineHalvesConfig):
        chosen = line_halves.kernel(dtype, config)
        launch = line_halves.prepare(problem, policy.device, config, chosen, _taps(problem))
    elif isinstance(config, ChannelConfig):
        chosen = channel_kernel(dtype, acc, config)
        launch = _prepare_channels(problem, policy.device, config, chosen)
    elif isinstance(config, DenseConfig):
        chosen = dense_kernel(dtype, acc, config)
        launch = _prepare_dense(problem, policy.device, config, chosen)
    else:
        chosen = kernel(dtype, acc, config)
        launch = _prepare(problem, policy.device, config, chosen)

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        launch(stream, inputs[0], inputs[1], outputs[0])

    facts = {"kernel": chosen.name, "config": config}
    arithmetic, level = ("tensor_core", "run_to_run") if halves else ("ieee", "gpu_to_gpu")
    return Executable(run, 0, arithmetic, level, facts, launch.direct)


def _taps(problem: ConvProblem) -> tuple[int, int]:
    """Where the first tap lies, and the stride from one to the next."""
    step = problem.w.strides[3]
    return ((problem.taps[1] - 1) * step, -step) if problem.flip else (0, step)


def _prepare_channels(problem: ConvProblem, device: int, config: ChannelConfig, chosen: Kernel) -> Any:
    (N, _, _, Q), K = problem.x.shape, problem.w.shape[0]
    tiles = -(-Q // (THREADS * config.vec * config.pieces))
    start, s = _taps(problem)
    scalars = (
        *(tiles, K // problem.groups, K, problem.taps[1], Q, problem.padding[1][0], problem.dilation[1]),
        *(problem.x.strides[:2], start, (problem.w.strides[0], s), problem.y.strides[:2]),
    )
    return chosen.prepare(device, (tiles * N * K, 1, 1), (THREADS, 1, 1), scalars)


def _prepare_dense(problem: ConvProblem, device: int, config: DenseConfig, chosen: Kernel) -> Any:
    (N, _, _, Q), w = problem.x.shape, problem.w
    K = w.shape[0] // problem.groups
    tiles, blocks_of_filters = -(-Q // (THREADS * config.vec * config.pieces)), -(-K // config.filters)
    start, s = _taps(problem)
    scalars = (
        *(blocks_of_filters, tiles, problem.groups, K, w.shape[1], problem.taps[1], Q),
        *(problem.padding[1][0], problem.dilation[1]),
        *(problem.x.strides[:2], start, (*w.strides[:2], s), problem.y.strides[:2]),
    )
    grid = (blocks_of_filters * tiles * problem.groups * N, 1, 1)
    return chosen.prepare(device, grid, (THREADS, 1, 1), scalars)


def _prepare(problem: ConvProblem, device: int, config: LineConfig, chosen: Kernel) -> Any:
    (N, _, _, _), (_, K, _, Q), w = problem.x.shape, problem.y.shape, problem.w
    K //= problem.groups
    tiles, blocks_of_filters = -(-Q // (THREADS * config.steps)), -(-K // config.filters)
    k, c = w.strides[:2]
    start, s = _taps(problem)
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
    if line_halves.heuristic(problem, Policy()):
        return 5 + max(problem.bytes / 2.2e6, problem.flops / 1.5e8)
    if channel_config(problem):
        return 3 + max(problem.bytes / 3.3e6, problem.flops / 2.5e7)
    dense = dense_config(problem, "float64" if problem.x.itemsize == 8 else "float32")
    if dense is None:
        return 3 + max(problem.bytes / 2.2e6, problem.flops / 1.2e7)
    (N, _, _, Q), (K, C), taps = problem.x.shape, problem.w.shape[:2], problem.taps[1]
    span, groups = THREADS * dense.vec * dense.pieces, problem.groups
    blocks = N * groups * -(-Q // span) * -(-K // (groups * dense.filters))
    products = max(blocks, MULTIPROCESSORS) * span * dense.filters * C * taps
    return 4 + max(problem.bytes / 3.0e6, 2 * products / 2.4e7)


def kernels() -> Iterator[Kernel]:
    """Few filters and many, frozen taps and not, each dtype among them."""
    yield kernel("float32", "float32", LineConfig(8, 1, 4, 256, True))
    yield kernel("bfloat16", "float32", LineConfig(4, 8, 0, 1024))
    yield kernel("float64", "float64", LineConfig(4, 4, 3, 256))
    yield channel_kernel("float32", "float32", ChannelConfig(4, 2, 4, 1))
    yield channel_kernel("float16", "float32", ChannelConfig(8, 2, 0, 0))
    # pieces that are neighbours are not among these: sm_100's code has a stack frame of 192 bytes (sm_80's and sm_90a's none)
    yield channel_kernel("float32", "float32", ChannelConfig(4, 2, 32, 1))
    yield dense_kernel("float32", "float32", DenseConfig(4, 1, 16, 3, 1, 4096))
    yield dense_kernel("float16", "float32", DenseConfig(4, 2, 8, 3, 0, 1024))
    yield from line_halves.kernels()


register(Impl("causal_conv1d", "numba", "numba.line", _supports, _plan, _rank, "ieee", "gpu_to_gpu"))
