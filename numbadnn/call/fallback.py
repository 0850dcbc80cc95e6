"""The line that tells a user that something else runs than was asked for, and what can be done about it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from numbadnn.errors import Refusal

#: a reason is cut there; ``explain`` and ``last_call`` have it whole
LONGEST = 160
#: the sentences that were said, and at which line of a program: there is one for all sizes
SAID: set[tuple[str, str, int]] = set()


def sentence(op: str, asked: str, algorithm: str, runs: str, refusals: Sequence[Refusal]) -> str:
    """The warning that ``runs`` runs instead of the backend ``asked`` for, or of a named ``algorithm`` that is not to be had.

    No shape is part of the text, so that each line of a program is told once.
    """
    wanted = f"algorithm {algorithm!r}" if algorithm else asked
    telling = [r for r in refusals if ("algorithm" in r.reason if algorithm else r.backend == asked)]
    why = ""
    for first in (telling or refusals)[:1]:
        why = f": {first.impl}: " + textwrap.shorten(first.reason.partition("\n")[0], LONGEST, placeholder=" ...")
    return (
        f"{op} runs on {runs} instead of {wanted}{why}. "
        "fallback='allow' accepts this silently, fallback='error' refuses it; numbadnn.explain gives every reason"
    )
