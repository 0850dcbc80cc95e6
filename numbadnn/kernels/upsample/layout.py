"""Which of the upsampling kernels takes a problem, with what configuration and arguments: the host side of ``device/``."""

from __future__ import annotations

from typing import Any, NamedTuple

from numbadnn.kernels.build.axes import vector_of
from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.problems.upsample import UpsampleProblem

#: the largest whole ratio with kernels of its own
MOST = 4
#: threads that keep an H200 busy, about; and those that do where each has many loads under way
ENOUGH, FEWER = 1 << 18, 1 << 16


@dataclass(frozen=True, slots=True)
class WholeConfig:
    """Ratios ``rows`` and ``columns``, ``vec`` elements an access, ``strip`` rows of the smaller image a thread."""

    rows: int
    columns: int
    vec: int
    strip: int
    threads: int = 256


@dataclass(frozen=True, slots=True)
class GeneralConfig:
    """``wide``: indices of 64 bits; ``channels_last``: neighbouring threads take neighbouring channels."""

    wide: bool
    channels_last: bool
    threads: int = 256


class Prepared(NamedTuple):
    """What a launch is made of, besides addresses."""

    kernel: Kernel
    grid: tuple[int, int, int]
    scalars: tuple[Any, ...]


def is_forward(problem: UpsampleProblem) -> bool:
    return problem.op == "bilinear_upsampling"


def accumulator(problem: UpsampleProblem) -> str:
    return "float64" if problem.x.dtype == "float64" else "float32"


def _whole_reason(problem: UpsampleProblem) -> str:
    (p, q), (r, s) = problem.ratio
    if q != 1 or s != 1 or max(p, r) > MOST:
        return f"needs whole ratios up to {MOST}"
    if max(problem.x.size, problem.y.size) >= LIMIT32:
        return "needs fewer than 2**31 elements"
    return ""


def strip_of(stem: str, problem: UpsampleProblem, vec: int) -> int:
    """Rows of the smaller image a thread: the best on an H200 (float32 and float16), fewer where threads are few.

    No bit of a result depends on it.
    """
    large, wide = problem.ratio[0][0] > 3, problem.x.itemsize >= 4
    enough = ENOUGH
    if is_forward(problem):
        strip = 1 if (large and not wide) or (stem == "channels" and wide) else 2
    elif stem == "channels":
        strip, enough = 8, FEWER
    else:
        strip = 4 if large and not wide else 8 if problem.ratio[0][0] > 2 else 2
    while strip > 1 and problem.x.size // (vec * strip) < enough:
        strip //= 2
    return strip


# ---- NCHW ------------------------------------------------------------------------------------------------------------


def planes_config(problem: UpsampleProblem) -> WholeConfig | None:
    """None where the columns do not lie one after the other."""
    (p, _), (r, _) = problem.ratio
    if is_forward(problem):
        vec = vector_of((problem.y,), 3, (problem.y.shape[3],))
    else:
        vec = vector_of((problem.x, problem.y), 3, (problem.x.shape[3],))
        if max(p, r) > 3:  # a thread holds p vectors of a row: no more than fit its registers
            vec = min(vec, 4)
    return WholeConfig(p, r, vec, strip_of("planes", problem, vec)) if vec else None


def planes_reason(problem: UpsampleProblem) -> str:
    """Why this kernel cannot, "" if it can."""
    reason = _whole_reason(problem)
    if not reason and planes_config(problem) is None:
        reason = "needs neighbouring columns next to each other in memory"
    return reason


def planes_prepare(problem: UpsampleProblem, config: WholeConfig) -> Prepared:
    """One thread a vector of columns and a strip of rows."""
    n, c, height, width = problem.x.shape
    out_height, out_width = problem.y.shape[2:]
    groups = height + (1 if is_forward(problem) and config.rows > 2 else 0)
    strips = -(-groups // config.strip)
    vectors = (out_width if is_forward(problem) else width) // config.vec
    total = n * c * strips * vectors
    a, b = problem.inputs[0], problem.output
    scalars = (total, vectors, strips, c, height, width, out_height, a.strides, b.strides)
    return Prepared(kernel(problem, "planes", config, "i32:7 i64*4 i64*4"), blocks(total, config.threads), scalars)


# ---- NHWC ------------------------------------------------------------------------------------------------------------


def channels_config(problem: UpsampleProblem) -> WholeConfig | None:
    """None where channels do not lie one after the other, or cannot be moved several at a time."""
    (p, _), (r, _) = problem.ratio
    vec = vector_of((problem.x, problem.y), 1, (problem.x.shape[1],))
    return WholeConfig(p, r, vec, strip_of("channels", problem, vec)) if vec > 1 else None


def channels_reason(problem: UpsampleProblem) -> str:
    """Why this kernel cannot, "" if it can."""
    reason = _whole_reason(problem)
    if not reason and channels_config(problem) is None:
        reason = "needs neighbouring channels next to each other in memory, in aligned vectors"
    return reason


def channels_prepare(problem: UpsampleProblem, config: WholeConfig) -> Prepared:
    """One thread a vector of channels, a column of the result and a strip of rows."""
    n, c, height, width = problem.x.shape
    groups, columns = height + (is_forward(problem) and config.rows > 2), problem.output.shape[3]
    strips, vectors = -(-groups // config.strip), c // config.vec
    total = n * strips * columns * vectors
    a, b = problem.inputs[0], problem.output
    scalars = (total, vectors, columns, strips, height, width, *problem.y.shape[2:], a.strides, b.strides)
    return Prepared(kernel(problem, "channels", config, "i32:8 i64*4 i64*4"), blocks(total, config.threads), scalars)


# ---- anything --------------------------------------------------------------------------------------------------------


def general_config(problem: UpsampleProblem) -> GeneralConfig:
    out = problem.output
    return GeneralConfig(out.size >= LIMIT32, abs(out.strides[1]) < abs(out.strides[3]))


def general_reason(problem: UpsampleProblem) -> str:
    return ""


def general_prepare(problem: UpsampleProblem, config: GeneralConfig) -> Prepared:
    """One thread an element of the result."""
    a, b = problem.inputs[0], problem.output
    ratio = tuple(v for pair in problem.ratio for v in pair)
    scalars = (b.size, b.shape, *a.shape[2:], ratio, a.strides, b.strides)
    parameters = "i64 i64*4 i64 i64 i64*4 i64*4 i64*4"
    return Prepared(kernel(problem, "general", config, parameters), blocks(b.size, config.threads), scalars)


# ---- all -------------------------------------------------------------------------------------------------------------


def kernel(problem: UpsampleProblem, stem: str, config: Any, parameters: str) -> Kernel:
    """The kernel of ``device/<stem>.py`` for a problem's direction and dtype; the addresses are added."""
    direction = "forward" if is_forward(problem) else "backward"
    dtype, acc = problem.x.dtype, accumulator(problem)
    # the gradient of NHWC images has many loads under way, most by 3: bounded, so that enough threads fit a multiprocessor
    busy = stem == "channels" and direction == "backward"
    resident = (2 if problem.ratio[0][0] == 3 else 3) if busy else 1
    title, made_by = f"upsample_{stem} {direction}", f"upsample.device.{stem}.{direction}"
    return Kernel.of(title, made_by, (dtype, acc, config), f"ptr ptr {parameters}", config.threads, resident)
