"""Convolutions with filters of their own for each position of the result: locally connected layers."""

from __future__ import annotations

from typing import Any

import torch

from numbadnn.torch.arguments import check_batch, each, integer, lowered, remembered, tensor
from numbadnn.torch.conv import input_of, result_sizes
from numbadnn.torch.convolution import check_groups, convolved, pads_of
from numbadnn.torch.library import in_force


def unshared_conv1d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> torch.Tensor:
    """``conv1d`` with filters of its own for each of the P places: weight (K, P, C/groups, R); bias (K,) or (K, P).

    >>> import torch, numbadnn.torch
    >>> w = torch.tensor([1.0, 10.0]).view(1, 2, 1, 1)
    >>> numbadnn.torch.unshared_conv1d(torch.ones(1, 1, 2), w).tolist()
    [[[1.0, 10.0]]]
    """
    return convolved(_geometry, 1, input, weight, bias, stride, padding, dilation, groups, backend, determinism)


def unshared_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> torch.Tensor:
    """``conv2d`` with filters of its own for each of the P x Q places: y[n,k,p,q] = sum of x[...] * w[k,p,q,c,r,s].

    input: (N, C, H, W) or (C, H, W); weight: (K, P, Q, C/groups, R, S); bias: (K,) or (K, P, Q). The rest as ``conv2d``.

    >>> import torch, numbadnn.torch
    >>> w = torch.arange(4.0).view(1, 2, 2, 1, 1, 1)
    >>> numbadnn.torch.unshared_conv2d(torch.ones(1, 1, 2, 2), w).tolist()
    [[[[0.0, 1.0], [2.0, 3.0]]]]
    """
    return convolved(_geometry, 2, input, weight, bias, stride, padding, dilation, groups, backend, determinism)


def unshared_conv_transpose2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> torch.Tensor:
    """``conv_transpose2d`` with filters of its own for each pixel of the input: the gradient of ``unshared_conv2d``.

    input: (N, K, P, Q) or (K, P, Q); weight: (K, P, Q, C/groups, R, S); bias: (C,) or (C, H, W); result as of
    ``conv_transpose2d``. ``output_padding`` is smaller than the stride.

    >>> import torch, numbadnn.torch
    >>> w = torch.arange(2.0).view(1, 1, 2, 1, 1, 1)
    >>> numbadnn.torch.unshared_conv_transpose2d(torch.ones(1, 1, 1, 2), w, stride=2).tolist()
    [[[[0.0, 0.0, 1.0]]]]
    """
    if isinstance(input, torch.Tensor):
        input, weight, bias = lowered(input, weight, bias)
    given = stride, padding, output_padding, groups, dilation
    sizes, how = remembered(_transposed, given, input, weight, bias)
    x = input if input.ndim > 3 else input[None]
    y = input_of(x, weight, bias, (x.shape[0], *sizes), (*how, *in_force(backend, determinism)))
    return y if input.ndim > 3 else y[0]


def _check(axes: int, input: Any, weight: Any, groups: Any) -> None:
    tensor("input", input)
    tensor("weight", weight, input)
    if weight.ndim != 2 * axes + 2:
        shape = "(K, P, C/groups, R)" if axes == 1 else "(K, P, Q, C/groups, R, S)"
        raise ValueError(f"weight: expected {2 * axes + 2} dimensions {shape}, got shape {tuple(weight.shape)}")
    check_groups(groups, weight.shape[0], "filters of weight")
    check_batch("input", input, axes)


def _check_bias(bias: Any, shape: tuple[Any, ...], input: Any) -> None:
    if bias is None:
        return
    tensor("bias", bias, input)
    given = tuple(bias.shape)  # compared one by one: Dynamo finds no shape of symbols in a tuple of shapes
    if given != shape[:1] and given != shape:
        raise ValueError(f"bias: expected shape {shape[:1]} or {shape}, got {given}")


def _geometry(given: Any, input: Any, weight: Any, bias: Any) -> tuple[Any, ...]:
    axes, stride, padding, dilation, groups = given
    groups = integer("groups", groups)
    _check(axes, input, weight, groups)
    channels = input.shape[-axes - 1]
    if channels != weight.shape[axes + 1] * groups:
        raise ValueError(
            f"weight: expected groups * weight.shape[{axes + 1}] = {groups} * {weight.shape[axes + 1]} to be the {channels} "
            "channels of input"
        )
    stride, dilation = each("stride", stride, axes), each("dilation", dilation, axes)
    pads = pads_of(padding, weight.shape[-axes:], stride, dilation)
    places = result_sizes((1, 1, *input.shape[-axes:]), weight.shape, pads, stride, dilation)
    _check_places(axes, weight, places)
    _check_bias(bias, (weight.shape[0], *places), input)
    return pads, stride, dilation, groups


def _check_places(axes: int, weight: Any, places: tuple[Any, ...]) -> None:
    if min(weight.shape[-axes:]) < 1 or min(places) < 1 or tuple(weight.shape[1 : axes + 1]) != places:
        raise ValueError(
            f"weight: expected filters for each of the result's places {places}, got shape {tuple(weight.shape)}"
        )


def _transposed(given: Any, input: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
    stride, padding, output_padding, groups, dilation = given
    groups = integer("groups", groups)
    _check(2, input, weight, groups)
    if tuple(input.shape[-3:]) != tuple(weight.shape[:3]):
        raise ValueError(
            f"weight: expected filters for each of input's channels and pixels {tuple(input.shape[-3:])}, got shape "
            f"{tuple(weight.shape)}"
        )
    stride, dilation = each("stride", stride, 2), each("dilation", dilation, 2)
    pad, more = each("padding", padding, 2, 0), each("output_padding", output_padding, 2, 0)
    if any(m >= s for m, s in zip(more, stride, strict=True)):
        raise ValueError(f"output_padding: expected less than the stride {stride}, got {output_padding!r}")
    rows = zip(input.shape[-2:], stride, pad, weight.shape[-2:], dilation, more, strict=True)
    sizes = tuple((n - 1) * s - 2 * p + (k - 1) * d + 1 + m for n, s, p, k, d, m in rows)
    if min(weight.shape[-2:]) < 1 or min(sizes) < 1:
        raise ValueError(f"input: expected windows and a result of at least one element, got {sizes}")
    _check_bias(bias, (weight.shape[3] * groups, *sizes), input)
    pads = tuple(p for p in pad for _ in (0, 1))
    return (weight.shape[3] * groups, *sizes), (pads, stride, dilation, groups)
