"""A convolution as matrix products over a Toeplitz matrix (im2col): sizes, where matrices lie, how many images share a buffer."""

from __future__ import annotations

import math

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.gemm.config import FEW_TILES
from numbadnn.problem import ITEMSIZE, Spec
from numbadnn.problems.conv import ConvProblem

#: the buffer is kept below this where a group of images is enough to fill the GPU
ENOUGH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class CorrmmConfig:
    """``images`` share the buffer; ``by_position``: a position's rows are neighbours; ``last``: channels count within taps."""

    images: int
    by_position: bool
    last: bool


class Matrices:
    """A problem as matrices: sizes, where they lie, which operands have to be copied first."""

    def __init__(self, problem: ConvProblem) -> None:
        self.problem, axes = problem, problem.axes
        self.N, self.K = problem.y.shape[:2]
        self.C, self.G = problem.x.shape[1], problem.groups
        self.taps, self.positions = three(problem.taps), three(problem.y.shape[2:])
        self.area, self.columns = math.prod(problem.taps), math.prod(problem.y.shape[2:])
        self.rows = self.C * self.area
        self.channels_last = problem.x.strides[1] == 1 and problem.x.strides[-1] != 1
        self.held = "float64" if problem.x.dtype == "float64" else "float32"
        # the type of the matrix: the image's own going in, the accumulator's coming out
        self.type = self.held if problem.direction == "grad_inputs" else problem.x.dtype
        c_taps = (problem.w.shape[-axes - 1], *problem.taps)
        strides = problem.w.strides[-axes - 1 :]
        by_channel = fold(c_taps, strides) == 1
        by_tap = self.G == 1 and fold((*c_taps[1:], c_taps[0]), (*strides[1:], strides[0])) == 1
        regions = 1 if not problem.unshared else fold(problem.w.shape[1 : axes + 1], problem.w.strides[1 : axes + 1])
        whole = problem.direction != "grad_weights" or not problem.unshared or _together(problem)
        self.w = (
            problem.w if (by_channel or by_tap) and regions and whole else Spec.of(problem.w.dtype, problem.w.shape)
        )
        self.last = self.w is problem.w and by_tap and (self.channels_last or not by_channel)
        folded = fold(problem.y.shape[2:], problem.y.strides[2:])
        self.y = problem.y if folded else Spec.of(problem.y.dtype, problem.y.shape)
        self.y_step = fold(self.y.shape[2:], self.y.strides[2:]) or 1

    @property
    def matrix_bytes(self) -> int:
        """The Toeplitz matrix of one image."""
        return self.rows * self.columns * ITEMSIZE[self.type]

    @property
    def partial_bytes(self) -> int:
        """The filters' gradient, not yet summed over the images of a group."""
        return self.problem.w.size * ITEMSIZE[self.held] if self.problem.direction == "grad_weights" else 0

    @property
    def copied_bytes(self) -> int:
        pairs = ((self.w, self.problem.w), (self.y, self.problem.y))
        return sum(padded(mine.size * mine.itemsize) for mine, given in pairs if mine is not given)

    def workspace(self, images: int) -> int:
        """Bytes for groups of so many images."""
        partials = 1 if self.problem.unshared else images
        return padded(images * self.matrix_bytes) + padded(partials * self.partial_bytes) + self.copied_bytes


def three(values: tuple[int, ...], neutral: int = 1) -> tuple[int, ...]:
    return (neutral,) * (3 - len(values)) + tuple(values)


def padded(nbytes: int) -> int:
    return -(-nbytes // 256) * 256


def fold(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The stride of these axes as one, 0 where they do not follow each other in memory."""
    step = expected = None
    for n, s in zip(reversed(sizes), reversed(strides), strict=True):
        if n == 1:
            continue
        if expected is not None and s != expected:
            return 0
        step, expected = s if step is None else step, s * n
    return 1 if step is None else step


def _together(problem: ConvProblem) -> bool:
    """Whether unshared filters and their regions are one axis of memory."""
    axes = problem.axes
    return fold(problem.w.shape[: axes + 1], problem.w.strides[: axes + 1]) != 0


def workspace_bytes(problem: ConvProblem, images: int = 1) -> int:
    """What a run with groups of so many images needs besides its operands, in bytes."""
    return Matrices(problem).workspace(images)


def heuristic(problem: ConvProblem, limit: int = 1 << 30) -> CorrmmConfig:
    """As many images together as it takes to fill the GPU, half the batch at most, in ENOUGH_BYTES and the limit."""
    m = Matrices(problem)
    sizes = {"forward": (m.K, m.columns), "grad_inputs": (m.rows, m.columns), "grad_weights": (m.K, m.rows // m.G)}
    tall, wide = sizes[problem.direction]
    tiles = -(-tall // 128) * -(-wide // 128)
    images = -(-m.N // 2)  # never the whole batch
    if not problem.unshared:
        images = min(images, -(-4 * FEW_TILES // tiles))
    each = m.matrix_bytes + (0 if problem.unshared else m.partial_bytes)
    most = min(max(ENOUGH_BYTES, each), limit - m.workspace(0) - 512)
    return CorrmmConfig(max(1, min(images, most // max(each, 1))), m.channels_last, m.last)


def space(problem: ConvProblem, limit: int = 1 << 30) -> list[CorrmmConfig]:
    """Every configuration worth timing, the heuristic's first: other groups of images."""
    from dataclasses import replace

    best = heuristic(problem, limit)
    return list(dict.fromkeys([best, *(replace(best, images=n) for n in (1, best.images // 2) if n)]))
