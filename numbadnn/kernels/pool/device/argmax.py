"""Write which element of each window is its first maximum, one byte for each window, for ``device/maxima_grad.py``.

A thread looks at the windows of ``rows`` x ``columns`` outputs, from the last element to the first, so that the last to be at
least the best so far is the first of equals, and a NaN, always taken, stays until an earlier one is. Of a row it finds the best
of each window's columns once, for all windows above each other that see the row. See ``device/tiles.py`` for the layout
of images. 16-bit numbers: ``device/argmax_keys.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from numbadnn.kernels.lang.cuda import ACCUMULATOR, SIMULATED, cuda, device, i32, i64
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted
from numbadnn.kernels.lang.llvm import _I32, _asm
from numbadnn.kernels.pool.device.codes import CODE, store_codes
from numbadnn.kernels.pool.device.parts import INFINITY, locator, reader
from numbadnn.kernels.pool.tiles_config import TilesConfig
from numbadnn.problem import ITEMSIZE

Found = tuple[Any, Any]


def _joined(builder: Any, acc: str, best: Found, earlier: Found) -> Found:
    """The better (value, code) of two, the earlier where they are equal or it is NaN."""
    f, bits = ("f", "f32") if acc == "float32" else ("d", "f64")
    template = (
        f"{{.reg .pred p; setp.nan.{bits} p, $2, $2; setp.ge.or.{bits} p, $2, $4, p; "
        f"selp.{bits} $0, $2, $4, p; selp.b32 $1, $3, $5, p;}}"
    )
    result = ir.LiteralStructType([best[0].type, _I32])
    got = _asm(builder, template, f"=&{f},=&r,{f},r,{f},r", result, [*earlier, *best])
    return builder.extract_value(got, 0), builder.extract_value(got, 1)


def looker(acc: str, config: TilesConfig) -> Callable[..., None]:
    """``look(best, found, values, plane)``: the windows' maxima so far, and their codes, joined with an earlier plane's.

    ``values`` are the plane's rows; ``plane`` is the code of its first element.
    """
    lanes, columns, rows, capacity = config.lanes, config.columns, config.rows, config.x_piece().capacity
    (_, kh, kw), (_, sh, sw), tall = config.window, config.stride, config.x_rows
    if SIMULATED:

        def twin(best, found, values, plane):
            for n in range(rows * columns * lanes):
                p, q, e = n // (columns * lanes), n // lanes % columns, n % lanes
                for code in reversed(range(kh * kw)):
                    r, k = divmod(code, kw)
                    value = values[((p * sh + r) * capacity + q * sw + k) * lanes + e]
                    if value >= best[n] or value != value:
                        best[n], found[n] = value, plane + code

        return twin

    @emitted(None, ARRAY, ARRAY, ARRAY, i32)
    def look(builder, best, found, values, plane):
        zero = _I32(0)

        def of_row(t, q, e):
            seen = [(values.get(zero, (t * capacity + q * sw + k) * lanes + e), _I32(t * kw + k)) for k in range(kw)]
            value = seen.pop()
            while seen:
                value = _joined(builder, acc, value, seen.pop())
            return value

        tops = {(t, q, e): of_row(t, q, e) for t in range(tall) for q in range(columns) for e in range(lanes)}
        for p in range(rows):
            base = builder.sub(plane, _I32(p * sh * kw))
            for q in range(columns):
                for e in range(lanes):
                    n = (p * columns + q) * lanes + e
                    value = tops[p * sh + kh - 1, q, e]
                    for r in reversed(range(kh - 1)):
                        value = _joined(builder, acc, value, tops[p * sh + r, q, e])
                    value = value[0], builder.add(value[1], base)
                    value = _joined(builder, acc, (best.get(zero, n), found.get(zero, n)), value)
                    best.put(zero, n, value[0])
                    found.put(zero, n, value[1])

    return look


def settler(acc: str, config: TilesConfig) -> Callable[..., None]:
    """``settle(best, found, d, h, w)``: where all is -inf, as what lies outside is, the first element inside the image.

    d, h, w: where the first window begins.
    """
    lanes, columns, rows, (_, kh, kw), (_, sh, sw) = (
        config.lanes,
        config.columns,
        config.rows,
        config.window,
        config.stride,
    )
    if SIMULATED:

        def twin(best, found, d, h, w):
            for n in range(rows * columns * lanes):
                p, q = n // (columns * lanes), n // lanes % columns
                if best[n] == -INFINITY:
                    found[n] = (max(-d, 0) * kh + max(-h - p * sh, 0)) * kw + max(-w - q * sw, 0)

        return twin

    @emitted(None, ARRAY, ARRAY, i32, i32, i32)
    def settle(builder, best, found, d, h, w):
        zero = _I32(0)

        def before(start, more, step):
            gone = builder.sub(_I32(-more), start)
            return builder.mul(builder.select(builder.icmp_signed(">", gone, zero), gone, zero), _I32(step))

        deep = before(d, 0, kh * kw)
        down, across = [before(h, p * sh, kw) for p in range(rows)], [before(w, q * sw, 1) for q in range(columns)]
        for p in range(rows):
            for q in range(columns):
                first = builder.add(builder.add(deep, down[p]), across[q])
                for e in range(lanes):
                    n = (p * columns + q) * lanes + e
                    value = best.get(zero, n)
                    nothing = builder.fcmp_ordered("==", value, ir.Constant(value.type, -INFINITY))
                    found.put(zero, n, builder.select(nothing, first, found.get(zero, n)))

    return settle


def choose(dtype: str, acc: str, config: TilesConfig) -> Callable[..., None]:
    """codes from x."""
    (kd, kh, kw), (sd, sh, sw), (pd, ph, pw) = config.window, config.stride, config.pad
    A, size, lanes, columns, rows = ACCUMULATOR[acc], ITEMSIZE[dtype], config.lanes, config.columns, config.rows
    piece, check_rows, threads = config.x_piece(), config.check_rows, config.threads
    read, capacity, tall = (
        reader(dtype, acc, lanes, piece, -INFINITY, check_rows),
        piece.capacity * lanes,
        config.x_rows,
    )
    locate, look, settle, put_codes = locator(lanes), looker(acc, config), settler(acc, config), storer(config)
    padded, held, made = any(config.pad), tall * capacity, rows * columns * lanes

    def kernel(x, codes, tiles, by, many, D, H, W, cells, P, Q, deep_out):
        tile = i64(cuda.blockIdx.x) * threads + cuda.threadIdx.x
        if tile >= tiles:
            return
        group, j, i, o, n = locate(tile, by, many)
        values = cuda.local.array(held, A)
        best = cuda.local.array(made, A)
        found = cuda.local.array(made, CODE)
        for e in range(made):
            best[e] = A(-INFINITY)
            found[e] = i32(0)
        pitch = i64(cells) * size if lanes > 1 else i64(size)
        line, top = pitch * W, i32(i * (rows * sh) - ph)
        for back in range(kd):
            z = kd - 1 - back
            d = i32(o * sd + (z - pd))
            at = x + ((i64(n) * D + d) * H + top) * line + group * (lanes * size)
            for r in range(tall):
                h = i32(top + r)
                inside = d >= 0 and d < D and h >= 0 and h < H if check_rows else True
                read(values, r * capacity, at + r * line, j, W, pitch, inside)
            look(best, found, values, i32(z * (kh * kw)))
        if padded:
            settle(best, found, i32(o * sd - pd), top, i32(j * (columns * sw) - pw))
        put_codes(found, 0, codes, group, j, i, i64(n) * deep_out + o, cells, P, Q)

    return kernel


def storer(config: TilesConfig) -> Any:
    """``put(found, start, codes, group, j, i, plane, cells, P, Q)``: the tile's codes of a plane, as far as they are in it."""
    lanes, columns, rows, whole = config.lanes, config.columns, config.rows, config.whole
    together = whole and lanes == 1
    write = store_codes(columns if together else lanes)

    @device
    def put(found, start, codes, group, j, i, plane, cells, P, Q):
        pitch = i64(cells) if lanes > 1 else i64(1)
        line = pitch * Q
        at = codes + (plane * P + i * rows) * line + j * columns * pitch + group * lanes
        for p in range(rows):
            if i * rows + p < P:
                if together:
                    write(found, i32(start + p * columns), at + p * line)
                else:
                    for q in range(columns):
                        if whole or j * columns + q < Q:
                            write(found, i32(start + (p * columns + q) * lanes), at + p * line + q * pitch)

    return put
