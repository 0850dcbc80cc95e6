"""Which part of grad_inputs a block computes, and which part a warp.

A block has a tile of output positions and some channels of a group; it adds to a box of pixels, which holds all that the tile
reaches, [channel][row][column]. A warp has ``own`` of the channels alone: no other warp adds to its pixels, and none has to
wait for it. Its terms (channel, tap) are loaded by whole accesses, so from the last multiple of ``vec`` on: what stands before
its own is another's.
"""

from __future__ import annotations

from numbadnn.kernels.lang.cuda import device, i32, u32

#: no pixel of a warp's own
NONE = 0x7FFFFFFF


@device
def position_of(block, groups, Q):
    """(group, row, column) of the only position of a block"""
    position = i32(u32(block) // u32(groups))
    p = i32(u32(position) // u32(Q))
    return i32(block - position * groups), p, i32(position - p * Q)


@device
def block_of(index, slices, groups, across, tile):
    """(number of the tile and group, number of the channels' slice, group, the tile's first row and column)"""
    number = i32(u32(index) // u32(slices))
    which = i32(u32(number) // u32(groups))
    row = i32(u32(which) // u32(across))
    group, part = i32(number - which * groups), i32(index - number * slices)
    return number, part, group, i32(row * tile[0]), i32((which - row * across) * tile[1])


@device
def terms_of(warp, own, have, c0, per_channel):
    """(first channel of the block's, first term, last one + 1) of a warp; a block has ``have`` channels from ``c0`` on."""
    mine = min(i32(warp * own), have)
    return mine, i32((c0 + mine) * per_channel), i32((c0 + min(i32(mine + own), have)) * per_channel)


@device
def tap_of(term, taps):
    """(channel, row and column of the filter) of a term"""
    line = i32(u32(term) // u32(taps[1]))
    c = i32(u32(line) // u32(taps[0]))
    return c, i32(line - c * taps[0]), i32(term - line * taps[1])


@device
def pixel_of(i, tall, wide):
    """(channel, row, column) of the ``i``-th pixel of a box"""
    area = i32(tall * wide)
    c = i32(u32(i) // u32(area))
    row = i32(u32(i - c * area) // u32(wide))
    return c, row, i32(i - c * area - row * wide)


@device
def moved_on(c, row, column, step, tall, wide):
    """The pixel that is a ``step``, as ``pixel_of`` gives it, behind another one."""
    column = i32(column + step[2])
    row = i32(row + step[1])
    c = i32(c + step[0])
    row = i32(row + 1) if column >= wide else row
    column = i32(column - wide) if column >= wide else column
    c = i32(c + 1) if row >= tall else c
    return c, i32(row - tall) if row >= tall else row, column


@device
def pixel_at(c, r, s, area, taps, dilation, wide, flip):
    """Where a tap of the box's channel ``c`` is at the first position; a row has ``wide`` pixels, a channel ``area``."""
    if flip != 0:
        r = i32(taps[0] - 1 - r)
        s = i32(taps[1] - 1 - s)
    return i32(c * area + r * dilation[0] * wide + s * dilation[1])
