"""What ``NUMBADNN_VERBOSE`` prints: one line a call, on standard error, because standard output belongs to the program.

``dispatch``: what ran and what decided it, for people. ``exec``: fields ``name=value``, quoted as a shell would, with the time
and, last, the case, which ``numbadnn explain``, ``validate``, ``bench`` and ``tune`` take back as an argument. ``all``: both.

>>> parse("numbadnn exec impl=cpu.loops time_us=3.1 case='softmax x=float32:2x3'")["case"]
'softmax x=float32:2x3'
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from typing import Any

from numbadnn.host import compiling
from numbadnn.host.log import say as say
from numbadnn.registry import Executable


def timed(executable: Executable, describe: Callable[[str], str], device: int) -> Callable[..., None]:
    """``executable.run`` that prints a line a call; on a GPU it waits for the work, except while a graph is captured."""
    run = executable.run

    def run_and_say(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
        begin, compiled = time.perf_counter(), compiling.seconds()
        run(inputs, outputs, workspace, stream)
        spent = time.perf_counter() - begin - (compiling.seconds() - compiled)
        say(describe(f"{spent * 1e6:.1f}"))

    def run_on_gpu(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
        from numbadnn.gpu import bindings, streams

        d, check = bindings.driver(), bindings.check
        if streams.is_capturing(stream):
            run(inputs, outputs, workspace, stream)
            say(describe("captured"))
            return
        begin, end = check(d.cuEventCreate(0)), check(d.cuEventCreate(0))
        check(d.cuEventRecord(begin, stream))
        run(inputs, outputs, workspace, stream)
        check(d.cuEventRecord(end, stream))
        check(d.cuEventSynchronize(end))
        spent = 1000 * check(d.cuEventElapsedTime(begin, end))
        for event in (begin, end):
            d.cuEventDestroy(event)
        say(describe(f"{spent:.1f}"))

    return run_and_say if device < 0 else run_on_gpu


def line(fields: dict[str, Any]) -> str:
    """Fields as one line; ``parse`` is its inverse."""
    return "numbadnn exec " + " ".join(f"{name}={shlex.quote(str(value))}" for name, value in fields.items())


def parse(text: str) -> dict[str, str]:
    """The fields of a line that ``exec`` printed; ValueError for any other."""
    words = shlex.split(text)
    if words[:2] != ["numbadnn", "exec"] or not all("=" in word for word in words[2:]):
        raise ValueError(f"expected a line that begins with 'numbadnn exec', got {text!r}")
    return dict(word.split("=", 1) for word in words[2:])
