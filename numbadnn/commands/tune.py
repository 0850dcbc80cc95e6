"""``numbadnn tune``: the fastest implementation of every named case, measured ahead and kept in the choice file.

A line a case: what is fastest, its time, and how much slower is what would run untuned. A network's name stands for all its
layers, three directions. ``--jobs``: so many processes plan and check side by side; the device is measured by one at a time.
``--json FILE`` writes every candidate's time, which is what ``bench/learn_rank.py`` learns the default rank from.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from numbadnn import config
from numbadnn.call.candidates import Candidates
from numbadnn.cases import Case, find
from numbadnn.errors import NotSupportedError
from numbadnn.gpu import devices
from numbadnn.host import files as stored
from numbadnn.kept import choices, machine
from numbadnn.kept.outcome import Measured, Outcome
from numbadnn.measuring import tune, workers

OK, NOTHING_RAN = 0, 3
Result = tuple[Case, Outcome | None, str, list[str]]  # a case, what was found, the choice file, what to print


def run(
    names: list[str],
    budget: float | None = None,
    json_file: str | None = None,
    jobs: int = 1,
    seconds: float = tune.SECONDS,
) -> int:
    """Tune, print, and give the exit status; ValueError means wrong usage."""
    begin = time.perf_counter()
    device = 0 if devices.gpus() else -1
    cases, outcomes, gains = cases_of(names), [], []
    tasks = [Task(case, device, seconds) for case in cases]
    path, begun = "", False
    try:
        for number, (case, outcome, stored_at, lines) in enumerate(_results(tasks, jobs, begin, budget), 1):
            begun = True
            _clear()
            print(*(f"{number}/{len(cases)} {line}" for line in lines), sep="\n", flush=True)
            if outcome is None or not outcome.timed:
                continue
            path = stored_at or path
            outcomes.append((case.name, outcome))
            if json_file and len(outcomes) % 20 == 0:  # as far as it is: a run that is killed has its file
                _write(json_file, outcomes, device, time.perf_counter() - begin)
            gains.append((untuned_us(outcome) or 0.0) / (outcome.timed[0].time_us or 1.0) or 1.0)
    finally:
        seconds = time.perf_counter() - begin
        if json_file:
            _write(json_file, outcomes, device, seconds)
    if not outcomes:
        print("nothing that was asked for can run here" if begun else "nothing was begun")
        return NOTHING_RAN
    mean = math.exp(sum(map(math.log, gains)) / len(gains))
    print(f"{len(outcomes)} cases in {seconds:.0f} s; untuned would take {mean:.2f} times as long (geometric mean)")
    print(f"written to {path}" if path else "nothing could be written")
    return OK


def cases_of(names: list[str]) -> list[Case]:
    """The cases named; a network's name means all its layers, a pattern some; ValueError for a name that means nothing."""
    from numbadnn.cases import networks

    chosen: dict[str, Case] = {}
    for name in names or ["bench"]:
        network = name.split("/")[0]
        known = list(networks.cases(network)) if network in networks.NETWORKS else []
        found = [case for case in known if name == network or fnmatch.fnmatchcase(case.name, name)]
        chosen.update((case.name, case) for case in found or find([name], "bench"))
    return list(chosen.values())


class Task(NamedTuple):
    """A case to measure; ``without``: implementations that ended the process which measured them, and how."""

    case: Case
    device: int
    seconds: float = tune.SECONDS
    without: tuple[tuple[str, str], ...] = ()


def _results(tasks: list[Task], jobs: int, begin: float, budget: float | None) -> Iterator[Result]:
    """Each case as it is done; none is begun after ``budget`` seconds."""

    def over() -> bool:
        return budget is not None and time.perf_counter() - begin > budget

    done = 0
    if jobs <= 1:
        for task in tasks:
            if over():
                break
            yield worked(task)
            done += 1
    else:
        for task, found in workers.each(tasks, worked, jobs, over, _again):
            done += 1
            yield (
                (task.case, None, "", [f"{task.case.name}: {found.why}"]) if isinstance(found, workers.Ended) else found
            )
    if done < len(tasks):
        print(f"{len(tasks) - done} cases left out: the budget of {budget:g} s was spent")


def _again(task: Task, ended: workers.Ended) -> Task | None:
    """The same case without what ended the process, three times at most."""
    if not ended.at or len(task.without) > 2 or ended.at in dict(task.without):
        return None
    return task._replace(without=(*task.without, (ended.at, ended.why)))


def worked(task: Task, at: Callable[[str], None] = lambda name: None) -> Result:
    """Tune one case, keep what was found, and say it in lines."""
    from numbadnn.gpu.context import ensure_context
    from numbadnn.kernels.build.launch import set_cache_folder

    case, device, lines = task.case, task.device, [f"{task.case.name}: {name}: {why}" for name, why in task.without]
    if device >= 0:
        set_cache_folder(config.current().cache_dir or None)
    try:
        with ensure_context(device) if device >= 0 else contextlib.nullcontext():
            outcome = tune_case(task, lines.append, at)
    except Exception as error:  # one case that fails must not end the others
        outcome = None
        lines.append(f"{case.name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
    if outcome is None or not outcome.timed:
        return case, None, "", lines or [f"{case.name}: no candidate could be measured"]
    path = choices.store(outcome, config.current())
    return case, outcome, str(path or ""), [*lines, _line(case.name, outcome)]


def tune_case(
    task: Task, say: Callable[[str], None] = print, at: Callable[[str], None] = lambda name: None
) -> Outcome | None:
    """All candidates of one case; None where nothing can compute it. Without a GPU it is the smaller copy of the case."""
    from numbadnn.call.select import policy_in_force

    problem, options = task.case.problem(small=task.device < 0), config.current()
    policy = policy_in_force(problem.op, task.device)
    without = dict(task.without)
    candidates = Candidates(problem, policy, options)
    admitted = [i for i in candidates.ordered() if i.name not in without and not candidates.reason(i, named=True)]
    if not admitted:
        say(f"{task.case.name}: {NotSupportedError.__name__}: nothing here can compute it")
        return None
    outcome = tune.measure(problem, policy, admitted, candidates.names(), task.seconds, _progress(task.case.name), at)
    backends = {i.name: i.backend for i in candidates.present()}
    outcome.candidates += [Measured(name, backends[name], None, True, reason=why) for name, why in without.items()]
    return outcome


def _progress(what: str) -> Any:
    if not sys.stderr.isatty():
        return lambda text: None
    return lambda text: print(f"\r\033[K{what}: {text}"[:160], end="", file=sys.stderr, flush=True)


def untuned_us(outcome: Outcome) -> float | None:
    """The time of what would run without the choice file: the first in rank, as it is by itself."""
    timed = {c.impl: c.time_us for c in outcome.timed if c.heuristic}
    ranked = [i.name for i in Candidates(outcome.problem, outcome.policy, config.current()).ordered()]
    return next((timed[name] for name in ranked if name in timed), None)


def _clear() -> None:
    """Take the line of progress away."""
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _line(name: str, outcome: Outcome) -> str:
    best = outcome.timed[0]
    assert best.time_us is not None
    untuned = untuned_us(outcome) or best.time_us
    wrong = sum("does not agree" in c.reason or "failed" in c.reason for c in outcome.candidates)
    more = f", {wrong} left out as wrong" if wrong else ""
    more += f", {outcome.unfinished} not reached" if outcome.unfinished else ""
    config_text = "" if best.config is None else " " + json.dumps(best.config, separators=(",", ":"))
    return (
        f"{name}: {best.impl}{config_text} {best.time_us:.4g} us, untuned {untuned / best.time_us:.2f} times, "
        f"{len(outcome.timed)} of {len(outcome.candidates)} candidates timed{more}, {outcome.seconds:.1f} s"
    )


def _write(file: str, outcomes: list[tuple[str, Outcome]], device: int, seconds: float) -> None:
    rows = []
    for name, outcome in outcomes:
        row = {"case": name, "problem": str(outcome.problem), "policy": machine.policy_text(outcome.policy)}
        candidates = [
            c.as_dict() | {"number": c.number} | ({"reason": c.reason} if c.reason else {}) for c in outcome.candidates
        ]
        rows.append(
            {**row, "untuned_us": untuned_us(outcome), "seconds": round(outcome.seconds, 2), "candidates": candidates}
        )
    facts = {"format": "numbadnn-tuning-1", "device": machine.device_name(device), "versions": machine.versions(device)}
    from numbadnn.kept import ranks

    head = stored.as_json({**facts, "architecture": ranks.architecture(device), "seconds": round(seconds, 1)}, indent=1)
    lines = ",\n  ".join(stored.as_json(row) for row in rows)  # a line a case: to be committed and compared
    Path(file).write_text(f'{head[:-2]},\n "cases": [\n  {lines}\n ]\n}}\n')
