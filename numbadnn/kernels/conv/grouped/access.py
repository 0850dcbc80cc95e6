"""How the operands of ``numba.grouped_halves`` lie in memory, and so how many elements an access to each of them has."""

from __future__ import annotations

from numbadnn.kernels.conv.grouped.walk import Walk
from numbadnn.problem import Spec

#: channels of a group that fill accesses of shared memory
CHANNELS = (4, 8, 16, 32)


def odd(nbytes: int) -> int:
    """An odd multiple of 16, so that eight neighbours of 16 bytes meet all banks of shared memory; 8 stay 8."""
    return nbytes + 16 if nbytes % 32 == 0 else nbytes


def load_width(walk: Walk) -> int:
    """Elements of an access to the image read: 8, 4 or 2 neighbouring channels, 1 where a pixel's are gathered; 0: none."""
    spec = walk.source
    if walk.groups == 1 and walk.channels <= 4 and (walk.channels < 4 or spec.strides[1] != 1 or not spec.aligned):
        return 1
    if walk.channels not in CHANNELS or spec.strides[1] != 1:
        return 0
    return width(spec, 8 if walk.groups * walk.channels % 8 == 0 else 4)


def put_width(walk: Walk, groups: int) -> int:
    """Elements of an access to the results, 0 where not even two lie together; 1 for an odd number without groups."""
    if walk.result.strides[1] != 1:
        return 0
    if walk.results % 2:
        return int(walk.groups == 1)
    most = 8
    while groups * walk.results % most or walk.result.shape[1] % most:
        most //= 2
    return width(walk.result, most)


def width(spec: Spec, most: int) -> int:
    """The most neighbouring channels up to ``most`` that one access may have at every pixel."""
    if not spec.aligned:
        return 0
    strides = [s for i, (s, n) in enumerate(zip(spec.strides, spec.shape, strict=True)) if n > 1 and i != 1]
    while most > 1 and any(s % most for s in strides):
        most //= 2
    return most if most > 1 else 0


def packed(w: Spec, terms: int, channels: int) -> bool:
    """Whether filters have the terms of an access to shared memory together, at addresses that one access may have."""
    piece = min(8, channels)
    if channels < 4:
        return False
    others = [s for i, s in enumerate(w.strides) if i != terms and w.shape[i] > 1]
    return w.strides[terms] == 1 and w.aligned and all(s % piece == 0 for s in others)


def in_rows(w: Spec, results: int, walk: Walk) -> bool:
    """Whether the results of a term lie together, in whole accesses, where they are no less than the terms of one."""
    others = [s for i, s in enumerate(w.strides) if i != results and w.shape[i] > 1]
    whole = walk.results % 8 == 0 and walk.channels in CHANNELS[1:]
    return whole and w.strides[results] == 1 and w.aligned and all(s % 8 == 0 for s in others)
