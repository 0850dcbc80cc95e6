"""The configuration of ``rows.py``, and what the host and the device both know."""

from __future__ import annotations

from numbadnn.kernels.build.frozen import dataclass

#: channels of a block; columns of dy of a thread; pieces of 16 bytes, and words, of a pixel
CHANNELS, COLUMNS, PIECES, WORDS = 32, 4, 4, 16


@dataclass(frozen=True, slots=True)
class RowsConfig:
    """A block takes ``groups`` x four columns of ``images`` images, ``rows`` of them; ``ahead`` steps are under way.

    ``even``: no thread has columns or images that do not exist.
    """

    taps: tuple[int, int]
    stride: tuple[int, int]
    groups: int
    images: int
    ahead: int
    rows: int
    even: bool

    @property
    def threads(self) -> int:
        return 16 * self.groups * self.images

    @property
    def x_pixels(self) -> int:
        """Columns of x that a row of a block's columns meets."""
        return (self.groups * COLUMNS - 1) * self.stride[1] + self.taps[1]

    @property
    def x_line(self) -> int:
        """Words of a row of one image, with the gaps between threads' columns."""
        return (self.x_pixels + -(-self.x_pixels // (COLUMNS * self.stride[1]))) * WORDS

    @property
    def y_line(self) -> int:
        return self.groups * (COLUMNS + 1) * WORDS

    @property
    def ring(self) -> int:
        return self.taps[0] + self.stride[0] * self.ahead

    @property
    def shared_bytes(self) -> int:
        """The rings; in the end, a row of the taps of every thread."""
        rings = self.images * (self.ring * self.x_line + (self.ahead + 1) * self.y_line)
        return 4 * max(rings, 2 * self.taps[1] * self.threads)
