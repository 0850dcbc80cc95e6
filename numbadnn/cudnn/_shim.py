"""What a compiled host function that executes a graph plan reads and returns: one entry from Python, six C calls inside.

Everything that stays the same between calls lies in a *table* of 64-bit words that the plan owns (one plan, one
thread): the addresses of the C functions, the CUDA context they need, handle, descriptors and scratch. A call brings
the pointers. A variant pack cannot be changed once finalised, so each execution makes a fresh one and destroys it, also
after an error.

The function is in ``_compiled.py``. CAPTURED, its result for a stream being captured, says that the CUDA graph refers to what
the plan owns on the device, so that ``recover`` keeps the plan for the life of the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from numbadnn.cudnn._enums import Attr, DescriptorType, Type
from numbadnn.cudnn.lib import Library
from numbadnn.errors import NumbaDNNError

#: the module of the compiled functions that call cuDNN
COMPILED = "numbadnn.cudnn._compiled"

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
