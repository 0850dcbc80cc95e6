"""Gradients of unshared filters over 9 to 32 images with sums in float32; the device code is ``_unshared_weights_many``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass

from numbadnn.kernels import unshared_turned
from numbadnn.kernels._launch import Kernel
from numbadnn.kernels._softmax_layout import shared_room
from numbadnn.kernels._support import accumulator_of
from numbadnn.kernels.unshared_box import is_later
from numbadnn.kernels.unshared_tile import PARAMETERS, blocks_of, lots_of, places_of, scalars, seen_of, vector
from numbadnn.ops.conv import ConvProblem
from numbadnn.problem import Policy
from numbadnn.registry import Executable

#: images that a thread multiplies at a time, and filters of a block at most
LANES, LOT, FEWEST_IMAGES, MOST_IMAGES, ROWS = 32, 4, 9, 32, 32
#: of a block: two fit a multiprocessor; of all filters, that turning 16 images is worth while
SHARED_BYTES, ENOUGH_BYTES = 99 * 1024, 1 << 26


@dataclass(frozen=True, slots=True)
class WeightsManyConfig:
    """A block has ``tall`` rows of ``places`` positions, ``channels`` of a group and ``rows`` filters at a time.

    A thread has ``filters`` x 4 sums, of which ``vec`` terms are written at once.
    """

    images: int
    filters: int
    rows: int
    tall: int
    places: int
    warps: int
    resident: int
    vec: int
    channels: int

    @property
    def threads(self) -> int:
        return LANES * self.warps


def heuristic(problem: ConvProblem, policy: Policy) -> WeightsManyConfig | None:
    """None where other kernels of ``numba.unshared`` are to do it."""
    w, N, (P, Q) = problem.w, problem.x.shape[0], problem.y.shape[2:]
    K, C, images = w.shape[0] // problem.groups, w.shape[3], max(16, 1 << (N - 1).bit_length())
    if not problem.unshared or problem.direction != "grad_weights" or w.dtype != "float32":
        return None
    if accumulator_of(w.dtype, policy) != "float32" or not FEWEST_IMAGES <= N <= MOST_IMAGES or not P * Q:
        return None
    if not unshared_turned.fits(problem, policy, images):
        return None
    if images < MOST_IMAGES and w.size * w.itemsize < ENOUGH_BYTES:
        return None
    rows, most = min(ROWS, 1 << (K - 1).bit_length()), 8 if is_later(policy.device) else 16
    filters = min(rows, most if -(-K // most) * most - K < 8 else 8)
    tall, places, found = min(P, 2), places_of(Q, 4)[0], []
    for channels in lots_of(C):
        vec = vector(problem, channels, 4)
        config = WeightsManyConfig(images, filters, rows, tall, places, 6, 2, vec, channels)
        if shared_bytes(problem, config) <= min(SHARED_BYTES, shared_room(policy.device) // 2 - 1024):
            found.append((vec, channels, config))
    return max(found, key=lambda f: f[:2])[2] if found else None


def room_of(problem: ConvProblem, config: WeightsManyConfig) -> int:
    return -(-config.channels * math.prod(problem.taps) // 32) * 32


def shared_bytes(problem: ConvProblem, config: WeightsManyConfig) -> int:
    box = config.channels * math.prod(seen_of(problem, (config.tall, config.places))) * config.images
    return 4 * (room_of(problem, config) + config.tall * config.places * config.rows * (config.images + 4) + box)


def kernel(config: WeightsManyConfig) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels import _unshared_weights_many

        return _unshared_weights_many.weights(config)

    name = "unshared weights many " + " ".join(str(v) for v in astuple(config)[:8])
    return Kernel(name, f"ptr ptr ptr i32 {PARAMETERS}", build, config.threads, config.resident, True)


def plan(problem: ConvProblem, policy: Policy, config: WeightsManyConfig) -> Executable:
    chosen = kernel(config)
    slices = -(-problem.w.shape[3] // config.channels)
    turned = (unshared_turned.strides(array.shape, config.images) for array in (problem.x, problem.y))
    told = scalars(problem, config, room_of(problem, config), *turned)
    grid = (slices * blocks_of(problem, config), 1, 1)
    shared = shared_bytes(problem, config)
    launch = chosen.prepare(policy.device, grid, (config.threads, 1, 1), (slices, *told), shared)
    facts = {"kernel": chosen.name, "config": config}
    return unshared_turned.executable(problem, policy, config.images, launch, "ieee", "gpu_to_gpu", facts)


def kernels() -> Iterator[Kernel]:
    """Not 16 filters: sm_100's compiler leaves so many sums in memory (sm_80's and sm_90a's none)."""
    yield kernel(WeightsManyConfig(32, 8, 16, 2, 4, 6, 2, 4, 4))
