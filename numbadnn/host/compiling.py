"""What compiling costs whoever waits: a line on the standard error after a second, and seconds that no time of a call counts.

The line names the operation, once a process: "compiling conv2d for this CPU, once; ...". The option ``verbose=quiet`` leaves
it out, and so do pytest and the commands that show what they do themselves.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

from numbadnn import config
from numbadnn.host.log import say

#: seconds of compiling in one call after which the line is printed
PATIENCE = 1.0


class _Thread(threading.local):
    op = ""
    #: seconds that this thread has spent compiling: in all, and for the operation that it is in
    seconds = waited = 0.0
    depth = 0


_mine = _Thread()
_said: set[str] = set()
_silent = False
#: builds and kernels that this process has compiled, and that it has found on disk
compiled = found = 0


def seconds() -> float:
    """Seconds that this thread has spent compiling: two of them around a call say how much of it that was."""
    return _mine.seconds


def was_found() -> None:
    """Count a build or kernel that was on disk."""
    global found
    found += 1


def be_silent() -> None:
    """Print no line in this process: it says itself what it is doing."""
    global _silent
    _silent = True


@contextlib.contextmanager
def operation(op: str) -> Iterator[None]:
    """What this thread compiles inside is for ``op``."""
    before, _mine.op, _mine.waited = _mine.op, op, 0.0
    try:
        yield
    finally:
        _mine.op = before


@contextlib.contextmanager
def compiling(name: str, place: str, kept: bool = True) -> Iterator[None]:
    """Around what compiles a kernel for this CPU, or GPU; ``kept``: whether the next process finds it on disk."""
    global compiled
    if _mine.depth:
        yield
        return
    timer = _timer(_mine.op or name, place, kept)
    begin, _mine.depth = time.perf_counter(), 1
    try:
        yield
        compiled += 1
    finally:
        _mine.depth = 0
        spent = time.perf_counter() - begin
        _mine.seconds, _mine.waited = _mine.seconds + spent, _mine.waited + spent
        if timer:
            timer.cancel()


def _timer(what: str, place: str, kept: bool) -> threading.Timer | None:
    """What prints the line when the patience is over; None where it is not to be printed."""
    said = f"{what} for this {place}"
    quiet = _silent or "PYTEST_CURRENT_TEST" in os.environ or config.current().verbose == "quiet"
    if quiet or said in _said:
        return None
    if kept:
        line = f"numbadnn: compiling {said}, once; `numbadnn warm` does it ahead"
    else:
        line = f"numbadnn: compiling {said}, for this process alone: no folder can keep it"
    timer = threading.Timer(PATIENCE - _mine.waited, _say, (said, line))
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:  # no thread can be started: at the end of the process, or where there are too many
        return None
    return timer


def _say(said: str, line: str) -> None:
    if said not in _said:
        _said.add(said)
        say(line)
