"""causal_conv1d: the kernels in the order of choice, and why.

At three quarters of the speed of a copy as long as the sums are short. Lines of whole 16-byte chunks have kernels of their
own; all others, at any strides, that of ``plain.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from numbadnn.kernels.build.launch import Kernel, sequence
from numbadnn.kernels.build.plans import around, one_launch
from numbadnn.kernels.build.support import accumulator_of
from numbadnn.kernels.conv.line import boxes, channels, dense, f16, f32x2, plain, toeplitz, vectors
from numbadnn.kernels.conv.members import Member, register_members
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

OPS = ("causal_conv1d",)


def _time(us: float, bytes_us: float, flops_us: float) -> Callable[[ConvProblem, Any], float]:
    """Microseconds on an H200: a start, then memory or products, whichever takes longer."""
    return lambda problem, config: us + max(problem.bytes / bytes_us, problem.flops / flops_us)


def _on_tensor_cores(module: Any) -> Callable[[ConvProblem, Policy, Any], Executable]:
    def plan(problem: ConvProblem, policy: Policy, config: Any) -> Executable:
        chosen = module.kernel(problem.x.dtype, config)
        arithmetic = "ieee" if problem.x.dtype == "float32" else "tensor_core"
        launch = module.prepare(problem, policy.device, config, chosen)
        return one_launch(chosen, launch, config, arithmetic, "run_to_run", SEQUENCE)

    return plan


def _on_threads(module: Any) -> Callable[[ConvProblem, Policy, Any], Executable]:
    def plan(problem: ConvProblem, policy: Policy, config: Any) -> Executable:
        chosen = module.kernel(problem.x.dtype, accumulator_of(problem.x.dtype, policy), config)
        launch = module.prepare(problem, policy.device, config, chosen)
        return one_launch(chosen, launch, config, summation=SEQUENCE)

    return plan


def _plan_boxes(problem: ConvProblem, policy: Policy, config: Any) -> Executable:
    chosen = boxes.kernel(problem.x.dtype, config)
    launch = boxes.prepare(problem, policy.device, config, chosen)
    direct = sequence("x w y", [(launch, "x y x w y")])
    return around(direct, {"kernel": chosen.name, "config": config}, 0, "ieee", "run_to_run", SEQUENCE)


def _by_accumulator(module: Any) -> Callable[[ConvProblem, Policy], Any]:
    return lambda problem, policy: module.heuristic(problem, accumulator_of(problem.x.dtype, policy))


def _of_channels(problem: ConvProblem, policy: Policy) -> Any:
    return channels.heuristic(problem)


def _f32x2(problem: ConvProblem, config: Any) -> float:
    return 6 + problem.bytes / 3.4e6 + problem.flops / 1.6e8


#: name, what finds a configuration, what plans it, estimate, what it takes; where no level stands: ieee, run_to_run
MEMBERS = (
    # 16-bit lines on tensor cores
    Member("numba.line_octets", OPS, vectors.heuristic, _on_tensor_cores(vectors), _time(4, 2.5e6, 1.5e8),
           "16-bit lines of a few channels in vectors of eight", "tensor_core"),
    Member("numba.line_halves", OPS, f16.heuristic, _on_tensor_cores(f16), _time(5, 2.2e6, 1.5e8),
           "16-bit lines of many channels", "tensor_core"),
    Member("numba.line_toeplitz", OPS, toeplitz.heuristic, _on_tensor_cores(toeplitz), _time(3, 3.0e6, 1e18),
           "16-bit lines of one channel a group", "tensor_core"),
    # a channel by itself: nothing is summed over channels
    Member("numba.line_channels", OPS, _of_channels, _on_threads(channels), _time(3, 3.3e6, 2.5e7),
           "lines of one channel a group in whole 16-byte chunks", "ieee", "gpu_to_gpu"),
    # float32 of many channels: tensor cores with float32 as two float16
    Member("numba.line_boxes", OPS, boxes.heuristic, _plan_boxes, _time(8.5, 4e6, 1.7e8),
           "float32 lines of 64 channels and more in TMA boxes (sm_90)"),
    Member("numba.line_twofold", OPS, f32x2.heuristic, _on_tensor_cores(f32x2), _f32x2,
           "float32 lines of many channels: float32 as two float16"),
    # float32 and float64 on threads
    Member("numba.line_dense", OPS, _by_accumulator(dense), _on_threads(dense), dense.estimate,
           "lines in whole 16-byte chunks", "ieee", "gpu_to_gpu"),
    Member("numba.line", OPS, _by_accumulator(plain), plain.plan, plain.estimate, "all lines", "ieee", "gpu_to_gpu"),
)  # fmt: skip


def _belongs(problem: ConvProblem) -> bool:
    return not problem.unshared


def kernels() -> Iterator[Kernel]:
    """A representative set of all members' kernels."""
    for module in (plain, boxes, channels, dense, f16, vectors, toeplitz, f32x2):
        yield from module.kernels()


register_members(MEMBERS, _belongs, plain.supports)
