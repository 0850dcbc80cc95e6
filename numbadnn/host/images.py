"""A loader for the machine code of kept builds: it needs neither LLVM nor Numba.

Numba compiles for the CPU in the large code model. An object file then refers to other sections and to other libraries by
64-bit addresses only. The loader copies the sections to pages of memory, computes each address and stores it. Then it makes
pages of code executable and no longer writable. It refuses an object with any other relocation, or with a symbol that this
process does not have; LLVM loads such an object. Only 64-bit x86 under Linux is supported.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import importlib.machinery
import importlib.util
import mmap
import platform
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

PAGE = mmap.PAGESIZE
_SYMBOLS, _RELOCATIONS, _NOTHING = 2, 4, 8  # kinds of sections; one that is all zeros is not in the file
_WRITTEN, _LOADED, _RUN = 1, 2, 4  # what is done with a section
_ELSEWHERE, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2  # in place of a symbol's section
_WEAK = 2
_ADDRESS = 1  # R_X86_64_64: the address of a symbol, and a number more
#: what a pointer to the objects of Python that a function reads is called
_OBJECTS = "_ZN08NumbaEnv"
_EXCEPTION = "PyExc_"
_UNWINDING = ".eh_frame"  # of C++'s exceptions, of which there are none
_ARGUMENTS_AND_KEYWORDS = 3  # METH_VARARGS | METH_KEYWORDS


def possible() -> bool:
    """Whether this is a machine whose objects are known here."""
    here = sys.platform, platform.machine(), sys.implementation.name
    return here == ("linux", "x86_64", "cpython") and not sys.abiflags  # objects as in a plain build of Python


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    start: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int


class _Symbol(NamedTuple):
    name: str
    weak: bool
    section: int
    value: int
    size: int


def function(image: bytes, entry: str, names: dict[str, int]) -> Callable[..., Any]:
    """What Python calls of an object: its wrapper ``entry``. ``names``: what it may call beside Numba's helpers, by address.

    ValueError, struct.error, ImportError or OSError for an object that is to be loaded by LLVM.
    """
    sections, symbols = _read(image)
    memory, places = _placed(image, sections, symbols, names)
    for number, symbol in enumerate(symbols):
        if symbol.name.startswith(_OBJECTS) and number in places:
            memory.write(places[number], struct.pack("=Q", _empty_environment()))
    _relocate(image, sections, symbols, memory, places)
    (start,) = (places[n] for n, symbol in enumerate(symbols) if symbol.name == entry and n in places)
    memory.finish()
    return _called(start, entry)


def _read(image: bytes) -> tuple[list[_Section], list[_Symbol]]:
    if image[:6] != b"\x7fELF\2\1" or struct.unpack_from("<HH", image, 16) != (1, 62):
        raise ValueError("no object of 64-bit x86")
    (start,), (count,) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<H", image, 60)
    sections = [_Section(*struct.unpack_from("<IIQQQQIIQQ", image, start + 64 * i)) for i in range(count)]
    symbols = []
    for table in (s for s in sections if s.kind == _SYMBOLS):
        names = sections[table.link].start
        for text, about, _, where, value, size in struct.iter_unpack(
            "<IBBHQQ", image[table.start : table.start + table.size]
        ):
            name = image[names + text : image.index(b"\0", names + text)].decode()
            symbols.append(_Symbol(name, about >> 4 == _WEAK, where, value, size))
    return sections, symbols


class _Memory:
    """Pages of code, of what is only read with it, and, from a page of their own on, of what is written."""

    def __init__(self, fixed: int, written: int) -> None:
        self.fixed = -(-fixed // PAGE) * PAGE
        self.pages = mmap.mmap(-1, self.fixed + max(written, 8), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))

    def write(self, address: int, content: bytes) -> None:
        at = address - self.start
        if at < 0 or at + len(content) > len(self.pages):
            raise ValueError("an address outside the object")
        self.pages[at : at + len(content)] = content

    def finish(self) -> None:
        """Code can be run from here on, and no longer written."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(self.start), ctypes.c_size_t(self.fixed), mmap.PROT_READ | mmap.PROT_EXEC):
            raise ValueError(f"memory cannot be made executable: error {ctypes.get_errno()}")
        _keep_for_ever(self.pages)


def _keep_for_ever(value: Any) -> None:
    """While Python ends it lets go of all that modules hold, and threads that it does not wait for may still be in the code."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _placed(
    image: bytes, sections: list[_Section], symbols: list[_Symbol], names: dict[str, int]
) -> tuple[_Memory, dict[int, int]]:
    """The sections in memory; the address of each symbol, by its number."""
    starts: dict[int, int] = {}
    ends = [0, 0]
    for number, section in enumerate(sections):
        if section.flags & _LOADED and not (section.flags & _WRITTEN and section.flags & _RUN):
            written = bool(section.flags & _WRITTEN)
            begin = -(-ends[written] // max(section.alignment, 1)) * max(section.alignment, 1)
            starts[number], ends[written] = begin, begin + section.size
    common = {}
    for number, symbol in enumerate(symbols):
        if symbol.section == _COMMON:  # its value is its alignment
            common[number] = -(-ends[1] // max(symbol.value, 1)) * max(symbol.value, 1)
            ends[1] = common[number] + symbol.size
    memory = _Memory(*ends)
    for number, begin in starts.items():
        section = sections[number]
        starts[number] = begin = begin + memory.start + (memory.fixed if section.flags & _WRITTEN else 0)
        if section.kind != _NOTHING:
            memory.write(begin, image[section.start : section.start + section.size])
    places = {number: memory.start + memory.fixed + begin for number, begin in common.items()}
    for number, symbol in enumerate(symbols):
        if symbol.section in starts:
            places[number] = starts[symbol.section] + symbol.value
        elif symbol.section == _ELSEWHERE and symbol.name:
            places[number] = names.get(symbol.name) or _address(symbol)
    places.update({-1 - number: begin for number, begin in starts.items()})
    return memory, places


def _relocate(
    image: bytes, sections: list[_Section], symbols: list[_Symbol], memory: _Memory, places: dict[int, int]
) -> None:
    """Write the addresses into the sections."""
    for section in (s for s in sections if s.kind == _RELOCATIONS and -1 - s.info in places):
        target = places[-1 - section.info]
        for at, about, more in struct.iter_unpack("<QQq", image[section.start : section.start + section.size]):
            if about & 0xFFFFFFFF != _ADDRESS:
                if _name(image, sections, sections[section.info]) == _UNWINDING:
                    continue
                raise ValueError(f"a relocation of kind {about & 0xFFFFFFFF}")
            if about >> 32 not in places:
                raise ValueError(f"no symbol {symbols[about >> 32].name!r}")
            memory.write(target + at, struct.pack("<Q", (places[about >> 32] + more) % 2**64))


def _name(image: bytes, sections: list[_Section], section: _Section) -> str:
    (names,) = struct.unpack_from("<H", image, 62)
    start = sections[names].start + section.name
    return image[start : image.index(b"\0", start)].decode()


def _address(symbol: _Symbol) -> int:
    """Of a name from elsewhere: Numba's helpers, Python, the C library."""
    if symbol.name.startswith(_EXCEPTION):  # Numba's code takes the class itself, where C takes a pointer to it
        kind = getattr(builtins, symbol.name.removeprefix(_EXCEPTION), None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            return id(kind)
        raise ValueError(f"no symbol {symbol.name!r} in Python")
    if symbol.name.startswith("numba_"):
        found = helpers().get(symbol.name[6:])
        if found is not None:
            return found
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, symbol.name), ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    if symbol.weak:
        return 0
    raise ValueError(f"no symbol {symbol.name!r} in this process")


@functools.cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    return ctypes.CDLL(None), ctypes.CDLL("libm.so.6")


@functools.cache
def helpers() -> dict[str, int]:
    """What Numba's wrappers call: name -> address."""
    return dict(extension("numba._helperlib")[0].c_helpers)


def extension(name: str) -> tuple[Any, str]:
    """An extension module of Numba's and its file, without the packages that it is in. ImportError where there is none."""
    package = importlib.util.find_spec("numba")
    *folders, last = name.split(".")[1:]
    folder = Path(str(package and package.origin)).parent.joinpath(*folders)
    for ending in importlib.machinery.EXTENSION_SUFFIXES:
        if (file := folder / f"{last}{ending}").exists():
            break
    else:
        raise ImportError(f"no {name}")
    if name in sys.modules:
        return sys.modules[name], str(file)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.modules.pop(name, None)  # Numba imports it anew, and finds the same library
    return module, str(file)


class _Environment(ctypes.Structure):
    _fields_ = (("references", ctypes.c_ssize_t), ("kind", ctypes.py_object), ("rest", ctypes.py_object * 2))


@functools.cache
def _empty_environment() -> int:
    """An object with no globals and no constants, as Numba's wrappers look for."""
    made = _Environment(1 << 30, object, ({}, []))
    _keep_for_ever(made)
    return ctypes.addressof(made)


class _Method(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("place", ctypes.c_void_p), ("how", ctypes.c_int), ("text", ctypes.c_char_p))


def _called(address: int, name: str) -> Callable[..., Any]:
    method = _Method(name.encode(), address, _ARGUMENTS_AND_KEYWORDS, None)
    _keep_for_ever(method)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, *(ctypes.c_void_p,) * 3)(("PyCFunction_NewEx", ctypes.pythonapi))
    return make(ctypes.addressof(method), None, None)


def environments(image: bytes) -> list[str]:
    """The names of the pointers to objects of Python that an object's functions read."""
    return [symbol.name for symbol in _read(image)[1] if symbol.name.startswith(_OBJECTS)]
