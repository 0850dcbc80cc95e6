"""The epilogue of ``numba.grouped_halves``: where each position of a block is read and written, and how results reach memory."""

from __future__ import annotations

from collections.abc import Callable

from numbadnn.kernels.conv.grouped.config import GroupedHalvesConfig
from numbadnn.kernels.conv.grouped.device.fill import write_at
from numbadnn.kernels.lang.access import load
from numbadnn.kernels.lang.bits import store_bits
from numbadnn.kernels.lang.cuda import INT32, cuda, device, f32, i32, i64, u32
from numbadnn.kernels.lang.hopper import pack
from numbadnn.kernels.lang.words import read_at, write_pair, write_words

SIZE = 2


def store_results(config: GroupedHalvesConfig) -> Callable[..., None]:
    """``put(shared, results, places, target, first, count, positions)``: results in shared memory to where they belong.

    ``places``: the table of where each position's lie behind ``target``, which has ``count`` channels; ``first``: the block's.
    """
    width, pitch, threads, per_block = config.put, config.result_pitch, config.threads, config.groups * config.results
    shares, words = per_block // width, max(1, width // 2)
    words_at = 2 if width == 1 else 1  # accesses to memory for one to shared memory
    read, single, half, look = read_at("int32", words), store_bits(4), store_bits(2), read_at("int32", 1)

    @device
    def write(shared, results, places, target, first, count, positions):
        held, place = cuda.local.array(words, INT32), cuda.local.array(1, INT32)
        for e in range(i32(cuda.threadIdx.x), i32(positions * shares), threads):
            position = i32(u32(e) // u32(shares))
            share = i32(e - position * shares)
            look(place, i32(0), shared, i32(places + 4 * position))
            if place[0] >= 0 and first + share * width < count:
                read(held, i32(0), shared, i32(results + position * pitch + share // words_at * 4 * words))
                at = target + i64(i32(place[0] + first + share * width)) * SIZE
                if words == 4:
                    write_words(at, held[0], held[min(1, words - 1)], held[min(2, words - 1)], held[words - 1])
                elif words == 2:
                    write_pair(at, held[0], held[words - 1])
                elif width == 1:
                    half(at, u32((i64(held[0]) >> (16 * (share & 1))) & 0xFFFF))
                else:
                    single(at, u32(i64(held[0]) & 0xFFFFFFFF))

    return write


def keep_results(dtype: str, config: GroupedHalvesConfig) -> Callable[..., None]:
    """``keep(total, shared, at, own, k, positions, alpha)``: what a lane has of 16 positions, to the results in shared memory.

    ``at``: the address of what it has of position ``own``, its first; ``k``: its first result of the warp's first group.
    """
    bunch, wide, results, pitch, packed = config.bunch, config.wide, config.results, config.result_pitch, pack(dtype)

    @device
    def keep(total, shared, at, own, k, positions, alpha):
        for half in range(2):
            if i32(own + 8 * half) < positions:
                for group in range(bunch):
                    for n in range(wide):
                        e = (group * wide + n) * 4 + 2 * half
                        if i32(k + n * 8) < results:
                            word = packed(f32(alpha * total[e]), f32(alpha * total[e + 1]))
                            write_at(shared, i32(at + (8 * half * pitch + (group * results + n * 8) * SIZE)), u32(word))

    return keep


def add_old_results(dtype: str, config: GroupedHalvesConfig) -> Callable[..., None]:
    """``add(total, shared, places, target, own, k, first, count, alpha, beta)``: total = alpha * total + beta * what is there."""
    bunch, wide, results, read = config.bunch, config.wide, config.results, load(dtype, "float32")
    look = read_at("int32", 1)

    @device
    def add(total, shared, places, target, own, k, first, count, alpha, beta):
        place = cuda.local.array(1, INT32)
        for half in range(2):
            look(place, i32(0), shared, i32(places + 4 * (own + 8 * half)))
            for group in range(bunch):
                for n in range(wide):
                    for e in range(2):
                        channel = i32(first + group * results + k + n * 8 + e)
                        slot = (group * wide + n) * 4 + 2 * half + e
                        total[slot] = f32(alpha * total[slot])
                        if place[0] >= 0 and k + n * 8 < results and channel < count:
                            old = read(target + i64(i32(place[0] + channel)) * SIZE)
                            total[slot] = f32(total[slot] + beta * old)

    return add


def tables(config: GroupedHalvesConfig) -> tuple[Callable[..., None], Callable[..., None]]:
    """What is a matter of divisions, worked out once for each position.

    ``sources(shared, at, capacity, tile, line, down)``: where it lies in the block's image, that of position 0 past the last.
    ``targets(shared, at, capacity, tile, corner, output, apart, phase, strides)``: where its results belong, -1: nowhere.
    """
    pitch, threads = config.pitch, config.threads

    @device
    def sources(shared, at, capacity, tile, line, down):
        for e in range(i32(cuda.threadIdx.x), capacity, threads):
            i = i32(u32(e) // u32(tile[1]))
            place = i32((i * down * line + e - i * tile[1]) * pitch) if i < tile[0] else i32(0)
            write_at(shared, i32(at + 4 * e), u32(place))

    @device
    def targets(shared, at, capacity, tile, corner, output, apart, phase, strides):
        for e in range(i32(cuda.threadIdx.x), capacity, threads):
            i = i32(u32(e) // u32(tile[1]))
            p = i32((corner[0] + i) * apart[0] + phase[0])
            q = i32((corner[1] + e - i * tile[1]) * apart[1] + phase[1])
            there = i < tile[0] and p < output[0] and q < output[1]
            place = i32(p * strides[0] + q * strides[1]) if there else i32(-1)
            write_at(shared, i32(at + 4 * e), u32(i64(place) & 0xFFFFFFFF))

    return sources, targets
