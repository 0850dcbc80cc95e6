"""What names a machine in files: its device, the versions of what computes, the options, a configuration as JSON."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import re
from pathlib import Path
from typing import Any

from numbadnn.host.files import locks_folder
from numbadnn.problem import Policy
from numbadnn.registry import Executable, library_version


def plain(value: Any) -> Any:
    """A configuration as JSON has it: dataclasses as objects, tuples as lists, keys as text.

    >>> plain({"engine": 3, "knobs": {2: 1}})
    {'engine': 3, 'knobs': {'2': 1}}
    """
    import dataclasses

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    return json.loads(json.dumps(value))


def means(stored: Any, config: Any) -> bool:
    """Whether ``config`` is what a file stores; a field that came later than the file has its default.

    >>> from numbadnn.kernels.conv.implicit.weights import WeightsConfig
    >>> means({"m": 128, "n": 64, "stages": 4, "splits": 2, "terms": 128}, WeightsConfig(128, 64, 4, 2, 128, y_boxes=False))
    True
    """
    import dataclasses

    own = plain(config)
    if not isinstance(stored, dict) or not dataclasses.is_dataclass(config):
        return bool(own == stored)
    later = {f.name: plain(f.default) for f in dataclasses.fields(config) if f.default is not dataclasses.MISSING}
    return bool(own == {**later, **stored})


def configuration(executable: Executable) -> Any:
    """The configuration that gives this executable again, as JSON has it; None where there is nothing to choose."""
    facts = executable.facts
    if "engine" in facts:
        return plain({name: facts[name] for name in ("form", "engine", "knobs") if name in facts})
    return plain(facts.get("config"))


@functools.cache
def device_name(device: int) -> str:
    """The GPU's name; for -1 the CPU's and its number of threads."""
    if device >= 0:
        from numbadnn.gpu import devices

        known = devices.gpus()
        return str(known[device]["name"]) if device < len(known) else f"CUDA device {device}"
    model = platform.processor() or platform.machine()
    with contextlib.suppress(FileNotFoundError, PermissionError):
        if found := re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text()):
            model = found[1]
    return f"{model}, {os.cpu_count()} threads"


def file_name(device: int) -> str:
    """The name of a device's file.

    >>> file_name(-1).endswith(".json")
    True
    """
    return re.sub(r"\W+", "_", device_name(device)).strip("_").lower() + ".json"


@functools.cache
def versions(device: int) -> str:
    """What a measurement is only good for, in one line: cuDNN on a GPU, Numba and numbadnn."""
    import importlib.metadata as metadata

    from numbadnn._version import __version__

    found = []
    if device >= 0:
        found.append(f"cudnn={library_version('cudnn')}")
    for name in ("numba", "numba-cuda") if device >= 0 else ("numba",):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name}={metadata.version(name)}")
    found.append(f"numbadnn={__version__}")
    return " ".join(found)


def policy_text(policy: Policy) -> str:
    """The rules in force, without the device's number; one that came later is named where it is not the default.

    >>> policy_text(Policy())
    'determinism=run_to_run fp32_precision=ieee precision=as_input_f32 algo=auto workspace_limit=1073741824'
    """
    names = ("determinism", "fp32_precision", "precision", "algo", "workspace_limit")
    later = () if policy.accuracy == "normwise" else ("accuracy",)
    return " ".join(f"{name}={getattr(policy, name)}" for name in (*names, *later))


def lock_name(device: int) -> Path:
    """The lock of whoever measures on a device of this machine: one a user."""
    return locks_folder() / f"{platform.node()}-{file_name(device).removesuffix('.json')}-{device}.lock"
