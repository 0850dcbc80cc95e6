"""Softmax and its logarithm as ``torch.nn.functional`` has them."""

from __future__ import annotations

import math
from typing import Any

import torch

import numbadnn
from numbadnn.torch.arguments import DTYPES, fold_in, integer, raised, tensor, unfold
from numbadnn.torch.layout import empty
from numbadnn.torch.library import Function, compute, define, in_force, saved


def _direct(x: Any, dim: int) -> bool:
    """Whether numbadnn takes the tensor as it lies: along axis 1."""
    return dim == 1 and 2 <= x.ndim <= 5


def _lined(x: Any, dim: int) -> Any:
    """(before, n, after)."""
    shape = x.shape
    return x.reshape(math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])).contiguous()


def _softmax(x: Any, dim: int, algo: Any, backend: Any) -> Any:
    if _direct(x, dim):
        return numbadnn.softmax(x, algo, backend=backend)
    return numbadnn.softmax(_lined(x, dim), algo, backend=backend).view(x.shape)


def _softmax_grad(g: Any, y: Any, dim: int, algo: Any, backend: Any) -> Any:
    if _direct(g, dim):
        return numbadnn.softmax_grad(g, y, algo, backend=backend)
    return numbadnn.softmax_grad(_lined(g, dim), _lined(y, dim), algo, backend=backend).view(g.shape)


def _fake(x: Any, *rest: Any) -> Any:
    return empty(x.shape, x, _direct(x, rest[-2]))


def _fold(op: Any, size: int, dims: Any, x: Any, dim: int, algo: str, *how: Any) -> Any:
    if dim == 0:
        x = x.movedim(dims[0], 0)
        return op(x, 1, algo, *how)
    return unfold(op(fold_in(x, dims[0], 0, size), dim, algo, *how), 0, size)


def _fold_grad(op: Any, size: int, dims: Any, g: Any, y: Any, dim: int, algo: str, *how: Any) -> Any:
    if dim == 0:
        g, y = (t.expand(size, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip((g, y), dims, strict=False))
        return op(g, y, 1, algo, *how)
    g, y = (fold_in(t, d, 0, size) for t, d in zip((g, y), dims, strict=False))
    return unfold(op(g, y, dim, algo, *how), 0, size)


SOFTMAX = define("softmax", "Tensor input, int dim, str algo", "Tensor", _softmax, _fake, _fold, remembers=True)
SOFTMAX_GRAD = define(
    "softmax_grad",
    "Tensor grad, Tensor output, int dim, str algo",
    "Tensor",
    _softmax_grad,
    _fake,
    _fold_grad,
    remembers=True,
)


@SOFTMAX.differentiated
class Softmax(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, how: Any) -> Any:
        y = SOFTMAX((x,), how)
        ctx.how = how
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (y,) = saved(ctx)
        return compute(SOFTMAX_GRAD, (g, y), ctx.how), None


@SOFTMAX_GRAD.differentiated
class SoftmaxGrad(Function):
    """``y * (g - sum(g * y))``, of the logarithm ``g - exp(y) * sum(g)``; the first is its own adjoint in g."""

    @staticmethod
    def forward(ctx: Any, g: Any, y: Any, how: Any) -> Any:
        ctx.how = how
        ctx.save_for_backward(g, y)
        return SOFTMAX_GRAD((g, y), how)

    @staticmethod
    def backward(ctx: Any, h: Any) -> Any:
        (g, y), (dim, algo, *_) = saved(ctx), ctx.how
        if algo == "log":
            e = y.exp()
            return h - (h * e).sum(dim, True), -h * e * g.sum(dim, True), None
        gy = h * (g - (g * y).sum(dim, True)) - g * (h * y).sum(dim, True)
        return compute(SOFTMAX_GRAD, (h, y), ctx.how), gy, None


def _along(input: Any, dim: Any, dtype: Any, algo: str, backend: Any, level: Any) -> torch.Tensor:
    if isinstance(input, torch.Tensor):
        if dtype is not None:
            if dtype not in DTYPES:
                raise TypeError(f"dtype: expected float16, bfloat16, float32 or float64, got {dtype!r}")
            input = input.to(dtype)
        else:
            (input,) = raised(input, on="cuda")
    tensor("input", input)
    dim = integer("dim", dim)
    ndim = max(input.ndim, 1)
    if not -ndim <= dim < ndim:
        raise IndexError(f"dim: expected an integer from {-ndim} to {ndim - 1}, got {dim}")
    x = input if input.ndim else input[None]
    y = compute(SOFTMAX, (x,), (dim % ndim, algo, *in_force(backend, level)))
    return y if input.ndim else y[0]


def softmax(
    input: torch.Tensor,
    dim: int,
    dtype: torch.dtype | None = None,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.softmax``: exp(x) / sum of exp(x) along ``dim``, which is not optional.

    Under autocast in float32, as PyTorch's.

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.softmax(torch.zeros(2, 4), -1).tolist()[0]
    [0.25, 0.25, 0.25, 0.25]
    """
    return _along(input, dim, dtype, "accurate", backend, determinism)


def log_softmax(
    input: torch.Tensor,
    dim: int,
    dtype: torch.dtype | None = None,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.log_softmax``: the logarithm of ``softmax``.

    >>> import torch, numbadnn.torch
    >>> round(numbadnn.torch.log_softmax(torch.zeros(4), 0)[0].item(), 4)
    -1.3863
    """
    return _along(input, dim, dtype, "log", backend, determinism)
