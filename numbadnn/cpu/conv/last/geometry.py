"""What the kernels of neighbouring channels know of a problem: numbers by name. Importing this imports no Numba."""

from __future__ import annotations

from typing import NamedTuple


class Layout(NamedTuple):
    """What ``cpu/conv/geometry.py`` does not say; lengths and strides in elements."""

    channels: int  # of a group, of what is read
    a_channel: int  # of the filters, between these
    in_place: int  # whether pixels are read where they lie
    whole: int  # whether a row of the image is one run
    lines: int  # rows of output pixels of a job, at most
    wide: int  # columns of it, at most
    high: int  # panels of a job, at most
    pixels: int  # of a job, whole tiles


class Image(NamedTuple):
    """What is read, as ``cpu/conv/geometry.py`` has it, of which this is a part: all that boxes are laid out by."""

    D: int
    H: int
    W: int
    src_n: int
    src_d: int
    src_h: int
    src_w: int
    step_d: int
    step_h: int
    step_w: int
