"""Calls on NumPy arrays beside a busy processor, on two processors: numbadnn and PyTorch, each in a process of its own.

``one`` is a call on one thread, ``all`` on both, ``busy`` on both while another program keeps the second processor busy. Each
is the least of some medians, in milliseconds, so that a lull of the machine counts. ``busy/one`` is what the neighbour costs:
threads that wait actively for one another make it the scheduler's slices, 4 to 8 ms.
``python bench/bench_busy_cpu.py [--quick]``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SPIN = "while True: pass"
CASES = ("conv2d 1x64x56x56 -> 64, 3x3", "conv2d and corr_mm in turn", "lstm T100 N8 512 x2")


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    made = {"x": (1, 64, 56, 56), "w": (64, 64, 3, 3), "sequence": (100, 8, 512), "state": (2, 8, 512)}
    return {name: rng.standard_normal(shape, "float32") * np.float32(0.1) for name, shape in made.items()}


def ours(a: dict[str, Any]) -> tuple[tuple[Callable[[], Any], ...], Callable[[int], Any]]:
    """The calls of CASES, and what sets the number of threads."""
    import numbadnn

    block = numbadnn.RNNBlock("float32", 512, 2, "lstm")
    w = np.full(block.get_param_size((8, 512)), 0.01, "float32")

    def conv() -> Any:
        return numbadnn.conv2d(a["x"], a["w"], border_mode=1)

    def both() -> Any:
        return conv(), numbadnn.corr_mm(a["x"], a["w"], border_mode=1)

    return (
        conv,
        both,
        lambda: block.apply(w, a["sequence"], a["state"], a["state"]),
    ), lambda count: numbadnn.set_options(threads=count)


def theirs(a: dict[str, Any]) -> tuple[tuple[Callable[[], Any], ...], Callable[[int], Any]]:
    import torch

    torch.set_grad_enabled(False)
    x, w, sequence, state = (torch.from_numpy(a[name]) for name in ("x", "w", "sequence", "state"))
    network = torch.nn.LSTM(512, 512, 2)

    def conv() -> Any:
        return torch.nn.functional.conv2d(x, w, padding=1)

    return (conv, lambda: (conv(), conv()), lambda: network(sequence, (state, state))), torch.set_num_threads


def least_median_ms(call: Callable[[], Any], seconds: float) -> float:
    """Of rounds of a twentieth of the time each."""
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        spent, begun = [], time.perf_counter()
        while len(spent) < 3 or time.perf_counter() - begun < seconds / 20:
            start = time.perf_counter()
            call()
            spent.append(time.perf_counter() - start)
        best = min(best, statistics.median(spent) * 1e3)
    return best


def child(whose: str, seconds: float) -> None:
    """One process: prints a line of JSON, of each case ``one``, ``all``, ``busy``."""
    processors = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, processors)
    calls, threads = (ours if whose == "ours" else theirs)(arrays())
    found = []
    for call in calls:
        times = {}
        for name, count in (("one", 1), ("all", len(processors)), ("busy", len(processors))):
            threads(count)
            other = subprocess.Popen([sys.executable, "-c", SPIN]) if name == "busy" else None
            try:
                if other:
                    os.sched_setaffinity(other.pid, processors[1:])
                times[name] = least_median_ms(call, seconds)
            finally:
                if other:
                    other.kill()
                    other.wait()
        found.append(times)
    print(json.dumps(found))


def main() -> None:
    seconds = 1.0 if "--quick" in sys.argv else 5.0
    if "--child" in sys.argv:
        child(sys.argv[sys.argv.index("--child") + 1], seconds)
        return
    from harness import save, table

    quick = ["--quick"] if "--quick" in sys.argv else []
    found = {}
    for whose in ("ours", "torch"):
        done = subprocess.run(
            [sys.executable, __file__, "--child", whose, *quick], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{whose}: {done.stderr[-2000:]}")
        found[whose] = json.loads(done.stdout.splitlines()[-1])
    rows = []
    for case, mine, peer in zip(CASES, found["ours"], found["torch"], strict=True):
        row = {"case": case, **mine, "busy/one": mine["busy"] / mine["one"]}
        rows.append(
            row | {f"torch {name}": ms for name, ms in peer.items()} | {"torch busy/one": peer["busy"] / peer["one"]}
        )
    print(table(rows, tuple(rows[0])))
    print("written to", save("busy_cpu", rows, load=os.getloadavg()[0]))


if __name__ == "__main__":
    main()
