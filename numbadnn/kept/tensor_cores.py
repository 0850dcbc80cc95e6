"""How long cuDNN's engines on tensor cores take: of TF32, and the least of all, of which estimates in 16 bits know nothing."""

from __future__ import annotations

import math
from typing import Any

#: of an H200
MULTIPROCESSORS = 132

#: filters, or channels, that a tile of tensor cores has at least
TILE = 64

#: operations a microsecond under tf32, measured on ResNet-50's layers (bench_conv)
TF32_RATE = 2.5e8
#: how many times what is said of cuDNN's engines under tf32 they take, of dense images: layers of networks and random problems
TF32_TAKEN = {"forward": 0.85, "grad_inputs": 0.85, "grad_weights": 1.25}


def tiled_flops(problem: Any) -> float:
    """Operations of whole tiles: what is computed of a few filters, or for a few channels, is as much as of TILE."""
    narrow = problem.x.shape[1] if problem.direction == "grad_inputs" else problem.y.shape[1]
    return float(problem.flops * max(1.0, TILE / narrow))


def iterated(problem: Any) -> float:
    """What tensor cores need at least: blocks of 128 x 64 results, one a multiprocessor, which add up 128 bytes at a time.

    Long sums of few results wait for one another, and what fills no vector of 16 bytes is read piece by piece. Seven tenths of a
    fit to 172 random problems and 300 layers on an H200, within 40 % in two of three.
    """
    x, y, positions = problem.x, problem.y, problem.y.size // problem.y.shape[1]
    chunk, taps = 128 // x.itemsize, math.prod(problem.taps)
    channels, filters = x.shape[1], y.shape[1]
    if problem.direction == "grad_weights":
        tiles, steps, slower = -(-filters // 128) * -(-channels // 64) * taps, -(-positions // chunk), 1.35
        parts = max(1, min(MULTIPROCESSORS // tiles, steps // 4))
        tiles, steps = tiles * parts, steps // parts
    elif problem.direction == "forward":
        tiles, steps, slower = -(-positions // 128) * -(-filters // 64), taps * -(-channels // chunk), 1.0
    else:
        phases = math.prod(min(s, t) for s, t in zip(problem.stride, problem.taps, strict=True))
        tiles = -(-(x.size // channels) // 128) * -(-channels // 64)
        steps, slower = -(-taps // phases) * -(-filters // chunk), 1.3
    ragged = x.is_channels_last and (channels % 8 or filters % 8)
    slower *= (2.2 if ragged else 1.0) * (1.45 if x.itemsize == 4 else 1.0)
    rounds = max(1.0, tiles / MULTIPROCESSORS)
    plain = taps == 1 and max(problem.stride) == 1
    turned = 0.0 if x.is_channels_last or plain else 4.6 + x.itemsize * (x.size + y.size) / 1.1e6
    return 5.0 + turned + slower * steps * (0.09 + 0.125 * (rounds - 1))


def under_tf32(problem: Any, own_us: float) -> float:
    """Microseconds of float32 with TF32; ``own_us``: without it."""
    wide, strided = max(problem.taps) > 1, max(problem.stride) > 1
    backwards = strided and problem.direction == "grad_inputs"
    if backwards and max(problem.dilation) > 1:
        return own_us + problem.flops / 5e5  # no tensor core takes both
    slower = (3.5 if problem.groups > 1 else 1.6) if wide and problem.direction == "grad_weights" else 1.0
    if problem.groups == 1:
        slower *= TF32_TAKEN[problem.direction]
    us = 8 + 5 * wide + 6 * backwards
    if backwards and wide and problem.x.shape[1] % 4:
        us += problem.flops / 1.5e7  # channels that fill no vector: no tensor core takes them with strides
    if not problem.x.is_channels_last and (wide or strided or math.prod(problem.y.shape[2:]) % 8):
        us += 4 + 4 * (problem.x.size + problem.y.size) / 2.5e6  # the engine turns both images
    said = slower * (us + max(problem.bytes / 3.6e6, tiled_flops(problem) / TF32_RATE))
    return said if problem.groups > 1 else max(said, iterated(problem))
