"""Pooling and its gradient: GB/s beside PyTorch, cuDNN and a device copy of the same bytes, in one run.

Bytes = each input read once, each output written once: x and y; for the gradient dx and dy, and x where it is that of a
maximum. PyTorch's gradient of a maximum reads indices that its forward call wrote. Before a speed is printed the result
of the very arrays that are timed is compared with numbadnn.reference on whole images from everywhere in the batch; a
case that fails prints REFUSED and no speed.
``python bench/bench_pool.py [--only REGEX] [--quick]``: some of the cases; their rows replace the former ones.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

from harness import copy_gbps, device_ms, rotations, save, table

import numbadnn
from numbadnn.problem import Spec
from numbadnn.problems.pool import PoolProblem
from numbadnn.validate.oracle import Trial

#: image (of float32; float16 has twice the batch), window, stride, pad, mode
LAYERS = (
    ((64, 64, 112, 112), (2, 2), (2, 2), (0, 0), "max"),
    ((64, 64, 112, 112), (3, 3), (2, 2), (1, 1), "max"),
    ((64, 64, 112, 112), (2, 2), (2, 2), (0, 0), "average_inc_pad"),
    ((64, 64, 112, 112), (3, 3), (2, 2), (1, 1), "average_exc_pad"),
    ((64, 64, 112, 112), (3, 3), (2, 2), (1, 1), "average_inc_pad"),
    ((16, 64, 16, 56, 56), (2, 2, 2), (2, 2, 2), (0, 0, 0), "max"),
    ((4, 32, 64, 64, 64), (3, 3, 3), (2, 2, 2), (1, 1, 1), "max"),
    ((4, 32, 64, 64, 64), (3, 3, 3), (2, 2, 2), (1, 1, 1), "average_exc_pad"),
    ((4, 32, 64, 64, 64), (2, 2, 2), (2, 2, 2), (0, 0, 0), "average_inc_pad"),
    ((128, 64, 55, 55), (3, 3), (2, 2), (0, 0), "max"),
    ((64, 192, 56, 56), (3, 3), (1, 1), (1, 1), "max"),
    ((8, 64, 28, 28), (2, 2), (2, 2), (0, 0), "max"),
)


def torch_forward(mode: str, ws: Any, stride: Any, pad: Any) -> Callable[[Any], Any]:
    import torch

    functional, axes = torch.nn.functional, len(ws)
    if mode == "max":
        return lambda x: getattr(functional, f"max_pool{axes}d")(x, ws, stride, pad)
    include = mode == "average_inc_pad"
    return lambda x: getattr(functional, f"avg_pool{axes}d")(x, ws, stride, pad, count_include_pad=include)


def worst(op: str, arrays: tuple[Any, ...], result: Any, layer: tuple[Any, ...]) -> float:
    """The largest |error| / bound over a few channels of a few images; inf where any element is not finite."""
    import numpy as np
    import torch

    if not bool(torch.isfinite(result).all()):
        return float("inf")
    _, ws, stride, pad, mode = layer

    def pick(a: Any) -> Any:
        return np.ascontiguousarray(a[:: max(1, a.shape[0] // 2), :: max(1, a.shape[1] // 4)].cpu().numpy())

    inputs = tuple(map(pick, arrays))
    specs = [Spec.of(a.dtype.name, a.shape) for a in inputs]
    out = pick(result)
    if op == "pool":
        operands = (specs[0], Spec.of(out.dtype.name, out.shape), None, None)
    else:
        operands = (*specs, Spec.of(out.dtype.name, out.shape))  # type: ignore[assignment]
    problem = PoolProblem(op, *operands, ws, stride, pad, mode)
    return Trial(problem, inputs).compare((out,), "ieee").worst


def batched(dtype: str, layer: tuple[Any, ...]) -> tuple[int, ...]:
    """The shape of the layer's image."""
    n, *image = layer[0]
    return (2 * n if dtype == "float16" else n, *image)


def name_of(op: str, dtype: str, last: bool, layer: tuple[Any, ...]) -> str:
    _, ws, _, _, mode = layer
    return f"{op} {mode} {'x'.join(map(str, ws))} {dtype} {'x'.join(map(str, batched(dtype, layer)))}{' nhwc' if last else ''}"


def measure(op: str, dtype: str, last: bool, layer: tuple[Any, ...]) -> dict[str, Any]:
    import torch

    _, ws, stride, pad, mode = layer
    torch_dtype, shape = getattr(torch, dtype), batched(dtype, layer)
    layout: Any = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    layout = layout if last else torch.contiguous_format
    parameters = (ws, stride, mode, pad)
    row: dict[str, Any] = {"case": name_of(op, dtype, last, layer)}
    sets, peers_sets, nbytes = [], [], 1
    forward = torch_forward(mode, ws, stride, pad)
    for i in range(4):
        if i and i >= rotations(nbytes, most=4):
            break
        x = torch.randn(shape, device="cuda", dtype=torch_dtype).to(memory_format=layout)
        y = numbadnn.pool(x, *parameters)
        if op == "pool":
            sets.append((x,))
            nbytes = (x.numel() + y.numel()) * x.element_size()
            continue
        dy = torch.randn_like(y)
        sets.append((x, y, dy))
        nbytes = (x.numel() * (2 if mode == "max" else 1) + y.numel()) * x.element_size()
        leaf = x.clone().requires_grad_()
        peers_sets.append((forward(leaf), leaf, dy))
    out = torch.empty_like(y if op == "pool" else x)
    where = {"out" if op == "pool" else "result": out}
    function = getattr(numbadnn, op)
    row["error/bound"] = worst(op, sets[0], function(*sets[0], *parameters, **where), layer)
    row["impl"] = numbadnn.last_call().impl  # type: ignore[union-attr]
    if not row["error/bound"] <= 1:
        return row | {"GB/s": "REFUSED"}
    calls: dict[str, list[Callable[[], Any]]] = {"GB/s": [lambda s=s: function(*s, *parameters, **where) for s in sets]}
    if op == "pool":
        calls["torch"] = [lambda s=s: forward(s[0]) for s in sets]
    else:
        calls["torch"] = [lambda s=s: torch.autograd.grad(*s, retain_graph=True) for s in peers_sets]
    calls["cudnn"] = [lambda s=s: function(*s, *parameters, **where, backend="cudnn") for s in sets]
    try:
        calls["cudnn"][0]()
    except (numbadnn.NotSupportedError, numbadnn.BackendUnavailableError):
        del calls["cudnn"]
    for peer, peer_calls in calls.items():
        row[peer] = nbytes / device_ms(peer_calls) / 1e6
    row["copy"] = copy_gbps(nbytes)
    row["of copy"], row["vs torch"] = row["GB/s"] / row["copy"], row["GB/s"] / row["torch"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description="Pooling and its gradient beside a copy.")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose names match")
    parser.add_argument("--quick", action="store_true", help="maxima of two layers alone")
    options = parser.parse_args()
    cases = [
        (op, dtype, last, layer)
        for layer in (LAYERS[:2] if options.quick else LAYERS)
        for op in ("pool", "pool_grad")
        for dtype in ("float32", "float16")
        for last in (False, True)
    ]
    rows, path = [], None
    for case in cases:
        if re.search(options.only, name_of(*case)):
            rows.append(measure(*case))
            path = save("pool", rows, of="case", quick=options.quick)
    print(table(rows, ("case", "impl", "error/bound", "GB/s", "torch", "cudnn", "copy", "of copy", "vs torch")))
    print("written to", path)


if __name__ == "__main__":
    main()
