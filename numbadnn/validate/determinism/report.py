"""``numbadnn validate --determinism``: the level each implementation and engine reaches, beside the level it declares.

Every operation and dtype on a small case and a large one, layers of networks in between, every implementation and, inside cuDNN's
graph API, every engine that heuristics offer (whatever level it declares): the trials of ``levels.py`` here, and the same bits
from fresh processes. ``--jobs``: chunks of cases in so many processes at once. What is found wanting goes into the errata
file, which the dispatcher obeys; rows, verdicts and reports are in ``rows.py``.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from numbadnn import config
from numbadnn.call import info, operands
from numbadnn.call.select import policy_in_force
from numbadnn.cases import Case, all_cases, find, parse
from numbadnn.gpu import devices
from numbadnn.kept import errata
from numbadnn.problem import Policy
from numbadnn.registry import DETERMINISM, Impl, implementations
from numbadnn.validate.determinism import levels
from numbadnn.validate.determinism.rows import (
    CANNOT_RUN,
    INCOMPLETE,
    MISMATCH,
    Row,
    exercised,
    exit_status,
    judge,
    measured_levels,
    table,
    wanting,
)
from numbadnn.validate.determinism.words import explained
from numbadnn.validate.documents import document, words
from numbadnn.validate.documents.files import Files
from numbadnn.validate.report import INTERRUPTED

PROCESSES = 2
LARGEST = 48 << 20  # bytes of a case that is taken at its full size
CHUNK = 5  # cases of a process of ``--jobs``

#: layers of networks in between, with few images: (network, layer), and the dtypes and layouts they are taken in
MIDDLE = (
    *(("resnet50", name) for name in ("4b-3x3", "4c-1x1", "4-shortcut")),
    ("resnext50", "4b-grouped"),
    ("mobilenetv2", "4-depthwise"),
)
MIDDLE_SETTINGS = (("float16", "nhwc"), ("float32", "nchw"), ("bfloat16", "nhwc"), ("float64", "nchw"))


def run(names: list[str], backend: str | None, budget: float | None, files: Files | None = None, jobs: int = 1) -> int:
    """Measure, print, write the report and the errata, and give the exit status.

    Interrupted, it shows and writes the rows that there are, those that not all trials were made of without a verdict; errata
    follow from whole runs alone.
    """
    begin, files = time.perf_counter(), files or Files()
    files.check()
    if backend and (reason := info.absent(backend)):
        print(f"backend {backend} cannot be used here: {reason}")
        return CANNOT_RUN
    device = 0 if devices.gpus() and backend != "cpu" else -1
    rows: list[Row] = []
    begun: list[Row] = []
    todo = cases(names, device)
    left = [len(todo)]  # cases that are not done

    def report(status: int | None = None) -> document.Document:
        return document.make(
            "determinism",
            [dataclasses.asdict(row) for row in rows],
            seconds=time.perf_counter() - begin,
            device=device,
            arguments={"names": names, "backend": backend, "budget": budget},
            status=status,
            asked=words.asked(len(todo), len(todo) - left[0]),
        )

    try:
        for some, done in _chunks(todo, device, backend, budget, jobs, begun):
            for row in some:
                row.verdict, row.reason = judge(row)
            rows += some
            left[0] -= done
            files.write_json(report())  # a run that is ended has its report
    except KeyboardInterrupt:
        rows += begun
        files.write(report(INTERRUPTED))
        print(table(rows))
        print(words.how_far(words.asked(len(todo), len(todo) - left[0]), time.perf_counter() - begin))
        raise
    status = exit_status(rows)
    if left[0] and status != MISMATCH:
        status = INCOMPLETE
    unwritten = files.write(report(status))
    print(table(rows))
    if rows:
        print("\n" + explained(rows) + "\n")
        print(exercised(rows))
        try:
            path = errata.store(config.current(), device, wanting(rows), measured_levels(rows))
            print(f"{len(wanting(rows))} found wanting, written to {path}")
        except OSError as error:
            print(f"{len(wanting(rows))} found wanting")
            unwritten.append(f"the errata cannot be written: {error}")
    seconds = time.perf_counter() - begin
    print(f"{len(rows)} implementations and engines on {len({r.case for r in rows})} cases in {seconds:.0f} s")
    if how_far := words.how_far(words.asked(len(todo), len(todo) - left[0]), seconds, budget):
        print(how_far)
    for line in unwritten:
        print(line, file=sys.stderr)
    return status or (CANNOT_RUN if unwritten else status)


def cases(names: list[str], device: int) -> list[Case]:
    """Those named; by default, for each operation and dtype, a small one and the first large layer below LARGEST; and MIDDLE."""
    if names:
        return find(names)
    chosen: dict[tuple[str, str, str], Case] = {}
    for case in all_cases().values():
        tag = "contract" if "contract" in case.tags else "validate" if "validate" in case.tags else ""
        problem = case.problem(small=device < 0) if tag else None
        if problem is None or operands.is_empty(problem):
            continue
        if tag == "contract" or problem.bytes <= LARGEST:
            chosen.setdefault((case.op, problem.output.dtype, tag), case)
    small = [case for key, case in chosen.items() if key[2] == "contract"]
    return [*small, *_middle(), *(case for case in chosen.values() if case not in small)]


def _middle(images: int = 4) -> Iterator[Case]:
    """Layers that real engines and tiles take, three directions."""
    from numbadnn.cases import networks

    for dtype, layout in MIDDLE_SETTINGS:
        for number, (network, name) in enumerate(MIDDLE):
            if number > 1 and dtype in ("bfloat16", "float64"):
                continue
            (layer,) = (found for found in networks.layers(network) if found.name == name)
            for direction in networks.DIRECTIONS:
                text = str(networks.problem(layer, direction, dtype, layout, images))
                small = str(networks.problem(layer, direction, dtype, layout, 2))
                yield Case(f"{network}/{name}/{direction}/{dtype}-{layout}", text, frozenset(), small)


# ---- chunks of cases, in processes -----------------------------------------------------------------------------------


def _chunks(
    todo: list[Case], device: int, backend: str | None, budget: float | None, jobs: int, begun: list[Row]
) -> Iterator[tuple[list[Row], int]]:
    """Finished rows, and of how many cases, chunk by chunk; ``begun``: those of this process that are not finished."""
    if jobs <= 1:
        done = examine(todo, device, backend, budget, begun)
        finished = begun.copy()
        begun.clear()
        yield finished, done
        return
    begin = time.perf_counter()
    chunks = [todo[at : at + CHUNK] for at in range(0, len(todo), CHUNK)]

    def one(chunk: list[Case]) -> list[Row] | None:
        over = budget is not None and time.perf_counter() - begin > budget
        return None if over else _in_a_process(chunk, device, backend)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        try:
            for future, chunk in [(pool.submit(one, chunk), chunk) for chunk in chunks]:
                rows = future.result()
                yield rows or [], 0 if rows is None else len(chunk)
        finally:  # Ctrl-C does not wait for all the others
            pool.shutdown(wait=False, cancel_futures=True)


def _in_a_process(chunk: list[Case], device: int, backend: str | None) -> list[Row]:
    """The rows of these cases from a process of its own; where it dies, what it had and a row that says so."""
    asked = json.dumps({"cases": [[c.name, c.text, c.small] for c in chunk], "device": device, "backend": backend})
    command = [sys.executable, "-m", "numbadnn.validate.determinism.report", "chunk"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    rows = [Row(**json.loads(line[4:])) for line in done.stdout.splitlines() if line.startswith("row ")]
    if done.returncode:
        ended = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        why = f"the process of this and {len(chunk) - 1} more cases ended with status {done.returncode}: {ended}"
        problem = chunk[0].problem(small=device < 0)
        rows.append(
            Row(chunk[0].name, str(problem), "any", None, problem.output.dtype, "-", verdict="failed", reason=why)
        )
    return rows


def _chunk() -> None:
    """In such a process: the chunk as JSON in, a line a row out."""
    asked = json.loads(sys.stdin.read())
    todo = [Case(name, text, frozenset(), small) for name, text, small in asked["cases"]]
    rows: list[Row] = []
    examine(todo, asked["device"], asked["backend"], None, rows)
    for row in rows:
        print("row", json.dumps(dataclasses.asdict(row)), flush=True)


# ---- one process -----------------------------------------------------------------------------------------------------


def examine(todo: list[Case], device: int, backend: str | None, budget: float | None, rows: list[Row]) -> int:
    """All rows of all cases, one after the other into ``rows``; no further case is begun after ``budget`` seconds.

    How many cases were done.
    """
    from contextlib import nullcontext

    from numbadnn.gpu.context import ensure_context

    begin, done = time.perf_counter(), 0
    with ensure_context(device) if device >= 0 else nullcontext():
        for case in todo:
            if budget is not None and time.perf_counter() - begin > budget:
                break
            for row in _rows(case, device, backend):
                rows.append(row)  # one by one: an interrupted run has those before
            done += 1
    _fresh_processes(rows, device)
    return done


def _policy(op: str, device: int, setting: Any = None) -> Policy:
    """The rules in force, but every level is admitted: a level is what is measured; or the level that ``setting`` asks for."""
    level = setting.get("determinism", "not_guaranteed") if isinstance(setting, dict) else "not_guaranteed"
    return dataclasses.replace(policy_in_force(op, device), determinism=level)


def _rows(case: Case, device: int, backend: str | None) -> Iterator[Row]:
    problem = case.problem(small=device < 0)
    policy = _policy(problem.op, device)
    for impl in implementations(problem.op):
        if (impl.backend == "cpu") != (device < 0) or backend not in (None, impl.backend):
            continue
        if impl.supports(problem, policy):
            continue
        for setting in _configurations(impl, problem, policy):
            row = _row(case.name, impl, problem, setting, device)
            if not _not_built(row.reason):
                yield row
                if DETERMINISM.index(row.declared) < DETERMINISM.index(
                    impl.determinism
                ):  # it keeps its guarantee if asked
                    asked = {"determinism": impl.determinism}
                    if setting is None and not impl.supports(problem, _policy(problem.op, device, asked)):
                        yield _row(case.name, impl, problem, asked, device)


def _row(name: str, impl: Impl, problem: Any, setting: Any, device: int) -> Row:
    policy = _policy(problem.op, device, setting)
    row = Row(name, str(problem), impl.name, setting, problem.output.dtype, impl.determinism)
    try:
        found = levels.examine(impl, problem, policy, partial(_configured_for, impl, policy, setting))
        row.declared = found.declared or impl.determinism
        row.reached, row.sha256, row.trials, row.runs = found.level, found.sha256, found.trials, found.runs
    except Exception as error:  # one that fails must not hide the others
        row.verdict, row.reason = "failed", f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return row


def _not_built(reason: str) -> bool:
    return "cuDNN does not build it" in reason or "needs a workspace of" in reason


def _configurations(impl: Impl, problem: Any, policy: Policy) -> list[Any]:
    """Each engine once, as heuristics first offer it; what has no engines is taken as it is."""
    if impl.restore is None or impl.space is None:
        return [None]
    first: dict[Any, Any] = {}
    for setting in impl.space(problem, policy):
        if isinstance(setting, dict) and "engine" in setting:
            first.setdefault((setting["form"], setting["engine"]), setting)
    return list(first.values()) or [None]


def _configured_for(impl: Impl, policy: Policy, setting: Any, problem: Any) -> Any:
    return configured(impl, problem, policy, setting)


def configured(impl: Impl, problem: Any, policy: Policy, setting: Any) -> Any:
    return impl.restore(problem, policy, setting) if setting and "engine" in setting and impl.restore else None


# ---- fresh processes -------------------------------------------------------------------------------------------------


def _fresh_processes(rows: list[Row], device: int) -> None:
    """The bits of every row from new processes, one after the other."""
    live = [row for row in rows if not row.verdict]
    lines = "".join(json.dumps([row.problem, row.impl, row.config, device]) + "\n" for row in live)
    for _ in range(PROCESSES if live else 0):
        command = [sys.executable, "-m", "numbadnn.validate.determinism.report"]
        done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
        found = [line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("sha256 ", "error "))]
        for row, (kind, text) in zip(live, found, strict=False):
            same = kind == "sha256" and text == row.sha256
            counts = row.runs.setdefault("process", [0, 0])
            counts[0], counts[1] = counts[0] + same, counts[1] + 1
            if row.trials.get("process") != levels.DIFFERENT:
                row.trials["process"] = levels.SAME if same else levels.DIFFERENT
            if not same:
                row.reached, row.reason = "not_guaranteed", text if kind == "error" else ""
        if len(found) < len(live):
            ended = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
            row = live[len(found)]
            row.verdict, row.reason = "failed", f"a fresh process ended here: {ended}"


def child() -> None:
    """In a fresh process: a line of JSON in, the SHA-256 of the first run out."""
    from contextlib import nullcontext

    from numbadnn.gpu.context import ensure_context
    from numbadnn.measuring.data import make_arrays
    from numbadnn.validate.determinism import fingerprint

    for line in sys.stdin:
        text, name, setting, device = json.loads(line)
        problem = parse(text)
        policy = _policy(problem.op, device, setting)
        (impl,) = (i for i in implementations(problem.op) if i.name == name)
        try:
            with ensure_context(device) if device >= 0 else nullcontext():
                executable = impl.plan(problem, policy, configured(impl, problem, policy, setting))
                inputs, old = make_arrays(problem, 0)
                results = levels.run(executable, problem, policy, inputs, old=old)
            print("sha256", fingerprint(*results), flush=True)
        except Exception as error:
            print("error", f"{type(error).__name__}: {str(error).splitlines()[0]}", flush=True)


if __name__ == "__main__":
    _chunk() if sys.argv[1:] == ["chunk"] else child()
