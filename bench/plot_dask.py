"""The picture of docs/how-to/larger-than-memory.md: what a process takes for volumes of growing size, as bench_dask.py found.

``python bench/plot_dask.py bench/results/NAME.json`` writes docs/how-to/larger-than-memory.svg.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PICTURE = Path(__file__).parents[1] / "docs" / "how-to" / "larger-than-memory.svg"


def memory(results: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of volumes larger than what their process may have, by size."""
    rows = [row for row in results["dask"]["rows"] if row["case"].startswith("memory ")]
    return sorted(rows, key=lambda row: row["GiB"])


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "numbadnn"
    import matplotlib.pyplot as plt

    names = [f"{row['GiB']:g} GiB\nlimit {row['limit GiB']:g}" for row in rows]
    places = range(len(rows))
    figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
    axis.bar([p - 0.27 for p in places], [row["GiB"] for row in rows], 0.27, label="the volume", color="#c7c7c7")
    axis.bar(places, [row["allowed GiB"] for row in rows], 0.27, label="1.25 x what the workers hold", color="#aec7e8")
    bars = axis.bar(
        [p + 0.27 for p in places], [row["peak GiB"] for row in rows], 0.27, label="peak, measured", color="#1f77b4"
    )
    axis.bar_label(bars, fmt="%.2f", fontsize=8)
    axis.set_yscale("log", base=2)
    axis.set_yticks(ticks := (0.125, 0.25, 0.5, 1, 2, 4, 8, 16), [f"{tick:g}" for tick in ticks])
    axis.set_xticks(places, names)
    axis.set(ylabel="GiB", title="conv3d 3x3x3 from zarr to zarr, two threads")
    axis.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(memory(json.loads(Path(sys.argv[1]).read_text())), PICTURE)
    print("written to", PICTURE)
