"""The logger ``numbadnn`` of Python's logging: what happens once a problem or once a kernel, and never once a call.

WARNING: something else runs than was asked for. INFO: a kernel was compiled; a fallback that the options allow; an erratum that
counts. DEBUG: each choice. Nothing is shown unless a program configures logging. ``logging`` is imported by the first record.
"""

from __future__ import annotations

import functools
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
