"""Random problems that no table was made for: what auto chooses, how long every candidate takes, and PyTorch beside it.

``random_problems.draw`` draws them by number, so that any beginning is a fair sample. Of each: the implementation that auto
takes untuned (with ``--tune likely`` after it timed the likely ones) and the seconds that it chose for; every implementation that
takes the problem, as it is by itself, and of cuDNN's graph API the first engines of its heuristics; PyTorch without and with
``cudnn.benchmark``, and with ``cudnn.deterministic`` as well where it was faster.
A result of ours that is far from PyTorch's is said to be wrong (validate has the bounds). Processes prepare side by side,
one measures at a time on each GPU. A line of JSON a problem, written as it is done; what it all says prints ``random_report``.
``python bench/bench_random_shapes.py [--count N] [--from N] [--jobs N] [--budget SECONDS] [--json FILE]``; without a GPU
``--report FILE ... [--write FILE]``.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import current_process
from pathlib import Path
from typing import Any

import hard_problems
import random_problems
import random_report

import numbadnn
from numbadnn import config
from numbadnn.call import remembered, select
from numbadnn.call.candidates import Candidates
from numbadnn.call.choose import choose
from numbadnn.errors import NumbaDNNError
from numbadnn.gpu import devices
from numbadnn.host import files as stored
from numbadnn.kept import machine, ranks
from numbadnn.measuring import workers
from numbadnn.problems.conv_routes import DETOUR_US
from numbadnn.registry import plan

CANNOT_RUN = 3
#: seconds after which no further candidate of a problem is compiled; engines of cuDNN's heuristics beyond its first
PATIENCE, ENGINES = 25.0, 4
#: what is estimated to take so many times the least is not compiled; what took so many times the fastest is timed no further
HOPELESS, SLOW = 40.0, 3.0
ROUNDS, LAUNCHES, MOST_SETS = 3, 6, 12


def measure(drawn: random_problems.Drawn, note: workers.Note, tune: Any = "heuristic") -> dict[str, Any]:
    """The row of one problem."""
    import torch

    try:
        torch.cuda.set_device(int(current_process().name.rpartition("-")[2] or 0) % torch.cuda.device_count())
        with numbadnn.using(fp32_precision=drawn.precision, tune=tune):
            return _measured(drawn, note)
    except Exception as error:  # one that fails must not end the others
        return {"error": f"{drawn.problem}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
    finally:
        torch.cuda.empty_cache()


def _measured(drawn: random_problems.Drawn, note: workers.Note) -> dict[str, Any]:
    import random_peers
    import torch
    from harness import rotations

    problem, device = drawn.problem, torch.cuda.current_device()
    lock = machine.lock_name(device)
    with stored.lock_file(lock):
        sets = [random_peers.operands(problem, n) for n in range(rotations(problem.bytes, 128 << 20, MOST_SETS))]
        outputs = [random_peers.empty(spec) for spec in problem.outputs]
        torch.cuda.synchronize()
    begin = time.perf_counter()
    policy = select.policy_in_force(problem.op, device)
    rows, executables = _ways(Candidates(problem, policy, config.current()), note)
    note("all of them")
    row = {
        "number": drawn.number, "family": drawn.family, "problem": str(problem), "precision": drawn.precision,
        "candidates": rows, "prepared_s": round(time.perf_counter() - begin, 2),
    }  # fmt: skip
    room = torch.empty(max([1, *(e.workspace_bytes for e in executables)]), dtype=torch.uint8, device="cuda")

    def call(executable: Any, inputs: tuple[Any, ...]) -> Any:
        addresses, results = [tuple(t.data_ptr() for t in tensors) for tensors in (inputs, outputs)]
        return lambda: executable.run(addresses, results, room.data_ptr(), 0)

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = drawn.precision == "tf32"
    with stored.lock_file(lock), ThreadPoolExecutor(1, initializer=torch.cuda.set_device, initargs=(device,)) as other:
        theirs = [random_peers.call(problem, inputs) for inputs in sets]
        torch.backends.cudnn.benchmark = False
        expected = theirs[0]()
        calls: dict[int, list[Any]] = {}
        for number, executable in enumerate(executables):
            calls[number] = [call(executable, inputs) for inputs in sets]
            outputs[0].fill_(float("nan"))
            calls[number][0]()
            torch.cuda.synchronize()
            rows[number]["error"] = random_peers.difference(outputs[0], expected)
        del expected
        _times(calls, rows, theirs, row, other)
    return row


def _ways(candidates: Candidates, note: workers.Note) -> tuple[list[dict[str, Any]], list[Any]]:
    """A row and an executable for each candidate, what auto takes first."""
    problem, policy = candidates.problem, candidates.policy
    rows: list[dict[str, Any]] = []
    executables: list[Any] = []
    begin = time.perf_counter()

    def add(executable: Any, impl: Any, heuristic: bool) -> None:
        own = machine.configuration(executable)
        for row in rows:
            if (row["impl"], row["config"]) == (impl.name, own):
                row["heuristic"] |= heuristic
                return
        executables.append(executable)
        rows.append(
            {"impl": impl.name, "config": own, "heuristic": heuristic, "arithmetic": executable.arithmetic,
             "estimate_us": round(candidates.estimate(impl), 2), "rank_us": round(impl.rank(problem), 2)}
        )  # fmt: skip

    choice = choose(candidates)
    seconds = round(time.perf_counter() - begin, 3)
    note(choice.impl.name)
    choice, executable = remembered.followed(
        choice, problem, policy, candidates.options, lambda: choose(candidates, from_files=False)
    )
    add(executable, choice.impl, choice.config is None)
    rows[0] |= {"auto": choice.decided_by.split(",")[0], "chosen_s": seconds}
    least = min(candidates.estimate(impl) for impl in candidates.present() if not candidates.reason(impl))
    for impl in candidates.ordered():
        detour = candidates.estimate(impl) >= DETOUR_US
        if candidates.reason(impl) or (detour and impl.backend != "cudnn") or impl.name == "cudnn.algorithms":
            continue
        if candidates.estimate(impl) - DETOUR_US * detour > HOPELESS * least:
            continue
        first = impl.space(problem, policy) if impl.name.startswith("cudnn.graph") and impl.space else []
        engines: dict[str, Any] = {}
        for listed in first:
            engines.setdefault(ranks.engine_name(listed), listed)
        for one in (None, *list(engines.values())[:ENGINES]):
            if time.perf_counter() - begin > PATIENCE:
                return rows, executables
            note(impl.name)
            try:
                add(plan(impl, problem, policy, one), impl, one is None)
            except (NumbaDNNError, ValueError):  # an engine that cuDNN lists and cannot build
                continue
    return rows, executables


def _times(calls: dict[int, list[Any]], rows: list[Any], theirs: list[Any], row: dict[str, Any], other: Any) -> None:
    """Microseconds of every candidate and of PyTorch, which keeps what it chose by thread: ``other`` is for the benchmark."""
    import torch
    from harness import device_times_ms

    def timed(name: Any, turn: int) -> list[float]:
        if name in calls:
            return device_times_ms(calls[name], LAUNCHES if turn else 2, 1 if turn == 0 else 0)
        torch.backends.cudnn.benchmark = name != "torch"
        torch.backends.cudnn.deterministic = name == "torch deterministic"
        return device_times_ms(theirs, LAUNCHES, 2 if turn == 0 else 0)

    def each(name: Any, turn: int) -> list[float]:
        found = timed(name, turn) if name in calls or name == "torch" else other.submit(timed, name, turn).result()
        return [1e3 * ms for ms in found]

    peers = ["torch", "torch benchmark"]
    times: dict[Any, list[float]] = {name: each(name, 0) for name in (*calls, *peers)}
    least = min(min(found) for found in times.values())
    near = [name for name in (*calls, *peers) if min(times[name]) <= SLOW * least or name == 0 or name in peers]
    for turn in range(ROUNDS):
        for name in near:
            times[name] = (times[name] if turn else []) + each(name, 1 + turn)
    median = {name: round(statistics.median(found), 3) for name, found in times.items()}
    for number, candidate in enumerate(rows):
        candidate["time_us"] = median[number]
    row |= {name: median[name] for name in peers}
    if median[0] > 1.05 * median["torch benchmark"] and row["problem"].startswith("conv"):
        slower = each("torch deterministic", 0) + each("torch deterministic", 1)
        row["torch deterministic"] = round(statistics.median(slower), 3)


def main() -> int:
    parser = argparse.ArgumentParser(description="Random problems: auto, every candidate and PyTorch side by side.")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another set of problems (0)")
    parser.add_argument("--hard", action="store_true", help="no random ones, but those of hard_problems.py")
    parser.add_argument("--from", type=int, default=0, metavar="N", dest="begin", help="the first problem's number (0)")
    parser.add_argument("--count", type=int, default=1000, metavar="N", help="so many problems at most (1000)")
    parser.add_argument("--jobs", type=int, default=14, metavar="N", help="processes that prepare side by side (14)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin no further problem after this time")
    parser.add_argument("--tune", default="heuristic", metavar="WORD", help="the option tune: heuristic, likely")
    parser.add_argument("--json", type=Path, metavar="FILE", help="default: bench/results/GPU_random.jsonl")
    parser.add_argument("--report", nargs="+", type=Path, metavar="FILE", help="measure nothing: what these files say")
    parser.add_argument("--write", type=Path, metavar="FILE", help="with --report: these files as one document to keep")
    options = parser.parse_args()
    if options.report:
        if options.write:
            random_report.write(options.write, options.report)
        random_report.report(random_report.read(options.report))
        return 0
    if not devices.gpus():
        print("bench_random_shapes.py needs an NVIDIA GPU: the CUDA driver finds none here", file=sys.stderr)
        return CANNOT_RUN
    from harness import RESULTS, commit

    begin = time.perf_counter()
    path = options.json or RESULTS / machine.file_name(0).replace(".json", "_random.jsonl")
    drawn_ones = (random_problems.draw(options.seed, options.begin + n) for n in range(options.count))
    problems = hard_problems.problems() if options.hard else drawn_ones

    def over() -> bool:
        return options.budget is not None and time.perf_counter() - begin > options.budget

    found = []
    with path.open("w") as file:
        header = {"device": machine.device_name(0), "versions": machine.versions(0), "commit": commit()}
        print(
            json.dumps({**header, "seed": options.seed, "architecture": ranks.architecture(0)}), file=file, flush=True
        )
        measured = functools.partial(measure, tune=options.tune)
        for drawn, row in workers.each(problems, measured, options.jobs, over):
            if isinstance(row, workers.Ended):
                row = {"error": f"{drawn.problem}: {row.why}, at {row.at}"}
            print(json.dumps(row), file=file, flush=True)
            found.append(row)
    random_report.report(found)
    print(f"{len(found)} problems in {time.perf_counter() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
