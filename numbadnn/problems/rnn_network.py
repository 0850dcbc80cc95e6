"""What a recurrent network is, apart from its arrays, and where its flat w keeps every matrix and vector."""

from __future__ import annotations

from dataclasses import dataclass, replace

from numbadnn.parameters import as_int

#: gates of a cell, in the order of w
GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
#: numbers a gate cell keeps of a step for its gradient, besides h
KEPT = {"rnn_relu": 0, "rnn_tanh": 0, "lstm": 5, "gru": 4}
INPUT_MODES = ("linear", "skip")
DIRECTION_MODES = ("unidirectional", "bidirectional")


@dataclass(frozen=True, slots=True)
class Network:
    """What a recurrent network is, apart from the arrays."""

    hidden_size: int
    num_layers: int
    rnn_mode: str
    input_mode: str = "linear"
    direction_mode: str = "unidirectional"

    @property
    def gates(self) -> int:
        return GATES[self.rnn_mode]

    @property
    def directions(self) -> int:
        return 2 if self.direction_mode == "bidirectional" else 1

    @property
    def has_cell(self) -> bool:
        return self.rnn_mode == "lstm"

    def in_dim(self, layer: int, input_dim: int) -> int:
        """The width of a layer's input."""
        return self.hidden_size * self.directions if layer else input_dim

    def blocks(self, input_dim: int) -> tuple[list[tuple[int, int, int, int]], int]:
        """(offset of W, or -1 where skip leaves it out; of R; of bW; of bR) of each pseudo-layer, and the size of w."""
        at, matrices, found = 0, [], []
        rows = self.gates * self.hidden_size
        for layer in range(self.num_layers):
            for _ in range(self.directions):
                skip = layer == 0 and self.input_mode == "skip"
                first = at
                at += 0 if skip else rows * self.in_dim(layer, input_dim)
                matrices.append((-1 if skip else first, at))
                at += rows * self.hidden_size
        for w, r in matrices:
            found.append((w, r, at, at + rows))
            at += 2 * rows
        return found, at

    def check(self) -> Network:
        """Itself with plain integers, or ValueError for a value that no network has."""
        for name, names in (("rnn_mode", GATES), ("input_mode", INPUT_MODES), ("direction_mode", DIRECTION_MODES)):
            mode = getattr(self, name)
            if not isinstance(mode, str) or mode not in names:
                raise ValueError(f"{name}: expected one of {', '.join(names)}, got {mode!r}")
        hidden_size, num_layers = as_int("hidden_size", self.hidden_size, 1), as_int("num_layers", self.num_layers, 1)
        return replace(self, hidden_size=hidden_size, num_layers=num_layers)
