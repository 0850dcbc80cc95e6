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
from typing import Any, NamedTuple

from numbadnn import config
from numbadnn.call.candidates import Candidates
from numbadnn.cases import Case, find
from numbadnn.errors import NotSupportedError
from numbadnn.gpu import devices
from numbadnn.kept import choices, machine, ranks
from numbadnn.kept.outcome import Measured, Outcome
from numbadnn.measuring import tune, workers
from numbadnn.validate.documents import document, words
from numbadnn.validate.documents.files import Files

OK, NOTHING_RAN, INCOMPLETE = 0, 3, 4
Result = tuple[Case, Outcome | None, str, list[str]]  # a case, what was found, the choice file, what to print


def run(
    names: list[str],
    budget: float | None = None,
    files: Files | None = None,
    jobs: int = 1,
    seconds: float = tune.SECONDS,
) -> int:
    """Tune, print, and give the exit status; ValueError means wrong usage."""
    begin, files = time.perf_counter(), files or Files()
    files.check()
    device = 0 if devices.gpus() else -1
    cases, gains = cases_of(names), []
    outcomes: list[tuple[str, Outcome]] = []
    tasks = [Task(case, device, seconds) for case in cases]
    path, done = "", 0
    status: int | None = None

    def report() -> document.Document:
        return document.make(
            "tuning",
            [_row(name, outcome) for name, outcome in outcomes],
            seconds=time.perf_counter() - begin,
            device=device,
            arguments={"names": names, "budget": budget, "seconds": seconds},
            status=status,
            asked=words.asked(len(cases), done),
            architecture=ranks.architecture(device),
        )

    try:
        for case, outcome, stored_at, lines in _results(tasks, jobs, begin, budget):
            done += 1
            _clear()
            print(*(f"{done}/{len(cases)} {line}" for line in lines), sep="\n", flush=True)
            if outcome is None or not outcome.timed:
                continue
            path = stored_at or path
            outcomes.append((case.name, outcome))
            if len(outcomes) % 20 == 0:  # as far as it is: a run that is killed has its file
                files.write_json(report())
            gains.append((untuned_us(outcome) or 0.0) / (outcome.timed[0].time_us or 1.0) or 1.0)
        status = INCOMPLETE if done < len(cases) else OK if outcomes else NOTHING_RAN
    finally:
        unwritten = files.write(report())
        for line in unwritten:
            print(line, file=sys.stderr)
    spent = time.perf_counter() - begin
    if outcomes:
        mean = math.exp(sum(map(math.log, gains)) / len(gains))
        print(f"{len(outcomes)} cases in {spent:.0f} s; untuned would take {mean:.2f} times as long (geometric mean)")
        print(f"written to {path}" if path else "nothing could be written")
    elif status == NOTHING_RAN:
        print("nothing that was asked for can run here")
    if how_far := words.how_far(words.asked(len(cases), done), spent, budget):
        print(how_far)
    return status or (NOTHING_RAN if unwritten else status)


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

    if jobs <= 1:
        for task in tasks:
            if over():
                return
            yield worked(task)
    else:
        for task, found in workers.each(tasks, worked, jobs, over, _again):
            yield (
                (task.case, None, "", [f"{task.case.name}: {found.why}"]) if isinstance(found, workers.Ended) else found
            )


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


def _row(name: str, outcome: Outcome) -> dict[str, Any]:
    """A case of the report, with every candidate."""
    candidates = [
        c.as_dict() | {"number": c.number} | ({"reason": c.reason} if c.reason else {}) for c in outcome.candidates
    ]
    return {
        "case": name,
        "problem": str(outcome.problem),
        "policy": machine.policy_text(outcome.policy),
        "untuned_us": untuned_us(outcome),
        "seconds": round(outcome.seconds, 2),
        "candidates": candidates,
    }
