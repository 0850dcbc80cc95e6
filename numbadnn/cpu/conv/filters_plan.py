"""Plans for ``filters.py``: the parts of a sum over pixels, and the planes that its rows lie in. Integers alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbadnn.cpu.conv.geometry import FiltersGeometry
from numbadnn.cpu.conv.terms import (
    Planes,
    flattened,
    named,
    planes_of,
    planes_of_taps,
    scalars,
    split_of,
    tap_list,
    volume,
)
from numbadnn.cpu.lang import later
from numbadnn.cpu.lang.parallel import STORED, address, kernel_of, most_scratch, scratch, thread_count
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import Executable


def _longest(pixels: int, block: int, planes: Planes, grid: Any) -> int:
    """Pixels of a plane that ``block`` pixels in succession lie in, and what is read behind them, at most."""
    first = np.arange(0, pixels, block)
    _, P, Q = grid

    def place(pixel: Any) -> Any:
        return pixel // (P * Q) * planes.rows * planes.pitch + pixel // Q % P * planes.pitch + pixel % Q

    return int((place(np.minimum(first + block, pixels) - 1) - place(first)).max()) + 1 + planes.reach


def parts_of(problem: ConvProblem, vl: int) -> tuple[Any, int]:
    """Geometry of ``filters.py``, of volumes, with no planes; and the elements of a part's tiles. ``vl``: lanes of a vector."""
    _filters = later.module("numbadnn.cpu.conv.filters")
    KC, MR, NV = later.names("numbadnn.cpu.conv.micro", "KC", "MR", "NV")

    x, w, y, G = problem.x, problem.w, problem.y, problem.groups
    (N, _, *image), (K, Cg, *taps), (_, _, *out) = x.shape, w.shape, y.shape
    T, Kg, pixels, Q = math.prod(taps), K // G, N * math.prod(out), out[2]
    M = Cg * T
    tile_elements = G * -(-M // MR) * -(-Kg // (NV * vl)) * MR * NV * vl
    # parts: a power of two, while each has some thousands of pixels and they are not larger than the operands together
    splits = 1
    while splits < 8 and pixels >= splits * 4096 and tile_elements * splits * 2 <= max(x.size + y.size, 1 << 18):
        splits *= 2
    part = -(-pixels // (splits * KC)) * KC
    splits = -(-pixels // part)
    geo = FiltersGeometry(
        M=M,
        K=Kg,
        G=G,
        T=T,
        **named("", "OPQ", out),
        pixels=pixels,
        **named("", "DHW", image),
        x_group=Cg * x.strides[1],
        x_c=x.strides[1],
        x_n=x.strides[0],
        **named("x_", "dhw", x.strides[2:]),
        **named("step_", "dhw", problem.stride),
        y_group=Kg * y.strides[1],
        y_k=y.strides[1],
        y_n=y.strides[0],
        **named("y_", "dhw", y.strides[2:]),
        w_group=Kg * w.strides[0],
        w_k=w.strides[0],
        limit=min(vl, (vl + Q - 2) // Q + 1),
        splits=splits,
        split=part,
        plane=0,
        rows=0,
        pitch=0,
        reach=0,
    )
    return geo, tile_elements


def plan_filters(problem: ConvProblem) -> Executable:
    """The gradient with respect to the weights by ``filters.py``."""
    _filters = later.module("numbadnn.cpu.conv.filters")
    BLOCKS, KC, MR, NV, SUMS = later.names("numbadnn.cpu.conv.micro", "BLOCKS", "KC", "MR", "NV", "SUMS")
    VECTOR_BYTES = later.names("numbadnn.cpu.lang.vector", "VECTOR_BYTES")

    like = np.empty(1, STORED[problem.x.dtype])
    acc = 8 if problem.x.dtype == "float64" else 4
    vl = VECTOR_BYTES // acc
    problem = flattened(volume(problem))
    x, w, G, Cg, out = problem.x, problem.w, problem.groups, problem.w.shape[1], problem.y.shape[2:]
    geo, tile_elements = parts_of(problem, vl)
    splits, pixels, T = geo.splits, geo.pixels, geo.T
    panels, columns = -(-geo.M // MR), -(-geo.K // (NV * vl))
    listed = tap_list(problem)
    planes, each = planes_of(tuple(out), problem.stride, listed), planes_of_taps(tuple(out), listed)
    # taps far apart reach far beyond a block of pixels
    planes = min(planes, each, key=lambda p: len(p.taps) * _longest(pixels, KC, p, out))
    taps = np.array(planes.taps, np.int64).reshape(-1, 3)
    geo = geo._replace(rows=planes.rows, pitch=planes.pitch, reach=planes.reach)
    channel = np.arange(Cg, dtype=np.int64)[:, None]
    number, shift = np.array(planes.terms, np.int64).reshape(-1, 2).T
    if T == 1 and not any(map(any, problem.padding)) and x.dtype in ("float32", "float64"):
        rows = channel * x.strides[1] + shift
    else:
        # an odd number of lines, so that planes do not all start in one set of the cache
        plane = (-(-_longest(pixels, KC, planes, out) // vl) | 1) * vl
        geo = geo._replace(plane=plane)
        rows = (channel * len(taps) + number) * plane + shift
    rows = np.append(rows, np.full(-geo.M % MR, rows[-1, -1])) * acc
    w_offsets = (channel * w.strides[1] + np.array([t[3] for t in listed], np.int64)).ravel()
    alpha, beta = scalars(problem)
    product, finish, flops = kernel_of(_filters.product), kernel_of(_filters.finish), problem.flops
    places = np.arange(KC, dtype=np.int64) * (NV * vl * acc)
    lists = len(taps) * geo.plane // vl + KC // vl
    counts, table = lists + KC, lists * 2 * geo.limit
    block = min(Cg, (_filters.MC_PANELS * MR - 2) // T + 2) * len(taps) * geo.plane

    # of long sums there are three: the tiles, what they carry and what that loses
    capacity = geo.splits * tile_elements * acc * (3 if geo.split > BLOCKS * KC else 1)

    def shares(threads: int) -> tuple[int, int, int, int]:
        """Columns and rows of tiles of a job; bytes that a thread works in, and all there are."""
        wide, high = split_of(columns, panels, G * splits, threads, 512 // (NV * 16), 2.0, 0.25)
        work = ((wide * NV + 1) * vl * KC + block) * acc
        return wide, high, work, int(capacity + threads * (work + (counts + table) * 8))

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(flops)
        wide, high, work, nbytes = shares(threads)
        memory = scratch(nbytes)
        tiles = address(memory)
        base = tiles + capacity
        rest = memory[capacity + threads * work :].view(np.int64)
        count = rest[: threads * counts].reshape(threads, counts)
        tables = rest[threads * counts : threads * (counts + table)].reshape(threads, table)
        product(
            threads,
            address(inputs[0]),
            address(inputs[1]),
            address(outputs[0]),
            places,
            rows,
            like,
            geo,
            taps,
            w_offsets,
            tiles,
            (wide, high),
            base,
            work,
            count,
            tables,
            alpha,
            beta,
        )
        if splits > 1:
            finish(threads, address(outputs[0]), like, geo, w_offsets, tiles, base, work, alpha, beta)

    facts = {"kernel": "filters", "tile": f"{MR}x{NV * vl}x{KC}"}
    most = most_scratch(flops, lambda threads: shares(threads)[-1])
    return Executable(run, determinism="gpu_to_gpu", facts=facts, summation=SUMS, scratch_bytes=most)
