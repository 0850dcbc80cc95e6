"""The plan of the gradient with respect to the filters of groups that have few (``filters.py``): integers alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbadnn.cpu.conv.terms import scalars, tap_list, volume
from numbadnn.cpu.conv.thin.geometry import FiltersGeometry, Tile
from numbadnn.cpu.conv.thin.plan import MOST_SCRATCH
from numbadnn.cpu.lang import later
from numbadnn.cpu.lang.parallel import STORED, address, kernel_of, most_scratch, scratch, thread_count
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import Executable, Summation

#: most filters of a group
MOST_FILTERS = 16
#: jobs that leave no thread without work; pixels a band should have at least and, times the runs of y of a tile, at most
JOBS, LEAST, MOST = 32, 1024, 8192
#: accumulators of a job's x and y: at most, and those below which groups are taken together
BAND, TOGETHER = 1 << 17, 1 << 12


def few_filters(problem: ConvProblem) -> bool:
    """Whether groups have so few filters that a matrix product would be mostly padding, and not too few pixels for them."""
    filters = problem.w.shape[0] // problem.groups
    if problem.groups == 1 or filters > MOST_FILTERS:
        return False
    taps, pixels = math.prod(problem.taps), math.prod(problem.y.shape[-2:])
    return filters <= 4 or 4 * pixels * min(taps, 4) > 3 * filters**2 + 4


def _bands(P: int, Q: int, images: int, wanted: int, most: int, reach: int) -> tuple[int, int, int]:
    """Rows and columns of a band of y, and their number: such that there are ``wanted``, by the problem alone."""
    along = -(-Q // most)
    columns = -(-Q // along)
    area = P * (columns + reach)
    down = -(-area // most)
    if images * along * down < wanted:
        down = max(down, min(-(-wanted // (images * along)), area // LEAST))
    rows = -(-P // down)
    return rows, columns, images * -(-Q // columns) * -(-P // rows)


def _masks(rows: int, columns: int, pitch: int, lanes: int) -> np.ndarray:
    """A word for each vector of rows of a pitch: its lanes that are pixels of y."""
    inside = np.zeros(-(-rows * pitch // lanes) * lanes, bool)
    inside[: rows * pitch] = np.arange(rows * pitch) % pitch < columns
    return inside.reshape(-1, lanes) @ (1 << np.arange(lanes, dtype=np.int64))


def plan_few_filters(problem: ConvProblem) -> Executable | None:
    """The gradient with respect to the weights, of few filters a group."""
    _thin_filters = later.module("numbadnn.cpu.conv.thin.filters")
    ACROSS, MASKED, MASKING, SHAPES = later.names(
        "numbadnn.cpu.conv.thin.filters_tile", "ACROSS", "MASKED", "MASKING", "SHAPES"
    )
    TILES = [Tile(*shape) for shape in SHAPES]
    VECTOR_BYTES = later.names("numbadnn.cpu.lang.vector", "VECTOR_BYTES")

    problem = volume(problem)
    like = np.empty(1, STORED[problem.x.dtype])
    real = np.float64 if problem.x.dtype == "float64" else np.float32
    acc = real().itemsize
    vl = VECTOR_BYTES // acc
    x, w, y, G = problem.x, problem.w, problem.y, problem.groups
    (N, _, D, H, W), (K, C, slices, _, _), (_, _, O, P, Q) = x.shape, w.shape, y.shape
    K //= G
    (front, _), (top, _), (left, _) = problem.padding
    step_d, step_h, step_w = problem.stride
    across = C == K == 1 and x.strides[1] == y.strides[1] == 1 and vl <= 2 * G
    unit = vl if across else 1
    blocks = -(-G // unit)
    # taps: slice of the filter, row and column within the padded plane, offset
    taps = [((t + front) // problem.dilation[0], r + top, s + left, o) for t, r, s, o in tap_list(problem)]
    row_phases = sorted({r % step_h for _, r, _, _ in taps})
    column_phases = sorted({s % step_w for _, _, s, _ in taps})
    reach_h, reach_w = max(r // step_h for _, r, _, _ in taps), max(s // step_w for _, _, s, _ in taps)
    split = column_phases == [0, 1] and step_w == 2 and x.strides[4] == 1 and not across
    planes, terms = slices * len(row_phases) * len(column_phases), C * len(taps)

    def cost(number: int) -> int:
        tile_y, tile_x = TILES[number].y, TILES[number].x
        return -(-K // tile_y) * -(-terms // tile_x) * max(tile_y * tile_x, tile_y + 2 * tile_x)

    tile = ACROSS if across else min(range(MASKING + 1, len(TILES)), key=cost)
    tile_y, tile_x = TILES[tile].y, TILES[tile].x
    # channels that are neighbours are laid out by vectors of them
    turned = not across and 1 in (x.strides[1], y.strides[1]) and x.strides[1] != 0 and G > 1
    least = min(-(-vl // max(C, K)), blocks) if turned else 1
    most = max(min(MOST // tile_y, BAND // (least * (C * planes + K) * unit)), 4 * vl)
    wanted = -(-JOBS // -(-blocks // least))
    rows, columns, bands = _bands(P, Q, N * O, wanted, most, reach_w)
    parts = min(bands, wanted)
    pitch = columns + reach_w
    in_place = (
        MASKED
        and like.itemsize == acc
        and TILES[tile].y_masked
        and K % tile_y == 0
        and y.strides[1 if across else 4] == 1
    )
    if in_place and not across:  # lines in vectors of their own, against y laid out and one run
        in_place = cost(tile) * (-(-columns // vl) * vl - pitch) <= 6 * K * pitch
    lines = in_place or across
    line_x, line_y = pitch * unit, (columns if across else pitch) * unit
    # behind a plane there is a line and more that are 0
    plane, y_size = (
        -(-(n * line + line + 2 * vl) // vl) * vl for n, line in ((rows + reach_h, line_x), (rows, line_y))
    )
    x_size = planes * plane
    y_count = 0 if in_place else K
    together = max(least, min(TOGETHER // (C * x_size + y_count * y_size), blocks * parts // JOBS))
    x_capacity = together * C * x_size
    y_capacity = 0 if in_place else (together * K + tile_y) * y_size

    if (x_capacity + y_capacity) * acc > MOST_SCRATCH:
        return None

    offsets = []
    for c in range(C):
        for t, r, s, _ in taps:
            phase = (t * len(row_phases) + row_phases.index(r % step_h)) * len(column_phases)
            at = (phase + column_phases.index(s % step_w)) * plane + (r // step_h * pitch + s // step_w) * unit
            offsets.append((c * x_size + at) * acc)
    widest = max(-(-terms // wide) * wide for wide in (tile_x, TILES[MASKING].x))
    offsets += offsets[-1:] * (widest - terms)
    phases = np.zeros((1 + max(len(row_phases), len(column_phases)), 6), np.int64)
    phases[0, :2] = len(row_phases), len(column_phases)
    for i, a in enumerate(row_phases):
        phases[1 + i, :3] = a - top, -(-(top - a) // step_h), (H - 1 + top - a) // step_h + 1
    for i, b in enumerate(column_phases):
        phases[1 + i, 3:] = b - left, -(-(left - b) // step_w), (W - 1 + left - b) // step_w + 1

    walks, words = np.empty((4, 7), np.int64), list[np.ndarray]()
    for kind in range(4):
        h, v = (P % rows or rows) if kind & 2 else rows, (Q % columns or columns) if kind & 1 else columns
        y_line, y_vector = (
            (y.strides[3] * acc, (y.strides[4] if across else vl) * acc) if in_place else (v * vl * acc, vl * acc)
        )
        if across:
            mask, walk = np.array([-1, (1 << (G % vl or vl)) - 1]), (h, v, pitch * unit * acc, y_line, y_vector, 0)
        elif lines:
            mask, walk = _masks(1, v, v, vl), (h, -(-v // vl), pitch * acc, y_line, y_vector, 8)
        else:
            mask = _masks(h, v, pitch, vl)
            walk = (1, len(mask), 0, 0, vl * acc, 8)
        walks[kind] = 8 * sum(len(word) for word in words), *walk
        words.append(mask)
    channel = np.arange(C, dtype=np.int64)[:, None]
    w_offsets = (channel * w.strides[1] + np.array([t[3] for t in taps], np.int64)).ravel()
    steps = set(np.diff(w_offsets).tolist()) or {1}
    w_step = steps.pop() if len(steps) == 1 else 0
    # a tile rewrites whole vectors, whose last may begin at its last sum
    sums = (len(offsets) if across else -(-len(offsets) // vl) + 1) * vl
    geo = FiltersGeometry._make((
        O, P, Q, D, W, G, C, K, slices, terms, blocks, int(across), together, int(split), int(in_place), bands, parts,
        rows, columns, pitch, reach_h, front, step_d, step_h, step_w, problem.dilation[0], *x.strides, *y.strides,
        w.strides[0], w_step, tile, tile_y, tile_x, plane, x_size, y_size, sums, x_capacity, y_capacity,
    ))  # fmt: skip
    size = 2 * vl * vl + x_capacity + y_capacity + together * -(-K // tile_y) * tile_y * sums
    size = -(-size * acc // 64) * 64
    partial = parts * blocks * K * sums * acc if parts > 1 else 0
    tables = (phases, walks, w_offsets, np.array(offsets, np.int64), np.concatenate(words))
    alpha, beta = scalars(problem)
    products, finish, flops = kernel_of(_thin_filters.products), kernel_of(_thin_filters.finish), problem.flops

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(flops)
        memory = scratch(threads * size + partial)
        work, target = address(memory), address(outputs[0])
        more = work + threads * size
        x, y = address(inputs[0]), address(inputs[1])
        products(threads, x, y, target, like, geo, tables, work, size, more, alpha, beta)
        if partial:
            finish(threads, target, like, geo, w_offsets, more, alpha, beta)

    facts, lanes = {"kernel": "thin filters", "tile": f"{tile_y}x{tile_x}"}, (1 if across else vl) * parts
    return Executable(
        run,
        determinism="gpu_to_gpu",
        facts=facts,
        summation=Summation((), "sequence", lanes),
        scratch_bytes=most_scratch(flops, lambda threads: threads * size + partial),
    )
