"""compute-sanitizer over the contract: every Numba kernel on small cases, watched for bad accesses, races or bad barriers.

    python tests/sanitize.py [--tool memcheck|racecheck|synccheck] [--processes 8] [--seconds 120] [--ops ...] [--impls ...]

The cases are those of tests/test_contract.py, the smallest kinds ("simulate") first; each process takes every n-th and starts no
case after its seconds are over, so the last line says how many ran. cuDNN's kernels are left out: they are not ours, and
watching them takes minutes. Exit code 0: nothing found and every result right. Needs compute-sanitizer on the PATH, or
in CUDA_HOME/bin.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

FOUND = 9  # the exit code of compute-sanitizer where the tool found something


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default="memcheck", choices=("memcheck", "racecheck", "synccheck", "initcheck"))
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--ops", nargs="*", default=[], help="operations (default: all)")
    parser.add_argument("--impls", nargs="*", default=[], help="implementations (default: all of ours)")
    parser.add_argument("--part", type=int, default=None, help=argparse.SUPPRESS)  # what the process itself is told
    return parser.parse_args()


def sanitizer() -> str:
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=f"{home}/bin")
    if found is None:
        raise SystemExit("compute-sanitizer is not on the PATH, nor in CUDA_HOME/bin: it comes with the CUDA toolkit")
    return found


def run_part(part: int, parts: int, seconds: float, ops: list[str], impls: list[str]) -> int:
    """This process's share of the cases, in the process that is watched; how many results were wrong."""
    from numbadnn import cases, config
    from numbadnn.call import select
    from numbadnn.problem import Policy
    from numbadnn.registry import implementations
    from numbadnn.validate.check import Row, Subject, judge

    small = cases.find(["simulate"])
    names = {case.name for case in small}
    chosen = small + [case for case in cases.find(["contract"]) if case.name not in names]
    chosen = [case for case in chosen if not ops or case.op in ops]
    policy, end, done, ran, wrong = Policy(device=0), time.monotonic() + seconds, 0, 0, 0

    for case in chosen[part::parts]:
        if time.monotonic() > end:
            break
        subject = Subject(case.name, case.problem())
        for impl in implementations(case.op):
            asked = impl.name in impls if impls else impl.backend == "numba"
            if not asked or select.refusal(impl, subject.problem, policy, config.current()):
                continue
            row = judge(Row(case.name, impl.name, case.text, "ok"), impl, subject, policy, timed=False)
            ran += 1
            if row.status != "ok":
                wrong += 1
                print(f"WRONG {case.name} {impl.name}: {row.reason}", flush=True)
        done += 1
    print(f"PART {done} of {len(chosen[part::parts])} cases, {ran} results, {wrong} wrong", flush=True)
    return wrong


def watch(args: argparse.Namespace) -> int:
    """Every part under the sanitizer, at once; prints what they found and the sums."""
    command = [sanitizer(), "--tool", args.tool, "--error-exitcode", str(FOUND)]
    command += ["--report-api-errors", "no"] if args.tool == "memcheck" else []
    command += [sys.executable, __file__, "--tool", args.tool, "--seconds", str(args.seconds)]
    command += ["--processes", str(args.processes), "--ops", *args.ops, "--impls", *args.impls]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    }
    parts = [
        subprocess.Popen(
            [*command, "--part", str(i)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        for i in range(args.processes)
    ]
    outputs = [p.communicate()[0] for p in parts]
    bad = [i for i, p in enumerate(parts) if p.returncode]
    for i in bad:
        print(f"---- part {i}: exit code {parts[i].returncode}\n{outputs[i][-6000:]}")
    lines = [line.split() for text in outputs for line in text.splitlines() if line.startswith("PART")]
    cases, of, results, wrong = (sum(int(line[n]) for line in lines) for n in (1, 3, 5, 7))
    silent = args.processes - len(lines)
    print(
        f"{args.tool}: {cases} of {of} cases, {results} results of Numba kernels, {wrong} wrong, "
        f"{len(bad)} of {args.processes} processes with findings" + (f", {silent} ended early" if silent else "")
    )
    return 1 if bad or silent or not results else 0


if __name__ == "__main__":
    given = arguments()
    if given.part is None:
        sys.exit(watch(given))
    sys.exit(1 if run_part(given.part, given.processes, given.seconds, given.ops, given.impls) else 0)
