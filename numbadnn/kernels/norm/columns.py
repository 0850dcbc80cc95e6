"""``numba.norm_columns``: channels that lie together in memory (NHWC, per-activation). The host side of ``device/columns.py``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.kernels.norm.layout import FARTHEST, Axis, layout_of, step_kernel, uniform_reason
from numbadnn.problems.norm import NormProblem

#: blocks that a reduction is split into: one wave, of three or (16-bit data) two a multiprocessor on 132 of them
BLOCKS, FEWER = 396, 264
#: threads of a block of inference
SMALL = 64

#: what each kernel takes
PARAMETERS = {
    "stats": "ptr:2 {real} i32:4 i64",
    "apply": "ptr:3 i32:4 i64*2",
    "infer": "ptr:6 {real} i32:4 i64*2",
    "sums": "ptr:7 {real} i32:4 i64*3",
    "backward": "ptr:4 i32:4 i64*3",
}


@dataclass(frozen=True, slots=True)
class ColumnsConfig:
    """A block is ``lanes`` threads of ``vec`` channels x ``rows`` threads down the rows, ``unroll`` rows under way each."""

    vec: int
    unroll: int
    lanes: int
    rows: int


def heuristic(problem: NormProblem) -> ColumnsConfig:
    """The widest access that every row starts at, and as many lanes as waste least, the more the better."""
    layout = layout_of(problem)
    numbers = (layout.channels, *(layout.reduced[0].strides if layout.reduced else ()))
    vec = 16 // problem.x.itemsize
    while vec > 1 and not (layout.aligned and all(n % vec == 0 for n in numbers)):
        vec //= 2
    columns = layout.channels // vec
    lanes = max((32, 16, 8, 4), key=lambda n: (columns / (-(-columns // n) * n), n))
    # 16-bit data without a gradient: more rows under way, as there are registers for them
    unroll = 8 if vec > 4 and not problem.op.endswith("_grad") else 4
    return ColumnsConfig(vec, unroll, lanes, 256 // lanes)


def reason(problem: NormProblem) -> str:
    """Why these kernels cannot, "" if they can."""
    if why := uniform_reason(problem):
        return why
    layout = layout_of(problem)
    if len(layout.reduced) > 1 or any(s != 1 for s in layout.kept[0].strides[: len(layout.data)]):
        return "needs the channels contiguous in memory, and rows at one stride"
    if layout.channels == 1 and layout.averaged > 1:
        return "needs more than one channel"
    if max(layout.averaged + FARTHEST, layout.channels, problem.x.size // 64) >= LIMIT32:
        return "needs fewer than 2**31 rows"
    return ""


class Columns:
    """The steps of a problem as (kernel, grid, threads, scalars), and how the workspace is split."""

    def __init__(self, problem: NormProblem, config: ColumnsConfig) -> None:
        self.problem, self.config, layout = problem, config, layout_of(problem)
        self.channels, self.rows = layout.channels, layout.averaged
        row = layout.reduced[0] if layout.reduced else Axis(1, tuple(0 for _ in layout.data))
        self.strides = row.strides
        self.groups = -(-self.channels // (config.vec * config.lanes))
        step = config.unroll * config.rows
        wave = FEWER if config.vec > 4 else BLOCKS
        self.parts = max(1, min(wave // self.groups, self.rows // step))

    def _kernel(self, name: str, *more: Any, config: ColumnsConfig | None = None) -> Kernel:
        config = config or self.config
        threads, resident = config.lanes * config.rows, 3 if name == "stats" and config.vec <= 4 else 2
        return step_kernel("columns", self.problem, name, PARAMETERS[name], config, threads, resident, *more)

    def reduction(self) -> tuple[Any, ...]:
        """The step that leaves parts in the workspace."""
        grid, p, threads = blocks(self.groups * self.parts, 1), self.problem, self.config.lanes * self.config.rows
        sizes = (self.channels, self.groups, self.parts, self.rows)
        if p.op.endswith("_grad"):
            fused = p.op == "batch_normalization_test_grad"
            return self._kernel("sums", fused), grid, threads, (p.epsilon, *sizes, self.strides)
        return self._kernel("stats"), grid, threads, (p.epsilon, *sizes, self.strides[0])

    def application(self) -> tuple[Any, ...]:
        """The step that writes the result from coefficients, or (inference) from the statistics given."""
        p, config, batches = self.problem, self.config, 1
        if p.op.endswith("_grad"):
            batches = max(1, min(4, self.rows * self.groups // (config.unroll * config.rows * 6 * BLOCKS)))
        else:  # one read and one write: faster in small blocks, each of one batch; in training of 4 KB
            small = (4, SMALL) if p.op == "batch_normalization_test" else (8, 32) if config.vec > 4 else (2, 128)
            unroll, threads = small
            config = replace(config, unroll=unroll, rows=max(1, threads // config.lanes))
        step = config.unroll * config.rows
        grid = blocks(self.groups * -(-self.rows // (batches * step)), 1)
        sizes, threads = (self.channels, self.groups, batches, self.rows), config.lanes * config.rows
        if p.op.endswith("_grad"):
            return self._kernel("backward"), grid, threads, (*sizes, self.strides)
        if p.op == "batch_normalization_test":
            return (
                self._kernel("infer", config=config),
                grid,
                threads,
                (p.epsilon, *sizes, self.strides),
            )
        return self._kernel("apply", config=config), grid, threads, (*sizes, self.strides)
