"""``numba.pool_tiles``: pooling and its gradient on packed images, held in registers. The host side of ``device/tiles.py``.

The gradient of a maximum whose windows overlap or leave the image takes two kernels: ``device/argmax.py`` writes a byte a window.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

from numbadnn.kernels.build.launch import Kernel, blocks, reciprocal
from numbadnn.kernels.build.support import LEAF, LIMIT32
from numbadnn.kernels.pool.tiles_config import KINDS, MOST_HELD, Piece, Three, TilesConfig, alone, batch
from numbadnn.problem import ITEMSIZE, Spec
from numbadnn.problems.pool import PoolProblem

#: elements of a window that a byte tells apart
MOST_CODES = 256


class Extents(NamedTuple):
    """A problem as rank 5: images of D x H x W and O x P x Q elements with ``cells`` together, ``planes`` of them."""

    planes: int
    cells: int
    image: Three
    outputs: Three
    window: Three
    stride: Three
    pad: Three


def three(values: tuple[int, ...], missing: int) -> Three:
    """The numbers of three spatial axes: in 2-D the first is ``missing``."""
    return tuple([missing] * (3 - len(values)) + list(values))  # type: ignore[return-value]


def operands(problem: PoolProblem) -> tuple[Spec, ...]:
    """What a kernel reads and writes, the output last; the gradient never reads y, and x for max alone."""
    if problem.op == "pool":
        return problem.x, problem.y
    assert problem.dy is not None and problem.dx is not None
    return (problem.x, problem.dy, problem.dx) if problem.is_max else (problem.dy, problem.dx)


def extents(problem: PoolProblem) -> Extents:
    """The problem as rank 5; channels last, where its operands are."""
    n, c, *image = problem.x.shape
    last = not all(s.is_contiguous for s in operands(problem))
    return Extents(
        n if last else n * c,
        c if last else 1,
        three(tuple(image), 1),
        three(problem.y.shape[2:], 1),
        three(problem.window, 1),
        three(problem.stride, 1),
        three(problem.pad, 0),
    )


def heuristic(problem: PoolProblem) -> TilesConfig | None:
    """The first of ``space``: what was fastest on an H200 for windows of its kind."""
    found = space(problem)
    return found[0] if found else None


def space(problem: PoolProblem, op: str = "") -> list[TilesConfig]:
    """Configurations whose tiles fit the registers, the heuristic's first; all give the same bits. ``op``: of the kernel."""
    e, size = extents(problem), problem.x.itemsize
    shapes = _cells(problem, e, size) if e.cells > 1 else _columns(problem, e, size)
    found = (replace(_checked(problem, e, *shape), op=op or problem.op) for shape in shapes)
    return [c for c in found if fits(c, problem)]


def forward(problem: PoolProblem) -> PoolProblem:
    """The pooling that finds the maxima of a gradient; codes lie as dy does."""
    assert problem.dy is not None
    return replace(problem, op="pool", y=problem.dy, dy=None, dx=None)


def choosing(problem: PoolProblem) -> list[TilesConfig]:
    """Configurations of the first of two kernels, the heuristic's first."""
    e, size, found = extents(problem), problem.x.itemsize, space(forward(problem), "choose")
    wide = max(1, min(4, 16 // size // e.stride[2]))  # 8 bytes of channels, 16 of columns: as measured on an H200
    found.sort(key=lambda c: c.lanes * size != 8 if c.lanes > 1 else c.columns != wide)
    found = [replace(c, resident=4 if c.lanes == 1 else 3) if c.threads == 128 else c for c in found]
    walks = size == 2 and e.window[0] > e.stride[0] and e.outputs[0] > 1
    deeper = (replace(c, deep=n, check_rows=True, resident=3) for n in (2, 4) for c in found if walks)
    return found + [c for c in deeper if fits(c, problem)]


def codes_bytes(problem: PoolProblem) -> int:
    """Room for the code of each window's maximum, which a gradient of two kernels needs."""
    e = extents(problem)
    two = problem.op == "pool_grad" and problem.is_max and not alone(e.window, e.stride, e.pad)
    return problem.y.size if two else 0


def _rows(problem: PoolProblem, e: Extents, vec: int) -> tuple[int, ...]:
    """Rows (strips) a thread: more where windows overlap, so that what they share is read once."""
    forward, dense = problem.op == "pool", e.stride[1] == 1
    if e.window[1] <= e.stride[1]:
        return (1,)
    if not forward and (problem.is_max or e.window[0] > e.stride[0]):
        return (2, 1)
    if not forward and dense and e.cells == 1:
        return (8, 4, 2, 1)
    if forward and e.cells > 1 and problem.x.itemsize == 2 and not problem.is_max:  # columns are what it has more of
        return (2, 1, 4)
    return (4, 2, 1) if dense or (forward and e.cells == 1 and vec == 1) else (2, 1, 4)


def _cells(problem: PoolProblem, e: Extents, size: int) -> list[tuple[int, ...]]:
    """(vec, vec_y, lanes, rows, columns) for channels last: 16 bytes of channels a thread, fewer where they do not divide.

    Of 8 bytes it has more columns, of sums in which each of them has a window: then conversions and divisions limit.
    """
    aligned, forward = all(s.aligned for s in operands(problem)), problem.op == "pool"
    many: tuple[int, ...] = (1,)
    if e.window[2] > e.stride[2] and (forward or not problem.is_max):
        many = (2, 1) if forward or e.stride[2] == 1 else (1, 2)
    narrow = len(many) > 1 and e.stride[2] == 1 and not problem.is_max and (size == 2 or not forward)
    many, sizes = ((4, 2, 1), (8, 16, 4)) if narrow else (many, (16, 8, 4))
    lanes = [n // size for n in sizes if n > size and e.cells % (n // size) == 0 and aligned]
    return [(1, 1, n, rows, columns) for columns in many for rows in _rows(problem, e, 1) for n in lanes]


def _columns(problem: PoolProblem, e: Extents, size: int) -> list[tuple[int, ...]]:
    """The same for C order: as many columns a thread as fill 16 bytes of y; in a gradient, of dx."""
    most, sw = 16 // size, e.stride[2]
    aligned = all(s.aligned for s in operands(problem))
    if problem.op == "pool":
        many: tuple[int, ...] = (8, 4, 2, 1) if size == 2 and sw == 1 else (min(4, most), 2, 1)
    else:
        many = (max(1, min(4, most // sw)), min(4, most), 2, 1)
    found: list[tuple[int, ...]] = []
    for columns in dict.fromkeys(many):
        vec = math.gcd(most, e.image[2], columns * sw) if aligned else 1
        if vec > 1 or columns == 1:  # else neighbouring threads would be columns apart
            vec_y = columns if aligned and e.outputs[2] % columns == 0 and columns & (columns - 1) == 0 else 1
            found += [(vec, vec_y, 1, rows, columns) for rows in _rows(problem, e, vec)]
    return found


def _checked(
    problem: PoolProblem, e: Extents, vec: int, vec_y: int, lanes: int, rows: int, columns: int
) -> TilesConfig:
    """A configuration with what depends on the extents filled in."""
    (D, H, W), Q, kind = e.image, e.outputs[2], KINDS[problem.mode]
    whole = (
        W % (columns * e.stride[2]) == 0 if problem.op == "pool_grad" else Q % columns == 0 and (lanes > 1 or vec_y > 1)
    )
    fixed = (problem.op, kind, e.window, e.stride, e.pad, vec, vec_y, lanes, rows, columns, whole)
    # fewer threads a block, and a bound on the registers of each, where arithmetic is what limits
    busy = e.window[1] > e.stride[1] and problem.x.dtype != "float64"
    threads, resident = (128 if busy else 256), 1
    if busy and problem.op == "pool_grad":
        resident = 4 if kind == "max" else 3 if e.window[0] > e.stride[0] else 1
    c = TilesConfig(*fixed, True, True, True, threads, resident)
    across, down, deep = tiles(c, e)

    def past(piece: Piece, n: int) -> bool:
        return (across - 1) * piece.step + piece.first + piece.capacity > n

    if problem.op == "pool":
        low, high = -e.pad[1], (down * rows - 1) * e.stride[1] - e.pad[1] + e.window[1]
        deepest, past_y = (deep - 1) * e.stride[0] - e.pad[0] + e.window[0], False
        past_x = past(c.x_piece(), W)
    else:
        low = c.first_window(1) * e.stride[1] - e.pad[1]
        high = (down - 1) * rows * e.stride[1] + low + c.x_rows
        deepest, past_y = (deep - 1) * e.stride[0] + e.window[0], past(c.y_piece(), Q)  # of max alone, where fused
        past_x = past(c.x_piece(), W) if kind == "max" else (Q - 1) * e.stride[2] - e.pad[2] + e.window[2] > W
    check_rows = low < 0 or e.pad[0] > 0 or high > H or deepest > D
    return TilesConfig(*fixed, check_rows, past_x, past_y, threads, resident)


def tiles(c: TilesConfig, e: Extents) -> Three:
    """Tiles across, down and deep."""
    sd, sh, sw = e.stride
    if c.op != "pool_grad":
        return -(-e.outputs[2] // c.columns), -(-e.outputs[1] // c.rows), -(-e.outputs[0] // c.deep)
    return -(-e.image[2] // (c.columns * sw)), -(-e.image[1] // (c.rows * sh)), -(-e.image[0] // sd)


def fits(c: TilesConfig, problem: PoolProblem) -> bool:
    """Whether a thread's registers hold the tile."""
    (kd, kh, kw), (sd, _, sw), words = c.window, c.stride, 2 if problem.x.dtype == "float64" else 1
    many, y = c.rows * c.columns, c.y_piece()
    if c.op == "pool":
        if c.rows > 1 and batch(c, problem.x.dtype) == 1:
            return False
        held, work = c.x_piece().capacity + many, many * kw
    elif c.op == "choose":
        held = c.x_rows * max(c.x_piece().capacity, 2 * c.columns) + (1 + c.deep) * many
        work = c.x_rows * c.columns * (kw - 1) + many * kh
    elif c.kind == "max":
        looked = kd * kh * c.x_piece().capacity if c.fused else 0
        held, work = c.own // c.lanes + 2 * c.many_rows * y.capacity + looked, (1 + c.fused) * many * kd * kh * kw
    else:
        planes = min(sd, c.many_planes) + (c.many_planes > 1)
        held, work = y.capacity * (c.many_rows * planes + 1) + c.columns * sw, c.own // c.lanes
    return held * c.lanes * words <= MOST_HELD and work * c.lanes <= 256


def reason(problem: PoolProblem) -> str:
    """Why this kernel cannot, "" if it can."""
    specs = operands(problem)
    if not (all(s.is_contiguous for s in specs) or all(s.is_channels_last for s in specs)):
        return "needs operands that are all packed, in C order or channels last"
    e = extents(problem)
    if problem.op == "pool" and not problem.is_max and e.window[0] * e.window[1] > LEAF:
        return f"adds up to {LEAF} rows of a window one after the other"
    if problem.op == "pool_grad" and problem.is_max and math.prod(e.window) > MOST_CODES:
        return f"tells {MOST_CODES} elements of a window apart"
    if e.cells > 1 and not (e.cells % 2 == 0 and all(s.aligned for s in specs)):
        return "needs channels last to be aligned, in groups of at least 4 bytes"
    needed = [space(problem)[:1]] + ([choosing(problem)[:1]] if codes_bytes(problem) else [])
    if not all(needed):
        return "the tiles of a window this large do not fit the registers of a thread"
    for (c,) in needed:
        if e.planes * math.prod(tiles(c, e)) * max(1, e.cells // c.lanes) >= LIMIT32:
            return "needs fewer than 2**31 tiles"
    return ""


def prepare(problem: PoolProblem, c: TilesConfig, acc: str) -> tuple[Kernel, tuple[int, int, int], tuple[Any, ...]]:
    """Kernel, grid and arguments."""
    e = extents(problem)
    across, down, deep = tiles(c, e)
    groups = e.cells // c.lanes if c.lanes > 1 else 1
    count = e.planes * deep * down * across * groups
    many = (groups, across, down, deep)
    by = tuple(n for divisor in many for n in reciprocal(divisor))
    scalars: tuple[Any, ...] = (count, by, many, *e.image, e.cells, *e.outputs[1:])
    if c.op != "pool":
        scalars += (e.outputs[0],)
    return kernel(problem.x.dtype, acc, c), blocks(count, c.threads), scalars


def kernel(dtype: str, acc: str, config: TilesConfig) -> Kernel:
    """The kernel of one configuration."""
    pairs = config.op == "pool" and config.kind == "max" and ITEMSIZE[dtype] == 2 and batch(config, dtype) > 1
    stem, gradient = "pairs" if pairs else "tiles", config.op == "pool_grad"
    module = ("maxima_grad" if config.kind == "max" else "sums_grad") if gradient else stem
    if config.op == "choose":
        module = "argmax_keys" if ITEMSIZE[dtype] == 2 else "argmax"
    made = "fused" if module == "maxima_grad" and config.fused else config.op
    pointers, numbers = (3, 7) if gradient else (2, 6 if config.op == "pool" else 7)
    parameters = f"ptr:{pointers} i64 i64*8 i32*4 i32:{numbers}"
    made_by, arguments = f"pool.device.{module}.{made}", (dtype, acc, config)
    return Kernel.of(f"pool_{stem}", made_by, arguments, parameters, config.threads, config.resident)
