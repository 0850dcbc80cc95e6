"""Recurrent networks on the GPU: a matrix product of each layer for all steps, then the steps. Implementation
"numba.rnn".

What grows with time is done at once by ``gemm``: W x before the steps of a layer, dW, dR and dx after those of its
gradient. The steps themselves go through ``rnn_steps``: one launch each, or all of them in one where the state fits the
GPU. This module cuts the memory of a pass: ``kept``, which the gradient needs (the reserve, or the workspace), and
``space``, which only the pass itself does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from numbadnn.kernels import rnn_steps
from numbadnn.kernels._launch import Kernel, blocks
from numbadnn.kernels._support import device_reason
from numbadnn.kernels.gemm import GemmProblem, plan_gemm
from numbadnn.kernels.rnn_pack import padded, plan_packed
from numbadnn.ops.rnn import KEPT, RnnProblem
from numbadnn.problem import ITEMSIZE, Policy
from numbadnn.registry import Executable, Impl, register

NAME = "numba.rnn"
THREADS = 256


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


# ---- forward ---------------------------------------------------------------------------------------------------------


def plan_forward(s: Sizes, kept: Memory, keeps: bool) -> Callable[..., None]:
    """``run(stream, w, x, hx, cx, y, hy, cy, kept, lengths, scratch)``: addresses, 0 for what is absent."""
    n = s.problem.network
    blocks_of_w, _ = n.blocks(s.problem.input_dim)
    plans = []
    for index, offsets in enumerate(blocks_of_w):
        layer = index // n.directions
        product = _input_product(s, layer, offsets[0])
        plans.append((layer, index % n.directions, offsets[0], product, rnn_steps.forward(s, index, offsets, keeps)))
    state = s.batch * s.hidden * s.size

    def run(
        stream: int, w: int, x: int, hx: int, cx: int, y: int, hy: int, cy: int, memory: int, lengths: int, scratch: int
    ) -> None:
        def y_of(layer: int) -> int:
            return y if layer == n.num_layers - 1 else memory + kept.at["y", layer]

        for index, (layer, _, at_w, product, steps) in enumerate(plans):
            gates, cells = memory + kept.at["gates", index], memory + kept.at["cells", index]
            product(stream, y_of(layer - 1) if layer else x, w + max(at_w, 0) * s.size, gates)
            more = index * state
            steps(
                stream, w, gates, cells, y_of(layer), hx + more, cx and cx + more, hy and hy + more, cy and cy + more,
                lengths, scratch,
            )  # fmt: skip

    return run


def _input_product(s: Sizes, layer: int, at_w: int) -> Callable[..., None]:
    """``product(stream, source, w, gates)``: W x of all steps."""
    width = s.in_dim(layer)
    if at_w < 0:
        count = s.many * s.hidden
        kernel = rnn_steps.kernel("spread", s.problem.network.rnn_mode, s.dtype)
        launch = kernel.prepare(s.device, blocks(count, THREADS), (THREADS, 1, 1), (count, s.hidden))
        return lambda stream, source, w, gates: launch(stream, source, gates)
    return s.gemm(s.many, s.rows, width, b_strides=(1, width), out=s.acc, aligned=(True, s.aligned(at_w), True))


# ---- backward --------------------------------------------------------------------------------------------------------


def space_memory(s: Sizes) -> Memory:
    """What the gradients need besides: of one pseudo-layer at a time, and dx of a layer for the one below."""
    memory = Memory()
    memory.take("da", s.many * s.held * s.hidden * s.size)
    memory.take("carry", s.batch * s.hidden * s.wide)
    memory.take("before", s.many * s.hidden * s.size)
    for number in range(min(s.problem.network.num_layers - 1, 2)):
        memory.take(("dx", number), s.many * s.width * s.size)
    return memory


def plan_backward(s: Sizes, kept: Memory, space: Memory) -> Callable[..., None]:
    """``run(stream, w, x, hx, cx, y, dy, dhy, dcy, dw, dx, dhx, dcx, kept, space)``: addresses, 0 for what is
    absent."""
    n = s.problem.network
    blocks_of_w, _ = n.blocks(s.problem.input_dim)
    plans = [_plan_layer_grad(s, kept, space, index, offsets) for index, offsets in enumerate(blocks_of_w)]

    def run(
        stream: int, w: int, x: int, hx: int, cx: int, y: int, dy: int, dhy: int, dcy: int, dw: int, dx: int, dhx: int,
        dcx: int, memory: int, scratch: int,
    ) -> None:  # fmt: skip
        def y_of(layer: int) -> int:
            return y if layer == n.num_layers - 1 else memory + kept.at["y", layer]

        for layer in range(n.num_layers - 1, -1, -1):
            target = scratch + space.at["dx", (layer - 1) % 2] if layer else dx
            source = y_of(layer - 1) if layer else x
            for index in range(layer * n.directions, (layer + 1) * n.directions):
                plans[index](
                    stream, w, source, hx, cx, y_of(layer), dy, dhy, dcy, dw, target, dhx, dcx, memory, scratch
                )
            dy = target

    return run


def _plan_layer_grad(
    s: Sizes, kept: Memory, space: Memory, index: int, offsets: tuple[int, ...]
) -> Callable[..., None]:
    n = s.problem.network
    layer, direction = divmod(index, n.directions)
    at_w, at_r, at_bw, at_br = offsets
    steps = rnn_steps.backward(s, index, offsets, kept, space)
    before = rnn_steps.states_before(s, direction)
    state, size = s.batch * s.hidden * s.size, s.size
    da_at, before_at = space.at["da"], space.at["before"]
    inputs = _input_gradients(s, layer, direction, at_w)
    recurrent = _recurrent_gradients(s, at_r)
    biases = _bias_gradients(s, at_bw, at_br)

    def run(
        stream: int, w: int, source: int, hx: int, cx: int, y: int, dy: int, dhy: int, dcy: int, dw: int, dx: int,
        dhx: int, dcx: int, memory: int, scratch: int,
    ) -> None:  # fmt: skip
        more, da = index * state, scratch + da_at
        steps(
            stream, w, memory, y, hx + more, cx and cx + more, dy, dhy and dhy + more, dcy and dcy + more, scratch,
            dhx + more, dcx and dcx + more,
        )  # fmt: skip
        before(stream, y, hx + more, scratch + before_at, scratch + space.at["lengths"])
        inputs(stream, w + max(at_w, 0) * size, source, da, dw + max(at_w, 0) * size, dx)
        recurrent(stream, da, scratch + before_at, dw + at_r * size)
        biases(stream, da, dw)

    return run


def _input_gradients(s: Sizes, layer: int, direction: int, at_w: int) -> Callable[..., None]:
    """``run(stream, w, source, da, dw, dx)``: dW, and this direction's part of dx."""
    width, pitch, first = s.in_dim(layer), s.held * s.hidden, direction == 0
    if at_w < 0:
        count = s.many * s.hidden
        kernel = rnn_steps.kernel("sums_of_gates", s.problem.network.rnn_mode, s.dtype)
        scalars = (count, s.hidden, pitch, 0 if first else 1)
        launch = kernel.prepare(s.device, blocks(count, THREADS), (THREADS, 1, 1), scalars)
        return lambda stream, w, source, da, dw, dx: launch(stream, da, dx)
    aligned = s.aligned(at_w)
    to_w = s.gemm(s.rows, width, s.many, a_strides=(1, pitch), b_strides=(width, 1), aligned=(True, True, aligned))
    to_x = s.gemm(
        s.many, width, s.rows, a_strides=(pitch, 1), beta=0.0 if first else 1.0, aligned=(True, aligned, True)
    )

    def run(stream: int, w: int, source: int, da: int, dw: int, dx: int) -> None:
        to_w(stream, da, source, dw)
        to_x(stream, da, w, dx)

    return run


def _recurrent_gradients(s: Sizes, at_r: int) -> Callable[..., None]:
    """``run(stream, da, before, dr)``: dR; gru's last gate has a slot of its own."""
    H, pitch, gru = s.hidden, s.held * s.hidden, s.problem.network.rnn_mode == "gru"

    def product(rows: int, slot: int, row: int) -> Callable[..., None]:
        aligned = (s.aligned(slot * H), True, s.aligned(at_r + row * H))
        return s.gemm(rows, H, s.many, a_strides=(1, pitch), b_strides=(H, 1), aligned=aligned)

    if not gru:
        return product(s.rows, 0, 0)
    first, last = product(2 * H, 0, 0), product(H, 3, 2 * H)
    to_da, to_dr = 3 * H * s.size, 2 * H * H * s.size

    def run(stream: int, da: int, before: int, dr: int) -> None:
        first(stream, da, before, dr)
        last(stream, da + to_da, before, dr + to_dr)

    return run


def _bias_gradients(s: Sizes, at_bw: int, at_br: int) -> Callable[..., None]:
    """``run(stream, da, dw)``: the columns' sums, for both vectors."""
    H, size, kernel = s.hidden, s.size, rnn_steps.kernel("totals", s.problem.network.rnn_mode, s.dtype)

    def columns(count: int) -> Any:
        return kernel.prepare(s.device, blocks(count, 32), (THREADS, 1, 1), (s.many, count, s.held * H))

    if s.problem.network.rnn_mode != "gru":
        launch = columns(s.rows)
        return lambda stream, da, dw: launch(stream, da, dw + at_bw * size, dw + at_br * size)
    both, one = columns(2 * H), columns(H)

    def run(stream: int, da: int, dw: int) -> None:
        both(stream, da, dw + at_bw * size, dw + at_br * size)
        one(stream, da + 2 * H * size, dw + (at_bw + 2 * H) * size, 0)
        one(stream, da + 3 * H * size, dw + (at_br + 2 * H) * size, 0)

    return run


# ---- the executables -------------------------------------------------------------------------------------------------


def supports(problem: RnnProblem, policy: Policy) -> str:
    """Everything, but no other implementation's reserve."""
    if problem.made_by not in ("", NAME):
        return f"the reserve was written by {problem.made_by}, which alone can read it"
    if policy.precision in ("float16", "float32", "float64") and policy.precision != accumulator(problem.dtype):
        return f"computes {problem.dtype} in {accumulator(problem.dtype)}, not in {policy.precision}"
    return device_reason(policy)


def plan(problem: RnnProblem, policy: Policy, config: Any = None) -> Executable:
    """All launches of a pass, bound into one callable; operands with gaps are copied."""
    made = plan_packed(problem, policy.device, lambda inner: _plan(inner, policy))
    tf32 = problem.dtype == "float32" and policy.fp32_precision == "tf32"
    made.arithmetic = "tensor_core" if problem.dtype == "float16" else "tf32" if tf32 else "ieee"
    return made


def _plan(problem: RnnProblem, policy: Policy) -> Executable:
    s, backward = Sizes.of(problem, policy), problem.op == "rnn_backward"
    alone = backward and "reserve" not in problem.names
    kept = kept_memory(s, whole=backward or problem.keeps)
    space, outer = space_memory(s) if backward else Memory(), Memory()
    space.take("steps", rnn_steps.SCRATCH)
    space.take("lengths", s.batch * 4 if problem.lengths else 0)
    outer.take("space", space.nbytes)
    if alone or not (backward or problem.keeps):
        outer.take("kept", kept.nbytes)
    if alone:
        outer.take("y", s.many * s.width * s.size)
    forward = plan_forward(s, kept, alone or problem.keeps) if alone or not backward else None
    gradients = plan_backward(s, kept, space) if backward else None
    lengths = rnn_steps.write_lengths(s)
    names = (*problem.names, *problem.result_names)

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        a = dict(zip(names, (*inputs, *outputs), strict=True))
        workspace = workspace or 0
        scratch = workspace + outer.at["space"]
        table = scratch + space.at["lengths"]
        lengths(stream, table)
        memory = workspace + outer.at["kept"] if "kept" in outer.at else padded(a["reserve"])
        y = workspace + outer.at["y"] if alone else a["y"]
        cx = a.get("cx", 0)
        if forward is not None:
            forward(
                stream, a["w"], a["x"], a["hx"], cx, y, a.get("hy", 0), a.get("cy", 0), memory, table,
                scratch + space.at["steps"],
            )  # fmt: skip
        if gradients is not None:
            gradients(
                stream, a["w"], a["x"], a["hx"], cx, y, a.get("dy", 0), a.get("dhy", 0), a.get("dcy", 0), a["dw"],
                a["dx"], a["dhx"], a.get("dcx", 0), memory, scratch,
            )  # fmt: skip

    facts: dict[str, Any] = {"steps": rnn_steps.describe(s, backward), "copies": []}
    return Executable(run, workspace_bytes=outer.nbytes, facts=facts)


def rank(problem: RnnProblem) -> float:
    """Microseconds, roughly; a step costs less where all are in one launch (float16: as measured on an H200)."""
    n = problem.network
    rate = {"float16": 3e8, "float32": 3e7, "float64": 1.5e7}[problem.dtype]
    together = {"float16": n.hidden_size % 128 == 0, "float32": n.hidden_size % 32 == 0}.get(problem.dtype, False)
    if together and n.hidden_size <= 512 and problem.batch <= 256:
        step = 3.0 if problem.dtype == "float16" else 8.0
    else:
        step = 8.0 + 2e-5 * problem.batch * n.gates * n.hidden_size**2 / 132
    return 40 + step * problem.steps * n.num_layers * n.directions + problem.flops / rate


for _op in ("rnn_forward", "rnn_backward"):
    register(Impl(_op, "numba", NAME, supports, plan, rank, "ieee", "run_to_run", complete=True))


def kernels() -> Iterator[Kernel]:
    """A representative set: each mode and type once in either direction of the pass, and what stands around the
    steps."""
    yield from rnn_steps.kernels()
