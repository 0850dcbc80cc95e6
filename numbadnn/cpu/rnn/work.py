"""What a call of a recurrent network works on: parameters cut out of w, what a pass keeps of each layer, and scratch memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.cpu.lang import later
from numbadnn.cpu.lang.parallel import address, kernel_of, scratch, thread_count
from numbadnn.problems.rnn import RnnProblem
from numbadnn.problems.rnn_network import KEPT


class Work:
    """The views of one call. What is kept of the layers is cut out of one flat array."""

    def __init__(
        self, problem: RnnProblem, w: np.ndarray, kept: np.ndarray | None, y: np.ndarray | None = None
    ) -> None:
        """``kept``: the reserve, None where nothing is kept; ``y``: where the last layer's output goes, None for memory of
        its own."""
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
            last = layer == n.num_layers - 1
            # without a reserve to be written, two layers' y are enough
            old = self.ys[layer - 2] if kept is None and layer > 1 else None
            self.ys.append(self._y(y if last else None, old))
            if kept is not None:
                self.cells += [self._cell() for _ in range(n.directions)]

    def _y(self, given: np.ndarray | None, old: np.ndarray | None) -> np.ndarray:
        if given is not None and self.flat is None:
            return given
        return self._take(self.T, self.N, self.H * self.network.directions) if old is None else old

    def _take(self, *shape: int) -> np.ndarray:
        """The next array of the flat one, or a new one."""
        if self.flat is None:
            return np.empty(shape, self.acc)
        size = math.prod(shape)
        self.at += size
        return self.flat[self.at - size : self.at].reshape(shape)

    def _cell(self) -> list[np.ndarray]:
        """(gates, c or q): rnn_relu and rnn_tanh keep nothing of them, so theirs is no part of a reserve."""
        if not KEPT[self.network.rnn_mode]:
            return [np.empty((self.T, self.N, self.rows), self.acc)]
        return [self._take(self.T, self.N, self.rows), self._take(self.T, self.N, self.H)]

    def matrices(self, index: int) -> tuple[np.ndarray | None, np.ndarray, np.ndarray, np.ndarray]:
        """W (None under skip), R, bW, bR of a pseudo-layer."""
        return self.cut(self.w, index)

    def cut(self, flat: np.ndarray, index: int) -> tuple[np.ndarray | None, np.ndarray, np.ndarray, np.ndarray]:
        """W (None under skip), R, bW and bR of a pseudo-layer, views of a flat array laid out as w."""
        rows, H = self.rows, self.H
        at_w, at_r, at_bw, at_br = self.blocks[index]
        width = self.network.in_dim(index // self.network.directions, self.problem.input_dim)
        w = flat[at_w : at_w + rows * width].reshape(rows, width) if at_w >= 0 else None
        return w, flat[at_r : at_r + rows * H].reshape(rows, H), flat[at_bw : at_bw + rows], flat[at_br : at_br + rows]

    def order(self, index: int) -> tuple[int, int]:
        """(where a pseudo-layer's part of y begins, the step before t as t + this)."""
        return (self.H, 1) if index % self.network.directions == 1 else (0, -1)

    def panels(self, depth: int, width: int) -> tuple[int, int, int]:
        return panels_of(self.acc, depth, width)

    def memory(self, *shapes: tuple[int, ...]) -> list[np.ndarray]:
        """Arrays of scratch memory, until the next call. Each begins with a line of the caches: vectors that lie across two
        take twice as long."""
        size = self.acc.itemsize
        ends = [0]
        for shape in shapes:
            ends.append(ends[-1] + -(-math.prod(shape) * size // 64) * 64)
        memory = scratch(ends[-1])
        return [
            memory[start : start + math.prod(shape) * size].view(self.acc).reshape(shape)
            for start, shape in zip(ends, shapes, strict=False)
        ]


def panels_of(acc: Any, depth: int, width: int) -> tuple[int, int, int]:
    """The shape of a matrix of so many rows and columns in panels; see ``products``."""
    NV = later.names("numbadnn.cpu.conv.micro", "NV")
    VECTOR_BYTES = later.names("numbadnn.cpu.lang.vector", "VECTOR_BYTES")

    wide = NV * VECTOR_BYTES // acc.itemsize
    return -(-width // wide), depth, wide


class Team:
    """Threads that share a kernel's work, with a list and a tile each (``products``): one for each share of it, if it pays."""

    def __init__(self, work: int, shares: int) -> None:
        """``work``: multiplications and additions."""
        LISTS, TILE = later.names("numbadnn.cpu.rnn.products", "LISTS", "TILE")

        self.threads = max(1, min(thread_count(work), shares))
        self.lists = np.empty((self.threads, LISTS), np.int64)
        self._tiles = np.empty(self.threads * TILE + 64, np.uint8)
        self.tiles = -(-address(self._tiles) // 64) * 64

    def run(self, body: Callable[..., None], like: np.ndarray, *args: Any) -> None:
        kernel_of(body)(self.threads, *args, self.lists, self.tiles, like)


def packed(matrix: np.ndarray, turned: bool, panels: np.ndarray) -> np.ndarray:
    """``panels``, with a matrix or its transpose in it."""
    pack = later.names("numbadnn.cpu.rnn.products", "pack")

    kernel_of(pack)(min(thread_count(matrix.size), len(panels)), matrix, panels, turned, panels)
    return panels
