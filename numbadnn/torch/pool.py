"""Pooling as ``torch.nn.functional`` has it, in one, two and three axes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import numbadnn
from numbadnn.shapes import window_count
from numbadnn.torch.arguments import by_axis, check_batch, each, flag, integer, raised, refuse, remembered, tensor
from numbadnn.torch.layout import empty
from numbadnn.torch.library import Function, called, compute, define, in_force, noted, saved
from numbadnn.torch.ready import seen

HOW = "SymInt[] window, SymInt[] stride, SymInt[] pad, str mode"


# ---- the operators: padding is the same on both sides ---------------------------------------------------------------


def _pool(x: Any, window: Any, stride: Any, pad: Any, mode: Any, backend: Any) -> Any:
    return numbadnn.pool(x, tuple(window), tuple(stride), mode, tuple(pad), backend=backend)


def _pool_grad(x: Any, y: Any, g: Any, window: Any, stride: Any, pad: Any, mode: Any, backend: Any) -> Any:
    return numbadnn.pool_grad(x, y, g, tuple(window), tuple(stride), mode, tuple(pad), backend=backend)


def _fake_pool(x: Any, window: Any, stride: Any, pad: Any, mode: str) -> Any:
    rows = zip(x.shape[2:], window, pad, stride, strict=True)
    return empty((*x.shape[:2], *(window_count(n, k, p, p, s, 1) for n, k, p, s in rows)), x)


POOL = define("pool", f"Tensor input, {HOW}", "Tensor", _pool, _fake_pool, by_axis(0, 1), remembers=True)
POOL_GRAD = define(
    "pool_grad",
    f"Tensor input, Tensor output, Tensor grad, {HOW}",
    "Tensor",
    _pool_grad,
    lambda x, *_: empty(x.shape, x),
    by_axis(0, 3),
    remembers=True,
)


# ---- gradients -------------------------------------------------------------------------------------------------------


@POOL.differentiated
class Pool(Function):
    """The pooled image."""

    @staticmethod
    def forward(ctx: Any, x: Any, how: Any, launch: Any = None) -> Any:
        y = POOL((x,), how, launch)
        ctx.how = how
        ctx.save_for_backward(x, y if how[3] == "max" else None)  # of averages the values do not matter
        return y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, y = saved(ctx)
        y = g.view(g.shape) if y is None else y  # a tensor of its own, as guards refuse the same one twice
        return compute(POOL_GRAD, (x, y, g), ctx.how), None, None


@POOL_GRAD.differentiated
class PoolGrad(Function):
    """Linear in the gradient; where the maxima are does not change."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, g: Any, how: Any) -> Any:
        ctx.how = how
        ctx.save_for_backward(x if how[3] == "max" else None)
        return POOL_GRAD((x, y, g), how)

    @staticmethod
    def backward(ctx: Any, h: Any) -> Any:
        (x,), (window, stride, pad, *_) = saved(ctx), ctx.how
        found = compute(POOL, (h,), ctx.how) if x is None else _at_maxima(h, x, window, stride, pad)
        return None, None, found, None


def _at_maxima(h: Any, x: Any, window: Any, stride: Any, pad: Any) -> Any:
    """The elements of ``h`` where the maxima of ``x`` are, as PyTorch finds them."""
    pools = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
    _, at = pools[len(window) - 1](x.detach(), window, stride, pad, return_indices=True)
    return h.reshape(*h.shape[:2], -1).gather(2, at.reshape(*at.shape[:2], -1)).view(at.shape)


# ---- functions -------------------------------------------------------------------------------------------------------


def _geometry(given: Any, input: Any) -> tuple[Any, ...]:
    """Window, stride, pad and what ``ceil_mode`` adds behind each axis, after every check."""
    axes, kernel, stride, padding, ceil_mode = given
    ceil_mode = flag("ceil_mode", ceil_mode)
    tensor("input", input)
    check_batch("input", input, axes)
    window = each("kernel_size", kernel, axes)
    steps = (
        window if stride is None or (isinstance(stride, tuple | list) and not stride) else each("stride", stride, axes)
    )
    pad = each("padding", padding, axes, 0)
    if any(2 * p > k for p, k in zip(pad, window, strict=True)):
        raise ValueError(f"padding: expected at most half of kernel_size {window}, got {padding!r}")
    shape = input.shape
    if min(shape[-axes - 1 :]) < 1:
        raise ValueError(f"input: expected channels and sizes of at least one, got shape {tuple(shape)}")
    more = []
    for n, k, p, s in zip(shape[-axes:], window, pad, steps, strict=True):
        if (n + 2 * p < k and not ceil_mode) or n + 2 * p < 1:
            raise ValueError(
                f"kernel_size: expected no more than the padded input {tuple(shape)} with padding {pad}, got {window}"
            )
        over = 0
        if ceil_mode:
            count = -(-(n + 2 * p - k) // s) + 1
            if (count - 1) * s >= n + p:  # a window begins inside the image or its padding on the left
                count -= 1
            over = max((count - 1) * s + k - (n + 2 * p), 0)
        more.append(over)
    return window, steps, pad, tuple(more)


def _max_geometry(given: Any, input: Any) -> tuple[Any, ...]:
    """``_geometry``, and what is refused."""
    *given, dilation, indices = given
    axes = given[0]
    if each("dilation", dilation, axes) != (1,) * axes:
        refuse("dilation", dilation, 1, "torch.nn.functional has it")
    refuse("return_indices", flag("return_indices", indices), False, "torch.nn.functional has it")
    return _geometry(given, input)


def _max(
    axes: int, input: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any, indices: Any, backend: Any,
    level: Any,
) -> Any:  # fmt: skip
    given = axes, kernel, stride, padding, ceil_mode, dilation, indices
    found = seen(_max_geometry, (given, backend, level), (input,))
    if found is not None:
        return called(POOL, (input,), found)
    window, stride, pad, more = remembered(_max_geometry, given, input)
    x = input if input.ndim > axes + 1 else input[None]
    if any(more):
        # behind the image alone: a window's first maximum is never outside the image, which has lost its gradient there
        x = F.pad(x, _after((0,) * axes, more), value=-torch.inf)
    how = window, stride, pad, "max", *in_force(backend, level)
    y = compute(POOL, (x,), how)
    if x is input:
        noted(POOL, _max_geometry, (given, backend, level), (input,), how)
    return y if input.ndim > axes + 1 else y[0]


def _after(pad: Any, more: Any) -> list[Any]:
    """What ``torch.nn.functional.pad`` takes: the last axis first."""
    return [side for p, m in reversed(list(zip(pad, more, strict=True))) for side in (p, p + m)]


def _average_geometry(given: Any, input: Any) -> tuple[Any, ...]:
    """``_geometry``, then whether padding counts, and the divisor."""
    *given, whole, divisor = given
    if divisor is not None and (divisor := integer("divisor_override", divisor)) == 0:
        raise ValueError(f"divisor_override: expected an integer other than zero, got {divisor!r}")
    return *_geometry(given, input), flag("count_include_pad", whole), divisor


def _average(
    axes: int, input: Any, kernel: Any, stride: Any, padding: Any, ceil_mode: Any, whole: Any, divisor: Any, backend: Any,
    level: Any,
) -> Any:  # fmt: skip
    if axes == 3 and isinstance(input, torch.Tensor):
        (input,) = raised(input, on="cpu")
    given = axes, kernel, stride, padding, ceil_mode, whole, divisor
    found = seen(_average_geometry, (given, backend, level), (input,))
    if found is not None:
        return called(POOL, (input,), found)
    window, stride, pad, more, whole, divisor = remembered(_average_geometry, given, input)
    x = input if input.ndim > axes + 1 else input[None]
    how = in_force(backend, level)
    if any(more) or divisor is not None:
        sizes, dtype = x.shape[2:], x.dtype
        # of 16 bits a sum may be infinite where the average is not, and would be rounded once more
        x = F.pad(x.float() if dtype.itemsize == 2 else x, _after(pad, more))
        y = compute(POOL, (x,), (window, stride, (0,) * axes, "sum", *how))
        y = (y * _one_over(sizes, window, stride, pad, whole, x, y) if divisor is None else y / divisor).to(dtype)
    else:
        how = window, stride, pad, "average_inc_pad" if whole else "average_exc_pad", *how
        y = compute(POOL, (x,), how)
        if x is input:
            noted(POOL, _average_geometry, (given, backend, level), (input,), how)
    return y if input.ndim > axes + 1 else y[0]


def _one_over(sizes: Any, window: Any, stride: Any, pad: Any, whole: bool, x: Any, y: Any) -> Any:
    """1 / the elements of each window that count: of the image, or of the image and ``pad``, not what ``ceil_mode`` adds."""
    axes = len(window)
    counts: Any = 1.0
    for axis, (n, k, s, p) in enumerate(zip(sizes, window, stride, pad, strict=True)):
        first = torch.arange(y.shape[2 + axis], device=x.device) * s - p
        low, high = (-p, n + p) if whole else (0, n)
        along = (first + k).clamp(max=high) - first.clamp(min=low)
        counts = counts * along.to(torch.float64).view([-1 if a == axis else 1 for a in range(axes)])
    return (1 / counts).to(x.dtype)


def max_pool1d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.max_pool1d``; the rest as ``max_pool2d``.

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.max_pool1d(torch.tensor([[1.0, 5, 2, 4]]), 2).tolist()
    [[5.0, 4.0]]
    """
    how = ceil_mode, return_indices, backend, determinism
    return _max(1, input, kernel_size, stride, padding, dilation, *how)


def max_pool2d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.max_pool2d``: the maximum of each window; NaN where one is in it.

    input: (N, C, H, W) or (C, H, W). The gradient goes to the first maximum of a window. ``dilation`` other than 1 and
    ``return_indices=True`` are refused (NotSupportedError).

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.max_pool2d(torch.arange(16.0).view(1, 4, 4), 2).tolist()
    [[[5.0, 7.0], [13.0, 15.0]]]
    """
    how = ceil_mode, return_indices, backend, determinism
    return _max(2, input, kernel_size, stride, padding, dilation, *how)


def max_pool3d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.max_pool3d``; the rest as ``max_pool2d``.

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.max_pool3d(torch.arange(8.0).view(1, 2, 2, 2), 2).item()
    7.0
    """
    how = ceil_mode, return_indices, backend, determinism
    return _max(3, input, kernel_size, stride, padding, dilation, *how)


def avg_pool1d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.avg_pool1d``; the rest as ``avg_pool2d``.

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.avg_pool1d(torch.tensor([[1.0, 5, 2, 4]]), 2).tolist()
    [[3.0, 3.0]]
    """
    how = ceil_mode, count_include_pad, None, backend, determinism
    return _average(1, input, kernel_size, stride, padding, *how)


def avg_pool2d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.avg_pool2d``: the mean of each window, padding counted or not, or its sum / ``divisor_override``.

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.avg_pool2d(torch.ones(1, 3, 3), 3, 1, 1, count_include_pad=False)[0, 0].tolist()
    [1.0, 1.0, 1.0]
    """
    how = ceil_mode, count_include_pad, divisor_override, backend, determinism
    return _average(2, input, kernel_size, stride, padding, *how)


def avg_pool3d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.avg_pool3d``; the rest as ``avg_pool2d``.

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.avg_pool3d(torch.arange(8.0).view(1, 2, 2, 2), 2).item()
    3.5
    """
    how = ceil_mode, count_include_pad, divisor_override, backend, determinism
    return _average(3, input, kernel_size, stride, padding, *how)
