"""``theano.tensor.nnet.neighbours``, once ``theano.sandbox.neighbours``: patches of images as the rows of a matrix."""

from __future__ import annotations

from typing import Any

from numbadnn.arrays.namespace import namespace
from numbadnn.dispatch import frozen
from numbadnn.parameters import positive_ints

__all__ = ["images2neibs"]

MODES = ("valid", "ignore_borders", "wrap_centered", "half", "full")


def images2neibs(ten4: Any, neib_shape: Any, neib_step: Any = None, mode: str = "valid") -> Any:
    """Patches (rows, columns) of images (N, C, H, W) as a matrix: a row a patch, images first, then channels, rows, columns.

    ``neib_step``, by default the patch's shape, lies between patches. ``mode``: 'valid' takes images that patches fill, else
    ValueError; 'ignore_borders' leaves out what they do not; 'half' and 'full' do so with zeros around the image, half a
    patch or a patch less one; 'wrap_centered' has a patch of odd sizes about every step-th pixel, across the borders.
    Computed by views and one copy of the array's library; any dtype.

    >>> import numpy as np
    >>> images2neibs(np.arange(8).reshape(1, 1, 2, 4), (2, 2))
    array([[0, 1, 4, 5],
           [2, 3, 6, 7]])
    """
    xp = namespace(ten4, "ten4")
    if len(ten4.shape) != 4:
        raise ValueError(f"ten4: expected images (N, C, H, W), got shape {tuple(ten4.shape)}")
    if mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
    patch = positive_ints("neib_shape", frozen(neib_shape), 2)
    step = patch if neib_step is None else positive_ints("neib_step", frozen(neib_step), 2)
    x = ten4
    for axis in (2, 3):
        x = _bordered(xp, x, axis, patch[axis - 2], mode)
    counts = [_count(name, x.shape[2 + a], patch[a], step[a], mode) for a, name in enumerate(("rows", "columns"))]
    pixels = [
        x[:, :, i : i + (counts[0] - 1) * step[0] + 1 : step[0], j : j + (counts[1] - 1) * step[1] + 1 : step[1]]
        for i in range(patch[0])
        for j in range(patch[1])
    ]
    return xp.stack(pixels, -1).reshape(-1 if x.shape[0] * x.shape[1] else 0, patch[0] * patch[1])


def _bordered(xp: Any, x: Any, axis: int, size: int, mode: str) -> Any:
    """The images with what the mode has around them on one axis."""
    n = x.shape[axis]
    if mode == "wrap_centered":
        if size % 2 == 0 or size > n:
            raise ValueError(
                f"neib_shape: expected odd sizes of at most the image's in mode wrap_centered, got {size} for {n}"
            )
        return xp.concatenate([_cut(x, axis, n - size // 2, n), x, _cut(x, axis, 0, size // 2)], axis)
    border = {"half": size // 2, "full": size - 1}.get(mode, 0)
    zeros = [xp.zeros_like(_cut(x, axis, 0, 1))] * border
    return xp.concatenate([*zeros, x, *zeros], axis) if border else x


def _cut(x: Any, axis: int, start: int, stop: int) -> Any:
    return x[(slice(None),) * axis + (slice(start, stop),)]


def _count(name: str, n: int, size: int, step: int, mode: str) -> int:
    """How many patches an axis has, borders included."""
    if size > n or (mode == "valid" and (n - size) % step):
        raise ValueError(
            f"neib_shape: expected patches of {size} with steps of {step} to fill {n} {name} in mode {mode!r}; "
            "ignore_borders leaves out the rest"
        )
    return (n - size) // step + 1
