"""A dictionary that forgets its oldest entries, and how many plans and choices are kept."""

from __future__ import annotations

from typing import Any

#: distinct problems remembered: plans a thread, choices (and refusals) a process
MAX_PLANS, MAX_CHOICES = 256, 1024


def remember(cache: dict[Any, Any], key: Any, value: Any, most: int = MAX_PLANS) -> None:
    """Insert, and drop the oldest beyond ``most``; a plan in use lives on by its references."""
    cache[key] = value
    if len(cache) > most:
        for old in list(cache)[: len(cache) - most]:
            cache.pop(old, None)  # another thread may have dropped it
