"""Where the gradient of pooling keeps what, by name. Importing this imports no Numba."""

from __future__ import annotations

from typing import NamedTuple


class Layout(NamedTuple):
    """How a gradient is cut into jobs and scratch memory; ``columns`` to ``rows_over`` are addresses of tables."""

    images: int
    parts: int  #: of an image: channels, or strips of ``strip`` of the ``channels``
    strip: int
    channels: int
    slices: int  #: bands of ``deep`` slices
    deep: int
    bands: int  #: of ``tall`` rows
    tall: int
    ring: int  #: bytes of the ring of a thread, of ``cap`` rows of windows for each of some slices
    cap: int
    slot: int  #: bytes of a row of windows, half of them numbers and half shares, with room around that holds no share
    words: int  #: bytes of the lists of a thread
    held: int  #: bytes of a thread
    gap: int
    columns: int
    spans: int
    firsts: int
    phases: int
    planes_over: int
    rows_over: int
    front: int  #: bytes of a line of a row before the row's first column
    margin: int  #: bytes of a row of windows before the first's number, and before the first's share
    reuses: int  #: whether the maxima of a row of the image are kept for the next rows of windows
    taken: int  #: rows of the image whose maxima are kept at once
    maxima: int  #: bytes of a thread's lines before these
    lefts: int  #: address of a table: the first column of each window along a row
