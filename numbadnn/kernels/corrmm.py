"""``numba.corrmm``: convolution as a matrix product over a Toeplitz matrix (im2col), one group of images after another.

The matrix of an image has a row for each channel and tap, a column for each output position. It is written for
``images`` images at a time into one buffer that all groups of images share, never for the whole batch (of more than one
image). Forward: y = W T, by ``gemm``. Gradient of the image: T = W' y, then each pixel adds its own elements of T
(col2im). Gradient of the filters: y T' summed over images, those of a group beside each other, then group upon group.
Unshared filters are a product for each position.

Extra memory: images * matrix_bytes, and for the filters' gradient images (unshared: 1) * the filters in the
accumulator's type; operands whose strides do not fold to a matrix are copied whole. It stays within the workspace
limit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from numbadnn.kernels._launch import Kernel, blocks
from numbadnn.kernels._support import LIMIT32, device_reason
from numbadnn.kernels.copy import plan_copy
from numbadnn.kernels.gemm import FEW_TILES, GemmProblem, plan_gemm
from numbadnn.ops.conv import OPERATIONS, ConvProblem
from numbadnn.problem import ITEMSIZE, Policy, Spec
from numbadnn.registry import Executable, Impl, register

THREADS = 256
#: the buffer is kept below this where a group of images is enough to fill the GPU
ENOUGH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class CorrmmConfig:
    """``images`` share the buffer; ``by_position``: a position's rows are neighbours; ``last``: channels count within taps."""

    images: int
    by_position: bool
    last: bool


class _Matrices:
    """A problem as matrices: sizes, where they lie, which operands have to be copied first."""

    def __init__(self, problem: ConvProblem) -> None:
        self.problem, axes = problem, problem.axes
        self.N, self.K = problem.y.shape[:2]
        self.C, self.G = problem.x.shape[1], problem.groups
        self.taps, self.positions = _three(problem.taps), _three(problem.y.shape[2:])
        self.area, self.columns = math.prod(problem.taps), math.prod(problem.y.shape[2:])
        self.rows = self.C * self.area
        self.channels_last = problem.x.strides[1] == 1 and problem.x.strides[-1] != 1
        self.held = "float64" if problem.x.dtype == "float64" else "float32"
        # the type of the matrix: the image's own going in, the accumulator's coming out
        self.type = self.held if problem.direction == "grad_inputs" else problem.x.dtype
        c_taps = (problem.w.shape[-axes - 1], *problem.taps)
        strides = problem.w.strides[-axes - 1 :]
        by_channel = _fold(c_taps, strides) == 1
        by_tap = self.G == 1 and _fold((*c_taps[1:], c_taps[0]), (*strides[1:], strides[0])) == 1
        regions = 1 if not problem.unshared else _fold(problem.w.shape[1 : axes + 1], problem.w.strides[1 : axes + 1])
        whole = problem.direction != "grad_weights" or not problem.unshared or _together(problem)
        self.w = (
            problem.w if (by_channel or by_tap) and regions and whole else Spec.of(problem.w.dtype, problem.w.shape)
        )
        self.last = self.w is problem.w and by_tap and (self.channels_last or not by_channel)
        folded = _fold(problem.y.shape[2:], problem.y.strides[2:])
        self.y = problem.y if folded else Spec.of(problem.y.dtype, problem.y.shape)
        self.y_step = _fold(self.y.shape[2:], self.y.strides[2:]) or 1

    @property
    def matrix_bytes(self) -> int:
        """The Toeplitz matrix of one image."""
        return self.rows * self.columns * ITEMSIZE[self.type]

    @property
    def partial_bytes(self) -> int:
        """The filters' gradient, not yet summed over the images of a group."""
        return self.problem.w.size * ITEMSIZE[self.held] if self.problem.direction == "grad_weights" else 0

    @property
    def copied_bytes(self) -> int:
        pairs = ((self.w, self.problem.w), (self.y, self.problem.y))
        return sum(_padded(mine.size * mine.itemsize) for mine, given in pairs if mine is not given)

    def workspace(self, images: int) -> int:
        """Bytes for groups of so many images."""
        partials = 1 if self.problem.unshared else images
        return _padded(images * self.matrix_bytes) + _padded(partials * self.partial_bytes) + self.copied_bytes


def _three(values: tuple[int, ...], neutral: int = 1) -> tuple[int, ...]:
    return (neutral,) * (3 - len(values)) + tuple(values)


def _padded(nbytes: int) -> int:
    return -(-nbytes // 256) * 256


def _fold(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The stride of these axes as one, 0 where they do not follow each other in memory."""
    step = expected = None
    for n, s in zip(reversed(sizes), reversed(strides), strict=True):
        if n == 1:
            continue
        if expected is not None and s != expected:
            return 0
        step, expected = s if step is None else step, s * n
    return 1 if step is None else step


def _together(problem: ConvProblem) -> bool:
    """Whether unshared filters and their regions are one axis of memory."""
    axes = problem.axes
    return _fold(problem.w.shape[: axes + 1], problem.w.strides[: axes + 1]) != 0


def workspace_bytes(problem: ConvProblem, images: int = 1) -> int:
    """What a run with groups of so many images needs besides its operands, in bytes."""
    return _Matrices(problem).workspace(images)


def heuristic(problem: ConvProblem, limit: int = 1 << 30) -> CorrmmConfig:
    """As many images together as it takes to fill the GPU, half the batch at most, in ENOUGH_BYTES and the limit."""
    m = _Matrices(problem)
    sizes = {"forward": (m.K, m.columns), "grad_inputs": (m.rows, m.columns), "grad_weights": (m.K, m.rows // m.G)}
    tall, wide = sizes[problem.direction]
    tiles = -(-tall // 128) * -(-wide // 128)
    images = -(-m.N // 2)  # never the whole batch
    if not problem.unshared:
        images = min(images, -(-4 * FEW_TILES // tiles))
    each = m.matrix_bytes + (0 if problem.unshared else m.partial_bytes)
    most = min(max(ENOUGH_BYTES, each), limit - m.workspace(0) - 512)
    return CorrmmConfig(max(1, min(images, most // max(each, 1))), m.channels_last, m.last)


def space(problem: ConvProblem, limit: int = 1 << 30) -> list[CorrmmConfig]:
    """Every configuration worth timing, the heuristic's first: other groups of images."""
    from dataclasses import replace

    best = heuristic(problem, limit)
    return list(dict.fromkeys([best, *(replace(best, images=n) for n in (1, best.images // 2) if n)]))


# ---- kernels


def gather_kernel(dtype: str, by_position: bool, last: bool) -> Kernel:
    """im2col."""

    def build() -> Callable[..., None]:
        from numbadnn.kernels import _corrmm_kernels

        return _corrmm_kernels.gather(dtype, by_position, last)

    parameters = "ptr ptr i32 i32 i32*3 i32*3 i32 i32*3 i32*3 i32*3 i32*3 i64 i64 i64*3 i64"
    return Kernel(f"corrmm_gather {dtype} {int(by_position)} {int(last)}", parameters, build, THREADS)


def scatter_kernel(dtype: str, held: str, by_position: bool, last: bool) -> Kernel:
    """col2im."""

    def build() -> Callable[..., None]:
        from numbadnn.kernels import _corrmm_kernels

        return _corrmm_kernels.scatter(dtype, held, by_position, last)

    real = "f64" if dtype == "float64" else "f32"
    parameters = f"ptr ptr i32 i32 i32*3 i32*3 i32 i32*3 i32*3 i32*3 i32*3 i64 i64 i64*3 i64 i32 {real} {real}"
    return Kernel(f"corrmm_scatter {dtype} {held} {int(by_position)} {int(last)}", parameters, build, THREADS)


def total_kernel(held: str, dtype: str) -> Kernel:
    """The sum over the images of a group."""

    def build() -> Callable[..., None]:
        from numbadnn.kernels import _corrmm_kernels

        return _corrmm_kernels.total(held, dtype)

    real = "f64" if dtype == "float64" else "f32"
    return Kernel(f"corrmm_total {held} {dtype}", f"ptr ptr i64 i32 i64 i64 {real} {real}", build, THREADS)


def kernels() -> Iterator[Kernel]:
    """Each kernel once."""
    yield gather_kernel("float16", True, True)
    yield scatter_kernel("bfloat16", "float32", True, True)
    yield total_kernel("float32", "float16")


# ---- plans

#: a step of a plan: (stream, x, w, y, workspace)
Step = Callable[[int, int, int, int, int], None]


def _supports(problem: ConvProblem, policy: Policy) -> str:
    m = _Matrices(problem)
    if policy.precision == "float16":
        return "accumulates in float32 or float64, not in float16"
    if policy.precision in ("float32", "float64") and policy.precision != m.held:
        return f"accumulates {problem.x.dtype} in {m.held}, not in {policy.precision}"
    if max(m.rows, m.columns, math.prod(problem.x.shape[2:]), m.N) >= LIMIT32:
        return "needs matrices of fewer than 2**31 rows and columns"
    if problem.unshared and m.columns > 65535:
        return "needs at most 65535 output positions where filters are unshared"
    if m.workspace(1) > policy.workspace_limit:
        return f"needs {m.workspace(1)} bytes for one image, the workspace limit is {policy.workspace_limit}"
    return device_reason(policy)


def _plan(problem: ConvProblem, policy: Policy, config: CorrmmConfig | None = None) -> Executable:
    m = _Matrices(problem)
    config = config or heuristic(problem, policy.workspace_limit)
    partial_at = _padded(config.images * m.matrix_bytes)
    copies_at = partial_at + _padded((1 if problem.unshared else config.images) * m.partial_bytes)
    before, after, places = _copies(m, copies_at, policy.device)
    make = {"forward": _forward, "grad_inputs": _grad_inputs, "grad_weights": _grad_weights}[problem.direction]
    inner, arithmetic = make(m, policy, config, partial_at)
    names = problem.input_names, problem.output_name

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        at = {names[0][0]: inputs[0], names[0][1]: inputs[1], names[1]: outputs[0]}
        for step in before:
            step(stream, at["x"], at["w"], at["y"], workspace)
        w, y = (workspace + places[n] if n in places else at[n] for n in "wy")
        for step in inner:
            step(stream, at["x"], w, y, workspace)
        for step in after:
            step(stream, at["x"], at["w"], at["y"], workspace)

    facts = {"images": config.images, "matrix_bytes": m.matrix_bytes, "copied": sorted(places), "config": config}

    def direct(stream: int, first: int, second: int, out: int, workspace: int) -> None:
        run((first, second), (out,), workspace, stream)

    return Executable(run, m.workspace(config.images), arithmetic, "run_to_run", facts, direct)


def _copies(m: _Matrices, at: int, device: int) -> tuple[list[Step], list[Step], dict[str, int]]:
    """Steps that copy the operands which do not fold, and the result back; where the copies lie."""
    before: list[Step] = []
    after: list[Step] = []
    places: dict[str, int] = {}
    for name in "wy":
        mine, given = getattr(m, name), getattr(m.problem, name)
        if mine is given:
            continue
        places[name] = at
        is_output = m.problem.output_name == name
        if not is_output or m.problem.beta:
            before.append(_copy(given, mine, name, at, device, True))
        if is_output:
            after.append(_copy(mine, given, name, at, device, False))
        at += _padded(mine.size * mine.itemsize)
    return before, after, places


def _copy(source: Spec, target: Spec, name: str, at: int, device: int, inwards: bool) -> Step:
    copy = plan_copy(source, target, (0,) * len(source.shape), device)

    def step(stream: int, x: int, w: int, y: int, workspace: int) -> None:
        given, mine = {"w": w, "y": y}[name], workspace + at
        copy(given, mine, stream) if inwards else copy(mine, given, stream)

    return step


def _groups(m: _Matrices, images: int) -> list[tuple[int, int]]:
    """(first image, how many) of each group."""
    return [(first, min(images, m.N - first)) for first in range(0, m.N, images)]


def _gather(m: _Matrices, device: int, config: CorrmmConfig) -> Callable[[int], Any]:
    """``gather(count)``: the launch that writes the matrices of so many images."""
    problem = m.problem
    chosen = gather_kernel(problem.x.dtype, config.by_position, config.last)

    @functools.cache
    def launch(count: int) -> Any:
        inner, outer = (m.rows, m.columns) if config.by_position else (m.columns, m.rows)
        grid = (-(-inner // THREADS), min(outer, 65535), min(count, 65535))
        return chosen.prepare(device, grid, (THREADS, 1, 1), (count, *_geometry(m), m.rows * m.columns))

    return launch


def _geometry(m: _Matrices) -> tuple[Any, ...]:
    """What both kernels take between the number of images and the size of a matrix."""
    p = m.problem
    return (
        *(m.C, _three(p.x.shape[2:]), m.taps, int(p.flip), m.positions, _three(tuple(low for low, _ in p.padding), 0)),
        *(_three(p.stride), _three(p.dilation), p.x.strides[0], p.x.strides[1], _three(p.x.strides[2:], 0)),
    )


def _steps(m: _Matrices, config: CorrmmConfig) -> tuple[int, int]:
    """The matrix's strides along rows and positions."""
    return (1, m.rows) if config.by_position else (m.columns, 1)


@dataclass(frozen=True, slots=True)
class _Side:
    """One operand of the products: strides along its axes, and from image, group of channels and region to the next."""

    strides: tuple[int, int]
    image: int
    group: int
    region: int
    aligned: bool


def _products(
    m: _Matrices, policy: Policy, sizes: tuple[int, int, int], sides: tuple[_Side, _Side, _Side], out: str, alpha: float
) -> tuple[Callable[[int, float], list[tuple[Any, tuple[int, ...]]]], str]:
    """``products(images, beta)``: launches for one group of images, with the element offsets of their operands.

    Batched over images (or over groups where they are more), over regions where filters are unshared.
    """
    a, b, c = sides
    dtype, device = m.problem.x.dtype, policy.device

    def fits(side: _Side, size: int, *steps: int) -> bool:
        return side.aligned and all(step * size % 16 == 0 for step in steps)

    @functools.cache
    def products(images: int, beta: float) -> list[tuple[Any, tuple[int, ...]]]:
        if m.problem.unshared:
            batch, inside, loops = m.columns, "region", [(0, g) for g in range(m.G)]
        elif images >= m.G:
            batch, inside, loops = images, "image", [(0, g) for g in range(m.G)]
        else:
            batch, inside, loops = m.G, "group", [(i, 0) for i in range(images)]
        item, out_item = ITEMSIZE[dtype], ITEMSIZE[out]
        aligned_a, aligned_b, aligned_c = (
            fits(s, size, s.image if m.N > 1 else 0, s.group if m.G > 1 else 0)
            for s, size in ((a, item), (b, item), (c, out_item))
        )
        aligned = (aligned_a, aligned_b, aligned_c)
        steps = (getattr(a, inside), getattr(b, inside), getattr(c, inside))
        made = []
        size_m, size_n, size_k = (images if n == 0 else n for n in sizes)
        for first in range(0, batch, 65535):
            count = min(65535, batch - first)
            gemm = plan_gemm(
                GemmProblem(
                    size_m, size_n, size_k, dtype, out, a.strides, b.strides, c.strides, count, steps, alpha, beta,
                    policy.fp32_precision, aligned,
                ),
                device,
            )  # fmt: skip
            for i, g in loops:
                offsets = tuple(
                    (i * s.image + g * s.group + first * step) * size
                    for s, step, size in zip(sides, steps, (item, item, out_item), strict=True)
                )
                made.append((gemm.direct, offsets))
        return made

    kind = "ieee" if dtype == "float64" else policy.fp32_precision if dtype == "float32" else "tensor_core"
    return products, kind


def _matrix_side(m: _Matrices, config: CorrmmConfig, transposed: bool) -> _Side:
    """The Toeplitz matrix as (rows, positions), or the other way round; unshared: (rows, images)."""
    row, position = _steps(m, config)
    image, group = m.rows * m.columns, m.rows // m.G * row
    strides = (row, image) if m.problem.unshared else (row, position)
    return _Side(strides[::-1] if transposed else strides, image, group, position, True)


def _filter_side(m: _Matrices, transposed: bool) -> _Side:
    """The filters as (K, rows) or (rows, K)."""
    k, axes = m.w.strides[0], m.problem.axes
    region = _fold(m.w.shape[1 : axes + 1], m.w.strides[1 : axes + 1]) if m.problem.unshared else 0
    return _Side((1, k) if transposed else (k, 1), 0, m.K // m.G * k, region, m.w.aligned)


def _top_side(m: _Matrices, transposed: bool = False) -> _Side:
    """y as (K, positions), unshared (K, images)."""
    n, k = m.y.strides[:2]
    strides = (k, n) if m.problem.unshared else (k, m.y_step)
    return _Side(strides[::-1] if transposed else strides, n, m.K // m.G * k, m.y_step, m.y.aligned)


def _across(m: _Matrices) -> int:
    """The products' size along the positions of an image; 0 stands for the images of a group."""
    return 0 if m.problem.unshared else m.columns


def _forward(m: _Matrices, policy: Policy, config: CorrmmConfig, partial_at: int) -> tuple[list[Step], str]:
    gather, p = _gather(m, policy.device, config), m.problem
    sides = (_filter_side(m, False), _matrix_side(m, config, False), _top_side(m))
    sizes = (m.K // m.G, _across(m), m.rows // m.G)
    products, kind = _products(m, policy, sizes, sides, p.x.dtype, p.alpha)
    x_step, y_step = p.x.strides[0] * p.x.itemsize, m.y.strides[0] * p.y.itemsize

    def group(first: int, count: int) -> Step:
        write, multiply = gather(count), products(count, p.beta)

        def step(stream: int, x: int, w: int, y: int, workspace: int) -> None:
            write(stream, x + first * x_step, workspace)
            for direct, (a, b, c) in multiply:
                direct(stream, w + a, workspace + b, y + first * y_step + c)

        return step

    return [group(*g) for g in _groups(m, config.images)], kind


def _grad_inputs(m: _Matrices, policy: Policy, config: CorrmmConfig, partial_at: int) -> tuple[list[Step], str]:
    p = m.problem
    sides = (_filter_side(m, True), _top_side(m), _matrix_side(m, config, False))
    sizes = (m.rows // m.G, _across(m), m.K // m.G)
    products, kind = _products(m, policy, sizes, sides, m.held, 1.0)
    x_step, y_step = p.x.strides[0] * p.x.itemsize, m.y.strides[0] * p.y.itemsize
    chosen = scatter_kernel(p.x.dtype, m.held, config.by_position, config.last)
    pixels = math.prod(p.x.shape[2:])
    inner, outer = (m.C, pixels) if m.channels_last else (pixels, m.C)

    @functools.cache
    def scatter(count: int) -> Any:
        scalars = (count, *_geometry(m), m.rows * m.columns, int(m.channels_last), p.alpha, p.beta)
        grid = (-(-inner // THREADS), min(outer, 65535), min(count, 65535))
        return chosen.prepare(policy.device, grid, (THREADS, 1, 1), scalars)

    def group(first: int, count: int) -> Step:
        add, multiply = scatter(count), products(count, 0.0)

        def step(stream: int, x: int, w: int, y: int, workspace: int) -> None:
            for direct, (a, b, c) in multiply:
                direct(stream, w + a, y + first * y_step + b, workspace + c)
            add(stream, workspace, x + first * x_step)

        return step

    return [group(*g) for g in _groups(m, config.images)], kind


def _grad_weights(m: _Matrices, policy: Policy, config: CorrmmConfig, partial_at: int) -> tuple[list[Step], str]:
    gather, p = _gather(m, policy.device, config), m.problem
    rows, Kg = m.rows // m.G, m.K // m.G
    regions = m.columns if p.unshared else 1
    partial = _Side((regions * rows, 1), p.w.size, Kg * regions * rows, rows, True)
    sides = (_top_side(m), _matrix_side(m, config, True), partial)
    sizes = (Kg, rows, _across(m))
    products, kind = _products(m, policy, sizes, sides, m.held, 1.0)
    x_step, y_step = p.x.strides[0] * p.x.itemsize, m.y.strides[0] * p.y.itemsize
    parts = 1 if p.unshared else min(config.images, m.N)
    last = total_kernel(m.held, p.w.dtype).prepare(
        policy.device,
        blocks(p.w.size, THREADS),
        (THREADS, 1, 1),
        (p.w.size, parts, rows, _row_step(m), p.alpha, p.beta),
    )

    def group(first: int, count: int) -> Step:
        write, multiply = gather(count), products(count, 1.0 if first else 0.0)

        def step(stream: int, x: int, w: int, y: int, workspace: int) -> None:
            write(stream, x + first * x_step, workspace)
            for direct, (a, b, c) in multiply:
                direct(stream, y + first * y_step + a, workspace + b, workspace + partial_at + c)

        return step

    def finish(stream: int, x: int, w: int, y: int, workspace: int) -> None:
        last(stream, workspace + partial_at, w)

    return [*(group(*g) for g in _groups(m, config.images)), finish], kind


def _row_step(m: _Matrices) -> int:
    """From one filter (of one region) to the next."""
    axes = m.problem.axes
    if not m.problem.unshared:
        return m.w.strides[0]
    return _fold(m.w.shape[: axes + 1], m.w.strides[: axes + 1])


def _rank(problem: ConvProblem) -> float:
    """Microseconds: writing and reading the matrices, multiplying at two thirds of what large products reach, launches."""
    m = _Matrices(problem)
    speed = {"float32": 2.2e7, "float64": 2.5e7}.get(problem.x.dtype, 2.0e8)
    launches = m.N * min(m.G, m.N) / heuristic(problem).images + 2
    time_us = 8 + 4 * launches + 3 * m.N * m.matrix_bytes / 3.0e6 + problem.flops / speed
    return (
        13 * time_us if problem.unshared else time_us
    )  # a product for each position: 9168 us where this says 708 (H200)


for _op in OPERATIONS:
    register(Impl(_op, "numba", "numba.corrmm", _supports, _plan, _rank, "tensor_core", "run_to_run"))
