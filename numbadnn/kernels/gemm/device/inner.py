"""The innermost part of a matrix product: a thread's share of one pair of tiles in shared memory, written out as one run of code.

``multiply(sums, shared, a_at, b_at)`` adds ``depth`` terms. A tile lies in shared memory as its operand lies in memory: packed
along k ([row][k]) or along its rows ([k][row]). Every address is the thread's own plus a constant, and the next values are read
while the last are multiplied: that is why no loop is left, and why this is an intrinsic. Terms are added in the order of k.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels.gemm.problem import Tile
from numbadnn.kernels.lang.cuda import SIMULATED, i32
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted
from numbadnn.kernels.lang.llvm import _DOUBLE, _FLOAT, _I32, _asm
from numbadnn.kernels.lang.mma import _multiply, _product_twin

#: reads of a that are under way
AHEAD = 3


@functools.cache
def by_threads(acc: str, tall: int, wide: int, depth: int, a: Tile, b: Tile) -> Callable[..., None]:
    """A thread multiplies ``tall`` x ``wide`` numbers by fused multiply-adds, with reads of 16 bytes.

    b's numbers stay in registers for a whole group of terms. Where b is packed along k, each of its reads gives several terms of
    one row: there are registers for groups of half the terms alone, and reads of 8 bytes.
    """
    if SIMULATED:
        return functools.partial(_threads_twin, tall, wide, depth, a, b)
    real = _FLOAT if acc == "float32" else _DOUBLE
    count = 4 if acc == "float32" else 2  # numbers of 16 bytes
    group = count // 2 if b.along_k else count
    a_groups, b_groups = _reads(a, tall, depth, count, group), _reads(b, wide, depth, count, group)
    units = [(number, read) for number, reads in enumerate(a_groups) for read in reads]
    each = -(-len(b_groups[0]) * 2 // len(a_groups[0]))  # reads of the next group of b, in the second half of each

    def emit(builder: Any, sums: list[Any], a_place: Any, b_place: Any) -> None:
        # neighbouring groups are read from places that look different, or their reads would be joined to longer ones
        a_at, b_at = ([p, _hidden(builder, p) if group < count else p] for p in (a_place, b_place))
        a_values: dict[tuple[int, int], Any] = {}
        b_values: dict[tuple[int, int], Any] = {}
        for read in b_groups[0]:
            b_values |= _read(builder, real, b_at[0], *read)
        for number, read in units[:AHEAD]:
            a_values |= _read(builder, real, a_at[number % 2], *read)
        waiting = [(number, read) for number, reads in enumerate(b_groups) for read in reads if number]
        for done, (number, (_, given)) in enumerate(units):
            for later, read in units[done + AHEAD : done + AHEAD + 1]:
                a_values |= _read(builder, real, a_at[later % 2], *read)
            if done % len(a_groups[0]) >= len(a_groups[0]) // 2:
                soon = [w for w in waiting if w[0] == number + 1][:each]
                waiting = [w for w in waiting if w not in soon]
                for later, read in soon:
                    b_values |= _read(builder, real, b_at[later % 2], *read)
            for row, k in given:
                value = a_values.pop((row, k))
                for column in range(wide):
                    at = row * wide + column
                    sums[at] = builder.fma(value, b_values[column, k], sums[at])

    return _intrinsic(acc, tall * wide, emit)


#: an access of shared memory: its place, and the (row, term) of each number that it gives
Read = tuple[int, list[tuple[int, int]]]


def _reads(tile: Tile, rows: int, depth: int, count: int, group: int) -> list[list[Read]]:
    """For each ``group`` of terms the reads in their order."""
    groups = []
    for begin in range(0, depth, group):
        if tile.along_k:
            reads = [(tile.at(r, begin), [(r, begin + e) for e in range(group)]) for r in range(rows)]
        else:
            reads = [
                (tile.at(r, k), [(r + e, k) for e in range(count)])
                for k in range(begin, begin + group)
                for r in range(0, rows, count)
            ]
        groups.append(reads)
    return groups


def _hidden(builder: Any, place: Any) -> Any:
    """The same place, which compilers cannot know: blocks have one row of threads."""
    row = _asm(builder, "mov.u32 $0, %tid.y;", "=r", _I32, [])
    number = builder.add(builder.ptrtoint(place, ir.IntType(64)), builder.zext(row, ir.IntType(64)))
    return builder.inttoptr(number, place.type)


def _read(builder: Any, real: Any, place: Any, at: int, what: list[tuple[int, int]]) -> dict[tuple[int, int], Any]:
    """One access of shared memory: (row, term) -> value."""
    size = 4 if real is _FLOAT else 8
    start = builder.gep(place, [ir.Constant(ir.IntType(64), at)], inbounds=True)
    if len(what) == 1:
        value = builder.load(start)
        value.align = size
        return {what[0]: value}
    vector = builder.load(builder.bitcast(start, ir.PointerType(ir.VectorType(real, len(what)), 3)))
    vector.align = size * len(what)
    return {key: builder.extract_element(vector, ir.Constant(_I32, e)) for e, key in enumerate(what)}


def _intrinsic(acc: str, count: int, emit: Callable[..., None]) -> Callable[..., None]:
    """``emit`` as a device function of (sums, shared, a_at, b_at); sums become values and are written back at the end."""

    @emitted(None, ARRAY, ARRAY, i32, i32)
    def multiply(builder, sums, shared, a_at, b_at):
        real, zero = _DOUBLE if acc == "float64" else _FLOAT, ir.Constant(_I32, 0)
        slots = [sums.slot(zero, i) for i in range(count)]
        values = [builder.load(slot) for slot in slots]
        places = [builder.addrspacecast(shared.slot(at, 0), ir.PointerType(real, 3)) for at in (a_at, b_at)]
        emit(builder, values, *places)
        for slot, value in zip(slots, values, strict=True):
            builder.store(value, slot)

    return multiply


@functools.cache
def by_warps(
    kind: str, tall: int, wide: int, depth: int, terms: int, whole: bool, a: Tile, b: Tile
) -> Callable[..., None]:
    """A warp multiplies ``tall`` x ``wide`` numbers by instructions of 16 x 8 x ``terms``; the runs are 16 and 8 long.

    A thread's own place is that of its (lane // 4)-th row and (lane % 4)-th term; sums[4*(i*wide//8 + j):] belong to the
    i-th run of a and the j-th of b.
    """
    if SIMULATED:
        return functools.partial(_warps_twin, kind, tall, wide, depth, terms, a, b)
    real = _FLOAT if kind == "tf32" else _DOUBLE
    code, name = ("f", f"mma.sync.aligned.m16n8k{terms}.row.col.f32.tf32.tf32.f32") if kind == "tf32" else (
        "d", f"mma.sync.aligned.m16n8k{terms}.row.col.f64.f64.f64.f64")  # fmt: skip
    across, down = wide // 8, tall // 16
    a_places, b_places = _fragment(a, terms, 16), _fragment(b, terms, 8)

    def emit(builder: Any, sums: list[Any], a_place: Any, b_place: Any) -> None:
        def fetch(place: Any, tile: Tile, places: list[tuple[int, int]], block: int, rows: int, step: int) -> list[Any]:
            found = []
            for row, k in places:
                at = tile.at(block * rows, step * terms) + tile.at(row, k)
                value = _read(builder, real, place, at, [(row, k)])[row, k]
                found.append(_tf32(builder, value) if kind == "tf32" else value)
            return found

        order = [(step, i) for step in range(depth // terms) for i in range(down)]
        waiting = [fetch(a_place, a, a_places, i, 16, step) for step, i in order[:1]]
        b_held = [fetch(b_place, b, b_places, j, 8, 0) for j in range(across)]
        b_next: list[Any] = []
        for number, (step, i) in enumerate(order):
            if number + 1 < len(order):
                later, block = order[number + 1]
                waiting.append(fetch(a_place, a, a_places, block, 16, later))
            if i == down - 1 and step + 1 < depth // terms:
                b_next = [fetch(b_place, b, b_places, j, 8, step + 1) for j in range(across)]
            held = waiting.pop(0)
            for j in range(across):
                at = (i * across + j) * 4
                sums[at : at + 4] = _warp_product(builder, name, code, real, whole, sums[at : at + 4], held, b_held[j])
            if i == down - 1:
                b_held = b_next

    return _intrinsic("float32" if kind == "tf32" else "float64", tall * wide // 32, emit)


def _fragment(tile: Tile, terms: int, rows: int) -> list[tuple[int, int]]:
    """(row, term) of the numbers that a lane gives to one instruction, from its own place on."""
    return [(row, k) for k in range(0, terms, 4) for row in range(0, rows, 8)]


def _tf32(builder: Any, value: Any) -> Any:
    return _asm(builder, "cvt.rna.tf32.f32 $0, $1;", "=r,f", _I32, [value])


def _warp_product(
    builder: Any, name: str, code: str, real: Any, whole: bool, c: list[Any], a: list[Any], b: list[Any]
) -> list[Any]:
    """One instruction, or several of four terms where there is no longer one."""
    if whole:
        return _multiply(builder, name, code, "r" if code == "f" else code, real, c, a, b)
    part = "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64"
    for k, right in enumerate(b):
        upper = _multiply(builder, part, "d", "d", real, c[:2], [a[2 * k]], [right])
        c = upper + _multiply(builder, part, "d", "d", real, c[2:], [a[2 * k + 1]], [right])
    return c


# ---- twins


def _threads_twin(
    tall: int, wide: int, depth: int, a: Tile, b: Tile, sums: Any, shared: Any, a_at: int, b_at: int
) -> None:
    for k in range(depth):
        for i in range(tall):
            left = shared[a_at + a.at(i, k)]
            for j in range(wide):
                sums[i * wide + j] += left * shared[b_at + b.at(j, k)]


def _warps_twin(
    kind: str,
    tall: int,
    wide: int,
    depth: int,
    terms: int,
    a: Tile,
    b: Tile,
    sums: Any,
    shared: Any,
    a_at: int,
    b_at: int,
) -> None:
    from numbadnn.kernels.lang.mma import round_tf32

    acc = np.float32 if kind == "tf32" else np.float64
    change = round_tf32 if kind == "tf32" else acc

    def held(tile: Tile, rows: int, block: int, step: int, at: int) -> Any:
        start = at + tile.at(block * rows, step * terms)
        return np.array([change(shared[start + tile.at(r, k)]) for r, k in _fragment(tile, terms, rows)], acc)

    for step in range(depth // terms):
        for i in range(tall // 16):
            for j in range(wide // 8):
                left, right = held(a, 16, i, step, a_at), held(b, 8, j, step, b_at)
                _product_twin(kind, terms, sums, (i * (wide // 8) + j) * 4, left, 0, right, 0)
