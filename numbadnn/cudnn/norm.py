"""Batch normalization through cudnnBatchNormalizationForwardTraining, -ForwardInference and -Backward: "cudnn.norm".

Source: cudnn_ops.h. cuDNN knows both modes, parameters in float32 (float64 for float64 data), and any epsilon >= 0
(CUDNN_BN_MIN_EPSILON is 0 since version 7.5). It has no gradient of inference. Arrays of any rank are seen as (N, C,
positions, 1). Running averages are updated in place, so the old ones are copied to the new ones first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from numbadnn.cudnn import lib
from numbadnn.cudnn._enums import BatchNormMode
from numbadnn.cudnn._tensors import INT_MAX, scalars, strides_of, tensor
from numbadnn.problem import Policy, Spec, contiguous_strides
from numbadnn.problems.norm import TEST, TRAIN, TRAIN_GRAD, NormProblem
from numbadnn.registry import SEQUENCE, Executable, Impl, register

#: (trains, mode) -> the most images that PyTorch gives cuDNN's batch normalization, which has "not supported" beyond
MOST_IMAGES = {
    (True, "spatial"): 880801,
    (False, "spatial"): 65535,
    (True, "per-activation"): 131070,
    (False, "per-activation"): 262136,
}
_FUNCTIONS = {
    TRAIN: "cudnnBatchNormalizationForwardTraining",
    TEST: "cudnnBatchNormalizationForwardInference",
    TRAIN_GRAD: "cudnnBatchNormalizationBackward",
}
#: the gradient leaves out by how much the mean that it is given misses that of x: half a unit of it where a forward call made it
ARITHMETIC = {TRAIN: "ieee", TEST: "ieee", TRAIN_GRAD: "given_mean"}


def _data(problem: NormProblem) -> tuple[Spec, ...]:
    return (*problem.inputs[: 2 if problem.op == TRAIN_GRAD else 1], problem.output)


def supports(problem: NormProblem, policy: Policy) -> str:
    """ "" if cuDNN's batch normalization can do this, else the reason; asks no device."""
    data, x = _data(problem), problem.x
    parameters = (*problem.inputs[len(data) - 1 :], *problem.outputs[1:])
    wanted = "float64" if x.dtype == "float64" else "float32"
    if any(s.dtype != wanted for s in parameters):
        return f"cuDNN's parameters and statistics are {wanted} for {x.dtype} inputs"
    if len({s.dtype for s in data}) > 1:
        return "cuDNN's batch normalization needs dy in the dtype of the inputs"
    if policy.determinism not in ("run_to_run", "not_guaranteed"):
        return f"cuDNN guarantees run_to_run at best, the option determinism asks for {policy.determinism}"
    if policy.precision in ("float16", "float32", "float64") and policy.precision != wanted:
        return f"cuDNN computes {x.dtype} data in {wanted}, not in {policy.precision}"
    packed = all(s.is_contiguous for s in data)
    last = all(s.is_channels_last for s in data)
    if last and not packed and problem.op == TEST:
        return "cuDNN's inference on channels-last arrays loses digits: up to 9 of the bound (cuDNN 9.19, H200)"
    if not packed and not (last and problem.mode == "spatial"):
        return "cuDNN's batch normalization gets arrays packed in C order, or channels last in spatial mode"
    # statistics of channels-last inputs are channels last too, which is C order in memory
    if any(strides_of(s) != contiguous_strides(s.shape) for s in parameters):
        return "cuDNN's batch normalization needs parameters packed in C order"
    if not all(s.aligned for s in (*problem.inputs, *problem.outputs)):
        return "cuDNN's batch normalization reads what is not aligned to 16 bytes at wrong addresses (cuDNN 9.19, H200)"
    if x.size >= INT_MAX:
        return "an operand has more than 2**31 elements, cuDNN's descriptor counts in 32 bits"
    if x.shape[0] > (most := MOST_IMAGES[problem.op != TEST, problem.mode]):
        return f"cuDNN's batch normalization takes up to {most} images here, got {x.shape[0]}"
    return ""


def _shapes(problem: NormProblem) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(shape of the data, its strides, shape of the parameters) as four axes."""
    x = problem.x
    n, c = x.shape[0], x.shape[1] if len(x.shape) > 1 else 1
    positions = math.prod(x.shape[2:])
    strides = (c * positions, positions, 1, 1) if x.is_contiguous else (c * positions, 1, c, c)
    return (n, c, positions, 1), strides, (1, c, positions if problem.mode == "per-activation" else 1, 1)


def plan(problem: NormProblem, policy: Policy, config: Any) -> Executable:
    """Descriptors and scalars, bound into one callable."""
    from numbadnn.cudnn._call import prepare

    shape, strides, small = _shapes(problem)
    library, wide = lib.load(), "float64" if problem.x.dtype == "float64" else "float32"
    channel_strides = (small[1] * small[2], small[2], 1, 1)
    data, parameters = tensor(library, problem.x.dtype, shape, strides), tensor(library, wide, small, channel_strides)
    one, zero, memory = scalars(wide)
    words = _arguments(problem, one, zero, data.value, parameters.value)
    reals = (problem.factor if problem.running else 1.0, problem.epsilon) if problem.op == TRAIN else (problem.epsilon,)
    name = _FUNCTIONS[problem.op]
    issue = prepare(library, policy.device, problem.op, name, words, reals, (data, parameters, memory))
    direct = _averaging(problem, policy.device, issue) if problem.running else issue

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: int | None, stream: int | None) -> None:
        direct(stream or 0, *inputs, *outputs)

    facts: dict[str, Any] = {"folded": "x".join(map(str, shape)), "copies": [], "cudnn": library.version}
    if problem.running:
        facts["copies"] = ["running_mean", "running_var"]
    return Executable(run=run, arithmetic=ARITHMETIC[problem.op], facts=facts, direct=direct, summation=SEQUENCE)


def _arguments(problem: NormProblem, one: int, zero: int, data: int, parameters: int) -> tuple[int, ...]:
    """What each call takes after the handle, but for its doubles; addresses are those of inputs, then outputs."""
    from numbadnn.cudnn._call import POINTER as A

    mode = int(BatchNormMode[problem.mode.upper().replace("-", "_")])
    if problem.op == TEST:  # x, gamma, beta, mean, var; y
        return mode, one, zero, data, A[0], data, A[5], parameters, *A[1:5]
    if problem.op == TRAIN_GRAD:  # x, dy, gamma, mean, invstd; dx, dgamma, dbeta
        arrays = (data, A[0], data, A[1], data, A[5], parameters, A[2], A[6], A[7], A[3], A[4])
        return mode, one, zero, one, zero, *arrays
    running = A[6:8] if problem.running else (0, 0)  # x, gamma, beta; y, mean, invstd[, new_mean, new_var]
    return mode, one, zero, data, A[0], data, A[3], parameters, A[1], A[2], *running, A[4], A[5]


def _averaging(problem: NormProblem, device: int, issue: Callable[..., None]) -> Callable[..., None]:
    """The call with running averages: cuDNN updates them in place, so the old ones are copied first."""
    from numbadnn.kernels.copies.copy import plan_copy

    rank = len(problem.x.shape)
    copies = [plan_copy(problem.inputs[i], problem.outputs[i], (0,) * rank, device) for i in (3, 4)]

    def direct(stream: int, x: int, gamma: int, beta: int, old_mean: int, old_var: int, *outputs: int) -> None:
        if (old_mean, old_var) != outputs[3:]:
            copies[0](old_mean, outputs[3], stream)
            copies[1](old_var, outputs[4], stream)
        issue(stream, x, gamma, beta, *outputs)

    return direct


def rank(problem: NormProblem) -> float:
    """An estimate in microseconds: launch, and memory at what cuDNN reached on an H200."""
    last = problem.op == TRAIN_GRAD and problem.x.layout == "nhwc"  # 27 us of 0.4 MB, 450 to 8,800 of 30 to 90
    return 7.0 + problem.bytes / (0.06e6 if last else 1.2e6)


for _op in _FUNCTIONS:
    register(
        Impl(
            op=_op,
            backend="cudnn",
            name="cudnn.norm",
            supports=supports,
            plan=plan,
            rank=rank,
            arithmetic=ARITHMETIC[_op],
            determinism="run_to_run",
        )
    )
