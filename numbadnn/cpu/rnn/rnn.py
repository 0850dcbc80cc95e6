"""Recurrent networks on the CPU: one matrix product of each layer for all steps, then one kernel that takes all steps.

The products of whole layers are NumPy's (BLAS), those of the steps the kernel's (``products.py``); both in float32, in float64
for float64 data. The gates are in ``loops.py``. float16 is widened on the way in and rounded once on the way out. The reserve
holds, in that wider type, each layer's y and each cell's gates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn.cpu.lang.blas import one_thread, product
from numbadnn.cpu.lang.parallel import Kernel, address, kernel_of, scratch, thread_count
from numbadnn.problem import Policy
from numbadnn.problems.rnn import RnnProblem
from numbadnn.problems.rnn_network import KEPT
from numbadnn.registry import SEQUENCE, Executable, Impl, register

NAME = "cpu.rnn"


class _Work:
    """The views of one call: parameters cut out of w, and what a pass keeps of each layer, cut out of one flat
    array."""

    def __init__(self, problem: RnnProblem, w: np.ndarray, kept: np.ndarray | None) -> None:
        n = self.network = problem.network
        self.T, self.N, self.H = problem.steps, problem.batch, n.hidden_size
        self.problem, self.acc, self.w = problem, w.dtype, w
        self.rows = n.gates * n.hidden_size
        self.blocks = n.blocks(problem.input_dim)[0]
        ends = problem.lengths or (self.T,) * self.N
        self.ends = np.array(ends, np.int64)
        self.flat, self.at = kept, 0
        self.ys: list[np.ndarray] = []
        self.cells: list[list[np.ndarray]] = []
        for layer in range(n.num_layers):
            # without a reserve to be written, two layers' y and one layer's gates are enough
            fresh = kept is not None or layer < 2
            self.ys.append(self.take(self.T, self.N, self.H * n.directions) if fresh else self.ys[layer - 2])
            for _ in range(n.directions):
                first = kept is not None or not self.cells
                self.cells.append(self._cell() if first else self.cells[0])

    def take(self, *shape: int) -> np.ndarray:
        """The next array of the flat one, or a new one."""
        if self.flat is None:
            return np.empty(shape, self.acc)
        size = int(np.prod(shape))
        self.at += size
        return self.flat[self.at - size : self.at].reshape(shape)

    def _cell(self) -> list[np.ndarray]:
        """(gates, c or q): rnn_relu and rnn_tanh keep nothing of them, so theirs is no part of a reserve."""
        if not KEPT[self.network.rnn_mode]:
            return [np.empty((self.T, self.N, self.rows), self.acc)]
        return [self.take(self.T, self.N, self.rows), self.take(self.T, self.N, self.H)]

    def matrices(self, index: int) -> tuple[np.ndarray | None, np.ndarray, np.ndarray, np.ndarray]:
        """W (None under skip), R, bW, bR of a pseudo-layer."""
        return cut(self.w, self, index)

    def order(self, index: int) -> tuple[Any, int, int]:
        """(time steps of a pseudo-layer in its direction, where its part of y begins, the step before t as t +
        this)."""
        back = index % self.network.directions == 1
        return (range(self.T - 1, -1, -1), self.H, 1) if back else (range(self.T), 0, -1)

    def kernel(self, name: str) -> tuple[Kernel, int]:
        from numbadnn.cpu.rnn import loops as _rnn

        return kernel_of(getattr(_rnn, name)), self.threads()

    def threads(self) -> int:
        """A thread takes whole sequences: fewer than a tile of them each would read R as often as one thread, for less."""
        from numbadnn.cpu.conv.micro import MR

        return max(1, min(thread_count(2 * self.T * self.N * self.rows * self.H), self.N // MR))

    def packed(self, r: np.ndarray, turned: bool) -> np.ndarray:
        """R' (``turned``) or R in panels; see ``products``."""
        from numbadnn.cpu.conv.micro import NV
        from numbadnn.cpu.lang.elements import X86_512
        from numbadnn.cpu.rnn import products

        wide = NV * (64 if X86_512 else 32) // self.acc.itemsize
        depth, width = r.shape[::-1] if turned else r.shape
        made = _lines(-(-width // wide) * depth * wide, self.acc).reshape(-1, depth, wide)
        kernel_of(products.pack)(1, r, made, turned, made)
        return made

    def tables(self, threads: int) -> tuple[np.ndarray, int]:
        """Lists and tiles of the threads."""
        from numbadnn.cpu.rnn.products import LISTS, TILE

        return np.empty((threads, LISTS), np.int64), address(scratch(threads * TILE))


def _lines(size: int, dtype: Any) -> np.ndarray:
    """An array of one axis that begins with a line of the caches: vectors that lie across two take twice as long."""
    memory = np.empty(size * dtype.itemsize + 64, np.uint8)
    skip = -address(memory) % 64
    return memory[skip : skip + size * dtype.itemsize].view(dtype)


def cut(flat: np.ndarray, work: _Work, index: int) -> tuple[np.ndarray | None, np.ndarray, np.ndarray, np.ndarray]:
    """W (None under skip), R, bW and bR of a pseudo-layer, views of a flat array laid out as w."""
    n, rows, H = work.network, work.rows, work.H
    at_w, at_r, at_bw, at_br = work.blocks[index]
    width = n.in_dim(index // n.directions, work.problem.input_dim)
    w = flat[at_w : at_w + rows * width].reshape(rows, width) if at_w >= 0 else None
    return w, flat[at_r : at_r + rows * H].reshape(rows, H), flat[at_bw : at_bw + rows], flat[at_br : at_br + rows]


# ---- forward ---------------------------------------------------------------------------------------------------------


def _forward(work: _Work, x: np.ndarray, hx: np.ndarray, cx: np.ndarray, hy: Any, cy: Any) -> None:
    """Fill ``work.ys``, ``work.cells`` and the last states (hy, cy: one array a pseudo-layer is stored into)."""
    n = work.network
    for index in range(n.num_layers * n.directions):
        layer = index // n.directions
        source = work.ys[layer - 1] if layer else x
        _input_products(work, index, source)
        h, c = hx[index].copy(), cx[index].copy()
        _recurrence(work, index, h, c)
        hy[index] = h
        if cy is not None:
            cy[index] = c


def _input_products(work: _Work, index: int, source: np.ndarray) -> None:
    w = work.matrices(index)[0]
    gates = work.cells[index][0]
    if w is None:
        gates.reshape(work.T, work.N, -1, work.H)[...] = source[:, :, None, :]
    else:
        product(source.reshape(-1, source.shape[2]), w.T, gates.reshape(-1, work.rows))


def _recurrence(work: _Work, index: int, h: np.ndarray, c: np.ndarray) -> None:
    """All steps of a pseudo-layer; h and c are the first states, and the last after."""
    n, H = work.network, work.H
    _, r, bw, br = work.matrices(index)
    gates, *more = work.cells[index]
    y, (times, col, _) = work.ys[index // n.directions], work.order(index)
    rec, bias = np.empty((work.N, work.rows), work.acc), bw + br
    kernel, threads = work.kernel(f"{n.rnn_mode.split('_')[0]}_steps")
    packed, (lists, tiles) = work.packed(r, True), work.tables(threads)
    if n.rnn_mode == "gru":
        bias[2 * H :] = bw[2 * H :]
    place, end = (times.start, times.step, col), (lists, tiles, rec)
    if n.rnn_mode == "lstm":
        kernel(threads, packed, gates, rec, bias, more[0], h, c, y, work.ends, *place, *end)
    elif n.rnn_mode == "gru":
        kernel(threads, packed, gates, rec, bias, br[2 * H :].copy(), more[0], h, y, work.ends, *place, *end)
    else:
        kernel(threads, packed, gates, rec, bias, h, y, work.ends, *place, n.rnn_mode == "rnn_relu", *end)


# ---- backward --------------------------------------------------------------------------------------------------------


def _backward(
    work: _Work, x: np.ndarray, hx: np.ndarray, cx: np.ndarray, dy: np.ndarray, dh: np.ndarray, dc: np.ndarray,
    dw: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """dx; dw is filled; dh and dc, on entry the gradients of the last states, become those of the first."""
    n = work.network
    for layer in range(n.num_layers - 1, -1, -1):
        source = work.ys[layer - 1] if layer else x
        dx = np.zeros(source.shape, work.acc)
        for index in range(layer * n.directions, (layer + 1) * n.directions):
            _recurrence_grad(work, index, hx[index], cx[index], dy, dh[index], dc[index])
            _products_grad(work, index, source, hx[index], dx, dw)
        dy = dx
    return dy


def _recurrence_grad(
    work: _Work, index: int, hx: np.ndarray, cx: np.ndarray, dy: np.ndarray, dh: np.ndarray, dc: np.ndarray
) -> None:
    """The gradients under each gate, in place of the gates; dh and dc become those of the first states."""
    n, H = work.network, work.H
    r = work.matrices(index)[1]
    gates, *more = work.cells[index]
    y, (times, col, step) = work.ys[index // n.directions], work.order(index)
    kernel, threads = work.kernel(f"{n.rnn_mode.split('_')[0]}_grads")
    rec, packed, (lists, tiles) = np.zeros((work.N, H), work.acc), work.packed(r, False), work.tables(threads)
    place, end = (times[-1], step, col), (lists, tiles, rec)
    if n.rnn_mode == "lstm":
        kernel(threads, packed, gates, more[0], cx, dy, dh, rec, dc, work.ends, *place, *end)
    elif n.rnn_mode == "gru":
        kernel(threads, packed, gates, more[0], y, hx, dy, dh, rec, work.ends, *place, *end)
    else:
        kernel(threads, packed, gates, y, dy, dh, rec, work.ends, *place, n.rnn_mode == "rnn_relu", *end)
    dh += rec


def _products_grad(work: _Work, index: int, source: np.ndarray, hx: np.ndarray, dx: np.ndarray, dw: np.ndarray) -> None:
    """dW, dR and the biases' gradients; adds this direction's part of dx."""
    n, H, rows = work.network, work.H, work.rows
    w = work.matrices(index)[0]
    gates, *more = work.cells[index]
    grad_w, grad_r, grad_bw, grad_br = cut(dw, work, index)
    below = gates.reshape(-1, rows)
    if w is None:
        dx += gates.reshape(work.T, work.N, -1, H).sum(axis=2)
    else:
        assert grad_w is not None
        product(below.T, source.reshape(len(below), -1), grad_w)
        dx += product(below, w, np.empty((len(below), w.shape[1]), work.acc)).reshape(dx.shape)
    before = _states_before(work, index, hx).reshape(-1, H)
    grad_bw[...] = below.sum(axis=0)
    grad_br[...] = grad_bw
    if n.rnn_mode == "gru":
        last = more[0].reshape(-1, H)
        product(below[:, : 2 * H].T, before, grad_r[: 2 * H])
        product(last.T, before, grad_r[2 * H :])
        grad_br[2 * H :] = last.sum(axis=0)
    else:
        product(below.T, before, grad_r)


def _states_before(work: _Work, index: int, hx: np.ndarray) -> np.ndarray:
    """h at the beginning of each step, 0 past the end of a sequence: the gradients there are 0 too, but 0 times whatever
    memory held may be NaN."""
    y, (_, col, step) = work.ys[index // work.network.directions], work.order(index)
    own, before = y[:, :, col : col + work.H], np.zeros((work.T, work.N, work.H), work.acc)
    if step < 0:
        before[1:], before[0] = own[:-1], hx
    else:
        before[:-1] = own[1:]
        before[work.ends - 1, np.arange(work.N)] = hx
    return before


# ---- the executables -------------------------------------------------------------------------------------------------


def plan(problem: RnnProblem, policy: Policy, config: Any = None) -> Executable:
    """Either operation; everything is allocated in the call."""
    acc = _accumulator(problem)
    results = problem.result_names
    problem.check_reserve(reserve_bytes(problem, -1))

    def widened(name: str, given: dict[str, Any], shape: Any) -> np.ndarray:
        if name not in given:
            return np.zeros(shape, acc)
        return np.ascontiguousarray(given[name], acc)

    def forward(inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        given, made = dict(zip(problem.names, inputs, strict=True)), dict(zip(results, outputs, strict=True))
        w, x, hx = (widened(name, given, ()) for name in ("w", "x", "hx"))
        work = _Work(problem, w, _as_kept(made["reserve"], acc) if problem.keeps else None)
        _forward(work, x, hx, widened("cx", given, hx.shape), made["hy"], made.get("cy"))
        made["y"][...] = work.ys[-1]

    def backward(inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        given, made = dict(zip(problem.names, inputs, strict=True)), dict(zip(results, outputs, strict=True))
        w, x, hx = (widened(name, given, ()) for name in ("w", "x", "hx"))
        cx = widened("cx", given, hx.shape)
        if "reserve" in given:
            work = _Work(problem, w, _as_kept(given["reserve"], acc))
        else:
            work = _Work(problem, w, np.empty(_kept_size(problem), acc))
            _forward(work, x, hx, cx, np.empty_like(hx), np.empty_like(hx))
        dy = widened("dy", given, work.ys[-1].shape)
        dh, dc = (np.array(widened(name, given, hx.shape)) for name in ("dhy", "dcy"))
        dw = np.empty(w.shape, acc)
        made["dx"][...] = _backward(work, x, hx, cx, dy, dh, dc, dw)
        made["dw"][...], made["dhx"][...] = dw, dh
        if "dcx" in made:
            made["dcx"][...] = dc

    compute = forward if problem.op == "rnn_forward" else backward

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        with (
            one_thread,
            np.errstate(all="ignore"),
        ):  # what is not finite is a result, whatever the caller has NumPy do about it
            compute(inputs, outputs)

    return Executable(run, facts={"accumulator": str(acc)}, summation=SEQUENCE)


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
