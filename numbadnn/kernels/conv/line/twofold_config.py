"""The configuration of ``twofold.py``, and what the host and the device both know."""

from __future__ import annotations

from dataclasses import dataclass

LANES, MULTIPROCESSORS = 32, 132
#: threads that read; times of a warp; bytes of an element, and of eight channels of a time
READERS, RUN, SIZE, ROW = 128, 32, 4, 16
#: blocks of times in shared memory; as many sets of warps take turns with them, so that one multiplies while another writes
STAGES, SETS = 4, 2
#: where in shared memory, behind the scales of stages, begin: that of filters, the largest that readers and those who cut
#: filters found, which filters and group the block has, and filters
SCALE, EXTREMES, EXTREMES_OF_FILTERS, SHARE, FIRST = 32, 64, 192, 256, 320


@dataclass(frozen=True, slots=True)
class TwofoldConfig:
    """Each set has ``high`` * ``wide`` warps, a warp 16 * ``tiles`` filters and ``runs`` of 32 times; ``taps`` are frozen.

    After every ``run`` instructions of a tap their sums are added to the total. A reader asks for 8 channels of ``turns`` times.
    ``full``: of the 8 * ``octets`` channels none is missing; ``whole``: four neighbouring times are one access.
    """

    octets: int
    tiles: int
    high: int
    wide: int
    runs: int
    taps: int
    run: int
    turns: int
    full: bool
    whole: bool

    @property
    def filters(self) -> int:
        return 16 * self.tiles * self.high

    @property
    def span(self) -> int:
        """Times of a stage."""
        return RUN * self.runs * self.wide

    @property
    def multipliers(self) -> int:
        """Threads."""
        return LANES * SETS * self.high * self.wide

    @property
    def pitch(self) -> int:
        """Rows of an octet of the filters at a tap: one more than there are, so that neighbours meet all banks."""
        return self.filters + 1

    @property
    def filter_bytes(self) -> int:
        """Of one half of all filters."""
        return self.octets * self.taps * self.pitch * ROW

    @property
    def plane(self) -> int:
        """Bytes of one half of a stage."""
        return self.turns * READERS * ROW

    @property
    def shared_bytes(self) -> int:
        return -(-(FIRST + 2 * self.filter_bytes) // 128) * 128 + STAGES * 2 * self.plane
