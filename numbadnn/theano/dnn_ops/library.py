"""What ``theano.gpuarray.dnn`` says of cuDNN itself: whether it is there, and its version; and ``DnnBase``, of its operations."""

from __future__ import annotations

from typing import Any

from numbadnn import cudnn
from numbadnn.gpu.devices import no_gpu_reason
from numbadnn.theano import config

__all__ = ["DnnBase", "DnnVersion", "dnn_available", "dnn_present", "version"]


class _Asked:
    """A function that leaves in ``msg`` why it said no: "" where it said yes, None before it is asked."""

    def __init__(self, reason: Any) -> None:
        self.reason, self.__doc__, self.__name__ = reason, reason.__doc__, reason.__name__
        self.msg: str | None = None

    def __call__(self, *arguments: Any) -> bool:
        self.msg = self.reason(*arguments)
        return not self.msg


@_Asked
def dnn_present() -> str:
    """Whether cuDNN can be loaded and the flag ``dnn.enabled`` does not forbid it; ``dnn_present.msg`` says why not."""
    if config.dnn.enabled == "False":
        return "disabled by the flag dnn.enabled"
    return cudnn.available().reason


@_Asked
def dnn_available(context_name: Any = None) -> str:
    """Whether cuDNN is present and there is a GPU; ``dnn_available.msg`` says why not. NumPy arrays need neither.

    >>> dnn_available() == (dnn_available.msg == "")
    True
    """
    return dnn_present.reason() or no_gpu_reason()


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
