"""The numbers of a recurrent problem, its products, and how a pass cuts its memory.

``kept`` is what the gradient needs of the forward pass (the reserve, or the workspace), ``space`` what only the gradient
itself does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.copies.pack import padded
from numbadnn.kernels.gemm.gemm import GemmProblem, plan_gemm
from numbadnn.problem import ITEMSIZE, Policy
from numbadnn.problems.rnn import RnnProblem
from numbadnn.problems.rnn_network import KEPT


def accumulator(dtype: str) -> str:
    """The type of sums, and of what is kept of the gates."""
    return "float64" if dtype == "float64" else "float32"


class Memory:
    """Pieces of one allocation by name, as byte offsets."""

    def __init__(self) -> None:
        self.at: dict[Any, int] = {}
        self.nbytes = 0

    def take(self, name: Any, nbytes: int) -> None:
        self.at[name] = self.nbytes
        self.nbytes += padded(nbytes)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of a problem that all its launches share."""

    problem: RnnProblem
    steps: int
    batch: int
    hidden: int
    width: int
    rows: int
    held: int
    dtype: str
    acc: str
    precision: str
    device: int

    @staticmethod
    def of(problem: RnnProblem, policy: Policy) -> Sizes:
        n, acc = problem.network, accumulator(problem.dtype)
        held = 4 if n.rnn_mode in ("lstm", "gru") else 1
        precision = "tf32" if policy.fp32_precision == "tf32" else "ieee"
        return Sizes(
            problem, problem.steps, problem.batch, n.hidden_size, n.hidden_size * n.directions, n.gates * n.hidden_size,
            held, problem.dtype, acc, precision, policy.device,
        )  # fmt: skip

    @property
    def size(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def wide(self) -> int:
        return ITEMSIZE[self.acc]

    @property
    def many(self) -> int:
        return self.steps * self.batch

    @property
    def parts(self) -> tuple[int, int]:
        """(parts, rows of each) of a sum over time and batch: enough blocks to fill a GPU."""
        wanted = max(1, 1024 * 32 // (self.held * self.hidden))
        chunk = max(32, -(-self.many // wanted))
        return -(-self.many // chunk), chunk

    @property
    def clears(self) -> bool:
        """Whether x is copied without what it holds past the ends of sequences, before its product with gradients."""
        p = self.problem
        return p.lengths is not None and min(p.lengths) < self.steps and p.network.input_mode != "skip"

    def in_dim(self, layer: int) -> int:
        return self.problem.network.in_dim(layer, self.problem.input_dim)

    def gemm(self, m: int, n: int, k: int, **fields: Any) -> Callable[..., None]:
        """A product of the data's type, ready to launch."""
        problem = GemmProblem.of(m, n, k, self.dtype, precision=self.precision if self.dtype == "float32" else "ieee")
        direct = plan_gemm(replace(problem, **fields), self.device).direct
        assert direct is not None
        return direct

    def aligned(self, *offsets: int) -> bool:
        """Whether elements at these offsets of an aligned array are aligned."""
        return all(offset * self.size % 16 == 0 for offset in offsets)


def kept_memory(s: Sizes, whole: bool) -> Memory:
    """Gates and cells of every pseudo-layer, y of every layer but the last; not ``whole``: of as few as a pass
    needs."""
    n, memory = s.problem.network, Memory()
    for index in range(n.num_layers * n.directions):
        if whole or index == 0:
            if KEPT[n.rnn_mode] or index == 0:
                memory.take(("gates", index), s.many * s.rows * s.wide)
            if KEPT[n.rnn_mode]:
                memory.take(("cells", index), s.many * s.hidden * s.wide)
        memory.at.setdefault(("gates", index), memory.at["gates", 0])
        memory.at.setdefault(("cells", index), memory.at.get(("cells", 0), 0))
    for layer in range(n.num_layers - 1):
        if whole or layer < 2:
            memory.take(("y", layer), s.many * s.width * s.size)
        memory.at.setdefault(("y", layer), memory.at.get(("y", layer - 2), 0))
    return memory


def space_memory(s: Sizes) -> Memory:
    """What the gradients need besides: of one pseudo-layer at a time, and dx of a layer for the one below."""
    memory = Memory()
    memory.take("da", s.many * s.held * s.hidden * s.size)
    memory.take("carry", s.batch * s.hidden * s.wide)
    memory.take("parts", s.parts[0] * s.held * s.hidden * s.wide)
    memory.take("before", s.many * s.hidden * s.size)
    if s.clears:
        memory.take("x", s.many * s.in_dim(0) * s.size)
    for number in range(min(s.problem.network.num_layers - 1, 2)):
        memory.take(("dx", number), s.many * s.width * s.size)
    return memory
