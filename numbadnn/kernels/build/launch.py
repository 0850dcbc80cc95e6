"""From a Numba function to a launch that costs the host a few microseconds.

``Kernel`` names a function to be compiled: function -> PTX -> machine code (kept on disk) -> loaded once a process.
``Kernel.prepare`` fixes everything but the addresses and the stream, and gives a ``Launch``: one call is then one compiled host
function (``shim.py``), about 2.5 us where Numba's own launch takes 33. A ``Launch`` belongs to one thread: its argument
buffer is rewritten by each call while the GIL is dropped.

>>> launch = kernel.prepare(device, grid=(64, 1, 1), block=(256, 1, 1), scalars=(n, strides))    # doctest: +SKIP
>>> launch(stream, x_address, y_address)                                                         # doctest: +SKIP
"""

from __future__ import annotations

import ctypes
import importlib
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from numbadnn.errors import NumbaDNNError
from numbadnn.gpu import driver as _driver
from numbadnn.gpu.context import ensure_context, primary_context
from numbadnn.host import log
from numbadnn.host.compiling import compiling, was_found
from numbadnn.host.private import say_unkept
from numbadnn.host.undisturbed import load_numba, undisturbed
from numbadnn.kernels.build import cache as _cache
from numbadnn.kernels.build import simulate
from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.assemble import assemble, toolchain
from numbadnn.kernels.build.prepared import Launch, driver_addresses, pack, sequence

_MAX_SHARED_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_EARLY_DRIVER = 12030  # the first that captures such launches in graphs

_COUNTED = re.compile(r"\b_ZN\w*B\d+v\d+\w*|\b_cudapy_smem_\d+")

#: the folder of compiled kernels; None: the user's cache folder. ``set_cache_folder`` changes it.
_folder: Path | None = None
_loaded: dict[tuple[Kernel, tuple[int, int, str]], int] = {}
_loading = threading.RLock()  # a call may come in the middle of another
#: (CUkernel, device) -> bytes of dynamic shared memory that a block may have
_allowed: dict[tuple[int, int], int] = {}


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
    in ``lang/cuda.py``; the addresses come first. ``build()`` gives the Python function; it is only called to compile.
    One that is ``early`` starts before the kernel before it on the stream has ended, where a GPU can (Hopper's
    programmatic dependent launch): it calls ``wait_for_previous`` before it touches what that one writes, or anything
    else does that may still run.
    """

    name: str
    parameters: str
    build: Callable[[], Callable[..., None]]
    threads: int
    resident: int = 1
    early: bool = False

    @classmethod
    def of(
        cls,
        title: str,
        made_by: str,
        arguments: tuple[Any, ...],
        parameters: str,
        threads: int,
        resident: int = 1,
        early: bool = False,
    ) -> Kernel:
        """The kernel that ``made_by``, a function of a module in ``numbadnn.kernels``, makes of ``arguments``.

        Its name is the title and all arguments; in ``parameters`` "i32:3" is three of them, one by one. Kernels of many
        parameters have a record of them (``Arguments``). The module is imported when the kernel is compiled.
        """

        def build() -> Callable[..., None]:
            module, _, function = made_by.rpartition(".")
            return getattr(importlib.import_module(f"numbadnn.kernels.{module}"), function)(*arguments)

        if not isinstance(parameters, Arguments):
            counted = [word.partition(":") for word in parameters.split()]
            parameters = " ".join(name for name, _, count in counted for _ in range(int(count or 1)))
        return cls(" ".join((title, *_words(arguments))), parameters, build, threads, resident, early)

    def values(self, facts: Mapping[str, Any] | None = None, /, **given: Any) -> tuple[Any, ...]:
        """What ``prepare`` takes as scalars, of a kernel that has a record of its parameters: see ``Arguments``."""
        assert isinstance(self.parameters, Arguments), f"{self.name} has no record of its parameters"
        return self.parameters(facts, **given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kernel) and (self.name, self.parameters) == (other.name, other.parameters)

    def __hash__(self) -> int:
        return hash(self.name)

    def ptx(self, arch: tuple[int, int, str]) -> str:
        """The kernel as PTX, the same in any process, its entry point renamed to something a profiler can show."""
        return self._renamed(self._lowered(arch)(), arch)

    def _lowered(self, arch: tuple[int, int, str]) -> Callable[[], str]:
        load_numba(cuda=True)
        from numbadnn.kernels.build.lower import lowered

        return lowered(self.build, self.parameters, arch, self.threads, self.resident)

    def _renamed(self, text: str, arch: tuple[int, int, str]) -> str:
        found = re.search(r"\.entry\s+(\w+)", text)
        if not found:
            raise NumbaDNNError(f"no entry point in the PTX of {self.name}")
        names: dict[str, str] = {}  # instead of those that count what the process compiled before
        text = _COUNTED.sub(
            lambda name: names.setdefault(name[0], f"{self.entry}_{len(names)}"), text.replace(found[1], self.entry)
        )
        if arch < (9,):
            text = re.sub(r"griddepcontrol\.\w+;", "", text)
        if "map" in self.parameters.split():
            from numbadnn.kernels.build.tensormap import by_value

            text = by_value(text, self.parameters)
        return text

    @property
    def entry(self) -> str:
        return "numbadnn_" + re.sub(r"\W+", "_", self.name)

    def binary(self, arch: tuple[int, int, str]) -> _cache.Binary:
        """The compiled kernel, from disk if it is there."""
        if (stored := self._stored(arch)) is not None:
            return stored
        folder, key = self._file(arch)
        with _cache.turn(folder, [key]):
            if (stored := self._stored(arch)) is not None:
                return stored
            with compiling(self.name, "GPU"):
                return self._assembled(arch, self._lowered(arch))

    def _file(self, arch: tuple[int, int, str]) -> tuple[Path, str]:
        """The folder and the key."""
        bounds = f"{self.threads} {self.resident}"
        parts = (toolchain(), self.name, self.parameters, bounds, arch_name(arch))
        return _folder or _cache.default_folder(), _cache.key_of(*parts)

    def _stored(self, arch: tuple[int, int, str]) -> _cache.Binary | None:
        stored = _cache.read(*self._file(arch))
        if stored is not None:
            was_found()
        return stored

    def _assembled(self, arch: tuple[int, int, str], make: Callable[[], str]) -> _cache.Binary:
        made = assemble(self._renamed(make(), arch), arch_name(arch))
        log.note("info", "compiled %s for %s", self.name, arch_name(arch))
        fresh = _cache.Binary(made.image, self.entry, made.by)
        say_unkept(_cache.write(*self._file(arch), fresh, kernel=self.name, arch=arch_name(arch)))
        return fresh

    def load(self, device: int) -> int:
        """The CUkernel of this kernel, loaded for every device of this architecture the first time it is asked for."""
        arch = arch_of(_driver.compute_capability(device))
        with undisturbed(), _loading:
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
            if shared_bytes:  # however little: with its static shared memory a block may pass 48 KB
                _allow_shared(kernel, device, shared_bytes)
        offsets, values = pack(self.parameters, scalars)
        early = (
            self.early and arch_of(_driver.compute_capability(device)) >= (9,) and _driver.version() >= _EARLY_DRIVER
        )
        functions, shape = driver_addresses(early), (*grid, *block, shared_bytes)
        return Launch(self.name, device, functions, context, function.value or 0, shape, offsets, values, early)


def _words(value: Any) -> Iterator[str]:
    """The texts, numbers and flags of a configuration or a tuple, each as a word."""
    if is_dataclass(value) and not isinstance(value, type):
        value = astuple(value)
    if isinstance(value, tuple):
        for part in value:
            yield from _words(part)
    else:
        yield str(int(value)) if isinstance(value, bool) else str(value)


def _allow_shared(kernel: int, device: int, size: int) -> None:
    """Never less than before: launches prepared with more, of the same kernel for another problem, would fail."""
    with _loading:
        if size > _allowed.get((kernel, device), 0):
            attribute, value = ctypes.c_int(_MAX_SHARED_ATTRIBUTE), ctypes.c_int(size)
            _driver.call("cuKernelSetAttribute", attribute, value, kernel, ctypes.c_int(device))
            _allowed[kernel, device] = size


def load_together(device: int, *kernels: Kernel) -> None:
    """Load kernels that a plan is about to prepare, the largest first. Those not on disk are compiled side by side.

    NVVM and ptxas, half of the time, work for one while Numba reads the next. What Numba learned of calls serves all of
    them, and its garbage is collected while the first is still assembled.
    """
    if simulate.active():
        return
    arch = arch_of(_driver.compute_capability(device))
    with ensure_context(device), undisturbed(), _loading:
        binaries = {kernel: kernel._stored(arch) for kernel in kernels if (kernel, arch) not in _loaded}
        fresh = [kernel for kernel, binary in binaries.items() if binary is None]
        if fresh:
            files = [kernel._file(arch) for kernel in fresh]
            with _cache.turn(files[0][0], [key for _, key in files]):
                binaries |= _compiled_together(arch, fresh)
        for kernel, binary in binaries.items():
            if binary is not None:
                _loaded[kernel, arch] = _load(binary)


def _compiled_together(arch: tuple[int, int, str], kernels: list[Kernel]) -> dict[Kernel, _cache.Binary]:
    """Binaries of kernels that were not on disk; meanwhile some of them may be."""
    stored = [kernel._stored(arch) for kernel in kernels]
    binaries = {kernel: binary for kernel, binary in zip(kernels, stored, strict=True) if binary is not None}
    fresh = [kernel for kernel in kernels if kernel not in binaries]
    if fresh:
        load_numba(cuda=True)
        from numbadnn.kernels.build import compile as _compile

        with compiling(fresh[0].name, "GPU"), ThreadPoolExecutor(len(fresh)) as pool, _compile.together():
            made = [pool.submit(kernel._assembled, arch, kernel._lowered(arch)) for kernel in fresh]
            made[-1].result()
        binaries |= {kernel: one.result() for kernel, one in zip(fresh, made, strict=True)}
    return binaries


def _load(binary: _cache.Binary) -> int:
    lib, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    zero, none = ctypes.c_uint(0), ctypes.c_void_p()
    _driver.call("cuLibraryLoadData", ctypes.byref(lib), binary.image, none, none, zero, none, none, zero)
    _driver.call("cuLibraryGetKernel", ctypes.byref(kernel), lib, binary.entry.encode())
    return kernel.value or 0


def blocks(count: int, threads: int) -> tuple[int, int, int]:
    """The grid of one-dimensional blocks of ``threads`` that covers ``count``."""
    grid = -(-count // threads)
    if grid >= 2**31:
        raise NumbaDNNError(f"expected fewer than 2**31 blocks, got {grid}")
    return grid, 1, 1


def reciprocal(divisor: int) -> tuple[int, int]:
    """(multiplier, shift) of which ``quotient`` of ``lang/ptx.py`` makes a quotient of any number below 2**31."""
    bits = (divisor - 1).bit_length()
    return 2 ** (31 + bits) // divisor + 1, bits


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
