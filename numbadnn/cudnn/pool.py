"""Pooling and its gradient through cudnnPoolingForward and cudnnPoolingBackward: implementation "cudnn.pool".

Source: cudnn_ops.h. The gradient of a maximum always asks for MAX_DETERMINISTIC: NVIDIA documents the other as not
reproducible, and both give a tie to the first element of the window (measured, cuDNN 9.19 on an H200).
"""

from __future__ import annotations

import ctypes
import struct
import weakref
from typing import Any

from numbadnn.cudnn import lib
from numbadnn.cudnn._enums import DATA_TYPE, NanPropagation, PoolingMode
from numbadnn.ops.pool import PoolProblem
from numbadnn.problem import Policy, Spec
from numbadnn.registry import Executable, Impl, register

_INT_MAX = 2**31 - 1
MODES = {
    "max": PoolingMode.MAX,
    "max_deterministic": PoolingMode.MAX_DETERMINISTIC,
    "average_inc_pad": PoolingMode.AVERAGE_COUNT_INCLUDE_PADDING,
    "average_exc_pad": PoolingMode.AVERAGE_COUNT_EXCLUDE_PADDING,
}


def supports(problem: PoolProblem, policy: Policy) -> str:
    """ "" if cuDNN's pooling can do this, else the reason; asks no device."""
    operands, dtype = (*problem.inputs, problem.output), problem.x.dtype
    if problem.mode not in MODES:
        return f"cuDNN's pooling has no mode {problem.mode}; its average times the window's size rounds twice"
    if policy.determinism not in ("run_to_run", "not_guaranteed"):
        return f"cuDNN promises run_to_run at best, the option determinism asks for {policy.determinism}"
    if policy.precision == "float16" or (policy.precision == "float64" and dtype != "float64"):
        return f"cuDNN's pooling computes {dtype} data in its own accumulator, not in {policy.precision}"
    if any(s <= 0 for spec in operands for n, s in zip(spec.shape, spec.strides, strict=True) if n > 1):
        return "cuDNN's pooling takes positive strides only"
    if any(spec.span[1] > _INT_MAX for spec in operands):
        return "an operand spans more than 2**31 elements, cuDNN's pooling counts strides in 32 bits"
    return ""


def _ints(values: Any) -> Any:
    return (ctypes.c_int * len(values))(*values)


def _tensor(library: lib.Library, spec: Spec) -> Any:
    """A tensor descriptor (its address) that is destroyed with the object returned."""
    out = ctypes.c_void_p()
    library.call("cudnnCreateTensorDescriptor", ctypes.byref(out))
    weakref.finalize(out, library.functions.cudnnDestroyTensorDescriptor, out.value).atexit = False
    # axes of size 1 may have any stride here, but not 0
    strides = [max(s, 1) if n == 1 else s for n, s in zip(spec.shape, spec.strides, strict=True)]
    rank, kind = len(spec.shape), int(DATA_TYPE[spec.dtype])
    library.call("cudnnSetTensorNdDescriptor", out.value, kind, rank, _ints(spec.shape), _ints(strides))
    return out


def _pooling(library: lib.Library, problem: PoolProblem) -> Any:
    out = ctypes.c_void_p()
    library.call("cudnnCreatePoolingDescriptor", ctypes.byref(out))
    weakref.finalize(out, library.functions.cudnnDestroyPoolingDescriptor, out.value).atexit = False
    mode = MODES["max_deterministic" if problem.is_max and problem.op == "pool_grad" else problem.mode]
    axes = [_ints(v) for v in (problem.window, problem.pad, problem.stride)]
    numbers = (int(mode), int(NanPropagation.PROPAGATE_NAN), len(problem.window))
    library.call("cudnnSetPoolingNdDescriptor", out.value, *numbers, *axes)
    return out


def plan(problem: PoolProblem, policy: Policy, config: Any) -> Executable:
    """Descriptors, scalars and the shim's table, bound into one callable."""
    from numbadnn.cudnn import _shim
    from numbadnn.kernels import _context, _driver

    forward = problem.op == "pool"
    library = lib.load()
    with _context.ensure_context(policy.device):
        handle = lib.handle(library, policy.device)
    tensors = [_tensor(library, spec) for spec in (*problem.inputs, problem.output)]
    pooling = _pooling(library, problem)
    # alpha 1 and beta 0: double for float64 data, else float, each in 8 bytes of its own
    one = struct.pack("d", 1.0) if problem.x.dtype == "float64" else struct.pack("f4x", 1.0)
    scalars = ctypes.create_string_buffer(one + bytes(8), 16)
    words = _shim.pooling_table(
        library,
        ctypes.cast(_driver.library().cuCtxGetCurrent, ctypes.c_void_p).value or 0,
        _context.primary_context(policy.device),
        handle.value,
        "cudnnPoolingForward" if forward else "cudnnPoolingBackward",
        pooling.value,
        ctypes.addressof(scalars),
        [t.value for t in tensors],
    )
    table, what, device = ctypes.addressof(words), problem.op, policy.device
    shim = _shim.pooling_forward if forward else _shim.pooling_backward

    # the default keeps alive what the table points to
    def issue(stream: int, *addresses: int, _keep: Any = (words, scalars, tensors, pooling)) -> None:
        if stream != handle.stream:
            handle.set_stream(stream)
        code = shim(table, *addresses)
        if code:
            _shim.recover(library, code, device, what, None, shim, table, *addresses)

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: int | None, stream: int | None) -> None:
        issue(stream or 0, *inputs, *outputs)

    facts: dict[str, Any] = {"mode": problem.mode, "copies": [], "cudnn": library.version}
    if problem.is_max:
        facts["not finite"] = "a window of nothing but -inf gives the lowest finite number"
    return Executable(run=run, facts=facts, direct=issue)


def rank(problem: PoolProblem) -> float:
    """An estimate in microseconds: launch, and memory at what cuDNN reached on an H200.

    A maximum comes last, to run only where cuDNN is asked for: its windows of nothing but -inf are not -inf.
    """
    if problem.is_max:
        return 1e12
    return 6.0 + problem.bytes / (1.6e6 if problem.op == "pool" else 0.5e6)


for _op in ("pool", "pool_grad"):
    register(
        Impl(
            op=_op,
            backend="cudnn",
            name="cudnn.pool",
            supports=supports,
            plan=plan,
            rank=rank,
            arithmetic="ieee",
            determinism="run_to_run",
        )
    )
