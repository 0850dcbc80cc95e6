"""Recurrent networks in JAX: LSTM, GRU and plain ones, with the flat parameters of ``numbadnn.RNNBlock``."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from numbadnn.config import Options
from numbadnn.jax.call import Work, compute
from numbadnn.jax.mapped import arrays_of, fold_in, mapped, options_in_force, same_dtype, spread, twice, unfold
from numbadnn.problems.rnn_network import Network


@dataclass(frozen=True)
class Recurrent:
    network: Network
    backend: str | None
    options: Options

    @property
    def states(self) -> int:
        """Arrays of state: h, of an LSTM c too."""
        return 2 if self.network.has_cell else 1

    def work(self, backward: bool) -> Work:
        n = self.network
        arguments: dict[str, Any] = {
            "hidden_size": n.hidden_size, "num_layers": n.num_layers, "rnn_mode": n.rnn_mode,
            "input_mode": n.input_mode, "direction_mode": n.direction_mode,
        }  # fmt: skip
        arrays, results = 2 + self.states, 1 + self.states
        if backward:
            arguments["given"] = ("cx", "dy", "dhy", "dcy") if n.has_cell else ("dy", "dhy")
            arrays, results = arrays + 1 + self.states, 2 + self.states
        given = tuple(sorted(arguments.items()))
        name = "rnn_backward" if backward else "rnn_forward"
        return Work(name, (None,) * arrays, (None,) * results, given, self.backend, self.options)


def _fold(function: Any, static: Recurrent, size: int, batched: tuple[bool, ...], arrays: Any) -> Any:
    """The mapped axis becomes part of the batch, unless the parameters are mapped."""
    if batched[0]:
        return None
    whole = [fold_in(spread(a, size, b), 1) for a, b in zip(arrays[1:], batched[1:], strict=True)]
    return tuple(unfold(r, 1, size) for r in function(static, arrays[0], *whole))


_forward = mapped(lambda s, *arrays: compute(s.work(False), *arrays), _fold)
#: the gradient of the parameters is wanted of each of the mapped sequences
_backward = mapped(lambda s, *arrays: compute(s.work(True), *arrays), lambda *_: None)


def _step(mode: str, from_x: Any, r: Any, bias: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
    h = state[0]
    from_h = h @ r.T + bias
    if mode in ("rnn_relu", "rnn_tanh"):
        return ((jax.nn.relu if mode == "rnn_relu" else jnp.tanh)(from_x + from_h),)
    if mode == "lstm":
        i, f, g, o = jnp.split(from_x + from_h, 4, -1)
        c = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c
    (xr, xz, xn), (hr, hz, hn) = jnp.split(from_x, 3, -1), jnp.split(from_h, 3, -1)
    z = jax.nn.sigmoid(xz + hz)
    return ((1 - z) * jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * hn) + z * h,)


def _by_jax(static: Recurrent, w: Any, x: Any, *states: Any) -> tuple[Any, ...]:
    """The same for JAX to derive: gradients of gradients."""
    n = static.network
    blocks, rows = n.blocks(x.shape[-1])[0], n.gates * n.hidden_size
    ends: list[tuple[Any, ...]] = []
    lines: list[Any] = []
    for number, (at, r, b_w, b_r) in enumerate(blocks):
        layer, backwards = divmod(number, n.directions)
        if not backwards:
            below, lines = jnp.concatenate(lines, -1) if layer else x, []
        width = n.in_dim(layer, x.shape[-1])
        from_x = jnp.tile(below, n.gates) if at < 0 else below @ w[at : at + rows * width].reshape(rows, width).T
        from_x = from_x + w[b_w : b_w + rows]
        matrix, bias = w[r : r + rows * n.hidden_size].reshape(rows, -1), w[b_r : b_r + rows]

        def advance(state: Any, now: Any, matrix: Any = matrix, bias: Any = bias) -> Any:
            new = _step(n.rnn_mode, now, matrix, bias, state)
            return new, new[0]

        end, line = jax.lax.scan(advance, tuple(s[number] for s in states), from_x, reverse=bool(backwards))
        lines.append(line)
        ends.append(end)
    return jnp.concatenate(lines, -1), *(jnp.stack(each) for each in zip(*ends, strict=True))


def _gradient_twin(static: Recurrent, w: Any, x: Any, *rest: Any) -> Any:
    states, cotangents = rest[: static.states], rest[static.states :]
    return jax.vjp(functools.partial(_by_jax, static), w, x, *states)[1](tuple(cotangents))


_backward_of_all = twice(_backward, _gradient_twin)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def apply(static: Recurrent, w: Any, x: Any, *states: Any) -> Any:
    return _forward(static, w, x, *states)


apply.defvjp(
    lambda static, *arrays: (apply(static, *arrays), arrays),
    lambda static, arrays, cotangents: _backward_of_all(static, *arrays, *cotangents),
)
_jitted = jax.jit(apply, static_argnums=0)


def rnn(
    w: Any,
    x: Any,
    hx: Any,
    cx: Any = None,
    *,
    hidden_size: int,
    num_layers: int,
    rnn_mode: str,
    input_mode: str = "linear",
    direction_mode: str = "unidirectional",
    backend: str | None = None,
    determinism: str | None = None,
) -> tuple[jax.Array, ...]:
    """(y, hy), of an LSTM (y, hy, cy): ``numbadnn.rnn_forward``. Its gradient runs the network once more.

    w: the flat parameters of ``numbadnn.RNNBlock``; x (time, batch, in); hx and cx (layers * directions, batch, hidden). Under
    ``vmap`` more sequences are a larger batch; mapped parameters follow each other.

    >>> import jax.numpy as jnp, numbadnn.jax
    >>> one, w = jnp.ones((1, 1, 1)), jnp.array([2.0, 3.0, 0.0, 1.0])
    >>> numbadnn.jax.rnn(w, one, one, hidden_size=1, num_layers=1, rnn_mode="rnn_relu")[0].item()
    6.0
    """
    network = Network(hidden_size, num_layers, rnn_mode, input_mode, direction_mode).check()
    if network.has_cell != (cx is not None):
        raise ValueError(f"cx: expected {'an array' if network.has_cell else 'None'} for {rnn_mode}, got {cx!r}")
    named = {"w": w, "x": x, "hx": hx} | ({"cx": cx} if network.has_cell else {})
    arrays = arrays_of(**named)
    same_dtype(**dict(zip(named, arrays, strict=True)))
    return _jitted(Recurrent(network, *options_in_force(backend, determinism)), *arrays)
