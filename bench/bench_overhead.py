"""Host microseconds of a warm call, its output allocated, with new pointers each call, an array library at a time.

The operands are tiny, so the device is idle and the host is what is measured. Peers in the same run: PyTorch's own
softmax, conv2d, pooling and batch norm, CuPy's softmax. The parts of our call are timed alone: probe, key and look-up,
output, stream, workspace, run. ``python bench/bench_overhead.py``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from harness import host_us, save, table

import numbadnn
from numbadnn import config
from numbadnn.arrays import LIBRARIES, library_of
from numbadnn.call import launch

SOFTMAX = (16, 64)
IMAGE, FILTERS, VECTOR = (1, 8, 8, 8), (8, 8, 3, 3), (1, 8, 1, 1)


def rotating(function: Callable[..., Any], sets: list[tuple[Any, ...]]) -> Callable[[], Any]:
    """Call ``function`` on the next set of arrays each time, keeping the last results alive so that pointers change."""
    kept: list[Any] = [None] * 3
    state = [0]

    def call() -> None:
        i = state[0] = (state[0] + 1) % len(sets)
        kept[i % 3] = function(*sets[i])

    return call


def makers() -> dict[str, tuple[Callable[[tuple[int, ...]], Any], Callable[[], None]]]:
    """name -> (make a random float32 array, synchronise), for every array library that is installed."""
    import numpy as np

    random = np.random.default_rng(0)
    found: dict[str, Any] = {}
    try:
        import torch

        found["torch"] = (lambda s: torch.randn(s, device="cuda"), torch.cuda.synchronize)
    except ImportError:
        pass
    try:
        import cupy

        found["cupy"] = (lambda s: cupy.asarray(random.standard_normal(s, np.float32)), cupy.cuda.Device().synchronize)
    except ImportError:
        pass
    from numba import cuda

    found["numba"] = (lambda s: cuda.to_device(random.standard_normal(s, np.float32)), cuda.synchronize)
    return found


def split(function: Callable[..., Any], arrays: tuple[Any, ...], synchronise: Callable[[], None]) -> dict[str, float]:
    """The parts of a warm call, each timed alone."""
    function(*arrays)
    (plan,) = launch.thread.last
    assert plan is not None
    library = library_of(arrays[0])
    probes = [LIBRARIES[type(a)].probe for a in arrays]
    addresses = [p(a)[0] for p, a in zip(probes, arrays, strict=True)]
    raw = library.current_stream(plan.device)
    made = [make() for make in plan._allocate]
    targets = tuple(library.address(m) for m in made)
    owner, workspace = library.scratch(max(plan.workspace_bytes, 1), plan.device, raw)
    parts = {
        "options": lambda: config.current(),
        "probe": lambda: [p(a) for p, a in zip(probes, arrays, strict=True)],
        "output": lambda: [library.address(make()) for make in plan._allocate],
        "stream": lambda: library.current_stream(plan.device),
        "launch": _launch(plan, addresses, targets, workspace, raw),
    }
    if plan.workspace_bytes:
        parts["workspace"] = lambda: library.scratch(plan.workspace_bytes, plan.device, raw)
    return {name: round(host_us(part, synchronise), 2) for name, part in parts.items()}


def import_seconds() -> float:
    """The least of five fresh processes' time for importing numbadnn after NumPy."""
    code = "import time, numpy; t = time.perf_counter(); import numbadnn; print(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    return min(float(r.stdout) for r in runs)


def _launch(plan: Any, addresses: list[int], targets: tuple[int, ...], workspace: int, raw: int) -> Callable[[], Any]:
    """The launch as the call does it."""
    direct, space = plan.executable.direct, (workspace,) if plan.workspace_bytes else ()
    if direct is None:
        return lambda: plan._run(tuple(addresses), targets, workspace, raw)
    return lambda: direct(raw, *addresses, *targets, *space)


def main() -> None:
    import torch
    import torch.nn.functional as F

    torch.set_grad_enabled(False)
    torch.backends.cudnn.allow_tf32 = False
    rows = []
    peers: dict[str, Callable[..., Any]] = {
        "softmax": lambda x: F.softmax(x, 1),
        "conv2d": F.conv2d,
        "pool": lambda x: F.max_pool2d(x, 2),
        "batch norm": lambda x, g, b: torch.native_batch_norm(x, g.ravel(), b.ravel(), None, None, True, 0.1, 1e-4),
    }
    for name, (make, synchronise) in makers().items():
        xs = [(make(SOFTMAX),) for _ in range(8)]
        convs = [(make(IMAGE), make(FILTERS)) for _ in range(8)]
        # as the peers are called: one Python function around softmax, none around conv2d
        cases: dict[str, tuple[Callable[..., Any], Any]] = {
            "softmax numba": (lambda x: numbadnn.softmax(x, backend="numba"), xs),
            "softmax auto": (lambda x: numbadnn.softmax(x), xs),
            "softmax cudnn": (lambda x: numbadnn.softmax(x, backend="cudnn"), xs),
            "conv2d cudnn": (partial(numbadnn.conv2d, backend="cudnn"), convs),
            "conv2d numba": (partial(numbadnn.conv2d, backend="numba"), convs),
            "pool numba": (lambda x: numbadnn.pool(x, (2, 2), (2, 2), backend="numba"), [(x,) for x, _ in convs]),
            "batch norm numba": (
                lambda *a: numbadnn.batch_normalization_train(*a, "spatial", backend="numba"),
                [(make(IMAGE), make(VECTOR), make(VECTOR)) for _ in range(8)],
            ),
        }
        for case, (ours, sets) in cases.items():
            row: dict[str, Any] = {"case": case, "library": name, "us": host_us(rotating(ours, sets), synchronise)}
            row["ran"] = numbadnn.last_call().impl  # type: ignore[union-attr]
            if name == "torch":
                peer = peers[case.rpartition(" ")[0]]
                row |= {"peer": "torch", "peer_us": host_us(rotating(peer, sets), synchronise)}
            if name == "cupy" and "softmax" in case:
                from cupyx.scipy.special import softmax

                row |= {"peer": "cupyx", "peer_us": host_us(rotating(lambda x: softmax(x, 1), sets), synchronise, 400)}
            if "peer_us" in row:
                row["ratio"] = row["us"] / row["peer_us"]
            row["parts_us"] = parts = split(ours, sets[0], synchronise)
            # what no library can do without: the driver's launch (or cuDNN's) and the allocation of the output
            row["of limit"] = (parts["launch"] + parts["output"]) / row["us"]
            rows.append(row)
    print(table(rows, ("case", "library", "ran", "us", "peer", "peer_us", "ratio", "of limit", "parts_us")))
    seconds = import_seconds()
    print(f"import numbadnn: {seconds:.3f} s beyond NumPy's")
    print(
        "written to",
        save("overhead", rows, import_s=seconds, shapes={"softmax": SOFTMAX, "image": IMAGE, "filters": FILTERS}),
    )


if __name__ == "__main__":
    main()
