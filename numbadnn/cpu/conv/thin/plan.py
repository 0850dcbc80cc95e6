"""Plans for ``thin.py``: where the terms lie in padded planes, and how many rows and groups a job takes.

No Numba until a plan is made.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from numbadnn.cpu.conv.terms import Terms, scalars
from numbadnn.cpu.conv.thin.geometry import Geometry
from numbadnn.cpu.lang import later
from numbadnn.cpu.lang.parallel import STORED, address, kernel_of, most_scratch, scratch, thread_count
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

#: accumulators of the planes of a job, about: they stay in the second-level cache
PLANES = 1 << 14
#: a call is cut into so many jobs at least, of so many rows at least
JOBS, ROWS = 16, 8
#: vectors of channels that are neighbours, which a job takes together so that it goes along memory, and rows at a time
LANE_VECTORS, LANE_ROWS = 16, 4
#: what summing some rows costs beside, in vectors; of so many of the widest tiles at most
OVERHEAD, MOST = 16, 8
#: most channels of a thin group, and accumulators of a row of its planes
THIN, WIDEST = 32, 1 << 18
#: bytes of a thread's planes, at most
MOST_SCRATCH = 1 << 26


def is_thin(problem: ConvProblem) -> bool:
    """Whether groups have so few channels that a matrix product would be mostly padding."""
    filters, channels = problem.w.shape[0] // problem.groups, problem.w.shape[1]
    planes, width = (
        (channels, problem.x.shape[-1]) if problem.direction == "forward" else (filters, problem.y.shape[-1])
    )
    return problem.groups > 1 and max(filters, channels) <= THIN and (planes == 1 or planes * width <= WIDEST)


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def plan_thin(problem: ConvProblem, dense: Any, terms: Terms) -> Executable | None:
    """Forward, or the gradient with respect to the inputs; ``dense``, ``terms``: as for ``cpu/conv/gather.py``.

    None where taps lie so far apart that planes would take more than MOST_SCRATCH.
    """
    _thin = later.module("numbadnn.cpu.conv.thin.thin")
    LANES, LINES, TURNED = later.names("numbadnn.cpu.conv.thin.table", "LANES", "LINES", "TURNED")
    WIDTHS = later.names("numbadnn.cpu.conv.thin.tile", "WIDTHS")
    VECTOR_BYTES = later.names("numbadnn.cpu.lang.vector", "VECTOR_BYTES")

    real = np.float64 if problem.x.dtype == "float64" else np.float32
    acc = real().itemsize
    vl = VECTOR_BYTES // acc
    G, M, gradient = dense.G, dense.M, problem.direction != "forward"
    C = problem.w.shape[0] // G if gradient else problem.w.shape[1]
    sources = TURNED if dense.src_c == 1 and dense.src_w != 1 and G * C > 1 else LINES
    result = TURNED if dense.out_m == 1 and dense.out_w != 1 and G * M > 1 else LINES
    together, unit = 1, 1
    if sources == result == TURNED and C == M == 1:
        sources = result = LANES
        vectors = -(-G // vl)
        together, unit = min(G, -(-vectors // -(-vectors // LANE_VECTORS)) * vl), vl
    elif TURNED in (sources, result):
        together = min(G, max(1, vl // min(C, M)))

    lists = terms.arrays()
    grids = [p[:3] for p in terms.phases]
    O, P, Q = (max(sizes) for sizes in zip(*grids, strict=True))
    # a tap adds (slice, row, column); planes are apart by row and column modulo the steps
    places, step_h, step_w = lists["taps"], dense.step_h, dense.step_w
    top, left = (-int(places[:, axis].min(initial=0)) for axis in (1, 2))
    slices, which = np.unique(places[:, 0], return_inverse=True)
    row, column = places[:, 1] + top, places[:, 2] + left
    reach, reach_w = (int((at // step).max(initial=0)) for at, step in ((row, step_h), (column, step_w)))
    pitch = Q + reach_w
    if step_w == 1:  # the zeros ahead of a row end the one before
        right = max(0, Q - 1 + int(places[:, 2].max(initial=0)) - (dense.W - 1))
        pitch = max(Q, dense.W + max(left, right))
    residues, kind = np.unique(row % step_h * step_w + column % step_w, return_inverse=True)
    planes = _planes(dense, top, left, pitch, residues.tolist())
    per_channel = max(1, len(slices) * len(planes))
    # tiles store to the result where its pixels are neighbours and fill most of their vectors
    direct = sources == LANES or (result == LINES and dense.out_w == 1 and 3 * _up(Q, vl) <= 4 * Q)
    chunk = _chunk(P, Q, pitch, vl, unit, direct, WIDTHS[1 if M < 2 else 2 if M < 4 else 4])
    images = problem.x.shape[0]
    if sources == result == LINES:  # small images: several groups, while they are few enough for all threads
        size = C * per_channel * (P + reach) * pitch
        together = min(max(1, PLANES // 4 // size), max(1, G * images * O // (4 * JOBS)))
    buffers = _up(together * C, vl) if sources == TURNED else -(-together * C // unit)
    band = max(
        (4 * PLANES if unit > 1 else PLANES) // (buffers * per_channel * pitch * unit) - reach, min(ROWS, 4 * reach), 1
    )
    jobs = images * -(-G // together) * O
    bands = max(-(-P // band), min(-(-JOBS // max(jobs, 1)), P // ROWS), 1)
    band = max(-(-P // bands), 1)
    plane = _up(((band + reach) * pitch + max(left, reach_w)) * unit + vl, vl)
    plane += vl if plane // vl % 2 == 0 else 0  # an odd number of vectors: planes do not begin in one set of the cache
    if buffers * per_channel * plane * acc > MOST_SCRATCH:
        return None
    where = (which.ravel() * len(planes) + kind.ravel()) * plane + (row // step_h * pitch + column // step_w) * unit

    phases, terms_of = _phases(terms, grids, C, together * M, unit)
    channel, tap = terms_of[:, 0], terms_of[:, 1]
    size = max((p[6] + _up(together * M, unit) * p[5] for p in phases), default=0)
    row_size = (_up((min(band, chunk) - 1) * pitch + Q, vl) + vl) * unit
    a_at = _up(buffers * per_channel * plane + 16 * vl, vl)
    results_at = a_at + _up(size, vl) + vl
    square_at = results_at + (_up(together * M, vl) if result == TURNED else min(M, 4)) * row_size
    steps = [i * vl * acc for i in range(row_size // vl)]
    parts = {
        "phases": np.array(phases),
        "planes": np.array(planes, np.int64),
        "offsets": (channel * per_channel * plane + where[tap]) * acc,
        "a_offsets": lists["a_offsets"],
        "places": np.column_stack([channel, places[tap]]),
        "slices": slices if len(slices) else np.zeros(1),
        "flat": np.array([(step, step, -1) for step in steps]),
    }
    starts, at = {}, 8 * len(Geometry._fields)
    for name, values in parts.items():
        starts[f"{name}_at"] = at
        at += 8 * values.size
    geo = Geometry(
        N=images,
        G=G,
        together=together,
        C=C,
        M=M,
        run=terms.run_length(),
        O=O,
        P=P,
        band=band,
        chunk=chunk,
        ahead=chunk if unit == 1 else 0,
        reach=reach,
        slices=max(1, len(slices)),
        planes=len(planes),
        pitch=pitch,
        plane=plane,
        unit=unit,
        buffers=buffers,
        still=int(bands == 1 and dense.D == O == len(slices) == 1),
        source=sources,
        result=result,
        gradient=int(gradient),
        phases=len(phases),
        terms=len(lists["a_offsets"]),
        a_at=a_at,
        results_at=results_at,
        square_at=square_at,
        work=square_at + vl * vl,
        row=row_size,
        **starts,
        **{name: getattr(dense, name) for name in _SAME},
    )
    wheres: list[list[int]] = []
    for phase in phases if direct else []:
        if phase[1]:
            wheres.append(_vectors(chunk, phase[2], pitch, vl, unit, acc, dense, problem.x.itemsize))
            phase[7:] = at, len(wheres[-1]) // (3 * chunk)
            at += 8 * len(wheres[-1])
    parts["phases"] = np.array(phases)
    table = np.concatenate([np.asarray(part, np.int64).ravel() for part in (geo, *parts.values(), *wheres)])
    kernel, flops, (alpha, beta) = kernel_of(_thin.thin), problem.flops, scalars(problem)
    like, nbytes = np.empty(1, STORED[problem.x.dtype]), geo.work * acc

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(flops)
        memory = address(scratch(threads * nbytes))
        x, filters, y = address(inputs[0]), address(inputs[1]), address(outputs[0])
        kernel(threads, x, filters, y, like, address(table), memory, alpha, beta)

    return Executable(
        run,
        determinism="gpu_to_gpu",
        facts={"kernel": "thin"},
        summation=SEQUENCE,
        scratch_bytes=most_scratch(flops, lambda threads: threads * nbytes),
    )


def _phases(
    terms: Terms, grids: list[tuple[int, ...]], channels: int, rows: int, unit: int
) -> tuple[list[list[int]], np.ndarray]:
    """The table of ``Phase``, and channel and tap of each term: all channels' taps, phase after phase."""
    phases, found, size = [], [np.empty((0, 2), np.int64)], 0
    for p, grid in zip(terms.phases, grids, strict=True):
        first, taps, begin, depth = p[4], p[5], p[7], p[8]
        phases.append([*grid, p[3], begin, depth, size, 0, 0])
        size += _up(rows, unit) * depth
        found.append(
            np.array(list(itertools.product(range(channels), range(first, first + taps))), np.int64).reshape(-1, 2)
        )
    return phases, np.concatenate(found)


def _planes(dense: Any, top: int, left: int, pitch: int, residues: list[int]) -> list[tuple[int, ...]]:
    """The table of ``Plane``: rows and columns of the image by what they leave modulo the steps, where a tap meets them."""
    high, wide = dense.step_h, dense.step_w
    found: list[tuple[int, ...]] = []
    for residue in residues:
        a, b = divmod(residue, wide)
        first = max(0, -((b - left) // wide))
        column = first * wide + b - left
        count = max(0, min(pitch - first, -((column - dense.W) // wide)))
        begin, end = max(0, -((a - top) // high)), -((a - top - dense.H) // high)
        found.append((first, count, begin, end, (a - top) * dense.src_h + column * dense.src_w))
    return found


def _chunk(P: int, Q: int, pitch: int, vl: int, unit: int, direct: bool, widths: tuple[int, ...]) -> int:
    """Rows that are summed at a time: such that tiles are wide and, where they join rows, vectors full."""

    def cost(rows: int) -> float:
        if direct:
            vectors = rows * (Q if unit > 1 else -(-Q // vl))
        else:
            vectors = -(-((rows - 1) * pitch + Q) * unit // vl)
        total = float(OVERHEAD)
        for width in widths:
            total += vectors // width * max(width, widths[0] / 2)
            vectors %= width
        return total / rows

    if unit > 1:
        return LANE_ROWS
    most = max(1, -(-MOST * widths[0] * vl // (pitch * unit)))
    return min(range(1, min(P, most) + 1), key=lambda rows: (cost(rows), rows), default=1)


def _vectors(rows: int, Q: int, pitch: int, vl: int, unit: int, acc: int, dense: Any, itemsize: int) -> list[int]:
    """For rows of Q pixels by vectors: where they begin in a plane and in the result, in bytes, and their lanes."""
    found = []
    pixels = 1 if unit > 1 else vl
    for r, q in itertools.product(range(rows), range(0, Q, pixels)):
        mask = -1 if unit > 1 else (1 << min(vl, Q - q)) - 1
        found += [(r * pitch + q) * unit * acc, (r * dense.out_h + q * dense.out_w) * itemsize, mask]
    return found


#: what the dense kernels are told alike
_SAME = ("a_group", "a_row", "D", "H", "W", "src_n", "src_c", "src_d", "src_h", "src_w", "step_d", "step_h", "step_w",
         "out_n", "out_m", "out_d", "out_h", "out_w")  # fmt: skip
