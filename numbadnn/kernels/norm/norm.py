"""Batch normalization and its gradients on the GPU, by three sets of kernels: planes, columns, and anything at all.

``numba.norm_planes`` (NCHW) and ``numba.norm_columns`` (NHWC, per-activation) work in steps: a reduction into parts, one small
kernel that joins them and works out what is a number a channel, and a walk that writes. Inference has the walk alone, its
gradient writes while it reduces. ``numba.norm_strided`` takes any strides and dtypes in one kernel. How a reduction is split
follows from the problem alone, never from the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numbadnn.kernels.build.launch import Kernel, blocks, sequence
from numbadnn.kernels.build.plans import around
from numbadnn.kernels.build.support import LEAF, device_reason, precision_reason
from numbadnn.kernels.norm import columns as norm_columns
from numbadnn.kernels.norm import planes as norm_planes
from numbadnn.kernels.norm import strided as norm_strided
from numbadnn.kernels.norm.layout import accumulator
from numbadnn.problem import ITEMSIZE, Policy
from numbadnn.problems.norm import OPERANDS, TEST, TEST_GRAD, TRAIN, TRAIN_GRAD, NormProblem
from numbadnn.registry import Executable, Impl, Summation, register

#: channels a block of the kernels in ``device/finish.py``, and parts that a thread of theirs fetches at once
LANES, AHEAD = 8, 4
_REAL = {"float32": "f32", "float64": "f64"}


def finish_kernel(name: str, acc: str, parameter: str, flag: bool, shares: int) -> Kernel:
    """``statistics`` or ``gradients`` of ``device/finish.py``, with ``shares`` threads a channel."""
    real = _REAL[acc]
    addresses, more = (9, 5) if name == "statistics" else (8, 2)
    parameters = f"ptr:{addresses} i32 i32 {real}:{more}"
    arguments = (acc, parameter, flag, shares)
    return Kernel.of(f"norm_{name}", f"norm.device.finish.{name}", arguments, parameters, LANES * shares, early=True)


def _finish(problem: NormProblem, channels: int, parts: int) -> tuple[Any, ...]:
    """The small step, as (kernel, grid, threads, scalars)."""
    acc, m, f = accumulator(problem), problem.averaged, problem.factor
    shares = 8 if parts <= 8 else 32 if parts <= 32 * AHEAD else 128  # threads a channel: few take turns
    grid, threads = blocks(channels, LANES), LANES * shares
    if problem.op == TRAIN:
        unbiased = m / (m - 1) if m > 1 else 1.0
        kernel = finish_kernel("statistics", acc, problem.gamma.dtype, problem.running, shares)
        return kernel, grid, threads, (channels, parts, float(m), problem.epsilon, 1 - f, f, f * unbiased)
    kernel = finish_kernel("gradients", acc, problem.gamma.dtype, problem.op == TRAIN_GRAD, shares)
    return kernel, grid, threads, (channels, parts, float(m), problem.epsilon)


#: operation -> the addresses of a call, then what the reduction, the small step and the walk take of them
_STEPS = {
    TRAIN: (
        "x gamma beta y mean invstd space",
        "x space",
        "space gamma beta 0 0 mean invstd 0 0",
        "x space+{table} y",
    ),
    TRAIN_GRAD: (
        "x dy gamma mean invstd dx dgamma dbeta space",
        "x dy gamma mean invstd dx space",
        "space gamma mean invstd dgamma dbeta 0 0",
        "x dy space+{table} dx",
    ),
    TEST_GRAD: (
        "x dy gamma mean var dx dgamma dbeta dmean dvar space",
        "x dy gamma mean var dx space",
        "space gamma mean var dgamma dbeta dmean dvar",
        "",
    ),
}
_RUNNING = (
    "x gamma beta old_mean old_var y mean invstd new_mean new_var space",
    "x space",
    "space gamma beta old_mean old_var mean invstd new_mean new_var",
    "x space+{table} y",
)
#: the walk that joins the parts by itself
_JOINING = (
    "x space gamma beta 0 0 y mean invstd 0 0",
    "x space gamma beta old_mean old_var y mean invstd new_mean new_var",
)


def _plan_steps(problem: NormProblem, policy: Policy, steps: Any) -> Executable:
    """Launches of the steps of ``Planes`` or ``Columns``, bound into one function of addresses."""

    def prepare(kernel: Kernel, grid: Any, threads: int, scalars: Any) -> Any:
        return kernel.prepare(policy.device, grid, (threads, 1, 1), scalars)

    table, nbytes = _workspace(problem, steps)
    if problem.op == TEST:
        direct = prepare(*steps.application()).direct
    else:
        names, of_reduction, of_finish, of_walk = _RUNNING if problem.running else _STEPS[problem.op]
        launches = [(prepare(*steps.reduction()), of_reduction)]
        if getattr(steps, "joins", False):
            launches.append((prepare(*steps.application()), _JOINING[problem.running]))
        else:
            launches.append((prepare(*_finish(problem, steps.channels, steps.parts)), of_finish))
            if of_walk:
                launches.append((prepare(*steps.application()), of_walk.format(table=table)))
        direct = sequence(names, launches)

    facts = {"kernel": type(steps).__name__.lower(), "config": steps.config, "parts": getattr(steps, "parts", 1)}
    threads = steps.config.rows if isinstance(steps, norm_columns.Columns) else steps.config.threads  # a channel's
    lanes = max(1, threads * getattr(steps, "parts", 1) // 2)  # half: some take an access or a batch more than others
    added = Summation((), "sequence", lanes)
    return around(direct, facts, nbytes, summation=added)


def _workspace(problem: NormProblem, steps: Any) -> tuple[int, int]:
    """Where the coefficients lie behind the parts, and bytes in all: of training with a root for each part."""
    if problem.op == TEST:
        return 0, 0
    channel = steps.channels * ITEMSIZE[accumulator(problem)]
    rows = 3 * steps.parts + 5 + (steps.parts if problem.op == TRAIN else 0)
    return (3 * steps.parts + 1) * channel, rows * channel


def _precision_reason(problem: NormProblem, policy: Policy) -> str:
    return precision_reason("these dtypes", accumulator(problem), policy)


def _register_steps(op: str, stem: str, module: Any, steps: Any, speed: float) -> None:
    def supports(problem: NormProblem, policy: Policy) -> str:
        reason = _precision_reason(problem, policy) or module.reason(problem)
        if reason:
            return reason
        _, nbytes = _workspace(problem, steps(problem, module.heuristic(problem)))
        if nbytes > policy.workspace_limit:
            return f"needs a workspace of {nbytes} bytes, the limit is {policy.workspace_limit}"
        return device_reason(policy)

    def plan(problem: NormProblem, policy: Policy, config: Any = None) -> Executable:
        return _plan_steps(problem, policy, steps(problem, config or module.heuristic(problem)))

    def rank(problem: NormProblem) -> float:
        more = 1.5 if stem == "columns" and problem.op in (TRAIN, TRAIN_GRAD) else 0.0  # measured
        return launches_us(problem) + more + problem.bytes / speed

    register(Impl(op, "numba", f"numba.norm_{stem}", supports, plan, rank, "ieee", "gpu_to_gpu"))


def launches_us(problem: NormProblem) -> float:
    """Microseconds before a byte is moved, as measured on an H200: training has two passes."""
    return 8.5 if problem.op in (TRAIN, TRAIN_GRAD) else 4.0


def _register_strided(op: str) -> None:
    def supports(problem: NormProblem, policy: Policy) -> str:
        return _precision_reason(problem, policy) or device_reason(policy)

    def plan(problem: NormProblem, policy: Policy, config: Any = None) -> Executable:
        config = config or norm_strided.heuristic(problem)
        kernel, grid, threads, scalars = norm_strided.prepare(problem, config)
        launch = kernel.prepare(policy.device, grid, (threads, 1, 1), scalars)
        direct = launch.direct
        if op == TRAIN and not problem.running:
            inner = launch.direct

            def direct(stream: int, x: int, gamma: int, beta: int, y: int, mean: int, invstd: int) -> None:
                inner(stream, x, gamma, beta, 0, 0, y, mean, invstd, 0, 0)

        facts, added = {"kernel": kernel.name}, Summation((), "sequence", config.parts)
        if op.endswith("_grad"):
            added = Summation((LEAF,), "compensated", config.parts)
        return around(direct, facts, summation=added)

    def rank(problem: NormProblem) -> float:
        each = problem.x.size / max(1, min(spec.size for spec in problem.inputs))  # that a channel's threads add up
        return launches_us(problem) + max(problem.bytes / 2e5, each / 500)

    register(Impl(op, "numba", "numba.norm_strided", supports, plan, rank, "ieee", "gpu_to_gpu", complete=True))


for _op in OPERANDS:
    _register_steps(_op, "planes", norm_planes, norm_planes.Planes, 2.6e6)
    _register_steps(_op, "columns", norm_columns, norm_columns.Columns, 2.5e6)
    _register_strided(_op)


def kernels() -> Iterator[Kernel]:
    """A representative set: the steps of planes and columns, and the general kernels, each dtype somewhere."""
    texts = (
        (TRAIN, "float32:2x64x32x32", "float32"),
        (TRAIN_GRAD, "float16:2x64x32x32", "float32"),
        (TEST, "bfloat16:2x64x32x32", "float32"),
        (TRAIN, "float16:8x64x8x8:nhwc", "float32"),
        (TRAIN_GRAD, "float32:8x64x8x8:nhwc", "float32"),
    )
    for op, x, parameter in texts:
        problem = NormProblem.parse(f"{op} x={x} mode=spatial gamma={parameter}:1x64x1x1")
        steps: Any
        module, steps = (norm_columns, norm_columns.Columns) if "nhwc" in x else (norm_planes, norm_planes.Planes)
        made = steps(problem, module.heuristic(problem))
        if op != TEST:
            yield made.reduction()[0]
        yield made.application()[0]
    rare = NormProblem.parse(f"{TRAIN} x=float32:64x3x64x64 mode=spatial")  # so few channels that the parts are many
    yield norm_planes.Planes(rare, norm_planes.heuristic(rare)).application()[0]
    yield _finish(NormProblem.parse(f"{TRAIN} x=float32:2x3 running_mean=float32:1x3"), 3, 1)[0]
    problem = NormProblem.parse(f"{TRAIN_GRAD} x=float64:4x3x4x6 mode=spatial")
    yield norm_strided.prepare(problem, norm_strided.heuristic(problem))[0]
