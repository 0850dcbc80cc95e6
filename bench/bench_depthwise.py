"""Depthwise convolution in three directions: the own kernel beside PyTorch, cuDNN's best engine and a copy of the same bytes.

Bytes = both images and the filters moved once. "of floor" is the time over that of a device copy of the same bytes, in
the same run. Before a speed is printed the result on the arrays that are timed is held against float64 on the GPU,
element by element, within the bound of direct sums. Processes compile side by side, one at a time uses the GPU.
``python bench/bench_depthwise.py [--quick] [--jobs N]``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from checking import worst_sum
from harness import copy_gbps, device_ms, rotations, save, table

import numbadnn
from numbadnn.host import files as stored
from numbadnn.kept import machine
from numbadnn.measuring import workers

#: images, channels, side, filter side, stride, dtype, channels last
CASES = (
    (64, 144, 56, 3, 1, "float32", False),
    (64, 144, 56, 3, 2, "float32", False),
    (64, 144, 56, 5, 1, "float32", False),
    (64, 144, 56, 5, 2, "float32", False),
    (64, 144, 56, 3, 1, "float32", True),
    (64, 144, 56, 5, 1, "float32", True),
    (64, 144, 56, 3, 2, "float32", True),
    (64, 144, 56, 3, 1, "float16", False),
    (64, 144, 56, 3, 1, "float16", True),
    (64, 144, 56, 5, 2, "float16", True),
    (64, 144, 56, 3, 1, "float64", False),
    (64, 384, 14, 3, 1, "float32", False),
    (64, 960, 7, 3, 1, "float32", False),
    (64, 960, 7, 3, 1, "float16", True),
    (32, 96, 56, 7, 1, "float32", False),
)
DIRECTIONS = ("forward", "grad_inputs", "grad_weights")


def ours(
    case: tuple[Any, ...], direction: str, arrays: Any
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """(function, arguments, keywords) of our call."""
    _, channels, _, taps, stride, _, _ = case
    x, w, g = arrays
    keywords = {
        "border_mode": taps // 2, "subsample": (stride, stride), "filter_flip": False, "num_groups": channels,
    }  # fmt: skip
    if direction == "forward":
        return numbadnn.conv2d, (x, w), keywords
    if direction == "grad_inputs":
        return numbadnn.conv2d_grad_wrt_inputs, (g, w, tuple(x.shape)), keywords
    return numbadnn.conv2d_grad_wrt_weights, (x, g, tuple(w.shape)), keywords


def theirs(case: tuple[Any, ...], direction: str, arrays: Any) -> Any:
    """PyTorch's result."""
    import torch

    _, channels, _, taps, stride, _, _ = case
    x, w, g = arrays
    if direction == "forward":
        return torch.nn.functional.conv2d(x, w, None, stride, taps // 2, 1, channels)
    mask = [direction == "grad_inputs", direction == "grad_weights", False]
    fixed = ([stride, stride], [taps // 2] * 2, [1, 1], False, [0, 0], channels)
    return torch.ops.aten.convolution_backward(g, x, w, None, *fixed, mask)[mask.index(True)]


def operands(case: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """Random image, filters, output gradient."""
    import torch

    n, c, side, taps, stride, dtype, channels_last = case
    out = (side + 2 * (taps // 2) - taps) // stride + 1
    form = torch.channels_last if channels_last else torch.contiguous_format

    def make(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=getattr(torch, dtype)).to(memory_format=form)

    return make(n, c, side, side), make(c, 1, taps, taps), make(n, c, out, out)


def worst(case: tuple[Any, ...], direction: str, arrays: Any, result: Any) -> float | None:
    """The largest |error| / bound of any element."""
    double = tuple(a.double() for a in arrays)
    exact = theirs(case, direction, double)
    magnitude = theirs(case, direction, tuple(a.abs() for a in double))
    k = arrays[2].numel() // arrays[2].shape[1] if direction == "grad_weights" else case[3] ** 2
    return worst_sum(result, exact, magnitude, k)


def measure(task: tuple[tuple[Any, ...], str], note: workers.Note) -> dict[str, Any]:
    """The row of one case in one direction; what can be prepared is, before the GPU is taken."""
    case, direction = task
    n, c, side, taps, stride, dtype, channels_last = case
    layout, alone = "nhwc" if channels_last else "nchw", machine.lock_name(0)
    row: dict[str, Any] = {"case": f"{direction} {n}x{c}x{side}x{side} {taps}x{taps} s{stride} {dtype} {layout}"}
    with stored.lock_file(alone):
        first = operands(case)
        nbytes = sum(t.numel() * t.element_size() for t in first)
        sets = [first] + [operands(case) for _ in range(rotations(nbytes, most=4) - 1)]
    function, arguments, keywords = ours(case, direction, first)
    plans = {"auto": numbadnn.plan(function, *arguments, **keywords)}
    with numbadnn.using(only="numba.depthwise"):
        plans["ms"] = numbadnn.plan(function, *arguments, **keywords)
    try:
        plans["cudnn"] = numbadnn.plan(function, *arguments, **keywords, backend="cudnn")
    except numbadnn.NotSupportedError:
        row["cudnn"] = None
    row["auto"] = plans["auto"].impl.name
    with stored.lock_file(alone):
        row["error/bound"] = worst(case, direction, first, plans["ms"](*read_by(first, direction)))
        if not row["error/bound"] <= 1:
            return row | {"ms": "REFUSED"}
        for name in ("ms", "cudnn") if "cudnn" in plans else ("ms",):
            row[name] = device_ms([lambda s=s, p=plans[name]: p(*read_by(s, direction)) for s in sets])
        row["torch"] = device_ms([lambda s=s: theirs(case, direction, s) for s in sets], repeats=7, warm=2)
        row["copy"] = copy_gbps(nbytes)
    row["GB/s"] = nbytes / row["ms"] / 1e6
    row["of floor"] = row["copy"] / row["GB/s"]
    row["vs torch"] = row["torch"] / row["ms"]
    return row


def read_by(arrays: Any, direction: str) -> tuple[Any, Any]:
    """The arrays that a direction reads."""
    x, w, g = arrays
    return {"forward": (x, w), "grad_inputs": (g, w), "grad_weights": (x, g)}[direction]


def main() -> None:
    quick = "--quick" in sys.argv
    jobs = int(sys.argv[sys.argv.index("--jobs") + 1]) if "--jobs" in sys.argv else 8
    tasks = [(case, direction) for case in (CASES[::4] if quick else CASES) for direction in DIRECTIONS]
    found = dict(workers.each(tasks, measure, jobs))
    rows = [found[task] for task in tasks if not isinstance(found[task], workers.Ended)]
    columns = ("case", "error/bound", "ms", "torch", "cudnn", "auto", "GB/s", "copy", "of floor", "vs torch")
    print(table(rows, columns))
    print(*(f"{task}: {row.why}" for task, row in found.items() if isinstance(row, workers.Ended)), sep="\n")
    print("written to", save("depthwise", rows, quick=quick))


if __name__ == "__main__":
    main()
