"""Batch normalization and dropout: GB/s beside PyTorch, cuDNN and a device copy of the same bytes, in one run.

Bytes of inference and dropout: the input read once, the result written once. Training counts two reads and one write,
its gradient x and dy read twice and dx written: the statistics must be known before the first result is. Before a speed
is printed the result of the arrays that are timed is compared with float64. ``python bench/bench_norm.py [--quick]``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from harness import copy_gbps, device_ms, rotations, save, table

import numbadnn

#: (shape, dtype, channels last, note); 256 MiB, tensors that fit the L2 cache, small ones, planes of odd size
SHAPES = (
    ((64, 64, 128, 128), "float32", False, "large"),
    ((64, 64, 128, 128), "float32", True, "large"),
    ((128, 64, 128, 128), "float16", False, "large"),
    ((128, 64, 128, 128), "float16", True, "large"),
    ((64, 256, 56, 56), "float32", False, "resnet50"),
    ((32, 64, 56, 56), "float32", False, "fits L2"),
    ((32, 64, 56, 56), "float32", True, "fits L2"),
    ((32, 2048, 7, 7), "float32", False, "fits L2, odd planes"),
    ((8, 64, 28, 28), "float32", False, "small"),
)


def measure(shape: tuple[int, ...], dtype: str, last: bool, note: str) -> Iterator[dict[str, Any]]:
    """A row an operation."""
    import torch

    kind = getattr(torch, dtype)
    nbytes = torch.Size(shape).numel() * kind.itemsize
    layout = torch.channels_last if last else torch.contiguous_format
    sets = [
        tuple(torch.randn(shape, device="cuda", dtype=kind).to(memory_format=layout) for _ in range(2))
        for _ in range(rotations(3 * nbytes))
    ]
    small = (1, shape[1], 1, 1)
    gamma, beta = torch.rand(small, device="cuda") + 0.5, torch.randn(small, device="cuda")
    var = torch.rand(small, device="cuda") + 0.5
    aten, results, mode = torch.ops.aten, {}, "spatial"
    g, b, v = gamma.ravel(), beta.ravel(), var.ravel()
    trained = numbadnn.batch_normalization_train(sets[0][0], gamma, beta, mode)
    mean, invstd = trained[1], trained[2]
    m, i = mean.ravel(), invstd.ravel()
    given = numbadnn.batch_normalization_train_grad(*sets[0], gamma, mean, invstd, mode)
    y = torch.empty_like(sets[0][0])

    def ours(name: str, *arguments: Any, out: Any) -> Callable[..., Any]:
        function = getattr(numbadnn, name)
        return lambda data, backend=None: function(*data, *arguments, mode, out=out, backend=backend)

    calls: dict[str, tuple[int, int, Callable[..., Any], Callable[..., Any]]] = {
        "batch_normalization_train": (
            3, 1, ours("batch_normalization_train", gamma, beta, out=trained),
            lambda x: aten.native_batch_norm(x, g, b, None, None, True, 0.1, 1e-4),
        ),
        "batch_normalization_test": (
            2, 1, ours("batch_normalization_test", gamma, beta, mean, var, out=y),
            lambda x: aten.native_batch_norm(x, g, b, m, v, False, 0.1, 1e-4),
        ),
        "batch_normalization_train_grad": (
            5, 2, ours("batch_normalization_train_grad", gamma, mean, invstd, out=given),
            lambda x, dy: aten.native_batch_norm_backward(dy, x, g, None, None, m, i, True, 1e-4, [True] * 3),
        ),
        "dropout": (
            2, 1, lambda data, backend=None: numbadnn.dropout(*data, 0.1, out=y, backend=backend),
            lambda x: torch.native_dropout(x, 0.1, True),
        ),
    }  # fmt: skip
    copy = copy_gbps(2 * nbytes)
    for name, (passes, arrays, call, peer) in calls.items():
        results = {"case": f"{name} {dtype} {'x'.join(map(str, shape))}{' nhwc' if last else ''}", "note": note}
        call(sets[0][:arrays])
        results["impl"] = numbadnn.last_call().impl  # type: ignore[union-attr]
        results["error"] = difference(name, sets[0], gamma, beta, mean, var, invstd, trained, y, given)
        work = passes * nbytes / 1e6
        results["GB/s"] = work / device_ms([lambda s=s, f=call, n=arrays: f(s[:n]) for s in sets])
        results["torch"] = work / device_ms([lambda s=s, f=peer, n=arrays: f(*s[:n]) for s in sets])
        try:
            call(sets[0][:arrays], "cudnn")
            results["cudnn"] = work / device_ms([lambda s=s, f=call, n=arrays: f(s[:n], "cudnn") for s in sets])
        except numbadnn.NotSupportedError:
            results["cudnn"] = None
        results["copy"], results["of copy"] = copy, results["GB/s"] / copy
        results["vs torch"] = results["GB/s"] / results["torch"]
        yield results


def difference(
    name: str, data: Any, gamma: Any, beta: Any, mean: Any, var: Any, invstd: Any, trained: Any, y: Any, given: Any
) -> float:
    """The largest difference from float64, relative to the largest result; dropout's from x / (1 - p) where it is not 0."""
    x, dy = (d.double() for d in data)
    if name == "dropout":
        exact, got = x / 0.9 * (y != 0), y
    elif name == "batch_normalization_test":
        exact, got = (x - mean) * gamma / (var + 1e-4).sqrt() + beta, y
    elif name == "batch_normalization_train":
        centre = x.mean((0, 2, 3), keepdim=True)
        spread = (x - centre).square().mean((0, 2, 3), keepdim=True)
        exact, got = (x - centre) / (spread + 1e-4).sqrt() * gamma + beta, trained[0]
    else:
        d, i = x - mean, invstd.double()
        c = dy * i - d * (dy * d).mean((0, 2, 3), keepdim=True) * i**3
        exact, got = gamma * (c - c.mean((0, 2, 3), keepdim=True)), given[0]
    return float((got.double() - exact).abs().max() / exact.abs().max())


def main() -> None:
    quick = "--quick" in sys.argv
    rows = [row for shape in SHAPES[:: 4 if quick else 1] for row in measure(*shape)]
    columns = ("case", "note", "impl", "error", "GB/s", "torch", "cudnn", "copy", "of copy", "vs torch")
    print(table(rows, columns))
    print("written to", save("norm", rows, quick=quick))


if __name__ == "__main__":
    main()
