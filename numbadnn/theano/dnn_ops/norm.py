"""``theano.gpuarray.dnn``'s batch normalization: functions and op classes, called with arrays and giving arrays.

All run as under ``using(backend="cudnn")``, the fallback policy in force. As in the specification, and unlike the library's own
functions, an epsilon below 1e-5 (compared in float32) is refused. An op that works in place writes into the array that the
specification names, when everything has been computed. Source: docs/explanation/semantics.md#batch-normalization.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import numbadnn
from numbadnn.ops.conv_build import truth
from numbadnn.option_types import NormMode
from numbadnn.parameters import real
from numbadnn.theano._named import check_inplace
from numbadnn.theano.config import cudnn_first

__all__ = [
    "GpuDnnBatchNorm",
    "GpuDnnBatchNormBase",
    "GpuDnnBatchNormGrad",
    "GpuDnnBatchNormInference",
    "dnn_batch_normalization_test",
    "dnn_batch_normalization_train",
]


def check_epsilon(epsilon: float) -> float:
    try:
        number = real(epsilon)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"epsilon: expected a number, got {epsilon!r}") from None
    if number < 1e-4 and np.float32(number) < np.float32(1e-5):  # a large one is no number of float32
        raise ValueError(f"epsilon must be at least 1e-5, got {epsilon!r}")
    return number


def dnn_batch_normalization_train(
    inputs: Any,
    gamma: Any,
    beta: Any,
    mode: NormMode = "per-activation",
    epsilon: float = 1e-4,
    running_average_factor: float = 0.1,
    running_mean: Any = None,
    running_var: Any = None,
) -> tuple[Any, ...]:
    """``numbadnn.batch_normalization_train``: (out, mean, invstd[, new_running_mean, new_running_var]).

    >>> import numpy as np
    >>> x, one = np.array([[1.0], [3.0]]), np.ones((1, 1))
    >>> dnn_batch_normalization_train(x, one, one)[1].item()
    2.0
    """
    check_epsilon(epsilon)
    with cudnn_first():
        return numbadnn.batch_normalization_train(
            inputs, gamma, beta, mode, epsilon, running_average_factor, running_mean, running_var
        )


def dnn_batch_normalization_test(
    inputs: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    var: Any,
    mode: NormMode = "per-activation",
    epsilon: float = 1e-4,
) -> Any:
    """``numbadnn.batch_normalization_test``."""
    check_epsilon(epsilon)
    with cudnn_first():
        return numbadnn.batch_normalization_test(inputs, gamma, beta, mean, var, mode, epsilon)


class GpuDnnBatchNormBase:
    """What the op classes share: the mode, per-activation or spatial; the old ones took epsilon when they were made, too."""

    def __init__(self, mode: NormMode = "per-activation", epsilon: float = 1e-4) -> None:
        if not isinstance(mode, str) or mode not in ("per-activation", "spatial"):
            raise ValueError(f"mode: expected per-activation or spatial, got {mode!r}")
        self.mode: NormMode = mode
        self.epsilon = check_epsilon(epsilon)


def _into(target: Any, values: Any) -> Any:
    target[...] = values
    return target


class GpuDnnBatchNorm(GpuDnnBatchNormBase):
    """Training: op(x, scale, bias, epsilon, running_average_factor, running_mean, running_var) -> as the function.

    The old op took epsilon and running_average_factor when it was made; both may still be given there, by name. Left out
    there and in the call the factor is 0.1, as in the later document; the old op's was 0.
    """

    def __init__(
        self,
        mode: NormMode = "per-activation",
        running_averages: bool = False,
        inplace_running_mean: bool = False,
        inplace_running_var: bool = False,
        inplace_output: bool = False,
        *,
        epsilon: float = 1e-4,
        running_average_factor: float = 0.1,
    ) -> None:
        super().__init__(mode, epsilon)
        self.running_averages = truth("running_averages", running_averages)
        self.inplace_running_mean = truth("inplace_running_mean", inplace_running_mean)
        self.inplace_running_var = truth("inplace_running_var", inplace_running_var)
        self.inplace_output = truth("inplace_output", inplace_output)
        self.running_average_factor = running_average_factor

    def __call__(
        self,
        x: Any,
        scale: Any,
        bias: Any,
        epsilon: float | None = None,
        running_average_factor: float | None = None,
        running_mean: Any = None,
        running_var: Any = None,
    ) -> tuple[Any, ...]:
        if self.running_averages != (running_mean is not None) or self.running_averages != (running_var is not None):
            wanted = "both running averages" if self.running_averages else "none"
            raise ValueError(f"running_mean, running_var: expected {wanted}, as the op was made")
        targets = {"x": (self.inplace_output, x)}
        if self.running_averages:
            targets["running_mean"] = (self.inplace_running_mean, running_mean)
            targets["running_var"] = (self.inplace_running_var, running_var)
        check_inplace(**{name: array for name, (inplace, array) in targets.items() if inplace})
        factor = self.running_average_factor if running_average_factor is None else running_average_factor
        results = list(
            dnn_batch_normalization_train(
                x,
                scale,
                bias,
                self.mode,
                self.epsilon if epsilon is None else epsilon,
                factor,
                running_mean,
                running_var,
            )
        )
        if self.inplace_output:
            results[0] = _into(x, results[0])
        if self.running_averages and self.inplace_running_mean:
            results[3] = _into(running_mean, results[3])
        if self.running_averages and self.inplace_running_var:
            results[4] = _into(running_var, results[4])
        return tuple(results)


class GpuDnnBatchNormInference(GpuDnnBatchNormBase):
    """Inference: op(x, scale, bias, estimated_mean, estimated_variance, epsilon) -> out, into x where ``inplace``."""

    def __init__(self, mode: NormMode = "per-activation", inplace: bool = False, *, epsilon: float = 1e-4) -> None:
        super().__init__(mode, epsilon)
        self.inplace = truth("inplace", inplace)  # where the old op had its epsilon

    def __call__(
        self, x: Any, scale: Any, bias: Any, estimated_mean: Any, estimated_variance: Any, epsilon: float | None = None
    ) -> Any:
        epsilon = self.epsilon if epsilon is None else epsilon
        if self.inplace:
            check_inplace(x=x)
        out = dnn_batch_normalization_test(x, scale, bias, estimated_mean, estimated_variance, self.mode, epsilon)
        return _into(x, out) if self.inplace else out


class GpuDnnBatchNormGrad(GpuDnnBatchNormBase):
    """Gradient of training: op(x, dy, scale, x_mean, x_invstd, epsilon) -> (dx, dscale, dbias)."""

    def __call__(
        self, x: Any, dy: Any, scale: Any, x_mean: Any, x_invstd: Any, epsilon: float | None = None
    ) -> tuple[Any, Any, Any]:
        epsilon = check_epsilon(self.epsilon if epsilon is None else epsilon)
        with cudnn_first():
            return numbadnn.batch_normalization_train_grad(x, dy, scale, x_mean, x_invstd, self.mode, epsilon)
