"""Convolutions under the names that the specification gives their arguments, so that an error names what the caller wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn import dispatch, parameters, shapes
from numbadnn.call import operands
from numbadnn.ops import conv_build


def by_axes(
    build: Callable[[str, conv_build.Names], conv_build.Build], ending: str, **arguments: str
) -> dict[int, conv_build.Build]:
    """The builders of conv2d and conv3d, or of the gradients whose names end so, by the number of spatial axes."""
    bases = {2: conv_build.TWO, 3: conv_build.THREE}
    return {axes: build(f"conv{axes}d{ending}", names._replace(**arguments)) for axes, names in bases.items()}


def check(
    axes: int, border_mode: Any, subsample: Any, dilation: Any, num_groups: Any, dilation_name: str = "filter_dilation"
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Subsample and dilation, None being ones, of an operation that is made; ValueError for what no convolution has."""
    ones = (1,) * axes
    shapes.padding_pairs(border_mode, ones)
    conv_build.groups_of(num_groups)
    return (
        parameters.positive_ints("subsample", ones if subsample is None else subsample, axes),
        parameters.positive_ints(dilation_name, ones if dilation is None else dilation, axes),
    )


def check_inplace(**targets: Any) -> None:
    """ValueError or TypeError, before anything is computed, for an array that may not be written, by its name."""
    for name, array in targets.items():
        operands.check_out((array,), [operands.named_view(array, name)], name)


def compute(
    build: conv_build.Build,
    first: Any,
    second: Any,
    hints: tuple[Any, Any],
    border_mode: Any,
    subsample: Any,
    filter_flip: bool,
    dilation: Any,
    num_groups: int,
    unshared: bool = False,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    algo: str | None = None,
    precision: str | None = None,
    out: Any = None,
) -> Any:
    """``hints``: the shape that the builder asks for, or takes as a hint, then that of the other operand."""
    params = (
        *hints, border_mode, subsample, filter_flip, dilation, num_groups, unshared, alpha, beta, algo, precision
    )  # fmt: skip
    return dispatch.call2(build, first, second, params, None, out, None)
