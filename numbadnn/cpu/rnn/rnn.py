"""Recurrent networks on the CPU: products of many steps at once, then one kernel that takes these steps.

All is computed in float32, in float64 for float64 data. float16 is widened on the way in and rounded once on the way out. The
reserve holds, in that wider type, each layer's y and each cell's gates. ``forward.py`` and ``backward.py`` are the passes,
``loops.py`` and ``whole.py`` their kernels; the micro-kernel of both is the convolutions' (``products.py``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn.cpu.rnn.backward import backward
from numbadnn.cpu.rnn.forward import forward
from numbadnn.cpu.rnn.scratch import scratch_bytes
from numbadnn.cpu.rnn.work import Work
from numbadnn.problem import Policy
from numbadnn.problems.rnn import RnnProblem
from numbadnn.problems.rnn_network import KEPT
from numbadnn.registry import SEQUENCE, Executable, Impl, register

NAME = "cpu.rnn"


def plan(problem: RnnProblem, policy: Policy, config: Any = None) -> Executable:
    """Either operation; everything is allocated in the call."""
    acc = _accumulator(problem)
    results = problem.result_names
    problem.check_reserve(reserve_bytes(problem, -1))

    def widened(name: str, given: dict[str, Any], shape: Any) -> np.ndarray:
        if name not in given:
            return np.zeros(shape, acc)
        return np.ascontiguousarray(given[name], acc)

    def ours(array: Any) -> np.ndarray:
        """Where a result goes that is rounded into ``array``: that itself where it can be."""
        fits = array.dtype == acc and array.flags.c_contiguous
        return array if fits else np.empty(array.shape, acc)

    def run_forward(given: dict[str, Any], made: dict[str, Any]) -> None:
        w, x, hx = (widened(name, given, ()) for name in ("w", "x", "hx"))
        y = ours(made["y"])
        work = Work(problem, w, _as_kept(made["reserve"], acc) if problem.keeps else None, y)
        forward(work, x, hx, widened("cx", given, hx.shape), made["hy"], made.get("cy"))
        if work.ys[-1] is not made["y"]:
            made["y"][...] = work.ys[-1]

    def run_backward(given: dict[str, Any], made: dict[str, Any]) -> None:
        w, x, hx = (widened(name, given, ()) for name in ("w", "x", "hx"))
        cx = widened("cx", given, hx.shape)
        if "reserve" in given:
            work = Work(problem, w, _as_kept(given["reserve"], acc))
        else:
            work = Work(problem, w, np.empty(_kept_size(problem), acc))
            forward(work, x, hx, cx, np.empty_like(hx), np.empty_like(hx))
        dy = widened("dy", given, work.ys[-1].shape)
        dh, dc = (np.array(widened(name, given, hx.shape)) for name in ("dhy", "dcy"))
        dw, dx = ours(made["dw"]), ours(made["dx"])
        backward(work, x, hx, cx, dy, dh, dc, dw, dx)
        for name, value in (("dw", dw), ("dx", dx), ("dhx", dh), ("dcx", dc)):
            if name in made and made[name] is not value:
                made[name][...] = value

    compute = run_forward if problem.op == "rnn_forward" else run_backward

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        given, made = dict(zip(problem.names, inputs, strict=True)), dict(zip(results, outputs, strict=True))
        with np.errstate(all="ignore"):  # what is not finite is a result, whatever the caller has NumPy do about it
            compute(given, made)

    most = scratch_bytes(problem, acc, _kept_size(problem))
    return Executable(run, facts={"accumulator": str(acc)}, summation=SEQUENCE, scratch_bytes=most)


def _kept_size(problem: RnnProblem) -> int:
    n = problem.network
    cells = n.num_layers * n.directions * problem.steps * problem.batch * n.hidden_size
    return cells * (KEPT[n.rnn_mode] + 1)


def _accumulator(problem: RnnProblem) -> Any:
    return np.dtype("float64" if problem.dtype == "float64" else "float32")


def reserve_bytes(problem: RnnProblem, device: int) -> int:
    """What a forward pass keeps, wherever in memory a reserve begins."""
    wide = _accumulator(problem).itemsize
    return _kept_size(problem) * wide + wide - problem.inputs[0].itemsize


def _as_kept(reserve: np.ndarray, acc: Any) -> np.ndarray:
    """A reserve, which has the data's dtype, as numbers of the accumulator's type."""
    skip = -(reserve.ctypes.data // reserve.itemsize) % (acc.itemsize // reserve.itemsize)
    whole = (reserve.size - skip) * reserve.itemsize // acc.itemsize * acc.itemsize // reserve.itemsize
    return reserve[skip : skip + whole].view(acc)


def supports(problem: RnnProblem, policy: Policy) -> str:
    """Everything, but no other implementation's reserve."""
    if problem.made_by not in ("", NAME):
        return f"the reserve was written by {problem.made_by}, which alone can read it"
    return ""


def rank(problem: RnnProblem) -> float:
    """Microseconds, roughly, at 50 GFLOP/s."""
    return 20 + problem.flops / 5e4


for _op in ("rnn_forward", "rnn_backward"):
    register(
        Impl(_op, "cpu", NAME, supports, plan, rank, "ieee", "run_to_run", complete=True, reserve_bytes=reserve_bytes)
    )
