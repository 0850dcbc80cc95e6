"""The bytes of scratch memory that a recurrent network needs on the CPU, as ``forward.py`` and ``backward.py`` allocate it."""

from __future__ import annotations

import math
from typing import Any

from numbadnn.cpu.lang import later
from numbadnn.cpu.lang.parallel import most_scratch
from numbadnn.cpu.rnn import forward
from numbadnn.cpu.rnn.work import panels_of
from numbadnn.problems.rnn import RnnProblem
from numbadnn.problems.rnn_network import KEPT


def scratch_bytes(problem: RnnProblem, acc: Any, kept: int) -> int:
    """``kept``: numbers of a reserve."""
    if problem.op == "rnn_forward":
        space, others, each = _forward(problem, acc, problem.keeps)
    else:
        space, others, each = _backward(problem, acc)
        if "reserve" not in problem.names:  # the forward pass is its own, and comes first; its scratch memory stays
            before, more, first = _forward(problem, acc, True)
            space, others, each = max(space, before), max(others, more) + kept + 2 * _states(problem), max(each, first)
    numbers = space + others + _gates_kept(problem) + _operands(problem, acc)
    work = 6 * problem.steps * problem.batch * problem.inputs[0].size
    return numbers * acc.itemsize + most_scratch(
        work, lambda threads: threads * each + _gates(problem, threads) * acc.itemsize
    )


def _states(problem: RnnProblem) -> int:
    return problem.inputs[2].size


def _widths(problem: RnnProblem) -> list[tuple[int, bool]]:
    """The width of each layer's input, and whether it is multiplied."""
    n = problem.network
    return [(n.in_dim(layer, problem.input_dim), layer > 0 or n.input_mode != "skip") for layer in range(n.num_layers)]


def _panels(acc: Any, depth: int, width: int) -> int:
    return math.prod(panels_of(acc, depth, width))


def _team() -> int:
    """Bytes of a thread's list and tile."""
    LISTS, TILE = later.names("numbadnn.cpu.rnn.products", "LISTS", "TILE")
    return 8 * LISTS + TILE


def _forward(problem: RnnProblem, acc: Any, keeps: bool) -> tuple[int, int, int]:
    """Numbers of scratch memory and of other arrays, and bytes of each thread."""
    n, N, H = problem.network, problem.batch, problem.network.hidden_size
    rows = n.gates * H
    matrices = max(_panels(acc, width, rows if w else 0) for width, w in _widths(problem)) + _panels(acc, H, rows)
    between = 0 if keeps else min(n.num_layers - 1, 2) * problem.steps * N * H * n.directions
    return matrices + N * rows, between + 2 * N * H + 2 * rows, 2 * _team()


def _gates(problem: RnnProblem, threads: int) -> int:
    """Gates of some steps of a forward pass that keeps none."""
    if problem.op == "rnn_backward" or problem.keeps:
        return 0
    some = min(max(forward.ROWS * threads // max(problem.batch, 1), 1), problem.steps)
    return some * problem.batch * (problem.network.gates + 1) * problem.network.hidden_size


def _backward(problem: RnnProblem, acc: Any) -> tuple[int, int, int]:
    DEPTH, ROWS = later.names("numbadnn.cpu.rnn.whole", "DEPTH", "ROWS")
    n, H, steps = problem.network, problem.network.hidden_size, problem.steps * problem.batch
    rows, depth = n.gates * H, -(-steps // -(-steps // DEPTH))
    space = _panels(acc, rows, H) + problem.batch * H
    for width, w in _widths(problem):
        of_inputs = _panels(acc, rows, width) if w else steps * H
        of_weights = _panels(acc, depth, width if w else 0) + _panels(acc, depth, H)
        space = max(space, of_inputs, of_weights)
    below = min(n.num_layers - 1, 2) * steps * H * n.directions
    # the states before each step; gradients of the last states, twice while they are copied
    return space, steps * H + below + 4 * _states(problem), _team() + ROWS * depth * acc.itemsize


def _gates_kept(problem: RnnProblem) -> int:
    """Of cells that keep nothing in a reserve, though their gates are needed."""
    n = problem.network
    if KEPT[n.rnn_mode] or not (problem.op == "rnn_backward" or problem.keeps):
        return 0
    return n.num_layers * n.directions * problem.steps * problem.batch * n.hidden_size


def _operands(problem: RnnProblem, acc: Any) -> int:
    """What is copied because of its type or strides, and zeros for what is absent."""
    steps, n = problem.steps * problem.batch, problem.network
    results = problem.outputs[:1] if problem.op == "rnn_forward" else problem.outputs[:2]
    copied = [s for s in (*problem.inputs, *results) if s.dtype != acc.name or not s.is_contiguous]
    absent = {"cx": _states(problem)}
    if problem.op == "rnn_backward":
        absent["dy"] = steps * n.hidden_size * n.directions
        absent["x without what is past the ends"] = steps * problem.input_dim if problem.lengths else 0
    return sum(s.size for s in copied) + sum(size for name, size in absent.items() if name not in problem.names)
