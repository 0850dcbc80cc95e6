"""The strides of numbadnn's results, for tensors without memory: channels last where the first array is, else C order."""

from __future__ import annotations

from typing import Any

import torch


def channels_last(value: torch.Tensor) -> bool:
    """Whether a result that follows this tensor is channels last: an image is packed so, and not in C order as well."""
    if not 3 <= value.ndim <= 5 or (value := value[:1]).is_contiguous():
        return False
    if value.ndim == 3:
        value = value[:, :, None]
    last = torch.channels_last if value.ndim == 4 else torch.channels_last_3d
    return value.is_contiguous(memory_format=last)


def empty(shape: Any, like: torch.Tensor, follow: bool = True, dtype: Any = None) -> torch.Tensor:
    """A new tensor of this shape, laid out as numbadnn's results are that follow ``like``."""
    shape = tuple(shape)
    dtype = like.dtype if dtype is None else dtype
    if not follow or len(shape) != like.ndim or not channels_last(like):
        return like.new_empty(shape, dtype=dtype)
    n, c, *spatial = shape
    strides, step = [1], c
    for size in reversed(spatial):
        strides.insert(1, step)
        step = step * size
    return like.new_empty_strided(shape, (step, *strides), dtype=dtype)
