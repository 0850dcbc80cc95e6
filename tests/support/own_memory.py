"""How much of a GPU's memory this process holds, as the driver counts it (NVML): what other processes take leaves it alone."""

import ctypes
import os


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def own_memory(device: int = 0) -> int:
    """Bytes of this process on CUDA device ``device``; LookupError where NVML does not know its processes."""
    driver, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
    address, handle = ctypes.create_string_buffer(32), ctypes.c_void_p()
    assert driver.cuInit(0) == 0 and driver.cuDeviceGetPCIBusId(address, len(address), device) == 0
    assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByPciBusId_v2(address, ctypes.byref(handle)) == 0
    processes, count = (_Process * 256)(), ctypes.c_uint(256)
    status = nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), processes)
    found = [p.used for p in processes[: count.value] if p.pid == os.getpid()]
    if status or not found or found[0] == 2**64 - 1:
        raise LookupError(f"NVML gives no memory of process {os.getpid()}: status {status}, {count.value} processes")
    return found[0]
