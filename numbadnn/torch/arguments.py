"""The arguments of PyTorch's functions: tensors, a number for each axis, padding, autocast. Errors name the argument."""

from __future__ import annotations

import marshal
from typing import Any

import numpy as np
import torch

from numbadnn.arrays import torch_
from numbadnn.errors import NotSupportedError
from numbadnn.host.bounded import remember

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def tensor(name: str, value: Any, like: Any = None, like_name: str = "input") -> None:
    """A dense floating-point tensor, of the dtype and on the device of ``like``, else TypeError or ValueError."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}")
    if value.dtype not in DTYPES:
        raise TypeError(f"{name}: expected dtype float16, bfloat16, float32 or float64, got {value.dtype}")
    if value.layout is not torch.strided or value.is_nested:
        raise TypeError(f"{name}: expected a dense tensor, got {'a nested one' if value.is_nested else value.layout}")
    if not torch.compiler.is_compiling() and torch_._tracing():
        raise NotSupportedError(
            f"{name}: expected a tensor outside torch.jit.trace, whose graphs have tensors for sizes: use torch.export.export or "
            "torch.compile",
            (),
        )
    if like is None:
        return
    if value.dtype is not like.dtype:
        raise TypeError(f"{name}: expected the dtype of {like_name}, {like.dtype}, got {value.dtype}")
    if value.device != like.device:
        raise ValueError(f"{name}: expected a tensor on {like.device}, where {like_name} is, got one on {value.device}")


def each(name: str, value: Any, count: int, least: int = 1) -> tuple[int, ...]:
    """A number for each of ``count`` axes, from one number for all or a sequence; ValueError for one below ``least``."""
    value = plain(value)
    if is_integer(value):
        values = (value,) * count
    elif isinstance(value, tuple | list):
        values = tuple(value) * count if len(value) == 1 else tuple(value)
    else:
        raise TypeError(f"{name}: expected an integer or {count} of them, got {value!r}")
    if len(values) != count:
        raise ValueError(f"{name}: expected an integer or {count} of them, got {value!r}")
    if not all(map(is_integer, values)):
        raise TypeError(f"{name}: expected integers, got {value!r}")
    if any(number < least for number in values):
        raise ValueError(f"{name}: expected integers of at least {least}, got {value!r}")
    return tuple(values)


_ITSELF = frozenset((int, float, bool, str, type(None)))


def plain(value: Any) -> Any:
    """The same with Python's numbers for NumPy's and for tensors of one number; itself where there are none.

    A tensor that requires grad stays, and is refused as a number then: its gradient would be lost. So do floating-point tensors
    with axes, as PyTorch refuses them.
    """
    if type(value) in _ITSELF:
        return value
    if isinstance(value, tuple | list):
        items = tuple(map(plain, value))
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        return value.item()
    if isinstance(value, torch.Tensor) and not value.requires_grad:
        one = value.ndim == 0 or (value.numel() == 1 and not value.is_floating_point())
        return value.item() if one else value
    return value


def is_integer(value: Any) -> bool:
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def integer(name: str, value: Any) -> Any:
    """An integer of Python, NumPy or a tensor, else TypeError."""
    found = plain(value)
    if not is_integer(found):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    return found


def number(name: str, value: Any) -> float:
    """A real number of Python, NumPy or a tensor, else TypeError."""
    found = plain(value)
    if not isinstance(found, int | float | torch.SymInt | torch.SymFloat):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    return float(found)


def flag(name: str, value: Any) -> bool:
    """True or False of Python or NumPy, else TypeError, as PyTorch's functions raise it."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def check_batch(name: str, value: Any, axes: int) -> None:
    """With an axis of images or without, else ValueError."""
    if value.ndim not in (axes + 1, axes + 2):
        raise ValueError(
            f"{name}: expected {axes + 1} or {axes + 2} dimensions, got {value.ndim} (shape {tuple(value.shape)})"
        )


_known: dict[Any, Any] = {}


def remembered(prepare: Any, given: Any, *tensors: Any) -> Any:
    """``prepare(given, *tensors)``, which looks at shapes, dtypes, devices and layouts alone: in eager mode once for each.

    What is given is a key as it is written: 1, True and 1.0 are not the same. ``prepare`` gets ``plain`` numbers.
    """
    if torch.compiler.is_compiling():
        return prepare(plain(given), *tensors)
    try:
        key = (
            prepare,
            marshal.dumps(given, 2),
            *[None if t is None else (t.shape, t.dtype, t.device, t.layout) for t in tensors],
        )
        found = _known.get(key)
    except (
        ValueError,
        TypeError,
        AttributeError,
        RuntimeError,
    ):  # a symbol of a trace, a tensor's number, or no tensor
        return prepare(plain(given), *tensors)
    if found is None:
        numbers = plain(given)
        if numbers is not given:  # NumPy's are written as their bytes, which are no key
            return remembered(prepare, numbers, *tensors)
        found = prepare(given, *tensors)
        remember(_known, key, found)
    return found


def refuse(name: str, value: Any, expected: Any, cure: str) -> None:
    """What numbadnn has not, by the argument's name."""
    if value != expected:
        raise NotSupportedError(f"{name}: expected {expected!r}, got {value!r}: {cure}", ())


# ---- autocast --------------------------------------------------------------------------------------------------------


def no_autocast() -> bool:
    """Whether there is none for any kind of device, which is quick to ask; never in a trace."""
    return not torch.compiler.is_compiling() and not torch_._autocast()


def lowered(first: torch.Tensor, *others: Any) -> tuple[Any, ...]:
    """The tensors in the dtype of the autocast in force, as PyTorch's convolutions take them."""
    if no_autocast():
        return first, *others
    kind = "cuda" if first.is_cuda else first.device.type  # which makes a text anew
    if not torch.is_autocast_enabled(kind):
        return first, *others
    dtype = torch.get_autocast_dtype(kind)
    return tuple([t if t is None or t.dtype is dtype else _in(dtype, t) for t in (first, *others)])


def raised(first: torch.Tensor, *others: Any, on: str) -> tuple[Any, ...]:
    """The tensors in float32 under autocast ``on`` this kind of device, where PyTorch's function takes them so.

    On CUDA PyTorch computes softmax in float32, on the CPU grid_sample and avg_pool3d.
    """
    if no_autocast():
        return first, *others
    kind = first.device.type
    if kind != on or not torch.is_autocast_enabled(kind):
        return first, *others
    return tuple(_in(torch.float32, t) for t in (first, *others))


def widest(first: torch.Tensor, *others: Any) -> tuple[Any, ...]:
    """The tensors in the widest dtype of them under autocast, as PyTorch's grid_sample takes them on CUDA."""
    if no_autocast() or not torch.is_autocast_enabled(first.device.type):
        return first, *others
    wide = any(t.dtype is torch.float32 for t in (first, *others))
    return tuple(_in(torch.float32 if wide else t.dtype, t) for t in (first, *others))


def _in(dtype: torch.dtype, value: Any) -> Any:
    """float64 stays, as PyTorch's own autocast leaves it."""
    eligible = value is not None and value.is_floating_point() and value.dtype is not torch.float64
    return value.to(dtype) if eligible else value


# ---- the axis that vmap maps -----------------------------------------------------------------------------------------


def fold_in(value: torch.Tensor, dim: int | None, axis: int, size: int) -> torch.Tensor:
    """The mapped axis as the slower half of ``axis`` of the rest; a tensor without one is the same for all."""
    whole = value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
    return whole.movedim(0, axis).flatten(axis, axis + 1)


def unfold(value: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """The reverse: the mapped axis in front."""
    return value.unflatten(axis, (size, value.shape[axis] // size)).movedim(axis, 0)


def by_axis(axis: int, tensors: int) -> Any:
    """A vmap rule: the mapped axis goes into ``axis`` of the first ``tensors`` arguments and of all results."""

    def rule(op: Any, size: int, dims: Any, *given: Any) -> Any:
        whole = [None if t is None else fold_in(t, d, axis, size) for t, d in zip(given[:tensors], dims, strict=False)]
        found = op(*whole, *given[tensors:])
        return tuple(unfold(f, axis, size) for f in found) if isinstance(found, tuple) else unfold(found, axis, size)

    return rule
