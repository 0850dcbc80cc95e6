"""What callers give as parameters: what counts as an integer, as a float, as a tuple of integers; and the ranks of arrays."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

#: no array has so long an axis, and products of two still fit 64 bits or nearly
LARGEST = 2**40


def whole(value: Any) -> int:
    """The integer that a number is or equals, TypeError where there is none.

    2.0 and True count as 2 and 1. A call is looked up by its parameters, and a key cannot tell them apart: what was remembered
    for 2 is taken for 2.0, so that to refuse 2.0 in the first call would make an answer depend on the calls before it.

    >>> whole(2.0), whole(True)
    (2, 1)
    """
    try:
        return operator.index(value)
    except TypeError:
        # an integer's hash is itself, and what equals it hashes alike
        if isinstance(value, (numbers.Number, np.bool_)) and hash(value) == value:
            return hash(value)
        raise


def real(value: Any) -> float:
    """The float that a number is or equals, TypeError where there is none: ``whole`` for parameters that are no integers.

    NumPy's complex numbers would turn into floats by themselves, and lose what they have beside.

    >>> real(0.5 + 0j), real(2)
    (0.5, 2.0)
    """
    if isinstance(value, str | bytes):
        raise TypeError
    if isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real):
        if value.imag != 0:
            raise TypeError
        value = value.real
    return float(value)


def as_int(name: str, value: Any, minimum: int) -> int:
    """``value`` as an integer of at least ``minimum``; ValueError naming the argument otherwise."""
    try:
        number = whole(value)
    except TypeError:
        raise ValueError(f"{name}: expected an integer >= {minimum}, got {value!r}") from None
    if number < minimum:
        raise ValueError(f"{name}: expected an integer >= {minimum}, got {value!r}")
    if number > LARGEST:
        raise ValueError(f"{name}: expected an integer of at most 2**40, got {value!r}")
    return number


def listed(values: Any) -> Any:
    """A vector of whatever library as a list; anything else as it is."""
    return values.tolist() if hasattr(values, "tolist") and getattr(values, "ndim", 0) == 1 else values


def ints(name: str, values: Any, length: int, minimum: int) -> tuple[int, ...]:
    """A sequence or vector of ``length`` integers of at least ``minimum`` as a tuple; else ValueError."""
    given = listed(values)
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != length:
        raise ValueError(f"{name}: expected a tuple of {length} integers >= {minimum}, got {values!r}")
    return tuple(as_int(name, v, minimum) for v in given)


def per_axis(name: str, values: Any, length: int) -> tuple[int, ...]:
    """An integer >= 1 for each of ``length`` axes: a sequence or vector of them, or one that stands for all.

    >>> per_axis("subsample", 2, 2), per_axis("subsample", (1, 2), 2)
    ((2, 2), (1, 2))
    """
    if isinstance(values, numbers.Number | np.bool_):
        return (as_int(name, values, 1),) * length
    return positive_ints(name, values, length)


def positive_ints(name: str, values: Any, length: int) -> tuple[int, ...]:
    """The same of integers >= 1: subsample, filter_dilation, kernel sizes."""
    return ints(name, values, length, 1)


def check_rank(name: str, shape: tuple[int, ...], rank: int, axes: str = "", of: str = "batch") -> None:
    """ValueError for an array that has not ``rank`` axes, with the code that adds those that are missing.

    ``of``: what its first axis counts, "batch" or "filters" (and the second channels), "pointwise" for those of size 1;
    "" for other arrays.

    >>> check_rank("input", (28, 28), 4)
    Traceback (most recent call last):
    ValueError: input: expected 4 dimensions, got 2 (shape (28, 28)); input[None, None] is a batch of one with one channel
    """
    if len(shape) == rank:
        return
    text = f"{name}: expected {rank} dimensions{f' {axes}' if axes else ''}, got {len(shape)} (shape {shape})"
    one, many = ("one filter", "filters") if of == "filters" else ("a batch of one", "of them")
    if of == "pointwise" and len(shape) == 2:
        text += f"; {name}[:, :, {', '.join(['None'] * (rank - 2))}] are filters of size 1"
    elif of and rank - len(shape) == 2:
        text += f"; {name}[None, None] is {one} with one channel"
    elif of and rank - len(shape) == 1:
        text += f"; {name}[None] is {one} with {shape[0]} channels, {name}[:, None] are {shape[0]} {many} with one"
    raise ValueError(text)


def channels_last(name: str, shape: tuple[int, ...], channels: int) -> str:
    """What to add to an error where an array's last axis has the channels that were expected of the second ("" = it has not).

    >>> channels_last("input", (8, 32, 32, 3), 3)
    '; if its channels are last: moveaxis(input, -1, 1)'
    """
    if len(shape) > 2 and shape[-1] == channels != shape[1]:
        return f"; if its channels are last: moveaxis({name}, -1, 1)"
    return ""
