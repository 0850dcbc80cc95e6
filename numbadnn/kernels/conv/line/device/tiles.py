"""Convolution along a line in float32 as a product of matrices: many filters times what lies at each tap of many channels.

A block has a tile of filters and steps, and goes through the channels eight at a time. These lie in shared memory, in rows that
begin ``halo`` pieces of 16 bytes before the block's own steps, and behind them the factors of their taps:

    channel c     | halo | steps of the block |             c, tap 0     | filters of the block |
    channel c+1   | halo | ...                |             c, tap 1     | ...                  |

The next eight are on their way while those at hand are multiplied. Two neighbouring lanes have the same pieces and other filters,
as have both halves of a warp where there are four groups of filters: 16 lanes read eight pieces, all banks once. What a thread
reads of a channel it multiplies with all its filters, four of which are one access.
Terms are added in the order of channels, then taps.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.line.tiles import CHANNELS, FILTERS, LANES, PIECES, VEC, TilesConfig
from numbadnn.kernels.lang.access import store_vector
from numbadnn.kernels.lang.async_copies import copy_or_zero, wait_async
from numbadnn.kernels.lang.cuda import WORD, cuda, device, f32, i32, i64
from numbadnn.kernels.lang.ptx import quotient
from numbadnn.kernels.lang.words import in_turn, read_at, shared_address

#: bytes of an element, and of a piece
SIZE, PIECE = 4, 16
#: filters whose factors a warp copies at a time
TOGETHER = LANES // CHANNELS
#: more channels than there are: a thread that has nothing to copy
NONE = 1 << 30


def _ask(config: TilesConfig) -> tuple[Callable[..., None], ...]:
    """A thread's copies to the stage at ``at``: of the block's own steps, of those behind them, and of the factors.

    The tuples say of its first one (channel, place in the stage, whether it is there; of the factors, how many filters from it
    on). ``left``: channels that there are. A lane copies the factors of one channel and filter at a time.
    """
    taps, pitch, filters = config.taps, config.pitch, TOGETHER * config.warps
    apart = config.threads * VEC // config.wide  # channels from a thread's copy to its next
    times, turns = CHANNELS // apart, -(-config.high // filters)
    piece, one, forth = copy_or_zero(PIECE), copy_or_zero(SIZE), -1 if config.flip else 1

    @device
    def ask_own(shared, at, row, own, source, left, step):
        for i in range(times):
            if i32(own[0] + i * apart) < left:
                piece(shared, i32(at + own[1] + i * apart * row), source + i * apart * step, own[2])

    @device
    def ask_behind(shared, at, behind, source, left):
        if behind[0] < left:
            piece(shared, i32(at + behind[1]), source, behind[2])

    @device
    def ask_factors(shared, at, factors, source, left, step):
        if factors[0] < left:
            for j in range(turns):
                if i32(j * filters) < factors[2]:
                    for s in range(taps):
                        to = i32(at + factors[1] + (s * pitch + j * filters) * SIZE)
                        one(shared, to, source + j * filters * step + forth * s * SIZE, True)

    return ask_own, ask_behind, ask_factors


def _multiply(config: TilesConfig) -> Callable[..., None]:
    """``multiply(total, seen, shared, places)``: a channel's products.

    ``places``: where a thread's steps lie and its factors, and how far it is from tap to tap. Each tap reads its own pieces;
    where taps see neighbours, the first reads what all of them see.
    """
    window, looks, hop = config.dilation > 0, config.looks, config.wide // PIECES
    read, apart = read_at("float32", 4), 4 * config.across  # from a thread's four filters to its next
    at_once = looks if window else 1
    whole = at_once * VEC

    def tap(s: int) -> Callable[..., None]:
        row, first = s * config.pitch, config.shift + s * config.dilation if window else 0

        @device
        def multiply_tap(total, seen, shared, places):
            factor = cuda.local.array(FILTERS, f32)
            if s == 0 or not window:
                for p in range(PIECES):
                    for j in range(at_once):
                        at = i32(places[0] + s * places[2] + (p * hop + j * VEC) * SIZE)
                        read(seen, i32((p * at_once + j) * VEC), shared, at)
            for j in range(FILTERS // 4):
                read(factor, i32(4 * j), shared, i32(places[1] + (row + j * apart) * SIZE))
            for f in range(FILTERS):
                for p in range(PIECES):
                    for v in range(VEC):
                        o = (f * PIECES + p) * VEC + v
                        total[o] = f32(total[o] + seen[p * whole + first + v] * factor[f])

        return multiply_tap

    return in_turn([tap(s) for s in range(config.taps)])


def _put(config: TilesConfig) -> Callable[..., None]:
    """``put(total, target, step, filters, steps)``: a thread's sums; of its tile so many filters and steps are in the result."""
    apart, hop, write = 4 * config.across, config.wide // PIECES, store_vector("float32", VEC, "float32")

    @device
    def put(total, target, step, filters, steps):
        for j in range(FILTERS // 4):
            for i in range(4):
                if i32(j * apart + i) < filters:
                    to = target + (j * apart + i) * step
                    for p in range(PIECES):
                        if i32(p * hop) < steps:
                            write(total, i32(((4 * j + i) * PIECES + p) * VEC), to + p * hop * SIZE)

    return put


def forward(config: TilesConfig) -> Callable[..., None]:
    """y[n,k,t] = sum over c,s of x[n, g*C+c, t - past + s*dilation] * w[k,c,s]; past = (S-1) * dilation."""
    taps, pitch, high, wide, lanes = config.taps, config.pitch, config.high, config.wide, LANES // config.across
    sums, count = FILTERS * PIECES * VEC, PIECES * VEC * (config.looks if config.dilation else 1)
    second = 8 if config.across > 2 else 0  # filters from one half of a warp to the other
    ask_own, ask_behind, ask_factors = _ask(config)
    multiply, put = _multiply(config), _put(config)

    def kernel(
        x, w, y, blocks_of_filters, tiles, groups, K, C, Q, dilation, halo, row, stage, x_strides, w_start, w_stride,
        y_strides, by_filters, by_tiles, by_groups, by_halo,
    ):  # fmt: skip
        shared = cuda.shared.array(0, WORD)
        total, seen = cuda.local.array(sums, f32), cuda.local.array(count, f32)
        base = shared_address(shared)
        a = quotient(i32(cuda.blockIdx.x), by_filters)
        k0 = i32((i32(cuda.blockIdx.x) - a * blocks_of_filters) * high)
        b = quotient(a, by_tiles)
        t0 = i32((a - b * tiles) * wide)
        n = quotient(b, by_groups)
        g = i32(b - n * groups)
        thread = i32(cuda.threadIdx.x)
        lane, warp = i32(thread % LANES), i32(thread // LANES)
        line = x + (i64(n) * x_strides[0] + i64(g * C) * x_strides[1]) * SIZE
        step, w_step = x_strides[1] * SIZE, w_stride * SIZE
        # what is asked for first is not kept waiting by where the rest lies
        c, p = i32(thread // (wide // VEC)), i32(thread % (wide // VEC))
        time = i32(t0 + p * VEC)
        own = (c, i32(c * row + (halo + p) * PIECE), time < Q)
        own_from = line + c * step + i64(time) * SIZE
        ask_own(shared, base, row, own, own_from, C, step)
        c = quotient(thread, by_halo)
        p = i32(thread - c * max(halo, i32(1)))
        time = i32(t0 + (p - halo) * VEC)
        behind = (c if halo > 0 and c < CHANNELS else i32(NONE), i32(c * row + p * PIECE), time >= 0)
        behind_from = line + c * step + i64(time) * SIZE
        ask_behind(shared, base, behind, behind_from, C)
        c, f = i32(lane % CHANNELS), i32(warp * TOGETHER + lane // CHANNELS)
        place = i32(CHANNELS * row + (c * (taps * pitch) + f) * SIZE)
        factors = (c if f < high else i32(NONE), place, i32(K - k0 - f))
        factors_from = w + (w_start + i64(g * K + k0 + f) * w_stride + c * taps) * SIZE
        ask_factors(shared, base, factors, factors_from, C, w_step)
        for i in range(sums):
            total[i] = f32(0)
        f, p = i32(i32(lane & 1) * 4 + i32(lane >> 4) * second), i32(warp * lanes + i32(i32(lane >> 1) & (lanes - 1)))
        time = i32(t0 + p * VEC)
        target = y + (i64(n) * y_strides[0] + i64(g * K + k0 + f) * y_strides[1] + time) * SIZE
        now, left = i32(0), i32(C)
        while left > 0:
            wait_async()
            cuda.syncthreads()
            here = min(left, i32(CHANNELS))
            left = i32(left - CHANNELS)
            if left > 0:
                to = i32(base + stage - now)
                own_from = own_from + CHANNELS * step
                behind_from = behind_from + CHANNELS * step
                factors_from = factors_from + CHANNELS * taps * SIZE
                ask_own(shared, to, row, own, own_from, left, step)
                ask_behind(shared, to, behind, behind_from, left)
                ask_factors(shared, to, factors, factors_from, left, w_step)
            at, products = i32(base + now + p * PIECE), i32(base + now + CHANNELS * row + f * SIZE)
            end = i32(at + here * row)
            while at < end:
                multiply(total, seen, shared, (at, products, i32(dilation * SIZE)))
                at, products = i32(at + row), i32(products + taps * pitch * SIZE)
            now = i32(stage - now)
        put(total, target, y_strides[1] * SIZE, i32(K - k0 - f), i32(Q - time))

    return kernel
