"""Many random problems by several processes, and what was found: ``python -m numbadnn.validate.fuzz --backend numba``.

Problem ``number`` of a seed is drawn from its form, which many others share, and from its own number. On a GPU a new form costs
its kernels' compilation, ten seconds of a process; what one more problem of a form needs is nearly always compiled. So a chunk
of 200 problems has one form, and varies all that needs no other kernels: sizes, data, scales and, visit by visit, options and
threads. Where a form had 25 problems, a thousand of them needed 440 to 500 kernels of numba's on an H200; now 110 to 140.
"""

from __future__ import annotations

import faulthandler
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from numbadnn import config
from numbadnn.kernels.build import simulate
from numbadnn.measuring import workers
from numbadnn.validate.fuzz.draws import COMPOSED, FAMILIES, draw, problem_of
from numbadnn.validate.fuzz.picks import Seeded
from numbadnn.validate.fuzz.trials import FINDINGS, THREADS, Subject, Verdict, examine

#: problems of a chunk, which are of one form; of a visit, a part of it under one set of options, which one process does one after
#: the other; and different forms of a seed, which bound what is compiled
CHUNK, VISIT, FORMS = 200, 25, 200
#: more multiplications than this take the NumPy reference too long; then the same form is drawn small
MOST_WORK = 4_000_000
#: seconds after which a problem is held to hang, and its process is ended
PATIENCE = 180
#: options in force, visit by visit: mostly the default ones
OPTIONS: tuple[dict[str, str], ...] = (
    *({},) * 6, {"determinism": "not_guaranteed"}, {"determinism": "batch_invariant"}, {"determinism": "gpu_to_gpu"},
    {"fp32_precision": "tf32"},
)  # fmt: skip
#: what a problem may take of a GPU that many processes share
WORKSPACE = "64MiB"


class Task(NamedTuple):
    """Problems ``first`` to ``last`` of a seed, of one visit; none is begun after ``deadline`` (of ``time.time``)."""

    backend: str
    device: int
    seed: int
    first: int
    last: int
    deadline: float = float("inf")


class Finding(NamedTuple):
    """What is wrong, and all that is needed to see it again."""

    backend: str
    kind: str
    op: str
    impl: str
    case: str
    seed: int
    threads: int
    options: dict[str, str]
    text: str

    def __str__(self) -> str:
        environment = "".join(f"NUMBADNN_{name.upper()}={value} " for name, value in self.options.items())
        again = f"{environment}python -m numbadnn.validate.fuzz --backend {self.backend} --seed {self.seed}"
        again += f" --threads {self.threads} --case '{self.case}'"
        return f"{self.kind}: {self.impl} {self.text}\n  {again}"


class Tally:
    """Verdicts by operation and implementation, reasons of refusals, and findings."""

    def __init__(self) -> None:
        self.problems: Counter[str] = Counter()
        self.verdicts: Counter[tuple[str, str, str]] = Counter()
        self.refusals: Counter[tuple[str, str, str]] = Counter()
        self.findings: list[Finding] = []

    def add(self, other: Tally) -> None:
        for name in ("problems", "verdicts", "refusals"):
            getattr(self, name).update(getattr(other, name))
        self.findings += other.findings

    def note(self, verdict: Verdict, subject: Subject, backend: str, threads: int, options: dict[str, str]) -> None:
        op, line = subject.problem.op, str(subject.problem)
        self.verdicts[op, verdict.impl, verdict.kind] += 1
        if verdict.kind in FINDINGS:
            self.findings.append(
                Finding(backend, verdict.kind, op, verdict.impl, line, subject.seed, threads, options, verdict.text)
            )
        elif verdict.kind in ("refused", "skipped"):
            self.refusals[op, verdict.impl, re.sub(r"\d+", "#", verdict.text)[:200]] += 1


def tasks(backend: str, device: int, seed: int, count: int, deadline: float, abreast: int = 1) -> Iterator[Task]:
    """Visit after visit, as many problems as are asked for; so many forms side by side.

    As many processes begin with a form each, and find on disk what the others have compiled when they come to theirs.
    """
    together = CHUNK * max(1, abreast)
    for start in range(0, count, together):
        for visit in range(start, start + CHUNK, VISIT):
            for first in range(visit, min(start + together, count), CHUNK):
                yield Task(backend, device, seed, first, min(first + VISIT, count), deadline)


def form_of(number: int) -> int:
    return number // CHUNK % FORMS


def options_of(number: int) -> Any:
    """The options in force; another form begins with others."""
    return OPTIONS[(form_of(number) + number // VISIT) % len(OPTIONS)]


def threads_of(number: int) -> int:
    """Every fourth visit runs each problem in several threads at once."""
    return THREADS if number // VISIT % 4 == 3 and not simulate.active() else 1


def drawn(seed: int, number: int) -> Any:
    """The problem of a number, None where what was drawn does not fit together or is two operations."""
    tiny, form = simulate.active(), form_of(number)
    for small in (tiny,) if tiny else (False, True):
        try:
            call = draw(Seeded(f"{seed} {form}", f"{seed} {number}", small), FAMILIES[form % len(FAMILIES)])
            problem = None if call.function in COMPOSED else problem_of(call)
        except ValueError:  # shapes that do not fit one another, said so
            return None
        if problem is None or any(s.size == 0 for s in (*problem.inputs, *problem.outputs)):
            return None
        if problem.flops <= MOST_WORK:
            return problem
    return None


def data_seed(seed: int, number: int) -> int:
    return seed * 10_000_000 + number


def run(task: Task, note: workers.Note = lambda text: None) -> Tally:
    """A chunk; ``note`` is told what is begun."""
    tally = Tally()
    for number in range(task.first, task.last):
        if time.time() > task.deadline:
            break
        threads, options = threads_of(number), options_of(number)
        with quiet(), config.using(workspace_limit=WORKSPACE, **options):
            problem = drawn(task.seed, number)
            if problem is None:
                continue
            note(f"{number} {threads} {problem}")
            subject = Subject(problem, data_seed(task.seed, number))
            found = list(examine(subject, task.backend, task.device, threads))
        for verdict in found:
            tally.note(verdict, subject, task.backend, threads, options)
        if any(verdict.kind not in ("refused", "skipped") for verdict in found):
            tally.problems[problem.op] += 1
        if any(verdict.kind == "error" for verdict in found) and workers.spoilt():
            break  # nothing can be computed in this process any more
    return tally


def watched(task: Task, note: workers.Note) -> Tally:
    """``run``, where a problem that hangs ends the process, which then says what it was at."""

    def begin(text: str) -> None:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        note(text)

    try:
        return run(task, begin)
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def quiet() -> Iterator[None]:
    """Warnings are no news here: data holds infinities and NaN on purpose, and grids are small."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def again(task: Task, ended: workers.Ended, lost: Callable[[Finding], None]) -> Task | None:
    """What is left of a chunk whose process ended; what it was at is a finding."""
    number, threads, case = (*ended.at.split(" ", 2), "", "", "")[:3]
    if not number:
        lost(Finding(task.backend, "ended", "", task.backend, "", task.seed, 1, {}, ended.why))
        return None
    seed, options = data_seed(task.seed, int(number)), options_of(int(number))
    op = case.split()[0]
    lost(Finding(task.backend, "ended", op, task.backend, case, seed, int(threads), options, ended.why))
    rest = task._replace(first=int(number) + 1)
    return rest if rest.first < rest.last else None


def all_of(todo: Iterator[Task], jobs: int, show: Callable[[Finding], None]) -> Tally:
    """Every chunk, by so many processes (0: by this one); findings are shown as they come."""
    total, deadline = Tally(), 0.0

    def lost(finding: Finding) -> None:
        total.verdicts[finding.op, finding.impl, finding.kind] += 1
        total.findings.append(finding)
        show(finding)

    if not jobs:
        for task in todo:
            if time.time() > task.deadline:
                break
            tally = run(task)
            total.add(tally)
            list(map(show, tally.findings))
        return total

    def until() -> Iterator[Task]:
        nonlocal deadline
        for task in todo:
            deadline = task.deadline
            yield task

    def over() -> bool:
        return bool(deadline) and time.time() > deadline

    for _, tally in workers.each(until(), watched, jobs, over, lambda task, ended: again(task, ended, lost)):
        if not isinstance(tally, workers.Ended):
            total.add(tally)
            list(map(show, tally.findings))
    return total
