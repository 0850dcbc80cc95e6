"""``numba.implicit_gemm`` forward and with respect to the image: kernels, their arguments, launches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.launch import Kernel, blocks, sequence
from numbadnn.kernels.build.plans import around
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.kernels.conv.implicit.pixels_config import (
    COPIES,
    LINES,
    PixelsConfig,
    Product,
    candidates,
    microseconds,
    packed_bytes,
    product,
    shared_bytes,
    space,
    store_of,
    workspace_bytes,
)
from numbadnn.kernels.conv.implicit.walk import (
    Boxes,
    Window,
    axes_reason,
    filter_boxes,
    filter_steps,
    image_reason,
    image_steps,
    packed_steps,
    rows_step,
    window,
)
from numbadnn.problem import ITEMSIZE, Policy, Spec
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

THREADS = 256
#: what the kernel is told of each spatial axis
WALK = ("positions", "move", "lower", "taps", "base", "slope", "spread", "hop")


# ---- kernels


def tail_of(config: PixelsConfig) -> int:
    """Columns behind the last 64 of a tile, which the copy engine writes by a map of their own."""
    return config.n % 64 if config.store == COPIES else 0


def pixels_kernel(dtype: str, axes: int, config: PixelsConfig, mends: bool = False) -> Kernel:
    """The kernel of one configuration, for two or three spatial axes; ``mends``: see ``Product.mends``."""
    frozen = replace(config, splits=min(config.splits, 2))  # how many is an argument
    made_by, arguments = "conv.implicit.device.pixels.pixels", (dtype, axes, frozen, mends)
    return Kernel.of("implicit_pixels", made_by, arguments, _taken(axes, config), threads_of(config), config.blocks)


def _taken(axes: int, config: PixelsConfig) -> Arguments:
    y, tail = "map" if config.store == COPIES else "ptr", "map" if tail_of(config) else "ptr"
    return Arguments(
        *("map:2", y, tail, "i32*3 tiles", "i32 count splits images depth width", f"i32*{axes} {' '.join(WALK)}"),
        *("i32 tap_start tap_step", f"i64*{axes + 2} strides", "i64 split_stride", f"i32*{axes} extents sizes"),
        *(f"i64*{axes + 1} steps", "i64*2 filter_steps", "f32 alpha beta"),
    )


def threads_of(config: PixelsConfig) -> int:
    """Eight warps multiply and one copies; a block that is alone has four of those, whose registers the eight take."""
    return 384 if config.blocks == 1 else 288


def arrange_kernel(dtype: str, axes: int) -> Kernel:
    """Filters with their channels next to each other."""
    parameters = f"ptr ptr i32 i32 i32*{axes} i64*{axes + 2} i64*2"
    return Kernel.of(
        "implicit_pixels_arrange", "conv.implicit.device.passes.arrange", (dtype, axes), parameters, THREADS
    )


def total_kernel(dtype: str, axes: int, vector: int) -> Kernel:
    """The sum over splits."""
    parameters = f"ptr ptr i32 i32 i64 i32 i32*{axes} i64*{axes + 2} f32 f32"
    return Kernel.of(
        "implicit_pixels_total", "conv.implicit.device.passes.total", (dtype, axes, vector), parameters, THREADS
    )


def kernels() -> Iterator[Kernel]:
    """Those that every architecture has the instructions for."""
    yield arrange_kernel("float16", 2)
    yield arrange_kernel("float16", 3)
    yield total_kernel("bfloat16", 2, 4)
    yield total_kernel("float16", 3, 4)


def hopper_kernels() -> Iterator[Kernel]:
    """Those of sm_90a: each way of writing, for both numbers of axes."""
    yield pixels_kernel("float16", 2, PixelsConfig(128, 256, 4, 1, True, False, COPIES))
    yield pixels_kernel("float16", 2, PixelsConfig(128, 144, 8, 1, True, False, COPIES, 1, True, whole=True))
    yield pixels_kernel("float16", 2, PixelsConfig(128, 96, 2, 1, False, False, COPIES, 0, True, 2))
    yield pixels_kernel("bfloat16", 2, PixelsConfig(256, 128, 4, 1, False, True, LINES))
    yield pixels_kernel("float32", 2, PixelsConfig(128, 64, 8, 2, True, False, 2))
    yield pixels_kernel("bfloat16", 3, PixelsConfig(128, 256, 4, 1, True, False, COPIES))
    yield pixels_kernel("float16", 3, PixelsConfig(256, 128, 4, 1, False, True, LINES))
    yield pixels_kernel("float32", 3, PixelsConfig(128, 128, 4, 2, True, True, 2))
    yield pixels_kernel("float16", 2, PixelsConfig(128, 256, 4, 1, False, False, COPIES), True)
    yield pixels_kernel("bfloat16", 3, PixelsConfig(256, 128, 4, 1, False, True, 8), True)
    yield pixels_kernel("float32", 2, PixelsConfig(128, 256, 4, 1, True, False, 2), True)


# ---- plans


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Why it cannot, "" if it can; what all directions ask for is asked elsewhere."""
    p = product(problem)
    name = "x" if p.forward else "y"
    reason = image_reason(p.source, name) or axes_reason(p.axes)
    if reason:
        return reason
    if problem.groups > 1 and (p.depth * p.item % 128 or (p.item == 4 and not p.forward)):
        return f"needs a multiple of {128 // p.item} channels of {name} a group, or one group"
    if max(problem.x.size, problem.w.size, problem.y.size) >= LIMIT32:
        return "needs operands of fewer than 2**31 elements"
    if workspace_bytes(p, 1) > policy.workspace_limit:
        return f"needs {workspace_bytes(p, 1)} bytes for the filters, the workspace limit is {policy.workspace_limit}"
    return ""


def maps(p: Product, config: PixelsConfig) -> tuple[Window | Boxes, ...]:
    """What the copy engine is told of the source, of the filters and, where it writes it, of the target."""
    w, across = p.filters, 128 // p.item
    box = (across, config.n) if config.by_rows else (across, 64)
    image: Window | Boxes = window(p.source, p.axes, (across, config.m))
    if config.plain:
        step = rows_step(p.source) * p.item
        image = Boxes((p.source.shape[1], p.pixels, 1), (step, step * p.pixels), (across, config.m, 1))
    read = image, filter_boxes(w, filter_steps(w) or packed_steps(w), box)
    if config.store != COPIES:
        return read
    extents = (p.width, p.pixels, p.problem.groups)
    whole = Boxes(extents, (rows_step(p.target) * p.item, p.width * p.item), (64, 64, 1))
    tail = tail_of(config)
    return (*read, whole, whole._replace(box=(tail, 64, 1))) if tail else (*read, whole)


def arguments(p: Product, config: PixelsConfig) -> tuple[Any, ...]:
    """Everything the kernel takes after its maps and addresses."""
    problem, target = p.problem, p.target
    tiles = (-(-p.pixels // config.m), -(-p.width // config.n), problem.groups)
    count = math.prod(tiles) * p.phases * config.splits
    last = math.prod(problem.taps) - 1
    strides, alpha, beta = target.strides, problem.alpha, problem.beta
    if config.splits > 1:
        strides, alpha, beta = Spec.of(target.dtype, target.shape, "nhwc").strides, 1.0, 0.0
    return _taken(problem.axes, config)(
        {name: tuple(getattr(axis, name) for axis in p.axes) for name in WALK},
        tiles=tiles,
        count=count,
        splits=config.splits,
        images=target.shape[0],
        depth=p.depth,
        width=p.width,
        tap_start=last if problem.flip else 0,
        tap_step=-1 if problem.flip else 1,
        strides=strides,
        split_stride=4 * target.size,
        extents=target.shape[2:],
        sizes=p.source.shape[2:],
        steps=image_steps(p.source),
        filter_steps=filter_steps(p.filters) or packed_steps(p.filters),
        alpha=alpha,
        beta=beta,
    )


def blocks_of(config: PixelsConfig, columns: int, count: int, slots: int) -> int:
    """How many blocks share so many tiles: what the device has room for at once, at most.

    With resident filters a block has one column of tiles, however many columns there are.
    """
    if config.resident:
        slots = max(columns, slots - slots % columns)
    return min(count, slots)


def _main(p: Product, config: PixelsConfig, device: int) -> Any:
    from numbadnn.gpu.context import ensure_context
    from numbadnn.kernels.build import tensormap as _tensormap
    from numbadnn.kernels.build.machine import multiprocessors

    dtype = p.source.dtype
    kind = "tf32" if dtype == "float32" else dtype
    with ensure_context(device):
        descriptors = tuple(
            _tensormap.encode_window(kind, *found)
            if isinstance(found, Window)
            else _tensormap.encode(kind, *found, swizzled=i < 3)
            for i, found in enumerate(maps(p, config))
        )
    scalars = arguments(p, config)
    (_, columns, _), count, *_ = scalars
    grid = (blocks_of(config, columns, count, config.blocks * multiprocessors(device)), 1, 1)
    return pixels_kernel(dtype, p.problem.axes, config, p.mends).prepare(
        device,
        grid,
        (threads_of(config), 1, 1),
        (*descriptors, *scalars),
        shared_bytes(config),
    )


def arrange_launch(w: Spec, device: int) -> Any:
    count = w.shape[0] * w.shape[1]
    scalars = (count, w.shape[1], w.shape[2:], w.strides, packed_steps(w))
    return arrange_kernel(w.dtype, len(w.shape) - 2).prepare(device, blocks(count, THREADS), (THREADS, 1, 1), scalars)


def total_launch(target: Spec, problem: ConvProblem, splits: int, device: int) -> Any:
    _, c, *sizes = target.shape
    vector = 4 if c % 4 == 0 and store_of(target, c) == 8 else 1
    count = target.size // vector
    scalars = (count, splits, 4 * target.size, c, tuple(sizes), target.strides, problem.alpha, problem.beta)
    chosen = total_kernel(target.dtype, len(sizes), vector)
    return chosen.prepare(device, blocks(count, THREADS), (THREADS, 1, 1), scalars)


def plan(problem: ConvProblem, policy: Policy, config: PixelsConfig | None = None) -> Executable:
    config = config or space(problem, policy.workspace_limit)[0]
    p, device = product(problem), policy.device
    main, packed = _main(p, config, device), packed_bytes(p.filters)
    facts = {"kernel": main.name, "config": config}
    nbytes = workspace_bytes(p, config.splits)
    if nbytes == 0:
        direct = sequence("image w out", [(main, "image w out out")])
    else:
        steps = [(arrange_launch(p.filters, device), "w space")] if packed else []
        filters, out = "space" if packed else "w", f"space+{packed}" if config.splits > 1 else "out"
        steps.append((main, f"image {filters} {out} {out}"))
        if config.splits > 1:
            steps.append((total_launch(p.target, problem, config.splits, device), f"space+{packed} out"))
        direct = sequence("image w out space", steps)

    return around(direct, facts, nbytes, "tf32" if p.item == 4 else "tensor_core", "run_to_run", SEQUENCE)


def rank(problem: ConvProblem) -> float:
    """Microseconds by the estimate that chooses the configuration, and what a launch takes."""
    p = product(problem)
    packing = 3 + problem.w.size * ITEMSIZE[problem.w.dtype] / 1e6 if packed_bytes(p.filters) else 0.0
    return 3.7 + packing + min(microseconds(p, t) for t in candidates(p))
