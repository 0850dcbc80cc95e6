"""What every kernel of the spatial transformer does with a point: its position, the pixels around it, and integers in memory.

A position is ``(x + 1) * ((W - 1)/2)``, the cell it lies in is named by the pixel above and left of it (column j, row i), and
(u, v) is how far right and below of that pixel it lies. A point that meets no pixel is not ``sound``: it lies in cell (0, 0),
where nothing may be made of it.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels.lang import access as _access
from numbadnn.kernels.lang import llvm as _llvm
from numbadnn.kernels.lang.access import load
from numbadnn.kernels.lang.cuda import ACCUMULATOR, SIMULATED, device, i32, i64, types, u32
from numbadnn.kernels.lang.intrinsics import emitted


def position(dtype: str, acc: str) -> Any:
    """``(address, step, half_width, half_height) -> (column, row)`` of the point whose x lies there, its y ``step`` bytes on."""
    A, read = ACCUMULATOR[acc], load(dtype, acc)

    @device
    def place(address, step, half_width, half_height):
        x = A(A(read(address) + A(1)) * half_width)
        y = A(A(read(address + step) + A(1)) * half_height)
        return x, y

    return place


def cell(acc: str) -> Any:
    """``(column, row, height, width) -> (sound, j, i, u, v)``."""
    A = ACCUMULATOR[acc]

    @device
    def find(x, y, height, width):
        sound = x > A(-1) and x < A(width) and y > A(-1) and y < A(height)
        x = x if sound else A(0)
        y = y if sound else A(0)
        j, i = i32(math.floor(x)), i32(math.floor(y))
        return sound, j, i, A(x - A(j)), A(y - A(i))

    return find


def nothing(acc: str) -> Any:
    """``(column, row) -> NaN`` where either is, else 0: what a point gives that meets no pixel. No sum of them says so: they may
    be infinite to opposite sides."""
    A = ACCUMULATOR[acc]

    @device
    def give(x, y):
        worse = x if x != x else y
        return worse if worse != worse else A(0)

    return give


def tile(columns: int, rows: int) -> Any:
    """``(thread, tile, tiles_across, tiles_down, chunks) -> (column, row, chunk, image)`` of a point of tile number ``tile``.

    Tiles count along a row of tiles, then down, then over chunks, then images.
    """

    @device
    def locate(thread, block, across, down, chunks):
        line = i32(u32(block) // u32(across))
        stack = i32(u32(line) // u32(down))
        image = i32(u32(stack) // u32(chunks))
        y = i32(u32(thread) // u32(columns))
        column = i32((block - line * across) * columns + thread - y * columns)
        row = i32((line - stack * down) * rows + y)
        return column, row, i32(stack - image * chunks), image

    return locate


# ---- 32-bit integers in memory ---------------------------------------------------------------------------------------

_I32 = ir.IntType(32)
#: the element type of a shared array of them
INTEGER = np.dtype("int32") if SIMULATED else types.int32
INTEGER64 = np.dtype("int64") if SIMULATED else types.int64
_atom = threading.RLock()  # the simulator's threads are threads


def _twin_read(address: Any) -> int:
    return int(np.frombuffer(bytes(_access._bytes_at(int(address), 4)), np.int32)[0])


def _twin_write(address: Any, value: Any) -> None:
    _access._bytes_at(int(address), 4)[:] = np.int32(value).tobytes()


def _twin_add(address: Any, value: Any) -> int:
    with _atom:
        old = _twin_read(address)
        _twin_write(address, old + value)
    return old


@functools.cache
def read_integer() -> Callable[..., Any]:
    """``read(address) -> i32``"""
    if SIMULATED:
        return _twin_read

    @emitted(i32, i64)
    def read(builder, address):
        return builder.load(_llvm._pointer(builder, address, _I32))

    return read


@functools.cache
def write_integer() -> Callable[..., None]:
    """``write(address, value)``"""
    if SIMULATED:
        return _twin_write

    @emitted(None, i64, i32)
    def write(builder, address, value):
        builder.store(value, _llvm._pointer(builder, address, _I32))

    return write


@functools.cache
def add_integer() -> Callable[..., Any]:
    """``add(address, value) -> i32``: what was there before; atomic. Integers alone, so that no sum depends on the order."""
    if SIMULATED:
        return _twin_add

    @emitted(i32, i64, i32)
    def add(builder, address, value):
        return builder.atomic_rmw("add", _llvm._pointer(builder, address, _I32), value, "monotonic")

    return add
