"""Convolution as a matrix product whose first operand is gathered from the image while it is multiplied (implicit GEMM).

A block has a tile of rows x columns of the result in registers and walks the terms of its sums, ``k`` at a time, through
a ring of ``stages`` buffers in shared memory, filled by asynchronous copies. Where an element lies, and whether it is
padding, two tables say (``device/tables.py``): an offset and a set of bits for each row, kept in registers, and
for each term, which travel through the ring one turn ahead of the data.

    terms  | t0 t1 ... |        b[t, column] = other[offset(t) + column * step]
           v           v        a[row, t]    = image[offset(row) + offset(t)], 0 where bits(row) & bits(t)
    ring   [ a | b ] [ a | b ] [ a | b ]  ->  sums[row, column] += a[row, t] * b[t, column]   ->  out

Threads multiply as in ``gemm/device/tiles.py``: by fused multiply-adds, or warp by warp on tensor cores. With ``splits`` the
terms are shared among blocks whose partial sums ``total`` adds in a fixed order. Every sum runs in the order of terms.
What is padding forward is a term, 0 times a filter; in the images' gradient it is none (``device/absent.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.device.absent import any_nan
from numbadnn.kernels.conv.tiles.config import ENTRY, ImplicitTilesConfig, Reading, shares, tile_elements
from numbadnn.kernels.conv.tiles.device.absent import mend_results, mend_sums, sums_of
from numbadnn.kernels.conv.tiles.device.halves import by_halves
from numbadnn.kernels.conv.tiles.device.put import store_tile
from numbadnn.kernels.conv.tiles.device.sums import by_threads, by_warps, thread_place
from numbadnn.kernels.gemm.device.parts import warp_place
from numbadnn.kernels.lang.async_copies import commit_async, copy_or_zero, wait_async, wait_async_but
from numbadnn.kernels.lang.cuda import (
    ACCUMULATOR,
    ELEMENT,
    HALF,
    INT32,
    WORD,
    cuda,
    device,
    i32,
    i64,
    u32,
)
from numbadnn.kernels.lang.words import copy_entry, fetch_words, read_at, shared_address
from numbadnn.problem import ITEMSIZE


def _place(config: ImplicitTilesConfig, reading: Reading, extent: int) -> Any:
    """``place() -> (term, unit)``: a thread's first of those that ``shares`` gives it."""
    along, vector = reading.along_terms, reading.vector
    units, runs = (extent, config.k // vector) if along else (extent // vector, config.k)
    singly = along and vector == 1

    @device
    def place():
        thread = i32(cuda.threadIdx.x)
        if singly:
            return i32((thread & 31) >> 2), i32((thread >> 5) * 4 + (thread & 3))
        if along:
            unit = i32(u32(thread) // u32(runs))
            return i32((thread - unit * runs) * vector), unit
        term = i32(u32(thread) // u32(units))
        return term, i32(thread - term * units)

    return place


def _pitches(config: ImplicitTilesConfig, reading: Reading, extent: int) -> tuple[int, int]:
    """Elements from a term to the next and from a unit to the next of a tile: as its vectors lie in memory."""
    if reading.along_terms and reading.vector > 1:
        return 1, config.k + config.row_padding
    return extent + config.padding, reading.vector


def _gatherer(dtype: str, config: ImplicitTilesConfig) -> tuple[int, Any, Any]:
    """(units of a thread, locate, fetch) of the gathered operand.

    Entries are read some together before the copies begin: between a read and a copy the hardware waits.
    """
    reading, size = config.a, ITEMSIZE[dtype]
    (terms, apart, units, step), place = shares(config, reading, config.m), _place(config, reading, config.m)
    term_pitch, unit_pitch = _pitches(config, reading, config.m)
    first_row = 1 if reading.along_terms else reading.vector
    copy = copy_or_zero(ITEMSIZE[dtype] * reading.vector)
    together = min(terms, 8)
    held = 2 * together
    wide = 2 if apart == 1 and together > 1 else 1
    read = read_at("int32", 2 * wide)

    @device
    def locate(offsets, bits, rows):
        words = cuda.local.array(4, INT32)
        _, unit = place()
        for i in range(units):
            fetch_words(words, i32(0), rows + i64(i32((unit + i * step) * first_row)) * ENTRY)
            offsets[i], bits[i] = words[0], words[1]

    @device
    def some(first, shared, to, words, table, source, offsets, bits):
        entries = cuda.local.array(held, INT32)
        for j in range(together // wide):
            read(entries, i32(j * 2 * wide), words, i32(table + (first + j * wide) * (apart * 8)))
        for j in range(together):
            for i in range(units):
                there = i32(bits[i] & entries[2 * j + 1]) == i32(0)
                copy(
                    shared,
                    i32(to + ((first + j) * (apart * term_pitch) + i * (step * unit_pitch)) * size),
                    source + i64(i32(offsets[i] + entries[2 * j])) * size,
                    there,
                )

    @device
    def fetch(shared, at, words, table, source, offsets, bits):
        term, unit = place()
        to, table = i32(at + (term * term_pitch + unit * unit_pitch) * size), i32(table + term * 8)
        some(0, shared, to, words, table, source, offsets, bits)
        if terms > together:
            some(8, shared, to, words, table, source, offsets, bits)

    return units, locate, fetch


def _other(dtype: str, config: ImplicitTilesConfig) -> tuple[int, Any, Any]:
    """(units of a thread, locate, fetch) of the operand that is not gathered; columns past the last read the first."""
    reading, size = config.b, ITEMSIZE[dtype]
    (terms, apart, units, step), place = shares(config, reading, config.n), _place(config, reading, config.n)
    term_pitch, unit_pitch = _pitches(config, reading, config.n)
    columns_each = 1 if reading.along_terms else reading.vector
    copy, read = copy_or_zero(ITEMSIZE[dtype] * reading.vector), read_at("int32", 2)
    held = 2 * terms

    @device
    def locate(offsets, first, columns, column_step):
        _, unit = place()
        for i in range(units):
            column = i32(first + (unit + i * step) * columns_each)
            offsets[i] = i32(column * column_step) if column < columns else i32(0)

    @device
    def fetch(shared, at, words, table, source, offsets):
        entries = cuda.local.array(held, INT32)
        term, unit = place()
        to, table = i32(at + (term * term_pitch + unit * unit_pitch) * size), i32(table + term * 8)
        for j in range(terms):
            read(entries, i32(2 * j), words, i32(table + j * (apart * 8)))
        for j in range(terms):
            for i in range(units):
                copy(
                    shared,
                    i32(to + (j * (apart * term_pitch) + i * (step * unit_pitch)) * size),
                    source + i64(i32(offsets[i] + entries[2 * j])) * size,
                    entries[2 * j + 1] != 0,
                )

    return units, locate, fetch


def convolve(dtype: str, acc: str, config: ImplicitTilesConfig, inputs: bool, adds: bool) -> Callable[..., None]:
    """out[row, column] = alpha * sum over terms of a[row, term] * b[term, column] + beta * out; a group a blockIdx.z.

    ``inputs``: of the images' gradient, for which ``adds`` says whether beta is not 0.
    """
    A, m, n, depth = ACCUMULATOR[acc], config.m, config.n, config.k
    E = HALF if ITEMSIZE[dtype] == 2 else ELEMENT[acc]
    stages, split = config.stages, config.splits > 1
    out = acc if split else dtype
    size, out_size = ITEMSIZE[dtype], ITEMSIZE[out]
    a_units, locate_a, fetch_a = _gatherer(dtype, config)
    b_units, locate_b, fetch_b = _other(dtype, config)
    put, wrong = store_tile(out, acc, config), any_nan(sums_of(config))
    adds = adds and not split
    mend, mend_after = mend_sums(dtype, acc, config), mend_results(dtype, acc, config)
    if ITEMSIZE[dtype] == 2:
        multiply = by_halves(dtype, config)
    else:
        multiply = by_warps(acc, config, dtype == "float32") if config.warps else by_threads(acc, config)
    thread_at, warp_at = thread_place(config), warp_place(config)
    by_warp, chunk = config.warps, config.chunk
    every = sums_of(config)
    a_tile, b_tile = tile_elements(config)
    stage = a_tile + b_tile
    slots = 2 * stages - 2  # of the tables in the ring: those of the tiles on their way and of as many after them
    others_there = wait_async_but(stages - 2)

    def kernel(
        a, b, target, rows, terms, last, tiles_across, tiles_high, blocks, splits, columns, row_step, steps, group_steps,
        alpha, beta,
    ):  # fmt: skip
        shared = cuda.shared.array(0, E)
        words = cuda.shared.array(0, WORD)
        thread = i32(cuda.threadIdx.x)
        tile = i32(abs(last - i32(cuda.blockIdx.x)))  # from the last where it has more to do
        high = i32(u32(tile) // u32(tiles_across))
        first_row = i32(high * m)
        first_column = i32((tile - high * tiles_across) * n)
        phase = i32(u32(high) // u32(tiles_high))
        number = i32(cuda.blockIdx.z)
        group = i32(u32(number) // u32(splits))
        part = i32(number - group * splits)
        a += i64(group) * group_steps[0] * size
        b += i64(group) * group_steps[1] * size
        target += i64(number if split else group) * group_steps[2] * out_size
        entry = cuda.local.array(4, INT32)
        fetch_words(entry, i32(0), rows + i64(first_row) * ENTRY)
        every_block = entry[3]
        begin = i32(u32(every_block) * u32(part) // u32(splits)) if split else i32(0)
        end = i32(u32(every_block) * u32(part + 1) // u32(splits)) if split else every_block
        turns = i32(end - begin)
        table = terms + i64(phase * blocks + begin) * (depth * ENTRY)
        sums = cuda.local.array(every, A)
        for i in range(every):
            sums[i] = A(0)
        a_offsets = cuda.local.array(a_units, INT32)
        a_bits = cuda.local.array(a_units, INT32)
        b_offsets = cuda.local.array(b_units, INT32)
        locate_a(a_offsets, a_bits, rows + i64(first_row) * ENTRY)
        locate_b(b_offsets, first_column, columns, steps[0])
        base = shared_address(words)
        ring = i32(base + stages * stage * size)
        table += i64(thread) * ENTRY
        for turn in range(stages - 1):
            if thread < depth and turn < turns:
                copy_entry(words, i32(ring + (turn * depth + thread) * ENTRY), table + i64(turn) * (depth * ENTRY))
        wait_async()
        cuda.syncthreads()
        for turn in range(stages - 1):
            if turn < turns:
                at, entries = i32(base + turn * stage * size), i32(ring + turn * (depth * ENTRY))
                fetch_a(shared, at, words, entries, a, a_offsets, a_bits)
                fetch_b(shared, i32(at + a_tile * size), words, i32(entries + depth * 8), b, b_offsets)
            ahead = i32(turn + stages - 1)
            if thread < depth and ahead < turns:
                slot = i32(u32(ahead) % u32(slots))
                copy_entry(words, i32(ring + (slot * depth + thread) * ENTRY), table + i64(ahead) * (depth * ENTRY))
            commit_async()
        now, free = i32(0), i32(stages - 1)  # the buffer to multiply, the one to fill
        for turn in range(turns):
            others_there()
            cuda.syncthreads()
            ahead = i32(turn + stages - 1)
            if ahead < turns:
                at, entries = (
                    i32(base + free * (stage * size)),
                    i32(ring + i32(u32(ahead) % u32(slots)) * (depth * ENTRY)),
                )
                fetch_a(shared, at, words, entries, a, a_offsets, a_bits)
                fetch_b(shared, i32(at + a_tile * size), words, i32(entries + depth * 8), b, b_offsets)
            ahead = i32(ahead + stages - 1)
            if thread < depth and ahead < turns:
                slot = i32(u32(ahead) % u32(slots))
                copy_entry(words, i32(ring + (slot * depth + thread) * ENTRY), table + i64(ahead) * (depth * ENTRY))
            commit_async()
            at = i32(base + now * (stage * size))
            multiply(sums, shared, at, i32(at + a_tile * size))
            free = now
            now = i32(now + 1) if now + 1 < stages else i32(0)
        if by_warp:
            row, column, g, t = warp_at()
            row, column = i32(row + g), i32(column + 2 * t)
        else:
            row, column = thread_at()
            row, column = i32(row * chunk), i32(column * chunk)
        corner, place = (first_row, first_column), (row, column)
        nan = False
        if inputs:
            left = (a, b, terms + i64(phase * blocks + begin) * (depth * ENTRY), turns)
            mine = (i32(first_row + row), i32(first_column + column))
            if adds:
                mend(sums, left, rows, mine, columns, steps[0])
            else:
                nan = wrong(sums, 0)
        put(sums, shared, base, rows, target, corner, place, columns, row_step, steps[1], alpha, beta)
        if inputs and not adds:
            cuda.syncthreads()  # others may have written what this thread has summed
            if nan:
                mend_after(left, rows, target, mine, columns, row_step, steps, alpha)

    return kernel
