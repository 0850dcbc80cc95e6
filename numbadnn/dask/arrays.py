"""The arrays of a call: Dask arrays whose chunks fit, and where the elements of one are read from."""

from __future__ import annotations

import bisect
import itertools
import math
from typing import Any, NamedTuple

import dask.array as da
import numpy as np

Slices = tuple[slice, ...]


class Part(NamedTuple):
    """Elements of a block: those at ``take`` of what ``key`` names belong at ``put`` of the block."""

    key: Any
    take: Slices
    put: Slices


def operand(name: str, value: Any, channels: int | None = 1) -> da.Array:
    """A Dask array from an argument; what else has a shape and a dtype (zarr, NumPy, a memory map) becomes one.

    ValueError for chunk sizes that are not known, and for more than one chunk of the axis ``channels``; TypeError for
    chunks that are arrays of another kind than NumPy's or a GPU's.
    """
    if not isinstance(value, da.Array):
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            raise TypeError(
                f"{name}: expected a Dask array, or an array to make one of, got {type(value).__qualname__}"
            )
        chunks = list(getattr(value, "chunks", None) or ["auto"] * len(value.shape))
        if channels is not None and channels < len(chunks):
            chunks[channels] = -1
        value = da.from_array(value, chunks=tuple(chunks))
    known(name, value)
    if channels is not None and channels < value.ndim and len(value.chunks[channels]) > 1:
        raise ValueError(
            f"{name}: expected one chunk of the channels (axis {channels}), got {len(value.chunks[channels])}: "
            f"rechunk({{{channels}: -1}})"
        )
    return value


def known(name: str, array: da.Array) -> None:
    """TypeError, ValueError unless a Dask array has chunks of known sizes that are arrays of NumPy or of a GPU."""
    for axis, sizes in enumerate(array.chunks):
        if any(math.isnan(size) for size in sizes):
            raise ValueError(
                f"{name}: expected chunks of known sizes, those of axis {axis} are not known: call compute_chunk_sizes() first"
            )
    if not is_plain(array._meta):
        raise TypeError(
            f"{name}: expected chunks that are arrays of NumPy or CuPy, got {type(array._meta).__qualname__}: make such arrays "
            "of them first, as da.ma.filled does of masked ones and map_blocks of others"
        )


def is_plain(array: Any) -> bool:
    """Whether an array holds its elements and nothing else: an array of NumPy without a mask, or one on a GPU."""
    if isinstance(array, np.ndarray):
        return not isinstance(array, (np.ma.MaskedArray, np.matrix))
    return hasattr(array, "__cuda_array_interface__")


def as_said(array: Any, take: Slices, dtype: Any) -> None:
    """TypeError, ValueError for a chunk that is not what its Dask array says: elements of it would be taken for others."""
    if isinstance(array, np.ndarray) and not is_plain(array):
        raise TypeError(
            f"expected a chunk that is an array of NumPy, as its Dask array says, got {type(array).__qualname__}"
        )
    if array.dtype != dtype:
        raise TypeError(
            f"expected a chunk of {dtype}, as its Dask array says, got {array.dtype}: tell map_blocks the dtype, or use astype"
        )
    least = tuple(s.stop for s in take)
    if len(array.shape) != len(least) or any(n < m for n, m in zip(array.shape, least, strict=True)):
        raise ValueError(
            f"expected a chunk of at least {least}, as its Dask array says, got one of {tuple(array.shape)}: tell map_blocks "
            "the chunks"
        )


def stand_in(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of this shape that takes no memory, to ask numbadnn about."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def source_of(array: da.Array) -> Any:
    """(key, array) of what ``from_zarr`` or ``from_array`` made this Dask array of, where windows can be read of it; or None.

    A window is then read as it is, whatever the chunks; from others it is put together of chunks.
    """
    key = f"original-{array.name}"
    if key not in array.dask.layers:
        return None
    node = array.dask[key]
    source = getattr(node, "value", node)
    readable = isinstance(source, np.ndarray) or type(source).__module__.partition(".")[0] == "zarr"
    return (key, source) if readable and source.shape == array.shape and source.dtype == array.dtype else None


def border(chunk: Any, take: Slices) -> Any:
    """A copy of a part of a chunk, laid out as it, which does not keep the chunk."""
    return chunk[take].copy(order="K")


class Window:
    """Where the elements of slices of a Dask array lie: in which chunks, or in the source they all are read from."""

    def __init__(self, array: da.Array) -> None:
        self.array, self.source = array, source_of(array)
        self.edges = [[0, *itertools.accumulate(sizes)] for sizes in array.chunks]
        #: key -> task: copies of the borders of chunks, each made where the chunk is, and once
        self.borders: dict[Any, Any] = {}

    def parts(self, slices: Slices, front: tuple[int, ...]) -> list[Part]:
        """The parts of a block that has these slices from ``front`` on."""
        if any(s.start >= s.stop for s in slices):
            return []
        if self.source is not None:
            put = tuple(slice(f, f + s.stop - s.start) for f, s in zip(front, slices, strict=True))
            return [Part(self.source[0], slices, put)]
        along = [self._along(*axis) for axis in zip(self.edges, slices, front, strict=True)]
        return [self._part(choice) for choice in itertools.product(*along)]

    def chunks(self, axis: int, part: slice) -> list[tuple[int, int]]:
        """(start, stop) of each chunk of an axis that a slice overlaps."""
        edges = self.edges[axis]
        return [(edges[chunk], edges[chunk + 1]) for chunk, *_ in self._along(edges, part, 0)]

    @staticmethod
    def _along(edges: list[int], part: slice, front: int) -> list[tuple[int, slice, slice, int]]:
        """(chunk, slice of it, slice of the block, size of the chunk) of each chunk that a slice of an axis overlaps."""
        found = []
        for chunk in range(bisect.bisect_right(edges, part.start) - 1, bisect.bisect_left(edges, part.stop)):
            low, high = edges[chunk], edges[chunk + 1]
            start, stop = max(part.start, low), min(part.stop, high)
            if start < stop:
                put = slice(front + start - part.start, front + stop - part.start)
                found.append((chunk, slice(start - low, stop - low), put, high - low))
        return found

    def _part(self, choice: Any) -> Part:
        key: Any = (self.array.name, *(chunk for chunk, _, _, _ in choice))
        take, put = tuple(t for _, t, _, _ in choice), tuple(p for _, _, p, _ in choice)
        share = math.prod((t.stop - t.start) / n for _, t, _, n in choice)
        if share <= 0.5:  # do not keep, or send, a chunk for its border
            cut: Any = (f"border-{self.array.name}", *key[1:], *(n for t in take for n in (t.start, t.stop)))
            self.borders[cut] = (border, key, take)
            return Part(cut, tuple(slice(0, t.stop - t.start) for t in take), put)
        return Part(key, take, put)
