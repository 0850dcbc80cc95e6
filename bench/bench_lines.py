"""causal_conv1d, and unshared conv2d in three directions, beside a copy of the same bytes and PyTorch, in one run.

Bytes = each operand once. "of floor" is the time over that of a device copy of as many bytes. PyTorch: a padded conv1d; it has no
unshared convolution, so what its users write: unfold, and a product of matrices for each position. Before a speed is printed, the
result on the arrays that are timed is held against float64 within the bound of direct sums: every element of the first and the
last image (of filters' gradients: filter), and whether all others are finite.
``python bench/bench_lines.py [--only REGEX] [--slice I/N] [--quick]``: some of the cases; their rows replace the former ones.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from typing import Any

from checking import worst_sum
from harness import copy_gbps, device_ms, rotations, save, table

import numbadnn

#: images, channels, steps, filters, taps, dilation, groups
LINES = (
    (8, 512, 4096, 512, 4, 1, 512),
    (8, 1, 160000, 32, 2, 1, 1),
    (8, 1, 1600000, 1, 32, 1, 1),
    (8, 32, 16000, 32, 2, 512, 32),
    (8, 16, 48000, 16, 3, 4, 1),
    (8, 32, 16000, 32, 2, 16, 1),
    (8, 64, 8000, 64, 3, 1, 1),
)
#: images, channels, side, filters, taps, stride, padding
UNSHARED = (
    (32, 32, 32, 32, 3, 1, 1),
    (8, 32, 32, 32, 3, 1, 1),
    (1, 32, 32, 32, 3, 1, 1),
    (32, 32, 64, 32, 3, 1, 1),
    (32, 16, 63, 16, 9, 1, 0),
    (8, 16, 63, 16, 9, 1, 0),
    (8, 16, 55, 16, 7, 2, 0),
)
DTYPES = ("float32", "float16")
Call = Callable[..., Any]


def causal(case: tuple[int, ...], dtype: str) -> tuple[list[Any], Call, Call, int]:
    """(two sets of arrays, ours, PyTorch's, products an element) of one line."""
    import torch

    n, c, steps, k, taps, dilation, groups = case

    def made() -> Any:
        return _normal((n, c, steps), dtype), _normal((k, c // groups, taps), dtype)

    def ours(x: Any, w: Any, **more: Any) -> Any:
        options = {"filter_dilation": dilation, "num_groups": groups, "filter_flip": False}
        return numbadnn.causal_conv1d(x, w, **options, **more)

    def theirs(x: Any, w: Any) -> Any:
        padded = torch.nn.functional.pad(x, ((taps - 1) * dilation, 0))
        return torch.nn.functional.conv1d(padded, w, None, 1, 0, dilation, groups)

    return _sets(made, (n * c + n * k) * steps * (4 if dtype == "float32" else 2)), ours, theirs, c // groups * taps


def unshared(case: tuple[int, ...], direction: str, dtype: str) -> tuple[list[Any], Call, Call, int]:
    """The same of one direction of a layer with a filter for each position."""
    import torch

    n, c, side, k, taps, stride, pad = case
    out = (side + 2 * pad - taps) // stride + 1
    x_shape, w_shape, y_shape = (n, c, side, side), (k, out, out, c, taps, taps), (n, k, out, out)
    shapes = {"forward": (x_shape, w_shape), "grad_inputs": (y_shape, w_shape), "grad_weights": (x_shape, y_shape)}
    options = {"border_mode": pad, "subsample": (stride, stride), "filter_flip": False, "unshared": True}

    def made() -> Any:
        return tuple(_normal(s, dtype) for s in shapes[direction])

    def ours(a: Any, b: Any, **more: Any) -> Any:
        if direction == "forward":
            return numbadnn.conv2d(a, b, **options, **more)
        if direction == "grad_inputs":
            return numbadnn.conv2d_grad_wrt_inputs(a, b, x_shape, **options, **more)
        return numbadnn.conv2d_grad_wrt_weights(a, b, w_shape, **options, **more)

    def theirs(a: Any, b: Any) -> Any:
        unfold = torch.nn.functional.unfold
        if direction == "forward":
            seen, filters = unfold(a, taps, 1, pad, stride), b.reshape(k, out * out, -1)
            return torch.einsum("nml,klm->nkl", seen, filters).reshape(-1, *y_shape[1:])
        if direction == "grad_inputs":
            pieces = torch.einsum("nkl,klm->nml", a.flatten(2), b.reshape(k, out * out, -1))
            return torch.nn.functional.fold(pieces, (side, side), taps, 1, pad, stride)
        seen = unfold(a, taps, 1, pad, stride)
        return torch.einsum("nml,nkl->klm", seen, b.flatten(2)).reshape(-1, *w_shape[1:])

    products = {"forward": c * taps * taps, "grad_inputs": k * taps * taps, "grad_weights": n}[direction]
    size = 4 if dtype == "float32" else 2
    nbytes = sum(torch.Size(s).numel() for s in (x_shape, w_shape, y_shape)) * size
    return _sets(made, nbytes), ours, theirs, products


def _normal(shape: tuple[int, ...], dtype: str) -> Any:
    import torch

    return torch.randn(shape, device="cuda").to(getattr(torch, dtype))


def _sets(made: Callable[[], Any], nbytes: int) -> list[Any]:
    return [made() for _ in range(max(2, rotations(nbytes, most=8)))]


def worst(result: Any, arrays: tuple[Any, Any], theirs: Call, k: int, of_weights: bool) -> float:
    """The largest |error| / bound over the elements of the first and the last image, or filter; inf where any is not finite."""
    import torch

    a, b = arrays
    ends = [0, -1]
    if of_weights:  # y's filters are the gradient's
        result_ends, kept = result[ends], (a, b[:, ends])
    else:
        result_ends, kept = result[ends], (a[ends], b)
    exact, magnitude = theirs(*(e.double() for e in kept)), theirs(*(e.double().abs() for e in kept))
    found = worst_sum(result_ends, exact, magnitude, k)
    return found if found is not None and bool(torch.isfinite(result).all()) else float("inf")


Made = tuple[list[Any], Call, Call, int]


def measure(name: str, dtype: str, made: Made) -> dict[str, Any]:
    sets, ours, theirs, k = made
    first = sets[0]
    result = ours(*first)
    nbytes = sum(a.numel() * a.element_size() for a in (*first, result))
    row: dict[str, Any] = {"case": f"{name} {dtype}", "impl": numbadnn.last_call().impl}  # type: ignore[union-attr]
    row["MB"], row["error/bound"] = nbytes / 1e6, worst(result, first, theirs, k, "grad_weights" in name)
    if not row["error/bound"] <= 1:
        return row | {"us": "REFUSED"}
    row["us"] = 1e3 * device_ms([lambda s=s: ours(*s) for s in sets], 12)
    row["torch"] = 1e3 * device_ms([lambda s=s: theirs(*s) for s in sets], 6)
    row["copy"] = nbytes / copy_gbps(nbytes) / 1e3
    return row | {"of floor": row["us"] / row["copy"], "vs torch": row["torch"] / row["us"]}


def cases(quick: bool) -> Iterator[tuple[str, str, Callable[[], Made]]]:
    """(name, dtype, what makes it)."""
    for dtype in DTYPES[: 1 if quick else 2]:
        for case in LINES:
            n, c, steps, filters, taps, dilation, groups = case
            name = f"causal {n}x{c}x{steps} -> {filters} {taps} taps d{dilation} g{groups}"
            yield name, dtype, lambda case=case, dtype=dtype: causal(case, dtype)
        for case in UNSHARED:
            for direction in ("forward", "grad_inputs", "grad_weights"):
                n, c, side, filters, taps, stride, _ = case
                name = f"unshared {direction} {n}x{c}x{side}x{side} -> {filters} {taps}x{taps} s{stride}"
                yield name, dtype, lambda case=case, d=direction, dtype=dtype: unshared(case, d, dtype)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="causal_conv1d and unshared conv2d beside a copy of the same bytes and PyTorch."
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose names match")
    parser.add_argument("--slice", default="0/1", metavar="I/N", help="every N-th of these, beginning with the I-th")
    parser.add_argument("--quick", action="store_true", help="float32 alone")
    options = parser.parse_args()
    index, count = (int(n) for n in options.slice.split("/"))
    wanted = [c for c in cases(options.quick) if re.search(options.only, f"{c[0]} {c[1]}")][index::count]
    rows = [measure(name, dtype, make()) for name, dtype, make in wanted]
    print(table(rows, ("case", "impl", "error/bound", "MB", "us", "torch", "copy", "of floor", "vs torch")))
    print("written to", save("lines", rows, of="case", quick=options.quick))


if __name__ == "__main__":
    main()
