"""Every way cuDNN's graph API offers to compute a convolution, for measuring: all forms, all engines, nothing built.

A configuration is what JSON holds: {"form": "nhwc", "engine": 55, "knobs": {"2": 1}}. ``restore`` takes one back without asking
the heuristics; whether the rules admit it, and whether cuDNN builds it, is decided by ``conv.prepare`` when it is planned.
"""

from __future__ import annotations

from typing import Any

from numbadnn.cudnn.graph.forms import forms
from numbadnn.errors import CudnnError, NotSupportedError
from numbadnn.problem import Policy


def space(problem: Any, policy: Policy) -> list[Any]:
    """Every engine configuration that the rules admit, those of the forms with the cheapest copies first."""
    from numbadnn.cudnn import lib
    from numbadnn.cudnn.graph import plan as graphs
    from numbadnn.gpu.context import ensure_context

    library, found = lib.load(), []
    with ensure_context(policy.device):
        handle = lib.handle(library, policy.device)
        for form in forms(problem):
            if form.buffer_bytes > policy.workspace_limit:
                continue
            try:
                offered = list(graphs.configurations(library, graphs.graph(library, handle, form.problem)))
            except CudnnError as error:
                if not error.refuses:
                    raise
                continue
            for candidate in offered:
                if not graphs.refusal(candidate, form.problem, policy):
                    knobs = {str(knob): value for knob, value in candidate.knobs.items()}
                    found.append({"form": form.name, "engine": candidate.engine, "knobs": knobs})
    return found


def restore(problem: Any, policy: Policy, stored: Any) -> Any:
    """A stored configuration, checked to be one; NotSupportedError for what it or the problem may not be."""
    from numbadnn.cudnn.graph.around import static_refusal

    if reason := static_refusal(problem, policy):
        raise NotSupportedError(reason)
    whole = (
        isinstance(stored, dict) and set(stored) == {"form", "engine", "knobs"} and isinstance(stored["knobs"], dict)
    )
    if not whole or not isinstance(stored["engine"], int):
        raise NotSupportedError(f"expected a form, an engine and its knobs, got {stored!r}")
    if stored["form"] not in [form.name for form in forms(problem)]:
        raise NotSupportedError(f"the stored form {stored['form']!r} is none of this problem's")
    try:
        return {**stored, "knobs": {int(knob): int(value) for knob, value in stored["knobs"].items()}}
    except (TypeError, ValueError):
        raise NotSupportedError(f"expected integers for an engine's knobs, got {stored['knobs']!r}") from None
