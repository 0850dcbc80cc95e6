"""The configuration of ``first_layer.py``, and what the host and the device both know."""

from __future__ import annotations

from numbadnn.kernels.build.frozen import dataclass

#: results of a warp; registers of its filters are two for each of EIGHTS and step of 16 terms
RESULTS, EIGHTS = 32, 4
#: where a chunk is read that no tap has
ZEROS = 16


@dataclass(frozen=True, slots=True)
class FirstLayerConfig:
    """A block of ``warps`` has tiles of ``rows`` and ``columns`` positions, all results of each, ``parts`` times RESULTS.

    ``taps`` and ``stride`` of each axis. A window begins ``front`` pixels (0 or 1) behind a pair of pixels, and the pair of a
    tile's first position ``skip`` pixels behind four.
    """

    channels: int
    parts: int
    taps: tuple[int, int]
    stride: tuple[int, int]
    front: int
    skip: int
    rows: int
    columns: int
    warps: int
    resident: int

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def chunks(self) -> int:
        """Pairs of pixels that a row of a window lies in."""
        return -(-(self.front + self.taps[1]) // 2)

    @property
    def tail(self) -> bool:
        """Whether the last pixel of the last pair is none of the window's."""
        return (self.front + self.taps[1]) % 2 == 1

    @property
    def steps(self) -> int:
        """Instructions of two pairs."""
        return -(-self.taps[0] * self.chunks // 2)

    @property
    def every(self) -> int:
        """Steps that filters are read for: ldmatrix reads two at a time."""
        return self.steps + self.steps % 2

    @property
    def filter_pitch(self) -> int:
        """Bytes of a result's terms: eight neighbours meet all banks."""
        return 32 * self.every + 16

    @property
    def rows_read(self) -> int:
        return (self.rows - 1) * self.stride[0] + self.taps[0]

    @property
    def fours(self) -> int:
        """Groups of four pixels of a row read."""
        return -(-(self.skip + (self.columns - 1) * self.stride[1] + 2 * self.chunks) // 4)

    @property
    def pitch(self) -> int:
        """Bytes of a row read."""
        return 32 * self.fours

    @property
    def plane(self) -> int:
        """Bytes of all rows read."""
        return self.rows_read * self.pitch

    @property
    def shared_bytes(self) -> int:
        """Zeros, the image, and again with its even pixels zero, and with its odd ones, where windows begin or end so.

        Before there is an image, the filters are there.
        """
        return ZEROS + max(self.plane * (1 + (self.front > 0) + self.tail), RESULTS * self.parts * self.filter_pitch)
