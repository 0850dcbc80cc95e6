"""``cpu.im2col``: which of the Numba kernels compute a convolution or a gradient on the CPU.

A plan is pure integer geometry: lists of filter taps (slice, row and column they add), of terms of the sum (where in the
image and in the filters each lies), and of phases (``gather.py``). Whatever the direction, padding, subsample, dilation,
flip, groups and strides, they end here; the kernels know only these lists. Groups of few channels (depthwise among them)
have no product worth making: ``conv/thin/thin.py`` takes the same lists. Unshared filters have none either
(``conv/unshared/unshared.py``). For the gradient of the images, filters larger than what they were moved over are read as
images (``few_positions.py``). The gradient of the filters is ``filters.py``, of few filters a group
``conv/thin/filters.py``. Where channels are neighbours in memory the products are those of ``conv/last/last.py`` and
``conv/last/filters.py``, whose vectors are channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbadnn.cpu.conv.few_positions import few_positions
from numbadnn.cpu.conv.filters_plan import plan_filters
from numbadnn.cpu.conv.gather_plan import gather_terms, plan_gather
from numbadnn.cpu.conv.last.filters_plan import is_last_filters, plan_last_filters
from numbadnn.cpu.conv.last.plan import is_last, plan_last
from numbadnn.cpu.conv.terms import fill_unreached, volume
from numbadnn.cpu.conv.thin.filters_plan import few_filters, plan_few_filters
from numbadnn.cpu.conv.thin.plan import is_thin, plan_thin
from numbadnn.cpu.conv.unshared.plan import plan_unshared
from numbadnn.problem import Policy
from numbadnn.problems.conv import OPERATIONS, ConvProblem
from numbadnn.registry import Executable, Impl, register


def plan(problem: ConvProblem, policy: Policy, config: Any = None) -> Executable:
    """The kernels that suit the problem."""
    if problem.unshared:
        return plan_unshared(problem)
    if problem.direction == "grad_weights":
        made = plan_few_filters(problem) if few_filters(problem) else None
        made = made or (plan_last_filters(problem) if is_last_filters(problem) else None)
        return made or plan_filters(problem)
    if few_positions(problem):
        return plan_gather(problem, by_position=True)
    made = None
    if is_thin(problem):
        made = plan_thin(volume(problem), *gather_terms(volume(problem), (1, 1), 1, planes=False))
    made = made or (plan_last(problem) if is_last(problem) else None) or plan_gather(problem)
    if (fill := fill_unreached(volume(problem))) is not None:
        made.run = _then(made.run, fill)
    return made


def _then(run: Callable[..., None], fill: Callable[[Any], None]) -> Callable[..., None]:
    def run_and_fill(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        run(inputs, outputs, workspace, stream)
        fill(outputs[0])

    return run_and_fill


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Everything, except what would need another accumulator."""
    if policy.precision == "float64" and problem.x.dtype != "float64":
        return f"the CPU kernels accumulate {problem.x.dtype} in float32; convert the arrays to float64 instead"
    if policy.precision in ("float16", "float32") and problem.x.dtype == "float64":
        return f"the CPU kernels accumulate float64 in float64, not in {policy.precision}"
    if policy.precision == "float16":
        return "the CPU kernels accumulate float16 and bfloat16 in float32"
    return ""


def rank(problem: ConvProblem) -> float:
    """Microseconds, roughly, at 100 GFLOP/s."""
    return 20 + problem.flops / 1e5


for _op in OPERATIONS:
    register(
        Impl(
            op=_op,
            backend="cpu",
            name="cpu.im2col",
            supports=supports,
            plan=plan,
            rank=rank,
            arithmetic="ieee",
            determinism="gpu_to_gpu",
            complete=True,
        )
    )
