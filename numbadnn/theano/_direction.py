"""``direction_hint``: a convolution computed as one of its gradients, where Theano did so and the hint asks for it.

Theano ran the gradient in the image for a 'full' border (unless the hint was 'forward!'), and the gradient in the filters for
a 'valid' one and the hint 'bprop weights'; both with stride 1 and one group. Here an implementation of each is registered
(``problems/conv_routes.py``). A hint that is given selects it; without one the dispatcher chooses among all that go straight.
Where no such implementation takes the problem it is computed straight, and ``last_call`` says so: a hint is no demand.
Source: docs/explanation/semantics.md#theanos-cudnn-functions.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

from numbadnn import config as options
from numbadnn.call.launch import thread
from numbadnn.errors import DeterminismError, NotSupportedError, PlanMissError, Refusal

HINTS = (None, "forward", "forward!", "bprop weights", "bprop inputs")
#: what implementations that go by a gradient are called
ROUTES = ("*_by_grad_inputs", "*_by_grad_weights")


def _plain(*parameters: Any) -> bool:
    """All ones: subsample, dilation, groups."""
    return all(_plain(*p) if isinstance(p, (tuple, list)) or getattr(p, "ndim", 0) > 0 else p == 1 for p in parameters)


def route(border_mode: Any, subsample: Any, dilation: Any, num_groups: int, hint: str | None) -> str:
    """How Theano would have gone: an entry of ``ROUTES``, or "" for straight; ValueError for an unknown hint.

    >>> route("full", (1, 1), (1, 1), 1, None), route("valid", (1, 1), (1, 1), 1, "forward")
    ('*_by_grad_inputs', '')
    """
    if hint is not None and (not isinstance(hint, str) or hint not in HINTS):
        raise ValueError(f"direction_hint: expected one of {', '.join(map(repr, HINTS))}, got {hint!r}")
    if not isinstance(border_mode, str) or not _plain(subsample, num_groups):
        return ""
    if hint == "bprop weights" and border_mode == "valid" and _plain(dilation):
        return ROUTES[1]
    return ROUTES[0] if border_mode == "full" and hint != "forward!" else ""


def straight(run: Callable[[], Any]) -> Any:
    """``run()`` by no gradient, whatever was measured: the hint 'forward!'."""
    with options.using(exclude=",".join((*options.current().exclude, *ROUTES))):
        return run()


def by_gradient(pattern: str, hint: str, run: Callable[[str | None], Any], flag: str) -> Any:
    """``run(algo)`` by an implementation of this name, else straight, which is recorded as a fallback.

    ``flag`` is the algorithm that the flags name for the gradient: the call's own is ignored, as in Theano. No gradient of
    a named algorithm stands in for a convolution, and a list ``only`` of the user's own is left as it is.
    """
    if flag != "auto":
        reason = f"no algorithm by name computes a convolution as a gradient, the flags name {flag!r}"
        refused: tuple[Refusal, ...] = (Refusal("cudnn", pattern, reason),)
    elif options.current().only:
        refused = (Refusal("cudnn", pattern, f"not in the option only={','.join(options.current().only)!r}"),)
    else:
        try:
            with options.using(only=pattern):
                return run("auto")
        except NotSupportedError as error:  # raised by the choice, before anything ran
            refused = tuple(r for r in error.candidates if "option only=" not in r.reason)
        except (DeterminismError, PlanMissError) as error:  # of the gradient alone: the straight way may have none
            refused = (Refusal("cudnn", pattern, str(error)),)
    result = run(None)
    _record(hint, refused)
    return result


def _record(hint: str, refused: tuple[Refusal, ...]) -> None:
    """Let ``last_call`` tell that the hint was not followed, and why; the plan itself is another call's too."""
    plan = copy.copy(thread.last[0])
    assert plan is not None
    choice = plan.choice
    plan.choice = dataclasses.replace(
        choice,
        decided_by=f"{choice.decided_by}; direction_hint={hint!r} is not to be had",
        refusals=(*refused, *choice.refusals),
        fallback=True,
    )
    thread.last[0] = plan
