"""``info``: versions, GPUs, cuDNN and where it was looked for, every option and its origin, operations x backends."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
from typing import Any

from numbadnn import config
from numbadnn.errors import BackendUnavailableError
from numbadnn.gpu.devices import driver_version, gpus, no_gpu_reason
from numbadnn.host import files, private
from numbadnn.kept import shipped_errata
from numbadnn.registry import FAMILY, implementations

PACKAGES = (
    "numbadnn", "numpy", "numba", "scipy", "ml_dtypes", "numba-cuda", "cuda-python", "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13", "torch", "cupy-cuda12x", "cupy-cuda13x", "jax", "rich", "scikit-image",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Installed packages that matter here, and Python."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def absent(backend: str) -> str:
    """Why a backend that was asked for cannot run here ("" = it can)."""
    from numbadnn.call.select import unavailable

    return "" if backend == "cpu" else no_gpu_reason() or unavailable(backend, 0)


def cudnn() -> dict[str, Any]:
    """Version, path and search trail of cuDNN, or the reason why there is none."""
    from numbadnn.cudnn import lib

    try:
        library = lib.load()
    except BackendUnavailableError as error:
        return {"available": False, "reason": str(error)}
    trail = [f"{place}: {outcome}" for place, outcome in library.trail]
    return {"available": True, "version": library.version, "path": library.path, "trail": trail}


def kept() -> dict[str, str]:
    """Where compiled kernels are kept, or why they are not."""
    folders = {"cpu": files.builds_folder(), "cuda": files.cache_folder(config.current().cache_dir) / "kernels"}
    reasons = {name: private.unusable(folder) for name, folder in folders.items()}
    return {name: f"nowhere: {reasons[name]}" if reasons[name] else str(folder) for name, folder in folders.items()}


def errata() -> list[dict[str, Any]]:
    """What the package knows against the cuDNN that is loaded; where there is none, against any."""
    from numbadnn.cudnn import lib

    try:
        version = lib.load().version
    except BackendUnavailableError:
        version = None
    known = [e for e in shipped_errata.entries() if version is None or e.holds(version)]
    return [dataclasses.asdict(e) | {"conditions": e.conditions} for e in known]


def options() -> dict[str, dict[str, Any]]:
    """Every option's effective value, where it came from and what it may be."""
    current = config.current()
    return {
        option.name: {
            "value": getattr(current, option.name),
            "origin": current.origin[option.name],
            "environment": option.environment,
            "values": option.values,
        }
        for option in config.OPTIONS.values()
    }


def operations() -> dict[str, dict[str, list[str]]]:
    """operation -> backend -> names of its implementations."""
    return {op: {b: [i.name for i in implementations(op, [b])] for b in config.BACKENDS} for op in FAMILY}


def collect() -> dict[str, Any]:
    """Everything, ready for JSON."""
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "cuda_driver": driver_version(),
        "gpus": list(gpus()),
        "no_gpu_reason": no_gpu_reason(),
        "cudnn": cudnn(),
        "kept": kept(),
        "errata": errata(),
        "options": options(),
        "operations": operations(),
    }


def text(facts: dict[str, Any] | None = None) -> str:
    """The same for people."""
    facts = facts or collect()
    lines = ["Versions", *(f"  {name:18} {version}" for name, version in facts["versions"].items())]
    lines += ["", f"Machine\n  {facts['platform']}, {facts['cpus']} CPUs"]
    for gpu in facts["gpus"]:
        size = gpu["memory_bytes"] / 2**30
        lines.append(
            f"  GPU {gpu['device']}: {gpu['name']}, compute capability {gpu['compute_capability']}, {size:.0f} GiB"
        )
    lines.append(f"  CUDA driver {facts['cuda_driver']}" if facts["gpus"] else f"  no GPU: {facts['no_gpu_reason']}")
    found = facts["cudnn"]
    lines += ["", "cuDNN"]
    if found["available"]:
        lines += [f"  {found['version']} at {found['path']}", *(f"    {line}" for line in found["trail"])]
    else:
        lines += [f"  {line}" for line in found["reason"].splitlines()]
    lines += ["", "Compiled kernels are kept in", *(f"  {name:6} {where}" for name, where in facts["kept"].items())]
    lines += ["", "Known errata of cuDNN (docs/errata.md)"]
    lines += [f"  {e['effect']:8} {e['id']}: {e['conditions']}: {e['says']}" for e in facts["errata"]]
    lines += ["", "Options"]
    width = max(len(option["origin"]) for option in facts["options"].values())
    for name, option in facts["options"].items():
        value = _shown(name, option["value"])
        lines.append(f"  {name:16} {value:24} {option['origin']:{width}} {option['environment']} = {option['values']}")
    lines += ["", "Operations", *_table(facts["operations"])]
    return "\n".join(line.rstrip() for line in lines)


def _table(operations: dict[str, dict[str, list[str]]]) -> list[str]:
    """Operation x backend; several implementations of a backend stand one below the other, a hole is a dash."""
    known = (*operations, *(name for row in operations.values() for names in row.values() for name in names))
    width = max(map(len, known), default=0) + 2
    lines = [f"  {'':{width}}" + "".join(f"{backend:{width}}" for backend in config.BACKENDS)]
    for op, row in operations.items():
        depth = max(1, *(len(names) for names in row.values()))
        for i in range(depth):
            names = [row[b][i] if i < len(row[b]) else "-" if i == 0 else "" for b in config.BACKENDS]
            lines.append(f"  {op if i == 0 else '':{width}}" + "".join(f"{name:{width}}" for name in names))
    return lines


def _shown(name: str, value: Any) -> str:
    if name == "workspace_limit":
        return f"{value / 2**20:g}MiB"
    if name == "threads":
        return str(value or "auto")
    if isinstance(value, tuple):
        return ",".join(value) or ("auto" if name == "backend" else "-")
    return str(value).lower() if isinstance(value, bool) else str(value) or "-"
