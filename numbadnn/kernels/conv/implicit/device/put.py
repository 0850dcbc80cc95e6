"""How the sums of a tile reach memory: by the threads that hold them, or through shared memory, in lines or by the copy engine.

A group of 128 threads holds 64 rows of ``n`` columns as wgmma leaves them: thread t has row 16*warp + lane//4 (+8), columns
8*j + 2*(lane%4) (+1) in sums[4*j:]. The threads can write anywhere, with any strides, add what was there, and write
float32. Through shared memory they write lines of 128 bytes, each thread 16. The copy engine takes 64 rows by 64
columns at a time from one of two buffers of the group and drops what lies outside the array; the threads go on
meanwhile. It is faster where writing is most of the work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.kernels.conv.implicit.device.index import located
from numbadnn.kernels.conv.implicit.pixels_config import COPIES, LINES
from numbadnn.kernels.gemm.device.wgmma import _store_narrow, _store_wide
from numbadnn.kernels.gemm.gemm import WgmmaConfig
from numbadnn.kernels.lang import hopper
from numbadnn.kernels.lang.cuda import cuda, device, f32, i32, i64, u32
from numbadnn.problem import ITEMSIZE


def by_threads(n: int, store: int, out: str) -> Callable[..., None]:
    """``put(sums, upper, lower, upper_live, lower_live, column, columns, step, alpha, beta)``: two rows of a thread to memory."""
    wide, part = n > 128, min(n // 32, 4)  # a loop of more is not unrolled, and then the sums would lie in memory
    config = WgmmaConfig(n, 2, True, True, store)
    store_quarter = (_store_wide if store == 8 else _store_narrow)(config, out)

    @device
    def store_part(sums, start, upper, lower, up, low, column, columns, step, alpha, beta):
        for q in range(part):
            at = start + q
            store_quarter(sums, 16 * at, upper + 32 * at * step, up, column + 32 * at, columns, step, alpha, beta)
            store_quarter(sums, 16 * at + 2, lower + 32 * at * step, low, column + 32 * at, columns, step, alpha, beta)

    @device
    def put(sums, upper, lower, up, low, column, columns, step, alpha, beta):
        store_part(sums, 0, upper, lower, up, low, column, columns, step, alpha, beta)
        if wide:
            store_part(sums, 4, upper, lower, up, low, column, columns, step, alpha, beta)

    return put


def _to_shared(out: str, columns: int = 64) -> Callable[..., None]:
    """``put(sums, start, buffer, thread, alpha)``: 64 rows of 64 columns to shared memory, in the order of the swizzle.

    Of fewer columns (a multiple of 16) the rows lie one behind the other, not swizzled.
    """
    swizzled, pitch = columns == 64, 2 * columns
    pack, store_tiles = hopper.pack(out), hopper.store_tiles

    @device
    def store_chunk(sums, start, buffer, thread, alpha):
        lane = i32(thread & 31)
        row = i32(((thread >> 5) & 3) * 16 + (lane & 15))
        for i in range(columns // 16):
            piece = i32(2 * i + (lane >> 4))
            if swizzled:
                piece = i32(piece ^ (lane & 7))
            at = start + 8 * i
            store_tiles(
                u32(buffer + u32(row * pitch + piece * 16)),
                pack(f32(alpha * sums[at]), f32(alpha * sums[at + 1])),
                pack(f32(alpha * sums[at + 2]), f32(alpha * sums[at + 3])),
                pack(f32(alpha * sums[at + 4]), f32(alpha * sums[at + 5])),
                pack(f32(alpha * sums[at + 6]), f32(alpha * sums[at + 7])),
            )

    return store_chunk


def by_lines(n: int, out: str) -> Callable[..., None]:
    """``put(sums, buffers, turn, rows, column, columns, alpha)``: 64 rows, each thread 16 bytes of four of them.

    ``rows`` has the addresses of rows t//8, t//8 + 16 ... from column 0 of the group on, 0 for a row that there is not.
    """
    store_chunk, meet = _to_shared(out), hopper.meet
    load_words, store_words = hopper.load_words, hopper.store_words

    @device
    def put(sums, buffers, turn, rows, column, columns, alpha):
        thread = i32(cuda.threadIdx.x)
        barrier = i32((thread >> 7) + 1)
        row = i32((thread & 127) >> 3)
        piece = i32(thread & 7)
        for q in range(n // 64):
            buffer = u32(buffers + u32(((turn + q) & 1) * 64 * 128))
            store_chunk(sums, 32 * q, buffer, thread, alpha)
            meet(barrier)
            across = i32(column + 64 * q + 8 * piece)
            for i in range(4):
                if rows[i] != 0 and across < columns:
                    a, b, c, d = load_words(u32(buffer + u32((row + 16 * i) * 128 + ((piece ^ (row & 7)) << 4))))
                    store_words(i64(rows[i] + across * 2), a, b, c, d)

    return put


def by_copies(n: int, out: str) -> Callable[..., None]:
    """``put(sums, out_map, tail_map, buffers, turn, pixel, column, columns, group, alpha)``: 64 rows from (pixel, column) on.

    The last columns, fewer than 64, go by ``tail_map``. ``buffers``: the two of the group, taken in turn; ``turn`` is how
    often they were. Every thread of the group calls it.
    """
    chunks, tail, store_box = n // 64, n % 64, hopper.store_box
    fence, commit, wait_one, meet = hopper.fence_shared, hopper.commit_boxes, hopper.wait_boxes(1), hopper.meet

    def box_of(wide: int) -> Callable[..., None]:
        store_chunk = _to_shared(out, wide)

        @device
        def put_box(sums, q, box_map, buffer, pixel, column, columns, group, alpha, thread, barrier):
            if (thread & 127) == 0:
                wait_one()
            meet(barrier)
            store_chunk(sums, 32 * q, buffer, thread, alpha)
            fence()
            meet(barrier)
            if (thread & 127) == 0:
                if column + 64 * q < columns:
                    store_box(box_map, i32(column + 64 * q), pixel, group, buffer)
                commit()

        return put_box

    put_whole, put_rest = box_of(64), box_of(tail or 64)

    @device
    def put(sums, out_map, tail_map, buffers, turn, pixel, column, columns, group, alpha):
        thread = i32(cuda.threadIdx.x)
        barrier = i32((thread >> 7) + 1)
        for q in range(chunks):
            buffer = u32(buffers + u32(((turn + q) & 1) * 64 * 128))
            put_whole(sums, q, out_map, buffer, pixel, column, columns, group, alpha, thread, barrier)
        if tail:
            buffer = u32(buffers + u32(((turn + chunks) & 1) * 64 * 128))
            put_rest(sums, chunks, tail_map, buffer, pixel, column, columns, group, alpha, thread, barrier)

    return put


def by_whole_copies(n: int, out: str) -> Callable[..., None]:
    """The same of all columns between two meetings of the group, which has a buffer for each 64 of them."""
    chunks, tail, store_box = n // 64, n % 64, hopper.store_box
    store_chunk, put_tail = _to_shared(out), _to_shared(out, tail or 64)
    fence, commit, wait_all, meet = hopper.fence_shared, hopper.commit_boxes, hopper.wait_boxes(0), hopper.meet

    @device
    def put(sums, out_map, tail_map, buffers, turn, pixel, column, columns, group, alpha):
        thread = i32(cuda.threadIdx.x)
        barrier = i32((thread >> 7) + 1)
        if (thread & 127) == 0:
            wait_all()
        meet(barrier)
        for q in range(chunks):
            store_chunk(sums, 32 * q, u32(buffers + u32(q * 64 * 128)), thread, alpha)
        if tail:
            put_tail(sums, 32 * chunks, u32(buffers + u32(chunks * 64 * 128)), thread, alpha)
        fence()
        meet(barrier)
        if (thread & 127) == 0:
            for q in range(chunks):
                if column + 64 * q < columns:
                    store_box(out_map, i32(column + 64 * q), pixel, group, u32(buffers + u32(q * 64 * 128)))
            if tail and column + 64 * chunks < columns:
                at = u32(buffers + u32(chunks * 64 * 128))
                store_box(tail_map, i32(column + 64 * chunks), pixel, group, at)
            commit()

    return put


def by_transposed_copies(n: int, out: str) -> Callable[..., None]:
    """``put(sums, out_map, buffers, turn, live, row, column, columns, first, plane, alpha)``: 64 rows, transposed.

    They go to (row, first + column ...) of the map's ``plane``, if they are ``live``; all else as in ``by_copies``.
    """
    pack, store_transposed, store_box = hopper.pack(out), hopper.store_transposed_tiles, hopper.store_box
    fence, commit, wait_one, meet = hopper.fence_shared, hopper.commit_boxes, hopper.wait_boxes(1), hopper.meet

    @device
    def store_chunk(sums, start, buffer, thread, alpha):
        lane = i32(thread & 31)
        row = i32((lane >> 4) * 8 + (lane & 7))
        piece = i32((((thread >> 5) & 3) * 2 + ((lane >> 3) & 1)) ^ (lane & 7))
        for i in range(4):
            at = start + 8 * i
            store_transposed(
                u32(buffer + u32((row + 16 * i) * 128 + piece * 16)),
                pack(f32(alpha * sums[at]), f32(alpha * sums[at + 1])),
                pack(f32(alpha * sums[at + 2]), f32(alpha * sums[at + 3])),
                pack(f32(alpha * sums[at + 4]), f32(alpha * sums[at + 5])),
                pack(f32(alpha * sums[at + 6]), f32(alpha * sums[at + 7])),
            )

    @device
    def put(sums, out_map, buffers, turn, live, row, column, columns, first, plane, alpha):
        thread = i32(cuda.threadIdx.x)
        barrier = i32((thread >> 7) + 1)
        for q in range(n // 64):
            buffer = u32(buffers + u32(((turn + q) & 1) * 64 * 128))
            if (thread & 127) == 0:
                wait_one()
            meet(barrier)
            store_chunk(sums, 32 * q, buffer, thread, alpha)
            fence()
            meet(barrier)
            if (thread & 127) == 0:
                if live and column + 64 * q < columns:
                    store_box(out_map, row, i32(first + column + 64 * q), plane, buffer)
                commit()

    return put


def write_of(config: Any, axes: int, out: str) -> Callable[..., None]:
    """``write(sums, out, buffers, turn, pixel, column, ...)``: 64 pixels of a group of threads, ``n`` columns, to the target."""
    if config.store == COPIES:
        put_copies = (by_whole_copies if config.whole else by_copies)(config.n, out)

        @device
        def write_by_copies(sums, out_map, tail_map, buffers, turn, pixel, column, group, split, back, down, right, positions,
                            strides, split_stride, spread, extents, images, width, alpha, beta):  # fmt: skip
            put_copies(sums, out_map, tail_map, buffers, turn, pixel, column, width, group, alpha)

        return write_by_copies
    size, deep, position = ITEMSIZE[out], axes == 3, located(axes)

    @device
    def target_of(first, pixel, back, down, right, positions, strides, spread, extents, images):
        """(address of a pixel's first channel, whether there is such a pixel)."""
        image, z, y, x = position(pixel, positions)
        x = i32(x * spread[-1] + right)
        y = i32(y * spread[-2] + down)
        live = image < images and y < extents[-2] and x < extents[-1]
        offset = image * strides[0] + y * strides[-2] + x * strides[-1]
        if deep:
            z = i32(z * spread[0] + back)
            live = live and z < extents[0]
            offset += z * strides[2]
        return first + offset * size, live

    if config.store == LINES:
        put_lines, address = by_lines(config.n, out), hopper.ADDRESS

        @device
        def write_by_lines(sums, out_at, tail_at, buffers, turn, pixel, column, group, split, back, down, right, positions,
                           strides, split_stride, spread, extents, images, width, alpha, beta):  # fmt: skip
            rows = cuda.local.array(4, address)
            mine = i32(pixel + ((i32(cuda.threadIdx.x) & 127) >> 3))
            first = out_at + group * width * strides[1] * size
            for i in range(4):
                at, live = target_of(
                    first, i32(mine + 16 * i), back, down, right, positions, strides, spread, extents, images
                )  # fmt: skip
                rows[i] = i64(at) if live else i64(0)
            put_lines(sums, buffers, turn, rows, column, width, alpha)

        return write_by_lines
    put = by_threads(config.n, config.store, out)

    @device
    def write_by_threads(sums, out_at, tail_at, buffers, turn, pixel, column, group, split, back, down, right, positions, strides,
                         split_stride, spread, extents, images, width, alpha, beta):  # fmt: skip
        thread = i32(cuda.threadIdx.x)
        mine = i32(pixel + ((thread >> 5) & 3) * 16 + ((thread & 31) >> 2))
        across = i32(column + (thread & 3) * 2)
        first = out_at + i64(split) * split_stride + (group * width + across) * strides[1] * size
        upper, up = target_of(first, mine, back, down, right, positions, strides, spread, extents, images)
        lower, low = target_of(first, i32(mine + 8), back, down, right, positions, strides, spread, extents, images)
        put(sums, upper, lower, up, low, across, width, strides[1] * size, alpha, beta)

    return write_by_threads
