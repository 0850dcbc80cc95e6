"""How the threads of a warp exchange values. The simulator has no warps: there all threads of a block meet instead."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Iterable
from typing import Any

from numbadnn.kernels.lang.cuda import ACCUMULATOR, SIMULATED, i32, u32
from numbadnn.kernels.lang.intrinsics import emitted
from numbadnn.kernels.lang.llvm import _I32, _asm


@functools.cache
def shuffle_xor(acc: str) -> Callable[..., Any]:
    """``shuffle_xor(value, mask)``: the value of the thread whose lane differs by ``mask``; all 32 take part."""
    if SIMULATED:
        return _shuffle_twin
    swap = "shfl.sync.bfly.b32 {0}, {0}, $2, 31, -1;"
    if acc == "float32":
        template, constraints = "shfl.sync.bfly.b32 $0, $1, $2, 31, -1;", "=f,f,r"
    else:
        halves = swap.format("lo") + swap.format("hi")
        template = "{.reg .b32 lo, hi; mov.b64 {lo, hi}, $1; " + halves + " mov.b64 $0, {lo, hi};}"
        constraints = "=d,d,r"

    @emitted(ACCUMULATOR[acc], ACCUMULATOR[acc], i32)
    def shuffle(builder, value, mask):
        return _asm(builder, template, constraints, value.type, [value, mask], pure=False)

    return shuffle


_EXCHANGE: dict[int, Any] = {}


def _shuffle_twin(value: Any, mask: int) -> Any:
    """The simulator has no warps: every thread of the block meets here, as every kernel of ours shuffles uniformly."""
    thread: Any = threading.current_thread()
    _EXCHANGE[thread.thread_id] = value
    thread.syncthreads()
    other = _EXCHANGE[thread.thread_id ^ int(mask)]
    thread.syncthreads()
    return other


def _agreed_twin(join: Callable[[Iterable[Any]], Any], lanes: int = 32) -> Callable[[Any], Any]:
    """The warp's threads meet; each joins the words of the ``lanes`` neighbours that it is one of."""

    def twin(word):
        thread: Any = threading.current_thread()
        number = thread.thread_id
        _EXCHANGE[number] = word
        thread.meet(~(number >> 5), 32)
        found = join(_EXCHANGE[(number & -lanes) + lane] for lane in range(lanes))
        thread.meet(~(number >> 5), 32)  # before another word takes its place
        return found

    return twin


def _agreed(operation: str, kind: Any, join: Callable[[Iterable[Any]], Any]) -> Callable[..., Any]:
    """``agree(word)``: what ``operation`` makes of the 32-bit words of a warp's lanes, in each of them; all 32 take part."""
    if SIMULATED:
        return _agreed_twin(join)

    @emitted(kind, kind)
    def agree(builder, word):
        return _asm(builder, f"redux.sync.{operation} $0, $1, -1;", "=r,r", _I32, [word], pure=False)

    return agree


#: ``largest_of_warp(value) -> i32``: the largest of a warp's 32-bit integers
largest_of_warp = _agreed("max.s32", i32, max)
#: ``some_of_warp(bits) -> u32``: the bits that any of a warp's lanes has set
some_of_warp = _agreed("or.b32", u32, functools.partial(functools.reduce, operator.or_))


def _largest_of_four() -> Callable[..., Any]:
    if SIMULATED:
        return _agreed_twin(max, 4)
    step = "shfl.sync.bfly.b32 other, $0, {}, 31, -1; max.s32 $0, $0, other;"
    template = f"{{.reg .b32 other; mov.b32 $0, $1; {step.format(1)} {step.format(2)}}}"

    @emitted(i32, i32)
    def agree(builder, value):
        return _asm(builder, template, "=&r,r", _I32, [value], pure=False)

    return agree


#: ``largest_of_four(value) -> i32``: the largest that four neighbouring lanes have; all 32 take part
largest_of_four = _largest_of_four()
