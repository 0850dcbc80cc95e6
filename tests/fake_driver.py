"""A stand-in for the two driver functions of a launch: C callbacks that record what they were called with."""

import ctypes
from typing import Any

_GetCurrent = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64))
_Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, *[ctypes.c_uint] * 7, *[ctypes.c_uint64] * 3)


class FakeDriver:
    """``current`` is the context it reports; ``launches`` what cuLaunchKernel got: (arguments, parameter words)."""

    def __init__(self, words: int) -> None:
        self.current, self.status, self.launches = 0, 0, []
        self._words = words
        self._keep: Any = (_GetCurrent(self._get_current), _Launch(self._launch))

    @property
    def functions(self) -> tuple[int, int]:
        first, second = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in self._keep)
        return first, second

    def _get_current(self, target: Any) -> int:
        target[0] = self.current
        return 0

    def _launch(self, *args: int) -> int:
        pointers = ctypes.cast(args[9], ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)))
        self.launches.append((args, [pointers[i][0] for i in range(self._words)]))
        return self.status
