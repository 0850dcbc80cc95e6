"""compute-sanitizer over a problem of every kernel of ours: bad accesses, races, bad barriers, memory that nobody wrote.

    python tests/support/sanitize.py [--tool memcheck|racecheck|synccheck|initcheck ...] [--processes 16] [--seconds 200]
        [--impls ...]

``sanitize_cases`` says which problems. Each is run once, its operands in memory of exactly their size; under initcheck outputs
and workspace are what they are allocated as. Processes take some problems after another; one that ends early names the problem,
and what is left is done by another. A tool has one line in the end; what could not be run is listed. Exit code 0: nothing found
and every result right. Needs compute-sanitizer on the PATH, or in CUDA_HOME/bin.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from folders import ROOT

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
#: mbarriers of a block, at most: two for each of 16 slots of a ring and of 4 rows
BARRIERS = "64"
FOUND = 9  # the exit code of compute-sanitizer where the tool found something
#: problems that a process does
BATCH = 12
#: the number of what is no problem: copies and scaling
COPIES = -1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", nargs="*", default=["memcheck"], choices=TOOLS)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=200.0, help="a tool's time, after which no problem is begun")
    parser.add_argument("--impls", nargs="*", default=[], help="implementations (default: all of ours)")
    parser.add_argument("--part", nargs="*", type=int, help=argparse.SUPPRESS)  # what the process itself is told
    parser.add_argument("--unwritten", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def sanitizer() -> str:
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=f"{home}/bin")
    if found is None:
        raise SystemExit("compute-sanitizer is not on the PATH, nor in CUDA_HOME/bin: it comes with the CUDA toolkit")
    return found


# ---- in the process that is watched ----------------------------------------------------------------------------------


class Exactly:
    """Device memory of exactly what an operand reaches, so that a byte beside it is an error."""

    def __init__(self) -> None:
        from numbadnn.gpu import bindings

        self.driver, self.check, self.owned = bindings.driver(), bindings.check, []

    def allocate(self, nbytes: int) -> int:
        self.owned.append(int(self.check(self.driver.cuMemAlloc(max(nbytes, 1)))))
        return self.owned[-1]

    def put(self, b: Any, written: bool = True) -> tuple[int, Any, int]:
        """(address of the operand, the bytes of the host that it reaches, their address); ``written``: copied there."""
        low, high = b.spec.span
        size, first = b.spec.itemsize, b.offset + low * b.spec.itemsize
        data = b.memory.view(np.uint8)[first : first + (high - low + 1) * size]
        before = -low * size  # from the first byte to the operand's own address, which is aligned as the spec says
        skip = -before % 16 + (0 if b.spec.aligned else size)
        start = self.allocate(skip + data.size) + skip
        if written:
            self.check(self.driver.cuMemcpyHtoD(start, data.ctypes.data, data.size))
        return start + before, data, start

    def free(self) -> None:
        while self.owned:
            self.driver.cuMemFree(self.owned.pop())


def run_one(candidate: Any, unwritten: bool) -> str:
    """What is wrong with a result ("" = nothing)."""
    from numbadnn.measuring.data import buffer
    from numbadnn.problem import Policy, is_dense
    from numbadnn.registry import implementations
    from numbadnn.validate.execute import targets, words
    from numbadnn.validate.oracle import Trial

    problem, policy, memory = candidate.problem, Policy(device=0), Exactly()
    (impl,) = (i for i in implementations(problem.op) if i.name == candidate.impl)
    if candidate.config is None and (reason := impl.supports(problem, policy)):
        return f"refused: {reason}"
    trial = Trial.of(problem, 1)
    executable = impl.plan(problem, policy, candidate.config)
    try:
        ins = [memory.put(buffer(s, v)) for s, v in zip(problem.inputs, trial.inputs, strict=True)]
        fresh = targets(problem, trial.old)
        outs = [memory.put(b, not unwritten or (i == 0 and trial.old is not None) or not is_dense(b.spec))
                for i, b in enumerate(fresh)]  # fmt: skip
        workspace = memory.allocate(executable.workspace_bytes)
        if executable.workspace_bytes and not unwritten:
            memory.check(memory.driver.cuMemsetD8(workspace, 0xFF, executable.workspace_bytes))
        executable.run((*(a for a, _, _ in ins), *words(problem)), tuple(a for a, _, _ in outs), workspace, 0)
        memory.check(memory.driver.cuCtxSynchronize())
        for _, data, start in outs:
            memory.check(memory.driver.cuMemcpyDtoH(data.ctypes.data, start, data.size))
    finally:
        memory.free()
    found = trial.compare(tuple(b.array for b in fresh), executable.arithmetic, executable.summation)
    return "" if found.ok else str(found)


def run_copies() -> str:
    """Every conversion, a copy that pads and crops, and scaling."""
    from numbadnn.arrays.numpy_ import numpy_dtype
    from numbadnn.kernels.copies.copy import plan_copy, plan_fill, plan_scale
    from numbadnn.measuring.data import buffer
    from numbadnn.problem import ITEMSIZE, Spec

    memory, wrong = Exactly(), []
    x = np.random.default_rng(0).standard_normal((3, 4, 9))
    expected = np.zeros((3, 5, 7))
    expected[:, 1:, :] = x[:, :, 2:]
    for source in ITEMSIZE:
        given = buffer(Spec.of(source, x.shape), x)
        for target in ITEMSIZE:
            result = buffer(Spec.of(target, expected.shape))
            (a, _, _), (b, data, start) = memory.put(given), memory.put(result)
            plan_copy(given.spec, result.spec, (0, 1, -2), 0)(a, b, 0)
            plan_scale(result.spec, 2.0, 0)(b, 0)
            memory.check(memory.driver.cuMemcpyDtoH(data.ctypes.data, start, data.size))
            right = np.zeros_like(expected)
            right[:, 1:, :] = given.array.astype(np.float64)[:, :, 2:]
            right = (right.astype(numpy_dtype(target)).astype(np.float64) * 2).astype(numpy_dtype(target))
            wrong += [] if np.array_equal(result.array, right) else [f"{source} to {target}"]
            plan_fill(result.spec, 3.0, 0)(b, 0)
    memory.check(memory.driver.cuCtxSynchronize())
    memory.free()
    return ", ".join(wrong)


def run_part(numbers: list[int], unwritten: bool) -> None:
    """A line for each problem: BEGIN, then RIGHT or WRONG."""
    import sanitize_cases

    from numbadnn.gpu.context import ensure_context

    listed = list(sanitize_cases.candidates())
    with ensure_context(0), np.errstate(all="ignore"):
        for number in numbers:
            print(f"BEGIN {number}", flush=True)
            try:
                why = run_copies() if number == COPIES else run_one(listed[number], unwritten)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            print(f"WRONG {number} {why!r}" if why else f"RIGHT {number}", flush=True)


# ---- around it -------------------------------------------------------------------------------------------------------


class Watch:
    """One tool over all numbers: batches are given to processes until none is left or the time is over."""

    def __init__(self, tool: str, numbers: list[int], processes: int, seconds: float) -> None:
        self.tool, self.end, self.batches = tool, time.monotonic() + seconds, queue.Queue[list[int]]()
        count = max(1, -(-len(numbers) // BATCH))
        for i in range(count):  # the work of each is alike: numbers are in the order of their work
            self.batches.put(numbers[i::count])
        self.right: set[int] = set()
        self.wrong: dict[int, str] = {}
        self.ended: dict[int, str] = {}
        self.findings: list[str] = []
        self.adding = threading.Lock()
        threads = [threading.Thread(target=self._follow) for _ in range(processes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _follow(self) -> None:
        while time.monotonic() < self.end:
            try:
                numbers = self.batches.get_nowait()
            except queue.Empty:
                return
            while numbers and time.monotonic() < self.end:
                numbers = self._process(numbers)

    def _process(self, numbers: list[int]) -> list[int]:
        """What is left after a process ended early: all but the one it was at."""
        command = [sanitizer(), "--tool", self.tool, "--error-exitcode", str(FOUND), "--print-limit", "20"]
        command += ["--report-api-errors", "no"] if self.tool == "memcheck" else []
        # where they lie in shared memory that a launch asks for, it does not count them itself
        command += ["--num-cuda-barriers", BARRIERS] if self.tool in ("racecheck", "synccheck") else []
        command += [sys.executable, __file__, *(["--unwritten"] if self.tool == "initcheck" else []), "--part"]
        folder = Path(__file__).parent
        path = os.pathsep.join([str(ROOT), str(folder), os.environ.get("PYTHONPATH", "")])
        try:
            done = subprocess.run(
                [*command, *map(str, numbers)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env=os.environ | {"PYTHONPATH": path}, timeout=max(self.end - time.monotonic() + 60, 1), check=False,
            )  # fmt: skip
            text, status = done.stdout, done.returncode
        except subprocess.TimeoutExpired as error:
            output = error.stdout or b""
            text, status = output.decode(errors="replace") if isinstance(output, bytes) else output, -1
        return self._read(numbers, text, status)

    def _read(self, numbers: list[int], text: str, status: int) -> list[int]:
        begun = [int(n) for n in re.findall(r"^BEGIN (-?\d+)", text, re.M)]
        right = {int(n) for n in re.findall(r"^RIGHT (-?\d+)", text, re.M)}
        wrong = {int(n): why for n, why in re.findall(r"^WRONG (-?\d+) (.*)", text, re.M)}
        with self.adding:
            self.right |= right
            self.wrong |= wrong
            if status == FOUND or re.search(r"ERROR SUMMARY: [1-9]|RACECHECK SUMMARY: [1-9]", text):
                self.findings.append(text)
            left = [n for n in numbers if n not in begun]
            if begun and begun[-1] not in right and begun[-1] not in wrong:
                self.ended[begun[-1]] = f"the process ended with status {status}"
            elif left:
                self.ended[left[0]] = f"the process ended with status {status} before it: {text[-300:]!r}"
                left = left[1:]
        return left

    def show(self, numbers: list[int], seconds: float) -> bool:
        """Print what was found and the tool's line; whether all is well."""
        import sanitize_cases

        listed = list(sanitize_cases.candidates())

        def named(number: int) -> str:
            return (
                "copies"
                if number == COPIES
                else f"{listed[number].impl} {listed[number].line} {listed[number].config or ''}"
            )

        for text in self.findings[:5]:
            lines = [line for line in text.splitlines() if line.startswith(("=====", "BEGIN", "WRONG"))]
            print("\n".join(lines[:40]))
        for what, found in (("WRONG", self.wrong), ("ENDED", self.ended)):
            for number, why in list(found.items())[:20]:
                print(f"{what} {named(number)}: {why}")
        left = [n for n in numbers if n not in self.right and n not in self.wrong and n not in self.ended]
        for number in left[:20]:
            print(f"NOT RUN {named(number)}")
        kernels = sorted({k for text in self.findings for k in re.findall(r"numbadnn_\w+", text)})
        print(
            f"{self.tool}: {len(self.right)} of {len(numbers)} problems right, {len(self.wrong)} wrong, "
            f"{len(self.ended)} ended their process, {len(left)} not run; {len(self.findings)} processes with findings"
            + (f" in {', '.join(kernels[:20])}" if kernels else "") + f"; {seconds:.0f} s", flush=True,
        )  # fmt: skip
        return not (self.wrong or self.ended or left or self.findings)


def main(args: argparse.Namespace) -> int:
    import sanitize_cases

    numbers, missing = sanitize_cases.needed()
    listed, well = list(sanitize_cases.candidates()), True
    numbers = [COPIES, *numbers]
    if args.impls:
        numbers = [n for n in numbers if n != COPIES and listed[n].impl in args.impls]
    print(f"{len(numbers)} problems; no problem launches: {', '.join(missing) or '-'}", flush=True)
    for tool in args.tool:
        start = time.monotonic()
        watch = Watch(tool, numbers, args.processes, args.seconds)
        well = watch.show(numbers, time.monotonic() - start) and well
    return 0 if well and numbers else 1


if __name__ == "__main__":
    given = arguments()
    if given.part is None:
        sys.exit(main(given))
    run_part(given.part, given.unwritten)
