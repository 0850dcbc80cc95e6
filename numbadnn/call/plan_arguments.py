"""Check what a kept Plan is called with: errors name the arrays, destinations or workspace that it was not made for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from numbadnn.arrays import library_of, view_of
from numbadnn.call import operands
from numbadnn.errors import WorkspaceError
from numbadnn.problem import Spec, contiguous_strides, normalised_strides

if TYPE_CHECKING:
    from numbadnn.call.launch import Plan

#: bytes: where a workspace may begin, as every library's new arrays do
ALIGNED = 256


def probed(plan: Plan, arrays: tuple[Any, ...], outs: tuple[Any, ...]) -> list[tuple[Any, tuple[Any, ...]]]:
    """(address, signature) of the arrays, in the problem's order, and the destinations; TypeError or ValueError for others."""
    try:
        for array in arrays if plan.careful else ():
            check = library_of(array).check
            if check is not None:
                check(array)
        found = [library_of(a).probe(a) for a in (*arrays, *outs)]
    except (TypeError, ValueError, RuntimeError):  # said again with the name of what is at fault
        _check_arrays(plan, arrays)
        if outs:
            _check_outs(plan, arrays, outs)
        raise
    if tuple(signature for _, signature in found[: len(arrays)]) != plan.signatures[: len(arrays)]:
        _check_arrays(plan, arrays)
    if outs:
        _check_outs(plan, arrays, outs)
    return found


def _check_arrays(plan: Plan, arrays: tuple[Any, ...]) -> None:
    """ValueError where these are not what it was made for; they may be read-only."""
    for number, (array, (library, device, spec)) in enumerate(zip(arrays, plan.made_for, strict=True)):
        name = f"array {len(arrays) - number if plan.reversed else number + 1}"
        view = operands.named_view(array, name)
        if (view.library, view.device, view.spec()) != (library, device, spec):
            raise ValueError(
                f"{name}: this Plan was made for {library.name} {spec} on {operands.place(device)}, got "
                f"{view.library.name} {view.spec()} on {operands.place(view.device)}"
            )


def _check_outs(plan: Plan, arrays: tuple[Any, ...], outs: tuple[Any, ...]) -> None:
    """ValueError where these destinations have not the outputs' specs, or may not be written."""
    got = [str(view.spec()) for view in operands.check_out(outs, [view_of(arrays[0], "array 1")])]
    wanted = [str(spec) for spec in plan.outputs]
    if got != wanted:
        raise ValueError(f"out: this Plan was made for {' '.join(wanted)}, got {' '.join(got)}")


def workspace_address(workspace: Any, needed: int, device: int) -> int:
    """Where a caller's workspace begins; raises WorkspaceError where a plan of ``device`` cannot use it."""
    view = library_of(workspace, "workspace").view(workspace)
    itemsize = getattr(workspace, "itemsize", 1)
    have = math.prod(view.shape) * (itemsize if isinstance(itemsize, int) else 1)
    if view.device != device:
        wanted, got = (operands.place(d) for d in (device, view.device))
        raise WorkspaceError(f"workspace: expected memory of {wanted}, got an array of {got}")
    if have < needed:
        raise WorkspaceError(f"workspace: expected at least {needed} bytes, got {have}")
    address = view.pointer
    follows = normalised_strides(view.shape, view.strides) == contiguous_strides(view.shape)
    if needed and not (follows and address % ALIGNED == 0):
        what = f"address {address:#x}" if follows else f"strides {view.strides}"
        raise WorkspaceError(
            f"workspace: expected bytes that follow each other from a multiple of {ALIGNED} on, as a new array's do, got {what}"
        )
    return address


def check_apart(space: int, needed: int, specs: Iterable[Spec], addresses: Iterable[int]) -> None:
    """WorkspaceError where the ``needed`` bytes from ``space`` on lie between an array's first byte and its last."""
    for spec, address in zip(specs, addresses, strict=True):
        low, high = operands.byte_span(spec)
        if needed and spec.size and space < address + high and address + low < space + needed:
            raise WorkspaceError(
                "workspace: expected memory of its own, got an array that overlaps an input or an output"
            )
