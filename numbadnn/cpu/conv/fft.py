"""``cpu.fft``: convolution as a product of Fourier transforms (scipy.fft), tile by tile (overlap-save).

Where ``v`` are the filters as they lie over the image, ``y[p] = sum over j of x[p + j - low] * v[j]``: a correlation, whose
transform is X times the conjugate of V. The gradient of the images is the same of y's gradient and of filters turned round;
that of the filters correlates image and y's gradient, as a whole. The cost does not depend on the number of taps.

An error is as large as the largest numbers of its tile ask for: the bound is ``measuring/transforms.py``'s, of the whole
image, which no tile exceeds. A NaN or an infinity would spread over its tile: where there is one, ``cpu.im2col`` sums.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from numbadnn.cpu.conv.arrays import computed, store, view
from numbadnn.cpu.conv.fft_tiles import Tiles, how_much_longer, tiles_of
from numbadnn.cpu.conv.im2col import plan as sums
from numbadnn.cpu.conv.im2col import rank as directly
from numbadnn.cpu.conv.im2col import supports as accumulates
from numbadnn.problem import Policy
from numbadnn.problems.conv import OPERATIONS, ConvProblem
from numbadnn.registry import LAST_US, Executable, Impl, register


class _Transforms:
    """scipy.fft of planes of a tile, along the axes that have several taps."""

    def __init__(self, tiles: Tiles, rank: int) -> None:
        import scipy.fft

        self._forward, self._back = scipy.fft.rfftn, scipy.fft.irfftn
        self.axes = tuple(a - rank for a in tiles.axes)
        self.lengths = tuple(tiles.length[a] for a in tiles.axes)

    def forward(self, planes: np.ndarray) -> np.ndarray:
        result: np.ndarray = self._forward(planes, axes=self.axes, overwrite_x=True)
        return result

    def back(self, spectra: np.ndarray) -> np.ndarray:
        result: np.ndarray = self._back(spectra, self.lengths, axes=self.axes, overwrite_x=True)
        return result


def _filters(problem: ConvProblem, tiles: Tiles, w: np.ndarray, kind: Any) -> np.ndarray:
    """Some groups' filters as they lie over what is read, then zeros: (groups, results, sources, extents of a tile).

    Along an axis that is not transformed there is one tap, for every position.
    """
    gradient = problem.direction == "grad_inputs"
    if problem.flip != gradient:
        w = w[_last(*[slice(None, None, -1)] * problem.axes)]
    extents = (n if a in tiles.axes else 1 for a, n in enumerate(tiles.length))
    planes = np.zeros((w.shape[0], tiles.results, tiles.sources, *extents), kind)
    planes[_taps(problem, tiles)] = w.swapaxes(1, 2) if gradient else w
    return planes


def _last(*slices: slice) -> Any:
    """The index of a stretch of the last axes."""
    return (..., *slices)


def _taps(problem: ConvProblem, tiles: Tiles) -> Any:
    """Where in planes the taps lie, ``dilation`` apart."""
    return _last(*(slice(0, n, d) for n, d in zip(tiles.reach, problem.dilation, strict=True)))


def _tiles(tiles: Tiles) -> Iterator[tuple[int, ...]]:
    """The first result of each tile."""
    return itertools.product(*(range(0, n * s, s) for n, s in zip(tiles.count, tiles.step, strict=True)))


def _read(array: np.ndarray, begin: tuple[int, ...], out: np.ndarray) -> np.ndarray:
    """A stretch of the last axes from ``begin`` on, into ``out``; zeros outside of the array."""
    rank = len(begin)
    there, here, inside = [], [], True
    for at, n, length in zip(begin, array.shape[-rank:], out.shape[-rank:], strict=True):
        first, last = max(at, 0), min(at + length, n)
        there.append(slice(first, max(first, last)))
        here.append(slice(first - at, max(first, last) - at))
        inside &= last - first == length
    if not inside:
        out.fill(0)
    out[_last(*here)] = array[_last(*there)]
    return out


def _product(spectra: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """The sum over sources: (groups, sources, ...) and (groups, results, sources, ...) to (groups, results, ...)."""
    total: np.ndarray = spectra[:, None, 0] * filters[:, :, 0]
    for source in range(1, spectra.shape[1]):
        total += spectra[:, None, source] * filters[:, :, source]
    return total


def _correlate(problem: ConvProblem, tiles: Tiles, fft: _Transforms, x: Any, w: Any, y: Any) -> None:
    """What is read and what results as (images, groups, channels, ...): the forward direction's names."""
    kind = computed(problem)
    for group in range(0, problem.groups, tiles.together):
        some = slice(group, group + tiles.together)
        spectra = fft.forward(_filters(problem, tiles, w[some], kind))
        np.conjugate(spectra, out=spectra)
        block = np.empty((spectra.shape[0], tiles.sources, *tiles.length), kind)
        for image, result in zip(x, y, strict=True):
            for begin in _tiles(tiles):
                first = tuple(a - low for a, low in zip(begin, tiles.low, strict=True))
                read = fft.forward(_read(image[some], first, block))
                here = _last(*(slice(a, a + s) for a, s in zip(begin, tiles.step, strict=True)))
                kept = result[some][here]
                value = fft.back(_product(read, spectra))
                store(problem, kept, value[_last(*map(slice, kept.shape[2:]))])


def _correlate_gradient(problem: ConvProblem, tiles: Tiles, fft: _Transforms, x: Any, w: Any, y: Any) -> None:
    """The gradient of the filters: whole images, one after the other."""
    kind = computed(problem)
    first = tuple(-low for low in tiles.low)
    for group in range(0, problem.groups, tiles.together):
        some = slice(group, group + tiles.together)
        total: Any = None
        groups = len(w[some])
        image_block = np.empty((groups, tiles.sources, *tiles.length), kind)
        top_block = np.empty((groups, tiles.results, *tiles.length), kind)
        for image, top in zip(x, y, strict=True):
            read = fft.forward(_read(image[some], first, image_block))
            tops = fft.forward(_read(top[some], (0,) * problem.axes, top_block))
            np.conjugate(tops, out=tops)
            product = read[:, None] * tops[:, :, None]
            total = product if total is None else np.add(total, product, out=total)
        value = fft.back(total)[_taps(problem, tiles)]
        if problem.flip:
            value = value[_last(*[slice(None, None, -1)] * problem.axes)]
        store(problem, w[some], value)


def plan(problem: ConvProblem, policy: Policy, config: Any = None) -> Executable:
    """Any direction."""
    names, tiles, groups = (*problem.input_names, problem.output_name), tiles_of(problem), problem.groups
    fft = _Transforms(tiles, problem.axes)
    straight = functools.cache(lambda: sums(problem, policy).run)

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        given = zip(names, (*inputs, *outputs), strict=True)
        views = {name: view(array, getattr(problem, name)) for name, array in given}
        if not all(np.isfinite(views[name]).all() for name in problem.input_names):
            return straight()(inputs, outputs, workspace, stream)
        x, y = (views[name].reshape(tiles.images, groups, -1, *views[name].shape[2:]) for name in "xy")
        w = views["w"].reshape(groups, -1, *views["w"].shape[1:])
        with np.errstate(all="ignore"):  # what is not finite is a result, whatever the caller has NumPy do about it
            if problem.direction == "grad_weights":
                _correlate_gradient(problem, tiles, fft, x, w, y)
            elif problem.direction == "forward":
                _correlate(problem, tiles, fft, x, w, y)
            else:
                _correlate(problem, tiles, fft, y, w, x)

    return Executable(
        run, arithmetic="fft", facts={"tile": "x".join(map(str, tiles.length))}, scratch_bytes=scratch_bytes(problem)
    )


def scratch_bytes(problem: ConvProblem) -> int:
    """What a run holds beside its operands."""
    return tiles_of(problem).numbers() * computed(problem).itemsize


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Shared filters that move by one pixel, of more than one tap, in as much memory as there may be."""
    if reason := accumulates(problem, policy):
        return reason
    if problem.unshared:
        return "unshared filters have no transform in common"
    if any(s > 1 for s in problem.stride):
        return f"a transform computes every position, of which a stride of {problem.stride} leaves most out"
    if math.prod(problem.taps) == 1:
        return "filters of one tap are a matrix product"
    if (needed := scratch_bytes(problem)) > policy.workspace_limit:
        return f"needs {needed} bytes for its transforms, the workspace limit is {policy.workspace_limit}"
    return ""


def rank(problem: ConvProblem) -> float:
    """``cpu.im2col``'s, which knows operations alone, times how much longer a transform looks than the sum does."""
    if problem.unshared or any(s > 1 for s in problem.stride) or math.prod(problem.taps) < FEWEST:
        return LAST_US + problem.flops
    return directly(problem) * how_much_longer(problem)


#: taps with fewer of which no transform was ever faster
FEWEST = 25

for _op in OPERATIONS:
    register(Impl(_op, "cpu", "cpu.fft", supports, plan, rank, "fft", "run_to_run"))
