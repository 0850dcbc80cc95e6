"""``numba.unshared_inputs_rows``: grad_inputs with sums in registers, which problems, their plans.

``boxes.py`` and ``f16.py`` read, add to and write sums in shared memory for each position and tap; a
pixel's sum is taken as often as taps reach it. Where that is often, of many images, it is what they spend their time on, and
sums in registers are faster. The device code is in ``device/rows.py``, and where a warp of its own prefetches filters in
``device/prefetched.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from typing import Any

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.launch import Kernel, reciprocal, sequence
from numbadnn.kernels.build.plans import around
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.kernels.conv.unshared.inputs.boxes import REDUCERS, reducing
from numbadnn.kernels.conv.unshared.inputs.boxes_config import vector_width
from numbadnn.kernels.conv.unshared.inputs.rows_config import candidates
from numbadnn.kernels.conv.unshared.inputs.rows_sizes import (
    RowsConfig,
    blocks_of,
    boxes_bytes,
    pitch_of,
    shared_bytes,
    space_bytes,
    y_pitch_of,
)
from numbadnn.kernels.conv.unshared.parts import transposed
from numbadnn.kernels.conv.unshared.parts.tile import facts_of, on_hopper, receptive_field, takes, tiles_of
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

MOST_IMAGES, MOST_TAPS = 32, 16
#: taps that reach a pixel times images from which on this is faster, by bytes of an element; fewer filters leave lanes idle
OFTEN, FEWEST_FILTERS = {2: 9, 4: 16}, 4
#: microseconds between estimates that say nothing
ALIKE = 0.15


def heuristic(problem: ConvProblem, policy: Policy) -> RowsConfig | None:
    """The least estimate of what fits; None where sums in shared memory are faster, or it cannot be done."""
    w, taps, stride = problem.w, problem.taps, problem.stride
    if not takes(problem, policy, "grad_inputs", 2, 4) or not on_hopper(policy):
        return None
    if problem.x.shape[0] > MOST_IMAGES or w.shape[0] // problem.groups < FEWEST_FILTERS or max(taps) > MOST_TAPS:
        return None
    if any(step > n for step, n in zip(stride, taps, strict=True)) or problem.dilation != (1, 1):
        return None
    if problem.x.shape[0] * math.prod(taps) < OFTEN[w.itemsize] * math.prod(stride):
        return None
    found = candidates(problem)
    best = _best(problem, found) if found else None
    return best if best and space_bytes(problem, best) <= min(policy.workspace_limit, LIMIT32) else None


def _best(problem: ConvProblem, found: list[tuple[float, RowsConfig]]) -> RowsConfig:
    """The least estimate, and of tiles that are as fast as far as one can tell the one that takes the least memory."""
    least, best = min(found, key=lambda pair: pair[0])
    alike = [c for us, c in found if us < least + ALIKE and (c.channels, c.own) == (best.channels, best.own)]
    return min(alike, key=lambda config: boxes_bytes(problem, config))


def kernel(dtype: str, config: RowsConfig) -> Kernel:
    config = replace(config, pitch=0, rows=1, channels=1)  # those are arguments

    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.inputs.device import prefetched, rows

        return (prefetched if config.prefetched else rows).boxes(dtype, config)

    parameters = Arguments(
        *("ptr:3", "i32 slices groups N K C channels tiles_across", "i32*2 tile output", "i32 pitch y_pitch box_rows"),
        *("i64*3 w_strides", "i64*4 y_strides"),
    )
    numbers = (*astuple(config)[:3], *config.taps, config.positions, *config.stride, *astuple(config)[6:20])
    name = f"unshared rows {dtype} " + " ".join(str(int(v)) for v in numbers)
    return Kernel(name, parameters, build, config.threads, config.resident, config.transposed)


def plan(problem: ConvProblem, policy: Policy, config: RowsConfig) -> Executable:
    """Two launches, the second of which starts before the first has ended, and waits for it; one before them transposes y."""
    dtype, device, w, width = problem.x.dtype, policy.device, problem.w, vector_width(config.kept, "float32")
    first = kernel(dtype, config)
    scalars = first.values(
        facts_of(problem),
        slices=-(-w.shape[3] // config.channels),
        channels=config.channels,
        tiles_across=tiles_of(problem, config.tile)[1],
        tile=config.tile,
        pitch=pitch_of(problem, config),
        y_pitch=y_pitch_of(problem, config),
        box_rows=receptive_field(problem, config.tile)[0],
        y_strides=transposed.strides(problem.y.shape, config.kept) if config.transposed else problem.y.strides,
    )
    grid = (blocks_of(problem, config), 1, 1)
    launch = first.prepare(device, grid, (config.threads, 1, 1), scalars, shared_bytes(problem, config))
    added = (
        reducing(problem, "float32", device, config.tile, 0, config.kept, width)
        if config.own
        else _reducing(problem, config, device)
    )
    steps = [(launch, "y w space"), (added, "space x")]
    if config.transposed:
        behind = f"space+{boxes_bytes(problem, config)}"
        transpose = transposed.transposing((problem.y,), device, config.kept)
        steps[:1] = [(transpose, f"y 0 {behind}"), (launch, f"{behind} w space")]
    direct = sequence("y w x space", steps)

    facts = {"kernel": first.name, "config": config}
    arithmetic = "ieee" if config.own else "tensor_core"
    return around(direct, facts, space_bytes(problem, config), arithmetic, "run_to_run", SEQUENCE)


def reduce_kernel(dtype: str, kept: int, ahead: int) -> Kernel:
    """What adds the boxes of tensor cores, ``ahead`` of them under way."""

    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.inputs.device import rows_reduce

        return rows_reduce.reduce(dtype, kept, ahead)

    parameters = Arguments(
        *("ptr:2", "i32 N C channels slices vectors units positions columns", "i32*2 stride image tiles padding box"),
        *("i64*2 by_width by_height by_vectors by_slices by_positions by_columns by_down by_right", "i64*4 x_strides"),
        "f32 alpha beta",
    )
    return Kernel(f"unshared rows reduce {dtype} {kept} {ahead}", parameters, build, REDUCERS, 6, early=True)


def _reducing(problem: ConvProblem, config: RowsConfig, device: int) -> Any:
    (H, W), C = problem.x.shape[2:], problem.w.shape[3]
    (down, right), columns, count = problem.stride, config.positions, math.prod(config.tile)
    slices, tiles, seen = (
        -(-C // config.channels),
        tiles_of(problem, config.tile),
        receptive_field(problem, config.tile),
    )
    units = problem.groups * slices * config.vectors
    divisors = {"width": W, "height": H, "down": down, "right": columns * right}
    own = {"vectors": config.vectors, "slices": slices, "positions": count, "columns": columns}
    boxes = -(-seen[0] // (config.rows * down)) * -(-seen[1] // (columns * right))
    reduce = reduce_kernel(problem.x.dtype, config.kept, 4 if boxes <= 4 else 6)
    scalars = reduce.values(
        facts_of(problem),
        **own,
        channels=config.channels,
        units=units,
        tiles=tiles,
        box=seen,
        **{f"by_{name}": reciprocal(divisor) for name, divisor in {**divisors, **own}.items()},
    )
    # a thread has eight sums, of fewer images than four fewer
    grid = (-(-(units * -(-config.kept // 4) * H * W * 4) // REDUCERS), 1, 1)
    return reduce.prepare(device, grid, (REDUCERS, 1, 1), scalars)


def hopper_kernels() -> Iterator[Kernel]:
    """Many images and one."""
    nine, three, far = (9, 9), (3, 3), (1, 1)
    many = RowsConfig(32, 32, 12, nine, 5, far, 4, 5, 16, 3, 1, False, False, 1, True, 0, True)
    yield kernel("float16", many)
    yield kernel("float16", replace(many, align=128))
    yield kernel("bfloat16", RowsConfig(16, 8, 12, nine, 7, far, 4, 5, 16, 3, 2, True, True, 1, True))
    few = RowsConfig(16, 8, 12, three, 4, far, 1, 4, 16, 2, 2, True, False, 1, False)
    yield kernel("float16", replace(few, pair=4))
    yield kernel("float16", replace(few, images=32, kept=32))
    yield kernel("bfloat16", RowsConfig(16, 1, 12, three, 4, far, 1, 8, 16, 2, 2, True, True, 1, False))
    for kept, ahead in ((32, 6), (8, 4), (1, 4)):
        yield reduce_kernel("bfloat16" if kept == 8 else "float16", kept, ahead)
    yield kernel("float32", RowsConfig(32, 32, 12, nine, 5, far, 4, 5, 8, 6, 2, False, False, 1, True, 8, True))
    yield kernel("float32", RowsConfig(32, 32, 6, three, 2, far, 1, 3, 16, 3, 2, False, False, 2, False, 16))
    yield kernel("float32", RowsConfig(8, 8, 6, three, 2, far, 1, 3, 16, 3, 2, False, False, 2, False, 4))
    yield kernel("float32", RowsConfig(1, 1, 3, three, 4, far, 1, 4, 16, 3, 2, False, False, 1, False, 1))
