"""PTX to machine code: by ptxas where there is one, else by nvJitLink, else by the driver when it loads the kernel.

ptxas is looked for in the NVIDIA wheels, then CUDA_HOME and CUDA_PATH, then PATH. One that is older than the PTX it is given
refuses it, and the next assembler is asked. ``Assembled.by`` says which did it and ``Assembled.log`` what it said.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from numbadnn.errors import NumbaDNNError

#: wheels whose version changes the machine code
TOOLS = (
    *("numba", "numba-cuda", "llvmlite", "cuda-bindings"),
    *(
        f"nvidia-{tool}{suffix}"
        for tool in ("cuda-nvcc", "nvvm", "nvjitlink", "cuda-nvrtc")
        for suffix in ("", "-cu12", "-cu13")
    ),
)


class Assembled(NamedTuple):
    """A binary the driver can load: a cubin, or PTX as it is where nothing on this machine assembles."""

    image: bytes
    by: str
    log: str


def find_ptxas() -> str:
    """The path of ptxas, "" where there is none."""
    candidates: list[Path] = []
    for root in map(Path, sys.path):
        candidates += sorted(root.glob("nvidia/cuda_nvcc/bin/ptxas")) + sorted(root.glob("nvidia/cu[0-9]*/bin/ptxas"))
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            candidates.append(Path(os.environ[variable], "bin", "ptxas"))
    for path in candidates:
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return shutil.which("ptxas") or ""


@functools.cache
def toolchain() -> str:
    """What the machine code depends on besides our sources: versions of the tools, and ptxas itself. For cache keys."""
    parts = []
    for name in TOOLS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            parts.append(f"{name}={metadata.version(name)}")
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or ""
    for path in (find_ptxas(), *(map(str, Path(home).glob("nvvm/lib*/libnvvm.so")) if home else ())):
        if path:
            stat = os.stat(path)
            parts.append(f"{path}:{stat.st_size}:{stat.st_mtime_ns}")
    return " ".join(parts)


def by_ptxas(ptx: str, arch: str, ptxas: str) -> Assembled:
    """Assemble with the program ``ptxas``; NumbaDNNError with its message where it refuses."""
    with tempfile.TemporaryDirectory(prefix="numbadnn-") as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        command = [ptxas, f"-arch={arch}", "-v", str(source), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NumbaDNNError(f"{ptxas}: {done.stderr.strip() or done.stdout.strip()}")
        return Assembled(target.read_bytes(), ptxas, done.stderr + done.stdout)


def by_nvjitlink(ptx: str, arch: str) -> Assembled:
    """Assemble with nvJitLink; ImportError or NumbaDNNError where it is absent or refuses."""
    from cuda.bindings import nvjitlink

    try:
        version = "nvJitLink {}.{}".format(*nvjitlink.version())
    except Exception as error:
        raise ImportError(f"nvJitLink cannot be loaded: {error}") from None
    handle: Any = nvjitlink.create(2, [f"-arch={arch}", "-O3"])
    try:
        data = ptx.encode() + b"\0"
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "kernel.ptx")
        nvjitlink.complete(handle)
        image = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, image)
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(nvjitlink.get_error_log_size(handle))
        nvjitlink.get_error_log(handle, log)
        raise NumbaDNNError(f"{version}: {error}: {bytes(log).decode(errors='replace').strip()}") from None
    finally:
        nvjitlink.destroy(handle)
    return Assembled(bytes(image), version, "")


def assemble(ptx: str, arch: str) -> Assembled:
    """The machine code of ``ptx`` for an architecture such as "sm_90a", by the first assembler that takes it."""
    refused = []
    ptxas = find_ptxas()
    if ptxas:
        try:
            return by_ptxas(ptx, arch, ptxas)
        except NumbaDNNError as error:
            refused.append(str(error))
    try:
        return by_nvjitlink(ptx, arch)
    except (ImportError, NumbaDNNError) as error:
        refused.append(str(error))
    return Assembled(ptx.encode() + b"\0", "driver", "\n".join(refused))
