"""What the kernels of products know of a problem: numbers by name, which plans fill in. Importing this imports no Numba."""

from __future__ import annotations

from typing import NamedTuple


class Geometry(NamedTuple):
    """What the kernels know of the problem; every length and stride in elements."""

    M: int  # output channels of a group
    G: int  # groups
    a_group: int  # strides of the filters
    a_row: int
    D: int  # the image that is read
    H: int
    W: int
    src_group: int
    src_c: int
    src_n: int
    src_d: int
    src_h: int
    src_w: int
    step_d: int  # slices, rows, columns of the image between neighbouring output pixels of a phase
    step_h: int
    step_w: int
    out_group: int
    out_m: int
    out_n: int
    out_d: int  # between neighbouring pixels of a phase
    out_h: int
    out_w: int
    limit: int = 0  # most runs a vector of pixels can consist of
    run: int = 1  # so many terms lie together in the filters
    packed: int = 0  # whether pack_filters has run; else each thread packs what it needs
    in_place: int = 0  # whether filters are read where they lie
    plane: int = 0  # elements between planes; 0 where every term is laid out
    block: int = 0  # elements of the planes that are laid out at a time, at most
    outside: int = 0  # whether a tap may fall where the image that is read has no position, and not only zeros


class FiltersGeometry(NamedTuple):
    """What the kernels know of the problem; every length and stride in elements."""

    M: int  # (channel, tap) pairs of a group
    K: int  # filters of a group
    G: int
    T: int
    O: int
    P: int
    Q: int
    pixels: int
    D: int
    H: int
    W: int
    x_group: int
    x_c: int
    x_n: int
    x_d: int
    x_h: int
    x_w: int
    step_d: int
    step_h: int
    step_w: int
    y_group: int
    y_k: int
    y_n: int
    y_d: int
    y_h: int
    y_w: int
    w_group: int
    w_k: int
    limit: int  # most runs a vector of pixels can consist of
    splits: int
    split: int  # pixels of each part but the last: a multiple of KC
    plane: int  # elements between planes; 0 where images are read where they lie
    rows: int  # of a slice as it is laid out, and their pixels
    pitch: int
    reach: int
