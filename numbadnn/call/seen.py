"""Views of arrays whose axes a problem sees otherwise: a line as an image of one row, any axis as the channels.

An axis of the problem is one of the array's axes, several of them that follow each other in memory, or one of size 1 that the
array does not have: ``((0,), (1,), (), (2,))`` sees (N, C, L) as (N, C, 1, L), ``((0, 1), (2,))`` sees (A, B, C) as (A*B, C).
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from numbadnn.arrays import View
from numbadnn.problem import Spec, normalised_strides
from numbadnn.registry import Executable

Axes = tuple[tuple[int, ...], ...]


class Seen(NamedTuple):
    """The axes in which a problem sees each input and output, and the outputs as the caller has them.

    shared: the inputs that the outputs behind ``made`` are written to, in place.
    """

    inputs: tuple[Axes, ...]
    outputs: tuple[Axes, ...]
    made: tuple[Spec, ...]
    shared: tuple[int, ...] = ()


def seen_spec(spec: Spec, axes: Axes) -> Spec:
    """The operand that the problem sees, from the caller's: the same memory.

    >>> str(seen_spec(Spec.of("float32", (2, 3, 8)), ((0, 1), (), (2,))))
    'float32:6x1x8'
    """
    shape, strides = _seen(spec.shape, spec.strides, axes)
    return Spec(spec.dtype, shape, normalised_strides(shape, strides), spec.aligned)


def seen_views(views: list[View], seen: tuple[Axes, ...]) -> list[View]:
    """The same of views; on the CPU their addresses are arrays, which are reshaped too."""
    found = []
    for view, axes in zip(views, seen, strict=False):
        shape, strides = _seen(view.shape, view.strides, axes)
        address = view.address if view.device >= 0 else _reshaped(view.address, axes)
        found.append(view._replace(shape=shape, strides=strides, address=address))
    return found


def _seen(shape: tuple[int, ...], strides: tuple[int, ...], axes: Axes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """An axis of size 1 has no say in the stride of those that it is merged with."""
    steps = (next((strides[a] for a in reversed(group) if shape[a] != 1), 1) for group in axes)
    return tuple(math.prod(shape[a] for a in group) for group in axes), tuple(steps)


def _reshaped(array: Any, axes: Axes) -> Any:
    """A view of an array: axes are merged only where no copy is needed."""
    order, shape = _reshaping(array.shape, axes)
    moved = array if order is None else array.transpose(order)
    return moved if shape is None else moved.reshape(shape)


@functools.lru_cache(1024)
def _reshaping(shape: tuple[int, ...], axes: Axes) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """The order of the axes and the shape that an array gets; None for one that it has."""
    order = tuple(a for group in axes for a in group)
    found = tuple(math.prod(shape[a] for a in group) for group in axes)
    moved = order != tuple(sorted(order))
    return order if moved else None, found if moved or found != shape else None


def as_made(result: Any, seen: Seen) -> Any:
    """A NumPy array of the problem's result, in the caller's axes."""
    (axes,), (made,) = seen.outputs, seen.made
    order = tuple(a for group in axes for a in group)
    apart = result.reshape(tuple(made.shape[a] for a in order))
    return apart.transpose(tuple(order.index(a) for a in range(len(order))))


def mergeable(spec: Spec, first: int, second: int) -> bool:
    """Whether two neighbouring axes of an array lie in memory as one."""
    outer, inner = spec.shape[first], spec.shape[second]
    return 1 in (outer, inner) or spec.strides[first] == spec.strides[second] * inner


def merged(axes: tuple[int, ...], specs: tuple[Spec, ...]) -> Axes:
    """Neighbouring axes, put together where all of these arrays let them; those of size 1 go with their neighbours.

    >>> merged((0, 1, 2), (Spec.of("float32", (2, 3, 8)), Spec("float32", (2, 3, 8), (48, 8, 1))))
    ((0,), (1, 2))
    """
    groups: list[tuple[int, ...]] = []
    for axis in axes:
        wide = [a for a in groups[-1] if specs[0].shape[a] != 1] if groups else []
        if groups and all(not wide or mergeable(spec, wide[-1], axis) for spec in specs):
            groups[-1] = (*groups[-1], axis)
        else:
            groups.append((axis,))
    return tuple(groups)


def through(executable: Executable, seen: Seen, device: int) -> Executable:
    """The same executable on the caller's arrays: on a GPU their addresses, on the CPU views of them."""
    if device >= 0:
        return executable
    inner, inputs_axes, outputs_axes = executable.run, seen.inputs, seen.outputs
    count = len(inputs_axes)

    def run(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
        arrays = tuple(map(_reshaped, inputs[:count], inputs_axes))
        inner((*arrays, *inputs[count:]), tuple(map(_reshaped, outputs, outputs_axes)), workspace, stream)

    executable.run = run
    return executable
