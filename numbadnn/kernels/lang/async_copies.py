"""Asynchronous copies from global to shared memory, and waiting for them, each beside its twin for the simulator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels.lang.access import _bytes_at
from numbadnn.kernels.lang.cuda import SIMULATED, i32, i64, types, u32, u64
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted, instruction
from numbadnn.kernels.lang.llvm import _I32, _asm

#: that lines of the L2 cache are the first to be given up (``createpolicy`` makes the same number): they are read once
ONCE = ".reg .b64 once; mov.b64 once, 0x12F0000000000000;"


def _instruction(size: int, fetch: int = 0) -> str:
    """What copies 4, 8 or 16 bytes; 16 pass by the L1 cache. ``fetch``: see ``copy_or_zero``."""
    return f"cp.async.{'cg' if size == 16 else 'ca'}.shared.global" + (f".L2::{fetch}B" if fetch else "")


@functools.cache
def copy_async(size: int) -> Callable[..., None]:
    """``copy_async(words, start, address)``: begin to copy ``size`` (4, 8 or 16) aligned bytes to the shared words[start:]."""
    if SIMULATED:

        def twin(words, start, address):
            words[start : start + size // 4] = np.frombuffer(bytes(_bytes_at(int(address), size)), np.uint32)

        return twin

    template = f"{{.reg .u64 to; cvta.to.shared.u64 to, $0; {_instruction(size)} [to], [$1], {size};}}"

    @emitted(None, ARRAY, i32, i64)
    def copy(builder, words, start, address):
        to = builder.ptrtoint(words.slot(start, 0), ir.IntType(64))
        _asm(builder, template, "l,l,~{memory}", ir.VoidType(), [to, address], pure=False)

    return copy


@functools.cache
def copy_or_zero(size: int, fetch: int = 0) -> Callable[..., None]:
    """``copy_or_zero(shared, to, address, there)``: begin to copy ``size`` (4, 8 or 16) aligned bytes to the shared address
    ``to``, or to write zeros: nothing is read where ``there`` is false. ``fetch``: the 64, 128 or 256 bytes of memory around
    come to the L2 cache at once, for others that will ask; 0: as it does unasked."""
    if SIMULATED:

        def twin(shared, to, address, there):
            _copy_twin(size, shared, to // shared.itemsize, address, there)

        return twin

    @emitted(None, ARRAY, i32, i64, types.boolean)
    def copy(builder, shared, to, address, there):
        _copy_or_zero(builder, size, to, address, there, fetch)

    return copy


@functools.cache
def copy_or_zero_at(size: int) -> Callable[..., None]:
    """``copy_or_zero_at(shared, start, address, there)``: the same, to shared[start:]."""
    if SIMULATED:
        return functools.partial(_copy_twin, size)

    @emitted(None, ARRAY, i32, i64, types.boolean)
    def copy(builder, shared, start, address, there):
        place = shared.slot(start, 0)
        place = builder.addrspacecast(place, ir.PointerType(place.type.pointee, 3))
        to = builder.trunc(builder.ptrtoint(place, ir.IntType(64)), _I32)
        _copy_or_zero(builder, size, to, address, there)

    return copy


def _copy_if() -> Callable[..., None]:
    if SIMULATED:

        def twin(wanted, shared, to, address):
            if wanted:
                _copy_twin(16, shared, to // shared.itemsize, address, True)

        return twin

    @emitted(None, types.boolean, ARRAY, i32, i64)
    def copy(builder, wanted, shared, to, address):
        # no cache hint: with one, assemblers of CUDA 12.9 and 13.0 made an illegal instruction of a copy at an offset
        template = f"{{.reg .pred p; setp.ne.u32 p, $0, 0; @p {_instruction(16)} [$1], [$2], 16;}}"
        values = [builder.zext(wanted, _I32), to, address]
        _asm(builder, template, "r,r,l,~{memory}", ir.VoidType(), values, pure=False)

    return copy


#: ``copy_if(wanted, shared, to, address)``: begin to copy 16 aligned bytes to the shared address ``to``, if wanted; no branch
copy_if = _copy_if()


def _copy_line() -> Callable[..., None]:
    if SIMULATED:
        from numbadnn.kernels.lang import hopper_twins as _hopper_twins

        def twin(shared, to, address, size, barrier):
            for start in range(0, int(size), 16):
                _copy_twin(16, shared, (to + start) // shared.itemsize, address + start, True)
            _hopper_twins.arrived(int(barrier), int(size))

        return twin

    name = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
    template = f"{{{ONCE} {name} [$0], [$1], $2, [$3], once;}}"

    @emitted(None, ARRAY, i32, i64, i32, u32)
    def copy(builder, shared, to, address, size, barrier):
        _asm(builder, template, "r,l,r,r,~{memory}", ir.VoidType(), [to, address, size, barrier], pure=False)

    return copy


#: ``copy_line(shared, to, address, size, barrier)``: begin to copy ``size`` bytes, whole aligned 16 of them, to the shared
#: address ``to``; the barrier in shared memory is told of them (Hopper). The L2 cache gives them up before anything else
copy_line = _copy_line()


def _copy_tile(axes: int, once: bool = False) -> Callable[..., None]:
    if SIMULATED:
        from numbadnn.kernels.lang import hopper_twins as _hopper_twins

        def twin(shared, to, tensor, at, barrier):
            data = _hopper_twins.tile_of(tensor, at)
            shared[to // shared.itemsize :][: data.size // shared.itemsize] = data.view(shared.dtype)
            _hopper_twins.arrived(int(barrier), data.size)

        return twin

    name = f"cp.async.bulk.tensor.{axes}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    at = ", ".join(f"${2 + i}" for i in range(axes))
    template = f"{name} [$0], [$1, {{{at}}}], [${2 + axes}];"
    if once:
        template = f"{{{ONCE} {name}.L2::cache_hint [$0], [$1, {{{at}}}], [${2 + axes}], once;}}"
    codes = ",".join(["r", "l", *"r" * axes, "r", "~{memory}"])

    @emitted(None, ARRAY, i32, u64, types.UniTuple(i32, axes), u32)
    def copy(builder, shared, to, tensor, at, barrier):
        place = [builder.extract_value(at, i) for i in range(axes)]
        _asm(builder, template, codes, ir.VoidType(), [to, tensor, *place, barrier], pure=False)

    return copy


#: ``copy_tile(axes)(shared, to, map, at, barrier)``: begin to copy the map's box at ``at``, innermost axis first, to the shared
#: address ``to``; the barrier in shared memory is told of its bytes (Hopper). ``copy_tile(axes, True)``: the L2 cache gives
#: them up before anything else
copy_tile = functools.cache(_copy_tile)


def _copy_or_zero(builder: Any, size: int, to: Any, address: Any, there: Any, fetch: int = 0) -> None:
    length = builder.select(there, ir.Constant(_I32, size), ir.Constant(_I32, 0))
    template = f"{_instruction(size, fetch)} [$0], [$1], {size}, $2;"
    _asm(builder, template, "r,l,r,~{memory}", ir.VoidType(), [to, address, length], pure=False)


def _copy_twin(size: int, shared: Any, start: int, address: int, there: bool) -> None:
    data = bytes(_bytes_at(int(address), size)) if there else bytes(size)
    shared[start : start + size // shared.itemsize] = np.frombuffer(data, shared.dtype)


#: ``wait_async()``: what this thread has begun to copy is there, for this thread
wait_async = (lambda: None) if SIMULATED else instruction("cp.async.wait_all;")
#: ``commit_async()``: what this thread has begun to copy since the last commit is one group
commit_async = (lambda: None) if SIMULATED else instruction("cp.async.commit_group;")


@functools.cache
def wait_async_but(groups: int) -> Callable[[], None]:
    """``wait()``: all groups of copies of this thread but the last ``groups`` are there, for this thread."""
    return (lambda: None) if SIMULATED else instruction(f"cp.async.wait_group {groups};")


def _warp_twin() -> None:
    import threading

    thread: Any = threading.current_thread()
    thread.meet(~(thread.thread_id >> 5), 32)


#: ``sync_warp()``: the lanes of this warp wait for each other; what they have written is there for all of them
sync_warp = _warp_twin if SIMULATED else instruction("bar.warp.sync -1;")


def _barrier(name: str, count: int) -> Callable[[int], None]:
    if SIMULATED:
        import threading

        # the groups of whole warps have negative numbers, those of 128 threads the least
        return lambda barrier: getattr(threading.current_thread(), name)((1 << 16) + barrier, count)

    return instruction(f"{'bar.sync' if name == 'meet' else 'bar.arrive'} $0, {count};", (), (i32,))


@functools.cache
def meet_of(count: int) -> Callable[[int], None]:
    """``meet(barrier)``: wait until ``count`` threads, whole warps, have come to a barrier from 1 to 15 of the block's."""
    return _barrier("meet", count)


@functools.cache
def arrive_of(count: int) -> Callable[[int], None]:
    """``arrive(barrier)``: one of the ``count`` threads that others wait for, without waiting."""
    return _barrier("arrive", count)
