"""The exceptions of numbadnn: what went wrong, as a class a caller can catch; and warnings, at the caller's line.

Wrong arguments are plain ``ValueError`` / ``TypeError``; everything else derives from ``NumbaDNNError``.
"""

from __future__ import annotations

import errno
import os
import sys
import textwrap
import warnings
from collections.abc import Iterable
from typing import NamedTuple


class Refusal(NamedTuple):
    """One candidate that was not chosen, and why."""

    backend: str
    impl: str
    reason: str


def by_reason(refusals: Iterable[tuple[str, str]], first: str = "  ") -> list[str]:
    """Lines of (implementation, reason), those of one reason together, in the order in which each reason comes first.

    A line begins with ``first``; where there are many names, further lines of them stand below it.

    >>> by_reason([("cpu.a", "too large"), ("cpu.b", "no alpha"), ("cpu.c", "too large")], "- ")
    ['- cpu.a, cpu.c: too large', '- cpu.b: no alpha']
    """
    names: dict[str, list[str]] = {}
    for impl, reason in refusals:
        names.setdefault(reason, []).append(impl)
    lines = []
    for reason, impls in names.items():
        lines += textwrap.wrap(", ".join(impls), 100, initial_indent=first, subsequent_indent=" " * len(first))
        lines[-1] += f": {reason}"
    return lines


class NumbaDNNError(RuntimeError):
    """Base of every error that is not a wrong argument."""


class NotSupportedError(NumbaDNNError, NotImplementedError):
    """No implementation that the options admit can do this problem; ``candidates`` says why for each.

    The text has one entry a reason, backends that are left out as a whole last.
    """

    def __init__(self, message: str, candidates: tuple[Refusal, ...] = ()) -> None:
        whole_last = sorted(candidates, key=lambda c: c.impl.endswith(".*"))
        lines = by_reason((c.impl, c.reason) for c in whole_last)
        super().__init__("\n".join([message, *lines]))
        self.candidates = candidates


class BackendUnavailableError(NumbaDNNError):
    """A backend that was asked for by name cannot be used here (no GPU, no library, array on another device)."""


class CudnnError(NumbaDNNError):
    """cuDNN returned a status other than success; the message carries its name and cuDNN's own last message."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    @property
    def refuses(self) -> bool:
        """Whether it is an answer, while a plan is made: a bad parameter (2xxx), "not supported" (3xxx), or that cuDNN fails over
        what was asked (4000 to 4002). Lack of memory is none: it would be remembered."""
        return self.status // 1000 in (2, 3) or 4000 <= self.status <= 4002


class WorkspaceError(NumbaDNNError):
    """The workspace a plan needs is larger than what was given or allowed."""


class DeterminismError(NumbaDNNError):
    """A forced algorithm conflicts with the determinism level that the user set."""


class CaptureError(NumbaDNNError):
    """A call under CUDA graph capture would have to synchronise, compile or allocate; raised before it does."""


class PlanMissError(NumbaDNNError):
    """``plan_strict`` is set and the plan file has no entry for this problem."""


def is_lack_of_memory(error: BaseException) -> bool:
    """Of the host or of a GPU, by whatever library it is said."""
    return isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__ or "OUT_OF_MEMORY" in str(error)


#: what a process is short of now, and may have again in a moment
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_passing(error: BaseException) -> bool:
    """Whether there was no descriptor or no memory: the same may succeed in a moment, so it is raised and not remembered.

    >>> is_passing(OSError(errno.EMFILE, "")), is_passing(OSError(errno.EACCES, ""))
    (True, False)
    """
    if isinstance(error, MemoryError):
        return True
    if getattr(error, "errno", None) in _SHORT:
        return True
    texts = (*map(os.strerror, _SHORT), "failed to map segment")  # of the loader's errors, which have no number
    return isinstance(error, (ImportError, OSError)) and any(text in str(error) for text in texts)


def warn(text: str, category: type[Warning] = RuntimeWarning, said: set[tuple[str, str, int]] | None = None) -> None:
    """A warning at the line of the user's that led here: the first one outside this package, and Numba that it called.

    ``said``: what was said where, and is not said again. Python's own memory of it ends whenever filters change, as they do
    in a call that imports or compiles.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("numbadnn", "numba"):
        level, frame = level + 1, frame.f_back
    if said is not None:
        place = text, frame.f_code.co_filename, frame.f_lineno
        if place in said:
            return
        said.add(place)
    try:
        warnings.warn(text, category, stacklevel=level)
    except ValueError:  # no filter's: the standard error is closed, where it would be shown
        if not getattr(sys.stderr, "closed", False):
            raise
