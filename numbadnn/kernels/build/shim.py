"""One launch as one compiled host function: check the context, write the addresses, call cuLaunchKernel.

Everything that does not change lies in a record of 64-bit words that belongs to one prepared launch (layout: ``record.py``),
read here by address, so that a call passes five integers and touches no Python object with the GIL released. Importing
this module imports Numba: callers ask ``host.entry`` for its functions.
"""

from __future__ import annotations

from numba import types

from numbadnn.host.hostcall import call_address, kept, load_u64, store_u64
from numbadnn.kernels.build.record import (
    ADDRESSES,
    BLOCK,
    CONFIG,
    CURRENT,
    EXPECTED,
    EXTRA,
    FUNCTION,
    GET_CURRENT,
    GRID,
    LAUNCH,
    OFFSETS,
    SHARED,
    STREAM,
    VALUES,
    WRONG_CONTEXT,
)


@kept("int64(int64, int64)", inline="always")
def _check(record, stream):
    status = call_address(load_u64(record + GET_CURRENT), record + CURRENT)
    if status != 0:
        return types.int64(status)
    if load_u64(record + CURRENT) != load_u64(record + EXPECTED):
        return types.int64(WRONG_CONTEXT)
    return types.int64(0)


@kept("int64(int64, int64)", inline="always")
def _launch(record, stream):
    config = load_u64(record + CONFIG)
    if config != 0:  # cuLaunchKernelEx
        store_u64(config + STREAM, stream)
        function, extra = load_u64(record + FUNCTION), load_u64(record + EXTRA)
        return types.int64(call_address(load_u64(record + LAUNCH), config, function, types.int64(0), extra))
    return types.int64(
        call_address(
            load_u64(record + LAUNCH),
            load_u64(record + FUNCTION),
            types.uint32(load_u64(record + GRID)),
            types.uint32(load_u64(record + GRID + 8)),
            types.uint32(load_u64(record + GRID + 16)),
            types.uint32(load_u64(record + BLOCK)),
            types.uint32(load_u64(record + BLOCK + 8)),
            types.uint32(load_u64(record + BLOCK + 16)),
            types.uint32(load_u64(record + SHARED)),
            stream,
            types.int64(0),
            load_u64(record + EXTRA),
        )
    )


@kept("int64(int64, int64, int64, int64, int64)")
def launch_shim(record, stream, a0, a1, a2):
    """Up to three addresses."""
    status = _check(record, stream)
    if status != 0:
        return status
    addresses = load_u64(record + ADDRESSES)
    if addresses > 0:
        store_u64(record + VALUES, a0)
    if addresses > 1:
        store_u64(record + VALUES + 8, a1)
    if addresses > 2:
        store_u64(record + VALUES + 16, a2)
    return _launch(record, stream)


@kept("int64(int64, int64, UniTuple(int64, 12))")
def launch_shim_of_many(record, stream, words):
    """Up to twelve, each to its own place; those beyond the kernel's own are not written."""
    status = _check(record, stream)
    if status != 0:
        return status
    for i in range(load_u64(record + ADDRESSES)):
        store_u64(record + load_u64(record + OFFSETS + 8 * i), words[i])
    return _launch(record, stream)


@kept("int64(int64, int64, UniTuple(int64, 12))")
def launch_sequence(steps, stream, words):
    """Several launches, one behind the other; ``prepared.sequence`` lays the table out."""
    at = types.int64(steps + 8)
    for step in range(load_u64(steps)):
        record, count = load_u64(at), load_u64(at + 8)
        if step == 0:
            status = _check(record, stream)
            if status != 0:
                return status
        at += 16
        for i in range(count):
            which = load_u64(at)
            value = load_u64(at + 8)
            if which < 12:
                value += types.uint64(words[which])
            store_u64(record + load_u64(record + OFFSETS + 8 * i), value)
            at += 16
        status = _launch(record, stream)
        if status != 0:
            return status
    return types.int64(0)
