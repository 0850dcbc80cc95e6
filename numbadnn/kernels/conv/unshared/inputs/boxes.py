"""``numba.unshared``, grad_inputs: one kernel sums tiles of positions into boxes, a second adds the boxes.

The device code is in ``device/boxes.py`` and ``device/reduce.py``. A larger tile leaves less between the two kernels,
and fewer warps to prefetch filters: ``heuristic`` weighs them. The second kernel starts before the first has ended, and waits
for it. Extra memory: the tiles' boxes of pixels in the accumulator's type, of as many images at a time as the workspace limit
admits.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from typing import Any

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.launch import Kernel, reciprocal, sequence
from numbadnn.kernels.build.plans import around
from numbadnn.kernels.build.support import LIMIT32, accumulator_of
from numbadnn.kernels.conv.unshared.inputs.boxes_config import LANES, MULTIPROCESSORS, BoxesConfig, vector_width
from numbadnn.kernels.conv.unshared.parts.tile import facts_of, receptive_field, tiles_of, vector
from numbadnn.problem import FIXED_LEVELS, ITEMSIZE, Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

#: of a block, without opting in for more; of a multiprocessor
SHARED_BYTES, ALL_SHARED = 47 * 1024, 220 * 1024
#: threads of the second kernel's blocks
REDUCERS = 128
#: bytes of y's values that a block keeps
TABLE_BYTES = 8 * 1024
TILES = (1, 2, 3, 4, 6, 8, 16)
#: images that a configuration is chosen for where the bits of one may not depend on the number of all
FIXED_IMAGES = 8


def resident_of(config: BoxesConfig, acc: str) -> int:
    """Blocks of a multiprocessor for which registers suffice: 168 a thread for 64 sums, else 128."""
    sums = config.images * config.vec * ITEMSIZE[acc] // 4
    return max(1, min(16, (12 if sums > 32 else 16) // config.warps))


def _config(
    problem: ConvProblem, acc: str, images: int, vec: int, tile: tuple[int, int], channels: int, own: int
) -> BoxesConfig | None:
    """With these, if shared memory suffices."""
    filters = problem.w.shape[0] // problem.groups
    rows = TABLE_BYTES // (images * ITEMSIZE[acc])
    depth = min(rows, 1 << (math.prod(tile) * filters - 1).bit_length())  # fewer kernels
    warps = -(-channels // own)
    cells = -(-channels * math.prod(receptive_field(problem, tile)) // 32) * 32
    most = min(filters, depth // math.prod(tile))  # rows of y's values are of whole turns of loads, at every position
    ahead = min(16 if images * vec <= 32 else 4, 1 << (most.bit_length() - 1))
    terms = warps * turns_of(problem, vec, channels, own) * LANES * vec
    config = BoxesConfig(images, vec, ahead, warps, cells, terms, depth, filters % ahead == 0, tile, channels, own)
    return config if shared_bytes(config, acc) <= SHARED_BYTES else None


def turns_of(problem: ConvProblem, vec: int, channels: int, own: int) -> int:
    """How often a warp takes as many terms as it can to have those of its channels, and what their first access has besides."""
    C, per_channel = problem.w.shape[3], math.prod(problem.taps)
    firsts = (c for c0 in range(0, C, channels) for c in range(c0, min(c0 + channels, C), own))
    longest = max((min(c + own, C) - c) * per_channel + c * per_channel % vec for c in firsts)
    return -(-longest // (LANES * vec))


def shared_bytes(config: BoxesConfig, acc: str) -> int:
    """Of a block."""
    padded = config.cells // config.vec * (config.vec * config.images + vector_width(config.images, acc))
    return (padded + config.depth * config.images) * ITEMSIZE[acc] + config.terms * 4


def space_bytes(problem: ConvProblem, config: BoxesConfig, acc: str, chunks: int = 1) -> int:
    """The boxes of ``chunks`` times ``config.images`` images."""
    cells = (
        math.prod(receptive_field(problem, config.tile))
        * math.prod(tiles_of(problem, config.tile))
        * problem.x.shape[1]
    )
    return cells * chunks * config.images * ITEMSIZE[acc]


def _microseconds(problem: ConvProblem, acc: str, config: BoxesConfig) -> float:
    """An estimate from an H200, within a tenth: launches, filters, the instructions of a multiprocessor's warps, and boxes."""
    w, K, positions = problem.w, problem.w.shape[0] // problem.groups, math.prod(config.tile)
    slices, chunks = -(-w.shape[3] // config.channels), -(-problem.x.shape[0] // config.images)
    blocks = math.prod(tiles_of(problem, config.tile)) * problem.groups * slices * chunks
    resident = max(1, min(ALL_SHARED // (shared_bytes(config, acc) + 1024), resident_of(config, acc)))
    sums = config.images * config.vec * ITEMSIZE[acc] // 4
    turns = turns_of(problem, config.vec, config.channels, config.own)
    position = turns * (K * (sums + 13) + 4 * sums) * (0.6 + 0.4 * turns) * (1.0 if sums <= 32 else 1.2)
    loads = -(-positions * K // (LANES * config.warps))  # of y's values, all images each
    warps = config.warps * min(resident, -(-blocks // MULTIPROCESSORS))
    waves = max(1.0, blocks / (MULTIPROCESSORS * resident) + 0.3)
    issued = waves * warps * (600 + positions * position + loads * (30 + 10 * config.images))
    own = issued / min(2.8, 0.24 * warps) / 1800
    stream = w.size * w.itemsize * (1 + 0.5 * (chunks - 1)) / 4.2e6
    alone = 0.1 * config.warps if config.warps > 1 else 1.0  # smaller blocks do better, but for those of one warp
    boxes = space_bytes(problem, config, acc, chunks) / 3.4e6
    return 9 + max(own, stream) + 0.15 * min(own, stream) + boxes + alone


@functools.lru_cache(256)
def candidates(problem: ConvProblem, acc: str) -> list[tuple[float, BoxesConfig]]:
    """(estimated microseconds, configuration) of all that fit."""
    (P, Q), C, N = problem.y.shape[2:], problem.w.shape[3], problem.x.shape[0]
    most = 16 if acc == "float32" else 8
    counts = sorted({-(-C // parts) for parts in (1, 2, 4, 8, 16, C)} | {c for c in (4, 8, 16) if c < C})
    found: list[tuple[float, BoxesConfig]] = []
    images = min(most, 1 << (N - 1).bit_length())
    tiles = [(p, q) for p in (1, 2, 4) for q in TILES if p <= P and q <= Q and p * q <= 16]
    while images and (not found or images >= 8):
        for channels in counts:
            for tile, own in itertools.product(tiles, sorted({-(-channels // warps) for warps in (1, 2, 3, 4, 6, 8)})):
                config = _config(problem, acc, images, vector(problem, problem.w.shape[3], 4), tile, channels, own)
                if config:
                    found.append((_microseconds(problem, acc, config), config))
        images //= 2
    return sorted(found, key=lambda pair: pair[0])


def heuristic(problem: ConvProblem, acc: str = "float32") -> BoxesConfig | None:
    """None where the taps of one channel are too far from each other for shared memory."""
    return next((config for _, config in candidates(problem, acc)), None)


def typical(problem: ConvProblem, policy: Policy) -> ConvProblem:
    """The problem that a configuration is chosen for: of a fixed number of images where an image's bits may not depend on it.

    In which order terms are added depends on the tile, and which tile is fastest on how many images there are.
    """
    if policy.determinism not in FIXED_LEVELS:
        return problem
    x, y = (replace(spec, shape=(FIXED_IMAGES, *spec.shape[1:])) for spec in (problem.x, problem.y))
    return replace(problem, x=x, y=y)


# ---- kernels


def boxes_kernel(dtype: str, acc: str, config: BoxesConfig) -> Kernel:
    config = replace(config, tile=(1, 1), channels=1, own=1)  # those are arguments

    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.inputs.device import boxes

        return boxes.boxes(dtype, acc, config)

    parameters = Arguments(
        *("ptr:3", "i32 chunks slices groups first N K C channels own turns across span"),
        *("i32*2 tile output taps stride dilation", "i32 flip", "i32*2 box", "i64*3 w_strides", "i64*4 y_strides"),
    )
    name = f"unshared boxes {dtype} {acc} " + " ".join(str(int(v)) for v in astuple(config)[:8])
    return Kernel(name, parameters, build, LANES * config.warps, resident_of(config, acc))


def reduce_kernel(dtype: str, acc: str, width: int, parts: int, ahead: int) -> Kernel:
    """A thread has ``parts`` times ``width`` images, 1 or 2, and loads of ``ahead`` boxes under way, 4 or 6."""

    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.inputs.device import reduce

        return reduce.reduce(dtype, acc, width, parts, ahead)

    real = "f64" if acc == "float64" else "f32"
    parameters = Arguments(
        *("ptr:2", "i32 first N slots channels", "i32*2 image tiles moves padding box"),
        *("i64*2 by_vectors by_width by_height by_down by_right", "i64*4 x_strides", f"{real} alpha beta"),
    )
    return Kernel(
        f"unshared reduce {dtype} {acc} {width} {parts} {ahead}",
        parameters,
        build,
        REDUCERS,
        14 - ahead if parts == 1 else 6,
        early=True,
    )


def kernels() -> Iterator[Kernel]:
    """Several widths, 32 bits and 16."""
    for dtype, config in (
        ("float32", BoxesConfig(8, 4, 8, 3, 288, 288, 32, True)),
        ("float32", BoxesConfig(16, 4, 4, 6, 352, 352, 128, True)),
        ("bfloat16", BoxesConfig(1, 1, 8, 3, 96, 96, 32, False)),
    ):
        yield boxes_kernel(dtype, "float32", config)
        if config.images != 16:
            yield reduce_kernel(
                dtype, "float32", vector_width(config.images, "float32"), 2 if config.images == 8 else 1, 6
            )


# ---- plans


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Why it cannot, "" if it can; what holds for all directions is checked elsewhere."""
    acc = accumulator_of(problem.x.dtype, policy)
    config = heuristic(typical(problem, policy), acc)
    if config is None:
        return "needs what one channel of a filter reaches in shared memory"
    if space_bytes(problem, config, acc) > policy.workspace_limit:
        needed = space_bytes(problem, config, acc)
        return f"needs {needed} bytes for sums, the workspace limit is {policy.workspace_limit}"
    pixels = math.prod(problem.x.shape[1:]) * (problem.x.shape[0] + config.images)
    if pixels >= LIMIT32:
        return "needs images of fewer than 2**31 elements"
    return ""


def plan(problem: ConvProblem, policy: Policy, config: BoxesConfig | None = None) -> Executable:
    """Two launches for all images, or for as many as the workspace limit admits."""
    dtype, acc, device = problem.x.dtype, accumulator_of(problem.x.dtype, policy), policy.device
    wanted = typical(problem, policy)
    chosen = config or heuristic(wanted, acc)
    assert chosen is not None  # supports() has checked it
    N, chunk_bytes = problem.x.shape[0], space_bytes(problem, chosen, acc)
    chunks = min(-(-N // chosen.images), max(1, policy.workspace_limit // chunk_bytes))
    width = vector_width(chosen.images, acc)
    first = boxes_kernel(dtype, acc, chosen)
    block, steps = (LANES * chosen.warps, 1, 1), []
    for start in range(0, N, chunks * chosen.images):
        now = min(chunks, -(-(N - start) // chosen.images))
        own, blocks = _boxes_arguments(problem, chosen)
        scalars = first.values(facts_of(problem), **own, chunks=now, first=start)
        steps.append((first.prepare(device, (blocks * now, 1, 1), block, scalars), "y w space"))
        added = reducing(problem, acc, device, chosen.tile, start, now * chosen.images, width)
        steps.append((added, "space x"))
    direct = sequence("y w x space", steps)

    facts = {"kernel": first.name, "config": chosen}
    level = "run_to_run" if wanted is problem else "gpu_to_gpu"
    return around(direct, facts, chunks * chunk_bytes, determinism=level, summation=SEQUENCE)


def _boxes_arguments(problem: ConvProblem, config: BoxesConfig) -> tuple[dict[str, Any], int]:
    """What the first kernel takes of its configuration, and its blocks of ``config.images`` images."""
    tiles, slices = tiles_of(problem, config.tile), -(-problem.w.shape[3] // config.channels)
    own = {
        "slices": slices,
        "channels": config.channels,
        "own": config.own,
        "turns": turns_of(problem, config.vec, config.channels, config.own),
        "across": tiles[1],
        "span": max(config.ahead, config.depth // math.prod(config.tile) // config.ahead * config.ahead),
        "tile": config.tile,
        "box": receptive_field(problem, config.tile),
    }
    return own, math.prod(tiles) * problem.groups * slices


def reducing(
    problem: ConvProblem, acc: str, device: int, tile: tuple[int, int], start: int, slots: int, width: int
) -> Any:
    """The second kernel, ready for the images from ``start`` on of boxes that have ``slots``."""
    N, C, H, W = problem.x.shape
    down, right = (t * step for t, step in zip(tile, problem.stride, strict=True))
    parts = 2 if slots >= 4 * width and slots % (2 * width) == 0 else 1
    boxes = math.prod(
        -(-seen // move) for seen, move in zip(receptive_field(problem, tile), (down, right), strict=True)
    )
    reduce = reduce_kernel(problem.x.dtype, acc, width, parts, 4 if boxes <= 4 else 6)
    divisors = {"vectors": slots // (parts * width), "width": W, "height": H, "down": down, "right": right}
    scalars = reduce.values(
        facts_of(problem),
        first=start,
        slots=slots,
        channels=C,
        tiles=tiles_of(problem, tile),
        moves=(down, right),
        box=receptive_field(problem, tile),
        **{f"by_{name}": reciprocal(divisor) for name, divisor in divisors.items()},
    )
    grid = (-(-(slots // (parts * width) * C * H * W) // REDUCERS), 1, 1)
    return reduce.prepare(device, grid, (REDUCERS, 1, 1), scalars)


def rank(problem: ConvProblem) -> float:
    """Microseconds by the estimate that chooses the configuration."""
    acc = "float64" if problem.x.dtype == "float64" else "float32"
    return next((us for us, _ in candidates(problem, acc)), math.inf)
