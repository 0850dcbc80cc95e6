"""What the families' cases share: how a table of cases is read, and memory layouts besides packed ones.

A layout is a word: ``nhwc`` (channels last), ``rows`` (rows longer than what is used of them), ``reversed`` (the last axis
backwards), ``broadcast`` (the first axis of stride 0; packed where it is an output), ``transposed`` (the last two axes
swapped in memory), ``steps`` (every other element); ``unaligned`` after a comma, or alone: one element off a 16-byte boundary.
"""

from __future__ import annotations

from collections.abc import Iterator

from numbadnn.problem import Spec, channels_last_strides, contiguous_strides, normalised_strides

DTYPES = ("float16", "bfloat16", "float32", "float64")


def _strides(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """The element strides of a layout: what memory may look like besides packed."""
    *outer, last = shape
    packed = contiguous_strides(shape)
    if layout == "nhwc":
        return channels_last_strides(shape)
    if layout == "rows":  # rows longer than what is used of them
        return (*(s * (last + 3) for s in contiguous_strides(tuple(outer))), 1)
    if layout == "reversed":  # the last axis backwards
        return (*packed[:-1], -1)
    if layout == "broadcast":  # one image (filter) seen many times
        return (0, *contiguous_strides(shape[1:]))
    if layout == "transposed":  # the last two axes swapped in memory
        swapped = contiguous_strides((*shape[:-2], shape[-1], shape[-2]))
        return (*swapped[:-2], swapped[-1], swapped[-2])
    if layout == "steps":  # every other element
        return tuple(2 * s for s in packed)
    return packed


def operand(dtype: str, shape: tuple[int, ...], layout: str = "", is_output: bool = False) -> Spec:
    """The spec of an operand in a layout; an output never has elements on top of each other."""
    words = layout.split(",")
    if is_output and "broadcast" in words:  # no two results may share an address
        words.remove("broadcast")
    strides = normalised_strides(shape, _strides(shape, words[0] if words else ""))
    return Spec(dtype, shape, strides, "unaligned" not in words)


def sizes(text: str) -> tuple[int, ...]:
    """A shape: ``2x3x8`` is (2, 3, 8)."""
    return tuple(int(n) for n in text.split("x"))


def numbers(text: str) -> tuple[int, ...]:
    """Numbers with commas between."""
    return tuple(int(n) for n in text.split(","))


def table(text: str) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """(name, plain words, name=value words) of each line of a table."""
    for line in text.strip().splitlines():
        name, *words = line.split()
        yield name, [v for v in words if "=" not in v], dict(v.split("=", 1) for v in words if "=" in v)
