"""Recurrent networks: the problem, and the two operations on arrays; ``RNNBlock`` (``rnn_block.py``) is built on them.

The lengths of sequences are integers of the host and part of the problem: cuDNN's descriptors want them there, and
every backend can then prepare for them once. What a gradient needs of its forward pass, the *reserve*, is a flat array
in the data's dtype whose contents only the implementation knows that wrote it; ``made_by`` names that one. Without a
reserve ``rnn_backward`` runs the forward pass itself, so that it stands alone like every other operation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from numbadnn import dispatch
from numbadnn.arrays import View
from numbadnn.dispatch import Request
from numbadnn.problem import Spec, contiguous_strides

#: gates of a cell, in the order of w
GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
INPUT_MODES = ("linear", "skip")
DIRECTION_MODES = ("unidirectional", "bidirectional")
DTYPES = ("float16", "float32", "float64")
#: the inputs of each operation; those after hx may be absent
INPUTS = {
    "rnn_forward": ("w", "x", "hx", "cx"),
    "rnn_backward": ("w", "x", "hx", "cx", "dy", "dhy", "dcy", "y", "reserve"),
}
#: numbers a gate cell keeps of a step for its gradient, besides h
KEPT = {"rnn_relu": 0, "rnn_tanh": 0, "lstm": 5, "gru": 4}


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
        """Itself, or ValueError for a value that no network has."""
        if self.rnn_mode not in GATES:
            raise ValueError(f"rnn_mode: expected one of {', '.join(GATES)}, got {self.rnn_mode!r}")
        if self.input_mode not in INPUT_MODES:
            raise ValueError(f"input_mode: expected one of {', '.join(INPUT_MODES)}, got {self.input_mode!r}")
        if self.direction_mode not in DIRECTION_MODES:
            raise ValueError(
                f"direction_mode: expected one of {', '.join(DIRECTION_MODES)}, got {self.direction_mode!r}"
            )
        for name, value in (("hidden_size", self.hidden_size), ("num_layers", self.num_layers)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected an integer of at least 1, got {value!r}")
        return self


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
        network = Network(
            int(fields["hidden"]), int(fields["layers"]), fields["mode"], fields.get("input", "linear"),
            fields.get("direction", "unidirectional"),
        )  # fmt: skip
        lengths = tuple(int(n) for n in fields["lengths"].split(",")) if "lengths" in fields else None
        specs = {name: Spec.parse(fields[name]) for name in INPUTS[op] if name in fields}
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
    network.check()
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


def plain_lengths(lengths: Any) -> tuple[int, ...] | None:
    """Lengths as a caller gives them (a list, an array of the host), as a tuple of integers; TypeError for anything
    else."""
    if lengths is None or (type(lengths) is tuple and all(type(n) is int for n in lengths)):
        return lengths
    values = lengths.tolist() if hasattr(lengths, "tolist") else lengths
    if not isinstance(values, list | tuple):
        raise TypeError(f"lengths: expected integers, one a batch entry, or None, got {lengths!r}")
    plain = []
    for n in values:
        if isinstance(n, bool) or not hasattr(n, "__index__"):
            raise TypeError(f"lengths: expected integers, got {n!r}")
        plain.append(n.__index__())
    return tuple(plain)


def reserve_size(problem: RnnProblem, device: int) -> int:
    """Elements of a reserve that any implementation on this device can use.

    Ours keep a cell's gates and every layer's y in the accumulator's type; cuDNN is asked.
    """
    n = problem.network
    wide = 2 if problem.dtype == "float16" else 1
    cells = n.num_layers * n.directions * problem.steps * problem.batch * n.hidden_size
    elements = wide * cells * (KEPT[n.rnn_mode] + 1) + 64
    if device >= 0:
        from numbadnn.cudnn import rnn

        elements = max(elements, -(-rnn.reserve_bytes(problem, device) // problem.inputs[0].itemsize))
    return elements


# ---- the operations --------------------------------------------------------------------------------------------------


@functools.cache
def builder(op: str, names: tuple[str, ...]) -> Callable[..., Request]:
    """The builder of calls that give these arrays: params are (network, dtype or "", lengths, keep, made_by)."""

    def build(views: list[View], out_views: list[View], params: tuple[Any, ...]) -> Request:
        network, dtype, lengths, keep, made_by = params
        if dtype and views[0].dtype != dtype:
            raise TypeError(f"w: expected the block's dtype {dtype}, got {views[0].dtype}")
        specs = dict(zip(names, (v.spec() for v in views), strict=True))
        problem = make(op, network, specs, lengths, 0, made_by)
        if keep:
            problem = make(op, network, specs, lengths, reserve_size(problem, views[0].device))
        return Request(_with_out(problem, out_views) if out_views else problem)

    return dispatch.operation(*names)(build)


def _with_out(problem: RnnProblem, out_views: list[View]) -> RnnProblem:
    if len(out_views) != len(problem.outputs):
        raise ValueError(f"out: expected a tuple of {len(problem.outputs)} arrays, got {len(out_views)}")
    for name, spec, view in zip(problem.result_names, problem.outputs, out_views, strict=True):
        if view.shape != spec.shape:
            raise ValueError(f"out: expected shape {spec.shape} for {name}, got {view.shape}")
        if view.dtype != spec.dtype:
            raise TypeError(f"out: expected dtype {spec.dtype} for {name}, got {view.dtype}")
    return replace(problem, outputs=tuple(v.spec() for v in out_views))


def rnn_forward(
    w: Any, x: Any, hx: Any, cx: Any = None, *, hidden_size: int, num_layers: int, rnn_mode: str,
    input_mode: str = "linear", direction_mode: str = "unidirectional", lengths: Any = None,
    backend: str | None = None, out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """(y, hy), for lstm (y, hy, cy), of a recurrent network with the flat parameters w: ``RNNBlock.apply`` as a
    function.

    x (time, batch, in), hx and cx (layers * directions, batch, hidden), all of w's dtype: float16, float32 or float64.
    ``out`` is a tuple of all results. Errors as ``RNNBlock``. Source: spec/semantics.md 1.8.

    >>> import numpy as np, numbadnn
    >>> one = np.ones((1, 1, 1))
    >>> w = np.array([2.0, 3.0, 0.0, 1.0])
    >>> numbadnn.rnn_forward(w, one, one, hidden_size=1, num_layers=1, rnn_mode="rnn_relu")[0]
    array([[[6.]]])
    """
    network = Network(hidden_size, num_layers, rnn_mode, input_mode, direction_mode)
    arrays = (w, x, hx) if cx is None else (w, x, hx, cx)
    build = builder("rnn_forward", INPUTS["rnn_forward"][: len(arrays)])
    return dispatch.call_any(build, arrays, (network, "", plain_lengths(lengths), False, ""), backend, out, stream)


def rnn_backward(
    w: Any, x: Any, hx: Any, *others: Any, given: Any = ("dy",), hidden_size: int, num_layers: int, rnn_mode: str,
    input_mode: str = "linear", direction_mode: str = "unidirectional", lengths: Any = None,
    backend: str | None = None, out: Any = None, stream: Any = None,
) -> Any:  # fmt: skip
    """(dw, dx, dhx), for lstm (dw, dx, dhx, dcx): the gradients of ``rnn_forward``, which is run again for them.

    ``given`` names ``others`` in their order, out of cx, dy, dhy, dcy; a gradient not given is zeros.
    ``RNNBlock.forward`` and ``backward`` do not run it again. Errors as ``RNNBlock``. Source: spec/semantics.md 1.8.

    >>> import numpy as np, numbadnn
    >>> one = np.ones((1, 1, 1))
    >>> w = np.array([2.0, 3.0, 0.0, 1.0])
    >>> numbadnn.rnn_backward(w, one, one, one, hidden_size=1, num_layers=1, rnn_mode="rnn_relu")[0]
    array([1., 1., 1., 1.])
    """
    network = Network(hidden_size, num_layers, rnn_mode, input_mode, direction_mode)
    named = dict(zip(given, others, strict=True))
    names = tuple(n for n in ("cx", "dy", "dhy", "dcy") if n in named)
    if len(names) != len(named):
        raise ValueError(f"given: expected names out of cx, dy, dhy, dcy, got {tuple(given)}")
    build = builder("rnn_backward", ("w", "x", "hx", *names))
    arrays = (w, x, hx, *(named[n] for n in names))
    return dispatch.call_any(build, arrays, (network, "", plain_lengths(lengths), False, ""), backend, out, stream)
