"""What convolutions by transform may be off by: normwise, for a transform mixes everything in its image or tile.

Both give the error of one result as ``c * u * sum over channels ||a||*||b||``, a and b being the image (or the output's
gradient) and the filters of one channel; that sum is itself a 1x1 convolution, of norms, and the reference computes it.

fft      A transform of size n is off by 7u*log2(n) of its norm (Higham, thm 24.2: gamma_4 * sqrt 2 plus the twiddle's u), so
         two factors give 14*log2(n). Their product has norm ||a||*||b||_1 <= sqrt(taps) * ||a||*||b||, and the inverse adds
         7*log2(n) of that. Complex products add 6, the sum over channels its length.
winograd F(4x4, 3x3) at 0, +-1, +-2, infinity, whose matrices have ||A||_1 = 15, ||G||_F = 1.14, ||B||_F = 13.1; an axis
         amplifies by their product, two by its square. Products and sums of the transforms add 30, the channels their number.
         The norm is that of a 6x6 tile: at most the image's, and at most 6 times its largest element.
         (Barabasz et al., Error analysis and improving the accuracy of Winograd convolution, 2020, thm 2.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numbadnn import reference

Float64 = NDArray[np.float64]

AXIS_AMPLIFICATION = 15 * 1.14 * 13.1
TILE = 6


def _norms(array: Any, largest_of_tile: bool = False) -> Float64:
    """The 2-norm of each channel of each image, as images of 1x1; what is not finite has no share in a finite result."""
    values = np.asarray(array).astype(np.float64)
    values = np.where(np.isfinite(values), values, 0.0)
    space = tuple(range(2, values.ndim))
    norm = np.sqrt(np.square(values).sum(axis=space, keepdims=True))
    largest = TILE ** (len(space) / 2) * np.abs(values).max(axis=space, keepdims=True)  # of TILE ** len(space) elements
    return np.minimum(norm, largest) if largest_of_tile else norm


def _sum_over_channels(problem: Any, first: Float64, second: Float64) -> Float64:
    """The same operation on 1x1 images of norms, as large as the result."""
    ones, op = (1,) * problem.axes, f"conv{problem.axes}d"
    x, w = (*problem.x.shape[:2], *ones), (*problem.w.shape[:2], *ones)
    name, more = {
        "forward": (op, {}),
        "grad_inputs": (f"{op}_grad_wrt_inputs", {"input_shape": x}),
        "grad_weights": (f"{op}_grad_wrt_weights", {"filter_shape": w}),
    }[problem.direction]
    total = getattr(reference, name)(first, second, num_groups=problem.groups, **more)
    spread = np.broadcast_to(total, getattr(problem, problem.output_name).shape)
    line = spread.ndim != len(problem.output.shape)
    return spread.reshape(problem.output.shape) if line else _theirs(problem, spread)


def _theirs(problem: Any, array: Float64) -> Float64:
    """A result in the axes of the caller's array."""
    from numbadnn.problems.conv import OPERATIONS

    return array.swapaxes(1, 2) if OPERATIONS[problem.op].arrangement == "frames" else array


def _ours(problem: Any, array: Any, name: str) -> Any:
    """An input in the axes of the problem."""
    array = np.asarray(array)
    shape = getattr(problem, name).shape
    return _theirs(problem, array) if array.ndim == len(shape) else array.reshape(shape)


def _channels(problem: Any) -> int:
    lengths = {"forward": problem.w.shape[1], "grad_inputs": problem.w.shape[0] // problem.groups}
    return lengths.get(problem.direction, problem.x.shape[0])


def fft(problem: Any, inputs: tuple[Any, ...], unit: float) -> Float64:
    """The error of a convolution through Fourier transforms of its whole (padded, rounded up to 2^n) images."""
    sides = zip(problem.x.shape[2:], problem.padding, strict=True)
    log_n = sum(math.ceil(math.log2(n + sum(pad))) + 1 for n, pad in sides)
    shape = (problem.y if problem.direction == "grad_weights" else problem.w).shape
    c = (14 + 7 * math.sqrt(math.prod(shape[2:]))) * log_n + 6 + _channels(problem)
    first, second = (_ours(problem, a, n) for a, n in zip(inputs, problem.input_names, strict=True))
    return c * unit * _sum_over_channels(problem, _norms(first), _norms(second))


def winograd(problem: Any, inputs: tuple[Any, ...], unit: float) -> Float64:
    """The error of a convolution through Winograd's minimal filtering, tile by tile."""
    whole = problem.direction == "grad_weights"
    tiles = math.prod(problem.y.shape[2:]) if whole else 1
    c = AXIS_AMPLIFICATION**problem.axes * (30 + _channels(problem) * tiles)
    first, second = (_ours(problem, a, n) for a, n in zip(inputs, problem.input_names, strict=True))
    # the weights' gradient: its tiles are summed over: Cauchy-Schwarz needs both whole norms
    return c * unit * _sum_over_channels(problem, _norms(first, not whole), _norms(second))
