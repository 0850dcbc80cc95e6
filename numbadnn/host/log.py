"""What people read while the library works: records of the logger ``numbadnn``, and lines on the standard error.

The logger has what happens once a problem or once a kernel, and never once a call. WARNING: something else runs than was
asked for. INFO: a kernel was compiled; a fallback that the options allow; an erratum that counts. DEBUG: each choice. Nothing
is shown unless a program configures logging. ``logging`` is imported by the first record.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any


@functools.cache
def _logger() -> Any:
    import logging

    logger = logging.getLogger("numbadnn")
    logger.addHandler(logging.NullHandler())  # without one Python would print warnings by itself
    return logger


def note(level: str, text: str, *values: Any) -> None:
    """A record at "debug", "info" or "warning"; ``values`` are put into the text where somebody listens."""
    getattr(_logger(), level)(text, *values)


def say(text: str, end: str = "\n") -> None:
    """Print a line on the standard error. A program that has closed it loses the line, and no call."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(text, end=end, file=sys.stderr, flush=True)


def on_terminal() -> bool:
    """Whether a terminal shows the lines, where one may be written over."""
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # closed
        return False
