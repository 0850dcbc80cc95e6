"""What the first call of a new problem costs: with no compiled kernel on disk (cold), and with the kernels of an earlier process.

Each row is one problem in processes of its own. The process first runs a softmax of another shape, so that imports, the CUDA
context and the library's own host functions are not counted; then the clock runs from
the call to the end of its work on the device. ``cold`` starts with an empty cache folder, ``warm`` is the next process on
the same folder, ``again`` the second problem of the same kernel in that process. Rows are measured one after another (side by
side they slow each other 1.5 to 2.2 times), printed and saved as they come. ``python bench/bench_first_call.py [--quick]``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import save, table

FILTERS, CHANNELS = (64, 64, 3, 3), (1, 64, 1, 1)
LAYERS = (((8, 64, 28, 28), FILTERS), ((8, 64, 14, 14), FILTERS))
NORMS = (((8, 64, 28, 28), CHANNELS, CHANNELS), ((8, 64, 14, 14), CHANNELS, CHANNELS))
#: name -> (function, shapes of its arrays for two problems, dtype, channels last, keywords)
PROBLEMS: dict[str, tuple[str, tuple[Any, Any], str, bool, dict[str, Any]]] = {
    "conv2d fp16 NHWC": ("conv2d", LAYERS, "float16", True, {"border_mode": 1}),
    "conv2d fp32 NCHW": ("conv2d", LAYERS, "float32", False, {"border_mode": 1}),
    "softmax": ("softmax", (((512, 1000),), ((256, 1000),)), "float32", False, {}),
    "pool": ("pool", (((8, 64, 56, 56),), ((8, 64, 28, 28),)), "float32", False, {"ws": (2, 2)}),
    "batch norm": ("batch_normalization_train", NORMS, "float32", False, {"mode": "spatial"}),
}
TIMES = ("cold_ms", "warm_ms", "again_ms")
QUICK = ("conv2d fp16 NHWC", "conv2d fp32 NCHW", "pool")


def child(name: str, backend: str) -> None:
    """One process: the two first calls, timed; prints a line of JSON."""
    import time

    import torch

    import numbadnn
    from numbadnn.registry import implementations

    function, problems, dtype, last, keywords = PROBLEMS[name]
    implementations(function)  # imports the modules of the operation
    numbadnn.softmax(torch.randn(3, 77, device="cuda"), backend="numba")
    if backend == "cudnn":  # cuDNN's library is loaded, as numba is
        numbadnn.conv2d(torch.randn(1, 4, 5, 5, device="cuda"), torch.randn(4, 4, 3, 3, device="cuda"), backend="cudnn")
    form = torch.channels_last if last else torch.contiguous_format
    spent = []
    for shapes in problems:
        kind = getattr(torch, dtype)
        arrays = [torch.randn(s, device="cuda", dtype=kind) for s in shapes]
        arrays = [a.to(memory_format=form) if a.ndim == 4 else a for a in arrays]
        torch.cuda.synchronize()
        start = time.perf_counter()
        getattr(numbadnn, function)(*arrays, **keywords, backend=backend)
        torch.cuda.synchronize()
        spent.append((time.perf_counter() - start) * 1e3)
    last_call = numbadnn.last_call()
    print(json.dumps({"ms": spent, "impl": last_call.impl if last_call else ""}))


def process(name: str, backend: str, cache: str) -> dict[str, Any]:
    environment = os.environ | {"XDG_CACHE_HOME": cache}
    command = [sys.executable, __file__, "--child", name, backend]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} on {backend}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def measure(name: str, backend: str, repeats: int) -> dict[str, Any]:
    cold, warm, again = [], [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            Path(cache).chmod(0o700)
            cold.append(process(name, backend, cache)["ms"][0])
            second = process(name, backend, cache)
            warm.append(second["ms"][0])
            again.append(second["ms"][1])
    medians = [statistics.median(v) for v in (cold, warm, again)]
    return {"problem": name, "impl": second["impl"], **dict(zip(TIMES, medians, strict=True))}


def main() -> None:
    if "--child" in sys.argv:
        child(*sys.argv[sys.argv.index("--child") + 1 :][:2])
        return
    quick = "--quick" in sys.argv
    pairs = [(n, "numba") for n in (QUICK if quick else PROBLEMS)]
    if not quick:
        pairs += [(n, "cudnn") for n in PROBLEMS if n.startswith("conv2d")]
    rows: list[dict[str, Any]] = []
    for pair in pairs:
        rows.append(measure(*pair, 1 if quick else 3))
        print({k: round(v, 1) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
        save("first_call", rows, quick=quick)
    print(table(rows, ("problem", "impl", *TIMES)))


if __name__ == "__main__":
    main()
