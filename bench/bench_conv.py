"""conv2d on the layers of ResNet-50, three directions: what the dispatcher chooses beside PyTorch at the same arithmetic.

float16 channels-last and float32 NCHW; float32 under ieee beside allow_tf32=False, under tf32 beside True; PyTorch with
benchmark=False, and True beside it. Like is held against like: our default (run_to_run) against
cudnn.deterministic=True ("vs det"), and determinism="not_guaranteed" against PyTorch's default, which takes
non-deterministic engines ("free vs torch"); and precision="as_input", under which float16 sums may be kept in float16, as
PyTorch lets cuDNN do without being asked ("as_input vs det"). The limit is the larger of bytes over the measured copy
speed and operations over the measured matrix-product rate. Before a speed is printed the result is compared with
float64 within the bound of validate.compare; a case that fails prints REFUSED. ``python bench/bench_conv.py [--quick]``.
"""

from __future__ import annotations

import sys
from typing import Any

import checking
from harness import copy_gbps, device_ms, geometric_mean, rotations, save, table

import numbadnn

#: (name, C, H, K, R, stride, pad) of every distinct convolution of ResNet-50
RESNET50 = (
    ("conv1", 3, 224, 64, 7, 2, 3),
    ("2a 1x1", 64, 56, 64, 1, 1, 0),
    ("2b 3x3", 64, 56, 64, 3, 1, 1),
    ("2c 1x1", 64, 56, 256, 1, 1, 0),
    ("2a' 1x1", 256, 56, 64, 1, 1, 0),
    ("3a 1x1", 256, 56, 128, 1, 1, 0),
    ("3b 3x3/2", 128, 56, 128, 3, 2, 1),
    ("3c 1x1", 128, 28, 512, 1, 1, 0),
    ("3s 1x1/2", 256, 56, 512, 1, 2, 0),
    ("3b 3x3", 128, 28, 128, 3, 1, 1),
    ("4b 3x3/2", 256, 28, 256, 3, 2, 1),
    ("4c 1x1", 256, 14, 1024, 1, 1, 0),
    ("4a' 1x1", 1024, 14, 256, 1, 1, 0),
    ("4b 3x3", 256, 14, 256, 3, 1, 1),
    ("5b 3x3", 512, 7, 512, 3, 1, 1),
    ("5c 1x1", 512, 7, 2048, 1, 1, 0),
    ("5s 1x1/2", 1024, 14, 2048, 1, 2, 0),
)
DIRECTIONS = ("forward", "grad_inputs", "grad_weights")
RATIOS = ("vs det", "as_input vs det", "free vs torch", "vs torch", "free vs tuned")
SETTINGS = (("float16", "ieee", True), ("float32", "ieee", False), ("float32", "tf32", False))


def operands(layer: tuple[Any, ...], n: int, dtype: Any, channels_last: bool, device: str) -> tuple[Any, Any, Any]:
    """Random image, filters and output gradient of a layer."""
    import torch

    _, c, h, k, r, s, p = layer
    form = torch.channels_last if channels_last else torch.contiguous_format
    q = (h + 2 * p - r) // s + 1
    make = lambda *shape: torch.randn(shape, device=device, dtype=dtype).to(memory_format=form)  # noqa: E731
    return make(n, c, h, h), make(k, c, r, r), make(n, k, q, q)


def pair(direction: str, layer: tuple[Any, ...], arrays: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    """(our call, PyTorch's call) of one direction on the same operands."""
    import torch

    (_, _, _, _, _, s, p), (x, w, g) = layer, arrays
    options = {"border_mode": p, "subsample": (s, s), "filter_flip": False}
    if direction == "forward":
        return lambda: numbadnn.conv2d(x, w, **options), lambda: torch.nn.functional.conv2d(x, w, None, s, p)
    backward = torch.ops.aten.convolution_backward
    fixed = ([s, s], [p, p], [1, 1], False, [0, 0], 1)
    if direction == "grad_inputs":
        shape = tuple(x.shape)
        return (
            lambda: numbadnn.conv2d_grad_wrt_inputs(g, w, shape, **options),
            lambda: backward(g, x, w, None, *fixed, [True, False, False])[0],
        )
    shape = tuple(w.shape)
    return (
        lambda: numbadnn.conv2d_grad_wrt_weights(x, g, shape, **options),
        lambda: backward(g, x, w, None, *fixed, [False, True, False])[1],
    )


def matrix_tflops(dtype: str, precision: str) -> float:
    """The rate of a large matrix product at this arithmetic, as a ceiling."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=getattr(torch, dtype)) for _ in range(2))
    return 2 * 8192**3 / device_ms([lambda: a @ b], 10) / 1e9


def measure(
    layer: tuple[Any, ...], n: int, setting: tuple[str, str, bool], direction: str, ceiling: tuple[float, float]
) -> Any:
    import torch

    dtype, precision, channels_last = setting
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = False
    first = operands(layer, n, getattr(torch, dtype), channels_last, "cuda")
    nbytes = sum(t.numel() * t.element_size() for t in first)
    sets = [first] + [
        operands(layer, n, first[0].dtype, channels_last, "cuda") for _ in range(rotations(nbytes, most=4) - 1)
    ]
    row: dict[str, Any] = {"layer": layer[0], "direction": direction, "dtype": dtype, "precision": precision}
    with numbadnn.using(fp32_precision=precision):
        pairs = [pair(direction, layer, arrays) for arrays in sets]
        worst = checking.conv2d(direction, layer, first, pairs[0][0])
        row |= {"impl": numbadnn.last_call().impl, "error/bound": worst}  # type: ignore[union-attr]
        if not worst <= 1:
            return row | {"us": "REFUSED"}
        ours = device_ms([p[0] for p in pairs])
    with numbadnn.using(fp32_precision=precision, determinism="not_guaranteed"):
        free = device_ms([p[0] for p in pairs])
    with numbadnn.using(fp32_precision=precision, precision="as_input"):
        row["as_input error/bound"] = checking.conv2d(direction, layer, first, pairs[0][0])
        as_input = device_ms([p[0] for p in pairs])
    torch.backends.cudnn.deterministic = True
    same = device_ms([p[1] for p in pairs])
    torch.backends.cudnn.deterministic = False
    theirs = device_ms([p[1] for p in pairs])
    torch.backends.cudnn.benchmark = True
    tuned = device_ms([p[1] for p in pairs])
    flops = 2 * first[2].numel() * first[1][0].numel()
    limit = max(nbytes / ceiling[0] / 1e6, flops / ceiling[1] / 1e9)
    return row | {
        "us": ours * 1e3, "torch_det_us": same * 1e3, "free_us": free * 1e3, "torch_us": theirs * 1e3,
        "tuned_us": tuned * 1e3, "TFLOP/s": flops / ours / 1e9, "vs det": same / ours, "free vs torch": theirs / free,
        "vs torch": theirs / ours, "as_input vs det": same / as_input,
        "free vs tuned": tuned / free, "of limit": limit / ours,
    }  # fmt: skip


def main() -> None:
    quick = "--quick" in sys.argv
    n = 32
    layers = RESNET50[::4] if quick else RESNET50
    copy = copy_gbps(1 << 30)
    rows = []
    for setting in SETTINGS:
        ceiling = copy, matrix_tflops(*setting[:2])
        rows += [measure(layer, n, setting, d, ceiling) for layer in layers for d in DIRECTIONS]
    times = ("us", "torch_det_us", "free_us", "torch_us", "tuned_us", "TFLOP/s")
    columns = ("layer", "direction", "dtype", "precision", "impl", "error/bound", *times)
    print(table(rows, (*columns, *RATIOS, "of limit")))
    for dtype, precision, _ in SETTINGS:
        for direction in DIRECTIONS:
            kind = (dtype, precision, direction)
            chosen = [r for r in rows if (r["dtype"], r["precision"], r["direction"]) == kind and "vs torch" in r]
            for ratio in RATIOS:
                slow = [f"{r['layer']} {r[ratio]:.2f}" for r in chosen if r[ratio] < 0.97]
                mean = geometric_mean([r[ratio] for r in chosen])
                print(*kind, f"{ratio}: geometric mean {mean:.3f}, below 0.97:", ", ".join(slow) or "none")
    print("written to", save("conv", rows, images=n, quick=quick, copy_GBps=copy))


if __name__ == "__main__":
    main()
