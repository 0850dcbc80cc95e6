"""Recurrent networks as ``torch.lstm``, ``torch.gru``, ``torch.rnn_tanh`` and ``torch.rnn_relu`` have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import numbadnn
from numbadnn.errors import NotSupportedError
from numbadnn.problems.rnn_network import GATES, Network
from numbadnn.torch import twin
from numbadnn.torch.arguments import flag, fold_in, integer, number, tensor, unfold
from numbadnn.torch.dropout import dropout as drop
from numbadnn.torch.library import Function, compute, define, in_force, saved

HOW = "int hidden_size, int num_layers, str mode, bool bidirectional"
DTYPES = (torch.float16, torch.float32, torch.float64)


# ---- the operators: flat parameters, as numbadnn.RNNBlock has them ---------------------------------------------------


def _network(hidden: int, layers: int, mode: str, bidirectional: bool) -> Network:
    return Network(hidden, layers, mode, "linear", "bidirectional" if bidirectional else "unidirectional")


def _named(how: Any) -> dict[str, Any]:
    n = _network(*how)
    return {
        "hidden_size": n.hidden_size, "num_layers": n.num_layers, "rnn_mode": n.rnn_mode, "direction_mode": n.direction_mode,
    }  # fmt: skip


def _run(w: Any, x: Any, hx: Any, cx: Any, *rest: Any) -> Any:
    *how, backend = rest
    found = numbadnn.rnn_forward(w, x, hx, cx, **_named(how), backend=backend)
    return found if cx is not None else (*found, hx.new_empty(0))


def _run_grad(w: Any, x: Any, hx: Any, cx: Any, dy: Any, dhy: Any, dcy: Any, *rest: Any) -> Any:
    *how, backend = rest
    named = {"cx": cx, "dy": dy, "dhy": dhy, "dcy": dcy} if cx is not None else {"dy": dy, "dhy": dhy}
    found = numbadnn.rnn_backward(w, x, hx, *named.values(), given=tuple(named), **_named(how), backend=backend)
    return found if cx is not None else (*found, hx.new_empty(0))


def _fake(w: Any, x: Any, hx: Any, cx: Any, hidden: Any, layers: Any, mode: Any, bidirectional: Any) -> Any:
    y = x.new_empty((*x.shape[:2], hidden * (2 if bidirectional else 1)))
    return y, hx.new_empty(hx.shape), hx.new_empty(0) if cx is None else cx.new_empty(cx.shape)


def _fake_grad(w: Any, x: Any, hx: Any, cx: Any, *_: Any) -> Any:
    return (*(t.new_empty(t.shape) for t in (w, x, hx)), hx.new_empty(0) if cx is None else cx.new_empty(cx.shape))


def _at(value: Any, dim: int | None, i: int) -> Any:
    return value if value is None or dim is None else value.select(dim, i)


def _in_turn(tensors: int) -> Any:
    def rule(op: Any, size: int, dims: Any, *given: Any) -> Any:
        rows = [
            op(*(_at(t, d, i) for t, d in zip(given[:tensors], dims, strict=False)), *given[tensors:])
            for i in range(size)
        ]
        return tuple(torch.stack(each) for each in zip(*rows, strict=True))

    return rule


def _fold(op: Any, size: int, dims: Any, w: Any, *given: Any) -> Any:
    """The mapped axis becomes part of the batch, unless the parameters are mapped."""
    if dims[0] is not None:
        return _in_turn(4)(op, size, dims, w, *given)
    whole = [None if t is None else fold_in(t, d, 1, size) for t, d in zip(given[:3], dims[1:4], strict=True)]
    y, h, c = op(w, *whole, *given[3:])
    return unfold(y, 1, size), unfold(h, 1, size), unfold(c, 1, size) if given[2] is not None else c.expand(size, 0)


RNN = define(
    "rnn", f"Tensor weights, Tensor input, Tensor hx, Tensor? cx, {HOW}", "(Tensor, Tensor, Tensor)", _run, _fake, _fold
)
RNN_GRAD = define(
    "rnn_grad",
    f"Tensor weights, Tensor input, Tensor hx, Tensor? cx, Tensor grad, Tensor grad_hy, Tensor? grad_cy, {HOW}",
    "(Tensor, Tensor, Tensor, Tensor)",
    _run_grad,
    _fake_grad,
    _in_turn(7),
)


# ---- gradients -------------------------------------------------------------------------------------------------------


@RNN.differentiated
class Rnn(Function):
    """(y, hy, cy), of which the last is empty where the network has no cells."""

    @staticmethod
    def forward(ctx: Any, w: Any, x: Any, hx: Any, cx: Any, how: Any) -> Any:
        ctx.how = how
        ctx.save_for_backward(w, x, hx, cx)
        return RNN((w, x, hx, cx), how)

    @staticmethod
    def backward(ctx: Any, dy: Any, dhy: Any, dcy: Any) -> Any:
        w, x, hx, cx = saved(ctx)
        given = w, x, hx, cx, dy, dhy, None if cx is None else dcy
        *found, dcx = compute(RNN_GRAD, given, ctx.how)
        return *found, None if cx is None else dcx, None


@RNN_GRAD.differentiated
class RnnGrad(Function):
    @staticmethod
    def forward(ctx: Any, w: Any, x: Any, hx: Any, cx: Any, dy: Any, dhy: Any, dcy: Any, how: Any) -> Any:
        given = w, x, hx, cx, dy, dhy, dcy
        ctx.how = how[:4]
        ctx.save_for_backward(*given)
        return RNN_GRAD(given, how)

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        w, x, hx, cx, dy, dhy, dcy = saved(ctx)
        if cx is None:
            gw, gx, gh, (gy, ghy) = twin.of_gradient(_by_torch(ctx.how), (w, x, hx), (dy, dhy), outer[:3])
            return gw, gx, gh, None, gy, ghy, None, None
        gw, gx, gh, gc, (gy, ghy, gcy) = twin.of_gradient(_by_torch(ctx.how), (w, x, hx, cx), (dy, dhy, dcy), outer)
        return gw, gx, gh, gc, gy, ghy, gcy, None


def _step(mode: str, from_x: Any, matrix: Any, bias: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
    from_h = state[0] @ matrix.T + bias
    if mode in ("rnn_relu", "rnn_tanh"):
        return ((torch.relu if mode == "rnn_relu" else torch.tanh)(from_x + from_h),)
    if mode == "lstm":
        i, f, g, o = (from_x + from_h).chunk(4, -1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    (xr, xz, xn), (hr, hz, hn) = from_x.chunk(3, -1), from_h.chunk(3, -1)
    z = (xz + hz).sigmoid()
    return ((1 - z) * (xn + (xr + hr).sigmoid() * hn).tanh() + z * state[0],)


def _by_torch(how: Any) -> Any:
    """The network in PyTorch's differentiable operations, step by step."""
    n = _network(*how)

    def function(w: Any, x: Any, *states: Any) -> Any:
        rows = n.gates * n.hidden_size
        ends: list[Any] = []
        lines: list[Any] = []
        for block, (at, r, b_w, b_r) in enumerate(n.blocks(x.shape[-1])[0]):
            layer, backwards = divmod(block, n.directions)
            if not backwards:
                below, lines = torch.cat(lines, -1) if layer else x, []
            width = n.in_dim(layer, x.shape[-1])
            from_x = below @ w[at : at + rows * width].view(rows, width).T + w[b_w : b_w + rows]
            matrix, bias = w[r : r + rows * n.hidden_size].view(rows, -1), w[b_r : b_r + rows]
            state, line = tuple(s[block] for s in states), []
            for t in reversed(range(x.shape[0])) if backwards else range(x.shape[0]):
                state = _step(n.rnn_mode, from_x[t], matrix, bias, state)
                line.append(state[0])
            lines.append(torch.stack(line[::-1] if backwards else line))
            ends.append(state)
        return torch.cat(lines, -1), *(torch.stack(each) for each in zip(*ends, strict=True))

    return function


# ---- functions -------------------------------------------------------------------------------------------------------


def _check(mode: str, input: Any, states: Any, params: Any, biases: bool, layers: int, bidirectional: bool) -> int:
    """The hidden size, after every check."""
    tensor("input", input)
    if input.dtype not in DTYPES:
        raise NotSupportedError(f"input: expected dtype float16, float32 or float64, got {input.dtype}", ())
    if input.ndim != 3:
        raise ValueError(f"input: expected (time, batch, in), or batch first, got shape {tuple(input.shape)}")
    directions = 2 if bidirectional else 1
    each = 4 if biases else 2
    if len(params) != layers * directions * each:
        raise ValueError(
            f"params: expected {layers * directions * each} tensors, {each} a layer and direction, got {len(params)}"
        )
    for i, value in enumerate(params):
        tensor(f"params[{i}]", value, input)
    hidden = params[1].shape[1]
    gates = GATES[mode]
    for i in range(0, len(params), each):
        width = input.shape[-1] if i // each < directions else hidden * directions
        wanted = [(gates * hidden, width), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,)][:each]
        for j, shape in enumerate(wanted):
            if tuple(params[i + j].shape) != shape:
                raise ValueError(
                    f"params[{i + j}]: expected shape {shape}, got {tuple(params[i + j].shape)} (projections are refused)"
                )
    for value in states:
        tensor("hx", value, input)
        if tuple(value.shape) != (layers * directions, input.shape[1], hidden):
            raise ValueError(
                f"hx: expected shape {(layers * directions, input.shape[1], hidden)}, got {tuple(value.shape)}"
            )
    return hidden


def _flat(params: Sequence[Any], biases: bool) -> torch.Tensor:
    """All matrices, then all biases, as numbadnn's networks have them."""
    each = 4 if biases else 2
    matrices = [p for i, p in enumerate(params) if i % each < 2]
    if biases:
        vectors = [p for i, p in enumerate(params) if i % each >= 2]
    else:
        vectors = [m.new_zeros(m.shape[0]) for m in matrices]
    return torch.cat([p.reshape(-1) for p in (*matrices, *vectors)])


def _recurrent(
    mode: str, input: Any, states: Any, params: Any, biases: bool, layers: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool, backend: Any, level: Any,
) -> tuple[Any, ...]:  # fmt: skip
    layers, dropout, train = integer("num_layers", layers), number("dropout", dropout), flag("train", train)
    biases, bidirectional = flag("has_biases", biases), flag("bidirectional", bidirectional)
    x = input.transpose(0, 1) if flag("batch_first", batch_first) else input
    hidden = _check(mode, x, states, params, biases, layers, bidirectional)
    how = in_force(backend, level)
    cells = states[1] if mode == "lstm" else None
    if not (dropout and train and layers > 1):
        y, h, c = _apply(_flat(params, biases), x, states[0], cells, hidden, layers, mode, bidirectional, *how)
        return y.transpose(0, 1) if batch_first else y, h, c
    directions = 2 if bidirectional else 1
    each, ends = len(params) // layers, []
    for layer in range(layers):
        rows = slice(layer * directions, (layer + 1) * directions)
        w = _flat(params[layer * each : (layer + 1) * each], biases)
        x = drop(x, dropout) if layer else x
        c = None if cells is None else cells[rows]
        x, *end = _apply(w, x, states[0][rows], c, hidden, 1, mode, bidirectional, *how)
        ends.append(end)
    h, c = (torch.cat(each_) for each_ in zip(*ends, strict=True))
    return x.transpose(0, 1) if batch_first else x, h, c


def _apply(w: Any, x: Any, hx: Any, cx: Any, *how: Any) -> Any:
    return compute(RNN, (w, x, hx, cx), how)


def lstm(
    input: torch.Tensor,
    hx: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool = True,
    num_layers: int = 1,
    dropout: float = 0.0,
    train: bool = False,
    bidirectional: bool = False,
    batch_first: bool = False,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``torch.lstm``: (y, hy, cy) for input (time, batch, in), hx = (h, c) and the parameters in ``torch.nn.LSTM``'s order.

    float16, float32, float64; projections are refused. The gradient runs the network once more. Under autocast nothing is cast.

    >>> import torch, numbadnn.torch
    >>> network = torch.nn.LSTM(3, 4, num_layers=2)
    >>> state = torch.zeros(2, 5, 4)
    >>> numbadnn.torch.lstm(torch.ones(6, 5, 3), (state, state), network._flat_weights, num_layers=2)[0].shape
    torch.Size([6, 5, 4])
    """
    if not isinstance(hx, tuple | list) or len(hx) != 2:
        raise TypeError(f"hx: expected (h, c), got {type(hx).__name__}")
    how = has_biases, num_layers, dropout, train, bidirectional, batch_first, backend, determinism
    y, h, c = _recurrent("lstm", input, hx, params, *how)
    return y, h, c


def gru(
    input: torch.Tensor,
    hx: torch.Tensor,
    params: Sequence[torch.Tensor],
    has_biases: bool = True,
    num_layers: int = 1,
    dropout: float = 0.0,
    train: bool = False,
    bidirectional: bool = False,
    batch_first: bool = False,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``torch.gru``: (y, hy); the rest as ``lstm``.

    >>> import torch, numbadnn.torch
    >>> network = torch.nn.GRU(3, 4)
    >>> numbadnn.torch.gru(torch.ones(6, 5, 3), torch.zeros(1, 5, 4), network._flat_weights)[1].shape
    torch.Size([1, 5, 4])
    """
    how = has_biases, num_layers, dropout, train, bidirectional, batch_first, backend, determinism
    y, h, _ = _recurrent("gru", input, (hx,), params, *how)
    return y, h


def rnn_tanh(
    input: torch.Tensor,
    hx: torch.Tensor,
    params: Sequence[torch.Tensor],
    has_biases: bool = True,
    num_layers: int = 1,
    dropout: float = 0.0,
    train: bool = False,
    bidirectional: bool = False,
    batch_first: bool = False,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``torch.rnn_tanh``: (y, hy); the rest as ``lstm``.

    >>> import torch, numbadnn.torch
    >>> network = torch.nn.RNN(3, 4)
    >>> numbadnn.torch.rnn_tanh(torch.ones(6, 5, 3), torch.zeros(1, 5, 4), network._flat_weights)[1].shape
    torch.Size([1, 5, 4])
    """
    how = has_biases, num_layers, dropout, train, bidirectional, batch_first, backend, determinism
    y, h, _ = _recurrent("rnn_tanh", input, (hx,), params, *how)
    return y, h


def rnn_relu(
    input: torch.Tensor,
    hx: torch.Tensor,
    params: Sequence[torch.Tensor],
    has_biases: bool = True,
    num_layers: int = 1,
    dropout: float = 0.0,
    train: bool = False,
    bidirectional: bool = False,
    batch_first: bool = False,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``torch.rnn_relu``: (y, hy); the rest as ``lstm``.

    >>> import torch, numbadnn.torch
    >>> network = torch.nn.RNN(3, 4, nonlinearity="relu")
    >>> numbadnn.torch.rnn_relu(torch.ones(6, 5, 3), torch.zeros(1, 5, 4), network._flat_weights)[1].shape
    torch.Size([1, 5, 4])
    """
    how = has_biases, num_layers, dropout, train, bidirectional, batch_first, backend, determinism
    y, h, _ = _recurrent("rnn_relu", input, (hx,), params, *how)
    return y, h
