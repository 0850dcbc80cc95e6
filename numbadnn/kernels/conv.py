"""``numba.direct``: the readable reference convolution on the GPU; every case, three directions, fixed summation order.

This file is the host side: it turns a ``ConvProblem`` into the arguments of one of the kernels of ``_conv_kernels``. Strides,
padding, dilation and groups are run-time arguments, so that a process compiles one kernel per direction, dtype and
index width. Threads are numbered along the memory of what they write (read, for the weights' gradient), NCHW or NHWC.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from numbadnn.kernels._launch import Kernel, blocks
from numbadnn.kernels._support import LIMIT32, accumulator_of, device_reason
from numbadnn.ops.conv import DIRECTIONS, ConvProblem
from numbadnn.problem import Policy, Spec
from numbadnn.registry import Executable, Impl, register

THREADS = 256


@dataclass(frozen=True, slots=True)
class DirectConfig:
    """``parts`` threads share one element of the weights' gradient (a power of two); 1 in the other directions."""

    parts: int = 1
    wide: bool = False


def heuristic(problem: ConvProblem) -> DirectConfig:
    """Parts as many as the positions of one image can feed; 64-bit indices where any offset or count needs them."""
    parts = 1
    if problem.op == "conv2d_grad_wrt_weights":
        positions = math.prod(problem.y.shape[2:])
        most = 8 if _channels_last(problem.x) else THREADS
        while parts < most and parts * 2 <= positions:
            parts *= 2
    specs = (problem.x, problem.w, problem.y)
    reach = max(max(-low, high) for low, high in (s.span for s in specs))
    wide = max(reach, *(s.size for s in specs)) >= LIMIT32
    return DirectConfig(parts, wide)


def space(problem: ConvProblem) -> list[DirectConfig]:
    """Every configuration worth timing."""
    best = heuristic(problem)
    if problem.op != "conv2d_grad_wrt_weights":
        return [best]
    return [DirectConfig(1 << i, best.wide) for i in range(9)]


def kernel(op: str, dtype: str, acc: str, wide: bool) -> Kernel:
    """The kernel of one direction, data type, accumulator and index width."""

    def build() -> Callable[..., None]:
        from numbadnn.kernels import _conv_kernels

        return getattr(_conv_kernels, op)(dtype, acc, wide)

    i = "i64" if wide else "i32"
    parameters = f"ptr ptr ptr {i} i32 i32 i32*4 i32*4 i32*4 i32*2 i32*2 i32*2 {i}*4 {i} {i}*4 {i}*4"
    parameters += " f64 f64" if acc == "float64" else " f32 f32"
    if op == "conv2d_grad_wrt_weights":
        parameters += " i32 i32"
    return Kernel(f"{op} {dtype} {acc} {i}", parameters, build, THREADS)


def arguments(problem: ConvProblem, config: DirectConfig) -> tuple[Any, ...]:
    """Everything the kernel takes after its three addresses."""
    w_start, w_strides = 0, problem.w.strides
    if problem.flip:
        last = [(n - 1) * s for n, s in zip(problem.w.shape[2:], w_strides[2:], strict=True)]
        w_start, w_strides = sum(last), (*w_strides[:2], *(-s for s in w_strides[2:]))
    walked = problem.x if problem.op == "conv2d_grad_wrt_weights" else problem.output
    padding = tuple(low for low, _ in problem.padding)
    return (
        problem.output.size,
        int(_channels_last(walked)),
        problem.w.shape[0] // problem.groups,
        problem.x.shape,
        problem.w.shape,
        problem.y.shape,
        padding,
        problem.stride,
        problem.dilation,
        problem.x.strides,
        w_start,
        w_strides,
        problem.y.strides,
        problem.alpha,
        problem.beta,
        *((THREADS // config.parts, config.parts) if problem.op == "conv2d_grad_wrt_weights" else ()),
    )


def grid(problem: ConvProblem, config: DirectConfig) -> tuple[int, int, int]:
    return blocks(problem.output.size, THREADS // config.parts)


def _channels_last(spec: Spec) -> bool:
    """Whether neighbouring channels lie closer together than neighbouring columns."""
    return spec.shape[1] > 1 and (spec.shape[3] == 1 or abs(spec.strides[1]) < abs(spec.strides[3]))


def _farthest(problem: ConvProblem) -> int:
    """The largest coordinate of the padded image that a kernel computes."""
    axes = zip(problem.x.shape[2:], problem.w.shape[2:], problem.y.shape[2:], problem.padding, strict=True)
    steps = zip(problem.stride, problem.dilation, strict=True)
    return max(
        n + sum(pad) + taps * dilation + out * stride
        for (n, taps, out, pad), (stride, dilation) in zip(axes, steps, strict=True)
    )


def _supports(problem: ConvProblem, policy: Policy) -> str:
    if policy.precision == "float16":
        return "accumulates in float32 or float64, not in float16"
    if policy.precision == "float32" and problem.x.dtype == "float64":
        return "accumulates float64 data in float64, not in float32"
    if policy.algo not in ("auto", "none", "deterministic"):
        return f"has no algorithm {policy.algo!r}"
    if _farthest(problem) >= LIMIT32:
        return "needs a padded image of fewer than 2**31 rows and columns"
    return device_reason(policy)


def _plan(problem: ConvProblem, policy: Policy, config: DirectConfig | None = None) -> Executable:
    config = config or heuristic(problem)
    dtype = problem.output.dtype
    chosen = kernel(problem.op, dtype, accumulator_of(dtype, policy), config.wide)
    launch = chosen.prepare(policy.device, grid(problem, config), (THREADS, 1, 1), arguments(problem, config))

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        launch(stream, inputs[0], inputs[1], outputs[0])

    facts = {"kernel": chosen.name, "config": config}
    return Executable(run, determinism="gpu_to_gpu", facts=facts, direct=launch.direct)


def _rank(problem: ConvProblem) -> float:
    """Microseconds at about 1 TFLOP/s, what direct summation without tiles reaches."""
    return 5 + problem.flops / 1e6


def kernels() -> Iterator[Kernel]:
    """Every kernel of this family that 32-bit indices use, and one with 64-bit ones."""
    for op in DIRECTIONS:
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            yield kernel(op, dtype, "float64" if dtype == "float64" else "float32", False)
        yield kernel(op, "float16", "float64", True)


for _op in DIRECTIONS:
    register(Impl(_op, "numba", "numba.direct", _supports, _plan, _rank, "ieee", "gpu_to_gpu", complete=True))

from numbadnn.kernels import depthwise as depthwise  # noqa: E402  registers numba.depthwise
