"""What the kernels of unshared filters know of a problem: numbers by name. Importing this imports no Numba."""

from __future__ import annotations

from typing import NamedTuple


class Geometry(NamedTuple):
    """Lengths and strides in elements; a term is a (channel, tap) of a group, ``pitch`` its number rounded up to vectors."""

    N: int
    G: int
    C: int  # channels and filters of a group
    K: int
    terms: int
    pitch: int
    H: int
    W: int
    P: int
    Q: int
    step_h: int
    step_w: int
    x_n: int
    x_c: int
    x_h: int
    x_w: int
    y_n: int
    y_k: int
    y_h: int
    y_w: int
    w_k: int
    w_h: int
    w_w: int
    w_step: int  # between neighbouring terms, 0 where that is not one number
