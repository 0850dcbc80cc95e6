"""The configuration of ``boxes.py`` and the constants that host and device code share."""

from __future__ import annotations

from numbadnn.kernels.build.frozen import dataclass
from numbadnn.problem import ITEMSIZE

LANES, MULTIPROCESSORS = 32, 132


@dataclass(frozen=True, slots=True)
class BoxesConfig:
    """``images`` x ``vec`` sums a thread, ``ahead`` loads under way; shared: ``cells`` pixels, ``terms``, ``depth`` rows of y.

    A block has ``tile`` positions and ``channels`` channels of a group, a warp ``own`` of these.
    """

    images: int
    vec: int
    ahead: int
    warps: int
    cells: int
    terms: int
    depth: int
    even: bool
    tile: tuple[int, int] = (1, 1)
    channels: int = 1
    own: int = 1


def vector_width(images: int, acc: str) -> int:
    """Images of one access of 16 bytes."""
    return min(images, 16 // ITEMSIZE[acc])
