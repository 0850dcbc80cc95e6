"""What choosing costs a NumPy array's first calls: modules imported, a cold small conv2d, cold gradients of unshared filters.

No GPU is needed. Each figure is of a process of its own, whose compiled code is on disk from a process before. ``imported``:
the modules of kernels/, of cudnn/ and of numba.cuda after a first conv2d and a first softmax. ``conv2d``: the median over
SHAPES new shapes of what the first call takes beyond the second, which is the work itself, in a process that has computed
others. ``gradient``: the first gradient of unshared filters after a first unshared convolution, in milliseconds.
``python bench/bench_selection.py``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

SHAPES, PROCESSES = 60, 5
GPU = ("numbadnn.kernels", "numbadnn.cudnn", "numba.cuda", "numba_cuda")


def imported() -> dict[str, Any]:
    import numpy as np

    import numbadnn

    numbadnn.conv2d(np.ones((1, 2, 6, 6), "float32"), np.ones((2, 2, 3, 3), "float32"))
    numbadnn.softmax(np.ones((2, 5), "float32"))
    ours = sorted(name for name in sys.modules if f"{name}.".startswith("numbadnn."))
    gpu = [name for name in sys.modules if f"{name}.".startswith(tuple(f"{package}." for package in GPU))]
    return {"numbadnn": len(ours), "of the GPU": len(gpu), "modules": ours}


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


def process(part: str, cache: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, part],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"NUMBADNN_CACHE_DIR": cache, "XDG_CACHE_HOME": cache},
    )
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        for part in PARTS:
            process(part, cache)  # compiles
            found = [process(part, cache) for _ in range(PROCESSES)]
            print(f"{part}, medians of {PROCESSES} processes")
            for name, value in found[0].items():
                if isinstance(value, list):
                    print("  " + " ".join(value))
                else:
                    print(f"  {name:16} {statistics.median(row[name] for row in found):.4g}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(PARTS[sys.argv[1]]()))
    else:
        main()
