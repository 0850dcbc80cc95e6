"""CUDA devices that are none: what planning asks of the driver is answered, and every launch recorded and held to CUDA's limits.

``RecordedCuda`` takes the driver's place (``installed``); kernels are not compiled. ``held`` runs an executable on addresses
that no memory stands behind: each launch must be one that CUDA takes, and each address that it passes must lie in an operand or
in the workspace.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from fake_driver import FakeDriver

from numbadnn.gpu import driver as _driver
from numbadnn.kernels.build import cache as _cache
from numbadnn.kernels.build import launch as _launch
from numbadnn.kernels.build import prepared as _prepared
from numbadnn.problem import Spec
from numbadnn.registry import Executable
from numbadnn.validate.execute import words

CONTEXT, STREAM, VERSION = 77, 5, 13000
#: compute capability, multiprocessors. Their numbers are no real device's: what is remembered of them is of no other
DEVICES = {
    1000 + number: found
    for number, found in enumerate(
        (((9, 0), 132), ((9, 0), 114), ((9, 0), 78), ((9, 0), 16), ((8, 0), 108), ((8, 6), 84), ((10, 0), 148))
    )
}
#: bytes of shared memory that a block may have
SHARED = {(8, 0): 163 * 1024, (8, 6): 99 * 1024, (9, 0): 227 * 1024, (10, 0): 227 * 1024}
#: lowest and highest corner of a window (im2col mode), by the rank of the tensor
CORNERS = {3: 2**15, 4: 2**7, 5: 2**4}
#: no address, but a number that travels as one: a seed, a step
_WORDS = 1 << 40
_PITCH = 1 << 44  # of the addresses of operands, each with as much before it as behind


class Map(NamedTuple):
    """What a TMA descriptor says: bytes of an element, extents, and strides of all axes in bytes."""

    size: int
    extents: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return sum((n - 1) * step for n, step in zip(self.extents, self.steps, strict=True)) + self.size


class RecordedCuda:
    """libcuda as far as planning calls it; ``driver`` has what was launched, ``kernels`` them by number, ``maps`` descriptors."""

    def __init__(self) -> None:
        self.driver, self.device = FakeDriver(), 0
        self.kernels: list[_launch.Kernel] = []
        self.maps: list[Map] = []
        #: (kernel, device) -> bytes of dynamic shared memory that it was allowed
        self.allowed: dict[tuple[int, int], int] = {}
        self.driver.current = CONTEXT
        self.cuLaunchCooperativeKernel = _Cooperative(self)

    # ---- what planning asks

    def cuDeviceGet(self, target: Any, device: Any) -> int:
        target._obj.value = device.value
        return 0

    def cuDeviceGetAttribute(self, target: Any, attribute: Any, handle: Any) -> int:
        capability, multiprocessors = DEVICES[handle.value]
        answers = {16: multiprocessors, 75: capability[0], 76: capability[1], 97: SHARED[capability]}
        target._obj.value = answers[attribute.value]
        return 0

    def cuDevicePrimaryCtxRetain(self, target: Any, handle: Any) -> int:
        target._obj.value = CONTEXT
        return 0

    def cuCtxGetCurrent(self, target: Any) -> int:
        target._obj.value = CONTEXT
        return 0

    def cuLibraryLoadData(self, target: Any, image: bytes, *options: Any) -> int:
        target._obj.value = int(image)
        return 0

    def cuLibraryGetKernel(self, target: Any, library: Any, name: bytes) -> int:
        target._obj.value = library.value
        return 0

    def cuKernelGetFunction(self, target: Any, kernel: Any) -> int:
        target._obj.value = kernel.value
        return 0

    def cuKernelSetAttribute(self, attribute: Any, value: Any, kernel: int | Any, device: Any) -> int:
        self.allowed[getattr(kernel, "value", kernel), device.value] = value.value
        return 0

    def binary(self, kernel: _launch.Kernel, arch: Any) -> _cache.Binary:
        """In place of one on disk: the kernel's number in ``kernels``."""
        self.kernels.append(kernel)
        return _cache.Binary(str(len(self.kernels)).encode(), kernel.entry, "")

    # ---- descriptors: the number of one stands behind its address

    def cuTensorMapEncodeTiled(self, target: Any, *args: Any) -> int:
        box, apart, *how = args[5:]
        size, inner = self._describe(target, args), next(iter(box))
        interleave, swizzle = how[0].value, how[1].value
        assert not interleave
        assert all(1 <= n <= 256 for n in box) and all(1 <= n <= 8 for n in apart), f"box {list(box)}"
        assert inner * size % 16 == 0, f"a box's rows have {inner * size} bytes, no multiple of 16"
        assert not swizzle or inner * size <= 128, (
            f"a box's rows have {inner * size} bytes, more than the swizzle's 128"
        )
        return 0

    def cuTensorMapEncodeIm2col(self, target: Any, *args: Any) -> int:
        lower, upper, channels, pixels, apart, *_ = args[5:]
        size, most = self._describe(target, args), CORNERS[args[1].value]
        assert all(-most <= n < most for n in (*lower, *upper)), f"corners {list(lower)}, {list(upper)}"
        assert 1 <= channels.value <= 256 and 1 <= pixels.value <= 1024, f"box {channels.value} x {pixels.value}"
        assert channels.value * size % 16 == 0 and channels.value * size <= 128, f"box of {channels.value} channels"
        assert all(1 <= n <= 8 for n in apart), f"steps {list(apart)}"
        return 0

    def _describe(self, target: Any, args: Any) -> int:
        """Record what both kinds say; bytes of an element."""
        kind, rank, _, extents, strides = args[:5]
        size = {6: 2, 7: 4, 8: 8, 9: 2, 11: 4}[kind.value]
        assert 1 <= rank.value <= 5 and len(extents) == rank.value == len(strides) + 1
        # what did not fit has wrapped, and is seen as a number too large
        assert all(1 <= n <= 2**32 for n in extents), f"extents {list(extents)}"
        assert all(s % 16 == 0 and 0 <= s < 2**40 for s in strides), f"strides {list(strides)}"
        self.maps.append(Map(size, tuple(extents), (size, *strides)))
        ctypes.memmove(target.value, struct.pack("<QQ", 0, len(self.maps)), 16)
        return size


class _Cooperative:
    """cuLaunchCooperativeKernel: recorded as any launch, its parameters one behind the other."""

    argtypes: Any = None

    def __init__(self, cuda: RecordedCuda) -> None:
        self.cuda = cuda

    def __call__(self, function: Any, *args: Any) -> int:
        *shape, stream, pointers = args
        device = DEVICES[self.cuda.device]
        assert math.prod(shape[:3]) <= device[1], f"{shape[:3]} blocks that wait for each other on {device}"
        addresses = self.cuda.kernels[function.value - 1].parameters.split().count("ptr")
        packed = b"".join(ctypes.string_at(pointers[i], 8) for i in range(addresses))
        self.cuda.driver.launches.append(((function.value, *shape, stream, 0, 0), packed))
        return 0


@contextmanager
def installed() -> Iterator[RecordedCuda]:
    """In the driver's place, with no kernel loaded; all is as it was afterwards."""
    cuda = RecordedCuda()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_driver, "library", lambda: cuda)
        patch.setattr(_driver, "version", lambda: VERSION)
        patch.setattr(_launch, "_loaded", {})
        patch.setattr(_launch, "_allowed", {})
        patch.setattr(_launch.Kernel, "_stored", lambda kernel, arch: cuda.binary(kernel, arch))
        early = cuda.driver.early_functions
        patch.setattr(_launch, "driver_addresses", lambda is_early: early if is_early else cuda.driver.functions)
        yield cuda


class Place(NamedTuple):
    """Memory of a name, from its first byte to behind its last; ``base`` is the address that is passed."""

    name: str
    start: int
    end: int
    base: int

    @staticmethod
    def of(name: str, number: int, spec: Spec) -> Place:
        low, high = spec.span
        base = number * _PITCH + (0 if spec.aligned else spec.itemsize)
        return Place(name, base + low * spec.itemsize, base + (high + 1) * spec.itemsize, base)


def held(cuda: RecordedCuda, executable: Executable, problem: Any, device: int) -> int:
    """Run it and hold all its launches; how many there were. AssertionError says which one CUDA would refuse, and why."""
    cuda.driver.launches.clear()
    cuda.device = device
    inputs = [Place.of(f"input {i}", i + 1, spec) for i, spec in enumerate(problem.inputs)]
    outputs = [Place.of(f"output {i}", i + 20, spec) for i, spec in enumerate(problem.outputs)]
    start = 40 * _PITCH
    space = Place("workspace", start, start + executable.workspace_bytes, start)
    given = (*(p.base for p in inputs), *words(problem))
    executable.run(given, tuple(p.base for p in outputs), space.base, STREAM)
    for number, (args, packed) in enumerate(cuda.driver.launches):
        kernel = cuda.kernels[args[0] - 1]
        try:
            _hold_shape(kernel, args[1:8], SHARED[DEVICES[device][0]])
            assert args[7] <= cuda.allowed.get((args[0], device), 0), "shared memory that was not allowed"
            assert args[8] == STREAM and len(packed) <= 4096
            # what ran before is whoever's: it may still write the operands of a launch that starts early
            assert number or not args[9], "the first launch starts early"
            for address, described in _addresses(cuda, kernel, packed):
                _hold_address(address, described, [*inputs, *outputs, space])
        except AssertionError as error:
            raise AssertionError(f"{kernel.name} {args[1:8]}: {error}") from None
    return len(cuda.driver.launches)


def _hold_shape(kernel: _launch.Kernel, shape: tuple[int, ...], most_shared: int) -> None:
    x, y, z, *block, shared = shape
    assert 1 <= x < 2**31 and 1 <= y <= 65535 and 1 <= z <= 65535, "grid"
    assert min(block) >= 1 and math.prod(block) <= min(kernel.threads, 1024) and block[2] <= 64, "block"
    assert 0 <= shared <= most_shared, "shared memory"


def _addresses(cuda: RecordedCuda, kernel: _launch.Kernel, packed: bytes) -> Iterator[tuple[int, Map | None]]:
    """Each address of a launch, with the descriptor that it belongs to."""
    kinds = [word for word in kernel.parameters.split() if word in ("ptr", "map")]
    offsets, _ = _prepared.pack(" ".join(kinds), (bytes(128),) * kinds.count("map"))
    for kind, offset in zip(kinds, offsets, strict=True):
        address, number = struct.unpack_from("<qQ", packed.ljust(offset + 16, b"\0"), offset)
        yield address, cuda.maps[number - 1] if kind == "map" else None


def _hold_address(address: int, described: Map | None, places: list[Place]) -> None:
    if described is None:
        inside = abs(address) < _WORDS or any(p.start <= address < p.end for p in places)
        assert inside, f"address {_named(address, places)}"
        return
    assert address % 16 == 0, f"a descriptor's address is no multiple of 16: {_named(address, places)}"
    inside = any(p.start <= address and address + described.bytes <= p.end for p in places)
    assert inside, f"{described} of {described.bytes} bytes at {_named(address, places)}"


def _named(address: int, places: list[Place]) -> str:
    """An address as the memory next to it, for a message."""
    nearest = min(places, key=lambda p: abs(address - p.base))
    return f"{nearest.name}{address - nearest.base:+} of {nearest.start - nearest.base} to {nearest.end - nearest.base}"
