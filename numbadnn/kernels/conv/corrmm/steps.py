"""The steps of a CorrMM plan: copies of operands that do not fold, im2col or col2im, and the products of a group of images."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.conv.corrmm.matrices import CorrmmConfig, Matrices, fold, padded, three
from numbadnn.kernels.copies.copy import plan_copy
from numbadnn.kernels.gemm.gemm import GemmProblem, plan_gemm
from numbadnn.problem import ITEMSIZE, Policy, Spec

THREADS = 256

#: a step of a plan: (stream, x, w, y, workspace)
Step = Callable[[int, int, int, int, int], None]


# ---- kernels


#: what im2col and col2im take besides addresses
GEOMETRY = (
    *("i32 images channels", "i32*3 extents taps", "i32 flip", "i32*3 positions padding stride dilation"),
    *("i64 x_batch x_channel", "i64*3 x_strides", "i64 matrix_batch"),
)


def gather_kernel(dtype: str, by_position: bool, last: bool) -> Kernel:
    """im2col."""
    made_by, parameters = "conv.corrmm.device.kernels.gather", Arguments("ptr:2", *GEOMETRY)
    return Kernel.of("corrmm_gather", made_by, (dtype, by_position, last), parameters, THREADS)


def scatter_kernel(dtype: str, held: str, by_position: bool, last: bool) -> Kernel:
    """col2im."""
    real = "f64" if dtype == "float64" else "f32"
    parameters = Arguments("ptr:2", *GEOMETRY, "i32 channels_last", f"{real} alpha beta")
    made_by, arguments = "conv.corrmm.device.kernels.scatter", (dtype, held, by_position, last)
    return Kernel.of("corrmm_scatter", made_by, arguments, parameters, THREADS)


def total_kernel(held: str, dtype: str) -> Kernel:
    """The sum over the images of a group."""
    real = "f64" if dtype == "float64" else "f32"
    return Kernel.of(
        "corrmm_total",
        "conv.corrmm.device.kernels.total",
        (held, dtype),
        f"ptr ptr i64 i32 i64 i64 {real} {real}",
        THREADS,
    )


def kernels() -> Iterator[Kernel]:
    """Each kernel once."""
    yield gather_kernel("float16", True, True)
    yield scatter_kernel("bfloat16", "float32", True, True)
    yield total_kernel("float32", "float16")


# ---- steps


def copies(m: Matrices, at: int, device: int) -> tuple[list[Step], list[Step], dict[str, int]]:
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
        at += padded(mine.size * mine.itemsize)
    return before, after, places


def _copy(source: Spec, target: Spec, name: str, at: int, device: int, inwards: bool) -> Step:
    copy = plan_copy(source, target, (0,) * len(source.shape), device)

    def step(stream: int, x: int, w: int, y: int, workspace: int) -> None:
        given, mine = {"w": w, "y": y}[name], workspace + at
        copy(given, mine, stream) if inwards else copy(mine, given, stream)

    return step


def _groups(m: Matrices, images: int) -> list[tuple[int, int]]:
    """(first image, how many) of each group."""
    return [(first, min(images, m.N - first)) for first in range(0, m.N, images)]


def _gather(m: Matrices, device: int, config: CorrmmConfig) -> Callable[[int], Any]:
    """``gather(count)``: the launch that writes the matrices of so many images."""
    return functools.cache(functools.partial(gather_launch, m, device, config))


def gather_launch(m: Matrices, device: int, config: CorrmmConfig, count: int) -> Any:
    """``launch(stream, x, matrices)`` for so many images."""
    chosen = gather_kernel(m.problem.x.dtype, config.by_position, config.last)
    inner, outer = (m.rows, m.columns) if config.by_position else (m.columns, m.rows)
    grid = (-(-inner // THREADS), min(outer, 65535), min(count, 65535))
    return chosen.prepare(device, grid, (THREADS, 1, 1), chosen.values(_geometry(m), images=count))


def _geometry(m: Matrices) -> dict[str, Any]:
    """What both kernels take of any number of images."""
    p = m.problem
    return {
        "channels": m.C,
        "extents": three(p.x.shape[2:]),
        "taps": m.taps,
        "flip": int(p.flip),
        "positions": m.positions,
        "padding": three(tuple(low for low, _ in p.padding), 0),
        "stride": three(p.stride),
        "dilation": three(p.dilation),
        "x_batch": p.x.strides[0],
        "x_channel": p.x.strides[1],
        "x_strides": three(p.x.strides[2:], 0),
        "matrix_batch": m.rows * m.columns,
    }


def _steps(m: Matrices, config: CorrmmConfig) -> tuple[int, int]:
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
    m: Matrices, policy: Policy, sizes: tuple[int, int, int], sides: tuple[_Side, _Side, _Side], out: str, alpha: float
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


def _matrix_side(m: Matrices, config: CorrmmConfig, transposed: bool) -> _Side:
    """The Toeplitz matrix as (rows, positions), or the other way round; unshared: (rows, images)."""
    row, position = _steps(m, config)
    image, group = m.rows * m.columns, m.rows // m.G * row
    strides = (row, image) if m.problem.unshared else (row, position)
    return _Side(strides[::-1] if transposed else strides, image, group, position, True)


def _filter_side(m: Matrices, transposed: bool) -> _Side:
    """The filters as (K, rows) or (rows, K)."""
    k, axes = m.w.strides[0], m.problem.axes
    region = fold(m.w.shape[1 : axes + 1], m.w.strides[1 : axes + 1]) if m.problem.unshared else 0
    return _Side((1, k) if transposed else (k, 1), 0, m.K // m.G * k, region, m.w.aligned)


def _top_side(m: Matrices, transposed: bool = False) -> _Side:
    """y as (K, positions), unshared (K, images)."""
    n, k = m.y.strides[:2]
    strides = (k, n) if m.problem.unshared else (k, m.y_step)
    return _Side(strides[::-1] if transposed else strides, n, m.K // m.G * k, m.y_step, m.y.aligned)


def _across(m: Matrices) -> int:
    """The products' size along the positions of an image; 0 stands for the images of a group."""
    return 0 if m.problem.unshared else m.columns


def forward(m: Matrices, policy: Policy, config: CorrmmConfig, partial_at: int) -> tuple[list[Step], str]:
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


def grad_inputs(m: Matrices, policy: Policy, config: CorrmmConfig, partial_at: int) -> tuple[list[Step], str]:
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
        last = int(m.channels_last)
        scalars = chosen.values(_geometry(m), images=count, channels_last=last, alpha=p.alpha, beta=p.beta)
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


def grad_weights(m: Matrices, policy: Policy, config: CorrmmConfig, partial_at: int) -> tuple[list[Step], str]:
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


def _row_step(m: Matrices) -> int:
    """From one filter (of one region) to the next."""
    axes = m.problem.axes
    if not m.problem.unshared:
        return m.w.strides[0]
    return fold(m.w.shape[: axes + 1], m.w.strides[: axes + 1])
