"""DLPack by ctypes: read the capsule of an array we know nothing else about, and make one around our own memory.

Source: dmlc/dlpack, dlpack.h (DLManagedTensor in a capsule "dltensor", DLManagedTensorVersioned in "dltensor_versioned").
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from numbadnn.problem import contiguous_strides

_CODES = {("float16"): (2, 16), "float32": (2, 32), "float64": (2, 64), "bfloat16": (4, 16)}
_NAMES = {v: k for k, v in _CODES.items()}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


#: the newest version whose structures are those above; a later minor one only adds
VERSION = (1, 1)
_READ_ONLY = 1

_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)
_is_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer_raw = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class Tensor(NamedTuple):
    """What a capsule says: strides in elements, ``device`` the CUDA ordinal or -1, ``address`` of element 0."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: int
    address: int
    readonly: bool = False


def exported(array: Any, stream: int) -> Any:
    """The array's capsule, versioned if its library knows such: a read-only array has no other."""
    try:
        return array.__dlpack__(stream=stream, max_version=VERSION)
    except TypeError:  # from before there were versions
        return array.__dlpack__(stream=stream)


def read(capsule: Any) -> Tensor:
    """Look into a capsule of either kind; the memory lives as long as the caller keeps the capsule."""
    readonly = False
    if _is_capsule(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if versioned.major > VERSION[0]:
            raise TypeError(
                f"expected a DLPack capsule of version {VERSION[0]}, got {versioned.major}.{versioned.minor}"
            )
        tensor, readonly = versioned.tensor, bool(versioned.flags & _READ_ONLY)
    else:
        tensor = _Managed.from_address(_pointer(capsule, b"dltensor")).tensor
    if tensor.device_type not in (1, 2, 3, 13):
        raise TypeError(f"expected memory of the CPU or of a CUDA device, got DLPack device type {tensor.device_type}")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else contiguous_strides(shape)
    dtype = _NAMES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    device = tensor.device_id if tensor.device_type in (2, 13) else -1
    name = dtype or f"DLPack type code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
    return Tensor(name, shape, strides, device, (tensor.data or 0) + tensor.byte_offset, readonly)


#: capsules handed out and not yet deleted: address of the structure -> everything that must stay alive
_alive: dict[int, tuple[Any, ...]] = {}


# Both may be called while the interpreter ends, when names of this module are gone: what they need comes with them.
@_Deleter
def _delete(managed: Any, alive: Any = _alive, addressof: Any = ctypes.addressof) -> None:
    alive.pop(addressof(managed.contents), None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _destroy_capsule(capsule: int, alive: Any = _alive, is_valid: Any = _is_valid, pointer: Any = _pointer_raw) -> None:
    # A consumer that took the tensor renamed the capsule and calls the deleter itself.
    if is_valid(capsule, b"dltensor"):
        alive.pop(pointer(capsule, b"dltensor"), None)


for _callback in (_delete, _destroy_capsule):  # capsules may outlive this module, in a cycle that is collected at exit
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))


def capsule(owner: Any, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, device: int) -> Any:
    """A "dltensor" capsule around device memory; ``owner`` stays alive until the consumer is done."""
    code, bits = _CODES[dtype]
    ndim = len(shape)
    shape_c, strides_c = (ctypes.c_int64 * ndim)(*shape), (ctypes.c_int64 * ndim)(*strides)
    managed = _Managed()
    managed.tensor = _Tensor(address, 2, device, ndim, code, bits, 1, shape_c, strides_c, 0)
    managed.deleter = _delete
    key = ctypes.addressof(managed)
    _alive[key] = (managed, shape_c, strides_c, owner)
    return _new(key, b"dltensor", ctypes.cast(_destroy_capsule, ctypes.c_void_p))
