"""Arguments as ``jax.lax`` takes them, for numbadnn's arrays, which have two spatial axes at least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

Axes = tuple[int | None, ...]


def axes(spec: tuple[int, ...]) -> Axes:
    """numbadnn's axes of an array of JAX's; one row before the columns where there are columns alone."""
    return (spec[0], spec[1], None, spec[2]) if len(spec) == 3 else spec


def seen_shape(shape: tuple[int, ...], axes: Axes) -> tuple[int, ...]:
    return tuple(1 if axis is None else shape[axis] for axis in axes)


def each(name: str, value: Any, spatial: int) -> tuple[int, ...]:
    """A number for each of numbadnn's axes."""
    found = (
        (1,) * spatial
        if value is None
        else tuple(map(int, value))
        if isinstance(value, Sequence)
        else (value,) * spatial
    )
    if len(found) != spatial:
        raise ValueError(f"{name}: expected {spatial} numbers, one for each spatial axis, got {value!r}")
    return (1, *found) if spatial == 1 else found


def padding_pairs(
    padding: Any, image: Sequence[int], window: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Any:
    """Padding in pairs of numbadnn's axes: given as such, or "SAME", "SAME_LOWER", "VALID"."""
    if isinstance(padding, str):
        seen = [(r - 1) * d + 1 for r, d in zip(window, dilation, strict=True)]
        return tuple(map(tuple, lax.padtype_to_pads(image, seen, stride, padding)))
    found = tuple((int(low), int(high)) for low, high in padding)
    found = ((0, 0), *found) if len(found) == 1 else found
    if len(found) != len(window):
        raise ValueError(f"padding: expected a pair for each spatial axis, or SAME or VALID, got {padding!r}")
    return found


def rank(lhs: Any, rhs: Any) -> int:
    if lhs.ndim not in (3, 4, 5) or rhs.ndim != lhs.ndim:
        raise ValueError(
            f"lhs, rhs: expected 3, 4 or 5 axes each (1, 2 or 3 of them spatial), got {lhs.shape} and {rhs.shape}"
        )
    return int(lhs.ndim) - 2
