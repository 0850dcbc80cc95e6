"""How large chunks may be: as large as the memory lets each worker have, cut where that adds the fewest borders."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.utils import parse_bytes

import numbadnn
from numbadnn import pieces
from numbadnn.dask.arrays import known
from numbadnn.dask.operations import WINDOWED, problem_of, signature_of

#: what Python, Dask and scratch memory of the CPU's kernels take beside a worker's arrays
SPARE = 1.25
#: functions of one array in chunks, whose results stand in chunks that follow from its
FORWARD = tuple(name for name in WINDOWED if name != "pool_grad" and not name.endswith("weights"))


def suggest_chunks(
    function: Callable[..., Any],
    x: Any,
    w: Any = None,
    memory: Any = "8GiB",
    workers: int | None = None,
    **parameters: Any,
) -> tuple[int, ...]:
    """Chunks for ``x`` with which ``function(x, w, **parameters)`` stays within ``memory``, an integer for each axis.

    A worker holds a chunk with its border, its result and the filters; 1.25 times that for ``workers`` of them (default: the
    threads of Dask's scheduler) is at most ``memory``. Channels are one chunk; images are taken apart before they
    are cut; the chunks that ``x`` is stored in (zarr) stay whole where they fit. ``function``: one of ``FORWARD``, of
    numbadnn.dask or of numbadnn; ``x`` and ``w``: any arrays. Raises ValueError where not even chunks of one element fit.

    >>> import numpy as np, numbadnn.dask as nd
    >>> x = np.broadcast_to(np.float32(0), (1, 1, 2048, 2048, 1024))
    >>> nd.suggest_chunks(nd.conv3d, x, np.ones((1, 1, 5, 5, 5), "float32"), memory="4GiB", workers=2, border_mode="half")
    (1, 1, 100, 2048, 1024)
    """
    name = getattr(function, "__name__", "")
    if name not in FORWARD:
        raise ValueError(f"function: expected one of {', '.join(FORWARD)}, got {name or function!r}")
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise ValueError(f"workers: expected None or a number of at least 1, got {workers!r}")
    workers, own = workers or _threads(), getattr(numbadnn, name)
    problem, shape = _problem_of(own, x, w, parameters)
    limit, dtype = _bytes(memory) / SPARE / workers, np.dtype(x.dtype)
    constant = 0 if w is None else math.prod(w.shape) * np.dtype(w.dtype).itemsize

    def needed(chunks: tuple[int, ...]) -> float:
        return _largest(problem, shape, chunks) * dtype.itemsize + constant

    stored = _stored(x)
    if len(stored) < len(shape):  # lines are images of one row
        stored = (*stored[:2], 1, stored[2])
    chunks = list(shape)
    for axis in (0, *range(2, len(shape))):
        if 0 in shape or needed(tuple(chunks)) <= limit:
            break
        low, high = 1, chunks[axis]
        while low < high:  # the largest that fits, 1 where none does
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high) if needed((*chunks[:axis], middle, *chunks[axis + 1 :])) <= limit else (low, middle - 1)
            )
        chunks[axis] = low - low % stored[axis] if low > stored[axis] else low
    if 0 not in shape and needed(tuple(chunks)) > limit:
        least = math.ceil(needed(tuple(chunks)) * SPARE * workers)
        raise ValueError(f"memory: expected at least {least} bytes for chunks of one element, got {memory!r}")
    return tuple(chunks) if len(shape) == len(x.shape) else (*chunks[:2], chunks[3])


def _problem_of(function: Any, x: Any, w: Any, parameters: dict[str, Any]) -> tuple[Any, tuple[int, ...]]:
    """The problem, and the shape of ``x`` in it: a line is an image of one row."""
    names = [*signature_of(function).parameters]
    if isinstance(x, da.Array):
        known(names[0], x)
    problem = problem_of(function, parameters, {names[0]: x, **({} if w is None else {"filters": w})})
    shape = tuple(x.shape)
    return problem, (*shape[:2], 1, shape[2]) if len(shape) == 3 and function.__name__ != "causal_conv1d" else shape


def _bytes(memory: Any) -> int:
    try:
        return int(parse_bytes(memory))
    except (ValueError, TypeError):
        raise ValueError(f"memory: expected bytes or a size with a unit such as '8GiB', got {memory!r}") from None


def _stored(x: Any) -> tuple[int, ...]:
    """The chunks that an array is stored in, ones where it is not."""
    chunks = tuple(getattr(x, "chunks", None) or (None,))
    return chunks if all(isinstance(n, int) for n in chunks) else (1,) * len(x.shape)


def _threads() -> int:
    return int(dask.config.get("num_workers", None) or os.cpu_count() or 1)


def _largest(problem: Any, shape: tuple[int, ...], chunks: tuple[int, ...]) -> int:
    """Elements of a chunk with its border and of its result, at most."""
    cut = tuple(_sizes(n, c) for n, c in zip(shape, chunks, strict=True))
    along = [_candidates(sizes) for sizes in pieces.follow(problem, cut)]
    found = [pieces.piece(problem, part) for part in itertools.product(*along)]
    read = [sum(math.prod(read.shape) for read in piece.reads) for piece in found]
    return max(max(math.prod(chunks), r) + math.prod(piece.shape) for r, piece in zip(read, found, strict=True))


def _candidates(sizes: tuple[int, ...]) -> list[slice]:
    """Chunks of an axis that may be the largest: one of the ends, one between, which has two borders, or the longest."""
    edges = [0, *itertools.accumulate(sizes)]
    some = {0, len(sizes) // 2, len(sizes) - 1, sizes.index(max(sizes))}
    return [slice(edges[i], edges[i + 1]) for i in sorted(some)]


def _sizes(n: int, chunk: int) -> tuple[int, ...]:
    return (chunk,) * (n // chunk) + ((n % chunk,) if n % chunk else ())
