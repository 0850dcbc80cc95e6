"""A convolution problem in PyTorch: operands, the same computation, and what float64 says of a result.

Every element of a result is held against float64 computed on the GPU by PyTorch, within the bound of validate.compare for direct
sums. Winograd and FFT have bounds over tiles and images that are worked out on the CPU, too slow here: theirs is
``agreement.AGREEMENT`` of the whole result's norm (validate has the others).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from checking import worst_sum

from numbadnn.measuring import agreement
from numbadnn.measuring.laws.conv import reduction_length


def operands(problem: Any, seed: int = 0) -> tuple[Any, ...]:
    """Normal numbers on the GPU, with the problem's dtype and strides."""
    import torch

    torch.manual_seed(seed)
    made = []
    for spec in problem.inputs:
        array = torch.empty_strided(spec.shape, spec.strides, dtype=getattr(torch, spec.dtype), device="cuda")
        made.append(array.normal_())
    return tuple(made)


def convolution(problem: Any, inputs: tuple[Any, ...]) -> Callable[[], Any]:
    """PyTorch's call for a correlation with even padding, any direction and axes."""
    import torch

    stride, dilation, axes = list(problem.stride), list(problem.dilation), problem.axes
    padding = [low for low, _ in problem.padding]
    if problem.direction == "forward":
        function = getattr(torch.nn.functional, f"conv{axes}d")
        x, w = inputs
        return lambda: function(x, w, None, stride, padding, dilation, problem.groups)
    backward = torch.ops.aten.convolution_backward
    fixed = (None, stride, padding, dilation, False, [0] * axes, problem.groups)
    if problem.direction == "grad_inputs":
        g, w = inputs
        x = torch.empty_strided(problem.x.shape, problem.x.strides, dtype=g.dtype, device=g.device)
        return lambda: backward(g, x, w, *fixed, [True, False, False])[0]
    x, g = inputs
    w = torch.empty_strided(problem.w.shape, problem.w.strides, dtype=g.dtype, device=g.device)
    return lambda: backward(g, x, w, *fixed, [False, True, False])[1]


def worst_errors(problem: Any, inputs: tuple[Any, ...], results: dict[str, tuple[Any, str]]) -> dict[str, float]:
    """name -> the largest |error| / bound over all elements, of results given with their arithmetic."""
    import torch

    cudnn = torch.backends.cudnn
    with cudnn.flags(
        cudnn.enabled, False, deterministic=cudnn.deterministic, allow_tf32=cudnn.allow_tf32
    ):  # no benchmark
        exact = convolution(problem, tuple(a.double().contiguous() for a in inputs))()
        magnitude = convolution(problem, tuple(a.double().abs().contiguous() for a in inputs))()
    return {
        name: _worst(problem, result, exact, magnitude, arithmetic) for name, (result, arithmetic) in results.items()
    }


def _worst(problem: Any, result: Any, exact: Any, magnitude: Any, arithmetic: str) -> float:
    found = worst_sum(result, exact, magnitude, reduction_length(problem), arithmetic)
    if found is None:
        return float((result.double() - exact).norm() / exact.norm()) / agreement.AGREEMENT[problem.output.dtype]
    return found
