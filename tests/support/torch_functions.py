"""Calls of numbadnn.torch's functions beside PyTorch's own, which the tests of numbadnn.torch go through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import numbadnn.torch as nt

GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=GENERATOR)


def channels_last(*shape: int) -> torch.Tensor:
    """(N, C, ...) with the channels next to each other in memory."""
    n, c, *spatial = shape
    return normal(n, *spatial, c).movedim(-1, 1)


class Case(NamedTuple):
    ours: Callable[..., Any]
    theirs: Callable[..., Any] | None
    arrays: tuple[torch.Tensor, ...]


def both(name: str, *arrays: torch.Tensor, **named: Any) -> Case:
    return Case(
        lambda *given: getattr(nt, name)(*given, **named), lambda *given: getattr(F, name)(*given, **named), arrays
    )


def causal(x: Any, w: Any) -> Any:
    return F.conv1d(F.pad(x, (4, 0)), w, stride=2, dilation=2, groups=3)


def trained(of: Any) -> Callable[..., Any]:
    return lambda x, w, b: of.batch_norm(x, None, None, w, b, True)


def tested(of: Any) -> Callable[..., Any]:
    return lambda x, w, b: of.batch_norm(x, MEAN.to(x), VAR.to(x), w, b)


def unshared1(x: Any, w: Any, b: Any) -> Any:
    """With unfold, as people write it today."""
    return torch.einsum("ncpr,kpcr->nkp", F.pad(x, (1, 1)).unfold(2, w.shape[-1], 2), w) + b


def unshared2(x: Any, w: Any, b: Any) -> Any:
    return torch.einsum("ncpqrs,kpqcrs->nkpq", x.unfold(2, w.shape[-2], 1).unfold(3, w.shape[-1], 2), w) + b


def unshared_transposed(x: Any, w: Any) -> Any:
    image = torch.zeros(x.shape[0], w.shape[3], 5, 6, dtype=x.dtype)
    return torch.func.vjp(lambda i: unshared2(i, w, 0), image)[1](x)[0]


SHAPES = ((8, 3), (8, 2), (8,), (8,))


def lstm(of: Any) -> Callable[..., Any]:
    """Two directions; torch's own on the CPU has gradients of gradients too."""
    return lambda x, h, c, *params: torch.cat(
        [r.flatten() for r in of.lstm(x, (h, c), params, True, 1, 0.0, False, True, False)]
    )


def gru(of: Any) -> Callable[..., Any]:
    return lambda x, h, *params: torch.cat(
        [r.flatten() for r in of.gru(x, h, params, False, 2, 0.0, False, False, True)]
    )


THETA = torch.tensor([[[1.0, 0.1, 0], [0.2, 0.9, 0.1]], [[0.7, 0, 0.2], [0, 1.2, 0]]], dtype=torch.float64)
GRID = normal(2, 3, 4, 2) * 0.6
MEAN, VAR = normal(3), normal(3).square() + 0.5
CASES: dict[str, Case] = {
    "conv2d": both("conv2d", normal(2, 3, 6, 7), normal(4, 3, 3, 2), normal(4), padding=1, stride=(2, 1)),
    "conv2d, same, groups": both(
        "conv2d", normal(2, 4, 5, 6), normal(6, 2, 3, 2), normal(6), padding="same", dilation=(1, 2), groups=2
    ),
    "conv2d, channels last": both("conv2d", channels_last(2, 3, 6, 5), normal(4, 3, 3, 3), normal(4), padding=(1, 0)),
    "conv2d, no batch": both("conv2d", normal(3, 6, 5), normal(4, 3, 3, 3)),
    "conv1d": both("conv1d", normal(2, 3, 9), normal(4, 3, 3), normal(4), stride=2, padding=2, dilation=2),
    "conv1d, channels last": both("conv1d", channels_last(2, 3, 9), normal(4, 3, 3)),
    "conv3d": both("conv3d", normal(1, 2, 4, 5, 4), normal(2, 1, 2, 3, 2), normal(2), padding=(1, 0, 1), groups=2),
    "conv_transpose2d": both(
        "conv_transpose2d",
        normal(2, 4, 3, 4),
        normal(4, 2, 3, 2),
        normal(4),
        stride=(2, 3),
        padding=1,
        output_padding=1,
        groups=2,
    ),
    "conv_transpose1d": both("conv_transpose1d", normal(2, 4, 5), normal(4, 3, 3), stride=2, dilation=2),
    "conv_transpose3d": both("conv_transpose3d", normal(1, 2, 2, 3, 2), normal(2, 2, 2, 2, 2), normal(2), stride=2),
    "causal_conv1d": Case(
        lambda x, w: nt.causal_conv1d(x, w, stride=2, dilation=2, groups=3), causal, (normal(2, 3, 9), normal(6, 1, 3))
    ),
    "unshared_conv1d": Case(
        lambda x, w, b: nt.unshared_conv1d(x, w, b, stride=2, padding=1),
        unshared1,
        (normal(2, 3, 7), normal(4, 4, 3, 3), normal(4, 4)),
    ),
    "unshared_conv2d": Case(
        lambda x, w, b: nt.unshared_conv2d(x, w, b, stride=(1, 2)),
        unshared2,
        (normal(2, 3, 5, 6), normal(4, 3, 2, 3, 3, 3), normal(4, 3, 2)),
    ),
    "unshared_conv_transpose2d": Case(
        lambda x, w: nt.unshared_conv_transpose2d(x, w, stride=(1, 2), output_padding=(0, 1)),
        unshared_transposed,
        (normal(2, 4, 3, 2), normal(4, 3, 2, 3, 3, 3)),
    ),
    "lstm": Case(
        lstm(nt), lstm(torch), (normal(4, 2, 3), normal(2, 2, 2), normal(2, 2, 2), *(normal(*s) for s in SHAPES * 2))
    ),
    "gru": Case(
        gru(nt), gru(torch), (normal(2, 4, 3), normal(2, 2, 2), normal(6, 3), normal(6, 2), normal(6, 2), normal(6, 2))
    ),
    "max_pool2d": both("max_pool2d", normal(2, 3, 6, 7), kernel_size=3, stride=2, padding=1),
    "max_pool2d, ceil": both("max_pool2d", normal(2, 3, 6, 7), kernel_size=(3, 2), stride=2, ceil_mode=True),
    "max_pool1d": both("max_pool1d", normal(2, 3, 8), kernel_size=2),
    "max_pool3d": both("max_pool3d", normal(1, 2, 4, 4, 5), kernel_size=2, padding=1, stride=3),
    "avg_pool2d": both("avg_pool2d", channels_last(2, 3, 6, 7), kernel_size=3, stride=2, padding=1),
    "avg_pool2d, ceil": both("avg_pool2d", normal(2, 3, 6, 7), kernel_size=3, stride=2, padding=1, ceil_mode=True),
    "avg_pool2d, inside": both("avg_pool2d", normal(3, 5, 7), kernel_size=3, padding=1, count_include_pad=False),
    "avg_pool2d, inside, ceil": both(
        "avg_pool2d", normal(2, 3, 6, 6), kernel_size=3, stride=2, padding=1, ceil_mode=True, count_include_pad=False
    ),
    "avg_pool1d": both("avg_pool1d", normal(2, 3, 8), kernel_size=3, padding=1),
    "avg_pool3d": both("avg_pool3d", normal(1, 2, 4, 4, 5), kernel_size=2, divisor_override=3),
    "softmax": both("softmax", normal(2, 5, 3), dim=1),
    "softmax, last": both("softmax", normal(2, 3, 5), dim=-1),
    "log_softmax, channels last": both("log_softmax", channels_last(2, 5, 3, 4), dim=1),
    "log_softmax, first": both("log_softmax", normal(4, 3), dim=0),
    "batch_norm, training": Case(trained(nt), trained(F), (normal(4, 3, 5), normal(3), normal(3))),
    "batch_norm": Case(tested(nt), tested(F), (channels_last(2, 3, 4, 2), normal(3), normal(3))),
    "grid_sample": both("grid_sample", normal(2, 3, 5, 4), GRID, align_corners=True),
    "grid_sample, edges": both("grid_sample", normal(2, 3, 5, 4), GRID, align_corners=False),
    "grid_sample, one column": both("grid_sample", normal(2, 3, 5, 1), GRID, align_corners=False),
    "affine_grid": both("affine_grid", THETA, size=(2, 1, 3, 4), align_corners=True),
    "affine_grid, edges": both("affine_grid", THETA, size=(2, 1, 3, 4), align_corners=False),
    "upsample_bilinear": Case(lambda x: nt.upsample_bilinear(x, ((3, 2), (2, 1))), None, (normal(2, 3, 4, 5),)),
    "dropout": Case(lambda x: nt.dropout(x, 0.4, seed=7), None, (normal(2, 3, 4),)),
}


class Recorded(TorchDispatchMode):
    """The calls of numbadnn's operators within."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "numbadnn":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def leaves(case: Case) -> tuple[torch.Tensor, ...]:
    return tuple(a.detach().clone().requires_grad_() for a in case.arrays)
