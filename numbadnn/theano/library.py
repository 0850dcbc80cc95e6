"""What ``theano.gpuarray.dnn`` says of cuDNN itself, ``version`` and ``DnnVersion``; and ``DnnBase``, of its operations."""

from __future__ import annotations

from typing import Any

from numbadnn import cudnn

__all__ = ["DnnBase", "DnnVersion", "version"]


def version(raises: bool = True) -> int:
    """``numbadnn.cudnn.version``: an integer such as 91900; absent, -1, or RuntimeError with ``raises``.

    >>> version(raises=False) == -1 or version() >= 90000
    True
    """
    return cudnn.version(raises)


class DnnBase:
    """The base of cuDNN's operations; a handle, made where it is needed, belongs to a thread and device (numbadnn.cudnn)."""

    def __init__(self, files: Any = None, c_func: Any = None) -> None:
        self.files, self.c_func = files, c_func


class DnnVersion(DnnBase):
    """``DnnVersion()()``: (version of the header, version of the library), which are one, else RuntimeError."""

    def __call__(self) -> tuple[int, int]:
        found = cudnn.version()
        return found, found
