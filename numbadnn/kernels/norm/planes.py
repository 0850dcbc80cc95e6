"""``numba.norm_planes``: channels whose neighbours lie together in memory (NCHW). The host side of ``device/planes.py``."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.kernels.norm.layout import FARTHEST, Axis, Layout, layout_of, step_kernel, uniform_reason
from numbadnn.problems.norm import TRAIN, NormProblem

#: blocks that a reduction is split into where channels are few: one wave, of four a multiprocessor on 132 of them (gradients
#: of 16-bit data: three); a second wave that is not full would cost as much as the first
BLOCKS, FEWER = 528, 396

#: parts that every thread of the walk that writes may join by itself, of data of so many bytes at most: a kernel launched for
#: it takes two microseconds, and the walk is a few percent slower
MOST_JOINED, LITTLE = 4, 8 << 20


#: what each kernel takes: a text, of a long one the parts of a record
PARAMETERS: dict[str, str | tuple[str, ...]] = {
    "stats": "ptr:2 {real} i32:4 i64:2",
    "apply": "ptr:3 i32:3 i64:4",
    "join_apply": (
        *("ptr:11", "{real} averaged epsilon kept_share mean_share var_share", "i32 channels parts vectors inner"),
        "i64 x_stride x_channel y_stride y_channel",
    ),
    "infer": "ptr:6 {real} i32:3 i64:4",
    "sums": "ptr:7 {real} i32:4 i64*3 i64*3",
    "backward": "ptr:4 i32:3 i64*3 i64*3",
}


@dataclass(frozen=True, slots=True)
class PlanesConfig:
    """``threads`` a block, each with ``unroll`` accesses of ``vec`` elements under way."""

    vec: int
    unroll: int
    threads: int


def reduced_two(layout: Layout) -> tuple[Axis, Axis]:
    """The axis around the channels and the one inside, either of one element where there is none."""
    one = Axis(1, tuple(0 for _ in layout.data))
    unit = Axis(1, tuple(1 for _ in layout.data))
    if not layout.reduced:
        return one, unit
    if len(layout.reduced) == 1:
        axis = layout.reduced[0]
        return (one, axis) if all(s == 1 for s in axis.strides) else (axis, unit)
    return layout.reduced[0], layout.reduced[1]


def heuristic(problem: NormProblem) -> PlanesConfig:
    """The widest access that every plane starts and ends at."""
    layout = layout_of(problem)
    outer, inner = reduced_two(layout)
    numbers = (inner.n, *outer.strides, *layout.kept[0].strides[: len(layout.data)])
    vec = 16 // problem.x.itemsize
    while vec > 1 and not (layout.aligned and all(n % vec == 0 for n in numbers)):
        vec //= 2
    return PlanesConfig(vec, 4 if vec * problem.x.itemsize == 16 else 8 // min(vec, 2), 256)


def reason(problem: NormProblem) -> str:
    """Why these kernels cannot, "" if they can."""
    if why := uniform_reason(problem):
        return why
    layout = layout_of(problem)
    _, inner = reduced_two(layout)
    if len(layout.reduced) > 2 or any(s != 1 for s in inner.strides):
        return "needs the elements of a channel contiguous in memory, plane by plane"
    if inner.n == 1 and layout.averaged > 1:
        return "needs planes of more than one element"
    if max(layout.averaged + FARTHEST, layout.channels, problem.x.size // 64) >= LIMIT32:
        return "needs fewer than 2**31 elements a channel"
    return ""


class Planes:
    """The steps of a problem as (kernel, grid, threads, scalars), and how the workspace is split."""

    def __init__(self, problem: NormProblem, config: PlanesConfig) -> None:
        self.problem, self.config, layout = problem, config, layout_of(problem)
        outer, inner = reduced_two(layout)
        count = len(layout.data)
        self.channels = layout.channels
        self.vectors, self.inner = layout.averaged // config.vec, inner.n // config.vec
        self.strides, self.c_strides = outer.strides, layout.kept[0].strides[:count]
        step = config.unroll * config.threads
        wave = FEWER if problem.op.endswith("_grad") and config.vec > 4 else BLOCKS
        self.parts = max(1, min(wave // self.channels, self.vectors // (2 * step)))
        #: whether the walk that writes joins the parts itself
        little = problem.x.size * problem.x.itemsize <= LITTLE
        self.joins = problem.op == TRAIN and self.parts <= MOST_JOINED and little

    def _kernel(self, name: str, *more: Any, config: PlanesConfig | None = None) -> Kernel:
        config = config or self.config
        return step_kernel("planes", self.problem, name, PARAMETERS[name], config, config.threads, 3, *more)

    def reduction(self) -> tuple[Any, ...]:
        """The step that leaves parts in the workspace."""
        grid, p = blocks(self.channels * self.parts, 1), self.problem
        sizes = (self.channels, self.parts, self.vectors, self.inner)
        if p.op.endswith("_grad"):
            fused = p.op == "batch_normalization_test_grad"
            epsilon = p.epsilon
            kernel = self._kernel("sums", fused)
            return kernel, grid, self.config.threads, (epsilon, *sizes, self.strides, self.c_strides)
        kernel = self._kernel("stats")
        return kernel, grid, self.config.threads, (p.epsilon, *sizes, self.strides[0], self.c_strides[0])

    def application(self) -> tuple[Any, ...]:
        """The step that writes the result from coefficients, or (inference) from the statistics given."""
        p, config = self.problem, self.config
        if config.vec * p.x.itemsize == 16 and not p.op.endswith("_grad") and not self.joins:
            config = replace(config, unroll=2, threads=128)  # one read and one write: 3 % faster in small blocks
        chunks = math.ceil(self.vectors / (config.unroll * config.threads))
        grid, sizes = blocks(self.channels * chunks, 1), (self.channels, self.vectors, self.inner)
        if p.op.endswith("_grad"):
            return self._kernel("backward"), grid, config.threads, (*sizes, self.strides, self.c_strides)
        (x, y), (xc, yc) = self.strides, self.c_strides
        if self.joins:
            m, f = p.averaged, p.factor
            unbiased = m / (m - 1) if m > 1 else 1.0
            kernel = self._kernel("join_apply", p.running, config=config)
            scalars = kernel.values(
                averaged=float(m),
                epsilon=p.epsilon,
                kept_share=1 - f,
                mean_share=f,
                var_share=f * unbiased,
                channels=self.channels,
                parts=self.parts,
                vectors=self.vectors,
                inner=self.inner,
                x_stride=x,
                x_channel=xc,
                y_stride=y,
                y_channel=yc,
            )
            return kernel, grid, config.threads, scalars
        if p.op == "batch_normalization_test":
            infer = self._kernel("infer", config=config)
            return infer, grid, config.threads, (p.epsilon, *sizes, x, xc, y, yc)
        return self._kernel("apply", config=config), grid, config.threads, (*sizes, x, xc, y, yc)
