"""The record of the last full, passing run of the GPU tests: which commit, on which GPU, with which versions, how many.

Written by the run itself (conftest.py), never by hand, and committed: ``tests/gpu_verified.json``. A run counts only if
it was complete: no part of the GPU tests deselected by path, keyword or marker, none failed, on a visible GPU.
The GPU is asked through the driver's own library, so that asking needs neither numbadnn nor any package it stands on.
"""

import ctypes
import datetime
import functools
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

#: name in the record -> distributions that may provide it
PACKAGES = {
    "cudnn_wheel": ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
    "numba": ("numba",),
    "numba_cuda": ("numba-cuda",),
    "cuda_python": ("cuda-python", "cuda-bindings"),
    "numpy": ("numpy",),
    "scipy": ("scipy",),
    "torch": ("torch",),
    "cupy": ("cupy-cuda12x", "cupy-cuda13x", "cupy"),
    "jax": ("jax",),
}


@functools.cache
def _driver() -> Any:
    """libcuda, initialised; None where there is no driver or no GPU."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return library if library.cuInit(0) == 0 else None


@functools.cache
def gpu_count() -> int:
    """How many GPUs CUDA shows this process (CUDA_VISIBLE_DEVICES included)."""
    count = ctypes.c_int()
    driver = _driver()
    return count.value if driver and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def gpu_facts() -> dict[str, Any]:
    """Name, compute capability and driver of the first visible GPU."""
    driver, device, name = _driver(), ctypes.c_int(), ctypes.create_string_buffer(128)
    major, minor, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert driver.cuDeviceGetName(name, len(name), device) == 0
    assert driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device) == 0  # COMPUTE_CAPABILITY_MAJOR
    assert driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device) == 0  # COMPUTE_CAPABILITY_MINOR
    assert driver.cuDriverGetVersion(ctypes.byref(version)) == 0
    return {
        "gpu": name.value.decode(),
        "compute_capability": f"{major.value}.{minor.value}",
        "gpus_visible": gpu_count(),
        "driver": _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "cuda": f"{version.value // 1000}.{version.value % 1000 // 10}",
    }


def _first_line(*command: str) -> str | None:
    """The first line a command prints; None if it is absent or fails."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else None


def commit() -> tuple[str | None, bool | None]:
    """The commit tested, and whether files differed from it (the record itself aside).

    In a copy without git both come from NUMBADNN_COMMIT, as ``git describe --always --abbrev=40 --dirty`` prints them.
    """
    top = _first_line("git", "rev-parse", "--show-toplevel")
    head = _first_line("git", "rev-parse", "HEAD") if top and Path(top).resolve() == ROOT else None
    if head:
        changed = _first_line("git", "status", "--porcelain", "--", ".", ":!tests/gpu_verified.json")
        return head, changed != ""
    given = os.environ.get("NUMBADNN_COMMIT")
    return (given.removesuffix("-dirty"), given.endswith("-dirty")) if given else (None, None)


def versions() -> dict[str, Any]:
    """Versions of Python, of each package present, and of the cuDNN that numbadnn loads."""
    found: dict[str, Any] = {"python": platform.python_version()}
    for name, distributions in PACKAGES.items():
        for distribution in distributions:
            try:
                found[name] = importlib.metadata.version(distribution)
                break
            except importlib.metadata.PackageNotFoundError:
                found[name] = None
    import numbadnn.cudnn

    found["cudnn"] = numbadnn.cudnn.version(raises=False)
    return found


def is_complete(config: Any) -> bool:
    """Whether this run collected every GPU test: all of tests/, nothing deselected."""
    option = config.option
    narrowed = any(
        getattr(option, name, None)
        for name in ("keyword", "deselect", "ignore", "ignore_glob", "lf", "stepwise", "collectonly", "setuponly")
    )
    paths = {(config.invocation_params.dir / arg).resolve() for arg in config.args}
    return not narrowed and option.markexpr in ("", "gpu") and bool(paths & {ROOT, ROOT / "tests"})


def write(counts: dict[str, int]) -> Path:
    """Write the record, whole or not at all; where it went."""
    path = Path(os.environ.get("NUMBADNN_GPU_VERIFIED") or ROOT / "tests" / "gpu_verified.json")
    head, dirty = commit()
    record = {
        "commit": head,
        "dirty": dirty,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **gpu_facts(),
        "versions": versions(),
        "counts": counts,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=2) + "\n")
    part.replace(path)
    return path
