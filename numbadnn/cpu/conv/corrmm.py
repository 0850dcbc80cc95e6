"""``cpu.corrmm``: convolution as a BLAS matrix product over a Toeplitz matrix (im2col), one image after another.

The matrix of one image, a row for each channel and tap and a column for each output position, is written by NumPy into
a buffer that all images share; the product is NumPy's, which is BLAS. 16-bit types are computed in float32. Unshared
filters are a product of a matrix and a vector for each output position.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from numbadnn.cpu.conv.arrays import computed, store, view
from numbadnn.cpu.lang.blas import one_thread, product
from numbadnn.problem import Policy
from numbadnn.problems.conv import OPERATIONS, ConvProblem
from numbadnn.registry import SEQUENCE, Executable, Impl, register


def toeplitz_bytes(problem: ConvProblem) -> int:
    """The size of the Toeplitz matrix of one image, the bulk of what a run needs besides its operands."""
    rows = problem.x.shape[1] * math.prod(problem.taps)
    return rows * math.prod(problem.y.shape[2:]) * computed(problem).itemsize


def padded_bytes(problem: ConvProblem) -> int:
    """The size of one image with its padding."""
    return math.prod(_padded_shape(problem)) * computed(problem).itemsize


def scratch_bytes(problem: ConvProblem) -> int:
    """What a run holds beside its operands: of one image itself padded, its matrix, its result; and filters."""
    w, image = math.prod(problem.w.shape), math.prod(problem.y.shape[1:])
    moved = problem.unshared or not problem.w.is_contiguous
    filters = w * (moved + (problem.w.dtype != computed(problem).name))
    if problem.direction == "grad_weights":  # all images', one image's, and what is stored of them
        filters = (4 if problem.unshared else 3) * w
    matrices = 2 if problem.unshared and problem.direction == "grad_inputs" else 1
    numbers = (2 * image + filters) * computed(problem).itemsize
    return matrices * toeplitz_bytes(problem) + padded_bytes(problem) + numbers


def _padded_shape(problem: ConvProblem) -> tuple[int, ...]:
    """(channels, extents...) of one image."""
    extents = (n + sum(p) for n, p in zip(problem.x.shape[2:], problem.padding, strict=True))
    return (problem.x.shape[1], *extents)


def _windows(problem: ConvProblem, padded: np.ndarray) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """(tap, what it meets at every output position: channels x positions) on one padded image."""
    sizes = [range(n) for n in problem.taps]
    for tap in itertools.product(*sizes):
        place = tuple(n - 1 - t for n, t in zip(problem.taps, tap, strict=True)) if problem.flip else tap
        axes = zip(place, problem.dilation, problem.stride, problem.y.shape[2:], strict=True)
        index: Any = (slice(None), *(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, s, n in axes))
        yield tap, padded[index]


class _Buffers:
    """What one image needs: itself padded, and its matrix (channels, taps..., positions...); ``grouped`` is the matrix as
    (groups, rows of a group, positions).

    The views of both are made once, for all images: where these are small, they cost more than the copies.
    """

    def __init__(self, problem: ConvProblem) -> None:
        kind, positions = computed(problem), problem.y.shape[2:]
        padding = ((0, 0), *problem.padding)
        channels, *extents = problem.x.shape[1:]
        self._padded = np.zeros(_padded_shape(problem), kind)
        self._image = self._padded[
            tuple(slice(p[0], p[0] + n) for n, p in zip((channels, *extents), padding, strict=True))
        ]
        matrix = np.empty((channels, *problem.taps, *positions), kind)
        self.grouped = matrix.reshape(problem.groups, -1, math.prod(positions))
        by_tap = np.moveaxis(matrix, 0, len(problem.taps))
        #: of each tap: its rows of the matrix, and what it meets on the padded image
        self._taps = [(by_tap[tap], window) for tap, window in _windows(problem, self._padded)]

    def gather(self, image: np.ndarray) -> None:
        self._image[...] = image
        for rows, window in self._taps:
            rows[...] = window

    def scatter(self) -> np.ndarray:
        """Each pixel the sum of its elements of the matrix, tap by tap."""
        self._padded[...] = 0
        for rows, window in self._taps:
            window += rows
        return self._image


def _filters(problem: ConvProblem, w: np.ndarray) -> np.ndarray:
    """(groups, filters of a group, rows), unshared (positions, groups, filters of a group, rows)."""
    w = w.astype(computed(problem), copy=False)
    if not problem.unshared:
        return w.reshape(problem.groups, w.shape[0] // problem.groups, -1)
    positions = math.prod(problem.y.shape[2:])
    grouped = w.reshape(problem.groups, w.shape[0] // problem.groups, positions, -1)
    return np.ascontiguousarray(np.moveaxis(grouped, 2, 0))


def _forward(problem: ConvProblem, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    buffers, filters, unshared = _Buffers(problem), _filters(problem, w), problem.unshared
    matrix = buffers.grouped
    for image, result in zip(x, y, strict=True):
        buffers.gather(image)
        if unshared:
            columns = np.moveaxis(matrix, 2, 0)[..., None]
            value = np.moveaxis(np.matmul(filters, columns)[..., 0], 0, 2)
        else:
            value = product(filters, matrix, np.empty((*filters.shape[:2], matrix.shape[2]), filters.dtype))
        store(problem, result, value.reshape(result.shape))


def _grad_inputs(problem: ConvProblem, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    buffers, unshared = _Buffers(problem), problem.unshared
    matrix, turned = buffers.grouped, _filters(problem, w).swapaxes(-2, -1)
    for result, top in zip(x, y, strict=True):
        tops = top.astype(turned.dtype).reshape(problem.groups, -1, matrix.shape[2])
        if unshared:
            columns = np.moveaxis(tops, 2, 0)[..., None]
            matrix[...] = np.moveaxis(np.matmul(turned, columns)[..., 0], 0, 2)
        else:
            product(turned, tops, matrix)
        store(problem, result, buffers.scatter())


def _grad_weights(problem: ConvProblem, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    buffers, total = _Buffers(problem), np.zeros(w.shape, computed(problem))
    filters, groups, matrix = w.shape[0] // problem.groups, problem.groups, buffers.grouped
    unshared = problem.unshared
    for image, top in zip(x, y, strict=True):
        buffers.gather(image)
        tops = top.astype(total.dtype).reshape(groups, filters, matrix.shape[2])
        if unshared:  # (groups, filters, positions, rows)
            total += (tops[..., None] * matrix.swapaxes(1, 2)[:, None]).reshape(w.shape)
        else:
            of_image = np.empty((*tops.shape[:2], matrix.shape[1]), total.dtype)
            total += product(tops, matrix.swapaxes(1, 2), of_image).reshape(w.shape)
    store(problem, w, total)


_DIRECTIONS = {"forward": _forward, "grad_inputs": _grad_inputs, "grad_weights": _grad_weights}


def plan(problem: ConvProblem, policy: Policy, config: Any = None) -> Executable:
    """Any direction."""
    compute, names = _DIRECTIONS[problem.direction], (*problem.input_names, problem.output_name)

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        given = zip(names, (*inputs, *outputs), strict=True)
        views = {name: view(array, getattr(problem, name)) for name, array in given}
        with (
            one_thread,
            np.errstate(all="ignore"),
        ):  # what is not finite is a result, whatever the caller has NumPy do about it
            compute(problem, views["x"], views["w"], views["y"])

    facts = {"toeplitz_bytes": toeplitz_bytes(problem)}
    return Executable(run, facts=facts, summation=SEQUENCE, scratch_bytes=scratch_bytes(problem))


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Everything, except what would need another accumulator, or more memory than there may be."""
    kind = computed(problem).name
    if policy.precision in ("float16", "float32", "float64") and policy.precision != kind:
        return f"accumulates {problem.x.dtype} in {kind}, not in {policy.precision}"
    needed = scratch_bytes(problem)
    if needed > policy.workspace_limit:
        return f"needs {needed} bytes for one image, the workspace limit is {policy.workspace_limit}"
    return ""


def rank(problem: ConvProblem) -> float:
    """Microseconds, roughly: matrices written at 5 GB/s, products at 70 GFLOP/s in float32 and at half of that in float64."""
    doubles = computed(problem).itemsize / 4
    return 100 + problem.y.shape[0] * toeplitz_bytes(problem) / 5e3 + doubles * problem.flops / 7e4


for _op in OPERATIONS:
    register(Impl(_op, "cpu", "cpu.corrmm", supports, plan, rank, "ieee", "run_to_run"))
