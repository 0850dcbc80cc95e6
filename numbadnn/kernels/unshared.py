"""``numba.unshared``: unshared convolutions and the gradient of their filters, each filter read or written once.

The device code is in ``_unshared_kernels``. Images and filters of a block are frozen into a kernel, all else is an argument;
a filter's terms must lie together in memory, in whatever order the other axes. The gradient of the images takes ``numba.direct``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from numbadnn.kernels._launch import Kernel
from numbadnn.kernels._support import LIMIT32, accumulator_of, device_reason
from numbadnn.ops.conv import ConvProblem
from numbadnn.problem import ITEMSIZE, Policy, contiguous_strides
from numbadnn.registry import Executable, Impl, register

LANES, MOST_WARPS = 32, 8
SHARED_BYTES = 32 * 1024
#: images of a block: with 4 filters, a thread has this times 4 sums
MOST_IMAGES = 8


@dataclass(frozen=True, slots=True)
class UnsharedConfig:
    """``images`` x ``filters`` sums a thread; ``room``: terms of an image in shared memory, a multiple of 64."""

    images: int
    filters: int
    room: int
    warps: int


def heuristic(problem: ConvProblem, acc: str = "float32") -> UnsharedConfig:
    """Images in the smallest power of two that holds them, up to 8; as many warps as the filters of a group can feed."""
    filters = min(4, 1 << (problem.w.shape[0] // problem.groups - 1).bit_length())
    images = 1 << (problem.x.shape[0] - 1).bit_length()
    if problem.direction == "forward":
        images = min(images, MOST_IMAGES)
    terms = -(-math.prod(problem.w.shape[3:]) // 64) * 64
    room = max(64, min(terms, SHARED_BYTES // (images * ITEMSIZE[acc]) // 64 * 64))
    warps = min(MOST_WARPS, -(-problem.w.shape[0] // problem.groups // filters))
    return UnsharedConfig(images, filters, room, max(warps, 1))


def kernel(direction: str, dtype: str, acc: str, config: UnsharedConfig) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels import _unshared_kernels

        return getattr(_unshared_kernels, direction)(dtype, acc, config.images, config.filters, config.room)

    real = "f64" if acc == "float64" else "f32"
    parameters = (
        f"ptr ptr ptr i32 i32 i32 i32 i32 i32*2 i32 i32*2 i32*2 i32*2 i32*2 i32 i32 i64*4 i64*3 i64*4 {real} {real}"
    )
    name = f"unshared {direction} {dtype} {acc} {config.images} {config.filters} {config.room}"
    return Kernel(name, parameters, build, LANES * MOST_WARPS)


def _supports(problem: ConvProblem, policy: Policy) -> str:
    if not problem.unshared:
        return "needs a filter for each position of the output (unshared)"
    if problem.direction == "grad_inputs":
        return "has no kernel for the gradient of the images"
    if problem.w.strides[3:] != contiguous_strides(problem.w.shape[3:]):
        return "needs each filter packed in memory"
    if policy.precision == "float16":
        return "accumulates in float32 or float64, not in float16"
    if policy.precision == "float32" and problem.x.dtype == "float64":
        return "accumulates float64 data in float64, not in float32"
    if problem.direction == "grad_weights" and problem.x.shape[0] > 2 * MOST_IMAGES:
        return f"sums the filters' gradient over at most {2 * MOST_IMAGES} images"
    blocks = math.prod(problem.y.shape[2:]) * problem.groups * problem.x.shape[0]
    if max(blocks, math.prod(problem.w.shape[3:])) >= LIMIT32:
        return "needs fewer than 2**31 blocks and terms"
    return device_reason(policy)


def _plan(problem: ConvProblem, policy: Policy, config: UnsharedConfig | None = None) -> Executable:
    dtype, acc = problem.x.dtype, accumulator_of(problem.x.dtype, policy)
    config = config or heuristic(problem, acc)
    chosen = kernel(problem.direction, dtype, acc, config)
    (N, _, H, W), (_, K, P, Q), w = problem.x.shape, problem.y.shape, problem.w
    forward = problem.direction == "forward"
    chunks = -(-N // config.images) if forward else 1
    scalars = (
        *(chunks, problem.groups, N, K // problem.groups, w.shape[3], (H, W), Q, w.shape[4:]),
        *(tuple(low for low, _ in problem.padding), problem.stride, problem.dilation, int(problem.flip)),
        *(math.prod(w.shape[3:]), problem.x.strides, w.strides[:3], problem.y.strides, problem.alpha, problem.beta),
    )
    grid = (P * Q * problem.groups * chunks, 1, 1)
    launch = chosen.prepare(policy.device, grid, (LANES * config.warps, 1, 1), scalars)

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        launch(stream, inputs[0], inputs[1], outputs[0])

    facts = {"kernel": chosen.name, "config": config}
    return Executable(run, determinism="gpu_to_gpu", facts=facts, direct=launch.direct)


def _rank(problem: ConvProblem) -> float:
    """Microseconds, from an H200: elements of the filters a microsecond, once for each group of images (forward)."""
    rounds = -(-problem.x.shape[0] // MOST_IMAGES) if problem.direction == "forward" else 1
    return 6 + rounds * problem.w.size / (3.4e5 if problem.w.itemsize >= 4 else 2e5)


def kernels() -> Iterator[Kernel]:
    """Both directions, each dtype and several numbers of images."""
    for direction, dtype, config in (
        ("forward", "float32", UnsharedConfig(8, 4, 1024, 8)),
        ("forward", "float16", UnsharedConfig(1, 4, 320, 8)),
        ("forward", "float64", UnsharedConfig(4, 2, 1024, 8)),
        ("grad_weights", "float32", UnsharedConfig(8, 4, 1024, 8)),
        ("grad_weights", "bfloat16", UnsharedConfig(16, 1, 512, 8)),
    ):
        yield kernel(direction, dtype, "float64" if dtype == "float64" else "float32", config)


for _op in ("conv2d", "conv2d_grad_wrt_weights", "causal_conv1d"):
    register(Impl(_op, "numba", "numba.unshared", _supports, _plan, _rank, "ieee", "gpu_to_gpu"))
