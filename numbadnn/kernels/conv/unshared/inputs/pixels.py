"""Gradients of unshared convolutions' images of 16-bit types, a tile of pixels a block; see ``device/pixels.py``.

``unshared_inputs_rows`` and ``unshared_inputs_halves`` give a block positions, and add in a second kernel what several of them
have of a pixel. Here a block has pixels, and reads the filters of all positions that reach them: those at a tile's edge several
times, mostly from the L2 cache. That is less than writing and reading boxes of float32 sums where there are many tiles and few
taps. Of 32 images of 64x64, 3x3 and 32 channels it takes 43 us on an H200, where rows took 53.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from typing import Any

from numbadnn.gpu import driver as _driver
from numbadnn.kernels.build import simulate
from numbadnn.kernels.build import tensormap as _tensormap
from numbadnn.kernels.build.launch import Kernel, sequence
from numbadnn.kernels.build.machine import LARGEST_ROOM
from numbadnn.kernels.build.plans import around
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.kernels.conv.unshared.forward.places_stream import copied
from numbadnn.kernels.conv.unshared.inputs import rows as unshared_inputs_rows
from numbadnn.kernels.conv.unshared.inputs import rows_config as unshared_inputs_rows_config
from numbadnn.kernels.conv.unshared.inputs.pixels_config import ROWS, SIZE, Y_ROWS, PixelsConfig, ring_at
from numbadnn.kernels.conv.unshared.parts import turned as unshared_turned
from numbadnn.kernels.conv.unshared.parts.tile import free_order
from numbadnn.kernels.conv.unshared.parts.turned import FETCH, lasts
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

#: bytes of the ring: with more the block does not fit beside those that turn y, and was slower
RING, LEAST_DEPTH, LONGEST = 112 * 1024, 4, 256
HOPPER, MULTIPROCESSORS = (9, 0), 132
FEWEST_IMAGES, MOST_IMAGES, MOST_FILTERS, MOST_SUMS = 9, 32, 64, 112
#: warps of a block: of three each had too much to do. Rows of pixels of a tile; columns, an access of x; channels
FEWEST_WARPS, MOST_WARPS, TALLS, WIDE, CHANNELS = 6, 9, (2, 4, 6, 8, 16), 8, 16
#: of an estimate, fitted to 13 problems on an H200: microseconds, and those of a megabyte that is read, and of y and x; and
#: by how much the other kernels are quicker than theirs
START, READ, TURNED, AS_QUICK = 7.5, 0.128, 1.08, 0.75


def shared_bytes(config: PixelsConfig) -> int:
    return 128 + ring_at(config) + config.depth * config.slot + Y_ROWS * config.y_row


def space_bytes(problem: ConvProblem, config: PixelsConfig) -> int:
    """Of y turned."""
    return math.prod(problem.y.shape[1:]) * config.kept * SIZE


def heuristic(problem: ConvProblem, policy: Policy) -> PixelsConfig | None:
    """The least estimate of what fits; None where others are to do it."""
    w, N = problem.w, problem.x.shape[0]
    if not problem.unshared or problem.direction != "grad_inputs" or w.itemsize != SIZE or simulate.active():
        return None
    if not free_order(problem, policy) or not FEWEST_IMAGES <= N <= MOST_IMAGES:
        return None
    if policy.device >= 0 and _driver.compute_capability(policy.device) != HOPPER:
        return None
    K = w.shape[0] // problem.groups
    if K % ROWS or K > MOST_FILTERS or problem.stride != (1, 1) or problem.dilation != (1, 1) or not copied(problem):
        return None
    if not (problem.x.size and w.size):
        return None
    found = [config for tall in TALLS if (config := configured(problem, tall, WIDE, CHANNELS))]
    fits = [c for c in found if c.depth >= LEAST_DEPTH and c.sums <= MOST_SUMS]
    fits = [c for c in fits if FEWEST_WARPS <= c.warps <= MOST_WARPS]
    if not fits:
        return None
    best = min(fits, key=lambda config: rank(problem, config))
    rows = unshared_inputs_rows.heuristic(problem, policy)
    if rows and AS_QUICK * unshared_inputs_rows_config.rank(problem, rows) < rank(problem, best):
        return None
    return best if space_bytes(problem, best) <= min(policy.workspace_limit, LIMIT32) else None


def configured(problem: ConvProblem, tall: int, wide: int, channels: int, depth: int = 0) -> PixelsConfig | None:
    """With ``depth`` slots, or those that there is room for; None where none would be, or a copy cannot bring one."""
    taps, C = (problem.taps[0], problem.taps[1]), problem.w.shape[3]
    kept, steps = max(16, 1 << (problem.x.shape[0] - 1).bit_length()), problem.w.shape[0] // problem.groups // ROWS
    lasting = lasts((problem.x.size + math.prod(problem.y.shape[1:]) * kept) * SIZE)  # with y turned
    config = PixelsConfig(kept, taps, wide, channels, steps, 1, bool(problem.flip), lasting, tall)
    if C % channels or channels * math.prod(taps) > LONGEST or config.pitch % 16 or not _whole_rows(problem, wide):
        return None
    room = min(RING, LARGEST_ROOM - shared_bytes(replace(config, depth=0)) - 1024)
    depth = depth or room // config.slot
    return replace(config, depth=depth) if 1 < depth * config.slot <= room else None


def _whole_rows(problem: ConvProblem, wide: int) -> bool:
    """Whether a row of a tile's pixels is one access: pixel by pixel the whole took three times as long."""
    x = problem.x
    return x.aligned and x.strides[3] == 1 and not any(n % wide for n in (*x.strides[:3], x.shape[3]))


def blocks_of(problem: ConvProblem, config: PixelsConfig) -> int:
    H, W = problem.x.shape[2:]
    return -(-H // config.tall) * -(-W // config.wide) * problem.groups * (problem.w.shape[3] // config.channels)


def rank(problem: ConvProblem, config: PixelsConfig) -> float:
    """An estimate from an H200: what the blocks read, wave after wave, y that is turned, and x, whose lines are many blocks'."""
    K = problem.w.shape[0] // problem.groups
    blocks, positions = blocks_of(problem, config), (config.tall + config.taps[0] - 1) * config.positions
    read = blocks * positions * K * (config.pitch + config.kept * SIZE) / 1e6
    waves = -(-blocks // MULTIPROCESSORS)
    moved = (math.prod(problem.y.shape[1:]) * config.kept + problem.x.size) * SIZE / 1e6
    return START + READ * read / blocks * waves * MULTIPROCESSORS + TURNED * moved


def kernel(dtype: str, config: PixelsConfig) -> Kernel:
    config = replace(config, tall=0)  # that is an argument

    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.inputs.device import pixels as _unshared_inputs_pixels

        return _unshared_inputs_pixels.gradient(dtype, config)

    numbers = (config.kept, *config.taps, *astuple(config)[2:-1])
    name = f"unshared inputs pixels {dtype} " + " ".join(str(int(v)) for v in numbers)
    parameters = "map ptr ptr i32 i32 i32 i32 i32 i32*2 i32*2 i32*2 i32 i64*4 f32 f32"
    return Kernel(name, parameters, build, config.threads, 1, True)


def filters_map(problem: ConvProblem, config: PixelsConfig, device: int) -> Any:
    """Terms, filters, positions; a copy has the block's channels of all filters of a group, of a position."""
    w = problem.w
    extents = (math.prod(w.shape[3:]), w.shape[0], w.shape[1] * w.shape[2])
    box = (config.channels * math.prod(config.taps), config.steps * ROWS, 1)
    strides = (w.itemsize * w.strides[0], w.itemsize * w.strides[2])
    return _tensormap.described(device, w.dtype, (extents, strides, box), swizzled=False, fetch=FETCH)


def plan(problem: ConvProblem, policy: Policy, config: PixelsConfig) -> Executable:
    chosen, device = kernel(problem.x.dtype, config), policy.device
    (N, _, H, W), (_, _, P, Q), C = problem.x.shape, problem.y.shape, problem.w.shape[3]
    scalars = (
        *(filters_map(problem, config, device), -(-W // config.wide), C // config.channels, problem.groups, N, C),
        *((P, Q), (H, W), tuple(low for low, _ in problem.padding), config.tall),
        *(problem.x.strides, problem.alpha, problem.beta),
    )
    grid, block = (blocks_of(problem, config), 1, 1), (config.threads, 1, 1)
    launch = chosen.prepare(device, grid, block, scalars, shared_bytes(config))
    turn = unshared_turned.turning((problem.y,), device, config.kept)
    direct = sequence("y w x space", [(turn, "y 0 space"), (launch, "w space x")])
    facts = {"kernel": chosen.name, "config": config}
    return around(direct, facts, space_bytes(problem, config), "tensor_core", "run_to_run", SEQUENCE)


def hopper_kernels() -> Iterator[Kernel]:
    """Many images and fewer."""
    yield kernel("float16", PixelsConfig(32, (3, 3), 8, 16, 2, 12, False, True))
    yield kernel("bfloat16", PixelsConfig(16, (4, 3), 8, 16, 1, 12, True, False))
