"""Products over all steps at once: those of the inputs with W, and the gradients of the parameters. Loading imports Numba.

``lists``, ``tiles``: a row for each thread, see ``products``. Any number of threads gives the same bits: it says who takes
which rows of the result, and nothing of how a sum is added.
"""

from __future__ import annotations

from numba import prange

from numbadnn.cpu.conv.micro import KC, MR, NV, microkernel
from numbadnn.cpu.lang.elements import accsize
from numbadnn.cpu.lang.typed import inner
from numbadnn.cpu.lang.vector import add, lanes, load, prefetch_line, store, zeros
from numbadnn.cpu.rnn.products import TILE, lists_of, product, put

#: elements of a block of rows, which stays in the second cache while every panel passes it
BLOCK = 1 << 17
#: rows of parameters whose gradients a block of gates holds, and the most steps times sequences that one packing does
ROWS, DEPTH = 8 * MR, 2048
#: so many steps ahead gates are asked for: the processor does not foresee where a row of them goes on
AHEAD = 16


def rows_product(a, packed, out, on_top, lists, tiles, like, threads):
    """out = a b, or out + a b (``on_top``): rows of a are whole, and b is ``packed``."""
    M, depth = a.shape
    rows = max(BLOCK // max(depth, 1) // MR, 1) * MR
    for tid in prange(threads):
        lists_of(lists[tid], like)
        end = min(M, _share(M, tid + 1, threads))
        for n in range(_share(M, tid, threads), end, rows):
            last = min(n + rows, end)
            step = depth * accsize(like)
            tile = tiles + tid * TILE
            product(a.ctypes.data, step, depth, 0, 0, packed, out, on_top, n, last, lists[tid], tile, like)


@inner
def _share(count, tid, threads):
    """Where the rows of a thread begin: whole tiles."""
    return (count + MR - 1) // MR * tid // threads * MR


def weights_product(
    gates, begin, end, inputs, states, grad_w, grad_r, sums, on_top, turned, lists, tiles, like, threads
):
    """grad_w = g' x, grad_r = g' h and sums = g' 1, or added to what is there (``on_top``), where g is gates[:, begin:end].

    ``gates`` is (time and batch, rows): a block of columns at a time is turned, into a row of ``turned`` for each thread.
    ``inputs`` and ``states`` are x and h in panels, or none.
    """
    depth, size = len(gates), accsize(like)
    blocks = (end - begin + ROWS - 1) // ROWS
    columns = lists[0]
    for k in range(KC):
        columns[k] = k * MR * size
        columns[KC + k] = k * NV * lanes(like) * size
    for tid in prange(threads):
        memory, tile = turned[tid], tiles + tid * TILE
        for block in range(blocks * tid // threads, blocks * (tid + 1) // threads):
            first = block * ROWS
            last = min(first + ROWS, end - begin)
            _turn(gates, begin, first, last, memory, sums, on_top, like)
            _block(memory.ctypes.data, depth, inputs, grad_w, first, last, columns, on_top, tile, like)
            _block(memory.ctypes.data, depth, states, grad_r, first, last, columns, on_top, tile, like)


@inner
def _turn(gates, begin, first, last, memory, sums, on_top, like):
    """Rows first .. last of g', MR at a time: element k of MR of them lie together, and then element k + 1. And their sums."""
    if not on_top:
        sums[first:last] = 0
    depth, width = gates.shape
    size, vl = accsize(like), lanes(like)
    for k in range(depth):
        source = gates.ctypes.data + (k * width + begin) * size
        for row in range(first, last, MR):
            target = memory.ctypes.data + ((row - first) * depth + k * MR) * size
            for i in range(0, MR, vl):
                inside = (1 << min(vl, MR - i)) - 1
                there = (1 << max(min(vl, MR - i, last - row - i), 0)) - 1
                prefetch_line(source, min(AHEAD, depth - 1 - k) * width + row + i, like)
                value = load(source, row + i, there, zeros(like), like)
                store(target, i, inside, value, like)
                store(
                    sums.ctypes.data,
                    row + i,
                    there,
                    add(load(sums.ctypes.data, row + i, there, value, like), value),
                    like,
                )


@inner
def _block(memory, depth, panels, out, first, last, columns, on_top, tile, like):
    """Rows first .. last of out: every panel passes them."""
    size, wide = accsize(like), NV * lanes(like)
    for p in range(len(panels)):
        b = panels.ctypes.data + p * depth * wide * size
        for row in range(first, last, MR):
            a = memory + (row - first) * depth * size
            for k in range(0, depth, KC):
                microkernel(
                    a + k * MR * size, size, columns.ctypes.data, b + k * wide * size, columns.ctypes.data + KC * 8,
                    min(KC, depth - k), tile, 1 if k else 0, like,
                )  # fmt: skip
            put(tile, out, row, last, p * wide, on_top, like)
