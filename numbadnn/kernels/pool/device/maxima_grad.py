"""The gradient of maxima of packed images, by tiles: each element adds up what the windows that chose it give.

Where windows overlap or leave the image, ``device/argmax.py`` has written which element each of them chose (``pool_grad``);
elsewhere a thread finds that out itself (``fused``). Windows outside the output give nothing; no atomics, and an element adds
up its windows in row-major order. See ``device/tiles.py`` for the layout of images.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.lang.cuda import ACCUMULATOR, SIMULATED, cuda, device, i32, i64
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted
from numbadnn.kernels.lang.llvm import _I32, _asm
from numbadnn.kernels.pool.device.codes import CODE
from numbadnn.kernels.pool.device.parts import INFINITY, after, locator, reader, writer, written_out
from numbadnn.kernels.pool.tiles_config import TilesConfig
from numbadnn.problem import ITEMSIZE


def giver(acc: str, config: TilesConfig, m: int) -> Callable[..., None]:
    """``give(total, ys, codes)``: what the windows of the tile's plane m of windows give to the elements of the tile."""
    lanes, capacity, wide, tall = (
        config.lanes,
        config.y_piece().capacity,
        config.columns * config.stride[2],
        config.tall,
    )
    (sd, _, _), (_, kh, kw) = config.stride, config.window
    depths = [(z, z - config.start(0, m)) for z in range(sd)]
    tests = [
        (((z * tall + y) * wide + x) * lanes + e, (t * capacity + u) * lanes + e, (dz * kh + r) * kw + k)
        for t in range(config.many_rows)
        for u in range(config.y_piece().length)
        for e in range(lanes)
        for z, dz in depths
        if 0 <= dz < config.window[0]
        for r in range(kh)
        for k in range(kw)
        for y, x in [(config.start(1, t) + r, config.start(2, u) + k)]
        if 0 <= y < tall and 0 <= x < wide
    ]
    if SIMULATED:

        def twin(total, ys, codes):
            for to, window, code in tests:
                if codes[window] == code:
                    total[to] += ys[window]

        return twin
    f, bits = ("f", "f32") if acc == "float32" else ("d", "f64")
    few = kh * kw * config.window[0] <= 32
    look = "and.b32 t, $3, $4; setp.ne.u32 p, t, 0" if few else "setp.eq.s32 p, $3, $4"
    template = f"{{.reg .pred p; .reg .b32 t; {look}; @p add.rn.{bits} $0, $0, $2;}}"

    @emitted(None, ARRAY, ARRAY, ARRAY)
    def give(builder, total, ys, codes):
        zero, one = _I32(0), _I32(1)
        bit = {
            w: builder.shl(one, codes.get(zero, w)) if few else codes.get(zero, w)
            for w in sorted({w for _, w, _ in tests})
        }
        for to, window, code in tests:
            old, share = total.get(zero, to), ys.get(zero, window)
            number = _I32(1 << code if code < 31 else -(2**31)) if few else _I32(code)
            value = _asm(builder, template, f"={f},0,{f},r,n", old.type, [old, share, bit[window], number])
            total.put(zero, to, value)

    return give


def storer(dtype: str, acc: str, config: TilesConfig) -> Any:
    """``store_all(state)``: the tile's elements, as far as they are in the image."""
    (sd, sh, _), lanes, rows, tall = config.stride, config.lanes, config.rows, config.tall
    put, wide = writer(dtype, acc, config), config.columns * config.stride[2]
    size = ITEMSIZE[dtype]

    @device
    def store_row(n, state):
        total, dx, group, j, i, o, plane, D, H, W, pitch = state
        d, h = i32(o * sd + n // tall), i32(i * (rows * sh) + n % tall)
        if d < D and h < H:
            at = dx + ((i64(plane) * D + d) * H + h) * (pitch * W) + group * (lanes * size)
            put(total, i32(n * wide * lanes), at, j, W, pitch)

    return written_out(store_row, sd * tall)


def gatherer(dtype: str, acc: str, config: TilesConfig, m: int) -> Any:
    """``gather(state)``: the planes of windows up to the tile's m-th, one after the other."""
    A, size, lanes, piece, many = ACCUMULATOR[acc], ITEMSIZE[dtype], config.lanes, config.y_piece(), config.many_rows
    give, before = giver(acc, config, m), gatherer(dtype, acc, config, m - 1) if m else None
    read, read_codes = reader(dtype, acc, lanes, piece, 0.0, True), reader("code", acc, lanes, piece, 0.0, True)
    rows, capacity = config.rows, piece.capacity * lanes
    deep, down, held = config.first_window(0) + m, config.first_window(1), many * capacity

    @device
    def gather_plane(state):
        total, codes, dy, group, j, i, o, plane, P, Q, deep_out, pitch, code_pitch = state
        ys = cuda.local.array(held, A)
        chosen = cuda.local.array(held, CODE)
        windows, first = i32(o + deep), i32(i * rows + down)
        at = ((i64(plane) * deep_out + windows) * P + first) * Q
        for s in range(many):
            p = i32(first + s)
            inside = windows >= 0 and windows < deep_out and p >= 0 and p < P
            row = at + s * i64(Q)
            read(ys, s * capacity, dy + row * pitch + group * (lanes * size), j, Q, pitch, inside)
            read_codes(chosen, s * capacity, codes + row * code_pitch + group * lanes, j, Q, code_pitch, inside)
        give(total, ys, chosen)

    return after(before, gather_plane)


def pool_grad(dtype: str, acc: str, config: TilesConfig) -> Callable[..., None]:
    """dx from codes and dy."""
    A, size, lanes, threads = ACCUMULATOR[acc], ITEMSIZE[dtype], config.lanes, config.threads
    gather, store_all, locate = (
        gatherer(dtype, acc, config, config.many_planes - 1),
        storer(dtype, acc, config),
        locator(lanes),
    )
    total_capacity = config.own

    def kernel(codes, dy, dx, tiles, by, many, D, H, W, cells, P, Q, deep_out):
        tile = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if tile >= tiles:
            return
        group, j, i, o, plane = locate(tile, by, many)
        total = cuda.local.array(total_capacity, A)
        for e in range(total_capacity):
            total[e] = A(0)
        pitch = i64(cells) * size if lanes > 1 else i64(size)
        code_pitch = i64(cells) if lanes > 1 else i64(1)
        gather((total, codes, dy, group, j, i, o, plane, P, Q, deep_out, pitch, code_pitch))
        store_all((total, dx, group, j, i, o, plane, D, H, W, pitch))

    return kernel


def chooser(acc: str, config: TilesConfig) -> Any:
    """``choose(xs, u, e) -> number``: which element of window u of a row is its first maximum, in row-major order.

    Backwards: see ``device/argmax.py``.
    """
    A, lanes, (kd, kh, kw), sw = ACCUMULATOR[acc], config.lanes, config.window, config.stride[2]
    volume, x_row = kd * kh * kw, config.x_piece().capacity * lanes

    @device
    def choose(xs, u, e):
        best, found = A(-INFINITY), i32(0)
        for back in range(volume):
            n = volume - 1 - back
            value = xs[(n // kw) * x_row + (u * sw + n % kw) * lanes + e]
            better = (value >= best) | (value != value)
            best = value if better else best
            found = i32(n) if better else found
        return found

    return choose


def fused(dtype: str, acc: str, config: TilesConfig) -> Callable[..., None]:
    """dx from x and dy, of windows that are inside the image and do not overlap."""
    (kd, kh, _), (sd, sh, _), columns = config.window, config.stride, config.columns
    A, size, lanes, threads, check_rows = (
        ACCUMULATOR[acc],
        ITEMSIZE[dtype],
        config.lanes,
        config.threads,
        config.check_rows,
    )
    read_x = reader(dtype, acc, lanes, config.x_piece(), -INFINITY, check_rows)
    read_y = reader(dtype, acc, lanes, config.y_piece(), 0.0, True)
    locate, choose, give, store_all = (
        locator(lanes),
        chooser(acc, config),
        giver(acc, config, 0),
        storer(dtype, acc, config),
    )
    x_row, y_capacity, total_capacity = config.x_piece().capacity * lanes, config.y_piece().capacity * lanes, config.own
    held = kd * kh * x_row

    def kernel(x, dy, dx, tiles, by, many, D, H, W, cells, P, Q, deep_out):
        tile = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if tile >= tiles:
            return
        group, j, i, o, plane = locate(tile, by, many)
        xs = cuda.local.array(held, A)
        ys = cuda.local.array(y_capacity, A)
        chosen = cuda.local.array(y_capacity, CODE)
        total = cuda.local.array(total_capacity, A)
        pitch = i64(cells) * size if lanes > 1 else i64(size)
        at = dy + ((i64(plane) * deep_out + o) * P + i) * (pitch * Q) + group * (lanes * size)
        read_y(ys, 0, at, j, Q, pitch, i < P and o < deep_out)
        for z in range(kd):
            at = x + ((i64(plane) * D + (o * sd + z)) * H + i * sh) * (pitch * W) + group * (lanes * size)
            for r in range(kh):
                inside = o * sd + z < D and i * sh + r < H if check_rows else True
                read_x(xs, (z * kh + r) * x_row, at + r * (pitch * W), j, W, pitch, inside)
        for u in range(columns):
            for e in range(lanes):
                chosen[u * lanes + e] = choose(xs, u, e)
        for e in range(total_capacity):
            total[e] = A(0)
        give(total, ys, chosen)
        store_all((total, dx, group, j, i, o, plane, D, H, W, pitch))

    return kernel
