"""What moves bytes on the CPU, beside PyTorch: softmax, pooling, batch norm, bilinear upsampling, spatial transformer, dropout.

GB/s of each input read once and each output written once (batch norm's training reads twice: counted so), on 8x64x112x112
float32 and float16, both layouts. Calls alternate and the least time of each counts, so that
what else the machine does hurts both alike; a copy of the same bytes is the limit. The arrays that are timed are held
against numbadnn.reference before a speed is printed; a case that fails prints REFUSED.
``python bench/bench_memory_cpu.py [--one-core] [family ...]``; ``--one-core``: both on one thread, in processor time, which
other programs disturb little; with families (softmax, pool ...) their rows alone are measured and replaced in the results.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bench_conv_cpu import least_ms
from bench_pool import torch_forward
from harness import geometric_mean, save, table

import numbadnn
from numbadnn import cases
from numbadnn.validate.oracle import Trial

SHAPE = (8, 64, 112, 112)


class Call(NamedTuple):
    """``ours`` and ``theirs`` allocate their results; ``passes`` are the arrays that must move."""

    case: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    inputs: tuple[Any, ...]
    passes: tuple[Any, ...]


def softmax(make: Callable[..., Any]) -> Iterator[Call]:
    import torch

    backward = torch.ops.aten._softmax_backward_data
    shapes: list[tuple[tuple[int, ...], str]] = [(SHAPE, "")]
    if make(1, 2, 2, 2).is_contiguous():  # rows have one layout
        shapes.append(((4096, 1000), " of rows"))
    for shape, name in shapes:
        x, dy = make(*shape), make(*shape)
        y = torch.empty_like(x).copy_(torch.softmax(x, 1))  # in the layout of x, as every operand of the gradient is
        yield Call(f"softmax{name}", lambda: numbadnn.softmax(x), lambda: torch.softmax(x, 1), (x,), (x, y))  # noqa: B023
        yield Call(
            f"softmax_grad{name}",
            lambda: numbadnn.softmax_grad(dy, y),  # noqa: B023
            lambda: backward(dy, y, 1, x.dtype),  # noqa: B023
            (dy, y),
            (dy, y, x),
        )


def pool(make: Callable[..., Any]) -> Iterator[Call]:
    import torch

    n, c, h, w = SHAPE
    for shape, ws, stride, pad, mode in (
        (SHAPE, (2, 2), (2, 2), (0, 0), "max"),
        (SHAPE, (3, 3), (2, 2), (1, 1), "max"),
        (SHAPE, (2, 2), (2, 2), (0, 0), "average_inc_pad"),
        (SHAPE, (3, 3), (2, 2), (1, 1), "average_exc_pad"),
        ((n, c // 4, 16, h // 2, w // 2), (2, 2, 2), (2, 2, 2), (0, 0, 0), "max"),
    ):
        x = make(*shape)
        forward = torch_forward(mode, ws, stride, pad)
        y = numbadnn.pool(x, ws, stride, mode, pad)
        dy = make(*y.shape)
        name = f"{mode} {'x'.join(map(str, ws))}"
        given = (ws, stride, mode, pad)
        yield Call(f"pool {name}", lambda: numbadnn.pool(x, *given), lambda: forward(x), (x,), (x, y))  # noqa: B023
        with torch.enable_grad():
            leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
            result = forward(leaf)
        yield Call(
            f"pool_grad {name}",
            lambda: numbadnn.pool_grad(x, y, dy, *given),  # noqa: B023
            lambda: torch.autograd.grad(result, leaf, dy, retain_graph=True),  # noqa: B023
            (x, y, dy),
            (x, dy, x) if mode == "max" else (dy, x),
        )

        def theirs() -> Any:
            with torch.enable_grad():
                return torch.autograd.grad(forward(leaf), leaf, dy)  # noqa: B023

        if mode == "max":  # PyTorch's forward keeps for the gradient where each maximum was, ours does not
            yield Call(
                f"pool+pool_grad {name}",
                lambda: numbadnn.pool_grad(x, numbadnn.pool(x, *given), dy, *given),  # noqa: B023
                theirs,
                (x, y, dy),
                (x, y, x, dy, x),
            )


def norm(make: Callable[..., Any]) -> Iterator[Call]:
    import torch

    x, dy = make(*SHAPE), make(*SHAPE)
    gamma, beta, var = torch.rand(1, 64, 1, 1) + 0.5, torch.randn(1, 64, 1, 1), torch.rand(1, 64, 1, 1) + 0.5
    y, mean, invstd, *_ = numbadnn.batch_normalization_train(x, gamma, beta, "spatial")
    g, b, v, m, i = (a.ravel() for a in (gamma, beta, var, mean, invstd))
    forward, backward = torch.ops.aten.native_batch_norm, torch.ops.aten.native_batch_norm_backward
    yield Call(
        "batch_normalization_train", lambda: numbadnn.batch_normalization_train(x, gamma, beta, "spatial"),
        lambda: forward(x, g, b, None, None, True, 0.1, 1e-4), (x, gamma, beta), (x, x, y),
    )  # fmt: skip
    yield Call(
        "batch_normalization_test", lambda: numbadnn.batch_normalization_test(x, gamma, beta, mean, var, "spatial"),
        lambda: forward(x, g, b, m, v, False, 0.1, 1e-4), (x, gamma, beta, mean, var), (x, y),
    )  # fmt: skip
    yield Call(
        "batch_normalization_train_grad",
        lambda: numbadnn.batch_normalization_train_grad(x, dy, gamma, mean, invstd, "spatial"),
        lambda: backward(dy, x, g, None, None, m, i, True, 1e-4, [True] * 3), (x, dy, gamma, mean, invstd),
        (x, dy, x, dy, x),
    )  # fmt: skip


def upsampling(make: Callable[..., Any]) -> Iterator[Call]:
    import torch

    n, c, h, w = SHAPE
    backward = torch.ops.aten.upsample_bilinear2d_backward
    for r in (2, 3):
        x, dy = make(n, c, h // r, w // r), make(n, c, h // r * r, w // r * r)
        yield Call(
            f"bilinear_upsampling {r}x", lambda: numbadnn.bilinear_upsampling(x, r),  # noqa: B023
            lambda: torch.nn.functional.interpolate(x, scale_factor=r, mode="bilinear"), (x,), (x, dy),  # noqa: B023
        )  # fmt: skip
        yield Call(
            f"bilinear_upsampling_grad {r}x", lambda: numbadnn.bilinear_upsampling_grad(dy, x.shape, r),  # noqa: B023
            lambda: backward(dy, dy.shape[2:], x.shape, False, None, None), (dy,), (x, dy),  # noqa: B023
        )  # fmt: skip


def spatial(make: Callable[..., Any]) -> Iterator[Call]:
    import torch

    img, dy = make(*SHAPE), make(*SHAPE)
    s, c = math.sin(0.2), math.cos(0.2)
    theta = torch.tensor([[c, -s, 0.0], [s, c, 0.0]], dtype=img.dtype).repeat(SHAPE[0], 1, 1)
    grid = numbadnn.spatialtf_grid(theta, img.shape)
    sample, backward = torch.nn.functional.grid_sample, torch.ops.aten.grid_sampler_2d_backward
    yield Call(
        "spatialtf_sampler", lambda: numbadnn.spatialtf_sampler(img, grid),
        lambda: sample(img, grid, align_corners=True), (img, grid), (img, grid, dy),
    )  # fmt: skip
    yield Call(
        "spatialtf_sampler_grad", lambda: numbadnn.spatialtf_sampler_grad(img, grid, dy),
        lambda: backward(dy, img, grid, 0, 0, True, [True, True]), (img, grid, dy), (img, grid, dy, img, grid),
    )  # fmt: skip


def dropout(make: Callable[..., Any]) -> Iterator[Call]:
    import torch

    x = make(*SHAPE)
    yield Call("dropout", lambda: numbadnn.dropout(x, 0.1), lambda: torch.native_dropout(x, 0.1, True), (), (x, x))


FAMILIES = (softmax, pool, norm, upsampling, spatial, dropout)


def worst(call: Call) -> float:
    """The largest |error| / bound over all elements of all results."""
    results = call.ours()
    ran = numbadnn.last_call()
    assert ran is not None
    problem = cases.parse(ran.problem)
    if not call.inputs:
        return 0.0 if bool(results[0].isfinite().all()) else math.inf  # dropout's bits are the contract's to check
    results = results if isinstance(results, tuple) else (results,)
    arrays = tuple(a.numpy() for a in results[: len(problem.outputs)])
    return float(Trial(problem, tuple(a.numpy() for a in call.inputs)).compare(arrays, ran.arithmetic).worst)


def measure(call: Call, dtype: str, last: bool) -> dict[str, Any]:
    import torch

    error = worst(call)
    ran = numbadnn.last_call()
    assert ran is not None
    row: dict[str, Any] = {
        "case": f"{call.case} {dtype}{' nhwc' if last else ''}", "impl": ran.impl, "error/bound": error,
    }  # fmt: skip
    if not error <= 1:
        return row | {"GB/s": "REFUSED"}
    moved = sum(a.numel() * a.element_size() for a in call.passes)
    source = torch.empty(moved // 2, dtype=torch.uint8)
    target = torch.empty_like(source)
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    ours, theirs, copy = least_ms((call.ours, call.theirs, lambda: target.copy_(source)), 0.5, clock)
    return row | {
        "ms": ours, "torch_ms": theirs, "GB/s": moved / ours / 1e6, "torch GB/s": moved / theirs / 1e6,
        "copy GB/s": moved / copy / 1e6, "of copy": copy / ours, "vs torch": theirs / ours,
    }  # fmt: skip


def main() -> None:
    import torch

    torch.set_grad_enabled(False)
    if one := "--one-core" in sys.argv:
        torch.set_num_threads(1)
        numbadnn.set_options(threads=1)
    wanted, rows = [a for a in sys.argv[1:] if not a.startswith("-")], []
    for family in FAMILIES:
        if wanted and family.__name__ not in wanted:
            continue
        for dtype in ("float32", "float16"):
            for last in (False, True):

                def make(*shape: int, dtype: str = dtype, last: bool = last) -> Any:
                    layout: Any = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
                    array = torch.randn(shape, dtype=getattr(torch, dtype))
                    return array.to(memory_format=layout) if last else array

                rows += [measure(call, dtype, last) for call in family(make)]
                save("memory_one_core" if one else "memory_cpu", rows, of="case" if wanted else "")
        print(f"{family.__name__}: done", file=sys.stderr, flush=True)
    columns = (
        "case",
        "impl",
        "error/bound",
        "ms",
        "torch_ms",
        "GB/s",
        "torch GB/s",
        "copy GB/s",
        "of copy",
        "vs torch",
    )
    print(table(rows, columns))
    timed = [r for r in rows if "vs torch" in r]
    print("geometric mean vs torch", round(geometric_mean([r["vs torch"] for r in timed]), 2))
    print("below PyTorch:", ", ".join(f"{r['case']} {r['vs torch']:.2f}" for r in timed if r["vs torch"] < 1) or "none")


if __name__ == "__main__":
    main()
