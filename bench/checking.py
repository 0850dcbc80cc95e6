"""No speed without a right result: each case that is timed is first held against float64, on the arrays that are timed.

Convolutions: every element, float64 computed on the GPU by PyTorch, within the bound of validate.compare (direct sums).
Softmax: rows taken from everywhere in the array against numbadnn.reference within its derived bound, and every element
finite. The number returned is the largest |error| / bound; above 1 the bench prints REFUSED.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import numbadnn
from numbadnn.measuring import compare


def conv2d(direction: str, layer: tuple[Any, ...], arrays: tuple[Any, Any, Any], call: Callable[[], Any]) -> float:
    """The worst |error| / bound over all elements of one direction of a layer; inf for a class without an element bound."""
    import torch

    _, _, _, _, r, s, p = layer
    result = call()
    ran = numbadnn.last_call()
    assert ran is not None

    def exactly(x: Any, w: Any, g: Any) -> Any:
        if direction == "forward":
            return torch.nn.functional.conv2d(x, w, None, s, p)
        mask = [direction == "grad_inputs", direction == "grad_weights", False]
        fixed = ([s, s], [p, p], [1, 1], False, [0, 0], 1)
        return torch.ops.aten.convolution_backward(g, x, w, None, *fixed, mask)[mask.index(True)]

    x, w, g = arrays
    exact = exactly(x.double(), w.double(), g.double())
    magnitude = exactly(x.double().abs(), w.double().abs(), g.double().abs())
    k = {"forward": w[0].numel(), "grad_inputs": w.shape[0] * r * r, "grad_weights": g.numel() // g.shape[1]}[direction]
    found = worst_sum(result, exact, magnitude, k, ran.arithmetic)
    return _transformed(call, x, w, g, ran.problem, ran.arithmetic) if found is None else found


def worst_sum(result: Any, exact: Any, magnitude: Any, k: int, arithmetic: str = "ieee") -> float | None:
    """The worst |error| / bound of sums of k products (tensors of PyTorch; float64 of the exact values, and of |x| and |w|).

    None for a class of arithmetic without a bound for each element.
    """
    dtype = str(result.dtype).removeprefix("torch.")
    if arithmetic == "ieee":
        e = compare.gamma(k, compare.UNIT[compare.accumulator(dtype)]) * magnitude
    elif arithmetic in ("tensor_core", "tf32"):
        e = compare.gamma(compare.TENSOR_CORE_LENGTH * k, compare.TENSOR_CORE_UNIT) * magnitude
        e += compare.TF32 * magnitude if arithmetic == "tf32" else 0
    else:
        return None
    total = e + compare.UNIT[dtype] * (exact.abs() + e) + compare.SUBNORMAL[dtype]
    total += (
        compare.gamma(k, 2.0**-53) * magnitude
    )  # the peer's float64 sum is off by the same formula with its own unit
    return float(((result.double() - exact).abs() / total).nan_to_num(float("inf"), float("inf")).max())


def _transformed(call: Callable[[], Any], x: Any, w: Any, g: Any, problem: str, arithmetic: str) -> float:
    """FFT and Winograd have bounds over tiles and images, which validate works out on the CPU."""
    from numbadnn.problems.conv import ConvProblem
    from numbadnn.validate.oracle import Trial

    parsed = ConvProblem.parse(problem)
    named = {"x": x, "w": w, "y": g}
    from numbadnn.problems.conv import DIRECTIONS

    inputs = tuple(named[name].cpu().numpy() for name in DIRECTIONS[parsed.op][0])
    return Trial(parsed, inputs).compare(call().cpu().numpy(), arithmetic).worst


def softmax(op: str, function: Callable[..., Any], arrays: tuple[Any, ...]) -> float:
    """The worst |error| / bound over sampled rows; inf where any element of the result is not finite."""
    import torch

    from numbadnn.problem import Spec
    from numbadnn.problems.softmax import SoftmaxProblem
    from numbadnn.validate.oracle import Trial

    result = function(*arrays)
    if not bool(torch.isfinite(result).all()):
        return float("inf")
    pick = _sample(result.shape)
    inputs = tuple(np.ascontiguousarray(a[pick].cpu().numpy()) for a in arrays)
    spec = Spec.of(inputs[0].dtype.name, inputs[0].shape)
    named = {"x": spec} if op == "softmax" else {"dy": spec, "dx": spec}
    problem = SoftmaxProblem(op, y=spec, **named)
    return Trial(problem, inputs).compare(result[pick].cpu().numpy(), "ieee").worst


def _sample(shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Whole rows over axis 1, at about sixteen places of every other axis."""
    return tuple(slice(None) if i == 1 else slice(None, None, max(1, n // 16)) for i, n in enumerate(shape))
