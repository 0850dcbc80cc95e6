"""How long cuDNN's engines take: what ``cudnn.graph`` is ranked by, before anybody asks cuDNN for an engine.

float32 without tensor cores is a matrix product in tiles like those of ``numba.implicit_tiles``, whose model of rounds of
blocks holds for it too, but no terms are split: the gradient of few filters is slow. 3x3 filters have their gradient from
Winograd's minimal filtering F(4x4, 3x3), not fused: 36 products of transformed tiles with a quarter of the multiplications,
between transforms that memory decides. No constant of that was fitted, those of the tiles are measurements of an H200.
Which convolutions and gradients of images with 3x3 filters cuDNN gives to engines that transform both (FFT,
Winograd), twice as fast, no model says: there it is asked (``may_transform``), and what it names has the time of ``transformed``.
"""

from __future__ import annotations

import math

from numbadnn.cudnn.graph.forms import Form, forms
from numbadnn.kept.tensor_cores import iterated, tiled_flops
from numbadnn.kernels.conv.tiles import model as tiles
from numbadnn.kernels.conv.tiles.product import Product
from numbadnn.problem import Spec
from numbadnn.problems.conv import ConvProblem

#: multiply-adds counted as two, in units of 1e6 a second; half of what the best engines reach on an H200
_RATE = {"float16": 3e8, "bfloat16": 3e8, "float32": 2e7, "float64": 2e7}
#: the same of engines that transform, which multiply less than 3x3 filters count: 54 to 61 on an H200, 36 of images of 224 x 224
_TRANSFORMED_RATE = 5.5e7
#: microseconds a channel that is summed, at least: 75 of 128, 168 of 256
_TRANSFORMED_CHANNEL = 0.6
#: of lines in 16 bits, all whose multiply-adds are counted for so many filters at least: no tensor core takes them
_LINE_RATE, _LINE_FILTERS = 3e7, 64
#: 16-bit products of dense filters, and the speed of memory, as 100 layers on an H200 have them
_PRODUCT_RATE, _COPY = 8e8, 4.2e6
#: what gradients of images take beside that for each byte they write
_WRITTEN = 7.5e6
#: 16-bit images of so few channels are filled up to eight, and so small groups waste most of a product: 31 to 49 us where
#: 9 to 15 would do (ResNeXt), 195 and 105 for the first layers of ResNet and VGG
_FILLED, _FILLED_RATE, _NARROW_MEMORY = 8, 1e8, 1.1e6
#: bytes a microsecond of 1x1 filters over 16-bit planes that are no multiple of 16 bytes: 4 to 206 us of 20 random problems
_RAGGED = 2.5e6
#: float32 channels-last with a channel a group has engines of its own, of whom the gradient of strided images is the slowest
_CHANNELWISE_RATE, _SPREAD_RATE = 7e6, 0.9e6
#: the gradient of its filters of 5x5 and more: 45 us of 1.5e7 operations, 4,645 of 1.4e9
_CHANNELWISE_FILTERS = 3.5e5
#: bytes a microsecond
_MEMORY = 3e6
_LAUNCH = 6.0
#: gradients of filters of little, which an engine adds up term by term: operations a microsecond
_SUMMED_RATE = 7e5

#: (rows, columns, terms, elements of a thread, blocks a multiprocessor), and how much more time an element takes
_TILES = (((128, 128, 8, 16, 4, 2), 1.0), ((128, 64, 8, 8, 8, 3), 1.1), ((128, 32, 8, 8, 4, 4), 1.3))
#: the gradient of so few channels has engines of its own, by FFT: microseconds a million positions, and more for each filter
_IMAGE, _IMAGE_POSITIONS, _IMAGE_FILTER = 4, 285.0, 3.4
#: beside a launch they take so much of the smallest: 16 to 29 us, channels last 75 and 82
_IMAGE_LEAST, _IMAGE_LEAST_LAST = 10.0, 60.0
#: bytes a microsecond of the gradient of filters over images of few channels, multiply-adds of long sums that are split
_IMAGE_FILTERS, _SPLIT_RATE = 0.17e6, 1.2e7
#: gradients of 3-D filters in 16 bits: microseconds more than, and times, what tensor cores need at least
_VOLUME, _VOLUME_TAKEN = 10.0, 1.2
#: how many times as long as that of images the gradient of volumes takes of fewer channels than a tile has
_VOLUME_NARROW, _VOLUME_WIDE = 1.25, 128
#: float32 in groups, 4 to 32 channels each
_GROUPED_RATE = {"forward": 7e6, "grad_inputs": 5e6, "grad_weights": 1.8e6}
#: 16 bits in groups whose channels are no power of two: what all take more, 48 each: 61 us of 4.8e7 operations, 635 of 2.6e10
_UNEVEN_RATE = 5e7
#: engines of the gradient of images are slower than those of the convolution by so much, and those of channels-last images
_BACKWARD, _LAST = 1.5, 1.3
#: 16-bit gradients over strided images by filters with gaps take no tensor core: multiply-adds as above, beside all else
_GAPS_RATE = {"grad_inputs": 6e7, "grad_weights": 2.2e7}
#: positions a microsecond that the gradient of a channel's filter over a line adds up, in C order and channels last
_LINE_POSITIONS, _LINE_POSITIONS_LAST = 300.0, 110.0
#: how many times this estimate is held to be taken, where what cuDNN's heuristics name is now and then several times slower than
#: its best engine, so that what is estimated near it is faster on an average: 384 random problems on an H200
_UNSURE = {
    ("filters", "forward"): 1.3, ("filters", "grad_inputs"): 1.3, ("filters", "grad_weights"): 1.6,
    ("image", "grad_weights"): 1.2, ("grouped", "forward"): 0.9, ("grouped", "grad_inputs"): 0.9,
}  # fmt: skip


def microseconds(problem: ConvProblem) -> float:
    """Launch, arithmetic or memory, and the copies of the cheapest form."""
    found = _straight(problem)
    if problem.direction == "grad_weights" and problem.groups == 1 and problem.axes == 2 and not problem.unshared:
        found = min(found, _LAUNCH + problem.flops / _SUMMED_RATE)
    return found + copies(next(forms(problem)))


def _straight(problem: ConvProblem) -> float:
    plain = problem.groups == 1 and not problem.unshared and problem.op != "causal_conv1d"
    if plain and problem.x.itemsize == 2:
        if problem.axes == 3 and max(problem.taps) > 1 and problem.x.shape[1] > _IMAGE:
            if problem.direction == "grad_weights":
                return _VOLUME + _VOLUME_TAKEN * iterated(problem)
            if problem.direction == "grad_inputs" and problem.x.shape[1] < _VOLUME_WIDE:
                return _VOLUME_NARROW * (_dense_halves(problem) + _transposed(problem))
        own = _dense_halves(problem) if problem.x.shape[1] > _IMAGE else _filled(problem)
        return max(_unsure(problem) * (own + _transposed(problem)), iterated(problem))
    channelwise = problem.groups == problem.x.shape[1] > 1 and problem.axes == 2 and not problem.unshared
    last = problem.x.is_channels_last
    if channelwise and (problem.x.itemsize == 2 or (problem.x.dtype == "float32" and not last)):
        return _channelwise(problem, last)
    return _unsure(problem) * (_LAUNCH + max(_arithmetic(problem), problem.bytes / _MEMORY))


def _unsure(problem: ConvProblem) -> float:
    """Of 16 bits: filters other than 1x1 and 3x3, of which alone layers of networks were measured; few channels; groups."""
    if problem.x.itemsize > 2 or problem.unshared or problem.op == "causal_conv1d":
        return 1.0
    image = problem.x.shape[1] <= _IMAGE
    kind = "grouped" if problem.groups > 1 else "image" if image else "filters"
    if kind == "filters" and set(problem.taps) in ({1}, {3}):
        return 1.0
    return _UNSURE.get((kind, problem.direction), 1.0)


def _filled(problem: ConvProblem) -> float:
    """16-bit images of few channels, which are filled up; their gradients take twice as long."""
    least = max(problem.flops * _FILLED / problem.x.shape[1] / _FILLED_RATE, problem.bytes / _MEMORY)
    if problem.direction == "forward":
        return 9.0 + least
    return (15.0 if problem.direction == "grad_inputs" else 10.0) + 2.2 * least


def _transposed(problem: ConvProblem) -> float:
    """Channels-first images in 16 bits are turned by the engine itself, both, but where a 1x1 filter reads whole vectors."""
    if problem.x.is_channels_last:  # channels that fill no vector are copied to ones that do
        ragged = [
            s.size * s.itemsize * (0.25 if s.shape[1] % 4 == 0 else 1.0) for s in (problem.x, problem.y) if _odd(s)
        ]
        return 2 * sum(ragged) / 1.2e6
    if not problem.x.is_contiguous:
        return 0.0  # what is copied the forms know
    turned = problem.x.itemsize * (problem.x.size + problem.y.size)
    if set(problem.taps) == {1} and set(problem.stride) == {1}:  # read as they lie, if not by whole vectors
        return turned / _RAGGED if math.prod(problem.x.shape[2:]) % 8 else 0.0
    return 2 + turned / 1.05e6


def _odd(spec: Spec) -> bool:
    return spec.shape[1] > _IMAGE and spec.shape[1] % 8 > 0


def _channelwise(problem: ConvProblem, last: bool) -> float:
    """A channel a group: a thread adds tap after tap, so that large filters take longer than their bytes."""
    if problem.x.itemsize > 2:
        base, rate = {"forward": (10, 3.6e6), "grad_inputs": (24, 1.55e6), "grad_weights": (10, 1.7e6)}[
            problem.direction
        ]
        return base + max(problem.flops / rate, problem.bytes / 2.1e6, _along_line(problem) / _LINE_POSITIONS)
    beyond = min(8.0, 0.5 * max(0, math.prod(problem.taps) - 9))
    if problem.direction == "grad_weights":
        return 10 + problem.bytes / (1.75e6 if last else 5e5)
    if problem.direction == "grad_inputs":
        return 15 + problem.bytes / 1.55e6 + beyond + 14 * (max(problem.stride) > 1)
    return 10 + problem.bytes / 2.4e6 + beyond


def _along_line(problem: ConvProblem) -> int:
    """Terms of a channel's filter over images of one row, else 0."""
    line = problem.direction == "grad_weights" and problem.x.shape[2] == 1
    return problem.y.size // problem.y.shape[1] if line else 0


def _dense_halves(problem: ConvProblem) -> float:
    """16-bit products of many channels: so near what memory or tensor cores need at least that what is added decides."""
    least = max(tiled_flops(problem) / _PRODUCT_RATE, problem.bytes / _COPY)
    if max(problem.stride) > 1 and max(problem.dilation) > 1 and problem.direction in _GAPS_RATE:
        least += problem.flops / _GAPS_RATE[problem.direction]
    wide, volume = max(problem.taps) > 1, problem.axes == 3
    strided, dilated = max(problem.stride) > 1, max(problem.dilation) > 1
    if problem.direction == "grad_weights":
        if wide:
            return 15.5 + 1.2 * least
        return 9.5 + least + 2.0 * strided + 1.5 * dilated
    usual = 7.5 + (1.25 if volume else 1.0) * least + 5.0 * wide
    if problem.direction == "grad_inputs":
        return usual + 8.0 * strided + 6.0 * dilated + problem.x.size * problem.x.itemsize / _WRITTEN
    return usual + 4.0 * (strided and not wide) + 3.0 * dilated


def copies(form: Form) -> float:
    """Microseconds of what a form copies."""
    return 2 * form.buffer_bytes / _MEMORY


def _arithmetic(problem: ConvProblem) -> float:
    if problem.x.itemsize == 2 and problem.op == "causal_conv1d" and not problem.unshared:
        filters = problem.w.shape[0] // problem.groups
        return problem.flops * -(-filters // _LINE_FILTERS) * _LINE_FILTERS / filters / _LINE_RATE
    if problem.x.itemsize == 2 and problem.groups > 1 and not problem.unshared:
        return _grouped_halves(problem)
    if problem.x.dtype != "float32" or problem.unshared:
        return problem.flops / _RATE[problem.x.dtype]
    if problem.groups == problem.x.shape[1] > 1 and problem.axes == 2 and problem.x.is_channels_last:
        spread = problem.direction == "grad_inputs" and max(problem.stride) > 1
        more = 18.0 if problem.direction == "grad_weights" else 0.0
        if more and problem.x.shape[1] % 8:
            more = max(problem.bytes / 0.075e6, _along_line(problem) / _LINE_POSITIONS_LAST)
        large = problem.direction == "grad_weights" and min(problem.taps) > 3
        rate = _CHANNELWISE_FILTERS if large else _SPREAD_RATE if spread else _CHANNELWISE_RATE
        return more + problem.flops / rate
    if problem.x.shape[1] <= _IMAGE and problem.direction == "grad_inputs":
        if problem.axes == 3 or problem.x.is_channels_last:  # none by FFT
            return max(_IMAGE_LEAST_LAST, problem.flops / _SPREAD_RATE)
        positions = problem.x.size / problem.x.shape[1] / 1e6
        return max(_IMAGE_LEAST, positions * (_IMAGE_POSITIONS + _IMAGE_FILTER * problem.y.shape[1]))
    if problem.direction == "grad_weights":
        if problem.x.shape[1] <= _IMAGE:
            return 300 + problem.bytes / _IMAGE_FILTERS
        if problem.axes == 2 and problem.groups == 1 and filtered(problem):
            return _winograd(problem)
        if problem.groups == 1:
            return min(_tiled(problem), 350 + problem.flops / _SPLIT_RATE)
    if problem.groups > 1:
        return max(_tiled(problem), problem.flops / _GROUPED_RATE[problem.direction])
    return _tiled(problem)


def _grouped_halves(problem: ConvProblem) -> float:
    """16 bits in groups: by kernels of their own where a group has 2**n channels, which read channels last."""
    channels, weights = problem.x.shape[1] // problem.groups, problem.direction == "grad_weights"
    narrow = 1 < channels <= _FILLED
    more = 25 + problem.flops / _UNEVEN_RATE if channels & (channels - 1) else 0.0
    if problem.x.is_contiguous and not (narrow and weights):
        more += 8 + _transposed(problem)
    if narrow:
        return more + (20 + problem.bytes / 2e6 if weights else 3 + problem.bytes / _NARROW_MEMORY)
    least = max(problem.flops / 3e8, problem.bytes / _MEMORY)
    if problem.direction == "grad_inputs":
        return more + 3 + (2.5 if max(problem.stride) > 1 else 1.5) * least
    return more + (8 if channels < 32 else 4) + least


def filtered(problem: ConvProblem) -> bool:
    """Whether its filters are 3x3 and read without gaps, for which transforms are worth it."""
    return set(problem.taps) == {3} and set(problem.stride) | set(problem.dilation) == {1}


def may_transform(problem: ConvProblem) -> bool:
    """Whether cuDNN may have an engine by FFT or Winograd for it; its heuristics alone know whether that is fast."""
    here = problem.x.dtype == "float32" and problem.axes == 2 and problem.groups == 1 and not problem.unshared
    return here and problem.direction != "grad_weights" and filtered(problem)


def transformed(problem: ConvProblem) -> float:
    """Microseconds of such an engine, where the heuristics name one first."""
    summed = (problem.x if problem.direction == "forward" else problem.y).shape[1]
    rate = _TRANSFORMED_RATE * min(1.0, 56 / problem.x.shape[-1]) ** 0.3
    return _LAUNCH + max(problem.flops / rate, problem.bytes / _MEMORY, _TRANSFORMED_CHANNEL * summed)


def _tiled(problem: ConvProblem) -> float:
    p = Product(problem)
    found = []
    for shape, factor in _TILES:
        m, n, _, _, _, resident = shape
        rounds = tiles.rounds(shape, p.tiles(m, n) * p.phases // p.met)  # it skips no phase
        multiplied = rounds * resident * m * n * p.terms * factor / tiles.SPEED[4]
        found.append(tiles.ROUND * math.ceil(rounds) + multiplied)
    slower = _BACKWARD if p.inputs else _LAST if problem.direction == "forward" and problem.x.is_channels_last else 1.0
    return min(found) * slower


def _winograd(problem: ConvProblem) -> float:
    """36 products in tiles of 64 x 64, and their operands and results written and read."""
    channels, filters = problem.x.shape[1], problem.y.shape[1]
    terms = problem.y.shape[0] * math.prod(-(-n // 4) for n in problem.y.shape[2:])
    count = 36 * -(-channels // 64) * -(-filters // 64)
    transformed = 36 * (terms * (channels + filters) + channels * filters)
    busy = max(1.0, count / tiles.MULTIPROCESSORS)
    multiplied = busy * 64 * 64 * terms / tiles.SPEED[4]
    return 2 * _LAUNCH + multiplied + (problem.bytes + 2 * 4 * transformed) / _MEMORY
