"""Plans for ``filters.py``: gradients of filters whose channels are neighbours in memory. Integers alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from numbadnn.cpu.conv.filters_plan import parts_of
from numbadnn.cpu.conv.gather_plan import gather_terms
from numbadnn.cpu.conv.last.geometry import Image, Layout
from numbadnn.cpu.conv.last.plan import is_inside, is_last, seen_of, terms_at
from numbadnn.cpu.conv.terms import scalars, split_of, tap_list, volume
from numbadnn.cpu.conv.thin.plan import MOST_SCRATCH
from numbadnn.cpu.lang import later
from numbadnn.cpu.lang.parallel import STORED, address, kernel_of, most_scratch, scratch, thread_count
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import Executable


def is_last_filters(problem: ConvProblem) -> bool:
    """Whether it is one of these: a block of pixels is whole lines, for the most part."""
    KC = later.names("numbadnn.cpu.conv.micro", "KC")

    return is_last(problem) and problem.y.shape[-1] <= KC


def plan_last_filters(problem: ConvProblem) -> Executable | None:
    """The gradient with respect to the weights by ``filters.py``; None where pixels lie too far apart for it."""
    _filters = later.module("numbadnn.cpu.conv.filters")
    _last_filters = later.module("numbadnn.cpu.conv.last.filters")
    BLOCKS, KC, MR, NV, SUMS = later.names("numbadnn.cpu.conv.micro", "BLOCKS", "KC", "MR", "NV", "SUMS")
    VECTOR_BYTES = later.names("numbadnn.cpu.lang.vector", "VECTOR_BYTES")

    like = np.empty(1, STORED[problem.x.dtype])
    acc = 8 if problem.x.dtype == "float64" else 4
    vl = VECTOR_BYTES // acc
    problem = volume(problem)
    geo, tile_elements = parts_of(problem, vl)
    view, terms = gather_terms(replace(problem, op="conv2d"), (KC, 1), MR, planes=False)
    C, phases, w = problem.w.shape[1], terms.arrays()["phases"], problem.w
    lines = min((KC - 2) // geo.Q + 2, geo.pixels // geo.Q)
    in_place = is_inside(phases, terms, view) and problem.x.dtype in ("float32", "float64")
    most_pixels = math.inf if in_place else MOST_SCRATCH // (C * acc)
    seen = seen_of(phases, terms, (view.step_d, view.step_h, view.step_w), lines, geo.Q, most_pixels)
    if seen is None:
        return None
    rows = terms_at(phases, terms, seen, view, C, in_place) * acc
    rows = np.append(rows, np.full(-geo.M % MR, rows[-1]))
    taps = np.array([offset for *_, offset in tap_list(problem)], np.int64)
    w_offsets = (taps[:, None] + np.arange(C) * w.strides[1]).ravel()
    box = 0 if in_place else -(-seen.pixels * C // vl) * vl + vl
    pixels = lines * geo.Q
    image = Image(*(getattr(view, name) for name in Image._fields))
    layout = Layout(C, 0, int(in_place), int(view.src_w == C), lines, geo.Q, 0, pixels)
    steps = np.arange(KC, dtype=np.int64) * (NV * vl * acc)
    panels, columns, flops = -(-geo.M // MR), -(-geo.K // (NV * vl)), problem.flops
    alpha, beta = scalars(problem)
    product, finish = kernel_of(_last_filters.product_last), kernel_of(_filters.finish)

    # of long sums there are three: the tiles, what they carry and what that loses
    capacity = geo.splits * tile_elements * acc * (3 if geo.split > BLOCKS * KC else 1)

    def shares(threads: int) -> tuple[int, int, int, int]:
        """Columns and rows of tiles of a job; bytes that a thread works in, and all there are."""
        wide, high = split_of(columns, panels, geo.G * geo.splits, threads, 512 // (NV * 16), 1.0, 0.25)
        work = (wide * KC * NV * vl + 2 * vl * vl + box) * acc
        return wide, high, work, int(capacity + threads * (work + pixels * 16))

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(flops)
        wide, high, work, nbytes = shares(threads)
        memory = scratch(nbytes)
        tiles = address(memory)
        base = tiles + capacity
        places = memory[capacity + threads * work :].view(np.int64)
        places = places[: threads * 2 * pixels].reshape(threads, 2 * pixels)
        x, y, out = address(inputs[0]), address(inputs[1]), address(outputs[0])
        product(
            threads, x, y, out, steps, rows, like, geo, image, layout, phases, seen.boxes, seen.lows, w_offsets, tiles,
            (wide, high), base, work, places, alpha, beta,
        )  # fmt: skip
        if geo.splits > 1:
            finish(threads, out, like, geo, w_offsets, tiles, base, work, alpha, beta)

    facts = {"kernel": "last filters", "tile": f"{MR}x{NV * vl}x{KC}"}
    most = most_scratch(flops, lambda threads: shares(threads)[-1])
    return Executable(run, determinism="gpu_to_gpu", facts=facts, summation=SUMS, scratch_bytes=most)
