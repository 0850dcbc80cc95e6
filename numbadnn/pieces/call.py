"""The call that computes a piece: what it reads, its parameters, and where its result lies in the piece.

A convolution takes a pair of padding for each side, so that a piece needs no padded copy. Pooling takes one number for both
sides and an upsampling none: there a few elements stand in front of what is read, so that the windows of the whole are
among those of the piece; what they alone give is cut off. They are called ``front`` and their values do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numbadnn.pieces.axes import Samples, Windows
from numbadnn.pieces.geometry import Geometry, geometry, ranges
from numbadnn.problems.conv import OPERATIONS, ConvProblem
from numbadnn.problems.pool import PoolProblem


class Read(NamedTuple):
    """A block that a call takes: zeros of ``shape``, with ``array[slices]`` from ``front`` on.

    Where ``shape`` is that of the slices and ``front`` is 0, the block is the slice itself.
    """

    slices: tuple[slice, ...]
    front: tuple[int, ...]
    shape: tuple[int, ...]


class Piece(NamedTuple):
    """``piece = zeros(shape); piece[place] = function(*blocks, **keywords)[crop]``, the blocks in the order of ``reads``.

    ``reads`` is empty where nothing is to be computed: the piece is zeros. Convolutions read the image (forward), or the
    gradient of the output (gradient of the inputs), or both (gradient of the weights). ``outputs``: the positions of the
    forward operation's output that the call is about, which unshared filters are for.
    """

    reads: tuple[Read, ...]
    keywords: dict[str, Any]
    crop: tuple[slice, ...]
    place: tuple[slice, ...]
    shape: tuple[int, ...]
    outputs: tuple[slice, ...]


class Along(NamedTuple):
    """A piece along one axis. ``image`` and ``output``: (start, stop, front, size) of the blocks of these arrays."""

    image: tuple[int, int, int, int]
    output: tuple[int, int, int, int]
    padding: Any
    call: int  # size of the image that the call is about
    crop: tuple[int, int]
    place: int


#: (walk, start, stop of the piece) -> the piece along this axis; None where it is nothing but zeros
Cut = Callable[[Any, int, int], Along | None]


def convolution(walk: Windows, low: int, high: int) -> Along:
    start, stop, before, after = walk.seen(low, high)
    if start == stop:  # nothing of the image: one zero that is padding stands for it
        return Along((0, 0, 1, 1), (low, high, 0, high - low), (before - 1, after), 1, (0, high - low), 0)
    size = stop - start
    return Along((start, stop, 0, size), (low, high, 0, high - low), (before, after), size, (0, high - low), 0)


def causal(walk: Windows, low: int, high: int) -> Along:
    """The function pads by itself, whatever the piece: outputs that see this padding instead of the image are cut off."""
    start, stop, _, _ = walk.seen(low, high)
    front = start % walk.stride
    at = (front + low * walk.stride - start) // walk.stride
    size = front + stop - start
    return Along((start, stop, front, size), (low, high, 0, high - low), None, size, (at, at + high - low), 0)


def convolution_gradient(walk: Windows, start: int, stop: int) -> Along | None:
    low, high, before, after = walk.touched(start, stop)
    if low == high:
        return None
    place = max(0, -before)
    size = stop - start - place
    return Along((0, 0, 0, 0), (low, high, 0, high - low), (max(0, before), max(0, after)), size, (0, size), place)


def pooling(walk: Windows, low: int, high: int) -> Along:
    """The padding is as large as either side needs; windows in front of the piece's are cut off."""
    start, stop, before, after = walk.seen(low, high)
    cut = -(-max(after - before, 0) // walk.stride) if before else 0
    pad = before + cut * walk.stride if before else after
    front = 0
    if not before and pad:
        cut = -(-pad // walk.stride)
        front = cut * walk.stride - pad
    size = front + stop - start
    count = (size + 2 * pad - walk.taps) // walk.stride + 1
    output = (low, high, cut, count)
    return Along((start, stop, front, size), output, pad, size, (cut, cut + high - low), 0)


def pooling_gradient(walk: Windows, start: int, stop: int) -> Along | None:
    low, high, _, _ = walk.touched(start, stop)
    if low == high:
        return None
    return _within(pooling(walk, low, high), start, stop)


def _within(whole: Along, start: int, stop: int) -> Along:
    """The part of a gradient that lies in elements start ... stop-1; elements that no output sees are left zero."""
    first, last, front, _ = whole.image
    begin, end = max(start, first), min(stop, last)
    return whole._replace(crop=(front + begin - first, front + end - first), place=begin - start)


def upsampling(walk: Samples, low: int, high: int) -> Along:
    start, stop, front, _ = walk.seen(low, high)
    size = front + stop - start
    at = low - walk.origin(start - front)
    return Along((start, stop, front, size), (low, high, at, at + high - low), None, size, (at, at + high - low), 0)


def upsampling_gradient(walk: Samples, start: int, stop: int) -> Along | None:
    low, high, _, _ = walk.touched(start, stop)
    if low == high:
        return None
    whole = upsampling(walk, low, high)
    count = -(-whole.call * walk.p // walk.q)
    return _within(whole._replace(output=(low, high, whole.output[2], count)), start, stop)


def piece(problem: Any, part: Any) -> Piece:
    """The call that computes ``part``, a tuple of slices, of what ``problem`` computes.

    Of a gradient of the weights ``part`` is a piece of the output's gradient, and the sum over all pieces is the result; each
    piece of unshared ones gives the filters of its positions, and the sum is over the images.
    Raises ValueError for slices of a step other than 1, for a part of the channels, and for conv3d2d, whose border_mode is a
    name alone: conv3d computes its pieces.

    >>> from numbadnn import cases
    >>> problem = cases.parse("conv2d x=float32:1x1x9x9 w=float32:1x1x3x3 pad=1,1,1,1")
    >>> half = piece(problem, (slice(0, 1), slice(0, 1), slice(0, 4), slice(0, 9)))
    >>> half.reads[0].slices[2:], half.keywords["border_mode"]
    ((slice(0, 5, None), slice(0, 9, None)), ((1, 0), (1, 1)))
    """
    shape, kind = geometry(problem), _kind(problem)
    cut_of, names = _KINDS[kind]
    whole = shape.output if kind in _FORWARD else shape.image
    wanted = ranges("part", part, whole, shape.channels)
    sizes = tuple(stop - start for start, stop in wanted)
    result = _filters_of(problem, sizes) if kind == "weights" else sizes
    cuts: list[Along | None] = [cut_of(walk, *wanted[axis]) for axis, walk in shape.axes]
    if 0 in sizes or None in cuts:
        return Piece((), {}, (), (), result, ())
    along = {axis: cut for (axis, _), cut in zip(shape.axes, cuts, strict=True) if cut}
    image = _read(shape, shape.image, wanted, {axis: cut.image for axis, cut in along.items()})
    output = _read(shape, shape.output, wanted, {axis: cut.output for axis, cut in along.items()})
    crop, place = [slice(None)] * len(sizes), [slice(None)] * len(sizes)
    for axis, cut in along.items():
        crop[axis], place[axis] = slice(*cut.crop), slice(cut.place, cut.place + cut.crop[1] - cut.crop[0])
    reads = tuple({"image": image, "output": output}[name] for name in names)
    keywords = _keywords(kind, problem, along, (wanted[0][1] - wanted[0][0], shape.image[shape.channels]))
    if kind == "weights" and problem.unshared:
        keywords["filter_shape"] = result
    outputs = tuple(slice(*cut.output[:2]) for cut in along.values())
    if kind == "weights":
        return Piece(reads, keywords, (), (), result, outputs)
    return Piece(reads, keywords, tuple(crop), tuple(place), result, outputs)


def _filters_of(problem: ConvProblem, outputs: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the filters whose gradient a piece of the output's gives: of unshared ones those of its positions."""
    if not problem.unshared:
        return problem.w.shape
    return (problem.w.shape[0], *outputs[2:], *problem.w.shape[len(outputs) - 1 :])


#: kind of operation -> how its axes are cut, and which arrays it reads
_KINDS: dict[str, tuple[Cut, tuple[str, ...]]] = {
    "conv": (convolution, ("image",)),
    "causal": (causal, ("image",)),
    "weights": (convolution, ("image", "output")),
    "grad": (convolution_gradient, ("output",)),
    "pool": (pooling, ("image",)),
    "pool_grad": (pooling_gradient, ("image", "output", "output")),
    "up": (upsampling, ("image",)),
    "up_grad": (upsampling_gradient, ("output",)),
}
#: kinds whose pieces are of the forward operation's output
_FORWARD = ("conv", "causal", "weights", "pool", "up")


def _kind(problem: Any) -> str:
    if isinstance(problem, ConvProblem):
        if OPERATIONS[problem.op].arrangement == "frames":
            raise ValueError(f"problem: expected conv3d, which takes pairs of padding, got {problem.op}")
        if OPERATIONS[problem.op].arrangement == "line":
            return "causal"
        return {"forward": "conv", "grad_inputs": "grad", "grad_weights": "weights"}[problem.direction]
    if isinstance(problem, PoolProblem):
        return problem.op
    return "up" if problem.op == "bilinear_upsampling" else "up_grad"


def _read(shape: Geometry, whole: Any, wanted: Any, along: dict[int, tuple[int, int, int, int]]) -> Read:
    """A block of an array of the shape ``whole``: batch as wanted, all channels, spatial axes as they were cut."""
    slices, front, sizes = [], [], []
    for axis, n in enumerate(whole):
        if axis in along:
            start, stop, before, size = along[axis]
        else:
            start, stop = (0, n) if axis == shape.channels else wanted[axis]
            before, size = 0, stop - start
        slices.append(slice(start, stop))
        front.append(before)
        sizes.append(size)
    return Read(tuple(slices), tuple(front), tuple(sizes))


def _keywords(kind: str, problem: Any, along: dict[int, Along], leading: tuple[int, int]) -> dict[str, Any]:
    """The parameters of the public function that differ from those of the whole."""
    padding = tuple(cut.padding for cut in along.values())
    image = (*leading, *(cut.call for cut in along.values()))
    if kind in ("pool", "pool_grad"):
        return {"pad": padding}
    if kind == "up_grad":
        return {"input_shape": image}
    if kind in ("up", "causal"):
        return {}
    return {"border_mode": padding, **({"input_shape": image} if kind == "grad" else {})}
