"""``numbadnn explain``: what would compute each case, without running it."""

from __future__ import annotations

from typing import Any

from numbadnn import config
from numbadnn.gpu.devices import gpus


def explanations(names: list[str]) -> list[Any]:
    """The Explanation of each case of these names, for the first GPU or, without one, for the CPU; nothing is run."""
    from contextlib import nullcontext

    from numbadnn import cases
    from numbadnn.call import explanation
    from numbadnn.call.operands import check_memory
    from numbadnn.call.select import policy_in_force
    from numbadnn.gpu.context import ensure_context

    device = 0 if gpus() else -1
    with ensure_context(0) if gpus() else nullcontext():
        found = []
        for case in cases.find(names):
            problem = case.problem()
            check_memory(problem.outputs, device)
            found.append(explanation.explain(problem, policy_in_force(case.op, device), config.current()))
        return found
