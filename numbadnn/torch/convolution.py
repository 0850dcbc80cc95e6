"""Convolutions as ``torch.nn.functional`` has them: names, order and defaults of arguments, and correlation (no flip)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from numbadnn.torch.arguments import check_batch, each, integer, lowered, remembered, tensor
from numbadnn.torch.conv import CONV, CONV_GRAD_INPUT, input_of, result_of, result_sizes, spread
from numbadnn.torch.library import called, in_force, noted
from numbadnn.torch.ready import seen

#: what has other names for its weight's axes
_AXES = ("", "R", "R, S", "T, R, S")


def conv1d(
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
    """``torch.nn.functional.conv1d``; the rest as ``conv2d``.

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.conv1d(torch.ones(1, 1, 5), torch.ones(1, 1, 3), padding="same").tolist()
    [[[2.0, 3.0, 3.0, 3.0, 2.0]]]
    """
    return convolved(_geometry, 1, input, weight, bias, stride, padding, dilation, groups, backend, determinism)


def conv2d(
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
    """``torch.nn.functional.conv2d``: y[n,k,p,q] = bias[k] + sum over c,r,s of x[n, c, p*sh + r*dh - top, ...] * w[k,c,r,s].

    input: (N, C, H, W) or (C, H, W); weight: (K, C/groups, R, S); bias: (K,). ``padding``: a number, one an axis, 'valid', or
    'same', which pads an odd number on the right more. float16, bfloat16, float32, float64, one dtype for all. The result is
    channels last if ``input`` is. Differentiable any number of times. ValueError or TypeError with the argument's name.

    >>> import torch, numbadnn.torch
    >>> x, w = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2, requires_grad=True)
    >>> numbadnn.torch.conv2d(x, w).sum().backward()
    >>> w.grad.tolist()
    [[[[4.0, 4.0], [4.0, 4.0]]]]
    """
    return convolved(_geometry, 2, input, weight, bias, stride, padding, dilation, groups, backend, determinism)


def conv3d(
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
    """``torch.nn.functional.conv3d``; the rest as ``conv2d``.

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.conv3d(torch.ones(1, 1, 2, 2, 2), torch.ones(1, 1, 2, 2, 2)).item()
    8.0
    """
    return convolved(_geometry, 3, input, weight, bias, stride, padding, dilation, groups, backend, determinism)


def causal_conv1d(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int = 1,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> torch.Tensor:
    """``conv1d`` that sees nothing of the future: the last of the R taps meets an output's own time, the others what was before.

    input: (N, C, T) or (C, T); weight: (K, C/groups, R); result (N, K, (T - 1) // stride + 1).

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.causal_conv1d(torch.tensor([[[1.0, 2, 3]]]), torch.tensor([[[10.0, 1.0]]])).tolist()
    [[[1.0, 12.0, 23.0]]]
    """
    return convolved(_geometry, 1, input, weight, bias, stride, "causal", dilation, groups, backend, determinism)


def convolved(
    geometry: Any, axes: int, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any,
    backend: Any, level: Any,
) -> torch.Tensor:  # fmt: skip
    """The convolution of PyTorch's arguments, which ``geometry`` checks and brings into the operator's form."""
    if isinstance(input, torch.Tensor):
        input, weight, bias = lowered(input, weight, bias)
    given = axes, stride, padding, dilation, groups
    asked, tensors = (given, backend, level), (input, weight) if bias is None else (input, weight, bias)
    found = seen(geometry, asked, tensors)
    if found is not None:
        return called(CONV, (input, weight, bias), found)
    how = *remembered(geometry, given, input, weight, bias), *in_force(backend, level)
    if input.ndim == axes + 1:
        return result_of(input[None], weight, bias, how)[0]
    y = result_of(input, weight, bias, how)
    noted(CONV, geometry, asked, tensors, how)
    return y


def _geometry(given: Any, input: Any, weight: Any, bias: Any) -> tuple[Any, ...]:
    """Zeros around the image, stride and dilation of each axis, groups, after every check that can fail."""
    axes, stride, padding, dilation, groups = given
    groups = integer("groups", groups)
    check(axes, input, weight, bias, groups)
    stride, dilation = each("stride", stride, axes), each("dilation", dilation, axes)
    pads = pads_of(padding, weight.shape[-axes:], stride, dilation)
    check_windows(axes, input, weight, pads, stride, dilation)
    return pads, stride, dilation, groups


def check(axes: int, input: Any, weight: Any, bias: Any, groups: Any) -> None:
    """What convolutions of shared filters ask of their tensors."""
    tensor("input", input)
    check_weight(axes, weight, input)
    check_groups(groups, weight.shape[0], "filters of weight")
    check_bias(bias, weight.shape[0], input)
    check_batch("input", input, axes)
    channels = input.shape[-axes - 1]
    if channels != weight.shape[1] * groups:
        raise ValueError(
            f"weight: expected groups * weight.shape[1] = {groups} * {weight.shape[1]} to be the {channels} channels of input"
        )


def check_weight(axes: int, weight: Any, input: Any) -> None:
    tensor("weight", weight, input)
    if weight.ndim != axes + 2:
        raise ValueError(
            f"weight: expected {axes + 2} dimensions (K, C/groups, {_AXES[axes]}), got {weight.ndim} (shape "
            f"{tuple(weight.shape)})"
        )


def check_groups(groups: Any, filters: Any, whose: str) -> None:
    if groups < 1 or filters % groups:
        raise ValueError(f"groups: expected a positive divisor of the {filters} {whose}, got {groups}")


def check_bias(bias: Any, filters: Any, input: Any) -> None:
    if bias is None:
        return
    tensor("bias", bias, input)
    if bias.ndim != 1 or bias.shape[0] != filters:
        raise ValueError(f"bias: expected shape ({filters},), one number a filter, got {tuple(bias.shape)}")


def pads_of(padding: Any, kernel: Any, stride: Any, dilation: Any) -> tuple[Any, ...]:
    """Zeros before and after each axis, one after the other."""
    if isinstance(padding, str):
        if padding == "causal":
            return (kernel[0] - 1) * dilation[0], 0
        if padding not in ("same", "valid"):
            raise ValueError(f"padding: expected integers, 'valid' or 'same', got {padding!r}")
        if padding == "valid":
            return (0,) * (2 * len(kernel))
        if any(s != 1 for s in stride):
            raise ValueError(f"padding: expected no 'same' with a stride other than 1, got stride={stride}")
        total = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
        return tuple(p for t in total for p in (t // 2, t - t // 2))
    return tuple(p for p in each("padding", padding, len(kernel), 0) for _ in (0, 1))


def check_windows(axes: int, x: Any, w: Any, pads: Any, stride: Any, dilation: Any) -> None:
    sizes = result_sizes((1, 1, *x.shape[-axes:]), w.shape, pads, stride, dilation)
    if min(w.shape[-axes:]) < 1 or min(sizes) < 1:
        raise ValueError(
            f"weight: expected a (dilated) window of at least one element and no larger than the padded input, got weight "
            f"{tuple(w.shape)} with dilation {dilation} on input {tuple(x.shape)} padded by {pads}"
        )


# ---- transposed ------------------------------------------------------------------------------------------------------


def conv_transpose1d(
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
    """``torch.nn.functional.conv_transpose1d``; the rest as ``conv_transpose2d``.

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.conv_transpose1d(torch.ones(1, 1, 2), torch.ones(1, 1, 3), stride=2).tolist()
    [[[1.0, 1.0, 2.0, 1.0, 1.0]]]
    """
    return _transposed(1, input, weight, bias, stride, padding, output_padding, groups, dilation, backend, determinism)


def conv_transpose2d(
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
    """``torch.nn.functional.conv_transpose2d``: the gradient of ``conv2d`` in its input, used forwards to upsample.

    input: (N, K, P, Q) or (K, P, Q); weight: (K, C/groups, R, S); bias: (C,); result (N, C, H, W) with
    H = (P - 1) * stride - 2 * padding + dilation * (R - 1) + output_padding + 1. ``output_padding`` is smaller than the stride
    or the dilation. The rest as ``conv2d``.

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.conv_transpose2d(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2)).tolist()
    [[[[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]]]
    """
    return _transposed(2, input, weight, bias, stride, padding, output_padding, groups, dilation, backend, determinism)


def conv_transpose3d(
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
    """``torch.nn.functional.conv_transpose3d``; the rest as ``conv_transpose2d``.

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.conv_transpose3d(torch.ones(1, 1, 1, 1, 1), torch.ones(1, 2, 1, 1, 1), stride=2, output_padding=1).shape
    torch.Size([1, 2, 2, 2, 2])
    """
    return _transposed(3, input, weight, bias, stride, padding, output_padding, groups, dilation, backend, determinism)


def _transposed(
    axes: int, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, output_padding: Any, groups: Any, dilation: Any,
    backend: Any, level: Any,
) -> torch.Tensor:  # fmt: skip
    if isinstance(input, torch.Tensor):
        input, weight, bias = lowered(input, weight, bias)
    given = axes, stride, padding, output_padding, groups, dilation
    asked, tensors = (given, backend, level), (input, weight) if bias is None else (input, weight, bias)
    found = seen(_transposed_geometry, asked, tensors)
    if found is not None:
        return called(CONV_GRAD_INPUT, (input, weight, bias), found)
    sizes, how, beyond = remembered(_transposed_geometry, given, input, weight, bias)
    how = *how, *in_force(backend, level)
    x = input if input.ndim > axes + 1 else input[None]
    y = input_of(x, weight, bias if beyond is None else None, (x.shape[0], *sizes), how)
    if beyond is not None:
        y = F.pad(y, beyond)
        y = y if bias is None else y + spread(bias, y.ndim)
    elif x is input:
        noted(CONV_GRAD_INPUT, _transposed_geometry, asked, tensors, ((x.shape[0], *sizes), *how))
    return y if x is input else y[0]


def _transposed_geometry(given: Any, input: Any, weight: Any, bias: Any) -> tuple[Any, ...]:
    """Channels and sizes of the result; zeros around it, stride, dilation, groups; zeros behind it; after every check."""
    axes, stride, padding, output_padding, groups, dilation = given
    groups = integer("groups", groups)
    tensor("input", input)
    check_weight(axes, weight, input)
    check_groups(groups, weight.shape[0], "channels of weight")
    channels = weight.shape[1] * groups
    check_bias(bias, channels, input)
    check_batch("input", input, axes)
    if input.shape[-axes - 1] != weight.shape[0]:
        raise ValueError(
            f"weight: expected {input.shape[-axes - 1]} entries in its first axis, the channels of input, got {weight.shape[0]}"
        )
    stride, dilation = each("stride", stride, axes), each("dilation", dilation, axes)
    pad, more = each("padding", padding, axes, 0), each("output_padding", output_padding, axes, 0)
    if any(m >= s and m >= d for m, s, d in zip(more, stride, dilation, strict=True)):
        raise ValueError(
            f"output_padding: expected less than the stride {stride} or the dilation {dilation}, got {output_padding!r}"
        )
    kernel, rows = weight.shape[2:], []
    for n, s, p, k, d, m in zip(input.shape[-axes:], stride, pad, kernel, dilation, more, strict=True):
        # as many more as there are pixels between windows are a matter of the size alone; others lie in the padding or beyond
        low, high, tail = (p, p, 0) if m < s else (p, max(p - m, 0), max(m - p, 0))
        size = (n - 1) * s - low - high + (k - 1) * d + 1 + (m if m < s else 0)
        rows.append((size, low, high, tail))
    sizes = [size for size, *_ in rows]
    if min(kernel) < 1 or min(sizes) < 1:
        raise ValueError(
            f"input: expected windows and a result of at least one element, got weight {tuple(weight.shape)} and {sizes}"
        )
    beyond = [n for *_, tail in reversed(rows) for n in (0, tail)]
    pads = tuple(p for _, low, high, _ in rows for p in (low, high))
    return (channels, *sizes), (pads, stride, dilation, groups), beyond if any(beyond) else None
