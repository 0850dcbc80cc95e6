"""Bilinear upsampling and its gradient: GB/s beside PyTorch and a device copy of the same bytes, in one run.

Bytes = the smaller image once and the larger image once. PyTorch's ``interpolate`` samples half-pixel centres: other numbers from
the same bytes. cuDNN has no such operation. Before a speed is printed, the first image of the arrays that are timed is compared
with float64 within the bound of validate. ``python bench/bench_upsample.py [--quick]``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from harness import copy_gbps, device_ms, rotations, save, table

import numbadnn

#: shape of the smaller image, ratio
SHAPES = (
    ((8, 64, 224, 224), 2),
    ((8, 64, 152, 152), 3),
    ((8, 64, 112, 112), 4),
    ((32, 128, 56, 56), 2),
    ((8, 64, 28, 28), 2),
)


def measure(shape: tuple[int, ...], ratio: int, dtype: str, last: bool) -> Iterator[dict[str, Any]]:
    """Forward, then gradient."""
    import torch

    kind, layout = getattr(torch, dtype), torch.channels_last if last else torch.contiguous_format
    n, c, h, w = shape
    big = (n, c, ratio * h, ratio * w)
    nbytes = (1 + ratio**2) * torch.Size(shape).numel() * kind.itemsize
    sets = [
        tuple(torch.randn(s, device="cuda", dtype=kind).to(memory_format=layout) for s in (shape, big))
        for _ in range(rotations(nbytes))
    ]
    y, dx = torch.empty_like(sets[0][1]), torch.empty_like(sets[0][0])
    aten, copy = torch.ops.aten, copy_gbps(nbytes)
    calls = (
        ("bilinear_upsampling", 0, y, lambda x: numbadnn.bilinear_upsampling(x, ratio, out=y),
         lambda x: torch.nn.functional.interpolate(x, scale_factor=ratio, mode="bilinear")),
        ("bilinear_upsampling_grad", 1, dx, lambda g: numbadnn.bilinear_upsampling_grad(g, shape, ratio, out=dx),
         lambda g: aten.upsample_bilinear2d_backward(g, big[2:], shape, False, None, None)),
    )  # fmt: skip
    for name, which, result, ours, peer in calls:
        row: dict[str, Any] = {
            "case": f"{name} {dtype} {'x'.join(map(str, shape))}{' nhwc' if last else ''} by {ratio}"
        }
        ours(sets[0][which])
        row["impl"] = numbadnn.last_call().impl  # type: ignore[union-attr]
        row["error/bound"] = worst(name, sets[0][which], result, ratio)
        if not row["error/bound"] <= 1:
            yield row | {"GB/s": "REFUSED"}
            continue
        for column, call in (("GB/s", ours), ("torch", peer)):
            row[column] = nbytes / device_ms([lambda s=s[which], f=call: f(s) for s in sets]) / 1e6
        row["copy"], row["of copy"] = copy, row["GB/s"] / copy
        row["vs torch"] = row["GB/s"] / row["torch"]
        yield row


def worst(name: str, operand: Any, result: Any, ratio: int) -> float:
    """|error| / bound over the first channels of the first image."""
    from numbadnn.problem import Spec
    from numbadnn.problems.upsample import UpsampleProblem
    from numbadnn.validate.oracle import Trial

    first, got = (a[:1, :8].contiguous().cpu().numpy() for a in (operand, result))
    x, y = (first, got) if name == "bilinear_upsampling" else (got, first)
    specs = (Spec.of(a.dtype.name, a.shape) for a in (x, y))
    return Trial(UpsampleProblem(name, *specs, ((ratio, 1), (ratio, 1))), (first,)).compare(got, "ieee").worst


def main() -> None:
    quick = "--quick" in sys.argv
    shapes = SHAPES[:2] if quick else SHAPES
    layouts = [(dtype, last) for dtype in ("float32", "float16") for last in (False, True)]
    rows = [row for shape, ratio in shapes for dtype, last in layouts for row in measure(shape, ratio, dtype, last)]
    print(table(rows, ("case", "impl", "error/bound", "GB/s", "torch", "copy", "of copy", "vs torch")))
    print("written to", save("upsample", rows, quick=quick))


if __name__ == "__main__":
    main()
