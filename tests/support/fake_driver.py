"""A stand-in for the driver functions of a launch: C callbacks that record what they were called with."""

import ctypes
import struct
from typing import Any

_GetCurrent = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64))
_LaunchEx = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 4)
_Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, *[ctypes.c_uint] * 7, *[ctypes.c_uint64] * 3)


class FakeDriver:
    """``current`` is the context it reports; ``launches`` what cuLaunchKernel got: (arguments, bytes of the parameters)."""

    def __init__(self) -> None:
        self.current, self.status, self.launches = 0, 0, []
        self._keep: Any = (_GetCurrent(self._get_current), _Launch(self._launch), _LaunchEx(self._launch_ex))

    @property
    def functions(self) -> tuple[int, int]:
        first, second, _ = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in self._keep)
        return first, second

    @property
    def early_functions(self) -> tuple[int, int]:
        return self.functions[0], ctypes.cast(self._keep[2], ctypes.c_void_p).value or 0

    def _get_current(self, target: Any) -> int:
        target[0] = self.current
        return 0

    def _launch_ex(self, config: int, function: int, parameters: int, extra: int) -> int:
        """As ``build/launch.py``, and behind the stream (its one attribute, that attribute's value)."""
        shape = struct.unpack("7I", ctypes.string_at(config, 28))
        stream, attributes, count = struct.unpack("QQI", ctypes.string_at(config + 32, 20))
        assert count == 1
        name, value = struct.unpack("I4xi", ctypes.string_at(attributes, 12))
        return self._launch(function, *shape, stream, (name, value), extra)

    def _launch(self, *args: Any) -> int:
        extra = ctypes.cast(args[10], ctypes.POINTER(ctypes.c_uint64))
        assert (extra[0], extra[2], extra[4]) == (1, 2, 0)  # buffer pointer, buffer size, end
        size = ctypes.cast(extra[3], ctypes.POINTER(ctypes.c_size_t))[0]
        self.launches.append((args, ctypes.string_at(extra[1], size)))
        return self.status
