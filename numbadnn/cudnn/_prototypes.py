"""The C functions of cuDNN 9 that the binding calls: name -> (result, arguments) as ctypes types.

Handles, descriptors and pointers are ``void *``, enums and ``cudnnStatus_t`` are ``int``. A test compares every line
with the headers of the installed wheel (number of arguments, class and width of each).
"""

from __future__ import annotations

from ctypes import c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any

PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "cudnnGetVersion": (c_size_t, []),
    "cudnnGetErrorString": (c_char_p, [c_int]),
    "cudnnGetLastErrorString": (None, [c_char_p, c_size_t]),
    "cudnnCreate": (c_int, [c_void_p]),
    "cudnnSetStream": (c_int, [c_void_p, c_void_p]),
    "cudnnBackendCreateDescriptor": (c_int, [c_int, c_void_p]),
    "cudnnBackendDestroyDescriptor": (c_int, [c_void_p]),
    "cudnnBackendFinalize": (c_int, [c_void_p]),
    "cudnnBackendSetAttribute": (c_int, [c_void_p, c_int, c_int, c_int64, c_void_p]),
    "cudnnBackendGetAttribute": (c_int, [c_void_p, c_int, c_int, c_int64, c_void_p, c_void_p]),
    "cudnnBackendExecute": (c_int, [c_void_p, c_void_p, c_void_p]),
    "cudnnCreateTensorDescriptor": (c_int, [c_void_p]),
    "cudnnDestroyTensorDescriptor": (c_int, [c_void_p]),
    "cudnnSetTensor4dDescriptorEx": (c_int, [c_void_p, *[c_int] * 9]),
    "cudnnSoftmaxForward": (c_int, [c_void_p, c_int, c_int, *[c_void_p] * 6]),
    "cudnnSoftmaxBackward": (c_int, [c_void_p, c_int, c_int, *[c_void_p] * 8]),
}
