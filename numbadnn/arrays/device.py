"""Device memory of our own, for libraries that lend none: a stream-ordered pool a device.

Numba's allocator synchronises, and an unknown library offers nothing to call, so their outputs and every workspace not
taken from PyTorch or CuPy come from one ``cuMemPool`` a device. Memory is freed in the order of the stream it was
allocated on. ``DeviceArray`` is what an array of an unknown library gets back: it speaks both exchange protocols.
"""

from __future__ import annotations

from typing import Any

from numbadnn.gpu.bindings import check, driver
from numbadnn.gpu.memory import DeviceMemory
from numbadnn.problem import Spec, contiguous_strides


class DeviceArray:
    """A plain device array: ``shape``, ``dtype`` (a name), element ``strides``, ``device`` and its memory.

    Read it with anything that takes ``__cuda_array_interface__`` or ``__dlpack__`` (cupy.from_dlpack, torch.from_dlpack).
    """

    __slots__ = ("__weakref__", "device", "dtype", "memory", "shape", "strides")

    def __init__(self, spec: Spec, device: int, stream: int) -> None:
        self.shape, self.strides, self.dtype, self.device = spec.shape, spec.strides, spec.dtype, device
        self.memory = DeviceMemory(spec.size * spec.itemsize, device, stream)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        from numbadnn.arrays.numpy_ import numpy_dtype

        dtype = numpy_dtype(self.dtype)
        packed = self.strides == contiguous_strides(self.shape)
        return {
            "shape": self.shape,
            "strides": None if packed else tuple(s * dtype.itemsize for s in self.strides),
            "typestr": dtype.str,
            "data": (self.memory.address, False),
            "stream": self.memory.stream or 1,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device

    def __dlpack__(
        self, *, stream: int | None = None, dl_device: Any = None, copy: bool | None = None, **_: Any
    ) -> Any:
        """``stream``: None for the legacy default one, -1 for no ordering."""
        from numbadnn.arrays import dlpack
        from numbadnn.gpu import streams

        if dl_device is not None and tuple(map(int, dl_device)) != self.__dlpack_device__():
            raise BufferError(f"expected DLPack device {self.__dlpack_device__()}, where the array is, got {dl_device}")
        if copy:
            return self.__copy__().__dlpack__(stream=stream)
        if stream != -1:
            streams.wait(stream or 0, self.memory.stream, self.device)
            if stream is not None and stream not in (0, 1, self.memory.stream):
                self.memory.elsewhere = True
        return dlpack.capsule(self, self.memory.address, self.shape, self.strides, self.dtype, self.device)

    def __copy__(self) -> DeviceArray:
        """Its elements in new memory, in the order of the stream."""
        from numbadnn.gpu.context import ensure_context

        spec, d = Spec(self.dtype, self.shape, self.strides), driver()
        found = DeviceArray(spec, self.device, self.memory.stream)
        if nbytes := spec.size * spec.itemsize:
            with ensure_context(self.device):
                status = d.cuMemcpyDtoDAsync(found.memory.address, self.memory.address, nbytes, self.memory.stream)
            check(status)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> DeviceArray:
        return self.__copy__()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a DeviceArray lies in GPU memory of this process and cannot be pickled: pickle a copy on the host, "
            "cupy.from_dlpack(array).get() or torch.from_dlpack(array).cpu()"
        )
