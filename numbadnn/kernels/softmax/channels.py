"""``numba.softmax_channels``: softmax across NCHW channels, held in registers. The host side of ``device/channels.py``."""

from __future__ import annotations

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.softmax.layout import (
    Prepared,
    aligned,
    capacity,
    channels_reason,
    layout_of,
    operand_count,
    softmax_kernel,
    two,
)
from numbadnn.problems.softmax import SoftmaxProblem


@dataclass(frozen=True, slots=True)
class ChannelsConfig:
    """``lanes`` threads of ``vec`` positions x ``parts`` threads of ``count`` channels; see ``device/channels.py``."""

    vec: int
    lanes: int
    parts: int
    count: int


#: (threads, positions that a block reads together), the best first: small blocks with much in each thread, because the
#: threads that share a position wait for each other and a multiprocessor should have other blocks meanwhile (measured
#: on an H200)
BLOCKS = ((128, 32), (256, 32), (512, 32), (256, 16), (512, 16), (1024, 16), (1024, 8))


def heuristic(problem: SoftmaxProblem) -> ChannelsConfig | None:
    """The first of BLOCKS whose registers hold the channels, with the widest access; None where none does."""
    most = 16 if problem.y.dtype == "float64" else 64 // len(problem.inputs)
    for threads, positions in BLOCKS:
        for vec in _widths(problem):
            packed = threads >= 512 and problem.y.itemsize != 4  # 16-bit data takes registers to unpack
            found = _fit(problem, vec, positions, threads, min(most, 32) if packed else most)
            if found:
                return found
    return None


def space(problem: SoftmaxProblem) -> list[ChannelsConfig]:
    """Every configuration worth timing, the heuristic's first."""
    most = 16 if problem.y.dtype == "float64" else 64 // len(problem.inputs)
    found = [heuristic(problem)]
    for threads, positions in BLOCKS:
        for vec in _widths(problem):
            found += [_fit(problem, vec, positions, threads, values) for values in (most, most // 2)]
    return list(dict.fromkeys(config for config in found if config))


def _widths(problem: SoftmaxProblem) -> list[int]:
    """Elements an access may have, the widest first: up to 16 bytes, and up to four."""
    layout = layout_of(problem)
    outer, inner = two(layout.kept)
    numbers = (inner.n, *outer.strides, *layout.reduced[0].strides)
    wide = [v for v in (4, 2) if v * problem.y.itemsize <= 16]
    return [v for v in wide if aligned(problem) and all(n % v == 0 for n in numbers)] + [1]


def _fit(problem: SoftmaxProblem, vec: int, positions: int, threads: int, values: int) -> ChannelsConfig | None:
    """Lanes for so many positions, and the fewest parts that hold the channels; None where there are too few."""
    layout, dtype, operands = layout_of(problem), problem.y.dtype, len(problem.inputs)
    channels, size = layout.reduced[0].n, 8 if dtype == "float64" else 4
    lanes = positions // vec
    if lanes < 1 or (lanes > 4 and positions >= 4 * two(layout.kept)[1].n):
        return None
    parts = 1
    while parts * lanes <= threads:
        count = -(-channels // parts)
        wide = max(lanes, 128 // parts)  # a block has at least 128 threads
        held = min(values, capacity(max(parts * lanes, 128), dtype, operands))
        # more than 32 addresses a thread do not fit its registers
        if count * vec <= held and count * operands <= 32 and 2 * parts * wide * vec * size <= 48 * 1024:
            return ChannelsConfig(vec, wide, parts, count)
        parts *= 2
    return None


def reason(problem: SoftmaxProblem) -> str:
    """Why this kernel cannot, "" if it can."""
    layout = layout_of(problem)
    if why := channels_reason(layout):
        return why
    if heuristic(problem) is None:
        return f"{layout.length} channels of {problem.y.dtype} do not fit the registers of a block"
    return ""


def speed(problem: SoftmaxProblem) -> float:
    """Bytes a microsecond on an H200."""
    return 3.6e6


def prepare(problem: SoftmaxProblem, config: ChannelsConfig) -> Prepared:
    """Kernel, grid and arguments."""
    layout = layout_of(problem)
    outer, inner = two(layout.kept)
    positions, channels = layout.rows // config.vec, layout.reduced[0]
    scalars = (positions, channels.n, inner.n // config.vec, *zip(outer.strides, channels.strides, strict=True))
    chosen = kernel(problem.op, problem.y.dtype, problem.algo, config)
    return Prepared(chosen, blocks(positions, config.lanes), config.lanes * config.parts, scalars)


def kernel(op: str, dtype: str, algo: str, config: ChannelsConfig) -> Kernel:
    """The kernel of one configuration."""
    parameters = "i32 i32 i32" + " i64*2" * operand_count(op)
    return softmax_kernel("channels", op, dtype, algo, config, parameters, config.lanes * config.parts)
