"""A kernel with everything fixed but its addresses, which one compiled host call launches.

``pack`` lays the parameters out as the driver reads them; a ``Launch`` is that buffer and the record (``record.py``) that
``shim.py`` calls the driver with; a ``sequence`` is several of them in one call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from numbadnn.gpu import driver as _driver
from numbadnn.gpu.context import ensure_context
from numbadnn.host.entry import address_of, entry
from numbadnn.kernels.build import simulate
from numbadnn.kernels.build.record import CONFIG, OFFSETS, VALUES, WRONG_CONTEXT

_FORMATS = {"ptr": "q", "i32": "i", "i64": "q", "f32": "f", "f64": "d"}
_MAP_BYTES, _MAP_ALIGN = 128, 64
_MAP_BASE = 0x210  # of parameters in sm_90's constant bank; it is the place there that is aligned
_BUFFER, _BUFFER_SIZE, _END = 1, 2, 0  # CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE, _END
_EARLY_ATTRIBUTE = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_CONFIG_BYTES, _ATTRIBUTE_BYTES = 56, 72  # of CUlaunchConfig and CUlaunchAttribute
_MAX_ADDRESSES = 12
_NONE = 99
#: the module of the compiled functions that launch
_SHIMS = "numbadnn.kernels.build.shim"


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
        self.name, self.device, self.context = name, device, context
        count, first = len(offsets), VALUES // 8
        # the first three addresses are written one behind the other, whatever the kernel has of them
        self._record = np.zeros(first + max(-(-len(values) // 8), 3), np.uint64)
        start = int(self._record.ctypes.data)
        # one packed buffer: an array of pointers, one a parameter, costs the driver a fifth of a microsecond more
        self._extra = np.array([_BUFFER, start + VALUES, _BUFFER_SIZE, 0, _END, len(values)], np.uint64)
        self._extra[3] = self._extra.ctypes.data + 5 * 8  # the address of the size
        get_current, launch = functions
        head = (get_current, context, 0, launch, function, *shape, count, self._extra.ctypes.data)
        self._record[: len(head)] = head
        self._record[OFFSETS // 8 :][:count] = [VALUES + offset for offset in offsets]
        self._record.view(np.uint8)[VALUES:][: len(values)] = np.frombuffer(values, np.uint8)
        self._config = _early_config(shape) if early else np.zeros(0, np.uint64)
        self._record[CONFIG // 8] = self._config.ctypes.data if early else 0
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
    shim = entry(_SHIMS, "launch_shim" if plain else "launch_shim_of_many")

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

    table = [len(routes)]
    for launch, route in routes:
        numbers = [number % 2**64 for pair in route for number in pair]  # an offset may be negative
        table += [launch._record.ctypes.data, len(route), *numbers]
    keep = np.array(table, np.uint64)
    shim, start, rest = entry(_SHIMS, "launch_sequence"), int(keep.ctypes.data), (0,) * (_MAX_ADDRESSES - len(given))
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
    if status == WRONG_CONTEXT:
        with ensure_context(device):
            status = shim(*arguments)
    _driver.check(status, f"launching {name}")
