"""cuDNN's backend descriptors as Python objects: made, filled, finalised, queried, destroyed with their last reference.

A descriptor is an opaque pointer whose attributes are typed arrays. ``make`` does the whole life up to finalisation in
one call; ``Descriptor`` keeps what it refers to alive and destroys its own pointer when it dies, but not at interpreter
exit.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from numbadnn.cudnn._enums import Attr, DescriptorType, Type
from numbadnn.cudnn.lib import Library

#: what one element of an attribute is in C
ELEMENT: dict[Type, Any] = {
    Type.HANDLE: ctypes.c_void_p,
    Type.DATA_TYPE: ctypes.c_int,
    Type.BOOLEAN: ctypes.c_bool,
    Type.INT64: ctypes.c_int64,
    Type.FLOAT: ctypes.c_float,
    Type.DOUBLE: ctypes.c_double,
    Type.VOID_PTR: ctypes.c_void_p,
    Type.CONVOLUTION_MODE: ctypes.c_int,
    Type.HEUR_MODE: ctypes.c_int,
    Type.KNOB_TYPE: ctypes.c_int,
    Type.NUMERICAL_NOTE: ctypes.c_int,
    Type.BACKEND_DESCRIPTOR: ctypes.c_void_p,
    Type.BEHAVIOR_NOTE: ctypes.c_int,
}

Attribute = tuple[Attr, Type, Sequence[Any]]


class Descriptor:
    """One backend descriptor; ``keep`` are the descriptors it refers to."""

    __slots__ = ("__weakref__", "keep", "pointer")

    def __init__(self, library: Library, kind: DescriptorType) -> None:
        out = ctypes.c_void_p()
        library.call("cudnnBackendCreateDescriptor", int(kind), ctypes.byref(out))
        assert out.value is not None
        self.pointer = out.value
        self.keep: tuple[Any, ...] = ()
        weakref.finalize(self, library.functions.cudnnBackendDestroyDescriptor, self.pointer).atexit = False


def make(library: Library, kind: DescriptorType, attributes: Iterable[Attribute]) -> Descriptor:
    """Create, set the attributes in order, finalise; CudnnError names the attribute that was refused."""
    descriptor = Descriptor(library, kind)
    keep: list[Any] = []
    for name, element_type, values in attributes:
        raw = [v.pointer if isinstance(v, Descriptor) else v for v in values]
        keep += [v for v in values if isinstance(v, Descriptor)]
        array = (ELEMENT[element_type] * len(raw))(*raw)
        status = library.status(
            "cudnnBackendSetAttribute", descriptor.pointer, int(name), int(element_type), len(raw), array
        )
        if status:
            raise library.error(f"{kind.name} descriptor, attribute {name.name} = {values}", status)
    descriptor.keep = tuple(keep)
    status = library.status("cudnnBackendFinalize", descriptor.pointer)
    if status:
        raise library.error(f"{kind.name} descriptor, finalising", status)
    return descriptor


def query(library: Library, descriptor: Descriptor, name: Attr, element_type: Type, most: int = 32) -> list[int]:
    """The elements of an attribute of integers, at most ``most``."""
    array = (ELEMENT[element_type] * most)()
    count = ctypes.c_int64(0)
    library.call(
        "cudnnBackendGetAttribute",
        descriptor.pointer,
        int(name),
        int(element_type),
        most,
        ctypes.byref(count),
        array,
    )
    return [int(v) for v in array[: min(count.value, most)]]


def query_descriptors(
    library: Library, descriptor: Descriptor, name: Attr, kind: DescriptorType, most: int | None = None
) -> list[Descriptor]:
    """The descriptors in an attribute: cuDNN fills ones that the caller creates, and says how many it filled."""
    backend = int(Type.BACKEND_DESCRIPTOR)
    count = ctypes.c_int64(0)
    if most is None:
        library.call("cudnnBackendGetAttribute", descriptor.pointer, int(name), backend, 0, ctypes.byref(count), None)
        most = count.value
    if most == 0:
        return []
    found = [Descriptor(library, kind) for _ in range(most)]
    array = (ctypes.c_void_p * most)(*[d.pointer for d in found])
    library.call("cudnnBackendGetAttribute", descriptor.pointer, int(name), backend, most, ctypes.byref(count), array)
    return found[: min(count.value, most)]
