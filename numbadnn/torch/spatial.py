"""Sampling as ``torch.nn.functional`` has it, grids of affine maps, and numbadnn's bilinear upsampling."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import numbadnn
from numbadnn.torch import twin
from numbadnn.torch.arguments import (
    by_axis,
    flag,
    fold_in,
    is_integer,
    plain,
    raised,
    refuse,
    tensor,
    unfold,
    widest,
)
from numbadnn.torch.layout import empty
from numbadnn.torch.library import Function, compute, define, in_force, saved

# ---- the operators ---------------------------------------------------------------------------------------------------


def _sample(x: Any, grid: Any, backend: Any) -> Any:
    return numbadnn.spatialtf_sampler(x, grid, backend=backend)


def _sample_grad(x: Any, grid: Any, g: Any, backend: Any) -> Any:
    return numbadnn.spatialtf_sampler_grad(x, grid, g, backend=backend)


def _more_points(op: Any, size: int, dims: Any, x: Any, grid: Any, *how: Any) -> Any:
    """Several grids of one image are one grid of more rows."""
    if dims[0] is None:
        return unfold(op(x, fold_in(grid, dims[1], 1, size), *how), 2, size)
    return unfold(op(fold_in(x, dims[0], 0, size), fold_in(grid, dims[1], 0, size), *how), 0, size)


SAMPLE = define(
    "grid_sample",
    "Tensor input, Tensor grid",
    "Tensor",
    _sample,
    lambda x, grid: empty((*x.shape[:2], *grid.shape[1:3]), x),
    _more_points,
)
SAMPLE_GRAD = define(
    "grid_sample_grad",
    "Tensor input, Tensor grid, Tensor grad",
    "(Tensor, Tensor)",
    _sample_grad,
    lambda x, grid, g: (empty(x.shape, x), grid.new_empty(grid.shape)),
    by_axis(0, 3),
)
GRID = define(
    "affine_grid",
    "Tensor theta, SymInt rows, SymInt columns",
    "Tensor",
    lambda theta, rows, columns, backend: numbadnn.spatialtf_grid(
        theta, (theta.shape[0], 1, rows, columns), backend=backend
    ),
    lambda theta, rows, columns: theta.new_empty((theta.shape[0], rows, columns, 2)),
    by_axis(0, 1),
)
GRID_GRAD = define(
    "affine_grid_grad",
    "Tensor grad, SymInt rows, SymInt columns",
    "Tensor",
    lambda g, rows, columns, backend: numbadnn.spatialtf_grid_grad(g, backend=backend),
    lambda g, rows, columns: g.new_empty((g.shape[0], 2, 3)),
    by_axis(0, 1),
)


def _pairs(ratio: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    return (ratio[0], ratio[1]), (ratio[2], ratio[3])


UP = define(
    "upsample_bilinear",
    "Tensor input, int[] ratio",
    "Tensor",
    lambda x, ratio, backend: numbadnn.bilinear_upsampling(x, None, _pairs(ratio), backend=backend),
    lambda x, ratio: empty(
        (*x.shape[:2], *(-(-n * p // q) for n, (p, q) in zip(x.shape[2:], _pairs(ratio), strict=True))), x
    ),
    by_axis(0, 1),
)


def _fold_up_grad(op: Any, size: int, dims: Any, g: Any, shape: Any, *how: Any) -> Any:
    return unfold(op(fold_in(g, dims[0], 0, size), (shape[0] * size, *shape[1:]), *how), 0, size)


UP_GRAD = define(
    "upsample_bilinear_grad",
    "Tensor grad, SymInt[] size, int[] ratio",
    "Tensor",
    lambda g, size, ratio, backend: numbadnn.bilinear_upsampling_grad(
        g, tuple(size), None, _pairs(ratio), backend=backend
    ),
    lambda g, size, ratio: empty(size, g),
    _fold_up_grad,
)


# ---- gradients -------------------------------------------------------------------------------------------------------


def _by_torch(x: Any, grid: Any) -> Any:
    """The sampler in PyTorch's differentiable operations."""
    count, channels, height, width = x.shape
    at = (grid[..., 1] + 1) / 2 * (height - 1), (grid[..., 0] + 1) / 2 * (width - 1)
    low = [a.detach().floor() for a in at]
    flat, found = x.flatten(2), 0.0
    for down in (0, 1):
        for right in (0, 1):
            row, column = low[0] + down, low[1] + right
            tall = at[0] - low[0] if down else 1 - (at[0] - low[0])
            wide = at[1] - low[1] if right else 1 - (at[1] - low[1])
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            place = torch.where(inside, row * width + column, 0).long().flatten(1)[:, None]
            pixels = flat.gather(2, place.expand(-1, channels, -1)).view(count, channels, *row.shape[1:])
            found = found + torch.where(inside, tall * wide, 0.0)[:, None].to(x.dtype) * pixels
    return found


@SAMPLE.differentiated
class Sample(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, grid: Any, how: Any) -> Any:
        ctx.how = how
        ctx.save_for_backward(x, grid)
        return SAMPLE((x, grid), how)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return *compute(SAMPLE_GRAD, (*saved(ctx), g), ctx.how), None


@SAMPLE_GRAD.differentiated
class SampleGrad(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, grid: Any, g: Any, how: Any) -> Any:
        ctx.save_for_backward(x, grid, g)
        return SAMPLE_GRAD((x, grid, g), how)

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        x, grid, g = saved(ctx)
        return *twin.of_gradient(_by_torch, (x, grid), g, outer), None


@GRID.differentiated
class Grid(Function):
    @staticmethod
    def forward(ctx: Any, theta: Any, how: Any) -> Any:
        ctx.how = how
        return GRID((theta,), how)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return compute(GRID_GRAD, (g,), ctx.how), None


@GRID_GRAD.differentiated
class GridGrad(Function):
    """The adjoint of ``Grid``, which is its gradient."""

    @staticmethod
    def forward(ctx: Any, g: Any, how: Any) -> Any:
        ctx.how = how
        return GRID_GRAD((g,), how)

    @staticmethod
    def backward(ctx: Any, h: Any) -> Any:
        return compute(GRID, (h,), ctx.how), None


@UP.differentiated
class Up(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, how: Any) -> Any:
        ctx.how = x.shape, *how
        return UP((x,), how)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return compute(UP_GRAD, (g,), ctx.how), None


@UP_GRAD.differentiated
class UpGrad(Function):
    """The adjoint of ``Up``, which is its gradient."""

    @staticmethod
    def forward(ctx: Any, g: Any, how: Any) -> Any:
        ctx.how = how[1:]
        return UP_GRAD((g,), how)

    @staticmethod
    def backward(ctx: Any, h: Any) -> Any:
        return compute(UP, (h,), ctx.how), None


# ---- functions -------------------------------------------------------------------------------------------------------


def grid_sample(
    input: torch.Tensor,
    grid: torch.Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.grid_sample`` of images (N, C, H, W) at points (N, H', W', 2), bilinear, zeros outside.

    Another ``mode`` or ``padding_mode``, and volumes, are refused (NotSupportedError).

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.grid_sample(torch.tensor([[[[2.0, 4.0]]]]), torch.zeros(1, 1, 1, 2)).item()
    3.0
    """
    tensor("input", input)
    input, grid = widest(*raised(input, grid, on="cpu")) if isinstance(grid, torch.Tensor) else (input, grid)
    tensor("grid", grid, input)
    refuse("mode", mode, "bilinear", "torch.nn.functional has it")
    refuse("padding_mode", padding_mode, "zeros", "torch.nn.functional has it")
    refuse("input.ndim", input.ndim, 4, "torch.nn.functional takes volumes")
    if grid.ndim != 4 or grid.shape[-1] != 2 or grid.shape[0] != input.shape[0]:
        raise ValueError(f"grid: expected shape ({input.shape[0]}, rows, columns, 2), got {tuple(grid.shape)}")
    if min(input.shape[1:]) < 1:
        raise ValueError(f"input: expected channels and sizes of at least one, got shape {tuple(input.shape)}")
    if align_corners is None or not flag("align_corners", align_corners):
        input, grid = _corners(input, grid)
    return compute(SAMPLE, (input, grid), in_force(backend, determinism))


def _corners(x: Any, grid: Any) -> tuple[Any, Any]:
    """The same samples where -1 and 1 are the middles of the corner pixels, not their outer edges."""
    height, width = x.shape[2:]
    if height > 1 and width > 1:
        return x, grid * grid.new_tensor([width / (width - 1), height / (height - 1)])
    return F.pad(x, (0, 1, 0, 1)), grid - grid.new_tensor([1 / width, 1 / height])


def affine_grid(
    theta: torch.Tensor,
    size: Any,
    align_corners: bool = False,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.affine_grid`` of maps (N, 2, 3): points (N, H, W, 2); ``size`` is (N, C, H, W).

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.affine_grid(torch.tensor([[[1.0, 0, 0], [0, 1, 0]]]), (1, 1, 1, 3), True)[0, 0].tolist()
    [[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
    """
    tensor("theta", theta)
    size = plain(size)
    if not isinstance(size, tuple | list) or len(size) != 4 or not all(is_integer(n) and n > 0 for n in size):
        raise ValueError(f"size: expected four positive integers (N, C, H, W), got {size!r}")
    if tuple(theta.shape) != (size[0], 2, 3):
        raise ValueError(f"theta: expected shape ({size[0]}, 2, 3), got {tuple(theta.shape)}")
    rows, columns = size[2:]
    if align_corners is None or not flag("align_corners", align_corners):
        theta = theta * theta.new_tensor([(columns - 1) / columns, (rows - 1) / rows, 1.0])
    return compute(GRID, (theta,), (rows, columns, *in_force(backend, determinism)))


def upsample_bilinear(
    input: torch.Tensor,
    ratio: Any,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> torch.Tensor:
    """Enlarge images by an integer ``ratio``, a fraction (p, q), or ((p, q) of rows, (p, q) of columns), bilinearly.

    The coordinates are those of ``numbadnn.bilinear_upsampling``, which ``torch.nn.functional.interpolate`` has not.

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.upsample_bilinear(torch.tensor([[[[1.0, 2.0]]]]), 2)[0, 0, 0].tolist()
    [1.0, 1.5, 2.0, 2.0]
    """
    tensor("input", input)
    if input.ndim != 4 or min(input.shape[2:]) < 1:
        raise ValueError(f"input: expected images (N, C, H, W) of at least one pixel, got shape {tuple(input.shape)}")
    ratio = plain(ratio)
    pair = tuple(ratio) if isinstance(ratio, tuple | list) else (ratio, 1)
    pairs = pair if pair and isinstance(pair[0], tuple | list) else (pair, pair)
    flat = [n for p in pairs for n in (p if isinstance(p, tuple | list) else (p,))]
    if len(flat) != 4 or not all(is_integer(n) and n > 0 for n in flat):
        raise ValueError(f"ratio: expected a positive integer, a fraction (p, q) or a pair of them, got {ratio!r}")
    return compute(UP, (input,), (flat, *in_force(backend, determinism)))
