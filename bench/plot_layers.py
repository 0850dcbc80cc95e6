"""The picture of ``bench_layers.py``: for each layer how many times as fast as PyTorch, and how near the roofs of the machine.

``python bench/plot_layers.py FILE.json``: FILE.png, with matplotlib. Above: the ratio of times, a dot a case, networks side by
side, the geometric mean of each as a line. Below, for each arithmetic: operations a second over operations a byte, under the
roof that a copy and a matrix product of the same machine make.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

COLOURS = {"fp16": "#1f77b4", "bf16": "#17becf", "tf32": "#2ca02c", "fp32": "#d62728", "fp64": "#9467bd"}
MARKS = {"forward": "o", "grad-inputs": "^", "grad-weights": "s"}
RATIOS = (("torch", "auto", "PyTorch (benchmark) over auto"), ("cudnn", "numba", "cuDNN over Numba"))


def plot(file: Path) -> Path:
    """Draw a result file; the PNG beside it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    document = json.loads(Path(file).read_text())
    rows, kinds = document["rows"], [k for k in COLOURS if any(r["arithmetic"] == k for r in document["rows"])]
    figure = pyplot.figure(figsize=(16, 15), layout="constrained")
    grid = figure.add_gridspec(3, len(kinds), height_ratios=(1, 1, 1.2))
    for line, (over, under, title) in enumerate(RATIOS):
        _ratios(figure.add_subplot(grid[line, :]), rows, over, under, title)
    for column, kind in enumerate(kinds):
        _roofline(figure.add_subplot(grid[2, column]), rows, kind, document["ceilings"])
    figure.suptitle(f"{document['device']}, {document['versions'].get('torch', '')}, commit {document['commit'][:9]}")
    path = Path(file).with_suffix(".png")
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
    return path


def _ratios(axes: Any, rows: list[dict[str, Any]], over: str, under: str, title: str) -> None:
    """A dot a case, cases of one layer above one another."""
    names = list(dict.fromkeys((r["network"], r["layer"]) for r in rows))
    place = {name: i for i, name in enumerate(names)}
    for kind, colour in COLOURS.items():
        for direction, mark in MARKS.items():
            dots = [
                (place[r["network"], r["layer"]], r["us"][over] / r["us"][under])
                for r in rows
                if (r["arithmetic"], r["direction"]) == (kind, direction) and r["us"].get(over) and r["us"].get(under)
            ]
            if dots:
                x, y = zip(*dots, strict=True)
                axes.scatter(x, y, s=14, c=colour, marker=mark, alpha=0.7, label=f"{kind} {direction}", linewidths=0)
    for network in dict.fromkeys(n for n, _ in names):
        at = [place[name] for name in names if name[0] == network]
        found = [
            math.log(r["us"][over] / r["us"][under])
            for r in rows
            if r["network"] == network and r["us"].get(over) and r["us"].get(under)
        ]
        if found:
            mean = math.exp(sum(found) / len(found))
            axes.plot([at[0] - 0.4, at[-1] + 0.4], [mean, mean], c="black", lw=1.5)
            axes.annotate(f"{network} {mean:.2f}", (at[0], mean), xytext=(0, 3), textcoords="offset points", fontsize=8)
    axes.axhline(1, c="grey", lw=0.8)
    axes.set(yscale="log", title=f"{title}: above 1 is faster", xlim=(-1, len(names)))
    axes.set_xticks(range(len(names)), [layer for _, layer in names], rotation=90, fontsize=5)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(ncol=4, fontsize=6, loc="upper right")


def _roofline(axes: Any, rows: list[dict[str, Any]], kind: str, roofs: dict[str, float]) -> None:
    """TFLOP/s over FLOP/byte of what was chosen and of PyTorch, under the two roofs."""
    some = [r for r in rows if r["arithmetic"] == kind]
    intensities = [r["flops"] / r["bytes"] for r in some]
    low, high = min(intensities) / 2, max(intensities) * 2
    knee = roofs[kind] * 1e3 / roofs["copy"]
    points = sorted({low, min(max(knee, low), high), high})
    axes.plot(points, [min(roofs[kind], x * roofs["copy"] / 1e3) for x in points], c="black", lw=1)
    for name, colour, size in (("torch", "#bbbbbb", 22), ("auto", COLOURS[kind], 8)):
        dots = [(r["flops"] / r["bytes"], r["flops"] / r["us"][name] / 1e6) for r in some if r["us"].get(name)]
        if dots:
            axes.scatter(*zip(*dots, strict=True), s=size, c=colour, label=name, linewidths=0)
    axes.set(xscale="log", yscale="log", title=f"{kind}: TFLOP/s over FLOP/byte", xlabel="FLOP/byte")
    axes.legend(fontsize=7, loc="lower right")


if __name__ == "__main__":
    print(plot(Path(sys.argv[1])))
