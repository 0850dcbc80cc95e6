"""The command ``python -m numbadnn.validate.fuzz``: exit status 1 on any finding, 3 where the backend cannot be used."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from numbadnn import cases, config
from numbadnn.call import info
from numbadnn.gpu import devices
from numbadnn.kernels.build import simulate
from numbadnn.validate import report, run
from numbadnn.validate.documents.columns import aligned
from numbadnn.validate.documents.files import check_writable
from numbadnn.validate.fuzz import rounds, trials

COUNTED = ("right", "wrong", "other bits", "CudnnError", "error", "ended", "refused", "skipped")
#: reasons of an implementation's refusals that a file keeps, the most frequent ones, and findings in full
REASONS, FINDINGS = 5, 500


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", description="Random problems until the time is over.")
    parser.add_argument("--backend", choices=("numba", "cudnn", "cpu", "auto"), help="auto: the public functions")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--count", type=int, default=10**9, help="problems drawn at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, help="processes (default: one a core; 0: this one)")
    parser.add_argument("--json", help="write counts, reasons and findings to this file")
    parser.add_argument("--case", help="one problem's line, with the seed of its data")
    parser.add_argument("--threads", type=int, default=1, choices=(1, trials.THREADS), help="with --case")
    parser.add_argument("--examples", type=int, default=100, help="without --backend: calls of either kind a round")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if args.backend is None:
        return of_garbage(args)
    device = -1 if args.backend == "cpu" or (args.backend == "auto" and not devices.gpus()) else 0
    if device == 0 and not simulate.active() and (reason := devices.no_gpu_reason()):
        print(f"backend {args.backend} cannot be used here: {reason}")
        return report.CANNOT_RUN
    if args.json:
        check_writable(args.json)
    if args.case:
        return once(args, device)
    start, many = time.time(), run.cores() if args.jobs is None else args.jobs
    todo = rounds.tasks(args.backend, device, args.seed, args.count, start + args.seconds, many)
    with run.blas_threads(1):
        total = rounds.all_of(todo, many, lambda finding: print(finding, flush=True))
    seconds = time.time() - start
    print(table(total))
    drawn = sum(total.problems.values())
    print(f"{args.backend}, seed {args.seed}: {drawn} problems, {len(total.findings)} findings; {seconds:.0f} s")
    if args.json:
        facts = {"backend": args.backend, "seed": args.seed, "seconds": round(seconds, 1), "jobs": many}
        Path(args.json).write_text(json.dumps(document(total, facts), indent=1) + "\n")
    return 1 if total.findings else 0 if drawn else report.CANNOT_RUN


def once(args: argparse.Namespace, device: int) -> int:
    """One problem, with everything that is known of each implementation."""
    subject, bad = trials.Subject(cases.parse(args.case), args.seed), 0
    with rounds.quiet(), config.using(workspace_limit=rounds.WORKSPACE):
        for verdict in trials.examine(subject, args.backend, device, args.threads):
            print(f"{verdict.impl}: {verdict.kind} {verdict.text}")
            bad += verdict.kind in trials.FINDINGS
    return 1 if bad else 0


def of_garbage(args: argparse.Namespace) -> int:
    """Rounds of good calls and spoiled ones until the time is over, or one fails."""
    from contextlib import nullcontext

    from numbadnn.gpu.context import ensure_context
    from numbadnn.validate.fuzz import garbage

    begin, number = time.perf_counter(), args.seed
    total = dict.fromkeys(("problems", "runs", "spoiled", "raised"), 0)

    def over() -> bool:
        return time.perf_counter() - begin > args.seconds

    device = 0 if devices.gpus() else -1
    with ensure_context(0) if device == 0 else nullcontext():
        while not over():
            try:
                found = garbage.run_once(number, args.examples, device, over)
            except AssertionError as error:
                print(f"seed {number}: {error}")
                return 1
            total = {name: total[name] + found[name] for name in total}
            number += 1
    print(f"seeds {args.seed} to {number - 1}: " + ", ".join(f"{count} {name}" for name, count in total.items()))
    return 0


def table(total: rounds.Tally) -> str:
    """A line for each operation and implementation, and the counts of every kind of verdict."""
    names = sorted({(op, impl) for op, impl, _ in total.verdicts})
    lines: list[tuple[str, ...]] = [("operation", "implementation", *COUNTED)]
    for op, impl in names:
        lines.append((op, impl, *(str(total.verdicts[op, impl, kind] or "") for kind in COUNTED)))
    sums = (str(sum(n for (_, _, k), n in total.verdicts.items() if k == kind)) for kind in COUNTED)
    lines.append(("all", "", *sums))
    return "\n".join(aligned(lines, range(2, len(lines[0]))))


def document(total: rounds.Tally, facts: dict[str, Any]) -> dict[str, Any]:
    """All that was found, for programs; reading it needs no numbadnn."""
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for (op, impl, kind), count in sorted(total.verdicts.items()):
        counts.setdefault(op, {}).setdefault(impl, {})[kind] = count
    reasons: dict[str, dict[str, dict[str, int]]] = {}
    for (op, impl, reason), count in total.refusals.most_common():
        known = reasons.setdefault(op, {}).setdefault(impl, {})
        name = reason if len(known) < REASONS else "other reasons"
        known[name] = known.get(name, 0) + count
    return {
        "format": "numbadnn-fuzz-1",
        **facts,
        "chunk": rounds.CHUNK,
        "forms": rounds.FORMS,
        "problems": dict(sorted(total.problems.items())),
        "all": {kind: sum(n for (_, _, k), n in total.verdicts.items() if k == kind) for kind in COUNTED},
        "verdicts": counts,
        "reasons": reasons,
        "findings": [finding._asdict() for finding in total.findings[:FINDINGS]],
        "findings_left_out": max(0, len(total.findings) - FINDINGS),
        "environment": info.collect(),
    }


if __name__ == "__main__":
    sys.exit(main())
