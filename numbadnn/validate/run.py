"""``numbadnn validate``: every implementation present, on named cases and photographs, against the float64 reference.

A case is one job: the reference is computed once and every implementation is held against it. With a GPU the layers have
their full size; without one, smaller copies of them, and beside them, in a process of its own, the simulator runs each CUDA
kernel on tiny cases, so that what is compared with the reference is never one backend alone.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from numbadnn.call import info
from numbadnn.cases import Case, find
from numbadnn.gpu import devices
from numbadnn.measuring import workers
from numbadnn.registry import FAMILY
from numbadnn.validate import own_data, photographs, report, reserve, simulator
from numbadnn.validate.check import Row, Subject, check_all
from numbadnn.validate.documents import document, words
from numbadnn.validate.documents.files import Files
from numbadnn.validate.oracle import Trial

PHOTOGRAPH_SIDE, PHOTOGRAPH_SIDE_ON_GPU = 128, 512


class Job(NamedTuple):
    """One case: its rows are worked out when ``run`` is called, which takes about ``seconds`` compared with others."""

    name: str
    run: Callable[[], list[Row]]
    seconds: float = 0.0


#: what the largest cases may take of a process: memory of the GPU, and of the host for their float64 references
GPU_BYTES, HOST_BYTES = 4 << 30, 6 << 30
CONTAINER_BYTES = Path("/sys/fs/cgroup/memory.max")
#: where no GPU computes and nothing was asked for, a sample of the cases: none is started after this time
SECONDS_WITHOUT_GPU = 170.0


def validate(
    names: list[str],
    backend: str | None = None,
    budget: float | None = None,
    files: Files | None = None,
    data: list[str] | None = None,
    processes: int | None = None,
    sample: float | None = None,
) -> int:
    """Run, print, and give the exit status; ValueError, TypeError and OSError mean wrong usage.

    ``sample``: as many cases as are begun in so many seconds, and no more are asked for; a ``budget`` that ends before all cases
    are run is incomplete. With a GPU ``processes`` (``fitting()``) work side by side: each prepares kernels and references,
    most of the time there is.
    """
    start = time.perf_counter()
    files = files or Files()
    files.check()
    if backend and (reason := info.absent(backend)):
        print(f"backend {backend} cannot be used here: {reason}")
        return report.CANNOT_RUN
    total = 0
    for option, value in (("--jobs", processes), ("--budget", budget), ("--sample", sample)):
        if data and value:
            raise ValueError(f"{option}: expected with cases, got {value:g} with --data")
    if data:
        rows = own_data.rows(own_data.operation(names, data), data, backend)
    else:
        rows, total = _cases_run(names, backend, budget if sample is None else sample, start, processes)
    seconds = time.perf_counter() - start
    interrupted = report.BY_CTRL_C in {row.reason for row in rows}
    asked = words.asked(total, total - report.left_out(rows), sample is not None and not interrupted)
    if asked["sample"]:
        rows = [row for row in rows if row.status != report.NOT_RUN]
    status = report.exit_status(rows)
    found = document.make(
        "validate",
        [row.as_dict() for row in rows],
        seconds=seconds,
        device=0 if devices.gpus() and backend != "cpu" else -1,
        arguments={"names": names, "backend": backend, "budget": budget, "sample": sample, "data": data},
        status=status,
        asked=asked if total else None,
    )
    unwritten = files.write(found)  # before it is shown, which may end where nobody reads
    for line in unwritten:
        print(line, file=sys.stderr)
    if not report.has_rich():
        print("(pip install numbadnn[cli] for a progress bar)")
    report.show(rows, seconds, words.how_far(asked, seconds, None if interrupted else budget))
    return status or (report.CANNOT_RUN if unwritten else status)


def _cases_run(
    names: list[str], backend: str | None, limit: float | None, start: float, processes: int | None
) -> tuple[list[Row], int]:
    """The rows of all cases, and how many cases there are; none is begun ``limit`` seconds after ``start``."""
    with contextlib.ExitStack() as stack:
        todo = list(jobs(names, backend))
        beside = list(simulator_jobs(names, backend, stack))
        total = len(todo) + len(beside)
        many = processes or fitting()
        if many <= 1:
            return run_jobs(interleaved(todo), limit, start, interleaved(beside)), total
        rows = in_processes(interleaved(todo), limit, start, many)
        if report.BY_CTRL_C in {row.reason for row in rows}:
            return rows + [_not_run(job, report.BY_CTRL_C) for job in beside], total
        return rows + (run_jobs(interleaved(beside), limit, start) if beside else []), total


def seconds_of_sample(names: list[str], budget: float | None, every: bool) -> float | None:
    """The sample that is taken where nothing in particular is asked for: without a GPU the whole takes very long."""
    asked = names or budget is not None or every
    return SECONDS_WITHOUT_GPU if not asked and devices.no_gpu_reason() else None


def fitting() -> int:
    """How many processes have a core and memory each; one where there is no GPU, whose kernels use all cores."""
    gpus = devices.gpus()
    if not gpus:
        return 1
    limits = [cores(), gpus[0]["memory_bytes"] // GPU_BYTES]
    if hasattr(os, "sysconf"):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // HOST_BYTES)
    with contextlib.suppress(OSError, ValueError):  # what a container may have; "max" is no number
        limits.append(int(CONTAINER_BYTES.read_text()) // HOST_BYTES)
    return int(max(1, min(limits)))


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def jobs(names: list[str], backend: str | None) -> Iterator[Job]:
    """What is to be done for these names in this process: cases and photographs."""
    on_cpu = not devices.gpus()
    pictures = [n for n in photographs.names() if _asked(n, photographs.operation(n), names)]
    for case in _cases(names):
        yield Job(case.name, partial(_check_case, case, on_cpu, backend), _seconds(case.problem(on_cpu)))
    if pictures:
        yield from _photograph_jobs(pictures, backend, PHOTOGRAPH_SIDE if on_cpu else PHOTOGRAPH_SIDE_ON_GPU)


def simulator_jobs(names: list[str], backend: str | None, stack: contextlib.ExitStack) -> Iterator[Job]:
    """Without a GPU: each CUDA kernel of these names' operations, and the cases named; ``stack`` ends the simulator."""
    if devices.gpus() or backend is not None:
        return
    every = "contract" in names
    lines = [f"{op} {impl}" for op, impl in simulator.kernels() if every or _asked(op, op, names)]
    named = [case for case in _cases(names) if any(_means(name, case.name) for name in names)]
    lines += [case.name for case in named if simulator.is_small(case)]
    yield from _simulator_jobs(lines, stack)


def _cases(names: list[str]) -> list[Case]:
    """The cases of these names; a name that only photographs have is none of them."""
    pictures = photographs.names()
    chosen: dict[str, Case] = {}
    for name in names or ["validate"]:
        try:
            chosen.update((case.name, case) for case in find([name]))
        except ValueError:
            if not any(_means(name, picture) for picture in pictures):
                raise
    return list(chosen.values())


def _seconds(problem: Any) -> float:
    """Of the reference and the bounds on a core, roughly: a network's bounds are eight more runs of it."""
    network = FAMILY[problem.op] == "rnn"
    flops = problem.flops * (9 if network else 2) if network or FAMILY[problem.op] == "conv" else 0
    return float(flops / 2e10 + problem.bytes / 5e7)


def _check_case(case: Case, small: bool, backend: str | None) -> list[Row]:
    problem = reserve.alone(case.problem(small))
    trial = None if case.data == "random" else Trial.of(problem, 0, case.data)
    return list(check_all(Subject(case.name, problem, trial), backend))


def _check_photographs(name: str, side: int, backend: str | None) -> list[Row]:
    return [row for subject in photographs.subjects([name], side) for row in check_all(subject, backend)]


def _means(name: str, case: str) -> bool:
    return name == case or fnmatch.fnmatchcase(case, name)


def _asked(case: str, op: str, names: list[str]) -> bool:
    return not names or op in names or "validate" in names or any(_means(n, case) for n in names)


def _skipped(names: list[str], impl: str, reason: str) -> list[Row]:
    return [Row(name, impl, "", "skipped", reason) for name in names]


def _photograph_jobs(names: list[str], backend: str | None, side: int) -> Iterator[Job]:
    if reason := photographs.missing():
        yield Job("photographs", partial(_skipped, names, "all", reason))
        return
    for name in names:
        yield Job(name, partial(_check_photographs, name, side, backend))


def _simulator_jobs(lines: list[str], stack: contextlib.ExitStack) -> Iterator[Job]:
    if lines and (reason := simulator.missing()):
        yield Job("simulator", partial(_skipped, lines, "numba (simulator)", reason))
        return
    started: list[simulator.Simulator] = []

    def run(line: str) -> list[Row]:
        if not started:
            started.append(simulator.Simulator())
            stack.callback(started[0].close)
        return started[0].check(line)

    for line in lines:
        yield Job(f"{line} (simulator)", partial(run, line))


def interleaved(todo: list[Job]) -> list[Job]:
    """The first of every group of names (``resnet50/...``, ``pool ...``), then the second: a budget reaches them all."""
    seen: dict[str, int] = {}
    turns = []
    for job in todo:
        group = job.name.split("/")[0].split()[0]
        seen[group] = seen.get(group, 0) + 1
        turns.append(seen[group])
    return [job for _, _, job in sorted(zip(turns, range(len(todo)), todo, strict=True))]


def run_jobs(todo: list[Job], budget: float | None, start: float, beside: list[Job] | None = None) -> list[Row]:
    """The rows of all jobs, those of ``beside`` by another thread; none is begun ``budget`` seconds after ``start``."""
    finished, counting, stop = 0, threading.Lock(), threading.Event()
    with report.progress(len(todo) + len(beside or ())) as advance, ThreadPoolExecutor(1) as another:

        def follow(jobs: list[Job]) -> list[Row]:
            nonlocal finished
            rows: list[Row] = []
            for job in jobs:
                try:
                    if not stop.is_set():
                        with counting:
                            advance(job.name, finished)
                            finished += 1
                        rows += _run_job(job, budget, start)
                        continue
                except KeyboardInterrupt:  # what was found until then is shown
                    stop.set()
                rows.append(_not_run(job, report.BY_CTRL_C))
            return rows

        others = another.submit(follow, beside or [])
        rows: list[Row] = []
        try:
            rows = follow(todo)
            return rows + others.result()
        except KeyboardInterrupt:  # while it waited for the other thread, which ends after its job
            stop.set()
            return rows + others.result()
        finally:
            stop.set()


def in_processes(todo: list[Job], budget: float | None, start: float, processes: int) -> list[Row]:
    """The same by so many processes; a case that ends its process has a row that says so."""
    found: dict[int, list[Row]] = {}
    threads = max(1, (os.cpu_count() or 1) // processes)

    def over() -> bool:
        return budget is not None and time.perf_counter() - start > budget

    tasks = [(number, job, threads) for number, job in enumerate(todo)]
    if budget is None:  # the longest first, that no process is alone with one at the end
        tasks.sort(key=lambda task: -task[1].seconds)
    late = f"the budget of {budget:g} s was spent" if budget is not None else ""
    with report.progress(len(todo)) as advance, blas_threads(threads):
        try:
            for (number, job, _), rows in workers.each(tasks, _work, processes, over):
                if isinstance(rows, workers.Ended):
                    rows = [Row(job.name, "all", "", "error", f"{rows.why}, at {rows.at}")]
                found[number] = rows
                advance(job.name, len(found))
        except KeyboardInterrupt:  # what was found until then is shown
            late = report.BY_CTRL_C
    return [row for n, job in enumerate(todo) for row in found.get(n, [_not_run(job, late)])]


@contextlib.contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Processes started meanwhile multiply matrices with so many threads each, unless the environment says otherwise."""
    given = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = given or str(count)
    try:
        yield
    finally:
        if given is None:
            del os.environ["OMP_NUM_THREADS"]


def _work(task: tuple[int, Job, int], note: workers.Note) -> list[Row]:
    import numba

    _, job, threads = task
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    note(job.name)
    return _run_job(job, None, 0.0)


def _not_run(job: Job, why: str) -> Row:
    return Row(job.name, "all", "", report.NOT_RUN, why)


def _run_job(job: Job, budget: float | None, start: float) -> list[Row]:
    if budget is not None and time.perf_counter() - start > budget:
        return [_not_run(job, f"the budget of {budget:g} s was spent")]
    try:
        return job.run()
    except MemoryError as error:
        return [Row(job.name, "all", "", "skipped", f"not enough memory: {error}")]
    except Exception as error:  # one case that cannot even be set up must not hide the others
        return [Row(job.name, "all", "", "error", f"{type(error).__name__}: {error}")]
