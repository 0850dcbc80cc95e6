"""Depthwise convolution in three directions: the own kernel beside PyTorch, cuDNN's best engine and a copy of the same bytes.

Bytes = both images and the filters moved once. "of floor" is the time over that of a device copy of the same bytes, in
the same run. Before a speed is printed the result on the arrays that are timed is held against float64 on the GPU,
element by element, within the bound of direct sums. ``python bench/bench_depthwise.py [--quick]``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from harness import copy_gbps, device_ms, rotations, save, table

import numbadnn
from numbadnn.validate import compare

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


def calls(case: tuple[Any, ...], direction: str, arrays: Any) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """(ours, taking backend=, PyTorch's) on the same arrays."""
    import torch

    _, channels, _, taps, stride, _, _ = case
    x, w, g = arrays
    options = {
        "border_mode": taps // 2, "subsample": (stride, stride), "filter_flip": False, "num_groups": channels,
    }  # fmt: skip
    fixed = ([stride, stride], [taps // 2] * 2, [1, 1], False, [0, 0], channels)
    backward = torch.ops.aten.convolution_backward
    if direction == "forward":
        forward = torch.nn.functional.conv2d
        return (
            lambda **k: numbadnn.conv2d(x, w, **options, **k),
            lambda: forward(x, w, None, stride, taps // 2, 1, channels),
        )
    if direction == "grad_inputs":
        return (
            lambda **k: numbadnn.conv2d_grad_wrt_inputs(g, w, tuple(x.shape), **options, **k),
            lambda: backward(g, x, w, None, *fixed, [True, False, False])[0],
        )
    return (
        lambda **k: numbadnn.conv2d_grad_wrt_weights(x, g, tuple(w.shape), **options, **k),
        lambda: backward(g, x, w, None, *fixed, [False, True, False])[1],
    )


def operands(case: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """Random image, filters, output gradient."""
    import torch

    n, c, side, taps, stride, dtype, channels_last = case
    out = (side + 2 * (taps // 2) - taps) // stride + 1
    form = torch.channels_last if channels_last else torch.contiguous_format

    def make(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=getattr(torch, dtype)).to(memory_format=form)

    return make(n, c, side, side), make(c, 1, taps, taps), make(n, c, out, out)


def worst(case: tuple[Any, ...], direction: str, arrays: Any, result: Any) -> float:
    """The largest |error| / bound of any element."""
    double = tuple(a.double() for a in arrays)
    exact = calls(case, direction, double)[1]()
    magnitude = calls(case, direction, tuple(a.abs() for a in double))[1]()
    k = arrays[2].numel() // arrays[2].shape[1] if direction == "grad_weights" else case[3] ** 2
    dtype = case[5]
    e = compare.gamma(k, compare.UNIT[compare.accumulator(dtype)]) * magnitude
    total = e + compare.UNIT[dtype] * (exact.abs() + e) + compare.SUBNORMAL[dtype]
    total += compare.gamma(k, 2.0**-53) * magnitude  # the peer's own sum
    return float(((result.double() - exact).abs() / total).nan_to_num(float("inf"), float("inf")).max())


def measure(case: tuple[Any, ...], direction: str) -> dict[str, Any]:
    n, c, side, taps, stride, dtype, channels_last = case
    first = operands(case)
    nbytes = sum(t.numel() * t.element_size() for t in first)
    sets = [first] + [operands(case) for _ in range(rotations(nbytes, most=4) - 1)]
    layout = "nhwc" if channels_last else "nchw"
    row: dict[str, Any] = {"case": f"{direction} {n}x{c}x{side}x{side} {taps}x{taps} s{stride} {dtype} {layout}"}
    with numbadnn.using(only="numba.depthwise"):
        row["error/bound"] = worst(case, direction, first, calls(case, direction, first)[0]())
        if not row["error/bound"] <= 1:
            return row | {"ms": "REFUSED"}
        row["ms"] = device_ms([calls(case, direction, s)[0] for s in sets])
    row["torch"] = device_ms([calls(case, direction, s)[1] for s in sets])
    try:
        row["cudnn"] = device_ms([lambda s=s: calls(case, direction, s)[0](backend="cudnn") for s in sets])
    except numbadnn.NotSupportedError:
        row["cudnn"] = None
    calls(case, direction, first)[0]()
    row["auto"] = numbadnn.last_call().impl  # type: ignore[union-attr]
    row["GB/s"] = nbytes / row["ms"] / 1e6
    row["copy"] = copy_gbps(nbytes)
    row["of floor"] = row["copy"] / row["GB/s"]
    row["vs torch"] = row["torch"] / row["ms"]
    return row


def main() -> None:
    quick = "--quick" in sys.argv
    cases = CASES[::4] if quick else CASES
    rows = [measure(case, direction) for case in cases for direction in DIRECTIONS]
    columns = ("case", "error/bound", "ms", "torch", "cudnn", "auto", "GB/s", "copy", "of floor", "vs torch")
    print(table(rows, columns))
    print("written to", save("depthwise", rows, quick=quick))


if __name__ == "__main__":
    main()
