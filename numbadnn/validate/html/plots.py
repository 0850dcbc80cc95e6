"""The drawings of a page, as SVG by matplotlib: text stays text, and colours are the page's own, light or dark.

No text of a drawing comes from data.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

#: what matplotlib is told -> the variable of the page's style sheet that stands in its place
_INK, _LINE = "#010101", "#020202"
_SERIES = tuple(f"#0301{i:02d}" for i in range(5))
_BAD = "#040404"
_NAMES = {_INK: "--ink", _LINE: "--rule", _BAD: "--bad"} | {c: f"--series{i}" for i, c in enumerate(_SERIES)}
_RC = {
    "svg.fonttype": "none",
    "svg.hashsalt": "numbadnn",
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _LINE,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
    "font.size": 10,
}
#: values of a histogram are taken into this range; below it stands what is exact
LEAST, MOST = 1e-4, 1e2
#: implementations of a model's nodes that carry errors of their own
RUNTIMES = ("onnxruntime",)


class Plot(NamedTuple):
    """A drawing, and what it shows in a sentence."""

    svg: str
    caption: str


def of(kind: str, flat: list[dict[str, Any]]) -> list[Plot]:
    """The drawings of a document's rows; none where nothing was measured."""
    found = []
    if kind in ("validate", "check"):
        groups = _grouped(flat, "worst", "arithmetic")
        found.append(
            (histogram(groups, "largest error / bound", 1.0), "How near each result comes to its bound, by arithmetic.")
        )
    elif kind == "model":
        found.append(
            (
                layers(flat),
                "Each node in turn: its own error over its bound (exact ones lowest), and the error carried so far.",
            )
        )
        found.append(
            (
                histogram({"": _numbers(flat, "local")}, "local error / bound", 1.0),
                "How near each node comes to its bound.",
            )
        )
    elif kind == "determinism":
        found.append((levels(flat), "Declared and reached: how many implementations or engines, on how many cases."))
    elif kind == "bench":
        found.append(
            (
                histogram(_grouped(flat, "ratio", "backend"), "time / fastest of the case"),
                "How much slower than the fastest.",
            )
        )
    elif kind == "tuning":
        found.append(
            (histogram({"": _numbers(flat, "untuned")}, "untuned / tuned"), "How much slower a case is without tuning.")
        )
    return [Plot(_svg(figure, number), caption) for number, (figure, caption) in enumerate(found) if figure is not None]


def histogram(groups: dict[str, list[float]], what: str, limit: float | None = None) -> Figure | None:
    """Values on a logarithmic axis, stacked by group; beyond ``limit`` is wrong. None where there is no value."""
    groups = {name: values for name, values in groups.items() if values}
    if not groups:
        return None
    low = LEAST if limit else 1.0
    stacks = [np.clip(values, low, MOST) for values in groups.values()]
    edges = np.logspace(math.log10(low), math.log10(MOST), 25 if limit else 17)
    with matplotlib.rc_context(_RC):
        figure, axes = _figure(2.6)
        names = list(groups)
        axes.hist(
            stacks, edges, stacked=True, label=names, color=[_SERIES[i % len(_SERIES)] for i in range(len(names))]
        )
        axes.set_xscale("log")
        axes.set_xlabel(f"{what} (first bar: and less, last: and more)")
        axes.set_ylabel("results")
        if limit:
            axes.axvline(limit, color=_BAD, linestyle="--", linewidth=1.5, label="limit")
        if limit or len(names) > 1:
            axes.legend()
    return figure


def layers(nodes: list[dict[str, Any]]) -> Figure | None:
    """Local error over bound, and carried relative error, node by node; those of another runtime apart."""
    own = [node for node in nodes if node["impl"] not in RUNTIMES]
    other = _points([node for node in nodes if node["impl"] in RUNTIMES], "carried")
    local, carried = _points(nodes, "local"), _points(own, "carried")
    if not local[0] and not carried[0]:
        return None
    with matplotlib.rc_context(_RC):
        figure, axes = _figure(3.2)
        axes.set_yscale("log")
        axes.plot(*local, "o", color=_SERIES[0], markersize=4, label="local error / bound")
        axes.axhline(1.0, color=_BAD, linestyle="--", linewidth=1.5, label="its limit")
        axes.plot(*carried, "-", color=_SERIES[1], linewidth=1.5, label="carried error")
        if other[0]:
            axes.plot(*other, ":", color=_SERIES[2], linewidth=1.5, label="carried by another runtime")
        beyond = [(n, value) for n, value in zip(*local, strict=True) if value > 1]
        if beyond:
            axes.annotate(f"node {beyond[0][0]:g}", beyond[0], (6, 6), textcoords="offset points", color=_BAD)
        axes.set_xlabel("node (number in the table)")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.3), ncols=2)
    return figure


def levels(flat: list[dict[str, Any]]) -> Figure | None:
    """A bar for each level that is declared, cut by what was reached."""
    from numbadnn.registry import DETERMINISM

    declared = [level for level in DETERMINISM if any(row["declared"] == level for row in flat)]
    reached = [*DETERMINISM, *sorted({row["reached"] for row in flat if row["reached"]} - set(DETERMINISM))]
    if not declared:
        return None
    with matplotlib.rc_context(_RC):
        figure, axes = _figure(0.9 + 0.45 * len(declared))
        left = np.zeros(len(declared))
        for i, level in enumerate(reached):
            counts = np.array([sum(row["declared"] == d and row["reached"] == level for row in flat) for d in declared])
            if counts.any():
                axes.barh(declared, counts, left=left, color=_SERIES[i % len(_SERIES)], label=f"reached {level}")
                left += counts
        axes.set_xlabel("rows")
        axes.set_ylabel("declared")
        axes.legend(loc="upper center", bbox_to_anchor=(0.4, 1.4), ncols=2)
    return figure


def _figure(height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(5.6, height), layout="constrained")
    axes = figure.subplots()
    axes.grid(axis="y", linewidth=0.5)
    axes.set_axisbelow(True)
    return figure, axes


def _grouped(flat: list[dict[str, Any]], key: str, by: str) -> dict[str, list[float]]:
    """The numbers of ``key`` by the words under ``by``; words that are not plain ones stand together."""
    found: dict[str, list[float]] = {}
    for row in flat:
        word = str(row.get(by) or "")
        found.setdefault(word if re.fullmatch("[a-z0-9_]{1,20}", word) else "other", []).extend(_numbers([row], key))
    return found


def _numbers(flat: Iterable[dict[str, Any]], key: str) -> list[float]:
    return [float(row[key]) for row in flat if isinstance(row.get(key), int | float) and not math.isnan(row[key])]


def _points(nodes: list[dict[str, Any]], key: str) -> tuple[list[float], list[float]]:
    """Numbers of nodes and their values, each once; an exact one stands a decade below the others."""
    found = list(dict.fromkeys((node["number"], node[key]) for node in nodes if _numbers([node], key)))
    least = max(min((value for _, value in found if value > 0), default=1.0) / 10, 1e-30)
    return [float(n) for n, _ in found], [min(max(float(value), least), 1e12) for _, value in found]


def _svg(figure: Figure, number: int) -> str:
    """As part of a page: without a prolog, ids of its own, the page's font and colours."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_RC):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', r'<svg \1 role="img">', text, count=1)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>plot{number}-", text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 sans-serif", text)
    for colour, name in _NAMES.items():
        text = text.replace(colour, f"var({name})")
    return text
