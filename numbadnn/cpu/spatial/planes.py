"""The sampler and its gradient in the grid for one channel's plane of an image, a vector of points at a time.

Where a vector's points lie next to each other in the result, and each has all its pixels inside, the four pixels are
fetched as two pairs of neighbours. Other points are taken one by one. Tables are
those of ``loops._corners``. Loading this module imports Numba.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from numbadnn.cpu.lang.elements import I32, I64, IR, accsize, at, known, load1, store1, widen
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import lanes, load, load_acc, multiply_add, store, store_acc, vec_of, zeros


@intrinsic
def _corner_pixels(typingctx, address, below, places, like):
    """The elements at ``address`` + offset, those after them, and both ``below`` bytes further; offsets from ``places`` on.

    Pairs are loaded one by one: x86's gather instructions are slower.
    """

    def codegen(cx, b, sig, args):
        n, bits = vec.lanes, like.dtype.bitwidth
        pair, sides = ir.IntType(2 * bits), []
        found = [ir.Constant(ir.VectorType(pair, n), ir.Undefined)] * 2
        for lane in range(n):
            offset = b.load(at(b, args[2], I64, I64(lane)), align=8)
            where = b.add(args[0], b.mul(offset, I64(bits // 8)))
            for row in range(2):
                value = b.load(at(b, b.add(where, args[1]) if row else where, pair), align=bits // 8)
                found[row] = b.insert_element(found[row], value, I32(lane))
        for row in range(2):
            both = b.bitcast(found[row], ir.VectorType(IR[like.dtype], 2 * n))
            for first in range(2):
                pick = ir.Constant(ir.VectorType(I32, n), list(range(first, 2 * n, 2)))
                sides.append(widen(b, b.shuffle_vector(both, both, pick), like.dtype))
        return cx.make_tuple(b, sig.return_type, sides)

    if known(like):
        vec = vec_of(like)
        return types.UniTuple(vec, 4)(types.int64, types.int64, types.int64, like), codegen


@inner
def whole_blocks(flags, count, step, table, pairs):
    """flags[i] = whether block i of ``step`` points is full and nothing in its four rows of ``table`` is 0 or False.

    ``pairs``: whether the layout lets blocks be taken whole.
    """
    for first in range(0, count, step):
        whole = pairs and first + step <= count
        for corner in range(4):
            for k in range(first, min(first + step, count)):
                whole = whole and table[corner, k] != 0
        flags[first // step] = whole


@inner
def sample_plane(img, below, y, like, count, targets, offsets, weights, nothing, flags):
    """One channel at the points of a tile; ``below``: bytes from a row of img to the next."""
    step = lanes(like)
    places, table, pitch = (
        np.int64(offsets.ctypes.data),
        np.int64(weights.ctypes.data),
        weights.shape[1] * accsize(like),
    )
    for first in range(0, count, step):
        if flags[first // step]:
            a, b, c, d = _corner_pixels(img, below, places + first * 8, like)
            w = table + first * accsize(like)
            total = multiply_add(load_acc(w, like), a, zeros(like))
            total = multiply_add(load_acc(w + pitch, like), b, total)
            total = multiply_add(load_acc(w + 2 * pitch, like), c, total)
            total = multiply_add(load_acc(w + 3 * pitch, like), d, total)
            store(y, targets[first], -1, total, like)
            continue
        for k in range(first, min(first + step, count)):
            value = nothing[k]
            for corner in range(4):
                if weights[corner, k] != 0:
                    value += weights[corner, k] * load1(img, offsets[corner, k], like)
            store1(y, targets[k], value, like)


@inner
def slope_plane(img, below, dy, like, count, targets, offsets, inside, sums, flags):
    """Add one channel's dy * pixel to the four sums of each point."""
    step = lanes(like)
    one = sums.dtype.type(1)  # the accumulator may be wider than the image
    places, table, pitch = np.int64(offsets.ctypes.data), np.int64(sums.ctypes.data), sums.shape[1] * accsize(like)
    for first in range(0, count, step):
        if flags[first // step]:
            a, b, c, d = _corner_pixels(img, below, places + first * 8, like)
            slope, s = load(dy, targets[first], -1, zeros(like), like), table + first * accsize(like)
            store_acc(s, multiply_add(slope, a, load_acc(s, like)), like)
            store_acc(s + pitch, multiply_add(slope, b, load_acc(s + pitch, like)), like)
            store_acc(s + 2 * pitch, multiply_add(slope, c, load_acc(s + 2 * pitch, like)), like)
            store_acc(s + 3 * pitch, multiply_add(slope, d, load_acc(s + 3 * pitch, like)), like)
            continue
        for k in range(first, min(first + step, count)):
            value = one * load1(dy, targets[k], like)
            for corner in range(4):
                if inside[corner, k]:
                    sums[corner, k] += value * load1(img, offsets[corner, k], like)
