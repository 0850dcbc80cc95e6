"""From a Numba function to a launch that costs the host a few microseconds.

``Kernel`` names a function to be compiled: function -> PTX -> machine code (kept on disk) -> loaded once a process.
``Kernel.prepare`` fixes everything but the addresses and the stream, and gives a ``Launch``: one call is then one compiled host
function (``_shim``), about 2.5 us where Numba's own launch takes 33. A ``Launch`` belongs to one thread: its argument
buffer is rewritten by each call while the GIL is dropped.

>>> launch = kernel.prepare(device, grid=(64, 1, 1), block=(256, 1, 1), scalars=(n, strides))    # doctest: +SKIP
>>> launch(stream, x_address, y_address)                                                         # doctest: +SKIP
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from numbadnn.errors import NumbaDNNError
from numbadnn.kernels import _cache, _driver, simulate
from numbadnn.kernels._assemble import Assembled, assemble, toolchain
from numbadnn.kernels._context import ensure_context, primary_context

_FORMATS = {"ptr": "q", "i32": "i", "i64": "q", "f32": "f", "f64": "d"}
_MAP_BYTES, _MAP_ALIGN = 128, 64
_MAP_BASE = 0x210  # of parameters in sm_90's constant bank; it is the place there that is aligned
_BUFFER, _BUFFER_SIZE, _END = 1, 2, 0  # CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE, _END
_MAX_SHARED_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_EARLY_ATTRIBUTE = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_EARLY_DRIVER = 12030  # the first that captures such launches in graphs
_CONFIG_BYTES, _ATTRIBUTE_BYTES = 56, 72  # of CUlaunchConfig and CUlaunchAttribute
_MAX_ADDRESSES = 12
_NONE = 99

#: the folder of compiled kernels; None: the user's cache folder. ``set_cache_folder`` changes it.
_folder: Path | None = None
_loaded: dict[tuple[Kernel, tuple[int, int, str]], int] = {}
_loading = threading.Lock()


def set_cache_folder(folder: str | os.PathLike[str] | None) -> None:
    """Keep compiled kernels in ``folder``/kernels; None is the user's cache folder."""
    global _folder
    _folder = None if folder is None else Path(folder, "kernels")


def arch_of(capability: tuple[int, int]) -> tuple[int, int, str]:
    """The architecture compiled for on a device: its own, with the features of sm_90a on Hopper."""
    major, minor = capability
    return major, minor, "a" if (major, minor) == (9, 0) else ""


def arch_name(arch: tuple[int, int, str]) -> str:
    """The name ptxas gives it: ``sm_90a`` for (9, 0, "a")."""
    return "sm_{}{}{}".format(*arch)


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """One specialisation of a kernel.

    ``name`` says everything that its code depends on besides the sources, and is its identity. ``parameters`` is text as
    in ``_cuda``; the addresses come first. ``build()`` gives the Python function; it is only called to compile. One that is
    ``early`` starts before the kernel before it on the stream has ended, where a GPU can (Hopper's programmatic dependent
    launch): it calls ``wait_for_previous`` before it touches what that one writes, or anything else does that may still run.
    """

    name: str
    parameters: str
    build: Callable[[], Callable[..., None]]
    threads: int
    resident: int = 1
    early: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kernel) and (self.name, self.parameters) == (other.name, other.parameters)

    def __hash__(self) -> int:
        return hash(self.name)

    def ptx(self, arch: tuple[int, int, str]) -> str:
        """The kernel as PTX, its entry point renamed to something a profiler can show."""
        from numbadnn.kernels._cuda import compile_ptx

        text = compile_ptx(self.build, self.parameters, arch, self.threads, self.resident)
        found = re.search(r"\.entry\s+(\w+)", text)
        if not found:
            raise NumbaDNNError(f"no entry point in the PTX of {self.name}")
        text = text.replace(found[1], self.entry)
        if arch < (9,):
            text = re.sub(r"griddepcontrol\.\w+;", "", text)
        if "map" in self.parameters.split():
            from numbadnn.kernels._tensormap import by_value

            text = by_value(text, self.parameters)
        return text

    @property
    def entry(self) -> str:
        return "numbadnn_" + re.sub(r"\W+", "_", self.name)

    def assemble(self, arch: tuple[int, int, str]) -> Assembled:
        """Compile afresh, whatever is on disk."""
        return assemble(self.ptx(arch), arch_name(arch))

    def binary(self, arch: tuple[int, int, str]) -> _cache.Binary:
        """The compiled kernel, from disk if it is there."""
        return self._stored(arch) or self._compiled(arch)

    def _file(self, arch: tuple[int, int, str]) -> tuple[Path, str]:
        """The folder and the key."""
        parts = (toolchain(), self.name, self.parameters, str(self.threads), arch_name(arch))
        return _folder or _cache.default_folder(), _cache.key_of(_cache.source_hash(), *parts)

    def _stored(self, arch: tuple[int, int, str]) -> _cache.Binary | None:
        return _cache.read(*self._file(arch))

    def _compiled(self, arch: tuple[int, int, str]) -> _cache.Binary:
        made = self.assemble(arch)
        fresh = _cache.Binary(made.image, self.entry, made.by)
        _cache.write(*self._file(arch), fresh, kernel=self.name, arch=arch_name(arch))
        return fresh

    def load(self, device: int) -> int:
        """The CUkernel of this kernel, loaded for every device of this architecture the first time it is asked for."""
        arch = arch_of(_driver.compute_capability(device))
        with _loading:
            handle = _loaded.get((self, arch))
            if handle is None:
                handle = _loaded[self, arch] = _load(self.binary(arch))
        return handle

    def prepare(
        self,
        device: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        scalars: tuple[Any, ...] = (),
        shared_bytes: int = 0,
    ) -> Launch | simulate.SimulatedLaunch:
        """Fix grid, block and every parameter after the addresses; ``scalars`` may hold tuples as ``parameters`` says."""
        if math.prod(block) > self.threads:
            raise ValueError(f"{self.name}: expected at most {self.threads} threads a block, got {block}")
        if simulate.active():
            return simulate.SimulatedLaunch(self.build, self.parameters, grid, block, scalars, shared_bytes)
        with ensure_context(device) as context:
            kernel, function = self.load(device), ctypes.c_void_p()
            # the CUfunction of this context: launching it saves the driver a look-up that a CUkernel needs
            _driver.call("cuKernelGetFunction", ctypes.byref(function), kernel)
            if shared_bytes > 48 * 1024:
                attribute, value = ctypes.c_int(_MAX_SHARED_ATTRIBUTE), ctypes.c_int(shared_bytes)
                _driver.call("cuKernelSetAttribute", attribute, value, kernel, ctypes.c_int(device))
        offsets, values = pack(self.parameters, scalars)
        early = (
            self.early and arch_of(_driver.compute_capability(device)) >= (9,) and _driver.version() >= _EARLY_DRIVER
        )
        functions, shape = driver_addresses(early), (*grid, *block, shared_bytes)
        return Launch(self.name, device, functions, context, function.value or 0, shape, offsets, values, early)


def load_together(device: int, *kernels: Kernel) -> None:
    """Load kernels that a plan is about to prepare, the largest first. Those not on disk are compiled side by side.

    NVVM and ptxas, half of the time, work for one while Numba reads the next.
    """
    if simulate.active():
        return
    arch = arch_of(_driver.compute_capability(device))
    with ensure_context(device), _loading:
        binaries = {kernel: kernel._stored(arch) for kernel in kernels if (kernel, arch) not in _loaded}
        fresh = [kernel for kernel, binary in binaries.items() if binary is None]
        if fresh:
            from numbadnn.kernels import _cuda  # noqa: F401  here, and not by several threads at a time

            with ThreadPoolExecutor(len(fresh)) as pool:
                binaries.update(zip(fresh, pool.map(lambda kernel: kernel._compiled(arch), fresh), strict=True))
        for kernel, binary in binaries.items():
            if binary is not None:
                _loaded[kernel, arch] = _load(binary)


def _load(binary: _cache.Binary) -> int:
    lib, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    zero, none = ctypes.c_uint(0), ctypes.c_void_p()
    _driver.call("cuLibraryLoadData", ctypes.byref(lib), binary.image, none, none, zero, none, none, zero)
    _driver.call("cuLibraryGetKernel", ctypes.byref(kernel), lib, binary.entry.encode())
    return kernel.value or 0


def pack(parameters: str, scalars: tuple[Any, ...]) -> tuple[tuple[int, ...], bytes]:
    """Where each call's addresses go, and all parameters as the driver's packed buffer, each at its own alignment.

    Addresses are 0 in the buffer; a ``map`` (a TMA descriptor) is its 128 bytes, of which a call replaces the address,
    the first eight.
    """
    words = parameters.split()
    targets = [word in ("ptr", "map") for word in words]
    if sorted(targets, reverse=True) != targets or sum(targets) > _MAX_ADDRESSES:
        raise ValueError(f"expected at most {_MAX_ADDRESSES} addresses, before all else, got {parameters!r}")
    given = list(scalars)
    if len(given) != len(words) - words.count("ptr"):
        raise ValueError(f"expected {len(words) - words.count('ptr')} values for {parameters!r}, got {len(given)}")
    offsets, packed = [], b""
    for word in words:
        name, _, count = word.partition("*")
        if name == "map":
            packed += bytes(-(_MAP_BASE + len(packed)) % _MAP_ALIGN)
            offsets.append(len(packed))
            packed += _descriptor(given.pop(0))
            continue
        if name == "ptr":
            offsets.append(len(packed) + -len(packed) % 8)
        value: Any = 0 if name == "ptr" else given.pop(0)
        values = tuple(value) if count else (value,)
        if len(values) != int(count or 1):
            raise ValueError(f"expected {word}, got {value!r}")
        for v in values:
            size = struct.calcsize(_FORMATS[name])
            packed += bytes(-len(packed) % size) + struct.pack("<" + _FORMATS[name], v)
    return tuple(offsets), packed


def _descriptor(value: Any) -> bytes:
    text = bytes(value)
    if len(text) != _MAP_BYTES:
        raise ValueError(f"map: expected a TMA descriptor of {_MAP_BYTES} bytes, got {len(text)}")
    return text


def driver_addresses(early: bool = False) -> tuple[int, int]:
    """The addresses of cuCtxGetCurrent and of what launches a kernel: cuLaunchKernel, or cuLaunchKernelEx for an early one."""
    from numbadnn._hostcall import address_of

    lib = _driver.library()
    return address_of(lib, "cuCtxGetCurrent"), address_of(lib, "cuLaunchKernelEx" if early else "cuLaunchKernel")


class Launch:
    """A kernel with everything fixed but its addresses: ``launch(stream, *addresses)``. For one thread.

    ``direct`` is the same as a plain function, which Python calls a tenth of a microsecond faster.
    """

    __slots__ = ("_config", "_extra", "_record", "context", "device", "direct", "name")

    def __init__(
        self,
        name: str,
        device: int,
        functions: tuple[int, int],
        context: int,
        function: int,
        shape: tuple[int, ...],
        offsets: tuple[int, ...],
        values: bytes,
        early: bool = False,
    ) -> None:
        from numbadnn.kernels import _shim

        self.name, self.device, self.context = name, device, context
        count, first = len(offsets), _shim.VALUES // 8
        # the first three addresses are written one behind the other, whatever the kernel has of them
        self._record = np.zeros(first + max(-(-len(values) // 8), 3), np.uint64)
        start = int(self._record.ctypes.data)
        # one packed buffer: an array of pointers, one a parameter, costs the driver a fifth of a microsecond more
        self._extra = np.array([_BUFFER, start + _shim.VALUES, _BUFFER_SIZE, 0, _END, len(values)], np.uint64)
        self._extra[3] = self._extra.ctypes.data + 5 * 8  # the address of the size
        get_current, launch = functions
        head = (get_current, context, 0, launch, function, *shape, count, self._extra.ctypes.data)
        self._record[: len(head)] = head
        self._record[_shim.OFFSETS // 8 :][:count] = [_shim.VALUES + offset for offset in offsets]
        self._record.view(np.uint8)[_shim.VALUES :][: len(values)] = np.frombuffer(values, np.uint8)
        self._config = _early_config(shape) if early else np.zeros(0, np.uint64)
        self._record[_shim.CONFIG // 8] = self._config.ctypes.data if early else 0
        plain = offsets == tuple(range(0, 8 * count, 8)) and count <= 3
        self.direct = _direct(count, plain, start, name, device, (self._record, self._extra, self._config))

    def __call__(self, stream: int, *addresses: int) -> None:
        self.direct(stream, *addresses)


def _early_config(shape: tuple[int, ...]) -> Any:
    """A CUlaunchConfig, its stream left open, and behind it its one attribute: early start."""
    words = np.zeros(_CONFIG_BYTES // 4 + _ATTRIBUTE_BYTES // 4, np.uint32)
    start = int(words.ctypes.data)
    words[:7] = shape
    words.view(np.uint64)[5] = start + _CONFIG_BYTES
    words[12], words[14], words[16] = 1, _EARLY_ATTRIBUTE, 1  # attributes; its name; its value
    return words


def _direct(addresses: int, plain: bool, record: int, name: str, device: int, keep: Any) -> Callable[..., None]:
    """The launch as a function; ``keep`` is the memory that it writes to and the driver reads.

    Its attribute ``parts`` is (shim, record, recover): what it does, for a caller that saves itself the function call.
    """
    from numbadnn._hostcall import entry_point
    from numbadnn.kernels import _shim

    shim = entry_point(_shim.launch_shim if plain else _shim.launch_shim_of_many)

    def direct(stream: int, a0: int = 0, a1: int = 0, a2: int = 0, _keep: Any = keep) -> None:
        status = shim(record, stream, a0, a1, a2)
        if status:
            _recover(shim, status, name, device, record, stream, a0, a1, a2)

    def recover(status: int, *arguments: int) -> None:
        _recover(shim, status, name, device, *arguments)

    rest = (0,) * (_MAX_ADDRESSES - addresses)

    def direct_of_many(stream: int, *words: int, _keep: Any = keep) -> None:
        status = shim(record, stream, words + rest)
        if status:
            _recover(shim, status, name, device, record, stream, words + rest)

    if not plain:
        return direct_of_many
    direct.parts = shim, record, recover  # type: ignore[attr-defined]
    return direct


def sequence(names: str, steps: list[tuple[Any, str]]) -> Callable[..., None]:
    """Several launches as one function of the stream and of the addresses called ``names``, in one compiled call.

    A step is a launch and the names of its own addresses: ``0`` is none, ``space+512`` an offset.

    >>> run = sequence("x y space", [(reduce, "x space"), (walk, "x space+64 y")])                   # doctest: +SKIP
    """
    given = names.split()
    if len(given) > _MAX_ADDRESSES:
        raise ValueError(f"expected at most {_MAX_ADDRESSES} addresses, got {names!r}")
    routes = [(launch, [_route(word, given) for word in words.split()]) for launch, words in steps]
    if simulate.active():

        def simulated(stream: int, *words: int) -> None:
            for launch, route in routes:
                launch(stream, *(offset + (words[i] if i < _NONE else 0) for i, offset in route))

        return simulated
    from numbadnn._hostcall import entry_point
    from numbadnn.kernels import _shim

    table = [len(routes)]
    for launch, route in routes:
        numbers = [number % 2**64 for pair in route for number in pair]  # an offset may be negative
        table += [launch._record.ctypes.data, len(route), *numbers]
    keep = np.array(table, np.uint64)
    shim, start, rest = entry_point(_shim.launch_sequence), int(keep.ctypes.data), (0,) * (_MAX_ADDRESSES - len(given))
    name, device = " then ".join(launch.name for launch, _ in routes), routes[0][0].device

    def direct(stream: int, *words: int, _keep: Any = (keep, routes)) -> None:
        status = shim(start, stream, words + rest)
        if status:
            _recover(shim, status, name, device, start, stream, words + rest)

    return direct


def _route(word: str, given: list[str]) -> tuple[int, int]:
    """(number of the address, offset in bytes); the number _NONE stands for no address."""
    name, _, offset = word.partition("+")
    return (_NONE if name == "0" else given.index(name)), int(offset or 0)


def _recover(shim: Callable[..., int], status: int, name: str, device: int, *arguments: Any) -> None:
    """Another context was current: launch in ours and restore it. Anything else is an error of the driver."""
    from numbadnn.kernels._shim import WRONG_CONTEXT

    if status == WRONG_CONTEXT:
        with ensure_context(device):
            status = shim(*arguments)
    _driver.check(status, f"launching {name}")


def blocks(count: int, threads: int) -> tuple[int, int, int]:
    """The grid of one-dimensional blocks of ``threads`` that covers ``count``."""
    grid = -(-count // threads)
    if grid >= 2**31:
        raise NumbaDNNError(f"expected fewer than 2**31 blocks, got {grid}")
    return grid, 1, 1


__all__ = [
    "Kernel",
    "Launch",
    "arch_name",
    "arch_of",
    "blocks",
    "pack",
    "primary_context",
    "sequence",
    "set_cache_folder",
]
