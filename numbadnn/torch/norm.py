"""Batch normalization as ``torch.nn.functional.batch_norm``, with the statistics of the batch or with given ones."""

from __future__ import annotations

import math
from typing import Any

import torch

from numbadnn.arrays import torch_
from numbadnn.dispatch import call_any
from numbadnn.errors import NotSupportedError
from numbadnn.ops import norm
from numbadnn.torch import twin
from numbadnn.torch.arguments import flag, fold_in, number, remembered, tensor, unfold
from numbadnn.torch.layout import empty
from numbadnn.torch.library import Function, called, compute, define, in_force, noted, saved
from numbadnn.torch.ready import seen

# ---- the operators: parameters and statistics have one axis, of channels --------------------------------------------


def _train(x: Any, w: Any, b: Any, mean: Any, var: Any, factor: float, eps: float, backend: Any) -> Any:
    given = (x, w, b) if mean is None else (x, w, b, mean, var)
    return call_any(norm.TRAIN_OF_VECTORS, given, (eps, factor), backend, None, None)


def _written(found: Any, x: Any, w: Any, b: Any, mean: Any, var: Any) -> Any:
    if mean is not None and not mean.is_inference():
        torch_._increment_version((mean, var))
    return found


def _train_grad(x: Any, g: Any, w: Any, mean: Any, invstd: Any, eps: float, backend: Any) -> Any:
    return call_any(norm.TRAIN_GRAD_OF_VECTORS, (x, g, w, mean, invstd), (eps,), backend, None, None)


def _test(x: Any, w: Any, b: Any, mean: Any, var: Any, eps: float, backend: Any) -> Any:
    return call_any(norm.TEST_OF_VECTORS, (x, w, b, mean, var), (eps,), backend, None, None)


def _test_grad(x: Any, g: Any, w: Any, mean: Any, var: Any, eps: float, backend: Any) -> Any:
    return call_any(norm.TEST_GRAD_OF_VECTORS, (x, g, w, mean, var), (eps,), backend, None, None)


def _fake_train(x: Any, w: Any, *_: Any) -> Any:
    return empty(x.shape, x), w.new_empty(x.shape[1]), w.new_empty(x.shape[1])


def _fake_grad(count: int) -> Any:
    return lambda x, g, w, *_: (empty(x.shape, x), *(w.new_empty(x.shape[1]) for _ in range(count)))


def _features(images: int, vectors: int, written: tuple[int, ...] = ()) -> Any:
    """A vmap rule: mapped channels are more channels. The arguments ``written`` are updated in place."""

    def rule(op: Any, size: int, dims: Any, *given: Any) -> Any:
        axes = (1,) * images + (0,) * vectors
        folded = [None if t is None else fold_in(t, d, a, size) for t, d, a in zip(given, dims, axes, strict=False)]
        if any(given[i] is not None and dims[i] is None for i in written):
            raise ValueError(
                "running_mean, running_var: expected averages that vmap maps too, as they are updated in place for each sample"
            )
        found = op(*folded, *given[len(axes) :])
        for i in written:
            if given[i] is not None:
                given[i].movedim(dims[i], 0).copy_(unfold(folded[i], 0, size))
        if isinstance(found, tuple):
            return tuple(unfold(f, 0 if i else 1, size) for i, f in enumerate(found))
        return unfold(found, 1, size)

    return rule


TRAIN = define(
    "batch_norm_train",
    "Tensor input, Tensor weight, Tensor bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, float momentum, float eps",
    "(Tensor, Tensor, Tensor)",
    _train,
    _fake_train,
    _features(1, 4, (3, 4)),
    _written,
    remembers=True,
)
TRAIN_GRAD = define(
    "batch_norm_train_grad",
    "Tensor input, Tensor grad, Tensor weight, Tensor mean, Tensor invstd, float eps",
    "(Tensor, Tensor, Tensor)",
    _train_grad,
    _fake_grad(2),
    _features(2, 3),
    remembers=True,
)
TEST = define(
    "batch_norm_test",
    "Tensor input, Tensor weight, Tensor bias, Tensor mean, Tensor var, float eps",
    "Tensor",
    _test,
    lambda x, *_: empty(x.shape, x),
    _features(1, 4),
    remembers=True,
)
TEST_GRAD = define(
    "batch_norm_test_grad",
    "Tensor input, Tensor grad, Tensor weight, Tensor mean, Tensor var, float eps",
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    _test_grad,
    _fake_grad(4),
    _features(2, 3),
    remembers=True,
)


# ---- gradients -------------------------------------------------------------------------------------------------------


def _wide(x: Any, *vectors: Any) -> Any:
    shape = (1, -1, *(1,) * (x.ndim - 2))
    return [v.view(shape) for v in vectors]


def _by_torch_train(eps: float) -> Any:
    def function(x: Any, w: Any, b: Any) -> Any:
        wide, axes = x.to(w.dtype), [0, *range(2, x.ndim)]
        mean = wide.mean(axes, keepdim=True)
        var = (wide - mean).square().mean(axes, keepdim=True)
        w, b = _wide(x, w, b)
        return ((wide - mean) / (var + eps).sqrt() * w + b).to(x.dtype)

    return function


def _by_torch_test(eps: float) -> Any:
    def function(x: Any, w: Any, b: Any, mean: Any, var: Any) -> Any:
        w, b, mean, var = _wide(x, w, b, mean, var)
        return ((x.to(w.dtype) - mean) * w / (var + eps).sqrt() + b).to(x.dtype)

    return function


@TRAIN.differentiated
class Train(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, b: Any, mean: Any, var: Any, how: Any) -> Any:
        y, of_batch, invstd = found = TRAIN((x, w, b, mean, var), how)
        ctx.mark_non_differentiable(of_batch, invstd)
        ctx.set_materialize_grads(False)  # else zeros are made for each of these
        ctx.how = how[1:]
        ctx.save_for_backward(x, w, of_batch, invstd)
        return found

    @staticmethod
    def backward(ctx: Any, g: Any, *_: Any) -> Any:
        if g is None:
            return (None,) * 6
        return _trained(ctx, g)


class TrainAlone(Function):
    """The normalized image alone, which takes less than three results of which one is looked at."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, b: Any, averages: Any, how: Any, launch: Any) -> Any:
        y, of_batch, invstd = TRAIN((x, w, b, *averages), how, launch)
        ctx.how = how[1:]
        ctx.save_for_backward(x, w, of_batch, invstd)
        return y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return _trained(ctx, g)


def _trained(ctx: Any, g: Any) -> tuple[Any, ...]:
    """Gradients of x, w and b; three more arguments have none."""
    x, w, mean, invstd = saved(ctx)
    return *compute(TRAIN_GRAD, (x, g, w, mean, invstd), ctx.how), None, None, None


@TRAIN_GRAD.differentiated
class TrainGrad(Function):
    """The statistics are those of x: what they change by is in x's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, g: Any, w: Any, mean: Any, invstd: Any, how: Any) -> Any:
        ctx.how = how
        ctx.save_for_backward(x, g, w)
        return TRAIN_GRAD((x, g, w, mean, invstd), how)

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        (x, g, w), (eps, *_) = saved(ctx), ctx.how
        given = x, w, torch.zeros_like(w)
        gx, gw, _, gg = twin.of_gradient(_by_torch_train(eps), given, g, outer)
        return gx, gg, gw, None, None, None


@TEST.differentiated
class Test(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, b: Any, mean: Any, var: Any, how: Any, launch: Any = None) -> Any:
        ctx.how = how
        ctx.save_for_backward(x, w, mean, var)
        return TEST((x, w, b, mean, var), how, launch)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, w, mean, var = saved(ctx)
        return *compute(TEST_GRAD, (x, g, w, mean, var), ctx.how), None, None


@TEST_GRAD.differentiated
class TestGrad(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, g: Any, w: Any, mean: Any, var: Any, how: Any) -> Any:
        ctx.how = how
        ctx.save_for_backward(x, g, w, mean, var)
        return TEST_GRAD((x, g, w, mean, var), how)

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        (x, g, w, mean, var), (eps, *_) = saved(ctx), ctx.how
        given = x, w, torch.zeros_like(w), mean, var
        gx, gw, _, gm, gv, gg = twin.of_gradient(_by_torch_test(eps), given, g, outer)
        return gx, gg, gw, gm, gv, None


# ---- the function ----------------------------------------------------------------------------------------------------


def _check(given: Any, input: Any, *vectors: Any) -> tuple[bool, float, float]:
    """What is given, as Python's own, after every check that can fail."""
    training, momentum, eps = given
    training, eps = flag("training", training), number("eps", eps)
    momentum = number("momentum", momentum) if training or momentum is not None else 0.0
    tensor("input", input)
    if input.ndim < 2:
        raise ValueError(f"input: expected at least 2 dimensions, got {input.ndim} (shape {tuple(input.shape)})")
    if not eps > 0:
        raise ValueError(f"eps: expected a positive number, got {eps!r}")
    if training and not 0 <= momentum <= 1:
        raise NotSupportedError(f"momentum: expected a number from 0 to 1, got {momentum!r}", ())
    names = ("running_mean", "running_var", "weight", "bias")
    for name, value in zip(names, vectors, strict=True):
        if value is None:
            continue
        tensor(name, value)
        if value.device != input.device:
            raise ValueError(f"{name}: expected a tensor on {input.device}, where input is, got one on {value.device}")
        if value.ndim != 1 or value.shape[0] != input.shape[1]:
            raise ValueError(
                f"{name}: expected shape ({input.shape[1]},), one number a channel, got {tuple(value.shape)}"
            )
        if value.dtype is not input.dtype and not (input.dtype.itemsize == 2 and value.dtype is torch.float32):
            more = " or float32" if input.dtype.itemsize == 2 else ""
            raise TypeError(f"{name}: expected the dtype of input, {input.dtype}{more}, got {value.dtype}")
    mean, var, *_ = vectors
    if (mean is None) != (var is None):
        raise ValueError(
            f"running_{'mean' if mean is None else 'var'}: expected both running averages or neither, got one"
        )
    if not training and mean is None:
        raise ValueError("running_mean: expected a tensor, as training=False, got None")
    count = input.shape[0] * math.prod(input.shape[2:])
    if training and count == 1:
        raise ValueError(f"input: expected more than 1 value per channel when training, got shape {tuple(input.shape)}")
    return training, momentum, eps


def _parameter(value: Any, fill: float, input: Any) -> Any:
    dtype = torch.float32 if input.dtype.itemsize == 2 else input.dtype
    if value is None:
        return torch.full((input.shape[1],), fill, dtype=dtype, device=input.device)
    if value.dtype is dtype and value.is_contiguous():
        return value
    return value.to(dtype).contiguous()


def _untracked(value: torch.Tensor) -> torch.Tensor:
    return value.detach() if value.requires_grad else value


_FUNCTIONALIZE = torch._C._functorch.TransformType.Functionalize


def _functionalized() -> bool:
    """Whether ``torch.func.functionalize`` is at work at any level: it refuses operators that may write to their arguments."""
    if torch.compiler.is_compiling() or torch_._transform() is None:
        return False
    return any(level.key() == _FUNCTIONALIZE for level in torch._C._functorch.get_interpreter_stack() or ())


def _train_by_test(input: Any, w: Any, b: Any, averages: tuple[Any, Any], momentum: float, how: Any) -> Any:
    """Training where nothing is written in place: normalization by given statistics, which are PyTorch's of the batch."""
    if not input.numel():
        return compute(TEST, (input, w, b, b, w), how)
    of_batch = torch.var_mean(input.to(w.dtype), (0, *range(2, input.ndim)), correction=0)
    count = input.numel() // input.shape[1]
    for old, new, scale in zip(averages, reversed(of_batch), (1.0, count / (count - 1)), strict=True):
        if old is not None:
            old = _untracked(old)
            old.copy_(torch.lerp(old.to(new.dtype), new.detach() * scale, momentum))
    return compute(TEST, (input, w, b, *reversed(of_batch)), how)


def batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    backend: str | None = None,
    determinism: str | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.batch_norm``: (x - mean) / sqrt(var + eps) * weight + bias, of each channel (axis 1).

    With ``training`` mean and biased variance are the batch's, and the running averages, if given, are moved on in place (the
    variance unbiased); else they are the running ones. Parameters have ``input``'s dtype, or float32 for 16-bit inputs.

    >>> import torch, numbadnn.torch
    >>> numbadnn.torch.batch_norm(torch.tensor([[1.0], [3.0]]), None, None, training=True, eps=1e-12).tolist()
    [[-1.0], [1.0]]
    """
    given = training, momentum, eps, backend, determinism
    tensors = input, weight, bias, running_mean, running_var
    found = seen(_check, given, tensors)
    if found is not None:
        if not training:
            return called(TEST, tensors, found)
        if found.recorded:
            return TrainAlone.apply(input, weight, bias, tensors[3:], found.how, found.launch)
        return TRAIN(tensors, found.how, found.launch)[0]
    training, momentum, eps = remembered(_check, given[:3], input, running_mean, running_var, weight, bias)
    how = eps, *in_force(backend, determinism)
    w, b = _parameter(weight, 1.0, input), _parameter(bias, 0.0, input)
    if training and _functionalized():
        return _train_by_test(input, w, b, (running_mean, running_var), momentum, how)
    if running_mean is None or running_var is None or (training and not input.numel()):  # then they stay what they are
        return compute(TRAIN, (input, w, b, None, None), (momentum, *how))[0]
    averages = _untracked(running_mean), _untracked(running_var)
    mean, var = (_parameter(value, 0.0, input) for value in averages)
    if training:
        how = momentum, *how
        y = compute(TRAIN, (input, w, b, mean, var), how)[0]
        for value, written in zip(averages, (mean, var), strict=True):
            if written is not value:
                value.copy_(written)
    else:
        y = compute(TEST, (input, w, b, mean, var), how)
    if all(a is b for a, b in zip((w, b, mean, var), tensors[1:], strict=True)):
        noted(TRAIN if training else TEST, _check, given, tensors, how)
    return y
