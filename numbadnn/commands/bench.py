"""``numbadnn bench``: how long every implementation of a case takes on this machine, the fastest first.

A case is timed with operands in turn that no cache holds (``measure``), each implementation as a call would run it: the chosen
one with its configuration, the others with what they take by themselves. Nothing is kept and nothing is compared:
``numbadnn tune`` keeps the fastest, ``numbadnn validate`` compares. On the CPU a named case is its smaller copy.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from numbadnn import config
from numbadnn.call import info
from numbadnn.call.candidates import Candidates
from numbadnn.call.choose import choose
from numbadnn.cases import Case
from numbadnn.commands.tune import cases_of
from numbadnn.errors import NotSupportedError, NumbaDNNError
from numbadnn.gpu import devices
from numbadnn.measuring.stage import stage
from numbadnn.problem import Policy
from numbadnn.validate.documents import document, words
from numbadnn.validate.documents.files import Files

OK, NOTHING_RAN, INCOMPLETE = 0, 3, 4
#: launches of one implementation: as many as fit into this time, within these bounds
SPENT_US, FEWEST, MOST = 2e5, 5, 50


@dataclass(frozen=True, slots=True)
class Timing:
    """One implementation of one case; ``time_us`` (median) None: it was refused, or failed, for ``reason``."""

    impl: str
    backend: str
    chosen: bool
    time_us: float | None = None
    least_us: float | None = None
    reason: str = ""


def run(names: list[str], backend: str | None, budget: float | None, files: Files | None = None) -> int:
    """Time, print, and give the exit status; ValueError means wrong usage."""
    begin, ran, files = time.perf_counter(), False, files or Files()
    files.check()
    rows: list[dict[str, Any]] = []
    status: int | None = None
    if backend and (reason := info.absent(backend)):
        print(f"backend {backend} cannot be used here: {reason}")
        return NOTHING_RAN
    device = 0 if devices.gpus() and backend != "cpu" else -1
    cases = cases_of(names)
    problems = [case.problem(small=device < 0) for case in cases]
    for problem in problems:
        if any(spec.size == 0 for spec in (*problem.inputs, *problem.outputs)):
            raise ValueError(f"expected operands with elements, to time something, got {problem}")
    try:
        for case, problem in zip(cases, problems, strict=True):
            if budget is not None and time.perf_counter() - begin > budget:
                break
            try:
                timings = _timed_on(device, case, problem, backend)
            except (NumbaDNNError, MemoryError, ValueError) as error:  # which must not end the others
                why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                print(f"{problem}\n  {why}", flush=True)
                rows.append({"case": case.name, "problem": str(problem), "timings": [], "reason": why})
                continue
            print("\n".join(_lines(problem, timings)), flush=True)
            ran = ran or any(t.time_us is not None for t in timings)
            rows.append({"case": case.name, "problem": str(problem), "timings": [asdict(t) for t in timings]})
        status = INCOMPLETE if len(rows) < len(cases) else OK if ran else NOTHING_RAN
    finally:  # a run that is ended has its file, as far as it is
        seconds, asked = time.perf_counter() - begin, words.asked(len(cases), len(rows))
        arguments = {"names": names, "backend": backend, "budget": budget}
        unwritten = files.write(
            document.make(
                "bench", rows, seconds=seconds, device=device, arguments=arguments, status=status, asked=asked
            )
        )
        for line in unwritten:
            print(line, file=sys.stderr)
    if status == NOTHING_RAN:
        print("nothing that was asked for can run here")
    if how_far := words.how_far(asked, seconds, budget):
        print(how_far)
    return status or (NOTHING_RAN if unwritten else status)


def _timed_on(device: int, case: Case, problem: Any, backend: str | None) -> list[Timing]:
    from numbadnn.call.select import policy_in_force
    from numbadnn.gpu.context import ensure_context
    from numbadnn.kernels.build.launch import set_cache_folder

    policy = policy_in_force(case.op, device)
    if device < 0:
        return timings_of(problem, policy, backend)
    set_cache_folder(config.current().cache_dir or None)
    with ensure_context(device):
        return timings_of(problem, policy, backend)


def timings_of(problem: Any, policy: Policy, backend: str | None = None) -> list[Timing]:
    """Every implementation on the device under the options in force, the fastest first, those refused last."""
    candidates = Candidates(problem, policy, config.current().replace({"tune": "cached"}, {}), backend)
    choice = None
    with contextlib.suppress(NotSupportedError):
        choice = choose(candidates)
    found = []
    with stage(problem, policy) as place:
        for impl in candidates.ordered((backend,) if backend else config.BACKENDS):
            chosen = choice is not None and choice.impl.name == impl.name
            row = Timing(impl.name, impl.backend, chosen, reason=candidates.reason(impl, named=True))
            if not row.reason:
                try:
                    executable = impl.plan(problem, policy, choice.config if chosen and choice else None)
                    times = _times(place, executable)
                    row = Timing(impl.name, impl.backend, chosen, statistics.median(times), min(times))
                except (NumbaDNNError, MemoryError) as error:
                    row = Timing(impl.name, impl.backend, chosen, reason=(str(error).splitlines() or ["no memory"])[0])
            found.append(row)
    return sorted(found, key=lambda t: (t.time_us is None, t.time_us or 0.0))


def _times(place: Any, executable: Any) -> list[float]:
    """Launches in microseconds; the first, which may compile, is not counted."""
    place.times(executable, 1)
    (once,) = place.times(executable, 1)
    found: list[float] = place.times(executable, int(min(MOST, max(FEWEST, SPENT_US / max(once, 1.0)))))
    return found


def _lines(problem: Any, timings: list[Timing]) -> list[str]:
    lines = [str(problem)]
    for t in timings:
        if t.time_us is None or t.least_us is None:
            lines.append(f"  {t.impl:32} {t.reason}")
            continue
        speed = f"{problem.flops / t.time_us / 1e3:9.1f} GFLOP/s {problem.bytes / t.time_us / 1e3:8.1f} GB/s"
        lines.append(
            f"  {t.impl:32} {t.time_us:11.2f} us (least {t.least_us:.2f}) {speed}{'  chosen' if t.chosen else ''}"
        )
    return lines
