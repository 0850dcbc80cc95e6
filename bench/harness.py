"""What every bench shares: timing on the device and on the host, the ceilings of the machine, and where results go.

Times are medians. Device times come from one pair of CUDA events a call, inputs rotated so that their bytes are several
times the L2 cache. Peers are timed in the same run, call about call with ours. A row is a dict; ``save`` merges rows of one
bench into ``results/<gpu>.json`` beside the versions and the commit they were measured with.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
#: how often a timing is tried, each time behind three times the wait
LONGER_WAITS = 6


def device_ms(calls: Sequence[Callable[[], Any]], repeats: int = 20, warm: int = 3) -> float:
    """Median milliseconds of a call on the device; ``calls`` are the same work on different memory, taken in turn."""
    return statistics.median(device_times_ms(calls, repeats, max(warm, len(calls))))


def device_times_ms(calls: Sequence[Callable[[], Any]], repeats: int, warm: int) -> list[float]:
    """Milliseconds of each of ``repeats`` calls on the device, after ``warm`` calls that are not timed.

    The device is kept busy while the host enqueues, so that not the host's time is measured; where the host was still at it when
    that ended (a slow call, another process on its core), all is done again behind a longer wait.
    """
    import torch

    for i in range(warm):
        calls[i % len(calls)]()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    gate, cycles = torch.cuda.Event(), 100_000 * repeats
    for _ in range(LONGER_WAITS):
        torch.cuda.synchronize()
        torch.cuda._sleep(cycles)
        gate.record()
        for i, (start, end) in enumerate(events):
            start.record()
            calls[i % len(calls)]()
            end.record()
        waited = not gate.query()
        torch.cuda.synchronize()
        if waited:
            break
        cycles *= 3
    else:
        print(f"the host never got ahead of the device: {repeats} times are the host's as well", file=sys.stderr)
    return [start.elapsed_time(end) for start, end in events]


def host_us(call: Callable[[], Any], synchronise: Callable[[], Any], calls: int = 2000, repeats: int = 7) -> float:
    """Microseconds a call keeps the host, best of ``repeats`` means; the device queue is drained outside the clock."""
    for _ in range(100):
        call()
    best = float("inf")
    for _ in range(repeats):
        spent, done = 0.0, 0
        while done < calls:
            synchronise()
            start = time.perf_counter()
            for _ in range(200):
                call()
            spent += time.perf_counter() - start
            done += 200
        best = min(best, spent / done * 1e6)
    synchronise()
    return best


def least(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, float]]:
    """name -> (least seconds, least seconds of the processor), of calls in turn after one that is not counted."""
    best = {name: (math.inf, math.inf) for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            took = time.perf_counter() - wall, time.process_time() - cpu
            if turn:
                best[name] = min(best[name][0], took[0]), min(best[name][1], took[1])
    return best


def rotations(bytes_moved: int, at_least: int = 256 << 20, most: int = 16) -> int:
    """How many copies of the operands keep the L2 cache from answering."""
    return max(1, min(most, -(-at_least // max(bytes_moved, 1))))


def copy_gbps(nbytes: int) -> float:
    """GB/s (read + written) of a device copy that moves ``nbytes`` in all: the ceiling of a memory-bound operation."""
    import torch

    n = max(nbytes // 2, 16)
    sources = [torch.randint(0, 255, (n,), dtype=torch.uint8, device="cuda") for _ in range(rotations(nbytes))]
    targets = [torch.empty_like(s) for s in sources]
    calls = [lambda s=s, t=t: t.copy_(s) for s, t in zip(sources, targets, strict=True)]
    return 2 * n / device_ms(calls) / 1e6


def versions() -> dict[str, str]:
    """The packages that decide a speed, as installed; absent ones are left out."""
    names = (
        "numbadnn",
        "numba",
        "numba-cuda",
        "numpy",
        "scipy",
        "torch",
        "cupy-cuda13x",
        "cupy-cuda12x",
        "cuda-bindings",
    )
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found | {"python": platform.python_version()}


def commit() -> str:
    """The commit measured, with '+' when the tree differs from it."""
    if os.environ.get("NUMBADNN_COMMIT"):
        return os.environ["NUMBADNN_COMMIT"]
    root = Path(__file__).parent.parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
        dirty = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=root, check=False).returncode
        return head.stdout.strip() + ("+" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def device_name() -> str:
    """The GPU's name, or the CPU's where there is none."""
    try:
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name()
    except ImportError:
        pass
    found = (
        re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
        if Path("/proc/cpuinfo").exists()
        else None
    )
    return f"{found[1] if found else platform.processor()} {len(os.sched_getaffinity(0))} threads"


def save(bench: str, rows: list[dict[str, Any]], of: str = "", **facts: Any) -> Path:
    """Replace this bench's part of the device's result file; with ``of`` only the rows that have the same value of it."""
    folder = Path(os.environ.get("NUMBADNN_BENCH_RESULTS", RESULTS))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (re.sub(r"\W+", "_", device_name()).strip("_").lower() + ".json")
    known = json.loads(path.read_text()) if path.exists() else {}
    if of:
        fresh = {row[of]: row for row in rows}
        former = {row[of]: row for row in known.get(bench, {}).get("rows", [])}
        rows = [*(former | fresh).values()]
    known[bench] = {"device": device_name(), "commit": commit(), "versions": versions(), **facts, "rows": rows}
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return path


def geometric_mean(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values) if values else float("nan")


def table(rows: list[dict[str, Any]], columns: Sequence[str]) -> str:
    """Rows as aligned text; numbers with three significant digits."""

    def text(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)

    cells = [list(columns)] + [[text(row.get(c)) for c in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells)
