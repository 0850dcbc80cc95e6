"""The geometry of convolutions: parameters in, sizes and the positions of taps out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


Sizes = tuple[int, ...]


def _float64(name: str, value: Any, rank: int) -> Float64:
    """A float64 copy of a real array of this rank."""
    array = np.asarray(value)
    if array.dtype.kind in "bcOSUmM":
        raise TypeError(f"{name}: expected real numbers, got dtype {array.dtype}")
    if array.ndim != rank:
        raise ValueError(f"{name}: expected {rank} axes, got shape {array.shape}")
    return array.astype(np.float64)


def _count(name: str, value: Any, minimum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise ValueError(f"{name}: expected an integer >= {minimum}, got {value!r}")
    return int(value)


def _counts(name: str, value: Any, length: int, minimum: int) -> Sizes:
    """An integer for each of ``length`` axes, or one that stands for all."""
    if isinstance(value, int | np.integer):
        value = (value,) * length
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != length:
        raise ValueError(f"{name}: expected {length} integers >= {minimum}, got {value!r}")
    return tuple(_count(name, v, minimum) for v in value)


def _padding(border_mode: Any, extent: Sizes) -> tuple[Sizes, ...]:
    """((top, bottom), (left, right)); ``extent`` are the sizes of the dilated filter."""
    if isinstance(border_mode, str):
        known = {
            "valid": (0,) * len(extent),
            "full": tuple(e - 1 for e in extent),
            "half": tuple(e // 2 for e in extent),
        }
        if border_mode not in known:
            raise ValueError(
                f"border_mode: expected one of {', '.join(known)}, a number or a tuple, got {border_mode!r}"
            )
        border_mode = known[border_mode]
    if not isinstance(border_mode, tuple):
        border_mode = (_count("border_mode", border_mode, 0),) * len(extent)
    if len(border_mode) != len(extent):
        raise ValueError(f"border_mode must be a tuple of length {len(extent)}, got {border_mode!r}")
    return tuple(_counts("border_mode", p if isinstance(p, tuple) else (p, p), 2, 0) for p in border_mode)


def _agree(name: str, hint: Any, shape: Sizes) -> None:
    """A hint says nothing new: each entry that is not None is the array's own."""
    if hint is not None and (
        len(hint) != len(shape) or any(h not in (None, n) for h, n in zip(hint, shape, strict=True))
    ):
        raise ValueError(f"{name}: expected {shape} or None entries, got {tuple(hint)}")


@dataclass(frozen=True)
class _Geometry:
    """Sizes of one convolution, all agreed; ``k`` and ``c`` are per group."""

    n: int
    g: int
    c: int
    k: int
    image: Sizes
    taps: Sizes
    out: Sizes
    padding: tuple[Sizes, ...]
    stride: Sizes
    dilation: Sizes
    flip: bool
    unshared: bool

    @property
    def x_shape(self) -> Sizes:
        return (self.n, self.g * self.c, *self.image)

    @property
    def w_shape(self) -> Sizes:
        return (self.g * self.k, *(self.out if self.unshared else ()), self.c, *self.taps)

    @property
    def y_shape(self) -> Sizes:
        return (self.n, self.g * self.k, *self.out)

    @property
    def positions(self) -> int:
        return math.prod(self.out)


@dataclass(frozen=True)
class _Parameters:
    """What is asked for besides arrays, as the caller gave it."""

    border_mode: Any
    subsample: Any
    filter_flip: Any
    filter_dilation: Any
    num_groups: Any
    unshared: Any = False
    alpha: float = 1.0
    beta: float = 0.0
    out: Any = None


def _geometry(x_shape: Sizes, w_shape: Sizes, p: _Parameters) -> _Geometry:
    """Check that an image and filters of these shapes fit together, and size everything."""
    groups = p.num_groups
    if isinstance(groups, bool) or not isinstance(groups, int | np.integer) or groups < 1:
        raise ValueError(f"num_groups must have value greater than zero, got {groups!r}")
    axes = len(x_shape) - 2
    (n, channels, *image), filters, (c, *sizes) = x_shape, w_shape[0], w_shape[-axes - 1 :]
    stride = _counts("subsample", p.subsample, axes, 1)
    dilation = _counts("filter_dilation", p.filter_dilation, axes, 1)
    taps = _counts("filters' sizes", tuple(sizes), axes, 1)
    if c * groups != channels:
        raise ValueError(f"input: expected {c} channels of a filter * {groups} groups = {c * groups}, got {channels}")
    if filters % groups:
        raise ValueError(f"filters: expected a number divisible by num_groups = {groups}, got {filters}")
    extent = tuple((t - 1) * d + 1 for t, d in zip(taps, dilation, strict=True))
    padding = _padding(p.border_mode, extent)
    # the filter starts at 0, s, 2s, ... as long as its last tap is still on the padded image
    lengths = tuple(i + sum(pad) for i, pad in zip(image, padding, strict=True))
    out = tuple(len(range(0, m - e + 1, s)) for m, e, s in zip(lengths, extent, stride, strict=True))
    if 0 in out:
        raise ValueError(f"filters: expected to fit the padded image {lengths}, got a dilated size of {extent}")
    if p.unshared and w_shape[1 : axes + 1] != out:
        raise ValueError(f"filters: expected one filter for each output position {out}, got {w_shape[1 : axes + 1]}")
    g, flip, unshared = int(groups), bool(p.filter_flip), bool(p.unshared)
    return _Geometry(n, g, c, filters // g, tuple(image), taps, out, padding, stride, dilation, flip, unshared)


def _taps(geo: _Geometry) -> Iterator[tuple[Any, Any]]:
    """For each tap: the index of its weight in the filters, and of the cells of the padded image that it meets."""
    for tap in itertools.product(*map(range, geo.taps)):
        weight = tuple(n - 1 - t for n, t in zip(geo.taps, tap, strict=True)) if geo.flip else tap
        axes = zip(tap, geo.dilation, geo.stride, geo.out, strict=True)
        cells = tuple(slice(t * d, t * d + (q - 1) * s + 1, s) for t, d, s, q in axes)
        yield (..., *weight), (..., *cells)


def _inside(geo: _Geometry) -> Any:
    """Where the image stands in the padded image."""
    return (..., *(slice(low, low + n) for (low, _), n in zip(geo.padding, geo.image, strict=True)))


def _pad(x: Float64, geo: _Geometry) -> Float64:
    """(N, G, C, padded rows, padded columns)"""
    lengths = (low + n + high for (low, high), n in zip(geo.padding, geo.image, strict=True))
    padded = np.zeros((geo.n, geo.g, geo.c, *lengths))
    padded[_inside(geo)] = x.reshape(geo.n, geo.g, geo.c, *geo.image)
    return padded


def _flat(array: Float64, geo: _Geometry) -> Float64:
    """(N, G, channels, positions of the output)"""
    return array.reshape(*array.shape[:3], geo.positions)


def _grouped(w: Float64, geo: _Geometry) -> Float64:
    """(G, K, C, R, S), or unshared (G, K, P*Q, C, R, S)"""
    regions = (geo.positions,) if geo.unshared else ()
    return w.reshape(geo.g, geo.k, *regions, geo.c, *geo.taps)


def _finish(op: Float64, p: _Parameters) -> Float64:
    """alpha * op + beta * out; ``out`` is read only where beta is not 0, and never written."""
    if p.out is not None and np.shape(p.out) != op.shape:
        raise ValueError(f"out: expected shape {op.shape}, got {np.shape(p.out)}")
    if p.beta == 0:
        return p.alpha * op
    if p.out is None:
        raise ValueError(f"out: expected an array of shape {op.shape} because beta = {p.beta} is not 0, got None")
    return p.alpha * op + p.beta * _float64("out", p.out, op.ndim)


def _filter_rank(axes: int, p: _Parameters) -> int:
    return 2 * axes + 2 if p.unshared else axes + 2
