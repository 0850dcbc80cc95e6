"""Pieces of an output that is computed part by part: what each sees of the input, in integers alone.

>>> from numbadnn import cases, pieces
>>> problem = cases.parse("conv2d x=float32:1x3x100x100 w=float32:8x3x5x5 pad=2,2,2,2 stride=2,2")
>>> pieces.seen(problem, (slice(0, 1), slice(0, 8), slice(0, 25), slice(0, 50)))
((slice(0, 1, None), slice(0, 3, None), slice(0, 51, None), slice(0, 100, None)), ((2, 0), (2, 1)))

So ``conv2d(x[those slices], w, border_mode=that, ...)`` is the piece, and nothing else of x is needed. A problem is that of
any convolution, pooling, upsampling or gradient: a case line as ``NUMBADNN_VERBOSE=exec`` prints it, parsed by ``cases``.
``numbadnn.dask`` stands on this module; so does any loop over a memory map.
"""

from __future__ import annotations

import itertools
from typing import Any

from numbadnn.pieces.axes import Windows
from numbadnn.pieces.call import Piece, Read, piece
from numbadnn.pieces.geometry import geometry, ranges

__all__ = ["Piece", "Read", "follow", "piece", "seen", "touched", "within"]

Slices = tuple[slice, ...]
Pairs = tuple[tuple[int, int], ...]


def seen(problem: Any, out_slice: Any) -> tuple[Slices, Pairs]:
    """What a piece of the output sees of the image: ``(in_slice, border_mode)``.

    ``out_slice``: a tuple of slices of the forward operation's output, all of the channels. ``in_slice``: the smallest slices of
    the image that hold everything that the piece sees; empty on an axis where its windows lie wholly in padding.
    ``border_mode``: (before, after) for each spatial axis, the padding that the piece has left; of an upsampling the samples
    between the last multiple of the ratio's denominator and the slice. Raises ValueError for slices of other steps and for
    a part of the channels, TypeError for other problems.
    Source: docs/explanation/semantics.md#sizes-and-padding.

    >>> from numbadnn import cases
    >>> problem = cases.parse("causal_conv1d x=float32:1x1x1x10 w=float32:1x1x1x4 pad=0,0,3,0")
    >>> seen(problem, (..., slice(5, 10)))
    ((slice(0, 1, None), slice(0, 1, None), slice(2, 10, None)), ((0, 0),))
    """
    return _across(problem, "out_slice", out_slice, forward=True)


def touched(problem: Any, in_slice: Any) -> tuple[Slices, Pairs]:
    """The outputs that see a piece of the image, which its gradient is a sum over: ``(out_slice, crop)``.

    ``crop``: for each spatial axis how far these outputs' windows reach (before, after) the piece. As the gradient's own
    ``border_mode`` crops, ``conv2d_grad_wrt_inputs(dy[out_slice], w, input_shape=piece's, border_mode=crop)`` is the
    piece. A negative number counts elements at that end that no window holds; their gradient is 0. Raises as ``seen``.

    >>> from numbadnn import cases
    >>> problem = cases.parse("conv2d x=float32:1x1x9x9 w=float32:1x1x3x3 pad=1,1,1,1")
    >>> touched(problem, (..., slice(0, 3), slice(0, 9)))[0][2:], touched(problem, (..., slice(0, 3), slice(0, 9)))[1]
    ((slice(0, 4, None), slice(0, 9, None)), ((1, 2), (1, 1)))
    """
    return _across(problem, "in_slice", in_slice, forward=False)


def within(problem: Any, axis: int, start: int, stop: int) -> tuple[int, int]:
    """(first, stop) of the outputs along a spatial axis that see elements start ... stop-1 of the image and no others.

    Padding counts as none. Windows alone: TypeError for an upsampling.

    >>> from numbadnn import cases
    >>> within(cases.parse("conv2d x=float32:1x1x9x9 w=float32:1x1x3x3 pad=1,1,1,1"), 2, 0, 5)
    (0, 4)
    """
    walk = dict(geometry(problem).axes)[axis]
    if not isinstance(walk, Windows):
        raise TypeError(f"problem: expected one of windows, got {problem}")
    return walk.within(start, stop)


def _across(problem: Any, name: str, slices: Any, forward: bool) -> tuple[Slices, Pairs]:
    shape = geometry(problem)
    here, there = (shape.output, shape.image) if forward else (shape.image, shape.output)
    wanted = ranges(name, slices, here, shape.channels)
    found, pairs = [slice(*part) for part in wanted], []
    found[shape.channels] = slice(0, there[shape.channels])
    for axis, walk in shape.axes:
        start, stop, before, after = (walk.seen if forward else walk.touched)(*wanted[axis])
        found[axis] = slice(start, stop)
        pairs.append((before, after))
    return tuple(found), tuple(pairs)


def follow(problem: Any, in_chunks: Any) -> tuple[tuple[int, ...], ...]:
    """How the result of ``problem`` is cut where its input is cut in these chunks, a tuple of sizes for each axis.

    Forward: output o belongs to element o*stride of the image (o*q/p of an upsampling); gradients: the reverse. Chunks
    that would be empty are left out; the result's channels are one chunk. ValueError where chunks do not add up to the input.

    >>> from numbadnn import cases
    >>> follow(cases.parse("conv2d x=float32:2x3x10x9 w=float32:4x3x3x3 pad=1,1,0,0"), ((1, 1), (3,), (5, 5), (9,)))
    ((1, 1), (4,), (5, 5), (7,))
    """
    shape = geometry(problem)
    forward = not problem.op.endswith(("grad_wrt_inputs", "pool_grad", "upsampling_grad"))
    here, there = (shape.image, shape.output) if forward else (shape.output, shape.image)
    for axis, (chunks, n) in enumerate(zip(in_chunks, here, strict=True)):
        if sum(chunks) != n:
            raise ValueError(f"in_chunks: expected sizes that add up to {n} for axis {axis}, got {tuple(chunks)}")
    found = [tuple(chunks) for chunks in in_chunks]
    found[shape.channels] = (there[shape.channels],)
    for axis, walk in shape.axes:
        edges, edge = [0], 0
        for chunk in in_chunks[axis]:
            edge += chunk
            edges.append((walk.forwards if forward else walk.backwards)(edge))
        sizes = tuple(b - a for a, b in itertools.pairwise(edges) if b > a)
        found[axis] = sizes or (0,)
    return tuple(found)
