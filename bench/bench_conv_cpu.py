"""conv2d on the CPU beside PyTorch's: the layers of ResNet-50, float32, four images, three directions, channels first and last.

Both use all cores they are given and allocate their output; calls alternate and the least time of each counts, so that
what else the machine does hurts both alike. The limit is a large matrix product by PyTorch's BLAS. Every element is held
against numbadnn.reference before a speed is printed; a case that fails prints REFUSED.
``python bench/bench_conv_cpu.py [--quick] [--one-core]``; ``--one-core``: both on one thread, in processor time, which other
programs disturb little.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

from bench_conv import DIRECTIONS, RESNET50, operands, pair
from harness import geometric_mean, save, table

import numbadnn
from numbadnn.measuring.stage import asleep
from numbadnn.problems.conv import ConvProblem
from numbadnn.validate.oracle import Trial

IMAGES = 4
ONE = "--one-core" in sys.argv


def least_ms(
    calls: tuple[Callable[[], Any], ...], seconds: float = 0.6, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """The least milliseconds of each call, taken in turn for about ``seconds`` and at least five rounds."""
    for call in calls:
        call()
    best, start, rounds = [float("inf")] * len(calls), clock(), 0
    while rounds < 5 or (clock() - start < seconds and rounds < 200):
        for i, call in enumerate(calls):
            asleep()
            begun = clock()
            call()
            best[i] = min(best[i], (clock() - begun) * 1e3)
        rounds += 1
    return best


def measure(layer: tuple[Any, ...], direction: str, last: bool, limit: float) -> dict[str, Any]:
    """``last``: whether channels are neighbours, of the filters too."""
    import torch

    arrays = operands(layer, IMAGES, torch.float32, last, "cpu")
    ours, theirs = pair(direction, layer, arrays)
    result = ours()
    ran = numbadnn.last_call()
    assert ran is not None
    problem = ConvProblem.parse(ran.problem)
    named = dict(zip("xwy", arrays, strict=True))
    inputs = {"forward": "xw", "grad_inputs": "yw", "grad_weights": "xy"}[direction]
    worst = Trial(problem, tuple(named[n].numpy() for n in inputs)).compare(result.numpy(), ran.arithmetic).worst
    row = {"layer": layer[0], "layout": "nhwc" if last else "nchw", "direction": direction}
    row |= {"impl": ran.impl, "error/bound": worst}
    if not worst <= 1:
        return row | {"GFLOP/s": "REFUSED"}
    ours_ms, torch_ms = least_ms((ours, theirs), clock=time.thread_time if ONE else time.perf_counter)
    rate = problem.flops / ours_ms / 1e6
    return row | {
        "ms": ours_ms, "torch_ms": torch_ms, "GFLOP/s": rate, "torch GFLOP/s": problem.flops / torch_ms / 1e6,
        "vs torch": torch_ms / ours_ms, "of limit": rate / limit,
    }  # fmt: skip


def main() -> None:
    import torch

    torch.set_grad_enabled(False)
    if ONE:
        torch.set_num_threads(1)
        numbadnn.set_options(threads=1)
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    limit = 2 * 2048**3 / least_ms((lambda: a @ b,))[0] / 1e6
    rows, quick = [], "--quick" in sys.argv
    layers = RESNET50[::4] if quick else RESNET50
    for last, layer, direction in itertools.product((False, True), layers, DIRECTIONS):
        rows.append(measure(layer, direction, last, limit))
        path = save("conv_one_core" if ONE else "conv_cpu", rows, images=IMAGES, quick=quick)
    print(
        table(
            rows,
            (
                "layer",
                "layout",
                "direction",
                "impl",
                "error/bound",
                "ms",
                "GFLOP/s",
                "torch GFLOP/s",
                "vs torch",
                "of limit",
            ),
        )
    )
    for layout, direction in itertools.product(("nchw", "nhwc"), (*DIRECTIONS, "")):
        chosen = [r for r in rows if r["layout"] == layout and r["direction"].startswith(direction) and "vs torch" in r]
        mean = geometric_mean([r["vs torch"] for r in chosen])
        # where PyTorch is slow for a reason of its own, our ratio says little about us
        plain = geometric_mean([r["vs torch"] for r in chosen if r["vs torch"] < 2])
        print(
            f"{layout} {direction or 'all directions'}: geometric mean vs torch {mean:.3f}; without ratios above 2: {plain:.3f}"
        )
    print(f"matrix product {limit:.0f} GFLOP/s, {torch.get_num_threads()} threads; written to", path)


if __name__ == "__main__":
    main()
