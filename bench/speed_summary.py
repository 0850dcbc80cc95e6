"""The speeds of README.md and docs/reference/speed.md, from ``results/``: tables in Markdown, and the picture docs/speed.svg.

A ratio is PyTorch's time over ours in the same run: above 1 ours is faster. ``python bench/speed_summary.py`` prints the tables
and draws the picture; a test compares the pages with ``table``.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
GPU, XEON, EPYC = "nvidia_h200", "intel_r_xeon_r_processor_2_threads", "amd_epyc_2_threads"
MACHINES = {GPU: "H200", XEON: "Xeon, 2 threads", EPYC: "EPYC, 2 threads"}
#: how far from 1 two times lie that are the same: what the layers of the bench repeat to
EQUAL = 0.03

Row = dict[str, Any]


class Group(NamedTuple):
    """The cases of one line: those of ``sections`` that ``admits`` takes. ``against`` is what ours is held against."""

    what: str
    machine: str
    sections: tuple[str, ...]
    admits: Callable[[Row], bool] = lambda row: True
    against: str = "vs torch"
    #: the layers of networks are in a file of their own
    file: str = ""

    def ratios(self) -> list[float]:
        rows = (row for section in self.sections for row in rows_of(self.file or self.machine, section))
        return [ratio for row in rows if self.admits(row) for ratio in ratios_of(row, self.against)]


@functools.cache
def document(file: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{file}.json").read_text())


def rows_of(file: str, section: str) -> list[Row]:
    return document(file)["rows"] if section in ("layers", "random") else document(file)[section]["rows"]


def ratios_of(row: Row, against: str) -> Iterator[float]:
    """The other's time over ours; of a recurrent network one for each pass, of a layer of a network under ``us``."""
    if against == "torch":
        yield row["us"]["torch"] / row["us"]["auto"]
    elif against == "cudnn":
        if row["us"].get("cudnn") and row["us"].get("numba"):
            yield row["us"]["cudnn"] / row["us"]["numba"]
    elif against == "benchmark":
        yield row["torch benchmark"] / row["auto_us"]
    elif against == "passes":
        yield from (row["torch fwd ms"] / row["fwd ms"], row["torch bwd ms"] / row["bwd ms"])
    elif row.get(against):
        yield row[against]


def named(*operations: str) -> Callable[[Row], bool]:
    return lambda row: row["case"].split()[0] in operations


def of(**values: Any) -> Callable[[Row], bool]:
    return lambda row: all(row.get(key) == value for key, value in values.items())


MEMORY = ("softmax", "pool", "norm", "upsample", "spatial")

#: the lines of the README and of the picture
FRONT = (
    Group(
        "convolutions, layers of seven networks, after `tune`", GPU, ("layers",), against="torch", file=f"{GPU}_layers"
    ),
    Group("convolutions, layers of ResNet-50, untuned", GPU, ("conv",), against="vs det"),
    Group("softmax, pooling, batch norm, dropout, upsampling, sampler", GPU, MEMORY),
    Group("unshared and causal convolutions", GPU, ("lines",)),
    Group("recurrent networks on Numba's kernels", GPU, ("rnn",), of(backend="numba"), "passes"),
    Group("convolutions, ResNet-50 and other kinds, float32", XEON, ("conv_cpu", "conv_kinds_cpu")),
    Group("softmax, pooling, batch norm, dropout, upsampling, sampler", EPYC, ("memory_cpu",)),
    Group("recurrent networks, float32", EPYC, ("rnn_cpu",), against="passes"),
)

#: the lines of docs/reference/speed.md
DETAIL = (
    *(
        Group(f"ResNet-50, untuned: {dtype} {precision}, {direction}", GPU, ("conv",),
              of(dtype=dtype, precision=precision, direction=direction), "vs det")
        for dtype, precision in (("float32", "ieee"), ("float32", "tf32"), ("float16", "ieee"))
        for direction in ("forward", "grad_inputs", "grad_weights")
    ),
    *(
        Group(f"{name}, untuned", GPU, ("conv_kinds",), of(kind=kind), "vs det")
        for name, kind in (("volumes", "3d"), ("transposed", "transposed"), ("dilated", "dilated"), ("grouped", "grouped"))
    ),
    *(
        Group(f"random problems{which}, against `cudnn.benchmark`: {what}", GPU, ("random",),
              lambda row, first=first: row["problem"].startswith(first), "benchmark", f"{GPU}_{file}")
        for which, file, whats in (
            (", untuned", "random", 2), (" of seed 1, untuned", "random_1", 3), (" of seed 2, untuned", "random_2", 3),
            (" of seed 3, untuned", "random_3", 3), (" of seed 4, untuned", "random_4", 3),
            (' of seed 3, `tune="likely"`', "random_3_likely", 3),
        )
        for what, first in (("convolutions", "conv"), ("pooling, softmax, batch norm", ("pool", "softmax", "batch")),
                            ("recurrent networks", "rnn"))[:whats]
    ),
    Group("problems that were slow once, untuned, against `cudnn.benchmark`", GPU, ("random",), against="benchmark",
          file=f"{GPU}_hard"),
    Group("depthwise", GPU, ("depthwise",)),
    Group("causal", GPU, ("lines",), named("causal")),
    Group("unshared", GPU, ("lines",), named("unshared")),
    Group("softmax and gradient", GPU, ("softmax",)),
    Group("pooling", GPU, ("pool",), named("pool")),
    Group("gradient of pooling", GPU, ("pool",), named("pool_grad")),
    Group("batch norm and gradients", GPU, ("norm",), lambda row: not row["case"].startswith("dropout")),
    Group("dropout", GPU, ("norm",), named("dropout")),
    Group("bilinear upsampling and gradient", GPU, ("upsample",)),
    Group("spatial transformer and gradients", GPU, ("spatial",)),
    Group("recurrent networks, Numba", GPU, ("rnn",), of(backend="numba"), "passes"),
    Group("recurrent networks, cuDNN", GPU, ("rnn",), of(backend="cudnn"), "passes"),
    Group("ResNet-50, channels first", XEON, ("conv_cpu",), of(layout="nchw")),
    Group("ResNet-50, channels last", XEON, ("conv_cpu",), of(layout="nhwc")),
    *(
        Group(name, XEON, ("conv_kinds_cpu",), of(kind=kind))
        for name, kind in (("volumes", "3d"), ("transposed", "transposed"), ("dilated", "dilated"), ("grouped", "grouped"),
                           ("depthwise", "depthwise"))
    ),
    Group("softmax and gradient", EPYC, ("memory_cpu",), named("softmax", "softmax_grad")),
    Group("pooling", EPYC, ("memory_cpu",), named("pool")),
    Group("gradient of pooling", EPYC, ("memory_cpu",), named("pool_grad")),
    Group("batch norm and gradient", EPYC, ("memory_cpu",),
          lambda row: row["case"].startswith("batch_normalization")),
    Group("bilinear upsampling and gradient", EPYC, ("memory_cpu",),
          named("bilinear_upsampling", "bilinear_upsampling_grad")),
    Group("sampler and gradient", EPYC, ("memory_cpu",), named("spatialtf_sampler", "spatialtf_sampler_grad")),
    Group("dropout", EPYC, ("memory_cpu",), named("dropout")),
    Group("recurrent networks", EPYC, ("rnn_cpu",), against="passes"),
    Group("one large filter, against SciPy's `fftconvolve`", EPYC, ("large_filters_cpu",), against="vs scipy"),
    Group("one large filter, against SciPy's `fftconvolve`", XEON, ("large_filters_cpu",), against="vs scipy"),
    Group("one core: ResNet-50, some layers", EPYC, ("conv_one_core",)),
    Group("one core: LSTM, batches of 1 to 64, forward and backward", EPYC, ("rnn_one_core",), named("lstm"), "passes"),
    Group("one core: GRU, batches of 1 to 64, forward and backward", EPYC, ("rnn_one_core",), named("gru"), "passes"),
    Group("one core: softmax and gradient", EPYC, ("memory_one_core",), named("softmax", "softmax_grad")),
    Group("one core: pooling", EPYC, ("memory_one_core",), named("pool")),
    Group("one core: gradient of averages", EPYC, ("memory_one_core",),
          lambda row: row["case"].startswith("pool_grad average")),
    Group("one core: gradient of maxima alone", EPYC, ("memory_one_core",),
          lambda row: row["case"].startswith("pool_grad max")),
    Group("one core: maxima and their gradient", EPYC, ("memory_one_core",), named("pool+pool_grad")),
    Group("one core: batch norm, training and gradient", EPYC, ("memory_one_core",),
          lambda row: row["case"].startswith("batch_normalization_train")),
    Group("one core: batch norm, inference", EPYC, ("memory_one_core",), named("batch_normalization_test")),
    Group("one core: LSTM, batches of 1 to 64, forward and backward", XEON, ("rnn_one_core",), named("lstm"), "passes"),
    Group("one core: GRU, batches of 1 to 64, forward and backward", XEON, ("rnn_one_core",), named("gru"), "passes"),
    Group("one core: softmax and gradient", XEON, ("memory_one_core",), named("softmax", "softmax_grad")),
)  # fmt: skip

#: Numba's kernels alone against the fastest plan of cuDNN, both after `tune`
KERNELS = tuple(
    Group(
        f"Numba against cuDNN: {arithmetic}", GPU, ("layers",), of(arithmetic=arithmetic), "cudnn", f"{GPU}_layers{end}"
    )
    for arithmetic, end in (("fp32", ""), ("tf32", ""), ("fp16", ""), ("bf16", ""), ("fp64", "_fp64"))
)


def geometric_mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))


def table(groups: tuple[Group, ...]) -> list[str]:
    """The lines of a table in Markdown."""
    lines = [
        "| what | on | cases | typical | slowest | fastest | slower in |",
        "|---|---|---|---|---|---|---|",
    ]
    for group in groups:
        found = group.ratios()
        slower = sum(ratio < 1 - EQUAL for ratio in found)
        figures = (geometric_mean(found), min(found), max(found))
        lines.append(
            f"| {group.what} | {MACHINES[group.machine]} | {len(found)} | {' | '.join(f'{f:.2f}' for f in figures)} | {slower} |"
        )
    return lines


def calls() -> list[str]:
    """What a warm call keeps the host, what the first one takes, and a new process: tables with an empty line between them."""
    lines = ["| call | arrays of | numbadnn, us | the library's own, us |", "|---|---|---|---|"]
    for row in rows_of(GPU, "overhead"):
        peer = f"{row['peer_us']:.1f} ({row['peer']})" if "peer_us" in row else "-"
        lines.append(f"| {row['case']} | {row['library']} | {row['us']:.1f} | {peer} |")
    lines += ["", "| problem | empty cache, ms | next process, ms | second problem, ms |", "|---|---|---|---|"]
    for row in rows_of(GPU, "first_call"):
        times = (f"{row[key]:.1f}" for key in ("cold_ms", "warm_ms", "again_ms"))
        lines.append(f"| {row['problem']} ({row['impl']}) | {' | '.join(times)} |")
    lines += [
        "",
        "| arrays of | operation | import, ms | first call, ms | PyTorch's own, ms |",
        "|---|---|---|---|---|",
    ]
    for row in rows_of(GPU, "first_call_processes") + rows_of(EPYC, "first_call_processes"):
        own = f"{row['torch_ms']:.0f}" if "torch_ms" in row else "-"
        times = f"{row['import_ms']:.0f} | {row['call_ms']:.0f} | {own}"
        lines.append(f"| {row['arrays']} | {row['op']} ({row['impl']}) | {times} |")
    return lines


def busy() -> list[str]:
    """What a busy processor costs the calls of two: a table."""
    lines = [
        "| call | on | one thread, ms | beside a busy processor, ms | the ratio | PyTorch's, ms | the ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for machine in (EPYC, XEON):
        for row in rows_of(machine, "busy_cpu"):
            ours, theirs = (f"{row[k + 'busy']:.2f} | {row[k + 'busy/one']:.2f}" for k in ("", "torch "))
            lines.append(f"| {row['case']} | {MACHINES[machine]} | {row['one']:.2f} | {ours} | {theirs} |")
    return lines


def draw(path: Path) -> None:
    """A line for each group of FRONT, from the slowest case to the fastest: thick where four fifths lie, a dot at the mean."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "numbadnn"  # the same file from the same figures
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 3.6), layout="constrained")
    for place, group in enumerate(reversed(FRONT)):
        found = sorted(group.ratios())
        tenth, mean = len(found) // 10, geometric_mean(found)
        colour = "#2a6f97" if group.machine == GPU else "#c8553d"
        axes.plot((found[0], found[-1]), (place, place), color=colour, linewidth=1)
        axes.plot(
            (found[tenth], found[-1 - tenth]),
            (place, place),
            color=colour,
            linewidth=7,
            alpha=0.45,
            solid_capstyle="butt",
        )
        axes.plot(mean, place, "o", color=colour, markersize=7)
        axes.annotate(f"{mean:.2f}", (mean, place), (0, 7), textcoords="offset points", ha="center", fontsize=8)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xticks(ticks := (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64), [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    labels = [f"{group.what.replace('`', '')} ({MACHINES[group.machine]})" for group in reversed(FRONT)]
    axes.set_yticks(range(len(FRONT)), labels, fontsize=8)
    figure.supxlabel(
        "times as fast as PyTorch; dot: geometric mean, bar: four fifths of the cases, line: all", fontsize=8
    )
    axes.set_ylim(-0.6, len(FRONT) - 0.3)
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    for lines in (table(FRONT), table(DETAIL), table(KERNELS), calls(), busy()):
        print("\n".join(lines), end="\n\n")
    draw(ROOT / "docs" / "speed.svg")
