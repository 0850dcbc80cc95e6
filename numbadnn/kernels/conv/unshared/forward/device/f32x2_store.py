"""Epilogue of ``device/f32x2.py``: sums go through shared memory, so that neighbouring threads store neighbours.

There they lie as [filter][image][position]; images and filters are an odd number of words apart, so that lanes meet most banks.
The warps of 16 filters wait for each other alone: while some write, others multiply.
"""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.unshared.forward.device.f32x2_cut import SUMS
from numbadnn.kernels.conv.unshared.forward.device.f32x2_plain import summed
from numbadnn.kernels.conv.unshared.forward.f32x2_config import FILTERS, IMAGES, LANES, F32x2Config
from numbadnn.kernels.lang.async_copies import meet_of
from numbadnn.kernels.lang.cuda import cuda, device, f32, i32, i64
from numbadnn.kernels.lang.epilogue import scaled
from numbadnn.kernels.lang.ptx import LOWEST, thread_here
from numbadnn.kernels.lang.words import read_at, write_at

#: bytes of an element
SIZE = 4


@device
def first_filter(part, K):
    """Of a warp's 16: the last ones have some of those before, so that none is missing."""
    return min(i32(part * FILTERS), i32(K - FILTERS))


def storing(config: F32x2Config) -> Callable[..., None]:
    """``store_results(results, first, total, row, y, again, corner, sizes, strides, factors)``: a tile's sums; all that
    multiply call it.

    ``first``: the address where they may lie meanwhile; ``row``: the lane's first filter. ``again``: what a result is made of
    that is not finite: x, w, channels, image, taps, stride, padding, flip, and both strides.
    """
    columns, parts, splits, threads = (
        config.positions,
        config.parts,
        config.splits,
        LANES * config.warps // config.parts,
    )
    positions, meet = config.tall * columns, meet_of(threads)
    of_image, of_filter, step = SIZE * (positions + 1), SIZE * config.pitch, threads // (positions * IMAGES)
    outputs, largest = FILTERS // step, -LOWEST["float32"]
    look, keep = read_at("float32", 1), write_at("float32", 1)
    store = scaled("float32", "float32")

    @device
    def place_of(i):
        """Of a lane's i-th sum, from its first one on."""
        return i32(i // 2 % 2 * (FILTERS // 2) * of_filter + (i // 4 * 8 + i % 2) * of_image)

    @device
    def gather(results, first, total, row, part):
        """[filter][image][position] in shared memory; of warps that share terms the first adds the others'."""
        thread, got = i32(thread_here()), cuda.local.array(SUMS, f32)
        warp, t, own = i32(thread >> 5), i32(thread & 3), i32(2 + part)
        place, split = i32(warp % positions), i32(warp // positions // parts)
        at = i32(first + row * of_filter + 2 * t * of_image + place * SIZE)
        meet(own)  # the sums before are written
        for s in range(splits):
            if s > 0:
                meet(own)
            if split == splits - 1 - s:
                if s > 0:
                    for i in range(SUMS):
                        look(got, i32(i), results, i32(at + place_of(i)))
                    for i in range(SUMS):
                        total[i] = f32(total[i] + got[i])
                for i in range(SUMS):
                    keep(total, i32(i), results, i32(at + place_of(i)))
        meet(own)

    @device
    def store_results(results, first, total, row, y, again, corner, sizes, strides, factors):
        N, K, P, Q = sizes
        alpha, beta = factors
        got, part = cuda.local.array(outputs, f32), i32(i32(thread_here()) // (LANES * positions) % parts)
        first = i32(first + part * (FILTERS * of_filter))
        gather(results, first, total, row, part)
        thread = i32(thread_here() - part * threads)
        place, rest = i32(thread % positions), i32(thread // positions)
        n, k0, k1 = i32(rest % IMAGES), i32(rest // IMAGES), first_filter(part, K)
        group, p, q = corner[0], i32(corner[1] + place // columns), i32(corner[2] + place % columns)
        if p < P and q < Q and n < N:
            at = i32(first + k0 * of_filter + n * of_image + place * SIZE)
            to = i64(n) * strides[0] + i64(group * K + k1 + k0) * strides[1] + i64(p) * strides[2] + i64(q) * strides[3]
            to, finite = y + to * SIZE, True
            for i in range(outputs):
                look(got, i32(i), results, i32(at + i * (step * of_filter)))
                finite = finite and abs(got[i]) <= f32(largest)
            if not finite:
                for k in range(k0, FILTERS, step):
                    look(got, i32(0), results, i32(at + (k - k0) * of_filter))
                    if not abs(got[0]) <= f32(largest):
                        got[0] = summed(again, n, group, i32(group * K + k1 + k), p, q)
                        keep(got, i32(0), results, i32(at + (k - k0) * of_filter))
                for i in range(outputs):
                    look(got, i32(i), results, i32(at + i * (step * of_filter)))
            for i in range(outputs):
                if k1 + k0 + i * step >= part * FILTERS:  # not the part's before as well
                    store(to, got[i], alpha, beta)
                to = to + strides[1] * (step * SIZE)

    return store_results
