"""From the pieces of a result to Dask's graph: one task a piece, one copy of a border that several pieces see."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.array.utils import meta_from_array
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from numbadnn import pieces
from numbadnn.dask.arrays import Slices, Window, is_plain, known
from numbadnn.dask.work import Call, Split, Step

Chunks = tuple[tuple[int, ...], ...]


class Filters(NamedTuple):
    """What every task of a graph takes: one key, so that a worker gets it once; ``layer`` or ``array`` is where it comes from."""

    key: Any
    layer: dict[Any, Any]
    array: da.Array | None
    shape: tuple[int, ...]
    dtype: Any

    @property
    def value(self) -> Any:
        """The filters themselves, as an array of Dask or of another library."""
        return self.layer[self.key] if self.array is None else self.array


def filters_of(name: str, value: Any) -> Filters:
    """Filters as one object of the graph: any array, or a Dask array as one chunk; TypeError, ValueError as ``operand``.

    Those of NumPy are copied, as Dask copies its own: what a caller writes to them later changes no result, and no other array
    is taken for them on a GPU that has them.
    """
    if isinstance(value, da.Array):
        known(name, value)
        whole = value.rechunk(-1)
        return Filters((whole.name, *(0,) * whole.ndim), {}, whole, whole.shape, whole.dtype)
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise TypeError(f"{name}: expected an array, got {type(value).__qualname__}")
    if not isinstance(value, np.ndarray) and not hasattr(value, "__cuda_array_interface__"):
        value = np.asarray(value)  # zarr and the like
    if not is_plain(value):
        raise TypeError(f"{name}: expected a plain numpy.ndarray, got {type(value).__qualname__}")
    own = np.array(value) if isinstance(value, np.ndarray) else value
    key = f"{name}-{tokenize(own)}"
    return Filters(key, {key: own}, None, tuple(own.shape), own.dtype)


def slices_of(chunks: Chunks) -> Iterator[tuple[tuple[int, ...], Slices]]:
    """(index, slices) of every chunk."""
    edges = [[0, *itertools.accumulate(sizes)] for sizes in chunks]
    for index in np.ndindex(*map(len, chunks)):
        yield index, tuple(slice(e[i], e[i + 1]) for e, i in zip(edges, index, strict=True))


class Tasks:
    """The tasks of one call: a piece each, under ``name``."""

    def __init__(self, name: str, problem: Any, call: Call, operands: list[da.Array], filters: Filters | None) -> None:
        self.name, self.problem, self.call, self.filters = name, problem, call, filters
        self.windows = {array.name: Window(array) for array in operands}
        self.operands = operands
        self.layer: dict[Any, Any] = dict(filters.layer) if filters else {}

    def add(self, key: Any, part: Slices) -> None:
        """The task that computes this part of the result."""
        weights = self.filters.key if self.filters else None
        parts = inside_first(self, part)
        if len(parts) == 1:
            self.layer[key] = (*self._step(part), weights)
            return
        steps, blocks = zip(*map(self._step, parts), strict=True)
        puts = tuple(
            tuple(slice(s.start - w.start, s.stop - w.start) for s, w in zip(p, part, strict=True)) for p in parts
        )
        shape = tuple(s.stop - s.start for s in part)
        self.layer[key] = (Split(steps, puts, shape), [*blocks], weights)

    def _step(self, part: Slices) -> tuple[Step, list[list[Any]]]:
        """The step that computes a part, and for each of its blocks the keys of what it is put together of."""
        piece = pieces.piece(self.problem, part)
        places, blocks = [], []
        for read, array in zip(piece.reads, self.operands, strict=False):
            parts = self.windows[array.name].parts(read.slices, read.front)
            places.append(tuple((p.take, p.put) for p in parts))
            blocks.append([p.key for p in parts])
        return Step(self.call, piece, tuple(places)), blocks

    def graph(self) -> HighLevelGraph:
        dependencies = list({a.name: a for a in self.operands}.values())
        if self.filters and self.filters.array is not None:
            dependencies.append(self.filters.array)
        for window in self.windows.values():
            self.layer.update(window.borders)
        graph = HighLevelGraph.from_collections(self.name, self.layer, dependencies=dependencies)
        # a source is a layer of its own, below the array's
        sources = {window.source[0] for window in self.windows.values() if window.source is not None}
        graph.dependencies[self.name] = graph.dependencies[self.name] | sources
        return graph


#: bytes of a chunk that is worth a step of its own: to copy fewer takes no longer than two more calls
LEAST_CHUNK = 4 << 20


def inside_first(tasks: Tasks, part: Slices) -> list[Slices]:
    """A part of a convolution's output as what sees one chunk of NumPy alone, and what lies before and behind that.

    The part itself where that does not spare a copy: it sees several chunks along several axes, or of zarr, or small ones.
    """
    image, call = tasks.operands[0], tasks.call
    window = tasks.windows[image.name]
    if call.function not in ("conv2d", "conv3d") or call.gpus is not None or window.source is not None:
        return [part]
    seen, _ = pieces.seen(tasks.problem, part)
    chunks = [window.chunks(axis, s) for axis, s in enumerate(seen)]
    cut = [axis for axis, found in enumerate(chunks) if len(found) > 1]
    if len(cut) != 1 or not isinstance(image._meta, np.ndarray):
        return [part]
    axis = cut[0]
    chunk = max(chunks[axis], key=lambda c: min(c[1], seen[axis].stop) - max(c[0], seen[axis].start))
    size = (chunk[1] - chunk[0]) * math.prod(s.stop - s.start for i, s in enumerate(seen) if i != axis)
    low, high = pieces.within(tasks.problem, axis, *chunk)
    low, high = max(low, part[axis].start), min(high, part[axis].stop)
    if size * image.dtype.itemsize < LEAST_CHUNK or 2 * (high - low) < part[axis].stop - part[axis].start:
        return [part]
    ranges = ((low, high), (part[axis].start, low), (high, part[axis].stop))
    return [(*part[:axis], slice(*found), *part[axis + 1 :]) for found in ranges if found[0] < found[1]]


def token(call: Call, operands: list[da.Array], filters: Filters | None, *more: Any) -> str:
    """A name of a result, the same for the same call on the same arrays."""
    return f"{call.function}-{tokenize(call, [a.name for a in operands], filters and filters.key, *more)}"


def pieced(problem: Any, call: Call, operands: list[da.Array], filters: Filters | None, chunks: Chunks) -> da.Array:
    """The result of a call in these chunks."""
    name = token(call, operands, filters, chunks)
    tasks = Tasks(name, problem, call, operands, filters)
    for index, part in slices_of(chunks):
        tasks.add((name, *index), part)
    dtype = call.dtypes[-1]
    meta = meta_from_array(operands[0]._meta, ndim=len(chunks), dtype=dtype)
    return da.Array(tasks.graph(), name, chunks, dtype=dtype, meta=meta)
