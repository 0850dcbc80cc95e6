"""Is what a cuDNN implementation admits ever refused by the library? Layouts, dtypes, sizes and dilations of every operation.

    python tests/support/cudnn_sweep.py --seconds 100 [--op pool_grad] [--seed 0]

Each problem that ``supports`` admits is planned and run once on a GPU. An error is a failure, and so is a plan that is refused.
The last lines count problems by (operation, layout, dtype), those that failed first. Exit status: 1 where one failed.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

from numbadnn import cases
from numbadnn.cases.layouts import operand
from numbadnn.errors import NumbaDNNError, is_lack_of_memory
from numbadnn.problem import Policy, Spec
from numbadnn.registry import FAMILY, Impl, implementations
from numbadnn.validate.execute import execute
from numbadnn.validate.oracle import Trial

LAYOUTS = ("", "nhwc", "rows", "steps", "transposed", "reversed", "broadcast", "unaligned")
DTYPES = ("float32", "float16", "bfloat16", "float64")

#: problem lines, T the dtype; gradients of the same shapes are made of them
LINES = {
    "softmax": ("x=T:2x5", "x=T:3x10x6 algo=log", "x=T:2x5x4x6 mode=instance", "x=T:2x3x2x4x3", "x=T:1x1x5x6", "x=T:3x1x1x1",
                "x=T:70000x3", "x=T:2x70000 algo=log", "x=T:1x2x70000"),
    "pool": ("x=T:2x8x9x8 window=3x3 stride=2x2 pad=1x1 mode=M", "x=T:1x1x5x6 window=2x3 mode=M", "x=T:2x3x1x1 window=1x1 mode=M",
             "x=T:1x2x4x8x8 window=2x3x2 stride=1x2x2 pad=1x1x0 mode=M", "x=T:70000x1x2x2 window=2x2 mode=M",
             "x=T:1x70000x2x3 window=2x2 stride=1x1 mode=M", "x=T:1x2x300x40 window=130x7 stride=129x1 pad=100x0 mode=M"),
    "batch_normalization_train": ("x=T:4x6x5x3 mode=B gamma=P:S", "x=T:8x4x1x1 mode=B gamma=P:S",
                                  "x=T:2x3x2x4x4 mode=B gamma=P:S",
                                  "x=T:9x7 mode=B gamma=P:S", "x=T:1x3x4x4 mode=B gamma=P:S", "x=T:70000x2x1x2 mode=B gamma=P:S",
                                  "x=T:2x70000x2x1 mode=B gamma=P:S", "x=T:65536x1x2x1 mode=B gamma=P:S"),
    "spatialtf_grid": ("theta=T:3x2x3 grid=T:3x4x6x2", "theta=T:70000x2x3 grid=T:70000x2x2x2"),
    "spatialtf_sampler": ("img=T:2x3x5x9 grid=T:2x4x6x2", "img=T:1x1024x3x4 grid=T:1x2x2x2", "img=T:2x3x1x1 grid=T:2x3x3x2",
                          "img=T:70000x1x2x2 grid=T:70000x2x1x2"),
    "conv2d": tuple(
        f"x=T:{x} w=T:{w} pad={pad} stride={stride} dilation={step} groups={groups} flip={flip}"
        for (x, w, groups), (pad, stride, step), flip in itertools.product(
            (
                ("2x8x11x12", "16x8x3x3", 1),
                ("2x8x11x12", "8x1x3x2", 8),
                ("1x3x9x10", "4x3x1x1", 1),
                ("2x16x9x9", "16x4x2x1", 4),
            ),
            (
                ("1,1,1,1", "1,1", "1,1"),
                ("2,1,0,3", "2,3", "1,2"),
                ("1000,1000,1,1", "1,1", "1000,1"),
                ("1001,999,0,0", "1,1", "1000,1"),
                ("131072,131072,0,0", "1000,1", "131072,1"),
                ("131072,0,0,0", "131072,1", "131072,1"),
            ),
            (0, 1),
        )
    ),
    "conv3d": ("x=T:2x8x6x7x8 w=T:8x8x3x3x3 pad=1,1,1,1,1,1",
               "x=T:2x4x6x7x8 w=T:6x2x2x3x1 pad=1,1,0,2,0,0 stride=2,1,2 groups=2"),
    "dropout": ("x=T:2x8x5x6 p=0.25 generator=cudnn", "x=T:70000 p=0.5 generator=cudnn"),
}  # fmt: skip
MODES = {"M": ("max", "average_inc_pad", "average_exc_pad"), "B": ("spatial", "per-activation")}


def problems(op: str, dtype: str) -> Iterator[Any]:
    """Packed problems of an operation, and of what the contract has."""
    forward = op.replace("_grad_wrt_inputs", "").replace("_grad_wrt_weights", "").removesuffix("_grad")
    base = forward.replace("normalization_test", "normalization_train")
    for line in LINES.get(base, ()):
        for mode in MODES["M" if "mode=M" in line else "B"] if "mode=" in line and "=instance" not in line else ("",):
            text = line.replace("mode=M", f"mode={mode}").replace("mode=B", f"mode={mode}")
            yield from _parsed(op, text, dtype)
    for case in cases.find([op], tag="contract"):
        problem = case.problem()
        if problem.output.dtype == dtype:
            yield problem


def _parsed(op: str, text: str, dtype: str) -> Iterator[Any]:
    """The problem of a line, for a gradient with the operands that it has; lines that do not describe it are left out."""
    shape = tuple(int(n) for n in text.split("T:")[1].split()[0].split("x"))
    if "gamma=P:S" in text:
        kept = shape[1:] if "mode=per" in text else (shape[1], *[1] * (len(shape) - 2))
        text = text.replace("P:S", f"{'float64' if dtype == 'float64' else 'float32'}:{'x'.join(map(str, (1, *kept)))}")
    for line in (f"{op} {text}", f"{op} d{text}", f"{op} {text.replace('x=', 'dy=', 1)} "):
        try:
            yield cases.parse(line.replace("T:", f"{dtype}:"))
            return
        except (ValueError, TypeError, KeyError):
            continue


def operands(problem: Any) -> list[tuple[str, int, Spec]]:
    """(field, place in it or -1, spec) of every operand that a problem holds."""
    found = []
    for field in dataclasses.fields(problem):
        value = getattr(problem, field.name)
        if isinstance(value, Spec):
            found.append((field.name, -1, value))
        elif isinstance(value, tuple) and value and all(isinstance(v, Spec) for v in value):
            found += [(field.name, n, v) for n, v in enumerate(value)]
    return found


def laid_out(problem: Any, chosen: dict[tuple[str, int], str]) -> Any:
    """The problem with these layouts of its operands; results lie in no memory twice."""
    changed: dict[str, Any] = {}
    for name, place, spec in operands(problem):
        layout = chosen.get((name, place))
        if layout is None or len(spec.shape) < 2:
            continue
        made = operand(spec.dtype, spec.shape, layout, any(spec is o for o in problem.outputs))
        if place < 0:
            changed[name] = made
        else:
            parts = list(changed.get(name, getattr(problem, name)))
            parts[place] = made
            changed[name] = tuple(parts)
    return dataclasses.replace(problem, **changed)


def variants(problem: Any, rng: random.Random) -> Iterator[tuple[str, Any]]:
    """The same in one layout, with one operand in another, and with each in one of its own."""
    names = [(name, place) for name, place, _ in operands(problem)]
    yield "packed", problem
    for layout in LAYOUTS[1:]:
        yield layout, laid_out(problem, dict.fromkeys(names, layout))
        other = rng.choice(names)
        yield f"one {layout}", laid_out(problem, {other: layout})
    yield "mixed", laid_out(problem, {name: rng.choice(LAYOUTS) for name in names})


def impls_of(op: str) -> list[Impl]:
    return [impl for impl in implementations(op) if impl.backend == "cudnn"]


def attempt(impl: Impl, problem: Any, policy: Policy) -> str:
    """ "" where it ran, else what went wrong; "refused" and "memory" are no failures."""
    try:
        if impl.supports(problem, policy):
            return "refused"
    except NumbaDNNError as error:
        return "refused" if type(error).__name__ == "DeterminismError" else f"supports: {type(error).__name__}: {error}"
    try:
        trial = Trial.of(problem)
        execute(impl, problem, policy, trial.inputs, trial.old, 1)
    except Exception as error:
        return "memory" if is_lack_of_memory(error) else f"{type(error).__name__}: {error}"
    return ""


def sweep(op: str, seconds: float, seed: int = 0) -> tuple[collections.Counter[tuple[str, str, str, str]], list[str]]:
    """Counts by (implementation, layout, dtype, result), and each failure in words; for so long at most."""
    from numbadnn.gpu.context import ensure_context

    rng, counts, failures = random.Random(seed), collections.Counter(), []
    todo = [(dtype, problem) for dtype in DTYPES for problem in problems(op, dtype)]
    rng.shuffle(todo)
    algos = (
        ("auto", "none", "small", "fft", "winograd_non_fused", "guess_on_shape_change")
        if FAMILY[op] == "conv"
        else ("auto",)
    )
    end = time.monotonic() + seconds
    with ensure_context(0):
        for dtype, problem in todo:
            for layout, changed in variants(problem, rng):
                if time.monotonic() > end:
                    return counts, failures
                for impl in impls_of(op):
                    policy = Policy(
                        0, "not_guaranteed", algo=rng.choice(algos) if impl.name == "cudnn.algorithms" else "auto"
                    )
                    found = attempt(impl, changed, policy)
                    result = found if found in ("", "refused", "memory") else "FAILED"
                    counts[impl.name, layout, dtype, result] += 1
                    if result == "FAILED":
                        failures.append(f"{impl.name} {layout} {policy.algo}: {changed}: {found[:300]}")
    return counts, failures


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--op", action="append")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ops = options.op or [op for op in FAMILY if impls_of(op)]
    failed = 0
    for op in ops:
        counts, failures = sweep(op, options.seconds / len(ops), options.seed)
        total = collections.Counter[str]()
        for (*_, result), n in counts.items():
            total[result or "ran"] += n
        print(f"{op}: {dict(total)}", flush=True)
        for (impl, layout, dtype, result), n in sorted(counts.items()):
            if result == "FAILED":
                print(f"  refused by the library after yes: {impl} {op} {layout} {dtype}: {n}")
        for line in failures[:6]:
            print(f"    {line}")
        failed += len(failures)
    print(f"{failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
