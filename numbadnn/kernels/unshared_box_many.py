"""Unshared convolutions of 9 to 32 images with sums in float32; the device code is ``_unshared_box_many``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass

from numbadnn.kernels import unshared_turned
from numbadnn.kernels._launch import Kernel
from numbadnn.kernels._softmax_layout import shared_room
from numbadnn.kernels._support import accumulator_of
from numbadnn.kernels.unshared_tile import PARAMETERS, blocks_of, places_of, scalars, seen_of, vector
from numbadnn.ops.conv import ConvProblem
from numbadnn.problem import Policy
from numbadnn.registry import Executable

LANES, EIGHT = 32, 8
#: warps of a block, and fewer than keep memory busy
MOST_IMAGES, MOST_WARPS, ENOUGH_WARPS = 32, 8, 132 * 8


@dataclass(frozen=True, slots=True)
class ManyConfig:
    """A block has ``tall`` rows of ``places`` positions, ``parts`` warps for each; a thread 8 images of ``filters``.

    ``along`` lanes split the terms, four at a time each, and ask for ``ahead`` turns of them; ``channels`` in shared memory.
    """

    images: int
    filters: int
    tall: int
    places: int
    parts: int
    vec: int
    ahead: int
    along: int
    resident: int
    whole: bool
    channels: int

    @property
    def threads(self) -> int:
        return LANES * self.tall * self.places * self.parts

    @property
    def across(self) -> int:
        """Filters of a warp."""
        return self.filters * LANES // (self.along * self.images // EIGHT)

    @property
    def cell(self) -> int:
        """Words of a pixel."""
        return self.images if self.images == 32 else self.images + 4

    @property
    def pitch(self) -> int:
        """Words of the sums of a filter."""
        return self.images + 1


def heuristic(problem: ConvProblem, policy: Policy) -> ManyConfig | None:
    """None where other kernels of ``numba.unshared`` are to do it."""
    w, N, (P, Q) = problem.w, problem.x.shape[0], problem.y.shape[2:]
    K, C, images = w.shape[0] // problem.groups, w.shape[3], max(16, 1 << (N - 1).bit_length())
    if not problem.unshared or problem.direction != "forward" or w.dtype != "float32":
        return None
    if accumulator_of(w.dtype, policy) != "float32" or policy.determinism not in ("run_to_run", "not_guaranteed"):
        return None  # the order of the terms depends on how many images there are
    if not EIGHT < N <= MOST_IMAGES or not unshared_turned.fits(problem, policy, images):
        return None
    if P * Q * problem.groups * -(-K // 16) < ENOUGH_WARPS:
        return None
    filters = min(images // 4, 1 << K.bit_length() - 1)  # no more than there are
    resident, parts = 32 // images, max(1, min(2, -(-K // (filters * EIGHT * EIGHT // images))))
    places = places_of(Q, 4)[0]
    tall = max(1, min(P, MOST_WARPS // (parts * places)))
    for channels in (C, *(c for c in (64, 32, 16, 8, 4, 2, 1) if c < C)):
        vec = vector(problem, channels, 4)
        config = ManyConfig(images, filters, tall, places, parts, vec, 2, 4, resident, channels == C, channels)
        if shared_bytes(problem, config) <= shared_room(policy.device) // resident - 1024:
            return config if images == MOST_IMAGES or config.whole else None  # else ``unshared_box`` is quicker
    return None


def room_of(problem: ConvProblem, config: ManyConfig) -> int:
    return -(-config.channels * math.prod(problem.taps) // 32) * 32


def shared_bytes(problem: ConvProblem, config: ManyConfig) -> int:
    box = config.channels * math.prod(seen_of(problem, (config.tall, config.places))) * config.cell
    sums = config.tall * config.places * config.parts * config.across * config.pitch
    return 4 * (room_of(problem, config) + box * (1 if config.whole else 2) + sums)


def kernel(config: ManyConfig) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels import _unshared_box_many

        return _unshared_box_many.forward(config)

    name = "unshared box many " + " ".join(str(int(v)) for v in astuple(config)[:10])
    return Kernel(name, f"ptr ptr ptr {PARAMETERS}", build, config.threads, config.resident, True)


def plan(problem: ConvProblem, policy: Policy, config: ManyConfig) -> Executable:
    chosen = kernel(config)
    told = scalars(problem, config, room_of(problem, config), unshared_turned.strides(problem, config.images))
    grid = (blocks_of(problem, config), 1, 1)
    launch = chosen.prepare(policy.device, grid, (config.threads, 1, 1), told, shared_bytes(problem, config))
    facts = {"kernel": chosen.name, "config": config}
    return unshared_turned.executable(problem, policy, config.images, launch, "ieee", "run_to_run", facts)


def kernels() -> Iterator[Kernel]:
    """One turn ahead: for more sm_100's code has a stack frame (sm_80's and sm_90a's none)."""
    yield kernel(ManyConfig(32, 8, 1, 4, 2, 4, 1, 4, 1, True, 1))
