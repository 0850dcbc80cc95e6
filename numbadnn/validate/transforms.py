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

WINOGRAD_AMPLIFICATION = (15 * 1.14 * 13.1) ** 2
TILE = 6


def _norms(array: Any, largest_of_tile: bool = False) -> Float64:
    """The 2-norm of each channel of each image, as images of 1x1."""
    values = np.asarray(array).astype(np.float64)
    norm = np.sqrt(np.square(values).sum(axis=(2, 3), keepdims=True))
    return np.minimum(norm, TILE * np.abs(values).max(axis=(2, 3), keepdims=True)) if largest_of_tile else norm


def _sum_over_channels(problem: Any, first: Float64, second: Float64) -> Float64:
    """The same operation on 1x1 images of norms, as large as the result."""
    more = {
        "conv2d_grad_wrt_inputs": {"input_shape": (*problem.x.shape[:2], 1, 1)},
        "conv2d_grad_wrt_weights": {"filter_shape": (*problem.w.shape[:2], 1, 1)},
    }.get(problem.op, {})
    total = getattr(reference, problem.op)(first, second, num_groups=problem.groups, **more)
    return np.broadcast_to(total, problem.output.shape)


def _channels(problem: Any) -> int:
    lengths = {"conv2d": problem.w.shape[1], "conv2d_grad_wrt_inputs": problem.w.shape[0] // problem.groups}
    return lengths.get(problem.op, problem.x.shape[0])


def fft(problem: Any, inputs: tuple[Any, ...], unit: float) -> Float64:
    """The error of a convolution through Fourier transforms of its whole (padded, rounded up to 2^n) images."""
    sides = zip(problem.x.shape[2:], problem.padding, strict=True)
    log_n = sum(math.ceil(math.log2(n + sum(pad))) + 1 for n, pad in sides)
    shape = (problem.y if problem.op == "conv2d_grad_wrt_weights" else problem.w).shape
    c = (14 + 7 * math.sqrt(math.prod(shape[2:]))) * log_n + 6 + _channels(problem)
    return c * unit * _sum_over_channels(problem, _norms(inputs[0]), _norms(inputs[1]))


def winograd(problem: Any, inputs: tuple[Any, ...], unit: float) -> Float64:
    """The error of a convolution through Winograd's minimal filtering, tile by tile."""
    tiles = problem.y.shape[2] * problem.y.shape[3] if problem.op == "conv2d_grad_wrt_weights" else 1
    c = WINOGRAD_AMPLIFICATION * (30 + _channels(problem) * tiles)
    whole = problem.op == "conv2d_grad_wrt_weights"  # its tiles are summed over: Cauchy-Schwarz needs both whole norms
    return c * unit * _sum_over_channels(problem, _norms(inputs[0], not whole), _norms(inputs[1]))
