"""Layers of real networks, three directions: what the dispatcher chooses, Numba alone, cuDNN alone, and PyTorch, side by side.

ResNet-50, VGG-16, MobileNetV2, ResNeXt-50, EfficientNet-B0, a 3-D U-Net and single images; float32 under ieee, tf32, float16
and bfloat16 (float64 when asked); channels first and last. PyTorch runs with ``cudnn.benchmark=True`` and the same
arithmetic allowed; ``--deterministic`` adds a column with ``cudnn.deterministic`` too, which is what our default guarantees:
without it PyTorch takes engines that add with atomics (gradients of float32 filters, by cuDNN's algorithm 0). It also takes
one that cuDNN notes to sum in reduced precision (ResNet's first layer in 16 bits), which auto never does; its error is no
larger than others'. Each result of ours is held against float64 before it is timed (one that fails prints REFUSED); each
launch takes the next of so many sets of operands that none is found in the L2 cache again; times are medians of rounds in
which the four take turns. Processes prepare side by side (``--jobs``), the device is measured by one at a time.

``python bench/bench_layers.py [--quick] [--slice I/N] [--network NAME ...] [--tune]``: a table, geometric means, JSON in
``bench/results``, and a plot of it (``plot_layers.py``). Exit status 3 without a GPU. ``--merge FILE ...`` joins slices.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from layers_report import report, write

import numbadnn
from numbadnn.cases import networks
from numbadnn.gpu import devices
from numbadnn.host import files as stored
from numbadnn.kept import machine
from numbadnn.measuring import workers

CANNOT_RUN = 3
#: name -> dtype and the option fp32_precision
ARITHMETIC = {
    "fp32": ("float32", "ieee"),
    "tf32": ("float32", "tf32"),
    "fp16": ("float16", "ieee"),
    "bf16": ("bfloat16", "ieee"),
    "fp64": ("float64", "ieee"),
}
#: what is measured unless --arithmetic says otherwise
USUAL = ("fp32", "tf32", "fp16", "bf16")
LAYOUTS = ("nchw", "nhwc")
#: what --quick takes first
FIRST = (("fp16", "nhwc"), ("fp32", "nchw"))
BACKENDS = {"auto": None, "numba": "numba", "cudnn": "cudnn"}
QUICK_SECONDS, ROUNDS, LAUNCHES, MOST_SETS = 105.0, 3, 8, 64


class Asked(NamedTuple):
    """One case; ``tune``: measure all candidates before; ``guarantee``: PyTorch with cudnn.deterministic too."""

    layer: networks.Layer
    direction: str
    arithmetic: str
    layout: str
    tune: bool = False
    guarantee: bool = False

    @property
    def problem(self) -> Any:
        return networks.problem(self.layer, self.direction, ARITHMETIC[self.arithmetic][0], self.layout)


def cases(options: argparse.Namespace) -> list[Asked]:
    """Everything asked for; with ``--quick`` every fourth layer in FIRST and every tenth in the rest, shuffled."""
    rest = [(a, layout) for a in ARITHMETIC for layout in LAYOUTS if (a, layout) not in FIRST]
    every = [layer for name in options.network for layer in networks.layers(name)]
    parts = [(FIRST, every[::4]), (rest, every[3::10])] if options.quick else [((*FIRST, *rest), every)]
    found = [
        Asked(layer, direction, arithmetic, layout, options.tune, options.deterministic)
        for settings, some in parts
        for arithmetic, layout in settings
        if arithmetic in options.arithmetic and layout in options.layout
        for layer in some
        for direction in networks.DIRECTIONS
    ]
    if options.quick:
        random.Random(0).shuffle(found)  # so that what the time allows is of everything
    index, count = (int(n) for n in options.slice.split("/"))
    if not 0 <= index < count:
        raise ValueError(f"--slice: expected I/N with I from 0 to N - 1, got {options.slice!r}")
    return found[index::count]


# ---- one case --------------------------------------------------------------------------------------------------------


def measure(asked: Asked, note: workers.Note) -> dict[str, Any]:
    """The row of one case; a process that others run beside takes the device for itself while it uses it."""
    try:
        return _measured(asked, note)
    except Exception as error:  # one case that fails must not end the others
        return {"error": f"{asked.problem}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}


def _measured(asked: Asked, note: workers.Note) -> dict[str, Any]:
    import peers
    import torch
    from harness import rotations

    problem, precision = asked.problem, ARITHMETIC[asked.arithmetic][1]
    row: dict[str, Any] = {
        "network": asked.layer.network, "layer": asked.layer.name, "direction": asked.direction,
        "arithmetic": asked.arithmetic, "layout": asked.layout, "flops": problem.flops, "bytes": problem.bytes,
        "us": {}, "impl": {}, "error/bound": {}, "refused": {},
    }  # fmt: skip
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    alone = machine.lock_name(0)
    with stored.lock_file(alone):
        sets = [peers.operands(problem, n) for n in range(rotations(problem.bytes, most=MOST_SETS))]
        torch.cuda.synchronize()
    plans = _plans(asked, problem, precision, sets[0], row)
    note(", ".join(sorted(set(row["impl"].values()))))
    with stored.lock_file(alone):
        same = _same(plans)
        results = {name: (plan(*sets[0]), plan.executable.arithmetic) for name, plan in plans.items()}
        row["error/bound"] = peers.worst_errors(problem, sets[0], results)
        calls = {
            name: [lambda plan=plan, a=a: plan(*a) for a in sets]
            for name, plan in plans.items()
            if row["error/bound"][name] <= 1
        }
        row["refused"] |= {
            name: f"{worst:.3g} times the bound" for name, worst in row["error/bound"].items() if not worst <= 1
        }
        del results
        theirs = [peers.convolution(problem, a) for a in sets]
        try:
            theirs[0]()
            calls["torch"] = theirs
        except RuntimeError as error:
            row["refused"]["torch"] = str(error).splitlines()[0]
        row["us"] = _side_by_side({name: sets for name, sets in calls.items() if name not in same})
        row["us"] |= {name: row["us"][other] for name, other in same.items() if other in row["us"]}
        if asked.guarantee and "torch" in calls:
            torch.backends.cudnn.deterministic = True
            row["us"] |= _side_by_side({"torch-deterministic": theirs})
            torch.backends.cudnn.deterministic = False
    del sets, calls, theirs
    torch.cuda.empty_cache()
    return row


def _plans(asked: Asked, problem: Any, precision: str, inputs: tuple[Any, ...], row: dict[str, Any]) -> dict[str, Any]:
    """name -> the plan of auto and of each backend; who refuses is noted with the reason."""
    plans = {}
    for name, backend in BACKENDS.items():
        tune = "measure" if asked.tune and backend is None else "cached"
        try:
            with numbadnn.using(fp32_precision=precision, tune=tune):
                plan = numbadnn.plan(getattr(numbadnn, problem.op), *inputs, **problem.keywords, backend=backend)
        except (numbadnn.NotSupportedError, numbadnn.BackendUnavailableError) as error:
            row["refused"][name] = str(error).splitlines()[0]
            continue
        config = machine.configuration(plan.executable)
        engine = f" engine {config['engine']}" if isinstance(config, dict) and "engine" in config else ""
        row["impl"][name] = plan.impl.name + engine
        if name == "auto":
            row["decided_by"] = plan.choice.decided_by.split(",")[0]
        plans[name] = plan
    return plans


def _same(plans: dict[str, Any]) -> dict[str, str]:
    """A backend -> auto, where auto chose the very plan of that backend: one time is measured for both."""

    def identity(plan: Any) -> Any:
        return plan.impl.name, json.dumps(machine.configuration(plan.executable), sort_keys=True)

    if "auto" not in plans:
        return {}
    chosen = identity(plans["auto"])
    return {name: "auto" for name, plan in plans.items() if name != "auto" and identity(plan) == chosen}


def _side_by_side(calls: dict[str, Any]) -> dict[str, float]:
    """Median microseconds of each on the device, all of them in turn, each beginning behind the sets used last."""
    import statistics

    from harness import device_times_ms

    times: dict[str, list[float]] = {name: [] for name in calls}
    used = 0
    for turn in range(ROUNDS):
        for name, sets in calls.items():
            from_here = [sets[(used + i) % len(sets)] for i in range(len(sets))]
            times[name] += device_times_ms(from_here, LAUNCHES, 2 if turn == 0 else 0)
            used += LAUNCHES
    return {name: round(statistics.median(found) * 1e3, 3) for name, found in times.items()}


# ---- all of them -----------------------------------------------------------------------------------------------------


def rows(todo: list[Asked], jobs: int, budget: float | None) -> Iterator[dict[str, Any]]:
    """Each case's row as it is done; none is begun after ``budget`` seconds."""
    begin, left = time.perf_counter(), iter(todo)

    def over() -> bool:
        return budget is not None and time.perf_counter() - begin > budget

    for asked, row in workers.each(left, measure, jobs, over):
        if isinstance(row, workers.Ended):
            print(f"{asked.problem}: {row.why}, at {row.at}")
        elif "error" in row:
            print(row["error"])
        else:
            yield row
    if count := len(list(left)):
        print(f"{count} of {len(todo)} cases left out: the budget of {budget:g} s was spent")


def ceilings(names: Sequence[str]) -> dict[str, float]:
    """GB/s of a large copy, and TFLOP/s of a large matrix product in each arithmetic: the two roofs."""
    from bench_conv import matrix_tflops
    from harness import copy_gbps

    with stored.lock_file(machine.lock_name(0)):
        found = {name: matrix_tflops(*ARITHMETIC[name]) for name in names}
        return {"copy": copy_gbps(1 << 30), **found}


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Layers of real networks: auto, Numba, cuDNN and PyTorch side by side."
    )
    parser.add_argument("--quick", action="store_true", help="fewer layers, in under two minutes")
    parser.add_argument("--slice", default="0/1", metavar="I/N", help="every N-th case, beginning with the I-th")
    parser.add_argument("--network", nargs="+", default=[*networks.NETWORKS], choices=networks.NETWORKS, metavar="NAME")
    parser.add_argument("--arithmetic", nargs="+", default=[*USUAL], choices=ARITHMETIC, metavar="NAME")
    parser.add_argument("--layout", nargs="+", default=[*LAYOUTS], choices=LAYOUTS, metavar="NAME")
    parser.add_argument("--tune", action="store_true", help="measure every candidate first, and keep the fastest")
    parser.add_argument("--deterministic", action="store_true", help="PyTorch with cudnn.deterministic=True as well")
    parser.add_argument("--jobs", type=int, default=8, metavar="N", help="processes that prepare side by side (8)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin no further case after this time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="default: bench/results/GPU_layers.json")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="no runs: print these files as one")
    options = parser.parse_args()
    if options.merge:
        documents = [json.loads(file.read_text()) for file in options.merge]
        found = [row for document in documents for row in document["rows"]]
        return report(options.json, found, documents[0]["ceilings"], documents[0])
    if not devices.gpus():
        print("bench_layers.py needs an NVIDIA GPU: the CUDA driver finds none here", file=sys.stderr)
        return CANNOT_RUN
    todo, begin, roofs = cases(options), time.perf_counter(), ceilings(options.arithmetic)
    budget = QUICK_SECONDS - 15 if options.quick and options.budget is None else options.budget
    found = []
    for row in rows(todo, options.jobs, budget):
        found.append(row)
        if len(found) % 25 == 0:  # as far as it is: a run that is ended has its file
            print(f"{len(found)}/{len(todo)} {time.perf_counter() - begin:.0f} s", flush=True)
            write(options.json, found, roofs)
    status = report(options.json, found, roofs)
    print(f"{len(found)} cases in {time.perf_counter() - begin:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
