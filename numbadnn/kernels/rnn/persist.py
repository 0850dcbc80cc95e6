"""All steps of a recurrent layer in one launch: the host side of ``device/persist.py``, and when it is worth it.

The blocks of a launch wait for each other, so all of them must be on the GPU at once: the launch is cooperative, and no
larger than the number of multiprocessors. More sequences than fit go one launch after another.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from typing import Any

from numbadnn.gpu import driver as _driver
from numbadnn.gpu.context import ensure_context
from numbadnn.kernels.build import simulate
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.machine import multiprocessors
from numbadnn.kernels.copies.copy import plan_fill
from numbadnn.kernels.rnn.persist_config import COUNTER_BYTES, COUNTERS, THREADS, Persist
from numbadnn.problem import Spec
from numbadnn.problems.rnn_network import GATES

#: the driver's number of the attribute of a device: most shared memory of a block
_MOST_SHARED = 97

_FORWARD = "ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr i32 i32 i32 i32 i32 i64 i64 i64 i32"
_BACKWARD = "ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr ptr i32 i32 i32 i32 i32 i64 i64 i64 i64 i64 i32"


@functools.cache
def most_shared(device: int) -> int:
    """Bytes of shared memory that a block on this device may have, static and dynamic together."""
    handle, nbytes = ctypes.c_int(), ctypes.c_int()
    _driver.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
    _driver.call("cuDeviceGetAttribute", ctypes.byref(nbytes), ctypes.c_int(_MOST_SHARED), handle)
    return nbytes.value


#: (rows, units) of a block's tile; eagerly passed on, and by a barrier
EAGER_TILES, TILES = ((8, 8), (8, 16), (8, 32), (16, 8), (16, 16)), ((8, 32), (16, 16), (32, 8), (16, 8))


def choose(s: Any, backward: bool, keeps: bool = True) -> tuple[Persist, int] | None:
    """(configuration, tiles of sequences a launch has), or None where the state does not fit or would not gain."""
    half = s.dtype == "float16"
    if s.steps < 2 or s.dtype not in ("float32", "float16") or s.hidden % (128 if half else 32):
        return None
    mode, has_lengths = s.problem.network.rnn_mode, s.problem.lengths is not None
    best: tuple[float, Persist, int] | None = None
    for eager in (False, True):
        for rows, units in EAGER_TILES if eager else TILES:
            config = Persist(mode, s.dtype, s.hidden, rows, units, has_lengths, keeps or backward, eager)
            at_once = _at_once(s, config, backward)
            if not at_once:
                continue
            launches = -(-s.batch // (rows * at_once))
            cost = launches * (rows * units + (1024 if half else 128 if eager else 256))
            if best is None or cost < best[0]:
                best = (cost, config, at_once)
    if best is None or -(-s.batch // best[1].rows) // best[2] > 8:
        return None
    return best[1], best[2]


def _at_once(s: Any, config: Persist, backward: bool) -> int:
    """Tiles of sequences that are on the GPU at once, 0 where a configuration does not fit."""
    H, rows, units, half = config.hidden, config.rows, config.units, config.dtype == "float16"
    most = 227 * 1024 if simulate.active() else most_shared(s.device)
    count = 132 if simulate.active() else multiprocessors(s.device)
    words = H // 128 * GATES[config.mode] * units // 8 * 2  # of R in each thread's registers
    received = rows * H * (GATES[config.mode] if backward else 1) // THREADS  # by each thread in a step
    fits = config.shared_bytes(backward) + config.reduced_bytes(backward) <= most
    if H % units or H // units > count or not fits or (half and words > 128):
        return 0
    if config.eager and (half or received > 32):
        return 0
    # by a barrier, the smallest tile is for one block that has all units
    if rows == 8 and not config.eager and (units != H or half):
        return 0
    tiles = -(-s.batch // rows)
    if simulate.active() and tiles * H > units:  # the simulator cannot have two blocks meet
        return 0
    return min(tiles, count // (H // units), COUNTERS)


def scratch_bytes(s: Any) -> int:
    """What the launches of either pass need of their own: counters, and the mail."""
    found = [(choose(s, backward), backward) for backward in (False, True)]
    mail = [chosen[1] * chosen[0].mail_bytes(backward) for chosen, backward in found if chosen]
    return COUNTERS * COUNTER_BYTES + max(mail, default=0)


@functools.cache
def kernel(what: str, config: Persist) -> Kernel:
    """The kernel of one configuration."""
    forward = what == "forward"
    made_by = f"rnn.device.persist{'' if forward else '_grad'}.kernel_of"
    return Kernel.of(f"rnn_persist_{what}", made_by, (config,), _FORWARD if forward else _BACKWARD, THREADS)


def prepare(s: Any, what: str, config: Persist, at_once: int, scalars: tuple[Any, ...]) -> Callable[..., None]:
    """``run(stream, *addresses)``: as many launches as the sequences take; the last address is that of the counters."""
    chosen, shared = kernel(what, config), config.shared_bytes(what == "backward")
    tiles, launches = -(-s.batch // config.rows), []
    for first in range(0, tiles, at_once):
        grid = (s.hidden // config.units, min(at_once, tiles - first), 1)
        launches.append(cooperative(chosen, s.device, grid, (*scalars, first * config.rows), shared))
    mail = at_once * config.mail_bytes(what == "backward")
    zero = plan_fill(Spec.of("float32", ((COUNTERS * COUNTER_BYTES + mail) // 4,)), 0.0, s.device)

    def run(stream: int, *addresses: int) -> None:
        for launch in launches:
            zero(addresses[-1], stream)
            launch(stream, *addresses)

    return run


def cooperative(
    chosen: Kernel, device: int, grid: tuple[int, int, int], scalars: tuple[Any, ...], shared_bytes: int
) -> Callable[..., None]:
    """A launch all of whose blocks run at once: ``launch(stream, *addresses)``."""
    launch: Any = chosen.prepare(device, grid, (THREADS, 1, 1), scalars, shared_bytes)
    if simulate.active():
        return launch.direct
    with ensure_context(device):
        function, kernel_handle = ctypes.c_void_p(), chosen.load(device)
        _driver.call("cuKernelGetFunction", ctypes.byref(function), kernel_handle)
    formats = {"i32": "<i4x", "i64": "<q"}
    words = chosen.parameters.split()
    count = words.count("ptr")
    values = [struct.pack(formats[w], v) for w, v in zip(words[count:], scalars, strict=True)]
    buffer = ctypes.create_string_buffer(bytes(8 * count) + b"".join(values))
    start = ctypes.addressof(buffer)
    pointers = (ctypes.c_void_p * len(words))(*(start + 8 * i for i in range(len(words))))
    table = (ctypes.c_uint64 * count).from_buffer(buffer)
    issue = _driver.library().cuLaunchCooperativeKernel
    issue.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p]
    shape = (*grid, THREADS, 1, 1, shared_bytes)

    def run(stream: int, *addresses: int, _keep: Any = (buffer, chosen)) -> None:
        table[:] = list(addresses)
        with ensure_context(device):
            _driver.check(issue(function, *shape, stream, pointers), f"launching {chosen.name}")

    return run
