"""Convolutions of 16-bit types into few channels: products of 16 positions, 16 channels of the source and the result's channels.

    shared   [row][column][channels] of the source behind a tile, zeros outside; sums of the warps that share its channels
    a        16 neighbouring positions and 16 channels of one place behind them, read once by ldmatrix
    b        in registers: every tap; columns are the two phases along the rows and the channels of the image
    total    [ROWS][phase down]: each place adds to the rows and phases that meet it there, with their taps

A place that only one phase along meets adds to sums of its own, in which the other's are not looked at: what a result does not
meet is not added, not even times 0, so that infinities stay where they are. Zeros outside the source are terms forward,
and none in the images' gradient (``conv/device/absent.py``). A block takes one tile after the other; others on the same
multiprocessor multiply while it waits for the next.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.image.device.absent import add_anew
from numbadnn.kernels.conv.image.to_image_halves_config import ROWS, TERMS, ToImageHalvesConfig
from numbadnn.kernels.lang.access import load, store
from numbadnn.kernels.lang.async_copies import copy_or_zero, wait_async
from numbadnn.kernels.lang.bits import load_bits
from numbadnn.kernels.lang.cuda import ELEMENT, HALF, INT32, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.mma import load_matrices, product
from numbadnn.kernels.lang.words import in_turn, read_at, shared_address, write_at

SIZE, FLOAT = 2, ELEMENT["float32"]


def _take_filters(config: ToImageHalvesConfig) -> Callable[..., None]:
    """``take(b, w, strides, lane)``: for each row of taps and column of places a lane's terms, of its phase along and channel."""
    S, C, across, columns = config.taps[1], config.channels, config.stride[1], config.reach[1]
    left, leftmost, half = config.first[1], config.lowest[1], load_bits(SIZE)

    def of(r: int) -> Callable[..., None]:
        @device
        def take(b, w, strides, lane):
            later, c = i32(lane >> 4), i32((lane >> 2) & 3)
            start = i32(r * strides[2] + c * strides[1] + 2 * (lane & 3) * strides[0])
            for j in range(columns):
                s = i32(later + left - across * (leftmost + j))
                there = later < across and c < C and s >= 0 and s < S
                at = i32(start + s * strides[3]) if there else i32(0)
                for i in range(2):
                    place = w + i64(i32(at + 8 * i * strides[0])) * SIZE
                    word = i64(half(place)) | (i64(half(place + i64(strides[0]) * SIZE)) << 16)
                    b[2 * (r * columns + j) + i] = u32(word if there else i64(0))

        return take

    return in_turn([of(r) for r in range(config.taps[0])])


def _fill(config: ToImageHalvesConfig) -> Callable[..., None]:
    """``fill(shared, base, image, corner, size, strides)``: begin to copy the rows and columns from ``corner`` on."""
    (rows, columns), pitch, threads = config.source, config.pitch, config.threads
    pieces = config.parts * TERMS // 8
    count, copy = rows * columns * pieces, copy_or_zero(16)

    @device
    def fill(shared, base, image, corner, size, strides):
        for e in range(i32(cuda.threadIdx.x), count, threads):
            position = i32(u32(e) // u32(pieces))
            piece = i32(e - position * pieces)
            row = i32(u32(position) // u32(columns))
            h, v = i32(corner[0] + row), i32(corner[1] + position - row * columns)
            there = h >= 0 and h < size[0] and v >= 0 and v < size[1]
            place = i32(h * strides[0] + v * strides[1] + piece * 8) if there else i32(0)
            copy(shared, i32(base + position * pitch + piece * 16), image + i64(place) * SIZE, there)

    return fill


def _multiply(dtype: str, config: ToImageHalvesConfig) -> Callable[..., None]:
    """``multiply(total, b, halves, at)``: ROWS of 16 positions; ``at``: what row lane % 16 meets first."""
    R, down, top, lowest = config.taps[0], config.stride[0], config.first[0], config.lowest[0]
    columns, pitch, line, kinds = config.reach[1], config.pitch, config.source[1] * config.pitch, config.kinds
    firsts, seconds = config.firsts, config.seconds
    load_a, multiply_add = load_matrices(False), product(dtype, TERMS)

    def of(i: int) -> Callable[..., None]:
        """The same of the i-th row of the source."""

        @device
        def row(total, b, halves, at):
            a = cuda.local.array(4, INT32)
            for j in range(columns):
                load_a(a, i32(0), halves, i32(at + i * line + j * pitch))
                kind = 1 if j < firsts else kinds - 1 if j >= seconds else 0
                for u in range(ROWS):
                    for lower in range(down):
                        r = lower + top - down * (lowest + i - u)
                        if r >= 0 and r < R:
                            slot = ((u * down + lower) * kinds + kind) * 4
                            multiply_add(total, i32(slot), a, i32(0), b, i32((r * columns + j) * 2))

        return row

    return in_turn([of(i) for i in range(config.reach[0] + ROWS - 1)])


def _add_kinds(config: ToImageHalvesConfig) -> Callable[..., None]:
    """``add(total)``: what was summed apart for one phase along to the sums of both; the other's is not looked at."""
    tiles, kinds = ROWS * config.stride[0], config.kinds
    first, second = config.firsts > 0, config.seconds < config.reach[1]

    @device
    def add(total):
        later = (cuda.threadIdx.x & 3) >= 2
        for tile in range(tiles):
            for e in range(4):
                at = tile * kinds * 4 + e
                if first:
                    total[at] = f32(total[at] + (f32(0) if later else total[at + 4]))
                if second:
                    total[at] = f32(total[at] + (total[at + 4 * (kinds - 1)] if later else f32(0)))

    return add


def _keep(config: ToImageHalvesConfig) -> Callable[..., None]:
    """``keep(total, shared, at)``: a warp's sums to shared memory, [row][phase down][position][phase along][channel]."""
    lines, each, kinds = ROWS * config.stride[0], config.stride[1] * 16, config.kinds
    lanes, write = 2 * config.stride[1], write_at("float32", 2)

    @device
    def keep(total, shared, at):
        g, t = i32((cuda.threadIdx.x & 31) >> 2), i32(cuda.threadIdx.x & 3)
        if t < lanes:
            for line in range(lines):
                for half in range(2):
                    place = i32(at + (line * 16 + half * 8 + g) * each + t * 8)
                    write(total, i32(line * kinds * 4 + half * 2), shared, place)

    return keep


def _put(dtype: str, config: ToImageHalvesConfig, inputs: bool) -> Callable[..., None]:
    """``put(shared, at, out, where, size, strides, alpha, beta, anew)``: what the parts have of a way's positions, to the result.

    ``anew``: where the source's image and the filters begin, the image's rows and columns, and the strides of both.
    """
    (down, across), parts, part_bytes, C = config.stride, config.parts, config.part_bytes, config.channels
    pixels, threads, ways = ROWS * config.phases * 16, 32 * config.parts, config.ways
    read, old, write = read_at("float32", 4), load(dtype, "float32"), store(dtype, "float32")
    K, add = parts * TERMS, add_anew(dtype, config.taps, config.stride, config.first)

    @device
    def put(shared, at, out, where, size, strides, alpha, beta, anew):
        source, w, image, source_strides, w_strides = anew
        sums, more = cuda.local.array(4, f32), cuda.local.array(4, f32)
        thread = i32(u32(cuda.threadIdx.x) % u32(threads)) if ways > 1 else i32(cuda.threadIdx.x)
        for e in range(thread, pixels, threads):
            read(sums, i32(0), shared, i32(at + e * 16))
            for part in range(1, parts):
                read(more, i32(0), shared, i32(at + e * 16 + part * part_bytes))
                for c in range(C):
                    sums[c] = f32(sums[c] + more[c])
            line = i32(u32(e) // u32(16 * across))
            h, v = i32(where[0] * down + line), i32(where[1] * across + e - line * (16 * across))
            if h < size[0] and v < size[1]:
                to = out + i64(i32(h * strides[1] + v * strides[2])) * SIZE
                for c in range(C):
                    if inputs and sums[c] != sums[c]:
                        steps = (i32(1), source_strides[0], source_strides[1])
                        sums[c] = add(source, w, K, image, steps, w_strides, i32(c), h, v)
                    value = f32(alpha * sums[c])
                    if beta != f32(0):
                        value = f32(value + beta * old(to + i64(c * strides[0]) * SIZE))
                    write(to + i64(c * strides[0]) * SIZE, value)

    return put


def convolve(dtype: str, config: ToImageHalvesConfig, inputs: bool) -> Callable[..., None]:
    """out[n,c,h,w] = alpha * the sum over k, r, s that ``to_image`` writes down + beta * out[n,c,h,w].

    ``inputs``: of the images' gradient.
    """
    rows, columns, parts, ways, pitch = config.rows, config.columns, config.parts, config.ways, config.pitch
    lowest, leftmost = config.lowest
    line_bytes, strips = config.source[1] * config.pitch, config.rows // ROWS * (config.columns // 16)
    along, sums, taps = columns // 16, 4 * ROWS * config.stride[0] * config.kinds, 2 * config.taps[0] * config.reach[1]
    part_bytes, sums_bytes, source_bytes = config.part_bytes, config.sums_bytes, config.source_bytes
    take, fill, multiply, add_kinds, keep, put = (
        *(_take_filters(config), _fill(config), _multiply(dtype, config), _add_kinds(config), _keep(config)),
        _put(dtype, config, inputs),
    )

    def kernel(
        source, w, out, count, tiles, image, size, source_step, source_strides, start, w_strides, out_step, out_strides, alpha,
        beta,
    ):  # fmt: skip
        shared = cuda.shared.array(0, WORD)
        halves, floats = cuda.shared.array(0, HALF), cuda.shared.array(0, FLOAT)  # the same memory
        b, total = cuda.local.array(taps, WORD), cuda.local.array(sums, f32)
        base = shared_address(shared)
        lane, warp = i32(cuda.threadIdx.x & 31), i32(cuda.threadIdx.x >> 5)
        way = i32(u32(warp) // u32(parts)) if ways > 1 else i32(0)
        part = i32(warp - way * parts)
        take(b, w + (start + i64(part * TERMS) * w_strides[0]) * SIZE, w_strides, lane)
        first = i32(base + (lane & 15) * pitch + (lane >> 4) * 16 + part * (2 * TERMS))
        mine = i32(base + source_bytes + way * (parts * part_bytes))
        for tile in range(i32(cuda.blockIdx.x), count, i32(cuda.gridDim.x)):
            line = i32(u32(tile) // u32(tiles[1]))
            n = i32(u32(line) // u32(tiles[0]))
            p, q = i32((line - n * tiles[0]) * rows), i32((tile - line * tiles[1]) * columns)
            cuda.syncthreads()
            corner = (i32(p + lowest), i32(q + leftmost))
            fill(shared, base, source + i64(n) * source_step * SIZE, corner, image, source_strides)
            wait_async()
            cuda.syncthreads()
            for strip in range(way, strips, ways):
                row = i32(u32(strip) // u32(along))
                column = i32((strip - row * along) * 16)
                row = i32(row * ROWS)
                for i in range(sums):
                    total[i] = f32(0)
                multiply(total, b, halves, i32(first + row * line_bytes + column * pitch))
                add_kinds(total)
                turn = i32(u32(strip) // u32(ways))
                sums_at = i32(mine + (turn & 1) * sums_bytes)  # others may still read the last ones
                keep(total, floats, i32(sums_at + part * part_bytes))
                cuda.syncthreads()
                where = (i32(p + row), i32(q + column))
                anew = (source + i64(n) * source_step * SIZE, w + start * SIZE, image, source_strides, w_strides)
                put(floats, sums_at, out + i64(n) * out_step * SIZE, where, size, out_strides, alpha, beta, anew)

    return kernel
