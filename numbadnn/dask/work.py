"""What a worker does with a piece: puts its blocks together, calls numbadnn, and cuts off what is not the piece's."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import numbadnn
from numbadnn import config
from numbadnn.dask import devices
from numbadnn.dask.arrays import Slices, as_said
from numbadnn.pieces import Piece, Read

#: of each block: (slices of an array, slices of the block)
Places = tuple[tuple[tuple[Slices, Slices], ...], ...]


@dataclass(frozen=True)
class Call:
    """A function of numbadnn by name, the parameters of the whole, and what it runs under.

    ``dtypes``: of the blocks and of the result; blocks become of the dtype ``wide``, where there is one, before the call.
    ``like``: an empty array of their library. ``shape_argument``: what the function calls a gradient's input_shape. ``gpus``:
    blocks of NumPy go through these. ``options``: what was set where the Dask array was made.
    """

    function: str
    keywords: dict[str, Any]
    dtypes: tuple[Any, ...]
    like: Any
    shape_argument: str = "input_shape"
    unshared: bool = False
    gpus: devices.Gpus = None
    wide: Any = None
    options: tuple[tuple[str, Any], ...] = field(default_factory=lambda: options_in_force())

    def __post_init__(self) -> None:
        if self.gpus is not None and not isinstance(self.like, np.ndarray):
            raise ValueError(
                f"device: expected None for chunks that are on a GPU, where they are computed, got chunks of "
                f"{type(self.like).__module__}.{type(self.like).__qualname__}"
            )

    def parameters(self, piece: Piece) -> dict[str, Any]:
        own = dict(piece.keywords)
        if "input_shape" in own:
            own[self.shape_argument] = own.pop("input_shape")
        return {**self.keywords, **own}


def options_in_force() -> tuple[tuple[str, Any], ...]:
    """(name, value) of what ``numbadnn.using`` and ``set_options`` have set here; a worker's own process decides the rest."""
    options = config.current()
    return tuple((n, v) for n, v in options.__dict__.items() if options.origin[n] in ("using", "set_options"))


@contextmanager
def in_force(options: tuple[tuple[str, Any], ...]) -> Iterator[None]:
    """As if ``using`` set these, and no other block of it were in force here."""
    given = dict(options)
    values = config.of_process().replace(given, dict.fromkeys(given, "using"))
    token = config._using.set(values)
    try:
        yield
    finally:
        config._using.reset(token)


def gathered(
    slot: int, read: Read, dtype: Any, arrays: list[Any], places: Any, call: Call, lane: devices.Lane | None
) -> Any:
    """A block where it is computed: put together, or, for a lane, on its GPU already."""
    if lane is None:
        return assemble(read, dtype, arrays, places, call.like)
    if call.wide is None and all(type(array) is np.ndarray for array in arrays):
        parts = [array[take] for array, (take, _) in zip(arrays, places, strict=True)]
        there = lane.from_parts(slot, read.shape, dtype, parts, [put for _, put in places])
        if there is not None:
            return there
    return assemble(read, dtype, arrays, places, call.like, functools.partial(lane.pinned, slot))


def assemble(read: Read, dtype: Any, arrays: list[Any], places: Any, like: Any, empty: Any = None) -> Any:
    """A block of parts, zero elsewhere; the part itself where that is all. ``empty(shape, dtype)`` gives other memory."""
    shape = read.shape
    if len(arrays) == 1 and empty is None and _is_whole(arrays[0], places[0][1], shape):
        return arrays[0][places[0][0]]
    block = empty(shape, dtype) if empty else _empty(shape, dtype, like, arrays)
    if math.prod(shape) != math.prod(s.stop - s.start for s in read.slices):
        block[...] = 0
    for array, (take, put) in zip(arrays, places, strict=True):
        for part, place in _rows(array, take, put):
            block[place] = array[part]
    return block


def _rows(array: Any, take: Slices, put: Slices) -> Iterator[tuple[Slices, Slices]]:
    """A part as it is, or of what is stored in chunks (zarr) a row of these after the other, for they are unpacked first."""
    stored = tuple(getattr(array, "chunks", None) or ())
    long = [i for i, (s, n) in enumerate(zip(take, stored, strict=False)) if s.stop - s.start > n]
    axis = long[0] if long else None
    if axis is None:
        yield take, put
        return
    start, end = take[axis].start, take[axis].stop
    while start < end:
        stop = min(end, (start // stored[axis] + 1) * stored[axis])
        shift = put[axis].start - take[axis].start
        yield (
            (*take[:axis], slice(start, stop), *take[axis + 1 :]),
            (*put[:axis], slice(start + shift, stop + shift), *put[axis + 1 :]),
        )
        start = stop


def _is_whole(array: Any, put: Slices, shape: tuple[int, ...]) -> bool:
    """Whether a part is all of a block, and in memory."""
    here = isinstance(array, np.ndarray) or hasattr(array, "__cuda_array_interface__")
    return here and put == tuple(slice(0, n) for n in shape)


def _empty(shape: tuple[int, ...], dtype: Any, like: Any, arrays: list[Any]) -> Any:
    """A block that lies in memory as its parts do: in C order, or with the channels last."""
    strides = getattr(arrays[0], "strides", None) if arrays else None
    if (
        strides
        and len(shape) > 2
        and strides[1] == np.dtype(dtype).itemsize
        and arrays[0].shape[1] > 1 != math.prod(shape[2:])
    ):
        return np.moveaxis(np.empty((shape[0], *shape[2:], shape[1]), dtype, like=like), -1, 1)
    return np.empty(shape, dtype, like=like)


@dataclass(frozen=True)
class Step:
    """The task of a piece. ``places``: for each block, of each of its parts the slices of the array and those of the block."""

    call: Call
    piece: Piece
    places: Places

    def __call__(self, blocks: list[list[Any]], filters: Any, out: Any = None) -> Any:
        """The piece. ``blocks``: for each block the arrays that its parts are of. ``out``: of a convolution, where it goes."""
        call, piece = self.call, self.piece
        if not piece.reads:
            return np.zeros(piece.shape, call.dtypes[-1], like=call.like)
        if call.unshared and filters is not None:
            filters = filters[(slice(None), *piece.outputs)]
        with in_force(call.options), devices.lane(call.gpus) as lane:
            given = [*zip(piece.reads, call.dtypes, blocks, self.places, strict=False)]
            for _, dtype, arrays, at in given:
                for array, (take, _) in zip(arrays, at, strict=True):
                    as_said(array, take, dtype)
            whole = [
                gathered(slot, read, dtype, arrays, at, call, lane)
                for slot, (read, dtype, arrays, at) in enumerate(given)
            ]
            if call.wide is not None:
                whole = [block.astype(call.wide, copy=False) for block in whole]
            weights = [] if filters is None else [filters]
            keywords = call.parameters(piece) if out is None else {**call.parameters(piece), "out": out}
            return placed(run(call, whole, weights, keywords, lane), piece)


@dataclass(frozen=True)
class Split:
    """The task of a piece of a convolution in steps along an axis: most of it sees one chunk, which is not copied then.

    ``puts``: where the result of each step lies in the piece. The first step is that of the chunk.
    """

    steps: tuple[Step, ...]
    puts: tuple[Slices, ...]
    shape: tuple[int, ...]

    def __call__(self, blocks: list[list[list[Any]]], filters: Any) -> Any:
        call = self.steps[0].call
        result = _empty(self.shape, call.dtypes[-1], call.like, blocks[0][0])
        for step, put, own in zip(self.steps, self.puts, blocks, strict=True):
            step(own, filters, result[put])
        return result


def run(call: Call, blocks: list[Any], weights: list[Any], keywords: dict[str, Any], lane: Any) -> Any:
    """The function itself, on a GPU where there is a lane to one, else where the blocks are."""
    function = getattr(numbadnn, call.function)
    if lane:
        return lane.call(function, blocks, weights, keywords)
    if hasattr(blocks[0], "__cuda_array_interface__"):
        weights = [devices.beside(blocks[0], w) for w in weights]
    return function(*blocks, *weights, **keywords)


def placed(found: Any, piece: Piece) -> Any:
    """The piece of a call's result: cropped, and in zeros where the call was about a part of it."""
    cropped = found[piece.crop]
    if cropped.shape == piece.shape:
        return cropped
    result = np.zeros(piece.shape, found.dtype, like=found)
    result[piece.place] = cropped
    return result
