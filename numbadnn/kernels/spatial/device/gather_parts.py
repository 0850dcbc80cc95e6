"""Tiles of pixels where points lie denser than pixels, as where a part of the image is enlarged: done part by part.

The denser the points, the smaller the parts, and the more neighbouring threads share a pixel's records, each with some that
follow one another; their sums are added in the order of a tree. A part so has about as many points as a tile elsewhere, and
all its threads have work.

    a tile of 32 x 8 pixels     +-------+-------+-------+-------+
    in four parts, each pixel   |   0   |   1   |   2   |   3   |     64 pixels for 256 threads
    one of four threads'        +-------+-------+-------+-------+
"""

from __future__ import annotations

from numbadnn.kernels.lang.cuda import cuda, device, i32, i64, u32
from numbadnn.kernels.spatial.device.gather import starts_of_pixel
from numbadnn.kernels.spatial.device.gather_tile import tile_of
from numbadnn.kernels.spatial.gradients import StagedGatherConfig
from numbadnn.problem import ITEMSIZE

#: threads that share a pixel's records, at most: a warp; columns of a part of a tile, at least
MOST_SHARES, NARROW = 32, 8


def parts_of_tile(dtype: str, acc: str, config: StagedGatherConfig):  # type: ignore[no-untyped-def]
    """``take(...) -> done``: a crowded tile part by part, each of as many pixels as ``share`` threads a pixel make of a block.

    A part whose box is too large is divided further. Not done where a pixel has too many records for all a warp's threads, or
    where a box is still too large in the end: what is done by then is to be done again.
    """
    size, threads, pieces, many, held = ITEMSIZE[dtype], config.threads, config.pieces, config.many, config.deep
    find, place, tile = starts_of_pixel(), place_of_part(config), tile_of(dtype, acc, config, held, True)
    clears, fewest, most_parts = -(-pieces // threads), 1 if held > config.held else 2, MOST_SHARES * config.many

    @device
    def take(arrays, most, records, entries, sizes, dy_of, img_of, target, ds, dot_of, left, top):
        _, _, needed, _, starts, counts = arrays
        _, height, width, _ = sizes
        thread = i32(cuda.threadIdx.x)
        share, at = i32(fewest), i32(0)
        while share <= MOST_SHARES and cuda.syncthreads_or(i32(1) if most > share * held else i32(0)) != 0:
            share = i32(share * 2)
        while share <= MOST_SHARES and at < most_parts:
            first_column, first_row, columns = place(i32(share * many), at, left, top)
            mine = i32(u32(thread) // u32(share))
            down = i32(u32(mine) // u32(columns))
            column, row = i32(first_column + mine - down * columns), i32(first_row + down)
            counts[0], live = 0, i32(0)
            if column < width and row < height:
                counts[0], live = (
                    find(starts, i32(0), entries + (row * i64(width + 2) + column) * 4, i64(width + 2) * 4),
                    i32(1),
                )
            into = (target + (row * ds[2] + column * ds[3]) * size, i64(0), ds[1] * size)
            part = (share, first_column, first_row, columns)
            done = tile(arrays, i32(0), records, live, sizes, dy_of, img_of, into, dot_of, part)
            cuda.syncthreads()  # all are done with what lies in shared memory
            if done:
                for r in range(clears):
                    if thread + r * threads < pieces:
                        needed[thread + r * threads] = 0
                at = i32(at + i32(u32(MOST_SHARES) // u32(share)))
            else:
                share = i32(share * 2)
        return share <= MOST_SHARES

    return take


def place_of_part(config: StagedGatherConfig):  # type: ignore[no-untyped-def]
    """``place(count, at, left, top) -> (column, row, columns)`` of one of ``count`` parts of the tile there, as square as can be.

    The tile is halved, its halves are, and so on; ``at`` is the number of the part's beginning where there are ``most_parts``.
    """
    wide, tall, most_parts = config.columns, config.rows, MOST_SHARES * config.many

    @device
    def place(count, at, left, top):
        columns, rows, parts = i32(wide), i32(tall), i32(1)
        while parts < count:
            parts = i32(parts * 2)
            second = i32(u32(at * parts) // u32(most_parts)) & 1
            if columns > max(rows, i32(NARROW)):
                columns = i32(columns >> 1)
                left = i32(left + second * columns)
            else:
                rows = i32(rows >> 1)
                top = i32(top + second * rows)
        return left, top, columns

    return place
