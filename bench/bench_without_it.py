"""What each own kernel is worth: every implementation that takes a bench row, timed; and what is lost without each.

Rows are those of ``bench_lines``, ``bench_pool``, ``bench_spatial``, ``bench_depthwise``, ``bench_conv_kinds`` and first and
last layers of networks, and some that no bench has, so that each kernel has a row it takes. Candidates are planned side by side
in processes, timed by one at a time and held against each other (``measuring.tune``), each as its own heuristic has it, and
some as they would be if others did not go first (``without_it_kernels.VARIANTS``). cuDNN stands beside them, for it is chosen
too. Lines are written as rows are done, the most important rows first: a run that is ended has its file.

``python bench/bench_without_it.py --jobs 16 [--budget SECONDS] [--only REGEX]``; ``--dry``, without a GPU: who takes each row.
``--report [--without NAME ...]``: the table of what was measured, and what all of these cost together (``without_it_report``).
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness import RESULTS, commit

from numbadnn.cases import find, networks, parse
from numbadnn.measuring import workers
from numbadnn.problem import Spec
from numbadnn.registry import FAMILY

FILE = RESULTS / "nvidia_h200_without_it.jsonl"
#: as in bench_lines, and other numbers of images, filters and taps
MORE_UNSHARED = (
    (16, 32, 32, 32, 3, 1, 1), (24, 16, 27, 64, 5, 1, 0), (32, 8, 28, 8, 5, 1, 0), (4, 64, 16, 64, 3, 1, 1),
    (64, 32, 32, 32, 3, 1, 1), (2, 16, 63, 16, 9, 1, 0), (32, 16, 55, 16, 7, 2, 0), (32, 128, 14, 128, 1, 1, 0),
)  # fmt: skip
MORE_LINES = (
    (8, 128, 4000, 128, 3, 1, 1),
    (4, 256, 2000, 256, 5, 2, 1),
    (8, 64, 8001, 64, 3, 1, 1),
    (16, 4, 32000, 8, 9, 1, 1),
)
MORE_POOL = (
    ((64, 128, 28, 28), (3, 3), (1, 1), (1, 1), "max"),
    ((32, 96, 57, 57), (5, 5), (2, 2), (2, 2), "max"),
    ((32, 64, 56, 56), (2, 2), (1, 1), (0, 0), "max"),
)
#: images, side, filters, taps (the stride too): patch embeddings of ViT-B/16, ViT-L/14, Swin-T, and ConvNeXt's first layer
PATCHES = ((64, 224, 768, 16), (32, 224, 1024, 14), (64, 224, 96, 4), (256, 224, 96, 4), (1, 224, 768, 16))
#: first and last layers of networks: of and to images of few channels
FEW_CHANNELS = (("resnet50", "conv1"), ("vgg16", "1-1"), ("mobilenetv2", "first"))
OTHERS = tuple(op for op, family in FAMILY.items() if family in ("softmax", "norm", "upsample", "dropout"))
DIRECTIONS = ("", "_grad_wrt_inputs", "_grad_wrt_weights")


class Row(NamedTuple):
    wing: str
    problem: str


def rows() -> Iterator[Row]:
    """The most important first."""
    import bench_depthwise
    import bench_lines
    import bench_pool
    import bench_spatial

    for cases in (bench_lines.UNSHARED, MORE_UNSHARED):
        for dtype in bench_lines.DTYPES:
            yield from (Row("unshared", p) for case in cases for p in unshared(case, dtype))
    for dtype in bench_lines.DTYPES:
        yield from (Row("line", line(case, dtype)) for case in (*bench_lines.LINES, *MORE_LINES))
    overlapping = [layer for layer in (*bench_pool.LAYERS, *MORE_POOL) if layer[1] != layer[2]]
    for op in ("pool_grad", "pool"):
        yield from (Row("pool", p) for layer in (*overlapping, bench_pool.LAYERS[0]) for p in pool(op, layer))
    for shape, points in bench_spatial.SHAPES:
        yield from (Row("spatial", p) for p in sampler(shape, points))
    yield from grouped()
    for network, name in FEW_CHANNELS:
        yield from (Row("image", p) for p in layers_of(network, name, networks.DIRECTIONS[:2]))
    yield from (Row("patches", p) for p in patches())
    for case in bench_depthwise.CASES:
        yield from (Row("depthwise", p) for p in depthwise(case))
    for network in ("resnext50", "resnet50"):
        for layer in networks.layers(network):
            wing = "grouped" if layer.groups > 1 else "conv"
            if wing == "grouped" or network == "resnet50":
                yield from (Row(wing, str(networks.problem(layer, d, "float16", "nhwc"))) for d in networks.DIRECTIONS)
    for op in OTHERS:
        yield from (Row(FAMILY[op], case.text) for case in find([op], "bench"))
    for network, name in (("resnet50", "3b-3x3"), ("resnet50", "4a-1x1"), ("vgg16", "3-2"), ("unet3d", "2a")):
        yield from (Row("conv", p) for p in layers_of(network, name, networks.DIRECTIONS))


def no_bench() -> set[str]:
    """The problems that are here alone."""
    import bench_lines

    found = [p for dtype in bench_lines.DTYPES for case in MORE_UNSHARED for p in unshared(case, dtype)]
    found += [line(case, dtype) for dtype in bench_lines.DTYPES for case in MORE_LINES]
    found += [p for op in ("pool", "pool_grad") for layer in MORE_POOL for p in pool(op, layer)]
    return {str(parse(p)) for p in found}


def conv(x: Any, w: Any, pad: int, stride: int, dtype: str, layout: str = "", groups: int = 1) -> Iterator[str]:
    """The three directions of a convolution of an image."""
    operands = f"x={Spec.of(dtype, x, layout)} w={Spec.of(dtype, w, layout if len(w) == 4 else '')}"
    for direction in DIRECTIONS:
        yield f"conv2d{direction} {operands} pad={pad},{pad},{pad},{pad} stride={stride},{stride} flip=0 groups={groups}"


def unshared(case: tuple[int, ...], dtype: str) -> Iterator[str]:
    n, c, side, k, taps, stride, pad = case
    out = (side + 2 * pad - taps) // stride + 1
    return conv((n, c, side, side), (k, out, out, c, taps, taps), pad, stride, dtype)


def line(case: tuple[int, ...], dtype: str) -> str:
    n, c, steps, k, taps, dilation, groups = case
    operands = f"x={dtype}:{n}x{c}x1x{steps} w={dtype}:{k}x{c // groups}x1x{taps}"
    return f"causal_conv1d {operands} pad=0,0,{(taps - 1) * dilation},0 dilation=1,{dilation} flip=0 groups={groups}"


def pool(op: str, layer: tuple[Any, ...]) -> Iterator[str]:
    import bench_pool

    _, *parameters, mode = layer
    window, stride, pad = ("x".join(map(str, values)) for values in parameters)
    for dtype in ("float32", "float16"):
        for layout in ("", "nhwc"):
            x = Spec.of(dtype, bench_pool.batched(dtype, layer), layout)
            yield f"{op} x={x} window={window} stride={stride} pad={pad} mode={mode}"


def sampler(shape: tuple[int, ...], points: tuple[int, int]) -> Iterator[str]:
    n, c = shape[:2]
    for dtype in ("float32", "float16"):
        for layout in ("", "nhwc"):
            img, dy = Spec.of(dtype, shape, layout), Spec.of(dtype, (n, c, *points), layout)
            grid = Spec.of(dtype, (n, *points, 2))
            yield f"spatialtf_sampler img={img} grid={grid} y={dy}"
            yield f"spatialtf_sampler_grad img={img} grid={grid} dy={dy}"


def grouped() -> Iterator[Row]:
    import bench_conv_kinds

    for layer in bench_conv_kinds.LAYERS:
        if layer.kind != "grouped":
            continue
        x, w = (layer.n, layer.c, *layer.size), (layer.k, layer.c // layer.groups, *layer.taps)
        for dtype, layout in (("float16", "nhwc"), ("float32", "")):
            yield from (Row("grouped", p) for p in conv(x, w, layer.pad, layer.stride, dtype, layout, layer.groups))


def depthwise(case: tuple[Any, ...]) -> Iterator[str]:
    n, c, side, taps, stride, dtype, last = case
    return conv((n, c, side, side), (c, 1, taps, taps), taps // 2, stride, dtype, "nhwc" if last else "", c)


def patches() -> Iterator[str]:
    for n, side, filters, taps in PATCHES:
        for dtype, layout in (("float16", "nhwc"), ("float16", ""), ("float32", "")):
            x, w = (n, 3, side, side), (filters, 3, taps, taps)
            yield next(conv(x, w, 0, taps, dtype, layout))


def layers_of(network: str, name: str, directions: tuple[str, ...]) -> Iterator[str]:
    (layer,) = (found for found in networks.layers(network) if found.name == name)
    for dtype, layout in (("float16", "nhwc"), ("float32", "nchw")):
        yield from (str(networks.problem(layer, d, dtype, layout)) for d in directions)


# ---- one row


def candidates(wing: str, problem: Any, policy: Any) -> list[Any]:
    """Whoever takes the problem, and those that would if others did not go first; each as its heuristic has it alone."""
    import dataclasses

    from without_it_kernels import SLOW, SLOW_THERE, variants

    from numbadnn import config
    from numbadnn.call.candidates import Candidates

    asked, slow = Candidates(problem, policy, config.current()), (*SLOW, *SLOW_THERE.get(wing, ()))
    taking = [i for i in asked.ordered() if i.name not in slow and not asked.reason(i, named=True)]
    return [*(dataclasses.replace(i, space=None) for i in taking), *variants(problem, policy)]


def measure(row: Row, note: workers.Note) -> dict[str, Any]:
    from numbadnn.call.select import policy_in_force
    from numbadnn.measuring import tune

    begin, problem = time.perf_counter(), parse(row.problem)
    found: dict[str, Any] = {"wing": row.wing, "problem": str(problem), "us": {}, "chosen": "", "refused": {}}
    try:
        policy = policy_in_force(problem.op, 0)
        taking = candidates(row.wing, problem, policy)
        found["chosen"] = taking[0].name if taking else ""
        outcome = tune.measure(problem, policy, taking, [i.name for i in taking], 1e6, at=note)
        for candidate in outcome.candidates:
            if candidate.time_us is None:
                found["refused"][candidate.impl] = candidate.reason
            else:
                found["us"][candidate.impl] = round(candidate.time_us, 3)
        found["waited"] = round(time.perf_counter() - begin - outcome.seconds, 1)
    except Exception as error:  # one row that fails must not end the others
        found["error"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return found | {"seconds": round(time.perf_counter() - begin, 1)}


def run(wanted: list[Row], jobs: int, budget: float, file: Path) -> None:
    begin = time.perf_counter()
    with file.open("a") as out:
        print(json.dumps({"commit": commit()}), file=out, flush=True)
        for row, found in workers.each(iter(wanted), measure, jobs, lambda: time.perf_counter() - begin > budget):
            if isinstance(found, workers.Ended):
                found = {"wing": row.wing, "problem": row.problem, "error": f"{found.why}, at {found.at}"}
            print(json.dumps(found), file=out, flush=True)


def dry(wanted: list[Row]) -> None:
    """Who takes each row on an H200, without a GPU."""
    from unittest.mock import patch

    from numbadnn.gpu import driver
    from numbadnn.problem import Policy

    with patch.object(driver, "compute_capability", lambda device: (9, 0)):
        for row in wanted:
            names = [i.name.removeprefix("numba.") for i in candidates(row.wing, parse(row.problem), Policy(device=0))]
            print(f"{row.wing} {row.problem}\n    {', '.join(names)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="What is lost without each own kernel.")
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="rows that match: a wing, a blank, a problem's line"
    )
    parser.add_argument("--jobs", type=int, default=8, metavar="N", help="processes that prepare side by side (8)")
    parser.add_argument(
        "--budget", type=float, default=1e9, metavar="SECONDS", help="begin no further row after this time"
    )
    parser.add_argument(
        "--json", type=Path, default=FILE, metavar="FILE", help=f"default: {FILE.name} in bench/results"
    )
    parser.add_argument("--dry", action="store_true", help="no times: rows, and who takes them")
    parser.add_argument("--report", action="store_true", help="no times: the table of what was measured")
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME", help="with --report: all of these left out")
    options = parser.parse_args()
    wanted = [row for row in rows() if re.search(options.only, f"{row.wing} {row.problem}")]
    if options.report:
        from without_it_report import report

        print(report(options.json, options.without, no_bench()))
    elif options.dry:
        dry(wanted)
    else:
        run(wanted, options.jobs, options.budget, options.json)


if __name__ == "__main__":
    main()
