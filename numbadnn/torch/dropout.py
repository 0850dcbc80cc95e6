"""Dropout as ``torch.nn.functional`` has it: the mask follows from a seed, so nothing is kept for the gradient."""

from __future__ import annotations

from typing import Any

import torch

import numbadnn
from numbadnn.torch.arguments import flag, integer, number, tensor
from numbadnn.torch.layout import empty
from numbadnn.torch.library import Function, compute, define, in_force, saved


def _dropout(x: Any, seed: Any, p: float, backend: Any) -> Any:
    return numbadnn.dropout(x, p, int(seed), backend=backend)[0]


def _fold(op: Any, size: int, dims: Any, x: Any, seed: Any, *how: Any) -> Any:
    """One mask over the whole; of several seeds one call each."""
    whole = x.expand(size, *x.shape) if dims[0] is None else x.movedim(dims[0], 0)
    if dims[1] is None:
        return op(whole, seed, *how)
    return torch.stack([op(part, s, *how) for part, s in zip(whole, seed.movedim(dims[1], 0), strict=True)])


DROPOUT = define(
    "dropout", "Tensor input, Tensor seed, float p", "Tensor", _dropout, lambda x, seed, p: empty(x.shape, x), _fold
)


@DROPOUT.differentiated
class Dropout(Function):
    """Linear, and its own adjoint."""

    @staticmethod
    def forward(ctx: Any, x: Any, seed: Any, how: Any) -> Any:
        ctx.how = how
        ctx.save_for_backward(seed)
        return DROPOUT((x, seed), how)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (seed,) = saved(ctx)
        return compute(DROPOUT, (g, seed), ctx.how), None, None


def dropout(
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    seed: torch.Tensor | int | None = None,
    backend: str | None = None,
    determinism: str | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.dropout``: each element is 0 with probability ``p``, else divided by 1 - p.

    The mask is ``numbadnn.dropout``'s of ``seed``, an integer or a tensor of one on the CPU; None draws one from PyTorch's
    generator of the CPU. A CUDA graph replays the seed that it was captured with.

    >>> import torch, numbadnn.torch
    >>> sorted(set(numbadnn.torch.dropout(torch.ones(64), 0.5, seed=1).tolist()))
    [0.0, 2.0]
    """
    tensor("input", input)
    if not 0 <= (p := number("p", p)) <= 1:
        raise ValueError(f"p: expected a probability from 0 to 1, got {p!r}")
    inplace = flag("inplace", inplace)
    if not flag("training", training) or p == 0:
        return input
    if seed is None:
        seed = torch.randint(2**63 - 1, ())
    elif not isinstance(seed, torch.Tensor):
        seed = torch.tensor(integer("seed", seed))
    elif seed.numel() != 1 or seed.is_floating_point():
        raise TypeError(f"seed: expected an integer or a tensor of one, got {seed!r}")
    y = compute(DROPOUT, (input, seed), (p, *in_force(backend, determinism)))
    return input.copy_(y) if inplace else y
