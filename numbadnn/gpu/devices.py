"""The GPUs that CUDA shows this process, asked without a context, and why there may be none."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import sys
from typing import Any

from numbadnn.errors import BackendUnavailableError, NumbaDNNError


@functools.cache
def gpus() -> tuple[dict[str, Any], ...]:
    """Name, compute capability and memory of every GPU that CUDA shows this process; makes no context.

    A process in which nobody has used CUDA stays so, and may still be forked: another one asks.
    """
    from numbadnn.gpu import driver as _driver

    try:
        if not _driver.is_initialised() and (found := _asked_elsewhere()) is not None:
            return found
    except BackendUnavailableError:
        return ()
    return _asked()


def _asked_elsewhere() -> tuple[dict[str, Any], ...] | None:
    """What a process of its own says; None where none can be had (a program that is no Python interpreter)."""
    code = "import json; from numbadnn.gpu import devices; print(json.dumps(devices._asked()))"
    if not sys.executable or getattr(sys, "frozen", False):
        return None
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            timeout=60,
            check=True,
        )
        return tuple(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _asked() -> tuple[dict[str, Any], ...]:
    from numbadnn.gpu import driver as _driver

    try:
        _driver.library()
        count = ctypes.c_int()
        _driver.call("cuDeviceGetCount", ctypes.byref(count))
        return tuple(_gpu(_driver, number) for number in range(count.value))
    except (BackendUnavailableError, NumbaDNNError):
        return ()


def _gpu(driver: Any, number: int) -> dict[str, Any]:
    handle, name, memory = ctypes.c_int(), ctypes.create_string_buffer(128), ctypes.c_size_t()
    driver.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(number))
    driver.call("cuDeviceGetName", name, ctypes.c_int(len(name)), handle)
    driver.call("cuDeviceTotalMem_v2", ctypes.byref(memory), handle)
    major, minor = driver.compute_capability(number)
    return {
        "device": number,
        "name": name.value.decode(),
        "compute_capability": f"{major}.{minor}",
        "memory_bytes": memory.value,
    }


def no_gpu_reason() -> str:
    """Why there is no GPU to run on ("" = there is one)."""
    from numbadnn.gpu import driver as _driver

    if gpus():
        return ""
    try:
        _driver.library()
    except BackendUnavailableError as error:
        return str(error)
    return "CUDA shows this process no device"


def driver_version() -> str:
    """The newest CUDA version that the driver runs, "" without a driver."""
    from numbadnn.gpu import driver as _driver

    number = ctypes.c_int()
    try:
        _driver.loaded().cuDriverGetVersion(ctypes.byref(number))
    except BackendUnavailableError:
        return ""
    return f"{number.value // 1000}.{number.value % 1000 // 10}"
