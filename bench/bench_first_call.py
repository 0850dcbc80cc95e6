"""What the first call of a new problem costs: with no compiled kernel on disk (cold), and with the kernels of an earlier process.

Each row is one problem in processes of its own. The process first runs a softmax of another shape, so that imports, the CUDA
context and the library's own host functions are not counted; then the clock runs from
the call to the end of its work on the device. ``cold`` starts with an empty cache folder, ``warm`` is the next process on
the same folder, ``again`` the second problem of the same kernel in that process. Rows are measured one after another (side by
side they slow each other 1.5 to 2.2 times), printed and saved as they come. ``python bench/bench_first_call.py [--quick]``.

``--processes [torch] [cupy] [numba] [numpy]`` measures what a user waits for. A process has imported PyTorch, CuPy or Numba,
and has arrays on the GPU; of NumPy, which is measured where it is named, it has arrays in memory. It imports numbadnn, calls it
once and waits for the result; an earlier process has filled the folder.
``import`` is the import alone, ``call`` the rest, ``cpu`` the processor time of it, ``torch`` the same call of PyTorch's own in
a process without numbadnn; ``imports`` are the packages among those that take long which came in with numbadnn.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


#: operation -> shapes of its arrays, float32
FIRST = {
    "conv2d": ((8, 64, 28, 28), (64, 64, 3, 3)),
    "softmax": ((512, 1000),),
    "pool": ((8, 64, 56, 56),),
    "lstm": ((5, 8, 64), (1, 8, 64), (1, 8, 64)),
}
LIBRARIES = ("torch", "cupy", "numba", "numpy")
LONG = ("numba", "numba_cuda", "llvmlite", "scipy", "cuda", "importlib.metadata")


def ours(op: str) -> Any:
    """Our call, a function of the arrays."""
    import numbadnn

    if op == "lstm":
        block = numbadnn.RNNBlock("float32", 64, 1, "lstm")
        return lambda w, *arrays: block.apply(w, *arrays)
    keywords = {"conv2d": {"border_mode": 1}, "softmax": {}, "pool": {"ws": (2, 2)}}[op]
    return lambda *arrays: getattr(numbadnn, op)(*arrays, **keywords)


def theirs(op: str, torch: Any) -> Any:
    """PyTorch's."""
    if op == "lstm":
        network = torch.nn.LSTM(64, 64).cuda()
        return lambda w, x, h, c: network(x, (h, c))
    functional = torch.nn.functional
    return {
        "conv2d": lambda x, w: functional.conv2d(x, w, padding=1),
        "softmax": lambda x: torch.softmax(x, 1),
        "pool": lambda x: functional.max_pool2d(x, 2),
    }[op]


def arrays_of(library: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[list[Any], Any]:
    """Arrays of a library whose context on the GPU, if any, is there, and what waits for their results."""
    import numpy as np

    values = [np.full(shape, 0.1, np.float32) for shape in shapes]
    if library == "torch":
        import torch

        found, wait = [torch.from_numpy(v).cuda() for v in values], torch.cuda.synchronize
        (found[0] + 1).sum().item()
    elif library == "cupy":
        import cupy

        found, wait = [cupy.asarray(v) for v in values], cupy.cuda.Device().synchronize
    elif library == "numpy":
        found, wait = values, lambda: None
    else:
        from numba import cuda

        found, wait = [cuda.to_device(v) for v in values], cuda.synchronize
    wait()
    return found, wait


def new_process(library: str, op: str, whose: str) -> None:
    """One process: prints a line of JSON. The weights of an LSTM are 2 * 4 * 64 * 64 and 2 * 4 * 64 numbers."""
    import time

    shapes = FIRST[op] if op != "lstm" else ((2 * 4 * 64 * 65,), *FIRST[op])
    arrays, wait = arrays_of(library, shapes)
    before, start, spent = set(sys.modules), time.perf_counter(), time.process_time()
    if whose == "torch":
        import torch

        call = theirs(op, torch)
        torch.cuda.synchronize()
    else:
        import numbadnn  # noqa: F401

        call = ours(op)
    imported, spent_there = time.perf_counter(), time.process_time()
    with profiled(os.environ.get("PROFILE", "")):
        call(*arrays)
        wait()
    called, spent_at_last = time.perf_counter(), time.process_time()
    call(*arrays)
    wait()
    again = time.perf_counter()
    row = {"import_ms": imported - start, "call_ms": called - imported, "again_ms": again - called}
    row |= {"import_cpu_ms": spent_there - spent, "cpu_ms": spent_at_last - spent_there}
    row = {name: seconds * 1e3 for name, seconds in row.items()}
    if whose == "torch":
        print(json.dumps(row))
        return
    from numbadnn import last_call

    last, new = last_call(), set(sys.modules) - before
    print(json.dumps(row | {"impl": last.impl if last else "", "imports": " ".join(n for n in LONG if n in new)}))


@contextlib.contextmanager
def profiled(file: str) -> Iterator[None]:
    """Inside, calls are counted by cProfile where PROFILE names a file."""
    if not file:
        yield
        return
    import cProfile
    import pstats

    with cProfile.Profile() as profile:
        yield
    with open(file, "w") as text:
        pstats.Stats(profile, stream=text).sort_stats("cumulative").print_stats(70)


def processes(repeats: int, libraries: list[str]) -> None:
    """Each of these libraries that is installed, each operation: medians of processes that find all on disk."""
    from harness import save

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as cache:
        Path(cache).chmod(0o700)
        for library in libraries:
            if importlib.util.find_spec(library) is None:
                continue
            for op in FIRST:
                one(library, op, "ours", cache)  # fills the folder
                found = [one(library, op, "ours", cache) for _ in range(repeats)]
                row = {k: statistics.median(r[k] for r in found) for k in found[0] if k.endswith("_ms")}
                row |= {"arrays": library, "op": op, "impl": found[0]["impl"], "imports": found[0]["imports"]}
                if library == "torch":
                    own = [one(library, op, "torch", cache) for _ in range(repeats)]
                    row["torch_ms"] = statistics.median(r["call_ms"] for r in own)
                rows.append(row)
                print({k: round(v, 1) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
                save("first_call_processes", rows)


def one(library: str, op: str, whose: str, cache: str) -> dict[str, Any]:
    environment = os.environ | {"XDG_CACHE_HOME": cache}
    if environment.pop("PYTHONDONTWRITEBYTECODE", ""):  # which an installed package has
        environment["PYTHONPYCACHEPREFIX"] = str(Path(cache, "bytecode"))
    command = [sys.executable, __file__, "--process", library, op, whose]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{op} on {library}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    if "--child" in sys.argv:
        child(*sys.argv[sys.argv.index("--child") + 1 :][:2])
        return
    if "--process" in sys.argv:
        new_process(*sys.argv[sys.argv.index("--process") + 1 :][:3])
        return
    quick = "--quick" in sys.argv
    if "--processes" in sys.argv:
        processes(1 if quick else 3, [name for name in LIBRARIES if name in sys.argv] or list(LIBRARIES[:3]))
        return
    from harness import save, table  # not by the processes that are measured, whose imports count

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
