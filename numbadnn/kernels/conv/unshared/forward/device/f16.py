"""Unshared convolution of 16-bit types on tensor cores: each filter is read once, straight into registers.

A block has one output position of one group, and ``images`` images. Its warps first prefetch all that they will multiply: a
lane has 8 neighbouring terms of two filters at a time, a quad of lanes 32. While those are under way the block gathers what
the filters see, as it lies in memory, into rows of shared memory [image][term], of which a lane takes the same 8 terms. In
which order the terms of a product stand is free as long as both factors agree: here a lane's words follow each other. Warps
that share filters split their terms; their sums are added in order, through shared memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from numbadnn.kernels.conv.unshared.forward.f16_config import CHUNK, LANES, ROWS, F16Config
from numbadnn.kernels.conv.unshared.inputs.device.tile import tap_of
from numbadnn.kernels.lang.bits import load_bits
from numbadnn.kernels.lang.cuda import ELEMENT, SIMULATED, WORD, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.epilogue import scaled
from numbadnn.kernels.lang.intrinsics import ARRAY, emitted
from numbadnn.kernels.lang.llvm import _I32
from numbadnn.kernels.lang.mma import product
from numbadnn.kernels.lang.packed import load_words

#: bytes of an element
SIZE = 2


@functools.cache
def _look_at_words(count: int) -> Callable[..., None]:
    """``look(words, start, shared, at)``: ``count`` aligned words of shared memory into words[start:], one access."""
    if SIMULATED:

        def twin(words, start, shared, at):
            words[start : start + count] = shared[at : at + count]

        return twin

    @emitted(None, ARRAY, i32, ARRAY, i32)
    def look(builder, words, start, shared, at):
        vector = builder.load(builder.bitcast(shared.slot(at), ir.VectorType(_I32, count).as_pointer()))
        vector.align = 4 * count
        for i in range(count):
            words.put(start, i, builder.extract_element(vector, ir.Constant(_I32, i)))

    return look


def _gather(config: F16Config) -> Any:
    """``gather(...)``: words [image][pair of terms] of what the terms m0 to end see, 0 on padding and up to a whole chunk.

    A thread walks (channel, row, column) by additions. Where there is nothing to read the image's first element is read and not
    used: no branch stands between the loads.
    """
    row, images, threads, half = config.row, config.images, config.threads, load_bits(SIZE)
    batch, stretch = config.batch, 2 * config.threads

    @device
    def gather(patch, where, held, x, strides, n0, N, m0, end, corner, taps, steps, image):
        m = i32(m0 + 2 * cuda.threadIdx.x)
        c, r, s = tap_of(m, taps)
        lines = i32(u32(stretch - 2) // u32(taps[1]))  # what lies between two pairs of this thread
        right = i32(stretch - 2 - lines * taps[1])
        deep = i32(u32(lines) // u32(taps[0]))
        down = i32(lines - deep * taps[0])
        count, step = min(i32(images), i32(N - n0)), i64(strides[0] * SIZE)
        pairs = i32((end - m0 + CHUNK - 1) // CHUNK * (CHUNK // 2))
        for j in range(i32(cuda.threadIdx.x), pairs, threads):
            kept = u32(0)
            for e in range(2):
                h = i32(corner[0] + r * steps[0])
                v = i32(corner[1] + s * steps[1])
                inside = m0 + 2 * j + e < end and h >= 0 and h < image[0] and v >= 0 and v < image[1]
                where[e] = i32(c * strides[1] + h * strides[2] + v * strides[3]) if inside else i32(0)
                kept = u32(kept | (u32(0xFFFF) << u32(16 * e))) if inside else kept
                s = i32(s + 1)
                r = i32(r + 1) if s == taps[1] else r
                s = i32(0) if s == taps[1] else s
                c = i32(c + 1) if r == taps[0] else c
                r = i32(0) if r == taps[0] else r
            low = x + i64(n0) * step + i64(where[0]) * SIZE
            high = x + i64(n0) * step + i64(where[1]) * SIZE
            for n in range(0, count if count < batch else 0):
                lower, upper = half(low + n * step), half(high + n * step)
                patch[u32(n * row + j)] = u32((lower | (upper << u32(16))) & kept)
            for wanted in range(0, count if count >= batch else 0, batch):
                first = min(i32(wanted), i32(count - batch))  # some images twice rather than a test between the loads
                at0, at1 = low + first * step, high + first * step
                for n in range(batch):
                    held[2 * n], held[2 * n + 1] = half(at0), half(at1)
                    at0, at1 = at0 + step, at1 + step
                start = u32(first * row + j)
                for n in range(batch):
                    patch[start + u32(n * row)] = u32((held[2 * n] | (held[2 * n + 1] << u32(16))) & kept)
            s = i32(s + right)
            r = i32(r + down)
            c = i32(c + deep)
            r = i32(r + 1) if s >= taps[1] else r
            s = i32(s - taps[1]) if s >= taps[1] else s
            c = i32(c + 1) if r >= taps[0] else c
            r = i32(r - taps[0]) if r >= taps[0] else r

    return gather


def _prefetch(config: F16Config) -> Any:
    """``prefetch(held, low, high, m, terms)``: a lane's terms of two filters in every chunk of its warp, from term ``m`` on."""
    vec, ahead, along, read = config.vec, config.ahead, config.along, load_words(config.vec // 2)

    @device
    def prefetch(held, low, high, m, terms):
        for i in range(ahead):
            for e in range(0, 8, vec):
                # past the end the last terms are read again, and not used
                at = i64(min(i32(m + i * (along * CHUNK) + e), i32(terms - vec))) * SIZE
                read(held, i32(i * 8 + e // 2), low + at)
                read(held, i32(i * 8 + 4 + e // 2), high + at)

    return prefetch


def _multiply(dtype: str, config: F16Config) -> Any:
    """``multiply(total, a, b, held, patch, own_words, m, end)``: the chunks of a warp; ``own_words``: a lane's first words
    of the patch."""
    ahead, along, row, tiles, zeros = config.ahead, config.along, config.row, config.tiles, config.zeros
    multiply_add, look = product(dtype, 16), _look_at_words(4)

    @device
    def multiply(total, a, b, held, patch, own_words, m, end):
        for i in range(ahead):
            start = i32(m + i * (along * CHUNK))
            for e in range(4):  # two words of a filter and its fellow make a step of 16 terms
                a[2 * e] = held[i * 8 + e]
                a[2 * e + 1] = held[i * 8 + 4 + e]
            if start + 8 > end:
                for e in range(4):
                    a[2 * e] = a[2 * e] if start + 2 * e < end else u32(0)
                    a[2 * e + 1] = a[2 * e + 1] if start + 2 * e < end else u32(0)
            there = (start & ~(CHUNK - 1)) < end
            at = i32(own_words + i * (along * CHUNK // 2)) if there else i32(zeros)
            step = i32(8 * row) if there else i32(0)
            for tile in range(tiles):
                look(b, i32(0), patch, i32(at + tile * step))
                multiply_add(total, i32(tile * 4), a, i32(0), b, i32(0))
                multiply_add(total, i32(tile * 4), a, i32(4), b, i32(2))

    return multiply


def forward(dtype: str, acc: str, config: F16Config) -> Callable[..., None]:
    """y[n,k,p,q] = sum over terms of what w[k,p,q] sees in image n; a block has ``chunks``' share of the images."""
    images, across, along, capacity, row = config.images, config.across, config.along, config.capacity, config.row
    tiles = config.tiles
    store = scaled(dtype, acc)
    whole, once, gather, prefetch = config.whole, config.once, _gather(config), _prefetch(config)
    multiply = _multiply(dtype, config)
    waiting, gathered, sums, zeros = 8 * config.ahead, 2 * config.batch, 4 * tiles, config.zeros
    threads = config.threads
    each, element = across * sums * LANES, ELEMENT[acc]

    def kernel(
        x, w, y, chunks, groups, N, K, C, image, Q, taps, padding, stride, dilation, flip, terms,
        x_strides, w_strides, y_strides, alpha, beta,
    ):  # fmt: skip
        patch = cuda.shared.array(0, WORD)
        parts = cuda.shared.array(0, element)  # the same memory
        held, total = cuda.local.array(waiting, WORD), cuda.local.array(sums, f32)
        a, b = cuda.local.array(8, WORD), cuda.local.array(4, WORD)
        where, loaded = cuda.local.array(2, np.int32), cuda.local.array(gathered, WORD)
        block = i32(cuda.blockIdx.x)
        place = i32(u32(block) // u32(chunks))
        n0 = i32((block - place * chunks) * images)
        position = i32(u32(place) // u32(groups))
        group = i32(place - position * groups)
        p = i32(u32(position) // u32(Q))
        q = i32(position - p * Q)
        lane, warp = i32(cuda.threadIdx.x % LANES), i32(cuda.threadIdx.x // LANES)
        part, under = i32(warp // across), i32(warp % across * ROWS)  # of the terms; of the filters
        g, t = i32(lane >> 2), i32(lane & 3)
        own_words = i32((g & (images - 1)) * row + part * (CHUNK // 2) + 4 * t)
        ahead_of = i32(part * CHUNK + 8 * t)
        first = x + (i64(group) * C * x_strides[1]) * SIZE
        base = w + (i64(group * K) * w_strides[0] + p * w_strides[1] + q * w_strides[2]) * SIZE
        # a flipped filter is walked in the order of its memory, its taps meet the image backwards
        corner = (i32(p * stride[0] - padding[0]), i32(q * stride[1] - padding[1]))
        steps = (dilation[0], dilation[1])
        if flip != 0:
            corner = (i32(corner[0] + (taps[0] - 1) * steps[0]), i32(corner[1] + (taps[1] - 1) * steps[1]))
            steps = (i32(-steps[0]), i32(-steps[1]))
        x_steps = (x_strides[0], i32(x_strides[1]), i32(x_strides[2]), i32(x_strides[3]))
        if cuda.threadIdx.x < 4:
            patch[u32(zeros + cuda.threadIdx.x)] = u32(0)
        for k0 in range(0, 1 if once else K, across * ROWS):
            for i in range(sums):
                total[i] = f32(0)
            low = base + i64(min(i32(k0 + under + g), i32(K - 1))) * w_strides[0] * SIZE
            high = base + i64(min(i32(k0 + under + g + 8), i32(K - 1))) * w_strides[0] * SIZE
            for m0 in range(0, capacity if whole else terms, capacity):
                end = min(i32(m0 + capacity), terms)
                prefetch(held, low, high, i32(m0 + ahead_of), terms)
                if k0 == 0 or not whole:  # otherwise it is still there
                    gather(patch, where, loaded, first, x_steps, n0, N, i32(m0), end, corner, taps, steps, image)
                cuda.syncthreads()
                multiply(total, a, b, held, patch, own_words, i32(m0 + ahead_of), end)
                if not whole:
                    cuda.syncthreads()
            mine = i32(zeros + 4 + warp * (sums * LANES) + lane)
            for i in range(sums):
                parts[u32(mine + i * LANES)] = total[i]
            cuda.syncthreads()
            for i in range(i32(cuda.threadIdx.x), each, threads):
                value = f32(0)
                for other in range(along):
                    value = f32(value + parts[u32(zeros + 4 + other * each + i)])
                other_lane, e = i32(i & (LANES - 1)), i32(i // LANES % sums)
                n = i32(n0 + (e >> 2) * 8 + (other_lane & 3) * 2 + (e & 1))
                k = i32(k0 + i // (LANES * sums) * ROWS + ((e >> 1) & 1) * 8 + (other_lane >> 2))
                if n < N and k < K:
                    at = i64(n) * y_strides[0] + (group * K + k) * y_strides[1] + p * y_strides[2] + q * y_strides[3]
                    target = y + at * SIZE
                    store(target, value, alpha, beta)

    return kernel
