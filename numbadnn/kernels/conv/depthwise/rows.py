"""``numba.depthwise_rows``: the gradient of depthwise filters in 16 bits, channels last. The host side of ``device/rows.py``.

Its sums are those of ``numba.depthwise`` in another order: first of a block's strip, then of the blocks, by the same kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.support import LIMIT32, device_reason, float32_reason
from numbadnn.kernels.conv.depthwise import depthwise
from numbadnn.kernels.conv.depthwise.config import pair
from numbadnn.kernels.conv.depthwise.rows_config import CHANNELS, COLUMNS, RowsConfig
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import Executable, Impl, register

MOST_GROUPS, MOST_THREADS, MOST_TAPS = 16, 256, 5
#: bytes of shared memory that every GPU of sm_80 and later gives a block; a ring that leaves too few blocks; all of an H200's
SHARED, LARGE, ALL_SHARED = 99 << 10, 56 << 10, 227 << 10
#: what an H200 has of multiprocessors, and blocks on each as far as registers go
MULTIPROCESSORS, MOST_RESIDENT = 132, 3
PARAMETERS = "ptr ptr ptr i32*2 i32*2 i32*2 i32*2 i32 i32*2 i32*3 i32*3"


def heuristic(problem: ConvProblem) -> RowsConfig:
    """Bands of up to 64 columns, then as many images as make a block worth its while, then strips as blocks are few."""
    N, K, P, Q = problem.y.shape
    columns = -(-Q // COLUMNS)
    bands = -(-columns // MOST_GROUPS)
    groups = -(-columns // bands)
    images = 1
    while 16 * groups * images * 2 <= 128 and images < N:
        images *= 2
    taps, stride = pair(problem.taps), pair(problem.stride)
    each = -(-K // CHANNELS) * bands * -(-N // images)
    config = RowsConfig(taps, stride, groups, images, 2, P, False)
    while config.shared_bytes > SHARED and config.images > 1:
        config = replace(config, images=config.images // 2)
    if config.shared_bytes > LARGE:
        config = replace(config, ahead=1)
    resident = min(MOST_RESIDENT, ALL_SHARED // (config.shared_bytes + 1024))
    strips = max(1, min(MULTIPROCESSORS * resident // each, P // 7))
    return _evened(problem, replace(config, rows=-(-P // strips)))


def _evened(problem: ConvProblem, config: RowsConfig) -> RowsConfig:
    even = problem.y.shape[3] % (COLUMNS * config.groups) == 0 and problem.y.shape[0] % config.images == 0
    return replace(config, even=even)


def space(problem: ConvProblem, policy: Policy) -> list[RowsConfig]:
    """Every configuration worth timing, the heuristic's first."""
    best = heuristic(problem)
    found = [best]
    for images in (1, 2, 4):
        for rows in (7, 14, 28):
            if best.groups * images * 16 <= MOST_THREADS and images <= problem.x.shape[0]:
                found.append(_evened(problem, replace(best, images=images, rows=min(rows, problem.y.shape[2]))))
    return [c for c in dict.fromkeys(found) if c.shared_bytes <= SHARED]


def kernel(dtype: str, config: RowsConfig) -> Kernel:
    """The kernel of a configuration; the rows of a strip are an argument."""
    arguments = (dtype, replace(config, rows=1))
    return Kernel.of("depthwise_rows", "conv.depthwise.device.rows.weights", arguments, PARAMETERS, config.threads)


def _aligned(spec: Spec) -> bool:
    return (
        spec.aligned
        and spec.strides[1] == 1
        and all(s % 8 == 0 and s >= 0 for s in spec.strides[:1] + spec.strides[2:])
    )


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Why it cannot, "" if it can."""
    if problem.axes != 2 or problem.unshared:
        return "needs two spatial axes and shared filters"
    if problem.x.itemsize != 2:
        return "needs float16 or bfloat16"
    if problem.groups != problem.x.shape[1] or problem.w.shape[:2] != (problem.groups, 1):
        return "needs as many groups and filters as channels"
    if any(d != 1 and n > 1 for d, n in zip(problem.dilation, problem.taps, strict=True)):
        return "has no kernel for dilated filters"
    if max(problem.stride) > 2 or max(problem.taps) > MOST_TAPS or problem.taps[0] < problem.stride[0]:
        return f"needs strides of 1 or 2, no larger than the taps, and at most {MOST_TAPS} taps an axis"
    if reason := float32_reason(policy):
        return reason
    if not (problem.x.size and problem.y.size):
        return "needs operands that are not empty"
    if not (_aligned(problem.x) and _aligned(problem.y) and problem.groups % 8 == 0):
        return "needs multiples of 8 channels next to each other in memory, in both images"
    if max(problem.x.span[1], problem.y.span[1]) >= LIMIT32:
        return "needs images of fewer than 2**31 elements"
    config = heuristic(problem)
    splits = _splits(problem, config)[0]
    if config.shared_bytes > SHARED or splits > 65535:
        return "needs fewer images, or fewer columns"
    if (needed := 4 * splits * problem.groups * math.prod(problem.taps)) > policy.workspace_limit:
        return f"needs {needed} bytes, the workspace limit is {policy.workspace_limit}"
    return device_reason(policy)


def _splits(problem: ConvProblem, config: RowsConfig) -> tuple[int, int, int]:
    """(all, strips of an image, bands of columns): the blocks that share the positions."""
    N, _, P, Q = problem.y.shape
    strips, bands = -(-P // config.rows), -(-Q // (config.groups * COLUMNS))
    return strips * bands * -(-N // config.images), strips, bands


def plan(problem: ConvProblem, policy: Policy, config: RowsConfig | None = None) -> Executable:
    """Two launches; the table between them is the workspace."""
    config, dtype = config or heuristic(problem), problem.x.dtype
    N, K, P, Q = problem.y.shape
    splits, strips, bands = _splits(problem, config)
    chosen = kernel(dtype, config)
    x, y = ((s.strides[0], *s.strides[2:]) for s in (problem.x, problem.y))
    corner = tuple(low for low, _ in problem.padding)
    scalars = ((N, K), problem.x.shape[2:], (P, Q), (strips, bands), config.rows, corner, x, y)
    grid = (-(-K // CHANNELS), splits, 1)
    first = chosen.prepare(policy.device, grid, (config.threads, 1, 1), scalars, config.shared_bytes)
    return depthwise.with_finish(problem, policy, first, "float32", splits, {"kernel": chosen.name, "config": config})


def rank(problem: ConvProblem) -> float:
    """Microseconds, as measured on an H200: two launches, the end of a block, bytes and sums."""
    return 8.75 + 0.25 * math.prod(problem.taps) + problem.bytes / 5e6 + problem.flops / 3.4e7


def kernels() -> Iterator[Kernel]:
    """3x3 and 5x5, strides 1 and 2."""
    for taps, stride, dtype in ((3, 1, "float16"), (5, 2, "bfloat16")):
        line = f"x={dtype}:2x64x56x56:nhwc w={dtype}:64x1x{taps}x{taps} groups=64 stride={stride},{stride}"
        asked = ConvProblem.parse(f"conv2d_grad_wrt_weights {line} pad={taps // 2},{taps // 2},{taps // 2},{taps // 2}")
        yield kernel(dtype, heuristic(asked))


register(
    Impl(
        "conv2d_grad_wrt_weights",
        "numba",
        "numba.depthwise_rows",
        supports,
        plan,
        rank,
        "ieee",
        "gpu_to_gpu",
        space=space,
    )
)
