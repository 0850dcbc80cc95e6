"""What a user is told where something else runs than was asked for: one line, with what may be done about it."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from numbadnn.config import Options
from numbadnn.problem import Policy

if TYPE_CHECKING:
    from numbadnn.call.select import Choice

#: a reason is cut there; ``explain`` and ``last_call`` have it whole
LONGEST = 160


def sentence(problem: Any, policy: Policy, options: Options, chosen: Choice, algorithm: str) -> str:
    """The warning for a choice that is a fallback, "" where there is nothing to warn of.

    ``algorithm``: the one that was named and is not to be had, else "". Arrays on the CPU have no other backend, so that none
    is missed. No shape is part of the text: Python shows a text once for each line of a program.
    """
    if policy.device < 0 and not algorithm:
        return ""
    wanted = f"algorithm {algorithm!r}" if algorithm else options.backend[0]
    telling = [r for r in chosen.refusals if ("algorithm" in r.reason if algorithm else r.backend == wanted)]
    why = ""
    for first in (telling or chosen.refusals)[:1]:
        why = f": {first.impl}: " + textwrap.shorten(first.reason.partition("\n")[0], LONGEST, placeholder=" ...")
    return (
        f"{problem.op} runs on {chosen.impl.name} instead of {wanted}{why}. "
        "fallback='allow' accepts this silently, fallback='error' refuses it; numbadnn.explain gives every reason"
    )
