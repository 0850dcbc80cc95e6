"""What the kernels of few channels know of a problem: numbers by name, which plans fill in. Importing this imports no Numba."""

from __future__ import annotations

from typing import NamedTuple


class Tile(NamedTuple):
    """Runs of y and of x that are multiplied at once: their sums, the runs of y and one of x fit the registers."""

    y: int
    x: int
    y_masked: bool = True  # whether what the masks leave out is not read, else it is 0
    x_masked: bool = False  # is 0 whatever it is, else it is finite
    joined: bool = True  # whether lanes are pixels, whose sums are one


class Geometry(NamedTuple):
    """Lengths and strides in elements; rows of the result are those of a phase."""

    N: int
    G: int
    together: int  # groups of a job
    C: int  # channels of a group in the image that is read, and in the result
    M: int
    a_group: int  # strides of the filters
    a_row: int
    run: int  # so many terms lie together in them
    D: int  # the image that is read
    H: int
    W: int
    src_n: int
    src_c: int
    src_d: int
    src_h: int
    src_w: int
    step_d: int  # slices, rows, columns of it between neighbouring pixels of the result
    step_h: int
    step_w: int
    out_n: int
    out_m: int
    out_d: int
    out_h: int
    out_w: int
    O: int  # most slices and rows of a phase
    P: int
    band: int  # rows of a job, and those summed at a time
    chunk: int
    ahead: int  # rows for which lines are there before they are summed
    reach: int  # so many more lines of a plane than rows of the result are needed
    slices: int  # slices of the image that one of the result needs
    planes: int  # of each channel and slice, by row and column modulo the steps
    pitch: int  # pixels of a line, and accumulators of a plane and a pixel
    plane: int
    unit: int
    buffers: int  # channels, or vectors of them, that have planes
    still: int  # whether the zeros around the image are the same for all jobs
    source: int  # LINES, TURNED or LANES
    result: int
    gradient: int
    phases: int
    terms: int  # of all phases
    a_at: int  # where in a thread's memory the filters, the results, a square begin, and its size, in accumulators
    results_at: int
    square_at: int
    work: int
    row: int  # of a row of results
    phases_at: int  # where lists begin in the table, in bytes: of phases, planes,
    planes_at: int
    offsets_at: int  # of the terms in the planes (bytes), and in the filters
    a_offsets_at: int
    places_at: int  # channel, slice, row and column of the terms
    slices_at: int
    flat_at: int  # vectors of a row of results


class FiltersGeometry(NamedTuple):
    """What the kernels know of the problem; every length and stride in elements."""

    O: int
    P: int
    Q: int
    D: int
    W: int
    G: int
    C: int  # channels and filters of a group
    K: int
    slices: int  # of a filter
    terms: int  # (channel, tap) pairs
    blocks: int  # groups, or vectors of groups
    across: int  # whether a vector is of groups, not of pixels
    together: int  # blocks of a job
    split: int  # whether two column phases of x are laid out at once
    in_place: int  # whether y is read where it lies
    bands: int
    parts: int
    rows: int  # of a band of y
    columns: int
    pitch: int
    reach: int  # rows that a band of x has more
    front: int
    step_d: int
    step_h: int
    step_w: int
    dilation_d: int
    x_n: int
    x_c: int
    x_d: int
    x_h: int
    x_w: int
    y_n: int
    y_k: int
    y_d: int
    y_h: int
    y_w: int
    w_k: int
    w_step: int  # between neighbouring terms, 0 where that is not one number
    tile: int  # which of TILES
    tile_y: int
    tile_x: int
    plane: int  # accumulators of a plane of x, of a channel's planes, of a filter's plane of y and of its sums
    x_size: int
    y_size: int
    sums: int
    x_capacity: int  # of a job's x and y
    y_capacity: int
