"""Plans for ``last.py``: convolutions whose channels are neighbours in memory. Integers alone."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from numbadnn.cpu.conv.gather_plan import gather_terms
from numbadnn.cpu.conv.last.geometry import Layout
from numbadnn.cpu.conv.terms import Terms, scalars, volume
from numbadnn.cpu.conv.thin.plan import MOST_SCRATCH
from numbadnn.cpu.lang import later
from numbadnn.cpu.lang.parallel import STORED, address, kernel_of, most_scratch, scratch, thread_count
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import Executable

#: channels of a group, written and read, fewer of which leave most of a vector idle, or are no neighbours
FEWEST_WRITTEN, FEWEST_READ = 12, 2
#: of all filters, more of which are not laid out once more: memory that is kept
MOST_FILTERS = 1 << 25
#: pixels of a job, and of one with many channels, of which more than so many elements would leave the cache; of fewer
#: jobs than so many a thread, panels are shared too
PIXELS, FEW_PIXELS, ENOUGH, JOBS = 448, 64, 1 << 17, 4


def is_last(problem: ConvProblem) -> bool:
    """Whether it is one of these."""
    read, wide = (problem.y, problem.x) if problem.direction == "grad_inputs" else (problem.x, problem.y)
    enough = read.shape[1] >= FEWEST_READ * problem.groups and wide.shape[1] >= FEWEST_WRITTEN * problem.groups
    if problem.direction != "grad_weights" and problem.w.size > MOST_FILTERS:
        return False
    return enough and read.strides[1] == 1 == wide.strides[1] and math.prod(problem.outputs[0].shape) > 0


class Sight(NamedTuple):
    """What some lines of output pixels see, phase by phase: boxes, one for the taps that lie near each other.

    ``boxes``, a row a phase: the first of its boxes and their number, pixels of one, slices and rows that the taps of one span,
    columns and rows of one. ``lows``: first slice, row and column of each box's taps. ``places``: of each tap, its box's number
    in the phase, and slice, row and column in it.
    """

    boxes: np.ndarray
    lows: np.ndarray
    places: np.ndarray

    @property
    def pixels(self) -> int:
        """Pixels of all boxes of a phase, at most."""
        return int((self.boxes[:, 1] * self.boxes[:, 2]).max())


def seen_of(
    phases: np.ndarray, terms: Terms, step: tuple[int, ...], lines: int, columns: int, most_pixels: float
) -> Sight | None:
    """Boxes of ``lines`` lines of at most ``columns`` pixels, ``step`` apart in the image; None if they are too large."""
    taps = np.array(terms.taps, np.int64).reshape(-1, 3)
    boxes: list[tuple[int, ...]] = []
    lows: list[tuple[int, ...]] = []
    places: list[np.ndarray] = []
    for phase in phases:
        here = taps[phase[4] : phase[4] + phase[5]]
        high, wide = min(lines, int(phase[1])), min(columns, int(phase[2]))
        span = (1, (high - 1) * step[1] + 1, (wide - 1) * step[2] + 1)
        found = [_near(here[:, axis], span[axis]) for axis in range(3)]
        numbers = [number for _, number, _ in found]
        first = [low for low, _, _ in found]
        slices, rows, columns_seen = (extent for _, _, extent in found)
        most = span[1] - 1 + rows
        starts = min(-(-lines // int(phase[1])) + 1, lines)
        pixels = starts * slices * most * (columns_seen + span[2] - 1)
        if math.prod(map(len, first)) * pixels > most_pixels:
            return None
        boxes.append((len(lows), math.prod(map(len, first)), pixels, slices, rows, columns_seen + span[2] - 1, most))
        lows += list(itertools.product(*(low.tolist() for low in first)))
        number = (numbers[0] * len(first[1]) + numbers[1]) * len(first[2]) + numbers[2]
        places += [number, *(here[:, axis] - first[axis][numbers[axis]] for axis in range(3))]
    joined = [np.concatenate(places[i::4]) for i in range(4)]
    return Sight(np.array(boxes, np.int64), np.array(lows, np.int64).reshape(-1, 3), np.stack(joined, 1))


def _near(places: np.ndarray, span: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Places on one axis in groups that lie more than ``span`` apart: firsts, each place's group, the most that one extends."""
    if not len(places):
        return np.zeros(1, np.int64), np.zeros(0, np.int64), 1
    every = np.unique(places)
    begins = np.append(True, np.diff(every) > span)
    first = every[begins]
    group = np.searchsorted(first, places, side="right") - 1
    return first, group, int((places - first[group]).max()) + 1


def terms_at(phases: np.ndarray, terms: Terms, seen: Sight, geo: Any, C: int, in_place: bool) -> np.ndarray:
    """Where each term (tap, channel) of all phases is behind a pixel's place, in elements."""
    found, every = [np.zeros(0, np.int64)], np.array(terms.taps, np.int64).reshape(-1, 3)
    for phase, box in zip(phases, seen.boxes, strict=True):
        here, row = slice(phase[4], phase[4] + phase[5]), box[5] * C
        if in_place:
            at = (every[here] * (geo.src_d, geo.src_h, geo.src_w)).sum(1)
        else:
            at = (seen.places[here] * (box[2] * C, box[6] * row, row, C)).sum(1)
        found.append((at[:, None] + np.arange(C)).ravel())
    return np.concatenate(found)


def plan_last(problem: ConvProblem) -> Executable | None:
    """Forward, or the gradient with respect to the inputs, by ``last.py``; None where pixels lie too far apart for it."""
    _last = later.module("numbadnn.cpu.conv.last.last")
    _last_pack = later.module("numbadnn.cpu.conv.last.pack")
    KC, MR, NV, SUMS = later.names("numbadnn.cpu.conv.micro", "KC", "MR", "NV", "SUMS")
    VECTOR_BYTES = later.names("numbadnn.cpu.lang.vector", "VECTOR_BYTES")

    like = np.empty(1, STORED[problem.x.dtype])
    acc = 8 if problem.x.dtype == "float64" else 4
    NR = NV * VECTOR_BYTES // acc
    problem = volume(problem)
    geo, terms = gather_terms(problem, (KC, 1), NR, planes=False)
    lists, forward, w = terms.arrays(), problem.direction == "forward", problem.w
    phases, C = lists["phases"], (problem.x if forward else problem.y).shape[1] // problem.groups
    a_channel = w.strides[1] if forward else w.strides[0]
    most, longest = min(PIXELS, max(FEW_PIXELS, ENOUGH // C)), int(phases[:, 2].max())
    counts = phases[:, 11] // phases[:, 2]
    lines, wide = min(max(1, most // longest), int(counts.max())), min(longest, most)
    inside = is_inside(phases, terms, geo)
    in_place = inside and problem.x.dtype in ("float32", "float64")
    most_pixels = math.inf if in_place else MOST_SCRATCH // (C * acc)
    seen = seen_of(phases, terms, (geo.step_d, geo.step_h, geo.step_w), lines, wide, most_pixels)
    if seen is None:
        return None
    column_list = terms_at(phases, terms, seen, geo, C, in_place) * acc
    tap_major = np.concatenate([offsets.reshape(C, -1).T.ravel() for offsets in terms.a_offsets])
    box = -(-seen.pixels * C // NR) * NR
    pixels = -(-lines * wide // MR) * MR
    panels = -(-geo.M // NR)
    layout = Layout(C, a_channel, int(in_place), int(geo.src_w == C), lines, wide, panels, pixels)
    alpha, beta = scalars(problem)
    steps = np.arange(KC, dtype=np.int64) * (NR * acc)
    flops = problem.flops
    packed_size = len(tap_major) * geo.G * panels * NR * acc
    work = (3 * _last.TOGETHER * NR + (0 if in_place else box) + NR * NR) * acc

    @functools.cache
    def shared(threads: int) -> Any:
        """The layout with lines shared out evenly, and panels where there are few jobs of lines."""
        most = int(counts.max())
        blocks = -(-most // lines)
        even = -(-most // (-(-blocks // threads) * threads))
        jobs = int((-(-counts // even)).sum()) * geo.G * -(-longest // wide)
        high = max(1, min(panels, panels * jobs // (JOBS * threads)))
        return layout._replace(lines=even, high=-(-panels // -(-panels // high)))

    def capacity(threads: int) -> int:
        return int(packed_size + threads * (work + pixels * 16))

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(flops)
        chosen = shared(threads) if threads > 1 else layout
        memory = scratch(capacity(threads))
        packed = address(memory)
        base = packed + packed_size
        places = (
            memory[packed_size + threads * work :].view(np.int64)[: threads * 2 * pixels].reshape(threads, 2 * pixels)
        )
        filters = address(inputs[1])
        pack(threads, filters, like, geo, chosen, phases, tap_major, packed, base, work)
        product(
            threads, address(inputs[0]), filters, address(outputs[0]), packed, column_list, steps, lists["a_offsets"],
            lists["term_taps"], like, geo, chosen, phases, seen.boxes, seen.lows, base, work, places, alpha, beta,
        )  # fmt: skip

    pack, product = kernel_of(_last_pack.pack_panels), kernel_of(_last.gather_last)
    facts = {"kernel": "last", "tile": f"{MR}x{NR}x{KC}"}
    most = most_scratch(flops, capacity)
    return Executable(run, determinism="gpu_to_gpu", facts=facts, summation=SUMS, scratch_bytes=most)


def is_inside(phases: np.ndarray, terms: Terms, geo: Any) -> bool:
    """Whether no tap of any phase reaches beyond the image."""
    extent, step = np.array((geo.D, geo.H, geo.W)), np.array((geo.step_d, geo.step_h, geo.step_w))
    for phase in phases:
        taps = np.array(terms.taps[phase[4] : phase[4] + phase[5]], np.int64).reshape(-1, 3)
        if (taps < 0).any() or ((phase[:3] - 1) * step + taps >= extent).any():
            return False
    return True
