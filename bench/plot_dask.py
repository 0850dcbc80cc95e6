"""The picture of docs/how-to/larger-than-memory.md: what a process takes for volumes of growing size, and rates of several GPUs.

``python bench/plot_dask.py bench/results/CPU.json bench/results/GPU.json`` writes docs/how-to/larger-than-memory.svg from what
bench_dask.py measured there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PICTURE = Path(__file__).parents[1] / "docs" / "how-to" / "larger-than-memory.svg"


def rows_of(path: Path, beginning: str) -> list[dict[str, Any]]:
    """The rows whose case begins so."""
    return [row for row in json.loads(path.read_text())["dask"]["rows"] if row["case"].startswith(beginning)]


def draw_memory(axis: Any, rows: list[dict[str, Any]]) -> None:
    rows = sorted(rows, key=lambda row: row["GiB"])
    names = [f"{row['GiB']:g} GiB\nlimit {row['limit GiB']:g}" for row in rows]
    places = range(len(rows))
    axis.bar([p - 0.27 for p in places], [row["GiB"] for row in rows], 0.27, label="the volume", color="#c7c7c7")
    axis.bar(places, [row["allowed GiB"] for row in rows], 0.27, label="1.25 x what the workers hold", color="#aec7e8")
    bars = axis.bar(
        [p + 0.27 for p in places], [row["peak GiB"] for row in rows], 0.27, label="peak, measured", color="#1f77b4"
    )
    axis.bar_label(bars, fmt="%.2f", fontsize=8)
    axis.set_yscale("log", base=2)
    axis.set_yticks(ticks := (0.125, 0.25, 0.5, 1, 2, 4, 8, 16), [f"{tick:g}" for tick in ticks])
    axis.set_xticks(places, names)
    axis.set(ylabel="GiB", title="conv3d from zarr to zarr, two threads")
    axis.legend(fontsize=8)


def draw_scaling(axis: Any, rows: list[dict[str, Any]]) -> None:
    """A line for each kind of rows, "gpus KIND, N" or "gpus KIND N", and what so many times one GPU would be."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if "of n times one" in row:
            kinds.setdefault(row["case"].removeprefix("gpus ").rstrip("0123456789, "), []).append(row)
    for at, (kind, found) in enumerate(kinds.items()):
        color = f"C{at}"
        found.sort(key=lambda row: row["GPUs"])
        counts, rates = [row["GPUs"] for row in found], [row["GB/s to the GPUs"] for row in found]
        axis.plot(counts, rates, color=color, marker="o", label=kind)
        axis.plot(counts, [n * rates[0] for n in counts], color=color, linestyle=":")
    axis.set_xticks(sorted({row["GPUs"] for found in kinds.values() for row in found}))
    axis.set(xlabel="GPUs (dotted: so many times one)", ylabel="GB/s to the GPUs", ylim=(0, None))
    axis.set_title("conv3d of host arrays, reduced on the host")
    axis.legend(fontsize=8)


def draw(cpu: Path, gpu: Path, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "numbadnn"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained", width_ratios=(3, 2))
    draw_memory(axes[0], rows_of(cpu, "memory "))
    draw_scaling(axes[1], rows_of(gpu, "gpus "))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]), PICTURE)
    print("written to", PICTURE)
