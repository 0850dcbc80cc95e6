"""A tile of output positions: its size, its receptive field, and the scalars of its kernels."""

from __future__ import annotations

import math
from typing import Any, Protocol

from numbadnn.gpu import driver as _driver
from numbadnn.kernels.build import simulate
from numbadnn.kernels.build.support import accumulator_of
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem

LANES, HOPPER = 32, (9, 0)


class Tile(Protocol):
    """What the configurations of these kernels have in common: rows and columns of positions, channels in shared memory."""

    @property
    def tall(self) -> int: ...
    @property
    def positions(self) -> int: ...
    @property
    def channels(self) -> int: ...


def free_order(problem: ConvProblem, policy: Policy) -> bool:
    """Whether sums in float32 will do, the order of whose terms may depend on how many images and filters there are."""
    free = policy.determinism in ("run_to_run", "not_guaranteed")
    return free and accumulator_of(problem.w.dtype, policy) == "float32"


def takes(problem: ConvProblem, policy: Policy, direction: str, *sizes: int) -> bool:
    """Whether it is an unshared convolution in a direction, of elements of so many bytes, with sums in ``free_order``.

    Tensor cores of different GPUs round differently, and the order of terms depends on how many images there are.
    """
    fits = problem.unshared and problem.direction == direction and problem.w.itemsize in sizes
    return fits and free_order(problem, policy)


def capability_of(device: int) -> tuple[int, int]:
    """An H200's where there is no device."""
    return HOPPER if device < 0 or simulate.active() else _driver.compute_capability(device)


def on_hopper(policy: Policy) -> bool:
    """Whether kernels for sm_90 alone can run; the simulator cannot run them."""
    return capability_of(policy.device) == HOPPER and not simulate.active()


def places_of(Q: int, most: int) -> list[int]:
    """Numbers of neighbouring positions of a block, the best first: a row's last block has few idle ones, then the most."""
    return sorted(range(1, min(most, Q) + 1), key=lambda n: (Q / (-(-Q // n) * n) < 0.9, -n))


def receptive_field(problem: ConvProblem, positions: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of the padded image that so many rows and columns of positions see."""
    axes = zip(positions, problem.stride, problem.taps, problem.dilation, strict=True)
    down, right = ((n - 1) * step + (taps - 1) * apart + 1 for n, step, taps, apart in axes)
    return down, right


def wide_of(problem: ConvProblem, positions: tuple[int, int]) -> int:
    """Columns of a box: so many that neighbouring terms meet all banks, of filters not flipped and one row of positions."""
    wide = receptive_field(problem, positions)[1]
    return wide + (problem.taps[1] - wide) % 8 if problem.dilation == (1, 1) else wide


def channel_counts(channels: int) -> list[int]:
    """How many of a group's channels a block may have at a time, the most first.

    >>> channel_counts(24)
    [24, 16, 8, 4, 2, 1]
    """
    return [channels, *(c for c in (64, 32, 16, 8, 4, 2, 1) if c < channels)]


def vector(problem: ConvProblem, channels: int, most: int = 8) -> int:
    """The most terms of a filter that one access may have, in every filter, from every ``channels``-th channel on."""
    w = problem.w
    vec = most if w.aligned else 1
    while vec > 1 and any(
        v % vec for v in (math.prod(w.shape[3:]), channels * math.prod(problem.taps), *w.strides[:3])
    ):
        vec //= 2
    return vec


def tiles_of(problem: ConvProblem, positions: tuple[int, int]) -> tuple[int, int]:
    """How many tiles of so many rows and columns of positions there are, down and across."""
    down, right = (-(-size // n) for size, n in zip(problem.y.shape[2:], positions, strict=True))
    return down, right


def blocks_of(problem: ConvProblem, tile: Tile) -> int:
    """One for each tile of each group."""
    return math.prod(tiles_of(problem, (tile.tall, tile.positions))) * problem.groups


#: what most of the kernels take last, as parts of a record of arguments
SHARED = (
    *(
        "i32 across groups N K C channels P Q capacity",
        "i32*2 image taps padding stride dilation",
        "i32 flip",
        "i32*2 box",
    ),
    *("i64*4 x_strides", "i64*3 w_strides", "i64*4 y_strides", "f32 alpha beta"),
)


def facts_of(problem: ConvProblem) -> dict[str, Any]:
    """What the kernels take of the problem, by the names of their parameters; K and C are those of a group."""
    x, w, y = problem.x, problem.w, problem.y
    return {
        "groups": problem.groups,
        "N": x.shape[0],
        "K": w.shape[0] // problem.groups,
        "C": w.shape[3],
        "P": y.shape[2],
        "Q": y.shape[3],
        "image": x.shape[2:],
        "output": y.shape[2:],
        "taps": problem.taps,
        "padding": tuple(low for low, _ in problem.padding),
        "stride": problem.stride,
        "dilation": problem.dilation,
        "flip": int(problem.flip),
        "x_strides": x.strides,
        "w_strides": w.strides[:3],
        "y_strides": y.strides,
        "alpha": problem.alpha,
        "beta": problem.beta,
    }


def facts_of_tile(problem: ConvProblem, tile: Tile) -> dict[str, Any]:
    """The same, and what they take of a tile."""
    return {
        **facts_of(problem),
        "across": -(-problem.y.shape[3] // tile.positions),
        "channels": tile.channels,
        "box": receptive_field(problem, (tile.tall, tile.positions)),
    }
