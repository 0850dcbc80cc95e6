"""Copies with padding, cropping, new strides or another dtype, fills and scaling, around the operations on the GPU.

Each ``plan_`` function prepares one launch for one device and thread and returns a function of addresses and a stream. Axes
that lie together in memory are folded into one, and where all is aligned a copy moves 16 bytes a thread. A change of layout,
where what lies together in the source does not in the destination, goes through tiles in shared memory (``device/transpose.py``).

>>> pad = plan_copy(x, padded, offset=(0, 0, 1, 1), device=0)           # doctest: +SKIP
>>> pad(x_address, padded_address, stream)                              # doctest: +SKIP
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.problem import Spec

THREADS = 256


class Axis(NamedTuple):
    """One axis of a copy: extents, offset of the source inside the destination, element strides."""

    n: int
    src_n: int
    offset: int
    src_stride: int
    stride: int


def fold(axes: list[Axis]) -> list[Axis]:
    """The same copy on as few axes as can be, the destination's smallest stride last."""
    folded: list[Axis] = []
    for axis in sorted(axes, key=lambda a: -abs(a.stride)):
        if axis.n == 1 and axis.src_n == 1 and axis.offset == 0:
            continue
        outer = folded[-1] if folded else None
        whole = axis.offset == 0 and axis.src_n == axis.n
        if outer and whole and (outer.src_stride, outer.stride) == (axis.src_stride * axis.n, axis.stride * axis.n):
            n = axis.n
            folded[-1] = Axis(outer.n * n, outer.src_n * n, outer.offset * n, axis.src_stride, axis.stride)
        else:
            folded.append(axis)
    return folded or [Axis(1, 1, 0, 1, 1)]


def widen(axes: list[Axis], itemsize: int, aligned: bool) -> tuple[list[Axis], int]:
    """The same copy in units of up to 16 bytes, and the unit; in elements where something is not a multiple of it."""
    *outer, last = axes
    if aligned and last.stride == last.src_stride == 1:
        for unit in (16, 8, 4):
            v = unit // itemsize
            numbers = [last.n, last.src_n, last.offset, *(s for a in outer for s in (a.src_stride, a.stride))]
            if v > 1 and all(number % v == 0 for number in numbers):
                outer = [a._replace(src_stride=a.src_stride // v, stride=a.stride // v) for a in outer]
                return [*outer, Axis(last.n // v, last.src_n // v, last.offset // v, 1, 1)], unit
    return axes, itemsize


def _rank(axes: int) -> int:
    """How many axes the kernel is built for: few variants."""
    return axes if axes <= 2 else max(axes, 5)


def copy_kernel(source: str, target: str, rank: int, wide: bool) -> Kernel:
    """The kernel of ``device/copy.py`` for these dtypes (or units), axes and index width."""
    i = "i64" if wide else "i32"
    parameters = f"ptr ptr {i} {i}*{rank} {i}*{rank} {i}*{rank} {i} {i}*{rank} {i}*{rank}"
    return Kernel.of("copy", "copies.device.copy.copy", (source, target, rank, wide), parameters, THREADS)


def affine_kernel(dtype: str, reads: bool, rank: int, wide: bool) -> Kernel:
    """The kernel of ``device/copy.py`` that fills, or scales what it ``reads``."""
    i, value = "i64" if wide else "i32", "f64" if dtype == "float64" else "f32"
    title, parameters = "scale" if reads else "fill", f"ptr {i} {i}*{rank} {i}*{rank} {value}"
    return Kernel.of(title, "copies.device.copy.affine", (dtype, reads, rank, wide), parameters, THREADS)


def plan_copy(src: Spec, dst: Spec, offset: tuple[int, ...], device: int) -> Callable[[int, int, int], None]:
    """``step(src_address, dst_address, stream)``: dst[i] = src[i - offset] where inside src, else 0.

    Positive offsets pad, negative ones crop; dtypes may differ (rounded to nearest even). Raises ValueError where the
    ranks disagree.
    """
    if not len(src.shape) == len(dst.shape) == len(offset):
        raise ValueError(f"expected src, dst and offset of one rank, got {src.shape}, {dst.shape} and {offset}")
    if src.size == 0 or dst.size == 0:
        fill = plan_fill(dst, 0.0, device)
        return lambda src_address, dst_address, stream: fill(dst_address, stream)
    axes = [Axis(*a) for a in zip(dst.shape, src.shape, offset, src.strides, dst.strides, strict=True)]
    axes = fold(axes)
    source, target = src.dtype, dst.dtype
    if source == target and (transposed := _transposed(axes)):
        return _plan_transposed(transposed, src.itemsize, src.aligned and dst.aligned, device)
    if source == target:
        axes, unit = widen(axes, src.itemsize, src.aligned and dst.aligned)
        source = target = f"{unit} bytes"
    rank = _rank(len(axes))
    axes = [Axis(1, 1, 0, 0, 0)] * (rank - len(axes)) + axes
    reach = sum(max(a.n, a.src_n + abs(a.offset)) * max(abs(a.src_stride), abs(a.stride)) for a in axes)
    count = math.prod(a.n for a in axes)
    chosen = copy_kernel(source, target, rank, max(reach, count) >= LIMIT32)
    scalars = (
        count,
        tuple(a.n for a in axes),
        tuple(max(a.offset, 0) for a in axes),
        tuple(min(a.offset + a.src_n, a.n) for a in axes),
        -sum(a.offset * a.src_stride for a in axes),
        tuple(a.src_stride for a in axes),
        tuple(a.stride for a in axes),
    )
    launch = chosen.prepare(device, blocks(count, THREADS), (THREADS, 1, 1), scalars)
    return lambda src_address, dst_address, stream: launch(stream, src_address, dst_address)


def _transposed(axes: list[Axis]) -> list[Axis]:
    """[outer, inner, across, along] of a copy that transposes two axes, along packed in the source and across in the destination.

    Empty where it is no such copy: nothing is padded or cropped, and both are long enough for tiles to be worth while.
    """
    if any(a.offset or a.n != a.src_n or a.n >= LIMIT32 - 64 for a in axes) or len(axes) > 4:
        return []
    along = next((a for a in axes if a.src_stride == 1 and a.stride != 1 and a.n >= 8), None)
    across = next((a for a in axes if a.stride == 1 and a.src_stride != 1 and a.n >= 8), None)
    if along is None or across is None:
        return []
    others = [a for a in axes if a is not along and a is not across]
    one = Axis(1, 1, 0, 0, 0)
    return [*[one] * (2 - len(others)), *others, across, along]


def transpose_kernel(size: int, pairs: bool) -> Kernel:
    """The kernel of ``device/transpose.py`` for elements of ``size`` bytes, or for pairs of two bytes each."""
    made_by, parameters = "copies.device.transpose.transpose", "ptr ptr i32*2 i32*2 i32 i64*3 i64*3"
    if pairs:
        return Kernel.of("transpose pairs", f"{made_by}_pairs", (), parameters, THREADS)
    return Kernel.of("transpose", made_by, (size,), parameters, THREADS)


def _plan_transposed(axes: list[Axis], size: int, aligned: bool, device: int) -> Callable[[int, int, int], None]:
    outer, inner, across, along = axes
    source = (outer.src_stride, inner.src_stride, across.src_stride)
    target = (outer.stride, inner.stride, along.stride)
    pairs = size == 2 and aligned and not any(v % 2 for v in (across.n, along.n, *source, *target))
    side = 64 if pairs else 32
    tiles = -(-along.n // side), -(-across.n // side)
    scalars = ((along.n, across.n), tiles, inner.n, source, target)
    grid = blocks(math.prod(tiles) * outer.n * inner.n, 1)
    launch = transpose_kernel(size, pairs).prepare(device, grid, (THREADS, 1, 1), scalars)
    return lambda src_address, dst_address, stream: launch(stream, src_address, dst_address)


def _plan_affine(dst: Spec, value: float, reads: bool, device: int) -> Callable[[int, int], None]:
    if dst.size == 0:
        return lambda dst_address, stream: None
    axes = fold([Axis(n, n, 0, s, s) for n, s in zip(dst.shape, dst.strides, strict=True)])
    rank = _rank(len(axes))
    axes = [Axis(1, 1, 0, 0, 0)] * (rank - len(axes)) + axes
    reach = max(dst.size, *(abs(end) for end in dst.span))
    chosen = affine_kernel(dst.dtype, reads, rank, reach >= LIMIT32)
    scalars = (dst.size, tuple(a.n for a in axes), tuple(a.stride for a in axes), value)
    launch = chosen.prepare(device, blocks(dst.size, THREADS), (THREADS, 1, 1), scalars)
    return lambda dst_address, stream: launch(stream, dst_address)


def plan_fill(dst: Spec, value: float, device: int) -> Callable[[int, int], None]:
    """``step(dst_address, stream)``: every element becomes ``value``; what was there is not read."""
    return _plan_affine(dst, value, False, device)


def plan_scale(dst: Spec, beta: float, device: int) -> Callable[[int, int], None]:
    """``step(dst_address, stream)``: every element times ``beta``."""
    return _plan_affine(dst, beta, True, device)


def kernels() -> Iterator[Kernel]:
    """Some of every kind: each unit, conversions from and to each type, each rank, both index widths; transposed axes."""
    for size, pairs in ((2, False), (2, True), (4, False), (8, False)):
        yield transpose_kernel(size, pairs)
    for unit in (2, 4, 8, 16):
        yield copy_kernel(f"{unit} bytes", f"{unit} bytes", 5, unit == 2)
    dtypes = ("float16", "bfloat16", "float32", "float64")
    for i, source in enumerate(dtypes):
        for j, target in enumerate(dtypes):
            if j == (i + 1) % 4 or j == (i + 2) % 4:
                yield copy_kernel(source, target, (1, 2, 5, 6)[(i + j) % 4], False)
        yield affine_kernel(source, i % 2 == 0, 5, False)
    yield affine_kernel("float32", False, 2, True)
