"""Arguments of the shape functions, checked: sizes that may be None, steps, border modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numbadnn.parameters import as_int, listed, positive_ints, whole

Pair = tuple[int, int]


BORDER_NAMES = ("valid", "full", "half")


def known_ints(name: str, values: Any, length: int) -> tuple[int | None, ...]:
    """A tuple of ``length`` integers >= 1, where an entry may be None, which is not known."""
    if not isinstance(values, (tuple, list)):
        return positive_ints(name, values, length)
    checked = positive_ints(name, [1 if v is None else v for v in values], length)
    return tuple(None if v is None else n for v, n in zip(values, checked, strict=True))


def size_or_none(name: str, value: Any) -> int | None:
    """A size that may be None, or be negative, as what was computed may; ValueError for what is no integer."""
    try:
        return None if value is None else whole(value)
    except TypeError:
        raise ValueError(f"{name}: expected an integer or None, got {value!r}") from None


def step_or_none(name: str, value: Any) -> int | None:
    """A stride or dilation that may be None."""
    return None if value is None else as_int(name, value, 1)


def shape_of(name: str, values: Any) -> tuple[int | None, ...]:
    """A shape whose entries may be None, from a sequence or vector; else ValueError."""
    given = listed(values)
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        raise ValueError(f"{name}: expected a tuple of integers or None, got {values!r}")
    return tuple(size_or_none(name, v) for v in given)


def kernel_shape_of(values: Any, convdim: int) -> tuple[int | None, ...]:
    """The shape of a kernel of so many spatial axes, shared or unshared; else ValueError."""
    kernel = shape_of("kernel_shape", values)
    if len(kernel) not in (convdim + 2, 2 * convdim + 2):
        raise ValueError(
            f"kernel_shape: expected {convdim + 2} entries, or {2 * convdim + 2} (unshared), got {tuple(kernel)}"
        )
    return kernel


def axis_modes(border_mode: Any, convdim: int) -> tuple[Any, ...]:
    """One border mode for each axis: a name or an integer stands for every axis, a tuple has one entry an axis."""
    if border_mode is None:
        return (None,) * convdim
    if isinstance(border_mode, str):
        if border_mode not in BORDER_NAMES:
            same = "; 'half' keeps the size where windows are odd and the stride is 1" * (border_mode.lower() == "same")
            raise ValueError(
                f"invalid border_mode {border_mode!r}: expected 'valid', 'full', 'half', an integer or a tuple of "
                f"length {convdim} of integers or pairs of integers{same}"
            )
        return (border_mode,) * convdim
    if isinstance(border_mode, tuple):
        if len(border_mode) != convdim:
            one = convdim == 1 and len(border_mode) == 2
            pair = f"; ({border_mode!r},) pads before and after" if one else ""
            raise ValueError(f"invalid border_mode {border_mode!r}, which must be a tuple of length {convdim}{pair}")
        for mode in border_mode:
            if isinstance(mode, str):
                raise ValueError(f"invalid border_mode {border_mode!r}: expected integers or pairs, got {mode!r}")
        return border_mode
    if isinstance(border_mode, list):
        raise ValueError(f"invalid border_mode {border_mode!r}: expected a name, an integer or a tuple, got a list")
    return (as_int("border_mode", border_mode, 0),) * convdim


def axis_padding(mode: Any, dilated: int) -> Pair:
    """Zeros added on the left and on the right of one axis; ``dilated`` is the extent of the dilated kernel."""
    if isinstance(mode, str) and mode in BORDER_NAMES:
        pad = {"valid": 0, "full": dilated - 1, "half": dilated // 2}[mode]
        return pad, pad
    if isinstance(mode, tuple):
        if len(mode) != 2:
            raise ValueError(f"invalid border_mode: expected a pair (left, right) for one axis, got {mode!r}")
        return as_int("border_mode", mode[0], 0), as_int("border_mode", mode[1], 0)
    if isinstance(mode, str):
        raise ValueError(f"invalid border_mode {mode!r}: expected 'valid', 'full', 'half', an integer or a pair")
    pad = as_int("border_mode", mode, 0)
    return pad, pad
