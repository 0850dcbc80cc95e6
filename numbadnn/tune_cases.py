"""``numbadnn tune``: the fastest implementation of every named case, measured ahead and kept in the choice file.

A line a case: what is fastest, its time, and how much slower is what would run untuned. ``--json FILE`` writes every candidate's
time, which is what ``bench/learn_rank.py`` learns the default rank from.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from numbadnn import choices, config, info, select, stored, tune
from numbadnn.cases import Case, find
from numbadnn.errors import NotSupportedError

OK, NOTHING_RAN = 0, 3


def run(names: list[str], budget: float | None = None, json_file: str | None = None) -> int:
    """Tune, print, and give the exit status; ValueError means wrong usage."""
    from numbadnn.kernels._context import ensure_context

    begin = time.perf_counter()
    device = 0 if info.gpus() else -1
    cases, outcomes, gains = find(names, "bench"), [], []
    path = None
    with ensure_context(0) if device == 0 else contextlib.nullcontext():
        for number, case in enumerate(cases, 1):
            if budget is not None and time.perf_counter() - begin > budget:
                print(f"{len(cases) - number + 1} cases left out: the budget of {budget:g} s was spent")
                break
            outcome = tune_case(case, device, f"{number}/{len(cases)} ")
            if outcome is None or not outcome.timed:
                continue
            path = choices.store(outcome, config.current())
            outcomes.append((case.name, outcome))
            gains.append(_line(case.name, outcome))
    seconds = time.perf_counter() - begin
    if json_file:
        _write(json_file, outcomes, device, seconds)
    if not outcomes:
        print("nothing that was asked for can run here")
        return NOTHING_RAN
    mean = math.exp(sum(map(math.log, gains)) / len(gains))
    print(f"{len(outcomes)} cases in {seconds:.0f} s; untuned would take {mean:.2f} times as long (geometric mean)")
    print(f"written to {path}" if path else "nothing could be written")
    return OK


def tune_case(case: Case, device: int, progress: str = "") -> tune.Outcome | None:
    """All candidates of one case; None where nothing can compute it. Without a GPU it is the smaller copy of the case."""
    from numbadnn.validate.check import policy_in_force

    problem, options = case.problem(small=device < 0), config.current()
    policy = policy_in_force(problem.op, device)
    admitted = [
        i for i in select.ordered(problem, policy, config.BACKENDS) if not select.refusal(i, problem, policy, options)
    ]
    if not admitted:
        print(f"{case.name}: {NotSupportedError.__name__}: nothing here can compute it")
        return None
    asked = select.names_of(problem, policy, options, config.BACKENDS)
    return tune.measure(problem, policy, admitted, asked, say=_progress(f"{progress}{case.name}"))


def _progress(what: str) -> Any:
    if not sys.stderr.isatty():
        return lambda text: None
    return lambda text: print(f"\r\033[K{what}: {text}"[:160], end="", file=sys.stderr, flush=True)


def untuned_us(outcome: tune.Outcome) -> float | None:
    """The time of what would run without the choice file: the first in rank, as it is by itself."""
    timed = {c.impl: c.time_us for c in outcome.timed if c.heuristic}
    ranked = [i.name for i in select.ordered(outcome.problem, outcome.policy, config.BACKENDS)]
    return next((timed[name] for name in ranked if name in timed), None)


def _line(name: str, outcome: tune.Outcome) -> float:
    best = outcome.timed[0]
    assert best.time_us is not None
    untuned = untuned_us(outcome) or best.time_us
    wrong = sum("does not agree" in c.reason or "failed" in c.reason for c in outcome.candidates)
    more = f", {wrong} left out as wrong" if wrong else ""
    more += f", {outcome.unfinished} not reached" if outcome.unfinished else ""
    end = "\r\033[K" if sys.stderr.isatty() else ""
    print(end, end="", file=sys.stderr, flush=True)
    config_text = "" if best.config is None else " " + json.dumps(best.config, separators=(",", ":"))
    print(
        f"{name}: {best.impl}{config_text} {best.time_us:.4g} us, untuned {untuned / best.time_us:.2f} times, "
        f"{len(outcome.timed)} of {len(outcome.candidates)} candidates timed{more}, {outcome.seconds:.1f} s",
        flush=True,
    )
    return untuned / best.time_us


def _write(file: str, outcomes: list[tuple[str, tune.Outcome]], device: int, seconds: float) -> None:
    rows = []
    for name, outcome in outcomes:
        row = {"case": name, "problem": str(outcome.problem), "policy": stored.policy_text(outcome.policy)}
        candidates = [c.as_dict() | ({"reason": c.reason} if c.reason else {}) for c in outcome.candidates]
        rows.append(
            {**row, "untuned_us": untuned_us(outcome), "seconds": round(outcome.seconds, 2), "candidates": candidates}
        )
    facts = {"format": "numbadnn-tuning-1", "device": stored.device_name(device), "versions": stored.versions(device)}
    from numbadnn import ranks

    head = json.dumps({**facts, "architecture": ranks.architecture(device), "seconds": round(seconds, 1)}, indent=1)
    lines = ",\n  ".join(json.dumps(row) for row in rows)  # a line a case: to be committed and compared
    Path(file).write_text(f'{head[:-2]},\n "cases": [\n  {lines}\n ]\n}}\n')
