"""The forward pass of a recurrent network on the CPU: of some steps the products with W at once, and then the steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbadnn.cpu.lang import later
from numbadnn.cpu.lang.parallel import thread_count
from numbadnn.cpu.rnn.work import Team, Work, packed

#: rows of gates that a thread multiplies at once, of so many steps as have them: they stay in a cache until their steps
ROWS = 256


def forward(work: Work, x: np.ndarray, hx: np.ndarray, cx: np.ndarray, hy: Any, cy: Any) -> None:
    """Fill ``work.ys``, ``work.cells`` and the last states (hy, cy: one array a pseudo-layer is stored into)."""
    n = work.network
    for index in range(n.num_layers * n.directions):
        layer = index // n.directions
        h, c = hx[index].copy(), cx[index].copy()
        _Layer(work, index, work.ys[layer - 1] if layer else x).run(h, c)
        hy[index] = h
        if cy is not None:
            cy[index] = c


class _Layer:
    """A pseudo-layer's matrices in panels, and memory of the gates of some steps where they are not kept."""

    def __init__(self, work: Work, index: int, source: np.ndarray) -> None:
        MR = later.names("numbadnn.cpu.conv.micro", "MR")

        self.work, self.index, self.source = work, index, source
        self.mode = work.network.rnn_mode.split("_")
        N, H, rows, width = work.N, work.H, work.rows, source.shape[2]
        w, r, bw, br = work.matrices(index)
        threads = thread_count(2 * work.T * N * rows * H)  # to wake them and wait for them costs time as well
        self.some = min(max(ROWS * threads // max(N, 1), 1), work.T)
        here = (0, 0) if work.cells else (self.some, N)
        self.w, self.r, self.rec, *fresh = work.memory(
            work.panels(width, rows if w is not None else 0), work.panels(H, rows), (N, rows), (*here, rows), (*here, H)
        )
        self.cell = work.cells[index] if work.cells else fresh
        packed(r, True, self.r)
        if w is not None:
            packed(w, True, self.w)
        self.bias, self.bias_r = bw + br, br[2 * H :].copy()
        if self.mode[0] == "gru":
            self.bias[2 * H :] = bw[2 * H :]
        self.inputs = Team(2 * self.some * N * width * rows, self.some * N // MR)
        self.steps = Team(2 * self.some * N * H * rows, N // MR)

    def run(self, h: np.ndarray, c: np.ndarray) -> None:
        """h and c are the first states, and the last after."""
        work = self.work
        starts = range(0, work.T, self.some)
        for begin in starts if work.order(self.index)[1] < 0 else reversed(starts):
            times = slice(begin, min(begin + self.some, work.T))
            at = times if work.cells else slice(0, times.stop - begin)
            self._products(times, self.cell[0][at])
            self._steps(times, [a[at] for a in self.cell], h, c)

    def _products(self, times: slice, gates: np.ndarray) -> None:
        """gates = x W'."""
        rows_product = later.names("numbadnn.cpu.rnn.whole", "rows_product")

        source, rows = self.source[times], self.work.rows
        if not len(self.w):
            gates.reshape(*gates.shape[:2], -1, self.work.H)[...] = source[:, :, None, :]
            return
        flat = source.reshape(-1, source.shape[2])
        self.inputs.run(rows_product, self.w, flat, self.w, gates.reshape(-1, rows), False)

    def _steps(self, times: slice, cell: list[np.ndarray], h: np.ndarray, c: np.ndarray) -> None:
        loops = later.module("numbadnn.cpu.rnn.loops")

        work = self.work
        gates, *more = cell
        col, before = work.order(self.index)
        y, ends = work.ys[self.index // work.network.directions][times], work.ends - times.start
        first, r, rec, bias, run = 0 if before < 0 else len(gates) - 1, self.r, self.rec, self.bias, self.steps.run
        if self.mode[0] == "lstm":
            run(loops.lstm_steps, r, r, gates, rec, bias, more[0], h, c, y, ends, first, -before, col)
        elif self.mode[0] == "gru":
            run(loops.gru_steps, r, r, gates, rec, bias, self.bias_r, more[0], h, y, ends, first, -before, col)
        else:
            run(loops.rnn_steps, r, r, gates, rec, bias, h, y, ends, first, -before, col, self.mode[1] == "relu")
