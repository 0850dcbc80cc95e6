"""Runs of stored elements to and from reals, whatever their dtype: one build of a kernel serves all four, and mixtures.

A dtype is a number at run time (``CODE``), so that a kernel is compiled once and not for each type; the loop over a run is
chosen outside the loop, and vectorised for each type. Loading this module imports Numba.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from numbadnn.cpu.lang.elements import BLOCK, itemsize, load1, load_apart, narrow_block, store1, widen_block
from numbadnn.cpu.lang.parallel import LINE
from numbadnn.cpu.lang.past import narrow_block_past
from numbadnn.cpu.lang.vector import lanes

#: dtype name -> its number in a kernel
CODE = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}
#: compiles a part of a kernel: no references to its arrays are counted, which costs two calls an array, atomic ones where
#: the array owns memory; so it may not make arrays that do. Nor has it wrappers for Python, which take time to compile
inner = njit(nogil=True, error_model="numpy", _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)
#: the same, of what LLVM puts into each of its callers, where a call would cost as much as what is done
into = njit(
    nogil=True, error_model="numpy", _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True
)
_F32, _F64, _F16, _BF16 = (np.empty(1, t) for t in (np.float32, np.float64, np.uint16, np.int16))


@inner
def offset_of(index, shape, strides):
    """Element offset of a flat index into the axes ``shape``."""
    if len(shape) == 0:
        return 0
    offset = 0
    for d in range(len(shape) - 1, 0, -1):
        offset += index % shape[d] * strides[d]
        index //= shape[d]
    return offset + index * strides[0]


@inner
def cut(n, four, like):
    """n neighbours as four vectors at a time, vectors and the rest: where the first end, where the second, a mask of the last."""
    whole = n // lanes(like) * lanes(like)
    return n // lanes(four) * lanes(four), whole, (1 << n - whole) - 1


@inner
def fetch_run(buffer, n, base, like):
    """buffer[:n] = the n elements from address ``base`` on; ``buffer`` of float32 or float64."""
    whole = n // BLOCK * BLOCK
    for i in range(0, whole, BLOCK):
        widen_block(buffer, i, base, like)
    if 0 < whole < n:  # what is left, and some elements once more: quicker than one by one
        widen_block(buffer, n - BLOCK, base, like)
    elif whole < n:
        for i in range(n):
            buffer[i] = load1(base, i, like)


@inner
def flush_run(buffer, n, base, like, past=False):
    """The reverse of ``fetch_run``: n elements are rounded and stored; ``past`` the caches, where that can be."""
    past = past and base % itemsize(like) == 0
    head = min(n, -base % LINE // itemsize(like)) if past else 0
    whole = head + (n - head) // BLOCK * BLOCK
    for i in range(head):
        store1(base, i, buffer[i], like)
    if past:
        for i in range(head, whole, BLOCK):
            narrow_block_past(buffer, i, base, like)
    else:
        for i in range(head, whole, BLOCK):
            narrow_block(buffer, i, base, like)
    if BLOCK <= whole < n and not past:
        narrow_block(buffer, n - BLOCK, base, like)
    else:
        for i in range(whole, n):
            store1(base, i, buffer[i], like)


@inner
def fetch_as(buffer, n, base, step, like):
    """buffer[:n] = the n elements, ``step`` apart, from address ``base`` on."""
    if step == 1:
        fetch_run(buffer, n, base, like)
    else:
        for i in range(n):
            buffer[i] = load_apart(base, i * step, like)


@inner
def flush_as(buffer, n, base, step, like, past=False):
    """The reverse of ``fetch_as``."""
    if step == 1:
        flush_run(buffer, n, base, like, past)
    else:
        for i in range(n):
            store1(base, i * step, buffer[i], like)


@inner
def fetch(buffer, n, base, offset, step, code):
    """buffer[:n] = the n elements, ``step`` apart, from element ``offset`` of ``base`` on."""
    if code == 0:
        fetch_as(buffer, n, base + offset * 4, step, _F32)
    elif code == 1:
        fetch_as(buffer, n, base + offset * 8, step, _F64)
    elif code == 2:
        fetch_as(buffer, n, base + offset * 2, step, _F16)
    else:
        fetch_as(buffer, n, base + offset * 2, step, _BF16)


@inner
def flush(buffer, n, base, offset, step, code, past=False):
    """The reverse of ``fetch``: n elements are rounded and stored."""
    if code == 0:
        flush_as(buffer, n, base + offset * 4, step, _F32, past)
    elif code == 1:
        flush_as(buffer, n, base + offset * 8, step, _F64, past)
    elif code == 2:
        flush_as(buffer, n, base + offset * 2, step, _F16, past)
    else:
        flush_as(buffer, n, base + offset * 2, step, _BF16, past)
