"""What bench_random_shapes.py found: how often auto is near the fastest candidate and PyTorch, by family, and where not."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

#: of the fastest candidate, of PyTorch and of PyTorch with benchmark: what auto may take
NEAR, NEAR_TORCH, NEAR_BENCHMARK = 1.10, 1.05, 1.10
WORST = 25
#: of the norm of PyTorch's result: what is beyond is wrong, and not slow
WRONG = {"fp32": 2e-3, "tf32": 1e-2, "fp16": 1e-2, "bf16": 6e-2}
Row = dict[str, Any]


def read(files: Iterable[Path]) -> list[Row]:
    """The problems of these files, each a header and then a line for each problem, or what ``write`` made of some."""
    rows: list[Row] = []
    for file in files:
        text = Path(file).read_text()
        if text.startswith('{"rows"'):
            rows += json.loads(text)["rows"]
        else:
            rows += [line for line in map(json.loads, text.splitlines()) if "device" not in line]
    return rows


def write(path: Path, files: Iterable[Path]) -> None:
    """One document of these files, with what is worth committing: the fastest candidates, auto's, and each as it is by itself."""
    header = json.loads(Path(next(iter(files))).read_text().splitlines()[0])
    rows = [slim(row) for row in read(files) if "error" not in row]
    lines = ",\n".join(json.dumps(row) for row in sorted(rows, key=lambda row: row["number"]))
    path.write_text(f'{{"rows": [\n{lines}\n], {json.dumps(header)[1:-1]}}}\n')


def slim(row: Row) -> Row:
    fastest = fastest_of(row)["time_us"]
    kept = [c for c in row["candidates"] if c["heuristic"] or "auto" in c or c["time_us"] <= 1.5 * fastest]
    fields = ("impl", "config", "time_us", "heuristic", "estimate_us", "error", "auto", "chosen_s")
    short = [{name: c[name] for name in fields if c.get(name) is not None} for c in kept]
    for c in short:
        if "config" in c and not _engine(c):
            del c["config"]  # of kernels: what they choose by themselves
    return {**row, "candidates": short, "auto_us": auto_of(row)["time_us"]}


def arithmetic_of(row: Row) -> str:
    dtype = row["problem"].split("=", 1)[1].split(":")[0]
    return {"float16": "fp16", "bfloat16": "bf16"}.get(dtype) or ("tf32" if row["precision"] == "tf32" else "fp32")


def wrong(row: Row, candidate: Row) -> bool:
    error = candidate.get("error")
    return error is not None and not error <= WRONG[arithmetic_of(row)]


def auto_of(row: Row) -> Row:
    return next(c for c in row["candidates"] if "auto" in c)


def fastest_of(row: Row) -> Row:
    return min((c for c in row["candidates"] if not wrong(row, c)), key=lambda c: c["time_us"], default=auto_of(row))


def times(row: Row) -> dict[str, float]:
    """Of auto: times the fastest candidate, times PyTorch without and with benchmark."""
    own = auto_of(row)["time_us"]
    against = {"fastest": fastest_of(row)["time_us"], **{k: row[k] for k in ("torch", "torch benchmark")}}
    return {name: own / us for name, us in against.items()}


def share(values: list[float], most: float) -> str:
    return f"{sum(v <= most for v in values) / len(values):.1%}"


def summary(name: str, rows: list[Row]) -> str:
    found = [times(row) for row in rows]
    parts = [f"{name:24} {len(rows):4}"]
    for against, most in (("fastest", NEAR), ("torch", NEAR_TORCH), ("torch benchmark", NEAR_BENCHMARK)):
        values = [f[against] for f in found]
        parts.append(f"{share(values, most):>6} {statistics.geometric_mean(values):6.3f} {max(values):6.2f}")
    return "  |  ".join(parts)


def described(row: Row, against: str) -> str:
    own, best, ratio = auto_of(row), fastest_of(row), times(row)[against]
    engine = {c["impl"]: f" {c['config']['form']} {c['config']['engine']}" for c in (own, best) if _engine(c)}
    says = f"{own['impl']}{engine.get(own['impl'], '')} {own['time_us']:.1f} (said {own['estimate_us']:.4g})"
    other = f"{best['impl']}{engine.get(best['impl'], '')} {best['time_us']:.1f} (said {best['estimate_us'] % 1e6:.4g})"
    deterministic = f"/{row['torch deterministic']:.1f}" if "torch deterministic" in row else ""
    theirs = f"torch {row['torch']:.1f}/{row['torch benchmark']:.1f}{deterministic}"
    return f"{ratio:6.2f} {row['family']} {arithmetic_of(row)}: {says}; {other}; {theirs}: {row['problem']}"


def _engine(candidate: Row) -> bool:
    return isinstance(candidate.get("config"), dict) and "engine" in candidate["config"]


def report(rows: list[Row]) -> None:
    """Print it all."""
    for row in rows:
        if "error" in row:
            print(row["error"])
    rows = [row for row in rows if "error" not in row]
    if not rows:
        return
    for row in rows:
        for c in row["candidates"]:
            if wrong(row, c):
                print(f"WRONG by {c['error']} of the norm: {c['impl']} {c['config']}: {row['problem']}")
    print("share near, geometric mean, worst of auto over: the fastest (10 %), PyTorch (5 %), its benchmark (10 %)")
    print(summary("all", rows))
    ways: dict[str, Callable[[Row], str]] = {
        "family": lambda r: str(r["family"]),
        "arithmetic": arithmetic_of,
        "operation": lambda r: str(r["problem"].split()[0]),
        "layout": lambda r: "nhwc" if ":nhwc" in r["problem"] else "nchw",
    }
    for way in ways.values():
        for name in sorted({way(row) for row in rows}):
            print(summary(f"  {name}", [row for row in rows if way(row) == name]))
    for against in ("fastest", "torch benchmark"):
        print(f"worst, times {against}: what auto took, the fastest, PyTorch without and with benchmark")
        for row in sorted(rows, key=lambda row: -times(row)[against])[:WORST]:
            print(described(row, against))
