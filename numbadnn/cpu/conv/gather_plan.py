"""Plans for ``gather.py``: lists of taps, terms and phases, and where filters and images are laid out. Integers alone."""

from __future__ import annotations

import collections
import functools
import itertools
from typing import Any

import numpy as np

from numbadnn.cpu.conv.few_positions import begin_of, position_terms
from numbadnn.cpu.conv.geometry import Geometry
from numbadnn.cpu.conv.terms import Terms, flattened, named, phases_of, scalars, split_of, tap_list, volume
from numbadnn.cpu.lang import later
from numbadnn.cpu.lang.parallel import STORED, address, kernel_of, most_scratch, scratch, thread_count
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import Executable


def gather_terms(problem: ConvProblem, block: tuple[int, int], rows: int, planes: bool) -> tuple[Any, Terms]:
    """Geometry and lists of ``gather.py``, of volumes: the forward direction or the gradient with respect to the inputs.

    ``planes``: whether images are laid out, or every term is.
    """

    x, w, y, G = problem.x, problem.w, problem.y, problem.groups
    (N, _, *image), (K, Cg, *_), (_, _, *out) = x.shape, w.shape, y.shape
    Kg, forward = K // G, problem.direction == "forward"
    images, results = (
        (x, Cg, w.strides[1]),
        (y, Kg, w.strides[0]),
    )  # channels of a group, and the filters' strides along them
    (source, C, w_c), (result, M, w_m) = (images, results) if forward else (results, images)
    # between neighbouring pixels: of the result in what is read, and of a phase in the result
    step, apart = (problem.stride, (1, 1, 1)) if forward else ((1, 1, 1), problem.stride)
    (src_n, src_c, *src_steps), (out_n, out_m, *out_steps) = source.strides, result.strides
    taps, terms = tap_list(problem), Terms(N, step if planes else None)
    geo = Geometry(
        M=M,
        G=G,
        a_group=Kg * w.strides[0],
        a_row=w_m,
        **named("", "DHW", source.shape[2:]),
        src_group=C * src_c,
        src_c=src_c,
        src_n=src_n,
        **named("src_", "dhw", src_steps),
        **named("step_", "dhw", step),
        out_group=M * out_m,
        out_m=out_m,
        out_n=out_n,
        **named("out_", "dhw", [s * between for s, between in zip(apart, out_steps, strict=True)]),
    )
    if forward:
        terms.add_phase(tuple(out), 0, taps, C, w_c, G * -(-M // rows), block)
        return geo, terms
    outside, of_phase = False, collections.defaultdict(list)
    for *places, offset in taps:
        of_phase[tuple(place % s for place, s in zip(places, apart, strict=True))].append((*places, offset))
    for first in itertools.product(*phases_of(problem)):
        here = []
        for *places, offset in of_phase.get(first, ()):
            behind = zip(first, places, apart, strict=True)
            here.append((*((a - place) // s for a, place, s in behind), offset))
        grid = tuple(-(-(n - a) // s) for n, a, s in zip(image, first, apart, strict=True))
        at = sum(a * between for a, between in zip(first, out_steps, strict=True))
        terms.add_phase(grid, at, here, C, w_c, G * -(-M // rows), block)
        reached = (zip(place, grid, out, strict=False) for place in here)
        outside |= any(low < 0 or low + n > m for axes in reached for low, n, m in axes)
    return geo._replace(outside=int(outside)), terms


#: filters for which to lay out every term of a pixel costs as much as to multiply once more
PACKING = 12
#: columns of register tiles, at most, whose pixels are laid out together as planes
PLANES_WIDE = 32


def plan_gather(problem: ConvProblem, by_position: bool = False) -> Executable:
    """Forward, or the gradient with respect to the inputs, by ``gather.py``; ``by_position``: as ``few_positions.py`` says."""
    _gather = later.module("numbadnn.cpu.conv.gather")
    _gather_pack = later.module("numbadnn.cpu.conv.gather_pack")
    BLOCKS, KC, MR, NV, ROW, SUMS = later.names("numbadnn.cpu.conv.micro", "BLOCKS", "KC", "MR", "NV", "ROW", "SUMS")
    VECTOR_BYTES = later.names("numbadnn.cpu.lang.vector", "VECTOR_BYTES")

    like = np.empty(1, STORED[problem.x.dtype])
    acc = 8 if problem.x.dtype == "float64" else 4
    problem = flattened(volume(problem))
    vl = VECTOR_BYTES // acc
    # what is read and what multiplies it: the input and the filters, or the filters and the input
    read, multiplied, begin, terms_of = 0, 1, 0, gather_terms
    if by_position:
        read, multiplied, begin, terms_of = 1, 0, begin_of(problem) * problem.x.itemsize, position_terms
    geo, terms = terms_of(problem, (KC, MR * ROW), MR, True)
    stretch = PLANES_WIDE * NV * vl
    planes = terms.pixels_wasted(NV * vl) < PACKING * (1 - terms.laid_out(stretch)) / (-(-geo.M // MR) * MR)
    if not planes:
        geo, terms = terms_of(problem, (KC, MR * ROW), MR, False)
    lists = terms.arrays()
    phases, taps = lists["phases"], lists["taps"]
    slices, pixels, _, pitches, reach = phases[:, 10:].T
    narrow, reach = pitches.min(), int(reach.max())
    geo = geo._replace(limit=min(vl, (vl + int(narrow) - 2) // int(narrow) + 1))
    offsets = np.append(lists["a_offsets"], np.zeros(vl, np.int64))  # they are read by vectors
    run_length = terms.run_length()
    # filters that lie in runs are read where they lie; others, which are neither copied by long runs nor turned by squares, are
    # laid out once, not for each of many stretches
    in_place = run_length >= min(4, terms.depth) and problem.x.dtype in ("float32", "float64") and geo.M % MR == 0
    early = run_length < 16 and not (run_length == geo.a_row == 1) and not in_place
    widest = PLANES_WIDE if planes else 384 // (NV * 16)
    early = early and (len(phases) > 1 or (slices * -(-pixels // (widest * NV * vl))).max() > 2)
    geo = geo._replace(run=run_length, packed=int(early), in_place=int(in_place))
    if not early:
        terms.packed = 0
    panels = -(-geo.M // MR)
    columns = int(-(-pixels.max() // (NV * vl)))
    most_taps, deepest = int(phases[:, 5].max()), int(phases[:, 8].max())
    places = np.arange(KC, dtype=np.int64) * (NV * vl * acc)
    a_places = (offsets if in_place else np.arange(KC, dtype=np.int64)) * acc
    if planes:
        # an odd number of lines, so that planes do not all start in one set of the cache
        plane = -(-(min(widest, columns) * NV * vl + reach) // vl) | 1
        geo = geo._replace(plane=plane * vl, block=plane * vl * terms.most_planes(KC))
        places = terms.places_of(plane * vl) * acc
    alpha, beta = scalars(problem)
    # a phase of few terms is less than a job
    jobs = max(1, int(geo.G * (slices * phases[:, 8]).sum() / max(deepest, 1)))
    flops = problem.flops

    @functools.cache
    def shares(threads: int) -> tuple[int, int, int, int]:
        """Columns and rows of tiles of a job; bytes that a thread works in, and its counts of runs."""
        wide, high = split_of(columns, panels, jobs, threads, widest)
        stretch = wide * NV
        tiles = high * wide * (3 if deepest > BLOCKS * KC else 1) if deepest > KC else 1
        block = geo.block or _gather.COLUMN * stretch * vl
        work = (block + (_gather.MC_PANELS + 3) * MR * ROW + max(tiles * MR * NV, vl) * vl) * acc
        return wide, high, work, (most_taps + 1) * (stretch + -(-reach // vl))

    def capacity(threads: int) -> int:
        _, _, work, counts = shares(threads)
        return int(terms.packed * acc + threads * (work + counts * (1 + 2 * geo.limit) * 8))

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(flops)
        wide, high, work, counts = shares(threads)
        table = counts * 2 * geo.limit
        memory = scratch(capacity(threads))
        base = address(memory)
        packed = base
        base += terms.packed * acc
        rest = memory[terms.packed * acc + threads * work :].view(np.int64)
        count = rest[: threads * counts].reshape(threads, counts)
        tables = rest[threads * counts : threads * (counts + table)].reshape(threads, table)
        filters = address(inputs[multiplied])
        if early:
            _pack_filters(threads, filters, like, geo, phases, offsets, packed, base, work)
        _gather_run(
            threads,
            address(inputs[read]) + begin,
            filters,
            address(outputs[0]),
            packed,
            offsets,
            a_places,
            places,
            like,
            geo,
            phases,
            taps,
            lists["term_taps"],
            (wide, high),
            base,
            work,
            count,
            tables,
            alpha,
            beta,
        )

    _pack_filters, _gather_run = kernel_of(_gather_pack.pack_filters), kernel_of(_gather.gather)
    facts = {"kernel": "gather", "tile": f"{MR}x{NV * vl}x{KC}"}
    most = most_scratch(flops, capacity)
    return Executable(run, determinism="gpu_to_gpu", facts=facts, summation=SUMS, scratch_bytes=most)
