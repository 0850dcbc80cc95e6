"""A program: the first calls of a process on device arrays, by own kernels, where the driver is a stand-in that computes nothing.

``python first_call.py torch|plain [--compile]`` prints a line of JSON: the packages that were imported for the calls, and the
launches: kernel, shape, shared memory. ``--compile``: a kernel that is not on disk is kept there, without code; Numba is imported
for it as ever. "torch": tensors of PyTorch that say they were on a GPU; "plain": objects with ``__cuda_array_interface__``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from host_driver import HostDriver
from recorded_cuda import CONTEXT, DEVICES, RecordedCuda

import numbadnn
from numbadnn.arrays import device as arrays
from numbadnn.gpu import bindings, driver, memory, streams
from numbadnn.kernels.build import cache, launch

#: nothing of these is imported for a first call
WITHOUT = ("llvmlite", "numba", "numba_cuda", "scipy")
HOPPER = min(DEVICES)


class Cuda(RecordedCuda):
    """``DEVICES``' first as device 0; of a binary it knows the entry point, and remembers those that were loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[str] = []
        self.cuLaunchCooperativeKernel = _Together(self)  # type: ignore[assignment]

    def cuDeviceGet(self, target: Any, device: Any) -> int:
        target._obj.value = HOPPER
        return 0

    def cuLibraryLoadData(self, target: Any, image: bytes, *options: Any) -> int:
        self.entries.append("")
        target._obj.value = len(self.entries)
        return 0

    def cuLibraryGetKernel(self, target: Any, library: Any, name: bytes) -> int:
        self.entries[library.value - 1] = name.decode()
        target._obj.value = library.value
        return 0


class _Together:
    """cuLaunchCooperativeKernel, recorded as any launch."""

    argtypes: Any = None

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda

    def __call__(self, function: Any, *shape: Any) -> int:
        self.cuda.driver.launches.append(((function.value, *shape[:7]), b""))
        return 0


class Bindings(HostDriver):
    """Beside memory: streams that are never captured, and events that have always happened."""

    class CUevent_flags:
        CU_EVENT_DISABLE_TIMING = 2

    class CUresult:
        CUDA_ERROR_NOT_READY = 600

    class CUstreamCaptureStatus:
        CU_STREAM_CAPTURE_STATUS_NONE = 0

    def cuStreamIsCapturing(self, stream: int) -> tuple[int, int]:
        return 0, 0

    def cuEventCreate(self, flags: int) -> tuple[int, int]:
        return 0, 1

    def cuEventRecord(self, *given: Any) -> tuple[int]:
        return (0,)

    cuEventDestroy = cuEventQuery = cuStreamWaitEvent = cuEventRecord


class Plain:
    """An array of a library that nobody knows."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.memory = np.zeros(shape, np.float32)
        where = (self.memory.ctypes.data, False)
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "<f4", "data": where, "version": 3}


def tensors() -> Any:
    """PyTorch's of the host, which say that they are on a GPU."""
    import torch

    make = torch.empty
    torch.empty = lambda *shape, device=None, **how: make(*shape, **how)  # type: ignore[assignment]
    torch.Tensor.get_device = lambda tensor: 0  # type: ignore[assignment,misc]
    torch.Tensor.device = property(lambda tensor: torch.device("cuda", 0))  # type: ignore[assignment,misc]
    torch.Tensor.is_cuda = property(lambda tensor: True)  # type: ignore[assignment,misc]
    return make


def install() -> Cuda:
    """The stand-ins, for the life of the process."""
    cuda, host = Cuda(), Bindings()
    cuda.driver.current = CONTEXT
    driver.library = lambda: cuda  # type: ignore[assignment]
    driver.version = lambda: 13000  # type: ignore[assignment]
    launch.driver_addresses = lambda early: cuda.driver.early_functions if early else cuda.driver.functions
    memory._allocate = lambda nbytes, device, stream: host.cuMemAlloc(nbytes)[1]
    for module in (bindings, memory, streams, arrays):
        module.driver = lambda: host  # type: ignore[attr-defined]
    return cuda


def keep_without_code() -> None:
    """In place of a compiler; what is kept stands under its own key."""

    def assembled(kernel: launch.Kernel, arch: Any, make: Any) -> cache.Binary:
        kernel_of_none = cache.Binary(b"no code", kernel.entry, "nobody")
        assert not cache.write(*kernel._file(arch), kernel_of_none, kernel=kernel.name)
        return kernel_of_none

    launch.Kernel._assembled = assembled  # type: ignore[method-assign]


def calls(make: Any) -> None:
    numbadnn.conv2d(make((8, 64, 28, 28)), make((64, 64, 3, 3)))
    numbadnn.softmax(make((512, 1000)))
    numbadnn.pool(make((8, 64, 56, 56)), (2, 2))
    block = numbadnn.RNNBlock("float32", 64, 1, "lstm")
    block.apply(*map(make, ((block.get_param_size((8, 64)),), (5, 8, 64), (1, 8, 64), (1, 8, 64))))


def main() -> None:
    before = set(sys.modules)
    cuda = install()
    if "--compile" in sys.argv:
        keep_without_code()
    if sys.argv[1] == "torch":  # of which nothing is asked that cuda.bindings, slow to import, would be needed for
        bindings.driver = memory.driver = streams.driver = arrays.driver = None
    with numbadnn.using(backend="numba"):
        calls(tensors() if sys.argv[1] == "torch" else Plain)
    launches = [(cuda.entries[args[0] - 1], *args[1:8]) for args, _ in cuda.driver.launches]
    found = {name.partition(".")[0] for name in set(sys.modules) - before}
    print(json.dumps([sorted(found & set(WITHOUT)), launches]))


if __name__ == "__main__":
    main()
