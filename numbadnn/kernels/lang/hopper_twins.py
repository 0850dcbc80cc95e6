"""What the instructions of ``hopper.py`` do, in Python, under the CUDA simulator: bytes of shared memory, phases, tiles.

A block's shared memory and barriers hang on the simulator's manager of the block. Copies are complete when they are
asked for, which a kernel may rely on no less than on their being late; where all wait on barriers that are never completed,
the block ends with an error. The swizzle is on: 16-byte pieces are permuted by address bits 7 to 9, as the hardware
does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

SHARED_BYTES, START = 232448, 1040  # the start is not aligned, so that a kernel must see to it


class Barrier:
    """Arrivals and bytes that are still missing, and the parity of the current phase."""

    def __init__(self, arrivals: int) -> None:
        self.arrivals = self.missing = arrivals
        self.bytes = self.phase = 0


class Block:
    """What the threads of one block share; ``pieces``: of each group of 128 threads, what they exchange."""

    def __init__(self, threads: int) -> None:
        self.memory = np.zeros(SHARED_BYTES + START, np.uint8)
        self.barriers: dict[int, Barrier] = {}
        self.pieces: list[list[Any]] = [[None] * 128 for _ in range(-(-threads // 128))]


class Map(NamedTuple):
    """A descriptor: ``array`` has axes z, y, x; ``box`` is (x, y)."""

    array: np.ndarray
    box: tuple[int, ...]
    swizzled: bool = True


class Window(NamedTuple):
    """A descriptor of images: ``array`` has axes image, (z,) y, x, channel.

    Others are of (x, y) or (x, y, z), ``box`` is (channels, pixels).
    """

    array: np.ndarray
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]
    box: tuple[int, int]


def _block() -> Block:
    block: Any = threading.current_thread()  # _simulated_block.Block
    if block.twins is None:
        block.twins = Block(block.threads)
    found: Block = block.twins
    return found


def _thread() -> int:
    number: int = threading.current_thread().thread_id  # type: ignore[attr-defined]
    return number


def _meet() -> bool:
    """The 128 threads of a group wait for each other; whether this is the last."""
    last: bool = threading.current_thread().meet(_thread() >> 7, 128)  # type: ignore[attr-defined]
    return last


def nothing(*_: Any) -> None:
    """For what has no effect but on time, registers or visibility."""


def shared_start() -> int:
    return START


def map_address(words: Map) -> Map:
    return words


def map_target(words: Map | Window) -> int:
    return words.array.ctypes.data


def barrier_init(barrier: int, arrivals: int) -> None:
    _block().barriers[int(barrier)] = Barrier(int(arrivals))


def _settle(barrier: Barrier) -> None:
    if barrier.missing == 0 and barrier.bytes == 0:
        barrier.phase ^= 1
        barrier.missing = barrier.arrivals


def barrier_arrive(barrier: int) -> None:
    barrier_expect(barrier, 0)


def barrier_expect(barrier: int, nbytes: int) -> None:
    found = _block().barriers[int(barrier)]
    found.bytes += int(nbytes)
    found.missing -= 1
    if found.missing < 0:
        raise RuntimeError(f"barrier {barrier}: more arrivals than it was made for")
    _settle(found)


def barrier_wait(barrier: int, parity: int) -> None:
    found, parity = _block().barriers[int(barrier)], int(parity)
    threading.current_thread().wait_until(lambda: found.phase != parity)  # type: ignore[attr-defined]


def _swizzled(at: Any) -> Any:
    return at ^ ((at >> 7) & 7) << 4


def copy_box(target: int, source: Map, x: int, y: int, z: int, barrier: int) -> None:
    aligned, target = 1024 if source.swizzled else 128, int(target)
    if target % aligned:
        raise ValueError(f"a box is copied to {target}, which is not a multiple of {aligned}")
    data = tile_of(Map(source.array[int(z)], source.box[:2], source.swizzled), (x, y))
    _block().memory[target : target + data.size] = data
    arrived(int(barrier), data.size)


def copy_stretch(target: int, address: int, size: int, barrier: int) -> None:
    from numbadnn.kernels.lang.access import _bytes_at

    for start in range(0, int(size), 16):
        piece = bytes(_bytes_at(int(address) + start, 16))
        _block().memory[int(target) + start : int(target) + start + 16] = np.frombuffer(piece, np.uint8)
    arrived(int(barrier), int(size))


def tile_of(source: Map, at: tuple[int, ...]) -> np.ndarray:
    """The bytes of the box of a tensor in memory, as they lie from a multiple of 1024 on."""
    array, box, swizzled = source
    found = np.zeros(box[::-1], array.dtype)
    own, theirs = [], []
    for start, length, extent in zip(at[::-1], box[::-1], array.shape, strict=True):
        low, high = max(int(start), 0), min(int(start) + length, extent)
        own.append(slice(low - int(start), max(high, low) - int(start)))
        theirs.append(slice(low, max(high, low)))
    found[tuple(own)] = array[tuple(theirs)]
    data = found.view(np.uint8).ravel()
    if not swizzled:
        return data
    places = np.arange(0, data.size, 16)
    moved = np.empty_like(data).reshape(-1, 16)
    moved[_swizzled(places) // 16] = data.reshape(-1, 16)
    return moved.ravel()


def copy_pixels(
    target: int, source: Window, channel: int, x: int, y: int, image: int, barrier: int, right: int, down: int
) -> None:
    _copy_window(target, source, channel, [x, y], image, barrier, (right, down))


def copy_voxels(
    target: int, source: Window, channel: int, x: int, y: int, z: int, image: int, barrier: int,
    right: int, down: int, back: int,
) -> None:  # fmt: skip
    _copy_window(target, source, channel, [x, y, z], image, barrier, (right, down, back))


#: spatial axes -> corners from, to, and offsets below, as NVIDIA documents them
_RANGES = {2: (-128, 127, 256), 3: (-16, 15, 32)}


def _copy_window(
    target: int, source: Window, channel: int, at: list[int], image: int, barrier: int, off: tuple[int, ...]
) -> None:
    """Pixels from ``at`` on: the first axis fastest, each from its lower corner to the image's last plus the upper."""
    block, (channels, pixels) = _block(), source.box
    images, *sizes, depth = source.array.shape
    low, high, limit = _RANGES[len(at)]
    if int(target) % 1024 or not all(0 <= o < limit for o in off):
        raise ValueError(f"pixels are copied to {target} from {off} off: expected a multiple of 1024, 0 to {limit - 1}")
    if not all(low <= corner <= high for corner in (*source.lower, *source.upper)):
        raise ValueError(f"expected corners from {low} to {high}, got {source.lower} and {source.upper}")
    box, last = np.zeros((pixels, channels), source.array.dtype), sizes[::-1]
    for pixel in range(pixels):
        place = [int(a + o) for a, o in zip(at, off, strict=True)]
        if image < images and all(0 <= p < size for p, size in zip(place, last, strict=True)):
            here = source.array[(image, *place[::-1])][channel : min(channel + channels, depth)]
            box[pixel, : here.size] = here
        for i, size in enumerate(last):
            at[i] += source.steps[i]
            if at[i] <= size - 1 + source.upper[i]:
                break
            at[i] = source.lower[i]
        else:
            image += 1
    _arrive(block, int(target), box, int(barrier))


def store_box(target: Map, x: int, y: int, z: int, source: int) -> None:
    block, (width, height) = _block(), target.box[:2]
    item = target.array.itemsize
    at = int(source) + np.arange(0, height * width * item, 16)
    box = block.memory.reshape(-1, 16)[(_swizzled(at) if width * item == 128 else at) // 16].reshape(height, -1)
    plane = target.array[int(z)]
    inside = plane[int(y) : int(y) + height, int(x) : int(x) + width]
    inside[...] = box.view(target.array.dtype)[: inside.shape[0], : inside.shape[1]]


def meet(barrier: int) -> None:
    _meet()


def _arrive(block: Block, target: int, box: np.ndarray, barrier: int) -> None:
    """The rows of a box into shared memory, swizzled, and the barrier told of their bytes."""
    pieces = box.view(np.uint8).reshape(-1, 16)
    block.memory.reshape(-1, 16)[_swizzled(target + 16 * np.arange(len(pieces))) // 16] = pieces
    arrived(barrier, pieces.size)


def arrived(barrier: int, nbytes: int) -> None:
    """So many bytes of a copy are there."""
    found = _block().barriers[barrier]
    found.bytes -= nbytes
    _settle(found)


def _tile(descriptor: int, count: int, by_rows: bool, dtype: Any) -> np.ndarray:
    """The matrix of ``count`` rows of 32 bytes behind a descriptor of the 128-byte swizzle, or, by rows, of none."""
    memory, start = _block().memory, (descriptor & 0x3FFF) << 4
    leading, stride = (descriptor >> 16 & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
    swizzled = descriptor >> 62 == 1
    if not swizzled and (descriptor >> 62 or not by_rows):
        raise ValueError("expected a descriptor of the 128-byte swizzle, or of rows without one")
    size = np.dtype(dtype).itemsize
    i, byte = np.arange(count)[:, None], np.arange(0, 32, size)
    if not swizzled:
        at = start + (i >> 3) * stride + (i & 7) * 16 + (byte >> 4) * leading + (byte & 15)
    elif by_rows:
        at = start + (i >> 3) * stride + (i & 7) * 128 + byte
    else:
        k = byte // size
        at = start + (i >> 6) * leading + (k >> 3) * stride + (k & 7) * 128 + (i & 63) * 2
    at = _swizzled(at) if swizzled else at
    return memory.view(dtype)[at // size].astype(np.float32)


def wgmma(
    dtype: str, n: int, a_by_rows: bool, b_by_rows: bool, start: int = 0, fresh: bool = False
) -> Callable[..., None]:
    from numbadnn.kernels.lang.access import _numpy_type

    kind = _numpy_type(dtype)

    def multiply(sums: Any, a: int, b: int) -> None:
        block, thread = _block(), _thread()
        group, lane, warp = thread >> 7, thread & 31, (thread >> 5) & 3
        pieces = block.pieces[group]
        pieces[thread & 127] = (int(a), int(b))
        if _meet():
            if len(set(pieces)) != 1:
                raise ValueError("the threads of a group ask for different products")
            pieces[:] = [_tile(int(a), 64, a_by_rows, kind) @ _tile(int(b), n, b_by_rows, kind).T] * 128
        _meet()
        product, row, column = pieces[thread & 127], warp * 16 + (lane >> 2), 2 * (lane & 3)
        if fresh:
            sums[start : start + n // 2] = 0
        for j in range(n // 8):
            at, to = 8 * j + column, start + 4 * j
            sums[to : to + 2] += product[row, at : at + 2]
            sums[to + 2 : to + 4] += product[row + 8, at : at + 2]

    return multiply


def pack(dtype: str) -> Callable[[Any, Any], int]:
    from numbadnn.kernels.lang.access import _numpy_type

    def packed(a: Any, b: Any) -> int:
        return int(np.array([a, b], np.float32).astype(_numpy_type(dtype)).view(np.uint32)[0])

    return packed


def exchange(word: int, mask: int) -> int:
    block, thread = _block(), _thread()
    pieces = block.pieces[thread >> 7]
    pieces[thread & 127] = word
    _meet()
    found: int = pieces[(thread ^ int(mask)) & 127]
    _meet()
    return found


def store_tiles(address: int, *words: int) -> None:
    block, thread = _block(), _thread()
    pieces = block.pieces[thread >> 7]
    pieces[thread & 127] = int(address)
    _meet()
    first, lane = thread & 96, thread & 31
    for tile, word in enumerate(words):
        at = pieces[first + tile * 8 + (lane >> 2)] + 4 * (lane & 3)
        block.memory[at : at + 4] = np.array([word], np.uint32).view(np.uint8)
    _meet()


def store_transposed_tiles(address: int, *words: int) -> None:
    block, thread = _block(), _thread()
    pieces = block.pieces[thread >> 7]
    pieces[thread & 127] = int(address)
    _meet()
    first, lane = thread & 96, thread & 31
    for tile, word in enumerate(words):
        for half in range(2):
            at = pieces[first + tile * 8 + 2 * (lane & 3) + half] + 2 * (lane >> 2)
            block.memory[at : at + 2] = np.array([word >> (16 * half) & 0xFFFF], np.uint16).view(np.uint8)
    _meet()


def load_words(address: int) -> tuple[int, ...]:
    return tuple(int(word) for word in _block().memory[int(address) : int(address) + 16].view(np.uint32))


def store_words(address: int, *words: int) -> None:
    from numbadnn.kernels.lang.access import _bytes_at

    _bytes_at(int(address), 16)[:] = np.array(words, np.uint32).tobytes()


def keep_words(address: int, *words: int) -> None:
    _block().memory[int(address) : int(address) + 16].view(np.uint32)[:] = [int(word) & 0xFFFFFFFF for word in words]


def load_word(address: int) -> Any:
    return _block().memory[int(address) : int(address) + 4].view(np.uint32)[0]


def keep_word(address: int, word: int) -> None:
    _block().memory[int(address) : int(address) + 4].view(np.uint32)[0] = int(word)


def keep_pair(address: int, *numbers: Any) -> None:
    _block().memory[int(address) : int(address) + 8].view(np.float32)[:] = numbers


def as_float(word: int) -> Any:
    return np.array([int(word)], np.uint32).view(np.float32)[0]
