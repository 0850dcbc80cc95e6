"""The compiled host functions that call cuDNN: ``execute_plan`` a graph plan, ``call_c`` one C function.

Each reads a table (``_shim.graph_table``, ``_call.table_of``). First it asks cuCtxGetCurrent and returns WRONG_CONTEXT, having
done nothing, where another context is current. Otherwise the result is 0 for success or ``step * 2**32 + status``, the step
being an index into ``_shim.STEPS``. An execution that went well into a stream being captured returns CAPTURED.
Importing this module imports Numba: callers ask ``host.entry`` for its functions.
"""

from __future__ import annotations

from numba import int32

from numbadnn.cudnn._call import _COUNT, _FUNCTION, _PLACES, _REALS, _VALUES
from numbadnn.cudnn._shim import (
    _CAPTURING_OUT,
    _CONTEXT,
    _CONTEXT_OUT,
    _CREATE,
    _CURRENT,
    _DATA,
    _DESTROY,
    _EXECUTE,
    _FINALIZE,
    _HANDLE,
    _INT64,
    _IS_CAPTURING,
    _KIND,
    _PACK,
    _PLAN,
    _POINTERS,
    _SET,
    _SPACE,
    _UIDS,
    _UNIQUE_IDS,
    _VOID_PTR,
    _WORKSPACE,
    C_CALL,
)
from numbadnn.host.hostcall import call_address, kept, load_f64, load_u32, load_u64, store_u64


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


@kept("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def call_c(table, p0, p1, p2, p3, p4, p5, p6, p7):
    """0, WRONG_CONTEXT, or step * 2**32 + status as in ``STEPS``."""
    code = _check_context(table)
    if code != 0:
        return code
    pointers = (p0, p1, p2, p3, p4, p5, p6, p7)
    for i in range(load_u64(table + _COUNT)):
        store_u64(table + load_u64(table + (_PLACES + 8 * i)), pointers[i])
    status = call_address(
        load_u64(table + _FUNCTION),
        load_f64(table + _REALS),
        load_f64(table + (_REALS + 8)),
        load_u64(table + _VALUES),
        load_u64(table + (_VALUES + 8)),
        load_u64(table + (_VALUES + 16)),
        load_u64(table + (_VALUES + 24)),
        load_u64(table + (_VALUES + 32)),
        load_u64(table + (_VALUES + 40)),
        load_u64(table + (_VALUES + 48)),
        load_u64(table + (_VALUES + 56)),
        load_u64(table + (_VALUES + 64)),
        load_u64(table + (_VALUES + 72)),
        load_u64(table + (_VALUES + 80)),
        load_u64(table + (_VALUES + 88)),
        load_u64(table + (_VALUES + 96)),
        load_u64(table + (_VALUES + 104)),
        load_u64(table + (_VALUES + 112)),
        load_u64(table + (_VALUES + 120)),
        load_u64(table + (_VALUES + 128)),
        load_u64(table + (_VALUES + 136)),
    )
    return (C_CALL << 32) + status if status != 0 else 0
