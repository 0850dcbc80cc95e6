"""The two passes of a recurrent network on the GPU, bound into one callable each.

What grows with time is done at once by ``gemm``: W x before the steps of a layer, dW, dR and dx after those of its
gradient. The steps themselves go through ``steps.py``: one launch each, or all of them in one where the state fits the
GPU.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.build.launch import blocks
from numbadnn.kernels.rnn import steps as rnn_steps
from numbadnn.kernels.rnn.sizes import Memory, Sizes

THREADS = 256

# ---- forward ---------------------------------------------------------------------------------------------------------


def plan_forward(s: Sizes, kept: Memory, keeps: bool) -> Callable[..., None]:
    """``run(stream, w, x, hx, cx, y, hy, cy, kept, lengths, scratch)``: addresses, 0 for what is absent."""
    n = s.problem.network
    blocks_of_w, _ = n.blocks(s.problem.input_dim)
    plans = []
    for index, offsets in enumerate(blocks_of_w):
        layer = index // n.directions
        product = _input_product(s, layer, offsets[0])
        plans.append((layer, index % n.directions, offsets[0], product, rnn_steps.forward(s, index, offsets, keeps)))
    state = s.batch * s.hidden * s.size

    def run(
        stream: int, w: int, x: int, hx: int, cx: int, y: int, hy: int, cy: int, memory: int, lengths: int, scratch: int
    ) -> None:
        def y_of(layer: int) -> int:
            return y if layer == n.num_layers - 1 else memory + kept.at["y", layer]

        for index, (layer, _, at_w, product, steps) in enumerate(plans):
            gates, cells = memory + kept.at["gates", index], memory + kept.at["cells", index]
            product(stream, y_of(layer - 1) if layer else x, w + max(at_w, 0) * s.size, gates)
            more = index * state
            steps(
                stream, w, gates, cells, y_of(layer), hx + more, cx and cx + more, hy and hy + more, cy and cy + more,
                lengths, scratch,
            )  # fmt: skip

    return run


def _input_product(s: Sizes, layer: int, at_w: int) -> Callable[..., None]:
    """``product(stream, source, w, gates)``: W x of all steps."""
    width = s.in_dim(layer)
    if at_w < 0:
        count = s.many * s.hidden
        kernel = rnn_steps.kernel("spread", s.problem.network.rnn_mode, s.dtype)
        launch = kernel.prepare(s.device, blocks(count, THREADS), (THREADS, 1, 1), (count, s.hidden))
        return lambda stream, source, w, gates: launch(stream, source, gates)
    return s.gemm(s.many, s.rows, width, b_strides=(1, width), out=s.acc, aligned=(True, s.aligned(at_w), True))


# ---- backward --------------------------------------------------------------------------------------------------------


def plan_backward(s: Sizes, kept: Memory, space: Memory) -> Callable[..., None]:
    """``run(stream, w, x, hx, cx, y, dy, dhy, dcy, dw, dx, dhx, dcx, kept, space)``: addresses, 0 for what is
    absent."""
    n = s.problem.network
    blocks_of_w, _ = n.blocks(s.problem.input_dim)
    plans = [_plan_layer_grad(s, kept, space, index, offsets) for index, offsets in enumerate(blocks_of_w)]
    clear = rnn_steps.within(s) if s.clears else None

    def run(
        stream: int, w: int, x: int, hx: int, cx: int, y: int, dy: int, dhy: int, dcy: int, dw: int, dx: int, dhx: int,
        dcx: int, memory: int, scratch: int,
    ) -> None:  # fmt: skip
        def y_of(layer: int) -> int:
            return y if layer == n.num_layers - 1 else memory + kept.at["y", layer]

        if clear:
            clear(stream, x, scratch + space.at["x"], scratch + space.at["lengths"])
            x = scratch + space.at["x"]
        for layer in range(n.num_layers - 1, -1, -1):
            target = scratch + space.at["dx", (layer - 1) % 2] if layer else dx
            source = y_of(layer - 1) if layer else x
            for index in range(layer * n.directions, (layer + 1) * n.directions):
                plans[index](
                    stream, w, source, hx, cx, y_of(layer), dy, dhy, dcy, dw, target, dhx, dcx, memory, scratch
                )
            dy = target

    return run


def _plan_layer_grad(
    s: Sizes, kept: Memory, space: Memory, index: int, offsets: tuple[int, ...]
) -> Callable[..., None]:
    n = s.problem.network
    layer, direction = divmod(index, n.directions)
    at_w, at_r, at_bw, at_br = offsets
    steps = rnn_steps.backward(s, index, offsets, kept, space)
    before = rnn_steps.states_before(s, direction)
    state, size = s.batch * s.hidden * s.size, s.size
    da_at, before_at = space.at["da"], space.at["before"]
    inputs = _input_gradients(s, layer, direction, at_w)
    recurrent = _recurrent_gradients(s, at_r)
    biases = _bias_gradients(s, space.at["parts"], at_bw, at_br)

    def run(
        stream: int, w: int, source: int, hx: int, cx: int, y: int, dy: int, dhy: int, dcy: int, dw: int, dx: int,
        dhx: int, dcx: int, memory: int, scratch: int,
    ) -> None:  # fmt: skip
        more, da = index * state, scratch + da_at
        steps(
            stream, w, memory, y, hx + more, cx and cx + more, dy, dhy and dhy + more, dcy and dcy + more, scratch,
            dhx + more, dcx and dcx + more,
        )  # fmt: skip
        before(stream, y, hx + more, scratch + before_at, scratch + space.at["lengths"])
        inputs(stream, w + max(at_w, 0) * size, source, da, dw + max(at_w, 0) * size, dx)
        recurrent(stream, da, scratch + before_at, dw + at_r * size)
        biases(stream, da, scratch, dw)

    return run


def _input_gradients(s: Sizes, layer: int, direction: int, at_w: int) -> Callable[..., None]:
    """``run(stream, w, source, da, dw, dx)``: dW, and this direction's part of dx."""
    width, pitch, first = s.in_dim(layer), s.held * s.hidden, direction == 0
    if at_w < 0:
        count = s.many * s.hidden
        kernel = rnn_steps.kernel("sums_of_gates", s.problem.network.rnn_mode, s.dtype)
        scalars = (count, s.hidden, pitch, 0 if first else 1)
        launch = kernel.prepare(s.device, blocks(count, THREADS), (THREADS, 1, 1), scalars)
        return lambda stream, w, source, da, dw, dx: launch(stream, da, dx)
    aligned = s.aligned(at_w)
    to_w = s.gemm(s.rows, width, s.many, a_strides=(1, pitch), b_strides=(width, 1), aligned=(True, True, aligned))
    to_x = s.gemm(
        s.many, width, s.rows, a_strides=(pitch, 1), beta=0.0 if first else 1.0, aligned=(True, aligned, True)
    )

    def run(stream: int, w: int, source: int, da: int, dw: int, dx: int) -> None:
        to_w(stream, da, source, dw)
        to_x(stream, da, w, dx)

    return run


def _recurrent_gradients(s: Sizes, at_r: int) -> Callable[..., None]:
    """``run(stream, da, before, dr)``: dR; gru's last gate has a slot of its own."""
    H, pitch, gru = s.hidden, s.held * s.hidden, s.problem.network.rnn_mode == "gru"

    def product(rows: int, slot: int, row: int) -> Callable[..., None]:
        aligned = (s.aligned(slot * H), True, s.aligned(at_r + row * H))
        return s.gemm(rows, H, s.many, a_strides=(1, pitch), b_strides=(H, 1), aligned=aligned)

    if not gru:
        return product(s.rows, 0, 0)
    first, last = product(2 * H, 0, 0), product(H, 3, 2 * H)
    to_da, to_dr = 3 * H * s.size, 2 * H * H * s.size

    def run(stream: int, da: int, before: int, dr: int) -> None:
        first(stream, da, before, dr)
        last(stream, da + to_da, before, dr + to_dr)

    return run


def _bias_gradients(s: Sizes, at_parts: int, at_bw: int, at_br: int) -> Callable[..., None]:
    """``run(stream, da, scratch, dw)``: the columns' sums, a part of the rows at a time, then of the parts."""
    mode, columns, (count, chunk) = s.problem.network.rnn_mode, s.held * s.hidden, s.parts
    grid = (-(-columns // 32), count, 1)
    totals = rnn_steps.kernel("totals", mode, s.dtype).prepare(
        s.device, grid, (THREADS, 1, 1), (s.many, columns, chunk)
    )
    biases = rnn_steps.kernel("biases", mode, s.dtype).prepare(
        s.device, blocks(columns, THREADS), (THREADS, 1, 1), (count, columns, s.hidden)
    )

    def run(stream: int, da: int, scratch: int, dw: int) -> None:
        totals(stream, da, scratch + at_parts)
        biases(stream, scratch + at_parts, dw + at_bw * s.size, dw + at_br * s.size)

    return run
