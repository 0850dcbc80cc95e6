"""Convolutions that ResNet-50 has not: three axes, transposed, dilated, grouped, depthwise; the dispatcher beside PyTorch.

Three directions; a transposed layer's "forward" is PyTorch's conv_transpose on the same arrays. float32 under ieee beside
allow_tf32=False, under tf32 beside True, and float16. PyTorch with benchmark=False, deterministic=True ("vs det": like against
like, our default is run_to_run), PyTorch's default beside determinism="not_guaranteed" ("free vs torch"), and benchmark=True.
Before a speed is printed the result on the arrays that are timed is held against float64 within the bound of validate.compare;
a case that fails prints REFUSED. ``python bench/bench_conv_kinds.py [kind ...] [--quick]``; ``--cpu``: NumPy arrays beside
PyTorch on the CPU, float32, one image, calls in turn, the least time of each.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from checking import worst_sum
from harness import device_ms, geometric_mean, rotations, save, table

import numbadnn


class Layer(NamedTuple):
    """A forward convolution from C to K channels; ``transposed``: what is called forward is its gradient of the image."""

    kind: str
    n: int
    c: int
    k: int
    size: tuple[int, ...]
    taps: tuple[int, ...]
    stride: int = 1
    pad: int = 0
    dilation: int = 1
    groups: int = 1
    transposed: bool = False

    def __str__(self) -> str:
        def by(values: tuple[int, ...]) -> str:
            return "x".join(map(str, values))

        more = [f"s{self.stride}"] * (self.stride > 1) + [f"d{self.dilation}"] * (self.dilation > 1)
        more += [f"g{self.groups}"] * (self.groups > 1)
        return " ".join([self.kind, f"{self.n}x{self.c}x{by(self.size)} -> {self.k}", by(self.taps), *more])


LAYERS = (
    Layer("3d", 8, 16, 32, (16, 56, 56), (3, 3, 3), pad=1),
    Layer("3d", 8, 64, 64, (8, 28, 28), (3, 3, 3), pad=1),
    Layer("3d", 8, 64, 128, (8, 28, 28), (3, 3, 3), 2, 1),
    Layer("3d", 8, 64, 64, (8, 28, 28), (1, 1, 1)),
    Layer("transposed", 32, 256, 512, (8, 8), (4, 4), 2, 1, transposed=True),
    Layer("transposed", 32, 64, 128, (56, 56), (4, 4), 2, 1, transposed=True),
    Layer("transposed", 16, 128, 256, (28, 28), (2, 2), 2, 0, transposed=True),
    Layer("dilated", 8, 256, 256, (33, 33), (3, 3), 1, 6, 6),
    Layer("dilated", 8, 512, 512, (28, 28), (3, 3), 1, 2, 2),
    Layer("dilated", 8, 64, 64, (65, 65), (3, 3), 1, 4, 4),
    Layer("grouped", 32, 128, 128, (56, 56), (3, 3), 1, 1, groups=32),
    Layer("grouped", 32, 256, 256, (28, 28), (3, 3), 1, 1, groups=32),
    Layer("grouped", 32, 256, 256, (56, 56), (3, 3), 2, 1, groups=32),
    Layer("depthwise", 32, 144, 144, (56, 56), (3, 3), 1, 1, groups=144),
)
DIRECTIONS = ("forward", "grad_inputs", "grad_weights")
SETTINGS = (("float32", "ieee"), ("float32", "tf32"), ("float16", "ieee"))


def operands(layer: Layer, dtype: Any, device: str) -> tuple[Any, Any, Any]:
    """Image, filters and output (gradient) of the forward convolution; float16 channels-last."""
    import torch

    form = torch.contiguous_format
    if dtype == torch.float16:
        form = torch.channels_last if len(layer.size) == 2 else torch.channels_last_3d
    reach = [(r - 1) * layer.dilation + 1 for r in layer.taps]
    out = [(n + 2 * layer.pad - r) // layer.stride + 1 for n, r in zip(layer.size, reach, strict=True)]

    def make(*shape: int) -> Any:
        return torch.randn(shape, device=device, dtype=dtype).to(memory_format=form)

    images, filters = make(layer.n, layer.c, *layer.size), make(layer.k, layer.c // layer.groups, *layer.taps)
    return images, filters, make(layer.n, layer.k, *out)


def gradient_of(direction: str, layer: Layer) -> str:
    """What a layer's direction is of the forward convolution."""
    turned = {"forward": "grad_inputs", "grad_inputs": "forward", "grad_weights": "grad_weights"}
    return turned[direction] if layer.transposed else direction


def theirs(layer: Layer, direction: str, arrays: tuple[Any, Any, Any]) -> Any:
    """PyTorch's call."""
    import torch

    x, w, g = arrays
    axes, what = len(layer.size), gradient_of(direction, layer)
    stride, pad, dilation = ([v] * axes for v in (layer.stride, layer.pad, layer.dilation))
    backward = torch.ops.aten.convolution_backward
    if not layer.transposed and what == "forward":
        return getattr(torch.nn.functional, f"conv{axes}d")(x, w, None, stride, pad, dilation, layer.groups)
    if layer.transposed and what == "grad_inputs":
        more = [n - ((o - 1) * layer.stride - 2 * layer.pad + layer.dilation * (r - 1) + 1)
                for n, o, r in zip(layer.size, g.shape[2:], layer.taps, strict=True)]  # fmt: skip
        function = getattr(torch.nn.functional, f"conv_transpose{axes}d")
        return function(g, w, None, stride, pad, more, layer.groups, dilation)
    mask = [what == "grad_inputs", what == "grad_weights", False]
    fixed = (None, stride, pad, dilation, False, [0] * axes, layer.groups)
    return backward(g, x, w, *fixed, mask)[mask.index(True)] if any(mask) else _forward(layer, x, w)


def _forward(layer: Layer, x: Any, w: Any) -> Any:
    """The gradient of a transposed convolution's input."""
    import torch

    function = getattr(torch.nn.functional, f"conv{len(layer.size)}d")
    return function(x, w, None, layer.stride, layer.pad, layer.dilation, layer.groups)


def ours(layer: Layer, direction: str, arrays: tuple[Any, Any, Any]) -> Any:
    """Our call: the public function's own choice."""
    x, w, g = arrays
    axes, what = len(layer.size), gradient_of(direction, layer)
    options = {
        "border_mode": (layer.pad,) * axes, "subsample": (layer.stride,) * axes, "filter_flip": False,
        "filter_dilation": (layer.dilation,) * axes, "num_groups": layer.groups,
    }  # fmt: skip
    name = f"conv{axes}d"
    if what == "forward":
        return getattr(numbadnn, name)(x, w, **options)
    if what == "grad_inputs":
        return getattr(numbadnn, f"{name}_grad_wrt_inputs")(g, w, tuple(x.shape), **options)
    return getattr(numbadnn, f"{name}_grad_wrt_weights")(x, g, tuple(w.shape), **options)


def worst(layer: Layer, direction: str, arrays: tuple[Any, Any, Any]) -> float | None:
    """The largest |error| / bound over all elements; None for arithmetic that has no bound for each element."""
    result, ran = ours(layer, direction, arrays), numbadnn.last_call()
    assert ran is not None
    exact = theirs(layer, direction, tuple(a.double() for a in arrays))  # type: ignore[arg-type]
    magnitude = theirs(layer, direction, tuple(a.double().abs() for a in arrays))  # type: ignore[arg-type]
    x, w, g = arrays
    what, area = gradient_of(direction, layer), w[0, 0].numel()
    k = {"forward": w[0].numel(), "grad_inputs": layer.k // layer.groups * area, "grad_weights": g.numel() // layer.k}[
        what
    ]
    return worst_sum(result, exact, magnitude, k, ran.arithmetic)


def measure(layer: Layer, direction: str, dtype: str, precision: str) -> dict[str, Any]:
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = False
    first = operands(layer, getattr(torch, dtype), "cuda")
    nbytes = sum(t.numel() * t.element_size() for t in first)
    sets = [first, *(operands(layer, first[0].dtype, "cuda") for _ in range(rotations(nbytes, most=4) - 1))]
    mine: list[Callable[[], Any]] = [lambda s=s: ours(layer, direction, s) for s in sets]  # type: ignore[misc]
    peer: list[Callable[[], Any]] = [lambda s=s: theirs(layer, direction, s) for s in sets]  # type: ignore[misc]
    row: dict[str, Any] = {
        "layer": str(layer),
        "kind": layer.kind,
        "direction": direction,
        "dtype": dtype,
        "precision": precision,
    }
    with numbadnn.using(fp32_precision=precision):
        row["error/bound"] = worst(layer, direction, first)
        row["impl"] = numbadnn.last_call().impl  # type: ignore[union-attr]
        if row["error/bound"] is None or not row["error/bound"] <= 1:
            return row | {"us": "no bound for each element" if row["error/bound"] is None else "REFUSED"}
        times = [device_ms(mine, 10)]
    with numbadnn.using(fp32_precision=precision, determinism="not_guaranteed"):
        times.append(device_ms(mine, 10))
        row["free impl"] = numbadnn.last_call().impl  # type: ignore[union-attr]
    for benchmark, deterministic in ((False, True), (False, False), (True, False)):
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = benchmark, deterministic
        times.append(device_ms(peer, 10))
    us, free, same, torch_us, tuned = (1e3 * t for t in times)
    return row | {
        "us": us, "free_us": free, "torch_det_us": same, "torch_us": torch_us, "tuned_us": tuned,
        "vs det": same / us, "free vs torch": torch_us / free, "free vs tuned": tuned / free,
    }  # fmt: skip


RATIOS = ("vs det", "free vs torch", "free vs tuned")


def on_gpu(layers: list[Layer], quick: bool) -> None:
    settings = SETTINGS[:1] if quick else SETTINGS
    columns = (
        "layer", "direction", "dtype", "precision", "impl", "free impl", "error/bound", "us", "free_us", "torch_det_us",
        "torch_us", "tuned_us", *RATIOS,
    )  # fmt: skip
    rows = []
    for kind, (dtype, precision) in itertools.product(dict.fromkeys(layer.kind for layer in layers), settings):
        mine = [layer for layer in layers if layer.kind == kind]
        found = [measure(layer, direction, dtype, precision) for layer in mine for direction in DIRECTIONS]
        print(table(found, columns), flush=True)
        rows += found
    for kind in dict.fromkeys(layer.kind for layer in layers):
        for dtype, precision in settings:
            key = (kind, dtype, precision)
            chosen = [r for r in rows if (r["kind"], r["dtype"], r["precision"]) == key and "vs det" in r]
            for ratio in RATIOS:
                slow = [f"{r['layer']} {r['direction']} {r[ratio]:.2f}" for r in chosen if r[ratio] < 0.97]
                mean = geometric_mean([r[ratio] for r in chosen])
                print(*key, f"{ratio}: geometric mean {mean:.3f}, below 0.97:", ", ".join(slow) or "none")
    print("written to", save("conv_kinds", rows, quick=quick))


def on_cpu(layers: list[Layer]) -> None:
    import torch
    from bench_conv_cpu import least_ms

    rows = []
    for layer in (layer._replace(n=1) for layer in layers):
        for direction in DIRECTIONS:
            arrays = operands(layer, torch.float32, "cpu")
            error = worst(layer, direction, arrays)
            row: dict[str, Any] = {
                "layer": str(layer),
                "kind": layer.kind,
                "direction": direction,
                "error/bound": error,
            }
            row["impl"] = numbadnn.last_call().impl  # type: ignore[union-attr]
            if error is None or not error <= 1:
                rows.append(row | {"ms": "REFUSED"})
                continue
            mine, peer = least_ms((lambda: ours(layer, direction, arrays), lambda: theirs(layer, direction, arrays)))  # noqa: B023
            rows.append(row | {"ms": mine, "torch_ms": peer, "vs torch": peer / mine})
    print(table(rows, ("layer", "direction", "impl", "error/bound", "ms", "torch_ms", "vs torch")))
    for kind in dict.fromkeys(layer.kind for layer in layers):
        ratios = [r["vs torch"] for r in rows if r["kind"] == kind and "vs torch" in r]
        print(kind, f"geometric mean vs torch {geometric_mean(ratios):.3f}")
    print("written to", save("conv_kinds_cpu", rows))


def main() -> None:
    wanted, quick = [a for a in sys.argv[1:] if not a.startswith("-")], "--quick" in sys.argv
    layers = [layer for layer in LAYERS if not wanted or layer.kind in wanted]
    on_cpu(layers) if "--cpu" in sys.argv else on_gpu(layers, quick)


if __name__ == "__main__":
    main()
