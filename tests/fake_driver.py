"""A stand-in for the two driver functions of a launch: C callbacks that record what they were called with."""

import ctypes
from typing import Any

_GetCurrent = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64))
_Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, *[ctypes.c_uint] * 7, *[ctypes.c_uint64] * 3)


class FakeDriver:
    """``current`` is the context it reports; ``launches`` what cuLaunchKernel got: (arguments, bytes of the parameters)."""

    def __init__(self) -> None:
        self.current, self.status, self.launches = 0, 0, []
        self._keep: Any = (_GetCurrent(self._get_current), _Launch(self._launch))

    @property
    def functions(self) -> tuple[int, int]:
        first, second = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in self._keep)
        return first, second

    def _get_current(self, target: Any) -> int:
        target[0] = self.current
        return 0

    def _launch(self, *args: int) -> int:
        extra = ctypes.cast(args[10], ctypes.POINTER(ctypes.c_uint64))
        assert (extra[0], extra[2], extra[4]) == (1, 2, 0)  # buffer pointer, buffer size, end
        size = ctypes.cast(extra[3], ctypes.POINTER(ctypes.c_size_t))[0]
        self.launches.append((args, ctypes.string_at(extra[1], size)))
        return self.status
