"""How many processors this process may keep busy: its affinity, and the quota of its control groups (version 1 or 2)."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


@functools.cache
def processors() -> int:
    """Whole processors, at least 1; read once.

    Half a processor of a quota is no thread: it would put the others to sleep for the rest of a period.

    >>> processors() >= 1
    True
    """
    try:
        allowed = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # no such system
        allowed = os.cpu_count() or 1
    try:
        membership = Path("/proc/self/cgroup").read_text(encoding="ascii")
    except (OSError, ValueError):
        membership = ""
    return max(1, int(min([allowed, *quotas(membership, _GROUPS)])))


def quotas(membership: str, root: Path) -> Iterator[float]:
    """Processors that each group which the process is in, and each that holds it, may use; ``membership``: /proc/self/cgroup."""
    for line in membership.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            yield from _up(root, path, _second)
        elif "cpu" in controllers.split(","):
            for mount in {controllers: None, "cpu": None}:  # both names of one place, or the same
                yield from _up(root / mount, path, _first)


def _up(root: Path, path: str, read: Callable[[Path], float]) -> Iterator[float]:
    """The quotas from a group up to the root. In a container the path may be the host's: then only the root is there."""
    parts = [part for part in path.split("/") if part and part != ".."]
    for depth in range(len(parts), -1, -1):
        found = read(root.joinpath(*parts[:depth]))
        if found > 0:
            yield found


def _second(group: Path) -> float:
    """cpu.max: "max 100000" or "150000 100000", microseconds of processors in a period; 0: no quota."""
    words = _words(group / "cpu.max")
    return _ratio(*words) if len(words) == 2 else 0.0


def _first(group: Path) -> float:
    words = _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
    return _ratio(*words) if len(words) == 2 else 0.0


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []


def _ratio(quota: str, period: str) -> float:
    try:
        return int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return 0.0
