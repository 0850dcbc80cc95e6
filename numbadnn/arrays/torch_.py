"""PyTorch tensors, on the CPU and on CUDA devices; results are plain tensors from PyTorch's own allocator.

A tensor that requires grad while grad mode is on is refused (its gradient would be lost silently), and so are one with a
tangent, conjugate and negative views, sparse, fake and wrapped tensors, those without memory, and any tensor while PyTorch
traces or transforms what is called: its graph would lack what numbadnn computes. Destinations are told to autograd.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.autograd import forward_ad

from numbadnn.arrays import Library, View
from numbadnn.gpu import streams
from numbadnn.gpu.bindings import lasting_streams
from numbadnn.problem import Spec

_DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64"}
_TORCH_DTYPES = {name: dtype for dtype, name in _DTYPES.items()}
#: the raw handle of a device's current stream; a CPU-only build has no such function, and no CUDA tensors
_current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)

_tracing: Callable[[], bool] = torch._C._is_tracing
_recording: Callable[[], bool] = torch.is_grad_enabled
_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
#: what make_fx, torch.export, torch.func and functionalization leave behind while they run: modes and transforms in force
_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_transform: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack
_before_dispatch: list[Any] = getattr(
    getattr(torch._ops, "_mode_stack_state_for_pre_dispatch", None), "_ModeStackStateForPreDispatch__infra_modes", []
)
_NOTHING = [None] * len(_before_dispatch)
#: addresses from here on are no place in a storage that was freed and begins at 0
LOW = 2**36


def _check(tensor: torch.Tensor) -> None:
    if tensor.is_nested:  # of the strided layout, but it has neither strides nor a shape
        raise TypeError("expected a plain tensor, got a nested one")
    if tensor.layout is not torch.strided:
        raise TypeError(f"expected a dense tensor, got layout {tensor.layout}")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            "expected a tensor that does not require grad: numbadnn records no autograd history, so the gradient would "
            "be lost; use numbadnn.torch's functions, which record it, or pass tensor.detach() or call inside torch.no_grad()"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise TypeError(
            "expected a tensor without a pending conjugation or negation; call .resolve_conj().resolve_neg()"
        )
    if tracer := _tracer():
        raise TypeError(
            f"expected a tensor outside {tracer}, which would lack what numbadnn computes: use numbadnn.torch's functions there"
        )
    if _autocast() and torch.is_autocast_enabled(tensor.device.type):
        raise TypeError(
            "expected a tensor outside torch.autocast, whose dtypes numbadnn's functions do not follow: use numbadnn.torch's "
            "functions there, or torch.autocast(..., enabled=False)"
        )
    following = forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled()
    if following and forward_ad.unpack_dual(tensor).tangent is not None:
        raise TypeError(
            "expected a tensor without a tangent: numbadnn computes none, so that of the result would be lost; use "
            "numbadnn.torch's functions in reverse mode, or pass torch.autograd.forward_ad.unpack_dual(tensor).primal"
        )
    try:
        tensor.data_ptr()
    except RuntimeError as error:
        raise TypeError(
            "expected a tensor with memory of its own: inside torch.vmap and the like there is none; use numbadnn.torch's there"
        ) from error


def _tracer() -> str:
    """What of PyTorch's follows the operations of this thread and would lack ours, "" if nothing does.

    Modes of a user's own (to count operations) may be in force: they see less, but what they return is right.
    """
    if _tracing() and not torch._C._dispatch_tls_is_dispatch_key_excluded("Tracer"):
        return "torch.jit.trace"  # inside an operator that it has seen it does not look on
    if _transform() is not None:
        return "the transforms of torch.func (torch.vmap, torch.func.grad, functionalize)"
    if not _modes() and _before_dispatch == _NOTHING:
        return ""
    keys = torch._C._TorchDispatchModeKey
    kinds = (keys.PROXY, keys.FUNCTIONAL, keys.FAKE)
    if _before_dispatch != _NOTHING or any(torch._C._get_dispatch_mode(key) is not None for key in kinds):
        return "make_fx, torch.export and fake tensor modes"
    return ""


def _check_memory(tensor: torch.Tensor) -> None:
    """Not part of ``_check``, which a tensor goes through in each call of some modes."""
    if not tensor.numel() or tensor.is_meta:
        return
    last = tensor.storage_offset() + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    if (last + 1) * tensor.itemsize > tensor.untyped_storage().nbytes():
        raise TypeError(
            "expected a tensor with memory of its own: that of this one was freed (untyped_storage().resize_)"
        )
    if not tensor.data_ptr():  # torch._efficientzerotensor, which forward mode makes
        raise TypeError(
            "expected a tensor with memory of its own: this one is zeros that lie nowhere; pass tensor.clone()"
        )


def _numpy(tensor: torch.Tensor) -> Any:
    """The same memory as a NumPy array (bfloat16 by way of its bits)."""
    if tensor.dtype not in _DTYPES:
        return None  # refused on the cold path
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _probe(tensor: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
    """Hot. A layout other than strided raises in stride(); a pending negation (of an imaginary part, never packed) is
    looked for by ``check``."""
    address = tensor.data_ptr()
    if (
        (tensor.requires_grad and _recording())  # parameters come in each call of a training step, without
        or forward_ad._current_level >= 0
        or _autocast()
        or _modes()
        or _tracing()
        or _transform() is not None
        or _before_dispatch != _NOTHING
    ):
        _check(tensor)
    if address < LOW:
        _check_memory(tensor)
    device = tensor.get_device()
    signature = (tensor.shape, tensor.stride(), tensor.dtype, device, address & 15)
    return (address if device >= 0 else _numpy(tensor)), signature


def signature(tensor: torch.Tensor) -> tuple[Any, ...]:
    """That of ``_probe``, which spells it out for speed, of a tensor that was looked at."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device(), tensor.data_ptr() & 15


def _view(tensor: torch.Tensor) -> View:
    _check(tensor)
    _check_memory(tensor)
    if tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(f"expected a tensor on cpu or cuda, got device {tensor.device}")
    device = tensor.get_device()
    dtype = _DTYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    address = _numpy(tensor) if device < 0 else tensor.data_ptr()
    return View(LIBRARY, dtype, tuple(tensor.shape), tuple(tensor.stride()), device, address)


def _address(tensor: torch.Tensor) -> Any:
    return tensor.data_ptr() if tensor.is_cuda else _numpy(tensor)


#: what PyTorch's own compiler allocates with, on the current device: 0.8 us where ``empty_like`` takes 1.3
_empty_strided_cuda: Callable[..., torch.Tensor] | None = getattr(
    getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cuda", None
)


def _allocator(spec: Spec, device: int) -> Callable[[], torch.Tensor]:
    """``_empty_strided_cuda`` while the device is current, as it is where there is no other, else ``_any_allocator``'s."""
    make, current = _empty_strided_cuda, getattr(torch._C, "_cuda_getDevice", None)
    if device < 0 or make is None or current is None:
        return _any_allocator(spec, device)
    dtype = _TORCH_DTYPES[spec.dtype]
    if torch.cuda.device_count() == 1:
        return functools.partial(make, spec.shape, spec.strides, dtype)
    shape, strides, elsewhere = spec.shape, spec.strides, _any_allocator(spec, device)

    def allocate() -> torch.Tensor:
        return make(shape, strides, dtype) if current() == device else elsewhere()

    return allocate


def _any_allocator(spec: Spec, device: int) -> Callable[[], torch.Tensor]:
    """``empty_like`` of a model with hardly any memory, on any device.

    That costs a third less than naming shape and strides in each call. C order follows from strides of 0; any other order
    from tiny strides in that order, which overlap: ``empty_like`` makes dense ones of the same order.
    """
    where = torch.device("cuda", device) if device >= 0 else torch.device("cpu")
    dtype = _TORCH_DTYPES[spec.dtype]
    order = sorted(range(len(spec.shape)), key=lambda axis: (spec.strides[axis], -axis))
    small = [0 if spec.is_contiguous else order.index(axis) + 1 for axis in range(len(spec.shape))]
    room = 1 + sum(max(n - 1, 0) * s for n, s in zip(spec.shape, small, strict=True))
    if room <= 4096:
        model = torch.empty(room, dtype=dtype, device=where).as_strided(spec.shape, small)
        if spec.size and torch.empty_like(model).stride() == spec.strides:
            return functools.partial(torch.empty_like, model)
    return functools.partial(torch.empty_strided, spec.shape, spec.strides, dtype=dtype, device=where)


def _allocating_on(stream: int, device: int) -> AbstractContextManager[Any]:
    return torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device))


def _record(pairs: list[tuple[Any, Any]], stream: int, device: int) -> None:
    """PyTorch asks a stream that it was told of when the tensor goes, and ends the process where that is gone by then."""
    if stream not in lasting_streams:
        streams.hold([tensor for tensor, _ in pairs], stream, device)
        return
    on = torch.cuda.ExternalStream(stream, device=device)
    for tensor, _ in pairs:
        tensor.record_stream(on)


def _written(tensor: torch.Tensor) -> None:
    """Autograd then refuses to go back through what had saved the tensor, and those that share its memory."""
    _increment_version((tensor,))


def _increment(tensors: tuple[torch.Tensor, ...]) -> None:
    for tensor in tensors:
        torch.autograd.graph.increment_version(tensor)


#: what torch.autograd.graph.increment_version calls, at half its time, 0.09 us
_increment_version: Callable[[tuple[torch.Tensor, ...]], None] = getattr(torch._C, "_increment_version", _increment)


def _scratch(nbytes: int, device: int, stream: int) -> tuple[torch.Tensor, int]:
    buffer = _spaces(nbytes, device)()
    return buffer, buffer.data_ptr()


@functools.lru_cache(256)
def _spaces(nbytes: int, device: int) -> Callable[[], torch.Tensor]:
    return _allocator(Spec.of("float32", (-(-nbytes // 4),)), device)


LIBRARY = Library(
    name="torch",
    probe=_probe,
    view=_view,
    address=_address,
    allocator=_allocator,
    current_stream=_current_stream,
    allocating_on=_allocating_on,
    record=_record,
    scratch=_scratch,
    address_on_gpu=torch.Tensor.data_ptr,
    check=_check,
    written=_written,
)


def library_for(kind: type, array: Any, argument: str) -> Library:
    if kind.__module__.startswith("torch._subclasses"):  # FakeTensor, FunctionalTensor
        raise TypeError(
            f"{argument}: expected a tensor with memory of its own, got the {kind.__qualname__} of a trace, whose graph "
            "would lack what numbadnn computes: use numbadnn.torch's functions there"
        )
    if kind not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise TypeError(
            f"{argument}: expected a plain torch.Tensor, got the subclass {kind.__module__}.{kind.__qualname__}, "
            "whose memory numbadnn cannot take as it is"
        )
    return LIBRARY
