"""``numba.unshared_halves``: which 16-bit problems go to tensor cores, and in which blocks; device code: ``device/f16.py``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple

from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.plans import one_launch
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.kernels.conv.unshared import plain
from numbadnn.kernels.conv.unshared.forward.f16_config import CHUNK, ROWS, F16Config
from numbadnn.kernels.conv.unshared.parts.tile import takes, vector
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

MOST_IMAGES, MOST_WARPS, MOST_AHEAD, AHEAD_IN_LOOPS = 32, 8, 6, 4
#: of a block, on the multiprocessors that have the least
SHARED_BYTES = 99 * 1024
#: fewer leave most rows of a product idle
FEWEST_FILTERS = 4


def heuristic(problem: ConvProblem, policy: Policy) -> F16Config | None:
    """All terms at once where they fit registers and shared memory; None where the threads of ``numba.unshared`` are to do it."""
    w, terms = problem.w, math.prod(problem.w.shape[3:])
    if not takes(problem, policy, "forward", 2):
        return None
    low, high = problem.x.span
    vec, per_group = vector(problem, w.shape[3]), w.shape[0] // problem.groups
    if vec < 2 or per_group < FEWEST_FILTERS or max(high - low, *map(abs, problem.x.strides)) >= LIMIT32:
        return None
    images = min(MOST_IMAGES, 1 << (problem.x.shape[0] - 1).bit_length())
    return configured(images, vec, per_group, terms)


def configured(images: int, vec: int, filters: int, terms: int) -> F16Config:
    """As few warps as prefetch all terms at once, each for as many as the next; for fewer where loops keep more in registers."""
    across, chunks = min(4, -(-filters // ROWS)), -(-terms // CHUNK)
    for most in (MOST_AHEAD, AHEAD_IN_LOOPS):
        along = max(1, min(MOST_WARPS // across, -(-chunks // most)))
        found = filled(images, vec, across, along, min(most, -(-chunks // along)), filters, terms)
        if found.whole and found.once:
            break
    return found


def filled(
    images: int,
    vec: int,
    across: int,
    along: int,
    ahead: int,
    filters: int,
    terms: int,
    batch: int = 8,
    warps: int = 16,
) -> F16Config:
    """With as much capacity as these warps take at a time and shared memory has; ``warps`` on a multiprocessor bound
    registers."""
    chunks = -(-terms // CHUNK)
    for capacity in range(min(chunks, along * ahead), 0, -1):
        found = F16Config(
            *(images, vec, across, along, ahead, capacity * CHUNK, capacity == chunks, filters <= across * ROWS),
            *(min(batch, images), max(1, warps // (across * along))),
        )
        if found.shared_bytes <= SHARED_BYTES:
            break
    return found


def estimate(problem: ConvProblem, config: F16Config) -> float:
    """Microseconds on an H200: memory at two thirds of the speed of a copy, and what is gathered for each image."""
    gathered = problem.x.shape[0] * math.prod(problem.w.shape[1:]) * problem.groups
    return 4 + problem.bytes / 2.8e6 + gathered / 4.0e6


def plan(problem: ConvProblem, policy: Policy, config: F16Config) -> Executable:
    """One launch; a block has one position and some images."""
    chosen = kernel(problem.x.dtype, config)
    chunks = -(-problem.x.shape[0] // config.images)
    grid = (math.prod(problem.y.shape[2:]) * problem.groups * chunks, 1, 1)
    values, shared = plain.scalars(problem, chunks, chosen), config.shared_bytes
    launch = chosen.prepare(policy.device, grid, (config.threads, 1, 1), values, shared)
    return one_launch(chosen, launch, config, "tensor_core", "run_to_run", SEQUENCE)


def kernel(dtype: str, config: F16Config) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.forward.device import f16

        return f16.forward(dtype, "float32", config)

    name = f"unshared halves {dtype} " + " ".join(str(int(v)) for v in astuple(config))
    return Kernel(name, plain.parameters("float32"), build, config.threads, config.resident)


def kernels() -> Iterator[Kernel]:
    """Few terms and many, of few images and many; several parts of terms for several turns of filters."""
    yield kernel("float16", configured(32, 8, 16, 1296))
    yield kernel("bfloat16", configured(8, 8, 32, 288))
    yield kernel("float16", configured(32, 4, 80, 1600))
