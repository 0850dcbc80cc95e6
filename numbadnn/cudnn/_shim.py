"""The compiled host function that executes a graph plan: one entry from Python, GIL released, six C calls inside.

Everything that stays the same between calls lies in a *table* of 64-bit words that the plan owns (one plan, one
thread): the addresses of the C functions, the CUDA context they need, handle, descriptors and scratch. A call brings
the pointers. A variant pack cannot be changed once finalised, so each execution makes a fresh one and destroys it, also
after an error.

Every shim (``call_c`` of ``_call.py`` too) first asks cuCtxGetCurrent. Where another context is current it does nothing and
returns WRONG_CONTEXT. Otherwise the result is 0 for success or ``step * 2**32 + status``, the step being an index into STEPS.
An execution that went well into a stream being captured returns CAPTURED: the CUDA graph refers to what the plan owns on
the device, so that ``recover`` keeps the plan for the life of the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from numba import int32

from numbadnn.cudnn._enums import Attr, DescriptorType, Type
from numbadnn.cudnn.lib import Library
from numbadnn.errors import NumbaDNNError
from numbadnn.host.hostcall import call_address, kept, load_u32, load_u64, store_u64

WRONG_CONTEXT, CAPTURED = -1, -2

#: what captured graphs refer to, never let go
PINNED: list[object] = []

STEPS = (
    "cuCtxGetCurrent",
    "creating the variant pack",
    "its unique ids",
    "its data pointers",
    "its workspace",
    "finalising the variant pack",
    "cudnnBackendExecute",
    "destroying the variant pack",
)
C_CALL = len(STEPS)  # of ``_call``, whose ``what`` names the function

# words of a table
_CURRENT, _CONTEXT, _CONTEXT_OUT = 0, 8, 16
_CREATE, _SET, _FINALIZE, _EXECUTE, _DESTROY = 24, 32, 40, 48, 56
_HANDLE, _PLAN, _UIDS, _POINTERS, _WORKSPACE, _PACK = 64, 72, 80, 104, 128, 136
_IS_CAPTURING, _CAPTURING_OUT = 144, 152
_WORDS = 20

_KIND = int(DescriptorType.VARIANT_PACK)
_UNIQUE_IDS, _DATA, _SPACE = (
    int(Attr.VARIANT_PACK_UNIQUE_IDS),
    int(Attr.VARIANT_PACK_DATA_POINTERS),
    int(Attr.VARIANT_PACK_WORKSPACE),
)
_INT64, _VOID_PTR = int(Type.INT64), int(Type.VOID_PTR)


def graph_table(
    library: Library, current: int, context: int, handle: int, plan: int, uids: Sequence[int], is_capturing: int = 0
) -> ctypes.Array:
    """The table of ``execute_plan``: ``uids`` are the unique ids of the three pointers, in the order of the call.

    ``current`` and ``is_capturing`` are the addresses of cuCtxGetCurrent and cuStreamIsCapturing (0: not asked).
    """
    names = ("CreateDescriptor", "SetAttribute", "Finalize", "Execute", "DestroyDescriptor")
    functions = [library.address(f"cudnnBackend{name}") for name in names]
    words = [current, context, 0, *functions, handle, plan, *uids, *[0] * 5, is_capturing]
    return (ctypes.c_uint64 * _WORDS)(*words)


def recover(
    library: Library, code: int, device: int, what: str, keep: object, shim: Callable[..., int], *args: int
) -> None:
    """The cold path behind a shim that returned ``code``: enter the device's context and try again, pin, or raise.

    ``keep`` is what a captured graph needs.
    """
    from numbadnn.gpu.context import ensure_context

    if code == WRONG_CONTEXT:
        with ensure_context(device):
            code = shim(*args)
    if code == CAPTURED:
        PINNED.append(keep)
        return
    if code == WRONG_CONTEXT:
        raise NumbaDNNError(f"{what}: the primary context of CUDA device {device} is not the one it was planned in")
    if code:
        raise failure(library, code, what)


def failure(library: Library, code: int, what: str) -> NumbaDNNError:
    """The exception for a shim's result that is neither 0 nor WRONG_CONTEXT."""
    step, status = code >> 32, code & 0xFFFFFFFF
    if step == 0:
        return NumbaDNNError(f"{what}: {STEPS[0]} failed with CUDA error {status}")
    return library.error(what if step == C_CALL else f"{what}: {STEPS[step]}", status)


@kept("int64(int64)")
def _check_context(table):
    status = call_address(load_u64(table + _CURRENT), table + _CONTEXT_OUT)
    if status != 0:
        return status
    if load_u64(table + _CONTEXT_OUT) != load_u64(table + _CONTEXT):
        return -1
    return 0


@kept("int64(int64, int64, int64)")
def _fill_and_run(table, pack, workspace):
    """Steps 2 to 6 of an execution; the caller destroys the pack."""
    setter = load_u64(table + _SET)
    store_u64(table + _WORKSPACE, workspace)
    status = call_address(setter, pack, int32(_UNIQUE_IDS), int32(_INT64), 3, table + _UIDS)
    if status != 0:
        return (2 << 32) + status
    status = call_address(setter, pack, int32(_DATA), int32(_VOID_PTR), 3, table + _POINTERS)
    if status != 0:
        return (3 << 32) + status
    status = call_address(setter, pack, int32(_SPACE), int32(_VOID_PTR), 1, table + _WORKSPACE)
    if status != 0:
        return (4 << 32) + status
    status = call_address(load_u64(table + _FINALIZE), pack)
    if status != 0:
        return (5 << 32) + status
    status = call_address(load_u64(table + _EXECUTE), load_u64(table + _HANDLE), load_u64(table + _PLAN), pack)
    if status != 0:
        return (6 << 32) + status
    return 0


@kept("int64(int64, int64, int64, int64, int64, int64)")
def execute_plan(table, workspace, a, b, c, stream):
    """Execute a graph plan on three tensors; see graph_table. ``stream`` is the one the handle has, to be asked about."""
    code = _check_context(table)
    if code != 0:
        return code
    store_u64(table + _POINTERS, a)
    store_u64(table + (_POINTERS + 8), b)
    store_u64(table + (_POINTERS + 16), c)
    status = call_address(load_u64(table + _CREATE), int32(_KIND), table + _PACK)
    if status != 0:
        return (1 << 32) + status
    pack = load_u64(table + _PACK)
    code = _fill_and_run(table, pack, workspace)
    status = call_address(load_u64(table + _DESTROY), pack)
    if code == 0 and status != 0:
        return (7 << 32) + status
    is_capturing = load_u64(table + _IS_CAPTURING)
    if code == 0 and is_capturing != 0:
        status = call_address(is_capturing, stream, table + _CAPTURING_OUT)
        if status == 0 and load_u32(table + _CAPTURING_OUT) != 0:
            return -2
    return code
