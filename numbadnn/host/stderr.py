"""Lines on the standard error: a program that has closed it loses the lines, and no call."""

from __future__ import annotations

import contextlib
import sys


def say(text: str, end: str = "\n") -> None:
    """Print it; nowhere, where there is no standard error or nobody reads it any more."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(text, end=end, file=sys.stderr, flush=True)


def on_terminal() -> bool:
    """Whether a terminal shows the lines, where one may be written over."""
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # closed
        return False
