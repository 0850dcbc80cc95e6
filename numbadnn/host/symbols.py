"""Which names a kept build takes from elsewhere, and whether this process has them: LLVM ends a process that lacks one.

A process may lack what another had: a build that calls Intel's SVML, say, where that was removed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import llvmlite.binding

from numbadnn.host.numba_names import JITCodeLibrary

_SYMBOLS = 2  # the kind of section that lists them
_WEAK = 2  # the binding of a name that need not exist
#: LLVM makes it itself
_TABLE = "_GLOBAL_OFFSET_TABLE_"


class Found(JITCodeLibrary):
    """The library of a kept build; ValueError where the process lacks a name that it takes from elsewhere.

    Numba asks for it after it has loaded what the build says that it needs (a threading layer).
    """

    @classmethod
    def _unserialize(cls, codegen: Any, state: Any) -> Any:
        _, _, (image, _) = state
        for name in taken(image):
            if not codegen._engine.is_symbol_defined(name) and llvmlite.binding.address_of_symbol(name) is None:
                raise ValueError(f"no symbol {name!r} in this process")
        found = super()._unserialize(codegen, state)
        found.image = image
        return found


def image_of(library: Any) -> bytes:
    """The object that a library was compiled to, or was loaded from; RuntimeError where there is none."""
    return bytes(getattr(library, "image", None) or library._get_compiled_object())


def taken(image: bytes) -> Iterator[str]:
    """The names that a 64-bit ELF object of this machine takes from elsewhere; ValueError or struct.error where it is none."""
    if image[:5] != b"\x7fELF\2":
        raise ValueError("no 64-bit ELF object")
    (start,), (count,) = struct.unpack_from("=Q", image, 40), struct.unpack_from("=H", image, 60)
    sections = [struct.unpack_from("=IIQQQQIIQQ", image, start + 64 * i) for i in range(count)]
    for table in (s for s in sections if s[1] == _SYMBOLS):
        names = sections[table[6]][4]
        for text, about, _, section, _, _ in struct.iter_unpack("=IBBHQQ", image[table[4] : table[4] + table[5]]):
            if not section and about >> 4 not in (0, _WEAK):  # elsewhere, neither local nor weak
                name = image[names + text : image.index(b"\0", names + text)].decode()
                if name != _TABLE:
                    yield name
