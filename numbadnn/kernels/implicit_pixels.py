"""``numba.implicit_gemm`` forward and with respect to the image: configurations, arguments, launches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple

from numbadnn.kernels._implicit_walk import (
    Axis,
    Boxes,
    Window,
    axes_of,
    axes_reason,
    filter_boxes,
    filter_steps,
    image_reason,
    packed_steps,
    rows_step,
    window,
)
from numbadnn.kernels._launch import Kernel, blocks, sequence
from numbadnn.kernels._support import LIMIT32
from numbadnn.ops.conv import ConvProblem
from numbadnn.problem import ITEMSIZE, Policy, Spec
from numbadnn.registry import Executable

THREADS = 256
MULTIPROCESSORS = 132
#: of a multiprocessor; each block takes one more KB of it than it asks for
SHARED_BYTES = 228 * 1024
#: of ``store``: lines of 128 bytes by the threads, boxes by the copy engine
LINES, COPIES = 32, 64


@dataclass(frozen=True, slots=True)
class PixelsConfig:
    """A tile of ``m`` pixels (128, 256) by ``n`` channels (a multiple of 16), a ring of ``stages``, terms shared by ``splits``.

    ``by_rows``: filters are packed along the terms; ``phases``: the target is written in phases of a stride; ``store``:
    elements a thread writes at a time (1, 2, 8), or LINES or COPIES, through shared memory. ``resident``: filters stay
    in shared memory, in so many stretches of the terms. ``plain``: pixels are read as rows of a matrix. ``blocks``: so many
    share a multiprocessor.
    """

    m: int
    n: int
    stages: int
    splits: int
    by_rows: bool
    phases: bool
    store: int
    resident: int = 0
    plain: bool = False
    blocks: int = 1


class Product(NamedTuple):
    """A problem as the walk over the pixels of ``target``: ``depth`` channels of the source, ``width`` of the target, a group."""

    problem: ConvProblem
    forward: bool
    axes: tuple[Axis, ...]
    source: Spec
    target: Spec
    filters: Spec
    depth: int
    width: int

    @property
    def item(self) -> int:
        return self.source.itemsize

    @property
    def steps(self) -> int:
        """Copies of 128 bytes of channels for each pixel, over the taps of the average phase."""
        taps = math.prod(self.problem.taps) / self.phases
        return max(1, round(-(-self.depth * self.item // 128) * taps))

    @property
    def pixels(self) -> int:
        """Those of one phase."""
        return self.target.shape[0] * math.prod(a.positions for a in self.axes)

    @property
    def phases(self) -> int:
        return math.prod(a.spread for a in self.axes)

    @property
    def plain(self) -> bool:
        """Whether every pixel of the source is read once, by one tap."""
        ones = all((a.taps, a.move, a.lower, a.upper, a.spread) == (1, 1, 0, 0, 1) for a in self.axes)
        return ones and self.phases == 1 and rows_step(self.source) > 0


def product(problem: ConvProblem) -> Product:
    """Forward or the gradient with respect to the image."""
    forward, g = problem.direction == "forward", problem.groups
    source, target = (problem.x, problem.y) if forward else (problem.y, problem.x)
    w = problem.w
    if (
        not forward and w.dtype == "float32"
    ):  # TF32 is multiplied packed along the terms only, which are the filters here
        turn = (1, 0, *range(2, len(w.shape)))
        w = Spec(w.dtype, tuple(w.shape[i] for i in turn), tuple(w.strides[i] for i in turn), w.aligned)
    axes = axes_of(problem, forward)
    return Product(problem, forward, axes, source, target, w, source.shape[1] // g, target.shape[1] // g)


# ---- configurations


def _store(target: Spec, width: int) -> int:
    """Elements a thread may write at a time."""
    if target.strides[1] != 1 or not target.aligned:
        return 1
    others = (width, *(s for n, s in zip(target.shape, target.strides, strict=True) if n > 1 and s != 1))
    return next(v for v in (8, 2, 1) if (v < 8 or target.itemsize == 2) and all(step % v == 0 for step in others))


def by_copies_reason(p: Product) -> str:
    """Why the copy engine cannot write the target, "" if it can."""
    if p.problem.beta or p.phases > 1 or not rows_step(p.target):
        return "needs beta of 0 and a target whose pixels are one axis of memory"
    if p.item != 2:
        return "needs 16-bit types"
    if p.width % (16 // p.target.itemsize):
        return "needs groups of whole pieces of 16 bytes"
    return image_reason(p.target, "the result")


def filter_bytes(n: int, by_rows: bool) -> int:
    """Shared memory of 128 bytes of terms of ``n`` filters, or of 64 terms of them in boxes of 64."""
    return (n if by_rows else -(-n // 64) * 64) * 128


def stages_of(config: PixelsConfig) -> int:
    """As many as shared memory holds, eight at most."""
    filters, buffers = filter_bytes(config.n, config.by_rows), 32768 if config.store >= LINES else 0
    free = SHARED_BYTES // config.blocks - 1024 - 1040 - buffers - config.resident * filters
    return min(8, free // (config.m * 128 + (0 if config.resident else filters) + 16))


class Tiling(NamedTuple):
    """What a configuration is chosen by."""

    m: int
    n: int
    splits: int = 1
    resident: int = 0
    blocks: int = 1


def _microseconds(p: Product, t: Tiling) -> float:
    """An estimate, by what an H200 was measured to take: a step, the writing of a tile, the adding of partial sums."""
    rows = -(-p.pixels // t.m)
    tiles = rows * -(-p.width // t.n) * p.problem.groups * p.phases * t.splits
    step = 0.0037 + 5.9e-4 * (t.m + (0 if t.resident else t.n)) + 9.2e-6 * t.m * t.n
    write = (0.24 + 7.6e-5 * t.m * t.n) * (1.6 if p.phases > 1 else 1.0 if not by_copies_reason(p) else 2.0)
    # two blocks on a multiprocessor wait less for each other's writing than for each other's steps
    tile = p.steps / t.splits * step * (1.0, 2.25)[t.blocks - 1] + write * (1.0, 1.48)[t.blocks - 1]
    moved = (p.source.size + p.target.size) * p.item / 3.5e6
    # few terms are few lines of memory, which all multiprocessors ask for at once
    asked = 0.0 if t.resident else 0.06 * rows * max(0.0, 1 - p.depth * p.item / 128)
    extra = 2.5 + p.target.size * (8.0 * t.splits + 2) / 4.5e6 if t.splits > 1 else 0.0
    uneven = 1.05 if t.n % 64 else 1.0
    working = -(-tiles // (t.blocks * MULTIPROCESSORS)) * tile * uneven
    return math.cbrt(working**3 + moved**3 + asked**3) + extra  # the longest, a little more where others are as long


def _widths(p: Product) -> list[int]:
    """Columns of a tile; where the copy engine writes, also what shares the columns out evenly."""
    found = {64, 128, 256}
    if not by_copies_reason(p):
        found |= {-(-p.width // (16 * parts)) * 16 for parts in range(1, 9)}
    return [
        n for n in sorted(found) if n == 64 or (min(48, p.width) <= n <= 256 and n < min(2 * p.width, p.width + 64))
    ]


def _candidates(p: Product) -> Iterator[Tiling]:
    for n in _widths(p):
        for m, near in ((128, 1), (256, 1), (128, 2), (256, 2)):
            if m * n > 128 * 256 // near:
                continue
            yield Tiling(m, n, blocks=near)
            tiles, slots = -(-p.pixels // m) * -(-p.width // n), near * MULTIPROCESSORS
            stays = Tiling(m, n, 1, p.steps, near)
            few = p.width <= n or p.steps <= 2
            if few and p.problem.groups == p.phases == 1 and tiles > slots and config_of(p, stays).stages >= 3:
                yield stays
        if n % 64 == 0:
            for m in (128, 256) if n < 256 else (128,):
                yield from (Tiling(m, n, splits) for splits in (2, 3, 4, 5, 6, 8) if p.steps >= 4 * splits)


def config_of(p: Product, t: Tiling) -> PixelsConfig:
    store = 2 if t.splits > 1 and p.width % 2 == 0 else 1 if t.splits > 1 else _store(p.target, p.width)
    if t.splits == 1 and not by_copies_reason(p):
        store = COPIES
    elif store == 8 and not p.problem.beta:
        store = LINES
    by_rows, phases = p.forward or p.item == 4, p.phases > 1
    found = PixelsConfig(t.m, t.n, 0, t.splits, by_rows, phases, store, t.resident, p.plain, t.blocks)
    return replace(found, stages=stages_of(found))


def space(problem: ConvProblem, limit: int = 1 << 30) -> list[PixelsConfig]:
    """Every configuration worth timing, the one whose estimated time is the shortest first."""
    p = product(problem)
    fitting = [t for t in _candidates(p) if workspace_bytes(p, t.splits) <= limit]
    fitting.sort(key=lambda t: _microseconds(p, t))
    found = [config_of(p, t) for t in fitting]
    return [c for c in found if c.stages >= 2][:10]


# ---- kernels


def tail_of(config: PixelsConfig) -> int:
    """Columns behind the last 64 of a tile, which the copy engine writes by a map of their own."""
    return config.n % 64 if config.store == COPIES else 0


def pixels_kernel(dtype: str, axes: int, config: PixelsConfig) -> Kernel:
    """The kernel of one configuration, for two or three spatial axes."""

    def build() -> Callable[..., None]:
        from numbadnn.kernels import _implicit_pixels

        return _implicit_pixels.pixels(dtype, axes, config)

    parameters = (
        f"map map {'map' if config.store == COPIES else 'ptr'} {'map' if tail_of(config) else 'ptr'} i32*3 i32 i32 i32 i32 i32 "
        f"{f'i32*{axes} ' * 8}i32 i32 i64*{axes + 2} i64 i32*{axes} f32 f32"
    )
    frozen = replace(config, splits=min(config.splits, 2))  # how many is an argument
    name = f"implicit_pixels {axes} axes {dtype} " + " ".join(str(int(v)) for v in astuple(frozen))
    return Kernel(name, parameters, build, threads_of(config), config.blocks)


def threads_of(config: PixelsConfig) -> int:
    """Eight warps multiply and one copies; a block that is alone has four of those, whose registers the eight take."""
    return 384 if config.blocks == 1 else 288


def arrange_kernel(dtype: str, axes: int) -> Kernel:
    """Filters with their channels next to each other."""

    def build() -> Callable[..., None]:
        from numbadnn.kernels import _implicit_passes

        return _implicit_passes.arrange(dtype, axes)

    parameters = f"ptr ptr i32 i32 i32*{axes} i64*{axes + 2} i64*2"
    return Kernel(f"implicit_arrange {axes} axes {dtype}", parameters, build, THREADS)


def total_kernel(dtype: str, axes: int, vector: int) -> Kernel:
    """The sum over splits."""

    def build() -> Callable[..., None]:
        from numbadnn.kernels import _implicit_passes

        return _implicit_passes.total(dtype, axes, vector)

    parameters = f"ptr ptr i32 i32 i64 i32 i32*{axes} i64*{axes + 2} f32 f32"
    return Kernel(f"implicit_total {axes} axes {dtype} {vector}", parameters, build, THREADS)


def kernels() -> Iterator[Kernel]:
    """Those that every architecture has the instructions for."""
    yield arrange_kernel("float16", 2)
    yield arrange_kernel("float16", 3)
    yield total_kernel("bfloat16", 2, 4)
    yield total_kernel("float16", 3, 4)


def hopper_kernels() -> Iterator[Kernel]:
    """Those of sm_90a: each way of writing, for both numbers of axes."""
    yield pixels_kernel("float16", 2, PixelsConfig(128, 256, 4, 1, True, False, COPIES))
    yield pixels_kernel("float16", 2, PixelsConfig(128, 144, 8, 1, True, False, COPIES, 1, True))
    yield pixels_kernel("float16", 2, PixelsConfig(128, 96, 2, 1, False, False, COPIES, 0, True, 2))
    yield pixels_kernel("bfloat16", 2, PixelsConfig(256, 128, 4, 1, False, True, LINES))
    yield pixels_kernel("float32", 2, PixelsConfig(128, 64, 8, 2, True, False, 2))
    yield pixels_kernel("bfloat16", 3, PixelsConfig(128, 256, 4, 1, True, False, COPIES))
    yield pixels_kernel("float16", 3, PixelsConfig(256, 128, 4, 1, False, True, LINES))
    yield pixels_kernel("float32", 3, PixelsConfig(128, 128, 4, 2, True, True, 2))


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


def _padded(nbytes: int) -> int:
    return -(-nbytes // 256) * 256


def _packed_bytes(w: Spec) -> int:
    """What rearranged filters take, 0 if they are read where they are."""
    return 0 if filter_steps(w) else _padded(packed_steps(w)[0] * w.shape[0] * w.itemsize)


def workspace_bytes(p: Product, splits: int) -> int:
    """Rearranged filters, then partial sums."""
    return _packed_bytes(p.filters) + (4 * splits * p.target.size if splits > 1 else 0)


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
    strides, scale = target.strides, (problem.alpha, problem.beta)
    if config.splits > 1:
        strides, scale = Spec.of(target.dtype, target.shape, "nhwc").strides, (1.0, 0.0)
    walk = ("positions", "move", "lower", "taps", "base", "slope", "spread", "hop")
    return (
        *(tiles, count, config.splits, target.shape[0], p.depth, p.width),
        *(tuple(getattr(axis, name) for axis in p.axes) for name in walk),
        *(last if problem.flip else 0, -1 if problem.flip else 1),
        *(strides, 4 * target.size, target.shape[2:], *scale),
    )


def _main(p: Product, config: PixelsConfig, device: int) -> Any:
    from numbadnn.kernels import _implicit_pixels, _tensormap
    from numbadnn.kernels._context import ensure_context
    from numbadnn.kernels.gemm import multiprocessors

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
    most, columns = config.blocks * multiprocessors(device), scalars[0][1]
    if config.resident:  # a block has one column of tiles
        most -= most % columns
    grid = (min(scalars[1], most), 1, 1)
    return pixels_kernel(dtype, p.problem.axes, config).prepare(
        device,
        grid,
        (threads_of(config), 1, 1),
        (*descriptors, *scalars),
        _implicit_pixels.shared_bytes(config),
    )


def arrange_launch(w: Spec, device: int) -> Any:
    count = w.shape[0] * w.shape[1]
    scalars = (count, w.shape[1], w.shape[2:], w.strides, packed_steps(w))
    return arrange_kernel(w.dtype, len(w.shape) - 2).prepare(device, blocks(count, THREADS), (THREADS, 1, 1), scalars)


def total_launch(target: Spec, problem: ConvProblem, splits: int, device: int) -> Any:
    _, c, *sizes = target.shape
    vector = 4 if c % 4 == 0 and _store(target, c) == 8 else 1
    count = target.size // vector
    scalars = (count, splits, 4 * target.size, c, tuple(sizes), target.strides, problem.alpha, problem.beta)
    chosen = total_kernel(target.dtype, len(sizes), vector)
    return chosen.prepare(device, blocks(count, THREADS), (THREADS, 1, 1), scalars)


def plan(problem: ConvProblem, policy: Policy, config: PixelsConfig | None = None) -> Executable:
    config = config or space(problem, policy.workspace_limit)[0]
    p, device = product(problem), policy.device
    main, packed = _main(p, config, device), _packed_bytes(p.filters)
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

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        direct(stream, *inputs, *outputs, *((workspace,) if nbytes else ()))

    return Executable(run, nbytes, "tf32" if p.item == 4 else "tensor_core", "run_to_run", facts, direct)


def rank(problem: ConvProblem) -> float:
    """Microseconds by the estimate that chooses the configuration, and what a launch takes."""
    p = product(problem)
    packing = 3 + problem.w.size * ITEMSIZE[problem.w.dtype] / 1e6 if _packed_bytes(p.filters) else 0.0
    return 3.7 + packing + min(_microseconds(p, t) for t in _candidates(p))
