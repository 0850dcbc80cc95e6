"""Recurrent networks: the problem. The two operations are in ``ops/rnn_functions.py``, ``RNNBlock`` in ``ops/rnn_block.py``.

The lengths of sequences are integers of the host and part of the problem: cuDNN's descriptors want them there, and
every backend can then prepare for them once. What a gradient needs of its forward pass, the *reserve*, is a flat array
in the data's dtype whose contents only the implementation knows that wrote it; ``made_by`` names that one. Without a
reserve ``rnn_backward`` runs the forward pass itself, so that it stands alone like every other operation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from numbadnn.problem import Spec, contiguous_strides, integer, integers, operand
from numbadnn.problems.rnn_network import Network

DTYPES = ("float16", "float32", "float64")
#: the inputs of each operation; those after hx may be absent
INPUTS = {
    "rnn_forward": ("w", "x", "hx", "cx"),
    "rnn_backward": ("w", "x", "hx", "cx", "dy", "dhy", "dcy", "y", "reserve"),
}


@dataclass(frozen=True, slots=True)
class RnnProblem:
    """``names`` of the inputs that are there, their specs, the results' specs; the network; lengths; who made the
    reserve.

    rnn_forward: y, hy[, cy][, reserve] from w, x, hx[, cx]. rnn_backward: dw, dx, dhx[, dcx] from w, x, hx and any of
    cx, dy, dhy, dcy, then y and reserve or neither.
    """

    op: str
    names: tuple[str, ...]
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    network: Network
    lengths: tuple[int, ...] | None = None
    made_by: str = ""

    @property
    def output(self) -> Spec:
        return self.outputs[0]

    @property
    def result_names(self) -> tuple[str, ...]:
        if self.op == "rnn_backward":
            return ("dw", "dx", "dhx", "dcx")[: len(self.outputs)]
        names = ("y", "hy", "cy") if self.network.has_cell else ("y", "hy")
        return (*names, "reserve")[: len(self.outputs)]

    def spec(self, name: str) -> Spec | None:
        """An operand by its name, None where it is absent."""
        known = dict(zip((*self.names, *self.result_names), (*self.inputs, *self.outputs), strict=True))
        return known.get(name)

    @property
    def dtype(self) -> str:
        return self.inputs[0].dtype

    @property
    def steps(self) -> int:
        return self.inputs[1].shape[0]

    @property
    def batch(self) -> int:
        return self.inputs[1].shape[1]

    @property
    def input_dim(self) -> int:
        return self.inputs[1].shape[2]

    @property
    def keeps(self) -> bool:
        """Whether the forward pass writes a reserve."""
        return self.op == "rnn_forward" and self.result_names[-1] == "reserve"

    @property
    def compared(self) -> int:
        """How many of the outputs every implementation must agree on: not the reserve, whose contents are its maker's own."""
        return len(self.outputs) - self.keeps

    @property
    def spent(self) -> tuple[int, ...]:
        """The inputs that a run may change, by number: a reserve serves once."""
        return (self.names.index("reserve"),) if "reserve" in self.names else ()

    def check_reserve(self, nbytes: int) -> None:
        """ValueError for a reserve, read or to be written, of less than what an implementation has there."""
        spec = self.spec("reserve")
        if spec is not None and spec.size * spec.itemsize < nbytes:
            raise ValueError(f"reserve: expected at least {nbytes} bytes, got {spec.size * spec.itemsize}")

    @property
    def flops(self) -> int:
        """The products' multiplications and additions: two passes' worth more for the gradients, three if both are
        run."""
        network, steps = self.network, self.steps * self.batch
        biases = 2 * network.gates * network.hidden_size * network.num_layers * network.directions
        matrices = network.blocks(self.input_dim)[1] - biases
        passes = 1 if self.op == "rnn_forward" else 2 if "reserve" in self.names else 3
        return 2 * steps * matrices * passes

    @property
    def bytes(self) -> int:
        return sum(s.size * s.itemsize for s in (*self.inputs, *self.outputs))

    @property
    def keywords(self) -> dict[str, Any]:
        n = self.network
        given = {} if self.op == "rnn_forward" else {"given": self.names[3:]}
        return {
            **given, "hidden_size": n.hidden_size, "num_layers": n.num_layers, "rnn_mode": n.rnn_mode,
            "input_mode": n.input_mode, "direction_mode": n.direction_mode, "lengths": self.lengths,
        }  # fmt: skip

    def __str__(self) -> str:
        n = self.network
        specs = zip((*self.names, *self.result_names), (*self.inputs, *self.outputs), strict=True)
        words = [self.op, *(f"{name}={spec}" for name, spec in specs)]
        words += [f"mode={n.rnn_mode}", f"hidden={n.hidden_size}", f"layers={n.num_layers}"]
        words += [f"input={n.input_mode}", f"direction={n.direction_mode}"]
        if self.lengths is not None:
            words.append(f"lengths={','.join(map(str, self.lengths))}")
        if self.made_by:
            words.append(f"by={self.made_by}")
        return " ".join(words)

    @staticmethod
    def parse(text: str) -> RnnProblem:
        """The inverse of ``str``; results left out are packed, a reserve is there if it is named.

        >>> text = "rnn_forward w=float32:16 x=float32:3x1x1 hx=float32:1x1x1 mode=lstm hidden=1 layers=1"
        >>> p = RnnProblem.parse(text)
        >>> [str(s) for s in p.outputs]
        ['float32:3x1x1', 'float32:1x1x1', 'float32:1x1x1']
        """
        op, *words = text.split()
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        known = {*INPUTS.get(op, ()), "y", "hy", "cy", "reserve", "dw", "dx", "dhx", "dcx"}
        options = {"mode", "hidden", "layers", "input", "direction", "lengths", "by"}
        if op not in INPUTS or len(fields) != len(words) or not set(fields) <= known | options:
            raise ValueError(
                f"expected 'rnn_forward' or 'rnn_backward', operands, mode=, hidden=, layers=, got {text!r}"
            )
        if not {"w", "x", "hx", "mode", "hidden", "layers"} <= set(fields):
            raise ValueError(f"expected w=, x=, hx=, mode=, hidden= and layers=, got {text!r}")
        hidden, layers = integer("hidden", fields["hidden"]), integer("layers", fields["layers"])
        network = Network(
            hidden, layers, fields["mode"], fields.get("input", "linear"), fields.get("direction", "unidirectional")
        )
        lengths = integers("lengths", fields["lengths"]) if "lengths" in fields else None
        specs = {name: operand(fields[name]) for name in INPUTS[op] if name in fields}
        keep = Spec.parse(fields["reserve"]).shape[0] if op == "rnn_forward" and "reserve" in fields else 0
        problem = make(op, network, specs, lengths, keep, fields.get("by", ""))
        outputs = [
            Spec.parse(fields[name]) if name in fields else spec
            for name, spec in zip(problem.result_names, problem.outputs, strict=True)
        ]
        for name, spec, expected in zip(problem.result_names, outputs, problem.outputs, strict=True):
            if (spec.dtype, spec.shape) != (expected.dtype, expected.shape):
                raise ValueError(f"{name}: expected {expected}, got {spec}")
        return replace(problem, outputs=tuple(outputs))


PROBLEM = RnnProblem


def make(
    op: str, network: Network, specs: dict[str, Spec], lengths: Any = None, keep: int = 0, made_by: str = ""
) -> RnnProblem:
    """The problem of these inputs, validated, with packed results; ``keep`` is the size of the reserve to be
    written."""
    network = network.check()
    _check(op, network, specs)
    lengths = _lengths(lengths, *specs["x"].shape[:2])
    dtype, (steps, batch, _) = specs["w"].dtype, specs["x"].shape
    state = specs["hx"].shape
    width = network.hidden_size * network.directions
    if op == "rnn_forward":
        shapes = [(steps, batch, width), state] + [state] * network.has_cell + [(keep,)] * bool(keep)
    else:
        shapes = [specs["w"].shape, specs["x"].shape, state] + [state] * network.has_cell
    outputs = tuple(Spec(dtype, s, contiguous_strides(s)) for s in shapes)
    return RnnProblem(op, tuple(specs), tuple(specs.values()), outputs, network, lengths, made_by)


def _check(op: str, network: Network, specs: dict[str, Spec]) -> None:
    """Dtypes, then shapes: ValueError or TypeError naming the array, what was expected and what came."""
    dtype = specs["w"].dtype
    if dtype not in DTYPES:
        raise TypeError(f"w: expected dtype {', '.join(DTYPES)}, got {dtype}")
    for name, spec in specs.items():
        if spec.dtype != dtype:
            raise TypeError(f"{name}: expected w's dtype {dtype}, got {spec.dtype}")
    if "cx" in specs and not network.has_cell:
        raise ValueError(f"cx: expected None for {network.rnn_mode}, which has no cell state")
    if "dcy" in specs and not network.has_cell:
        raise ValueError(f"dcy: expected None for {network.rnn_mode}, which has no cell state")
    x = specs["x"].shape
    if len(x) != 3:
        raise ValueError(f"x: expected shape (time, batch, input), got {x}")
    if x[0] < 1 or x[2] < 1:
        raise ValueError(f"x: expected at least one time step and one input, got shape {x}")
    if network.input_mode == "skip" and x[2] != network.hidden_size:
        raise ValueError(f"x: expected hidden_size ({network.hidden_size}) inputs for input_mode 'skip', got {x[2]}")
    state = (network.num_layers * network.directions, x[1], network.hidden_size)
    output = (x[0], x[1], network.hidden_size * network.directions)
    expected = {"hx": state, "cx": state, "dhy": state, "dcy": state, "dy": output, "y": output}
    for name, shape in expected.items():
        if name in specs and specs[name].shape != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {specs[name].shape}")
    size = network.blocks(x[2])[1]
    if specs["w"].shape != (size,):
        raise ValueError(f"w: expected {size} elements (get_param_size) in one axis, got shape {specs['w'].shape}")


def _lengths(lengths: Any, steps: int, batch: int) -> tuple[int, ...] | None:
    if lengths is None:
        return None
    if len(lengths) != batch:
        raise ValueError(f"lengths: expected one number a batch entry ({batch}), got {len(lengths)}")
    for n in lengths:
        if not 1 <= n <= steps:
            raise ValueError(f"lengths: expected numbers from 1 to {steps} (the time steps of x), got {n}")
    return None if all(n == steps for n in lengths) else tuple(lengths)
