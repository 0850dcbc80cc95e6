"""cuDNN's own dropout, "cudnn.dropout": only where the call names cuDNN, because its random numbers are others.

Source: cudnn_ops.h. The states of cuDNN's generator are made from the seed in each call, in the workspace, so that a call
depends on nothing but its arguments. The mask that cudnnDropoutForward leaves in a reserve space is not kept: the gradient, which
is the same product with the same mask, is cudnnDropoutForward of dy from the same states.
"""

from __future__ import annotations

import ctypes
from typing import Any

from numbadnn.cudnn import lib
from numbadnn.cudnn._tensors import made, tensor
from numbadnn.problem import Policy
from numbadnn.problems.dropout import DropoutProblem
from numbadnn.registry import Executable, Impl, register

_ALIGN = 256


def supports(problem: DropoutProblem, policy: Policy) -> str:
    """ "" if the call named cuDNN and it can do this, else the reason; asks no device."""
    if problem.generator != "cudnn":
        return "cuDNN's random numbers are its own: it is used where the call itself names it (backend='cudnn')"
    if policy.determinism not in ("run_to_run", "not_guaranteed"):
        return f"cuDNN guarantees run_to_run at best, the option determinism asks for {policy.determinism}"
    if problem.source.dtype == "bfloat16":
        return "cuDNN's dropout has no bfloat16: CUDNN_STATUS_NOT_SUPPORTED (cuDNN 9.19, H200)"
    if not (problem.source.is_contiguous and problem.output.is_contiguous):
        return "cuDNN's dropout gets arrays packed in C order"
    if problem.source.size > 2**31 - 1:
        return "the array has more than 2**31 elements, cuDNN's descriptor counts in 32 bits"
    return ""


def plan(problem: DropoutProblem, policy: Policy, config: Any) -> Executable:
    """Descriptors and the sizes of states and reserve space, bound into one callable."""
    from numbadnn.gpu import context as _context

    library, device = lib.load(), policy.device
    states, reserve = ctypes.c_size_t(), ctypes.c_size_t()
    with _context.ensure_context(device):
        handle = lib.handle(library, device)
        n = problem.source.size
        flat = tensor(library, problem.source.dtype, (1, 1, 1, n), (n, n, n, 1))
        descriptor = made(library, "Dropout")
        library.call("cudnnDropoutGetStatesSize", handle.value, ctypes.byref(states))
        library.call("cudnnDropoutGetReserveSpaceSize", flat.value, ctypes.byref(reserve))
    after = -(-states.value // _ALIGN) * _ALIGN

    def direct(stream: int, x: int, seed: int, offset: int, y: int, space: int = 0) -> None:
        with _context.ensure_context(device):
            if stream != handle.stream:
                handle.set_stream(stream)
            library.call(
                "cudnnSetDropoutDescriptor",
                descriptor.value,
                handle.value,
                problem.p,
                space,
                states.value,
                seed % 2**64,
            )
            library.call(
                "cudnnDropoutForward",
                handle.value,
                descriptor.value,
                flat.value,
                x,
                flat.value,
                y,
                space + after,
                reserve.value,
            )

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: int | None, stream: int | None) -> None:
        x, seed, offset = inputs
        direct(stream or 0, x, seed, offset, outputs[0], workspace or 0)

    facts = {"cudnn": library.version, "states": states.value, "mask": "regenerated"}
    return Executable(run, after + reserve.value, facts=facts, direct=direct)


def rank(problem: DropoutProblem) -> float:
    """Microseconds on an H200, roughly: making the states takes most of it."""
    return 50.0 + problem.bytes / 1.5e6


for _op in ("dropout", "dropout_grad"):
    register(
        Impl(
            op=_op,
            backend="cudnn",
            name="cudnn.dropout",
            supports=supports,
            plan=plan,
            rank=rank,
            arithmetic="ieee",
            determinism="run_to_run",
        )
    )
