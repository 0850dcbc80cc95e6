"""The steps of a recurrent layer: all in one launch where ``persist.py`` takes them, else one launch a step of
``device/step.py``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.rnn import persist as rnn_persist
from numbadnn.problem import ITEMSIZE
from numbadnn.problems.rnn_network import GATES

TILE, THREADS = 16, 256
#: lengths that one launch carries as parameters
LENGTHS = 16

_FORWARD = "ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr i32 i32 i32 i32 i32 i32 i64 i64 i64"
_BACKWARD = "ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr i32 i32 i32 i32 i32 i32 i64 i64 i64 i64 i64 i64"
_PARAMETERS = {
    "forward": _FORWARD,
    "backward": _BACKWARD,
    "totals": "ptr ptr i32 i32 i32",
    "biases": "ptr ptr ptr i32 i32 i32",
    "lengths": f"ptr i32 i32 i32*{LENGTHS}",
    "sums_of_gates": "ptr ptr i64 i32 i32 i32",
    "spread": "ptr ptr i64 i32",
    "states_before": "ptr ptr ptr ptr i64 i32 i32 i32 i32 i32 i32",
    "within": "ptr ptr ptr i64 i32 i32",
}


@functools.cache
def kernel(what: str, mode: str, dtype: str, has_lengths: bool = False) -> Kernel:
    """One of the kernels of ``device/step.py`` and ``device/around.py`` for a mode and a type."""
    acc = "float64" if dtype == "float64" else "float32"
    every = {
        "forward": (mode, dtype, acc, has_lengths),
        "backward": (mode, dtype, acc, has_lengths),
        "lengths": (LENGTHS,),
        "totals": (dtype, acc),
        "biases": (dtype, acc, mode == "gru"),
        "states_before": (dtype, has_lengths),
        "within": (dtype,),
    }
    arguments = every[what] if what in every else (dtype, acc, GATES[mode])
    made_by = f"rnn.device.{'step' if what in ('forward', 'backward') else 'around'}.{what}"
    return Kernel.of(f"rnn_{what}", made_by, arguments, _PARAMETERS[what], THREADS)


def _grid(s: Any) -> tuple[int, int, int]:
    return -(-s.hidden // TILE), -(-s.batch // TILE), 1


def _times(s: Any, direction: int) -> range:
    return range(s.steps - 1, -1, -1) if direction else range(s.steps)


def forward(s: Any, index: int, offsets: tuple[int, ...], keeps: bool) -> Callable[..., None]:
    """``steps(stream, w, gates, cells, y, hx, cx, hy, cy, lengths, scratch)``: a pseudo-layer, whose W x is in
    ``gates``."""
    direction = index % s.problem.network.directions
    chosen_persist = rnn_persist.choose(s, False, keeps)
    if chosen_persist and s.aligned(offsets[1]):
        scalars: tuple[Any, ...] = (s.steps, s.batch, s.width, direction * s.hidden, direction, *offsets[1:])
        return rnn_persist.prepare(s, "forward", *chosen_persist, scalars)
    chosen = kernel("forward", s.problem.network.rnn_mode, s.dtype, s.problem.lengths is not None)
    scalars = (s.steps, s.batch, s.hidden, s.width, direction * s.hidden, direction, *offsets[1:])
    direct = chosen.prepare(s.device, _grid(s), (THREADS, 1, 1), scalars).direct
    times = _times(s, direction)

    def steps(stream: int, *addresses: int) -> None:
        for t in times:
            direct(stream, *addresses[:-1], t)

    return steps


def backward(s: Any, index: int, offsets: tuple[int, ...], kept: Any, space: Any) -> Callable[..., None]:
    """``steps(stream, w, kept, y, hx, cx, dy, dhy, dcy, space, dhx, dcx)``: the gradients under the gates, and of hx
    and cx."""
    direction = index % s.problem.network.directions
    chosen_persist = rnn_persist.choose(s, True)
    if chosen_persist and s.aligned(offsets[1]):
        numbers: tuple[Any, ...] = (
            s.steps, s.batch, s.width, direction * s.hidden, direction, offsets[1], kept.at["gates", index],
            kept.at["cells", index], space.at["da"], space.at["lengths"],
        )  # fmt: skip
        run = rnn_persist.prepare(s, "backward", *chosen_persist, numbers)
        at_space, at_counters = 8, space.at["steps"]
        return lambda stream, *addresses: run(stream, *addresses, addresses[at_space] + at_counters)
    chosen = kernel("backward", s.problem.network.rnn_mode, s.dtype, s.problem.lengths is not None)
    scalars = (
        s.steps, s.batch, s.hidden, s.width, direction * s.hidden, direction, offsets[1], kept.at["gates", index],
        kept.at["cells", index], space.at["da"], space.at["carry"], space.at["lengths"],
    )  # fmt: skip
    direct = chosen.prepare(s.device, _grid(s), (THREADS, 1, 1), scalars).direct
    times = [*reversed(_times(s, direction)), s.steps if direction else -1]

    def steps(stream: int, *addresses: int) -> None:
        for t in times:
            direct(stream, *addresses, t)

    return steps


def states_before(s: Any, direction: int) -> Callable[..., None]:
    """``run(stream, y, hx, target, lengths)``: h at the beginning of each step, packed."""
    chosen = kernel("states_before", "", s.dtype, s.problem.lengths is not None)
    count = s.many * s.hidden
    scalars = (count, s.steps, s.batch, s.hidden, s.width, direction * s.hidden, direction)
    launch = chosen.prepare(s.device, blocks(count, THREADS), (THREADS, 1, 1), scalars)
    return launch.direct


def within(s: Any) -> Callable[..., None]:
    """``run(stream, x, target, lengths)``: x, and 0 past the ends of sequences."""
    width = s.in_dim(0)
    count = s.many * width
    chosen = kernel("within", "", s.dtype)
    return chosen.prepare(s.device, blocks(count, THREADS), (THREADS, 1, 1), (count, s.batch, width)).direct


def write_lengths(s: Any) -> Callable[[int, int], None]:
    """``run(stream, table)``: the lengths as a table in device memory, if the problem has any."""
    lengths = s.problem.lengths
    if lengths is None:
        return lambda stream, table: None
    launches = []
    for first in range(0, len(lengths), LENGTHS):
        part = lengths[first : first + LENGTHS]
        scalars = (first, len(part), (*part, *[0] * (LENGTHS - len(part))))
        launches.append(kernel("lengths", "", "float32").prepare(s.device, (1, 1, 1), (32, 1, 1), scalars))

    def run(stream: int, table: int) -> None:
        for launch in launches:
            launch(stream, table)

    return run


def describe(s: Any, backward: bool) -> str:
    """How the steps are run, for explain."""
    chosen = rnn_persist.choose(s, backward)
    return (
        f"all in one launch, {chosen[0].rows} sequences x {chosen[0].units} units a block"
        if chosen
        else "one launch a step"
    )


def kernels() -> Iterator[Kernel]:
    """Each mode and type once in either direction of the pass, and what stands around the steps."""
    dtypes = ("float16", "float32", "float64")
    for i, mode in enumerate(GATES):
        yield kernel(("forward", "backward")[i % 2], mode, dtypes[i % 3], i % 2 == 0)
        dtype, rows, units = (("float16", 32, 8), ("float32", 16, 16))[i // 2 % 2 ^ i % 2]
        yield rnn_persist.kernel(
            ("backward", "forward")[i % 2], rnn_persist.Persist(mode, dtype, 512, rows, units, i % 2 == 1)
        )
    yield kernel("totals", "lstm", "float16")
    yield kernel("biases", "gru", "float16")
    yield kernel("lengths", "", "float32")
    yield kernel("states_before", "", "float16", True)
    yield kernel("within", "", "float16")


__all__ = [
    "ITEMSIZE",
    "backward",
    "describe",
    "forward",
    "kernel",
    "kernels",
    "states_before",
    "within",
    "write_lengths",
]
