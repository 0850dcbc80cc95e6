"""``numba.rnn``: recurrent networks on the GPU, a matrix product of each layer for all steps, then the steps.

``passes.py`` has the two passes, ``sizes.py`` their memory, ``steps.py`` the steps. This module registers them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.support import LIMIT32, device_reason, precision_reason
from numbadnn.kernels.copies.pack import plan_packed
from numbadnn.kernels.rnn import persist as rnn_persist
from numbadnn.kernels.rnn import steps as rnn_steps
from numbadnn.kernels.rnn.passes import plan_backward, plan_forward
from numbadnn.kernels.rnn.sizes import Memory, Sizes, accumulator, kept_memory, space_memory
from numbadnn.problem import Policy
from numbadnn.problems.rnn import RnnProblem
from numbadnn.registry import SEQUENCE, Executable, Impl, register

NAME = "numba.rnn"
#: blocks of a step lie along the grid's second axis
MOST_SEQUENCES = 65535 * rnn_steps.TILE


def supports(problem: RnnProblem, policy: Policy) -> str:
    """Everything that a grid covers, but no other implementation's reserve."""
    if problem.made_by not in ("", NAME):
        return f"the reserve was written by {problem.made_by}, which alone can read it"
    if wrong := precision_reason(problem.dtype, accumulator(problem.dtype), policy):
        return wrong
    n = problem.network
    if problem.batch > MOST_SEQUENCES or problem.steps * problem.batch >= LIMIT32:
        return f"needs at most {MOST_SEQUENCES} sequences, of fewer than 2**31 steps in all"
    if max(problem.input_dim, 4 * n.hidden_size * n.directions) >= LIMIT32:
        return "needs inputs and states of fewer than 2**31 numbers"
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
    problem.check_reserve(kept.nbytes)
    space, outer = space_memory(s) if backward else Memory(), Memory()
    space.take("steps", rnn_persist.scratch_bytes(s))
    space.take("lengths", s.batch * 4)
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
        memory = workspace + outer.at["kept"] if "kept" in outer.at else a["reserve"]
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
    return Executable(run, workspace_bytes=outer.nbytes, facts=facts, summation=SEQUENCE)


def reserve_bytes(problem: RnnProblem, device: int) -> int:
    """What a forward pass keeps, laid out as the passes read and write it."""
    return kept_memory(Sizes.of(problem, Policy(device)), whole=True).nbytes


def rank(problem: RnnProblem) -> float:
    """Microseconds, roughly, as measured on an H200; a step costs less where all are in one launch."""
    n = problem.network
    H, back = n.hidden_size, problem.op == "rnn_backward"
    rate = {"float16": 3e8, "float32": 3e7, "float64": 1.5e7}[problem.dtype]
    together = {"float16": H % 128 == 0, "float32": H % 32 == 0}.get(problem.dtype, False)
    half = problem.dtype == "float16"
    if together and (1024 if half else 640) >= H and problem.batch <= 256:
        step = 2.0 + min(H, 400) / 300 if half else (0.2 + H / 85) * (1.5 if back else 1.0)
        step *= -(
            -problem.batch // (16 * max(1, 132 // max(1, H // 16)))
        )  # launches: a block has 16 sequences and units
    else:
        step = 5.5 + max(1e-4 * problem.batch * n.gates * H**2 / 132, 0.068 * (H - 100))  # a sum waits for its terms
    passes = 2 if back and "reserve" not in problem.names else 1
    return 35 + step * passes * problem.steps * n.num_layers * n.directions + problem.flops / rate


for _op in ("rnn_forward", "rnn_backward"):
    register(
        Impl(_op, "numba", NAME, supports, plan, rank, "ieee", "run_to_run", complete=True, reserve_bytes=reserve_bytes)
    )


def kernels() -> Iterator[Kernel]:
    """A representative set: each mode and type once in either direction of the pass, and what stands around the
    steps."""
    yield from rnn_steps.kernels()
