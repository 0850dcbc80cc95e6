"""What PyTorch is asked for a problem that random_problems drew: operands, the same computation, and how near a result is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peers


def empty(spec: Any) -> Any:
    import torch

    return torch.empty_strided(spec.shape, spec.strides, dtype=getattr(torch, spec.dtype), device="cuda")


def operands(problem: Any, seed: int) -> tuple[Any, ...]:
    """Inputs on the GPU: normal numbers, or what belongs to them where an input is the result of a forward pass."""
    import torch

    made = list(peers.operands(problem, seed))
    if problem.op == "pool_grad":
        made[1].copy_(_pooled(problem, made[0]))
    elif problem.op == "softmax_grad":
        made[1].copy_(_softmax(problem)(made[1], 1))
    elif problem.op == "batch_normalization_train_grad":
        axes = [0, *range(2, made[0].ndim)]
        made[3].copy_(made[0].float().mean(axes, keepdim=True))
        made[4].copy_((made[0].float().var(axes, correction=0, keepdim=True) + problem.epsilon).rsqrt())
    elif problem.op == "rnn_forward":
        made[0].mul_(0.05)
    torch.cuda.synchronize()
    return tuple(made)


def call(problem: Any, inputs: tuple[Any, ...]) -> Callable[[], Any]:
    """PyTorch's call, which returns its first result."""
    family = problem.op.split("_")[0]
    if family.startswith("conv"):
        return peers.convolution(problem, inputs)
    return {"pool": _pool, "softmax": _softmaxes, "batch": _norm, "rnn": _recurrent}[family](problem, inputs)


def difference(ours: Any, theirs: Any) -> float | None:
    """||ours - theirs|| / ||theirs||, None where there is nothing to compare with."""
    if theirs is None:
        return None
    theirs = theirs.double()
    return float(f"{float((ours.double() - theirs).norm() / theirs.norm().clamp_min(1e-30)):.3g}")


def _pooled(problem: Any, x: Any) -> Any:
    import torch

    functional, axes = torch.nn.functional, len(problem.window)
    if problem.is_max:
        return getattr(functional, f"max_pool{axes}d")(x, problem.window, problem.stride, problem.pad)
    include = problem.mode == "average_inc_pad"
    function = getattr(functional, f"avg_pool{axes}d")
    return function(x, problem.window, problem.stride, problem.pad, count_include_pad=include)


def _pool(problem: Any, inputs: tuple[Any, ...]) -> Callable[[], Any]:
    import torch

    if problem.op == "pool":
        return lambda: _pooled(problem, inputs[0])
    x, _, dy = inputs
    aten, axes, how = torch.ops.aten, len(problem.window), (problem.window, problem.stride, problem.pad)
    if not problem.is_max:
        function, include = getattr(aten, f"avg_pool{axes}d_backward"), problem.mode == "average_inc_pad"
        return lambda: function(dy, x, *how, False, include, None)
    where = getattr(aten, f"max_pool{axes}d_with_indices")(x, *how)[1]
    function = getattr(aten, f"max_pool{axes}d_with_indices_backward")
    return lambda: function(dy, x, *how, [1] * axes, False, where)


def _softmax(problem: Any) -> Callable[..., Any]:
    import torch

    return torch.log_softmax if problem.algo == "log" else torch.softmax


def _softmaxes(problem: Any, inputs: tuple[Any, ...]) -> Callable[[], Any]:
    import torch

    if problem.op == "softmax":
        return lambda: _softmax(problem)(inputs[0], 1)
    dy, y = inputs
    name = "_log_softmax_backward_data" if problem.algo == "log" else "_softmax_backward_data"
    return lambda: getattr(torch.ops.aten, name)(dy, y, 1, y.dtype)


def _norm(problem: Any, inputs: tuple[Any, ...]) -> Callable[[], Any]:
    import torch

    aten, epsilon = torch.ops.aten, problem.epsilon
    if problem.op.endswith("_grad"):
        x, dy, gamma, mean, invstd = inputs
        vectors = gamma.ravel(), None, None, mean.ravel(), invstd.ravel()
        return lambda: aten.native_batch_norm_backward(dy, x, *vectors, True, epsilon, [True] * 3)[0]
    x, gamma, beta = (inputs[0], *(v.ravel() for v in inputs[1:]))
    return lambda: aten.native_batch_norm(x, gamma, beta, None, None, True, 0.1, epsilon)[0]


def _recurrent(problem: Any, inputs: tuple[Any, ...]) -> Callable[[], Any]:
    """With weights of its own, so that nothing is to be compared."""
    import torch
    from bench_rnn import module_of

    network = problem.network
    module = module_of(
        torch, network.rnn_mode, problem.input_dim, network.hidden_size, network.num_layers, network.directions == 2,
        dtype=inputs[0].dtype, device="cuda",
    )  # fmt: skip
    x, states = inputs[1], inputs[2:] if len(inputs) > 3 else inputs[2]

    def run() -> None:
        with torch.no_grad():
            module(x, states)

    return run
