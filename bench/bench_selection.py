"""What choosing costs a NumPy array's first calls: modules imported, a cold small conv2d, cold gradients of unshared filters.

No GPU is needed. Each figure is of a process of its own, whose compiled code is on disk from a process before. ``imported``:
the modules of kernels/, of cudnn/ and of numba.cuda after a first conv2d and a first softmax. ``conv2d``: the median over
SHAPES new shapes of what the first call takes beyond the second, which is the work itself, in a process that has computed
others. ``gradient``: the first gradient of unshared filters after a first unshared convolution, in milliseconds.
The least of PROCESSES processes, since others use the machine too. ``--beside COMMIT`` measures that commit, process about
process.
``python bench/bench_selection.py [--beside COMMIT]``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_first_minute import ROOT, tree_of
from harness import save, table

SHAPES, PROCESSES = 60, 5
GPU = ("numbadnn.kernels", "numbadnn.cudnn", "numba.cuda", "numba_cuda")


def imported() -> dict[str, Any]:
    import numpy as np

    import numbadnn

    numbadnn.conv2d(np.ones((1, 2, 6, 6), "float32"), np.ones((2, 2, 3, 3), "float32"))
    numbadnn.softmax(np.ones((2, 5), "float32"))
    ours = sum(f"{name}.".startswith("numbadnn.") for name in sys.modules)
    gpu = sum(f"{name}.".startswith(tuple(f"{package}." for package in GPU)) for name in sys.modules)
    return {"modules of numbadnn": ours, "modules of the GPU": gpu}


def conv2d() -> dict[str, Any]:
    """Microseconds beyond the second call of the same shape: medians of SHAPES new shapes."""
    import numpy as np

    import numbadnn

    w, beyond, second = np.ones((4, 3, 3, 3), "float32"), [], []
    for n in range(5 + SHAPES):
        x = np.ones((1, 3, 8 + n % 8, 8 + n // 8), "float32")
        times = []
        for _ in range(2):
            begin = time.perf_counter()
            numbadnn.conv2d(x, w)
            times.append(1e6 * (time.perf_counter() - begin))
        if n >= 5:
            beyond.append(times[0] - times[1])
            second.append(times[1])
    return {"beyond_us": statistics.median(beyond), "second_us": statistics.median(second)}


def gradient() -> dict[str, Any]:
    """Milliseconds of the first gradients of an unshared convolution, and of second ones."""
    import numpy as np

    import numbadnn

    x, w = np.ones((32, 16, 14, 14), "float32"), np.ones((32, 12, 12, 16, 3, 3), "float32")
    y, spent = numbadnn.conv2d(x, w, unshared=True), {}
    for name in ("inputs", "weights"):
        function = getattr(numbadnn, f"conv2d_grad_wrt_{name}")
        shape = x.shape if name == "inputs" else w.shape
        for which in ("first", "second"):
            begin = time.perf_counter()
            if name == "inputs":
                function(y, w, input_shape=shape, unshared=True)
            else:
                function(x, y, filter_shape=shape, unshared=True)
            spent[f"{name} {which}"] = 1e3 * (time.perf_counter() - begin)
    return spent


PARTS = {"imported": imported, "conv2d": conv2d, "gradient": gradient}


def process(part: str, tree: Path, cache: str) -> dict[str, Any]:
    """What a part of this file finds in a process that imports numbadnn from ``tree``."""
    here = {"PYTHONPATH": os.pathsep.join(map(str, (tree, Path(__file__).parent)))}
    done = subprocess.run(
        [sys.executable, __file__, "--part", part],
        capture_output=True,
        text=True,
        check=True,
        cwd=tree,
        env=os.environ | here | {"NUMBADNN_CACHE_DIR": cache, "XDG_CACHE_HOME": cache},
    )
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def measured(trees: dict[str, Path]) -> list[dict[str, Any]]:
    """A row a figure: the least for each tree."""
    rows: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        caches = {name: stack.enter_context(tempfile.TemporaryDirectory()) for name in trees}
        for part in PARTS:
            for name, tree in trees.items():
                process(part, tree, caches[name])  # compiles
            found = [
                {name: process(part, tree, caches[name]) for name, tree in trees.items()} for _ in range(PROCESSES)
            ]
            for figure in found[0]["this"]:
                row = rows.setdefault(figure, {"part": part, "figure": figure})
                row |= {name: round(min(one[name][figure] for one in found), 2) for name in trees}
    return list(rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description="What choosing costs a NumPy array's first calls.")
    parser.add_argument("--beside", metavar="COMMIT", help="measure this commit too")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(PARTS[options.part]()))
        return
    with contextlib.ExitStack() as stack:
        trees = {"this": ROOT}
        if options.beside:
            trees[options.beside] = stack.enter_context(tree_of(options.beside))
        rows = measured(trees)
    print(table(rows, ("part", "figure", *trees)))
    print("written to", save("selection", rows, of="figure"))


if __name__ == "__main__":
    main()
