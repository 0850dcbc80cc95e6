"""The command on a model: read, walk, judge, print, and give the exit status."""

from __future__ import annotations

import collections
import sys
import time
from pathlib import Path
from typing import Any

from numbadnn.call import info
from numbadnn.gpu import devices
from numbadnn.validate import report
from numbadnn.validate.documents import document
from numbadnn.validate.documents.columns import COLUMNS, aligned, legend
from numbadnn.validate.documents.files import Files
from numbadnn.validate.model import against, files, inputs
from numbadnn.validate.model.judge import Judge, NodeRow
from numbadnn.validate.model.walk import Walk

#: what the terminal shows; it has no room for the notes
_COLUMNS = COLUMNS["model"][:-1]
HEADER = tuple(column.title for column in _COLUMNS)
_RIGHT = {i for i, column in enumerate(_COLUMNS) if column.number}
#: characters of a node's name that are shown
_NAME = 40


def judged(
    path: str,
    input_file: str | None = None,
    dims: dict[str, int] | None = None,
    backends: Any = None,
    seed: int = 0,
    folder: str = ".",
    timed: bool = True,
    runtime: str | None = None,
) -> Judge:
    """Walk through the model in this file; ModelError says what is wrong with it."""
    graph = files.Reader(files.load(path), path).graph()
    feeds = inputs.inputs_for(graph, input_file, dims or {}, seed)
    other = against.held_by(runtime, graph, feeds) if runtime else None
    judge = Judge(folder, Path(path).stem, backends, timed, other)
    try:
        Walk(judge).run(graph, feeds)
    except KeyboardInterrupt:  # what was found until then is shown
        judge.interrupted = True
    return judge


def exit_status(judge: Judge) -> int:
    found = {row.status for row in judge.rows}
    if found & {"mismatch", "error"}:
        return report.MISMATCH
    if judge.interrupted:
        return report.INTERRUPTED
    return report.OK if "ok" in found else report.CANNOT_RUN


def table(rows: list[NodeRow]) -> str:
    def shown(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    lines = [HEADER] + [
        (
            str(r.number),
            r.name if len(r.name) <= _NAME else "..." + r.name[3 - _NAME :],
            r.op,
            r.impl,
            r.status,
            shown(r.local, ".3f"),
            shown(r.carried, ".1e"),
            shown(r.time_us, ".0f"),
        )
        for r in rows
    ]
    return "\n".join(aligned(lines, _RIGHT))


def summary(judge: Judge, seconds: float) -> str:
    """How many nodes are right, what was judged of the arithmetic, and the first node that is wrong."""
    nodes: dict[int, set[str]] = collections.defaultdict(set)
    for row in judge.rows:
        nodes[row.number].add(row.status)
    wrong = [row for row in judge.rows if row.status in ("mismatch", "error")]
    good = sum(not found & {"mismatch", "error", "not judged"} for found in nodes.values())
    share = 100 * judge.judged / judge.flops if judge.flops else 100.0
    lines = [
        f"{good} of {len(nodes)} arithmetic nodes within their bounds; {share:.4g} % of {judge.flops / 1e9:.3g} GFLOP judged; "
        f"{seconds:.1f} s"
    ]
    if judge.interrupted:
        lines.append("  interrupted: the nodes after these were not run")
    unjudged = collections.Counter(row.reason for row in judge.rows if row.status == "not judged")
    lines += [f"  not judged {count} x: {reason}" for reason, count in unjudged.most_common()]
    if wrong:
        first = wrong[0]
        lines.append(
            f"first out of its bound: node {first.number}, {first.name} ({first.op}) on {first.impl}: {first.reason}"
        )
        lines += [f"  {first.problem}"] if first.problem else []
        lines += [f"  {first.replay}"] if judge.alone else []
    return "\n".join(lines)


def run(
    path: str,
    backend: str | None = None,
    input_file: str | None = None,
    dims: list[str] | None = None,
    runtime: str | None = None,
    reports: Files | None = None,
) -> int:
    """Judge, write, print; the exit status. ModelError (a ValueError) says what is wrong with the model or its inputs."""
    reports = reports or Files()
    reports.check()
    if backend and (reason := info.absent(backend)):
        print(f"backend {backend} cannot be used here: {reason}")
        return report.CANNOT_RUN
    begin = time.perf_counter()
    judge = judged(path, input_file, inputs.dims_of(dims), backend, runtime=runtime)
    seconds, status = time.perf_counter() - begin, exit_status(judge)
    found = document.make(
        "model",
        [row.as_dict() for row in judge.rows],
        seconds=seconds,
        device=0 if devices.gpus() and backend != "cpu" else -1,
        arguments={"names": [path], "backend": backend, "input": input_file, "dim": dims, "against": runtime},
        status=status,
        model=path,
    )
    unwritten = reports.write(found)  # before it is shown, which may end where nobody reads
    for line in unwritten:
        print(line, file=sys.stderr)
    print(table(judge.rows), legend(_COLUMNS), summary(judge, seconds), sep="\n\n")
    return status or (report.CANNOT_RUN if unwritten else status)
