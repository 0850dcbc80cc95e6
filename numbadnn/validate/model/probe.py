"""Images of single numbers for a convolution: each output sees one weight, so that no long sum hides one that is a little off.

The bound of a sum of k products is about k units of their magnitudes; a weight that is a thousandth off changes one of them by
1e-3 of itself. Where every window sees one number the bound is k units of that very product, and any weight is seen.
"""

from __future__ import annotations

import math

import numpy as np

from numbadnn.validate.model.graph import is_real
from numbadnn.validate.model.work import Work

#: multiplications that a probe may take; of a larger layer a sample of the channels is probed
MOST = 1 << 28


def images(work: Work, seed: int = 0) -> tuple[np.ndarray, float] | None:
    """(images, the share of the weights that they meet) for a Conv whose weights are at hand; None for any other node."""
    node = work.node
    if node.op != "Conv" or not work.posed:
        return None
    x, w = work.given[:2]
    if not is_real(x.dtype) or x.dtype.itemsize < 4:
        return None
    axes, channels = x.ndim - 2, w.shape[1]
    strides, dilations = node.get("strides", (1,) * axes), node.get("dilations", (1,) * axes)
    places, sizes = [], []
    for taps, step, dilation in zip(w.shape[2:], strides, dilations, strict=True):
        extent = (taps - 1) * dilation + 1
        apart = extent
        while math.gcd(apart, step) > 1:  # each tap meets a number at one of these places, whatever the stride
            apart += 1
        found = extent + apart * np.arange(step)
        places.append(found)
        sizes.append(int(found[-1]) + extent + 1)
    cost = w.size * math.prod(-(-size // step) for size, step in zip(sizes, strides, strict=True))
    count = min(channels, max(MOST // cost, 1))
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(channels)[:count])
    probes = np.zeros((count, x.shape[1], *sizes), x.dtype)
    for image, channel in enumerate(chosen):
        # every group has its own channel of that number; large, beside any bias
        for group in range(x.shape[1] // channels):
            values = 1024 * rng.uniform(1, 2, [len(p) for p in places]) * rng.choice((-1, 1), [len(p) for p in places])
            probes[(image, group * channels + channel, *np.ix_(*places))] = values
    return probes, count / channels
