"""One C call of cuDNN made ready: everything but the pointers lies in a table, and one compiled function issues it.

``prepare`` takes the arguments in the order of cuDNN's prototype, ``POINTER[i]`` standing for the i-th address of a call:

    issue = prepare(library, device, "softmax", "cudnnSoftmaxForward",
                    (algorithm, mode, one, x_desc, POINTER[0], zero, y_desc, POINTER[1]), keep=descriptors)
    issue(stream, x, y)

Integers and doubles travel in registers of their own (System V x86-64, AAPCS64), so a function's doubles can be handed
over before its integers, and words that it has no parameter for are never looked at: one shim (``_compiled.call_c``) serves
every prototype of at most 18 integers and 2 doubles. The handle comes first in each and is added here.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from numbadnn.cudnn import _shim, lib
from numbadnn.host.entry import address_of, entry

MOST_WORDS, MOST_REALS, MOST_POINTERS = 18, 2, 8


class _Pointer(int):
    """Stands for the address that a call brings in this place."""


POINTER = tuple(_Pointer(i) for i in range(MOST_POINTERS))

# bytes into a table: the three words of the context, then these
_FUNCTION, _COUNT, _PLACES = 24, 32, 40
_REALS = _PLACES + 8 * MOST_POINTERS
_VALUES = _REALS + 8 * MOST_REALS


def prepare(
    library: lib.Library,
    device: int,
    what: str,
    function: str,
    arguments: Sequence[int],
    reals: Sequence[float] = (),
    keep: Any = None,
) -> Callable[..., None]:
    """``issue(stream, *addresses)``; ``reals`` are its doubles in order, ``keep`` stays alive."""
    from numbadnn.gpu import context as _context
    from numbadnn.gpu import driver as _driver

    with _context.ensure_context(device):
        handle = lib.handle(library, device)
    current = address_of(_driver.library(), "cuCtxGetCurrent")
    words = (handle.value, *arguments)
    table = table_of(current, _context.primary_context(device), library.address(function), words, reals)
    count = sum(isinstance(w, _Pointer) for w in words)
    start, shim, rest = ctypes.addressof(table), entry(_shim.COMPILED, "call_c"), (0,) * (MOST_POINTERS - count)

    # the default keeps alive what the table points to
    def issue(stream: int, *addresses: int, _keep: Any = (table, keep)) -> None:
        if stream != handle.stream:
            handle.set_stream(stream)
        code = shim(start, *addresses, *rest)
        if code:
            _shim.recover(library, code, device, f"{what}: {function}", None, shim, start, *addresses, *rest)

    return issue


def table_of(
    current: int, context: int, function: int, words: Sequence[int], reals: Sequence[float] = ()
) -> ctypes.Array[ctypes.c_uint64]:
    """What ``call_c`` reads; ``current`` is the address of cuCtxGetCurrent, ``context`` what it must say."""
    places = {int(w): _VALUES + 8 * i for i, w in enumerate(words) if isinstance(w, _Pointer)}
    assert sorted(places) == list(range(len(places))) and len(words) <= MOST_WORDS and len(reals) <= MOST_REALS
    head = [current, context, 0, function, len(places), *(places[i] for i in range(len(places)))]
    table = (ctypes.c_uint64 * (_VALUES // 8 + MOST_WORDS))(*head)
    doubles = struct.pack("2d", *reals, *[0.0] * (MOST_REALS - len(reals)))
    ctypes.memmove(ctypes.addressof(table) + _REALS, doubles, 8 * MOST_REALS)
    for i, w in enumerate(words):
        table[_VALUES // 8 + i] = w
    return table
