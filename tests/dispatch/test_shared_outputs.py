"""Outputs that are inputs too: running averages of batch normalization for vectors are written where the old ones lie."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from numbadnn.arrays import View
from numbadnn.call.launch import Plan, thread
from numbadnn.call.select import Choice
from numbadnn.ops.norm import TRAIN_OF_VECTORS
from numbadnn.problem import Policy
from numbadnn.registry import Executable, Impl


@pytest.mark.parametrize("nbytes", [0, 100])
@pytest.mark.parametrize("quick", [True, False])
def test_old_averages_are_where_the_new_ones_go(quick: bool, nbytes: int) -> None:
    ran: list[tuple[Any, ...]] = []
    made = iter(range(70, 80))
    library: Any = SimpleNamespace(
        name="fake", allocator=lambda spec, device: lambda: next(made), finish=None, check=None, address=lambda array: array,
        address_on_gpu=None, current_stream=lambda device: 5, scratch=lambda *_: (object(), 1000), outside=False,
    )  # fmt: skip
    shapes = ((4, 3, 8), (3,), (3,), (3,), (3,))
    views = [View(library, "float32", shape, (24, 8, 1)[-len(shape) :], 0, 64) for shape in shapes]
    request = TRAIN_OF_VECTORS(views, [], (1e-5, 0.1))
    executable = Executable(
        lambda inputs, outputs, workspace, stream: ran.append((*inputs, *outputs, workspace or 0)),
        workspace_bytes=nbytes,
        direct=(lambda stream, *words: ran.append(words if nbytes else (*words, 0))) if quick else None,
    )
    impl = Impl(
        "batch_normalization_train", "numba", "numba.none", lambda p, q: "", lambda p, q, c: executable, lambda p: 0.0
    )
    plan = Plan(request.problem, Policy(device=0), Choice(impl, "rank"), executable, views, request.seen)
    results = plan.quick(1, 2, 3, 4, 5) if quick else plan.launch((), (1, 2, 3, 4, 5), (), None, None)  # type: ignore[misc]
    assert (plan.quick is not None) == quick and results == (70, 71, 72)
    assert ran == [(1, 2, 3, 4, 5, 70, 71, 72, 4, 5, 1000 if nbytes else 0)]
    thread.last[0] = None
