"""The spatial transformer: GB/s beside PyTorch, cuDNN and a device copy of the same bytes, in one run.

Bytes = each input once, each output once. Images are turned by ``ANGLE`` radians: neighbouring points lie in several rows.
Before a speed is printed, the first image of the arrays that are timed is compared with float64 within the bound of
validate. cuDNN's gradients are timed under ``determinism=not_guaranteed``. ``python bench/bench_spatial.py [--quick]``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

from harness import copy_gbps, device_ms, rotations, save, table

import numbadnn

ANGLE = 0.2
#: image, size of the grid
SHAPES = (
    ((32, 64, 128, 128), (128, 128)),
    ((32, 256, 64, 64), (64, 64)),
    ((64, 3, 448, 448), (448, 448)),
    ((8, 64, 28, 28), (28, 28)),
)


def measure(shape: tuple[int, ...], points: tuple[int, int], dtype: str, last: bool) -> Iterator[dict[str, Any]]:
    """Grid, sampler, and the gradients of both."""
    import torch

    kind, layout = getattr(torch, dtype), torch.channels_last if last else torch.contiguous_format
    n, c = shape[:2]
    cos, sin = math.cos(ANGLE), math.sin(ANGLE)
    theta = torch.tensor([[cos, -sin, 0.05], [sin, cos, -0.03]], device="cuda", dtype=kind).repeat(n, 1, 1)
    nbytes = torch.Size(shape).numel() * kind.itemsize
    dims, sets = (n, c, *points), []
    for _ in range(rotations(2 * nbytes)):
        img, dy = (torch.randn(s, device="cuda", dtype=kind).to(memory_format=layout) for s in (shape, dims))
        sets.append((img, numbadnn.spatialtf_grid(theta, dims), dy))
    img, grid, dy = sets[0]
    y, dimg, dgrid, dtheta = (torch.empty_like(a) for a in (dy, img, grid, theta))
    functional, aten = torch.nn.functional, torch.ops.aten
    calls: dict[str, tuple[Any, Any, Callable[..., Any], Callable[..., Any]]] = {
        "spatialtf_sampler": (
            (img, grid), (y,), lambda s, b=None: numbadnn.spatialtf_sampler(*s[:2], out=y, backend=b),
            lambda s: functional.grid_sample(*s[:2], align_corners=True),
        ),
        "spatialtf_sampler_grad": (
            (img, grid, dy), (dimg, dgrid),
            lambda s, b=None: numbadnn.spatialtf_sampler_grad(*s, out=(dimg, dgrid), backend=b),
            lambda s: aten.grid_sampler_2d_backward(s[2], s[0], s[1], 0, 0, True, [True, True]),
        ),
        "spatialtf_grid": (
            (theta,), (grid,), lambda s, b=None: numbadnn.spatialtf_grid(theta, dims, out=s[1], backend=b),
            lambda s: functional.affine_grid(theta, dims, align_corners=True),
        ),
        "spatialtf_grid_grad": (
            (grid,), (dtheta,), lambda s, b=None: numbadnn.spatialtf_grid_grad(s[1], out=dtheta, backend=b),
            lambda s: aten.affine_grid_generator_backward(s[1], dims, True),
        ),
    }  # fmt: skip
    for name, (inputs, outputs, ours, peer) in calls.items():
        row: dict[str, Any] = {"case": f"{name} {dtype} {'x'.join(map(str, shape))}{' nhwc' if last else ''}"}
        ours(sets[0])
        row["impl"] = numbadnn.last_call().impl  # type: ignore[union-attr]
        row["error/bound"] = worst(name, inputs, outputs)
        if not row["error/bound"] <= 1:
            yield row | {"GB/s": "REFUSED"}
            continue
        moved = sum(a.numel() * a.itemsize for a in (*inputs, *outputs))
        row["MB"] = moved / 1e6
        row["GB/s"] = moved / device_ms([lambda s=s, f=ours: f(s) for s in sets]) / 1e6
        row["torch"] = moved / device_ms([lambda s=s, f=peer: f(s) for s in sets]) / 1e6
        with numbadnn.using(determinism="not_guaranteed"):
            try:
                ours(sets[0], "cudnn")
                row["cudnn"] = moved / device_ms([lambda s=s, f=ours: f(s, "cudnn") for s in sets]) / 1e6
            except numbadnn.NotSupportedError:
                row["cudnn"] = None
        row["copy"] = copy_gbps(moved)
        row["of copy"], row["vs torch"] = row["GB/s"] / row["copy"], row["GB/s"] / row["torch"]
        yield row


def worst(name: str, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> float:
    """|error| / bound over the first image."""
    from numbadnn.problem import Spec
    from numbadnn.problems.spatial import OPERANDS, SpatialProblem
    from numbadnn.validate.oracle import Trial

    arrays = [a[:1].contiguous().cpu().numpy() for a in (*inputs, *outputs)]
    names = (*OPERANDS[name][0], *OPERANDS[name][1])
    problem = SpatialProblem(name, **{k: Spec.of(a.dtype.name, a.shape) for k, a in zip(names, arrays, strict=True)})
    return Trial(problem, tuple(arrays[: len(inputs)])).compare(tuple(arrays[len(inputs) :]), "ieee").worst


def main() -> None:
    quick = "--quick" in sys.argv
    shapes = SHAPES[:1] if quick else SHAPES
    layouts = [(dtype, last) for dtype in ("float32", "float16") for last in (False, True)]
    rows = [row for shape, points in shapes for kind, last in layouts for row in measure(shape, points, kind, last)]
    columns = ("case", "impl", "error/bound", "MB", "GB/s", "torch", "cudnn", "copy", "of copy", "vs torch")
    print(table(rows, columns))
    print("written to", save("spatial", rows, quick=quick))


if __name__ == "__main__":
    main()
