"""``numbadnn.unshared``: unshared convolutions and the gradient of their filters, each filter read or written once.

The device code is in ``_unshared_kernels``. Images and filters of a block are frozen into a kernel, all else is an argument;
a filter's terms must lie together in memory, in whatever order the other axes. The gradient of the images takes ``numba.direct``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import Any

from numbadnn.kernels._launch import Kernel
from numbadnn.kernels._support import LIMIT32, accumulator_of, device_reason
from numbadnn.ops.conv import ConvProblem
from numbadnn.problem import ITEMSIZE, Policy, contiguous_strides
from numbadnn.registry import Executable, Impl, register

LANES, MOST_WARPS = 32, 4
#: blocks that fill a GPU
ENOUGH_BLOCKS = 4 * 132
#: of a block; four fit a multiprocessor
SHARED_BYTES = 47 * 1024
#: images of a block: with 4 filters, a thread has this times 4 sums
MOST_IMAGES = 8


@dataclass(frozen=True, slots=True)
class UnsharedConfig:
    """``images`` x ``filters`` sums a thread; ``room``: terms in shared memory; ``vec``: terms of an access."""

    images: int
    filters: int
    room: int
    vec: int
    warps: int
    resident: int = 4


def heuristic(problem: ConvProblem, acc: str = "float32") -> UnsharedConfig:
    """Images in the smallest power of two that holds them, up to 8; as many warps as the filters of a group can feed."""
    filters = min(4, 1 << (problem.w.shape[0] // problem.groups - 1).bit_length())
    images = 1 << (problem.x.shape[0] - 1).bit_length()
    warps = max(1, min(MOST_WARPS, -(-problem.w.shape[0] // problem.groups // filters)))
    vec, held = _vector(problem), ITEMSIZE[acc]
    if problem.direction == "forward":
        images = min(images, MOST_IMAGES)
        each = problem.w.itemsize if vec * problem.w.itemsize >= 4 else held
        most = SHARED_BYTES // (images * held + warps * filters * each)
    else:
        most = SHARED_BYTES // (2 * images * held)  # stores wait for nothing: more blocks, less for each
    terms = -(-math.prod(problem.w.shape[3:]) // 32) * 32
    return UnsharedConfig(images, filters, max(32, min(terms, most // 32 * 32)), vec, warps)


def _vector(problem: ConvProblem) -> int:
    """The most terms of a filter that one access may have, in every filter: up to four, more would need too many registers."""
    vec = min(4, 16 // problem.w.itemsize) if problem.w.aligned else 1
    while vec > 1 and any(v % vec for v in (math.prod(problem.w.shape[3:]), *problem.w.strides[:3])):
        vec //= 2
    return vec


def kernel(direction: str, dtype: str, acc: str, config: UnsharedConfig) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels import _unshared_kernels

        return getattr(_unshared_kernels, direction)(dtype, acc, config)

    real = "f64" if acc == "float64" else "f32"
    parameters = (
        f"ptr ptr ptr i32 i32 i32 i32 i32 i32*2 i32 i32*2 i32*2 i32*2 i32*2 i32 i32 i64*4 i64*3 i64*4 {real} {real}"
    )
    name = f"unshared {direction} {dtype} {acc} " + " ".join(str(v) for v in astuple(config))
    return Kernel(name, parameters, build, LANES * config.warps, config.resident)


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
    positions = P * Q * problem.groups
    chunks = max(1, min(-(-N // config.images), ENOUGH_BLOCKS // positions)) if forward else 1
    scalars = (
        *(chunks, problem.groups, N, K // problem.groups, w.shape[3], (H, W), Q, w.shape[4:]),
        *(tuple(low for low, _ in problem.padding), problem.stride, problem.dilation, int(problem.flip)),
        *(math.prod(w.shape[3:]), problem.x.strides, w.strides[:3], problem.y.strides, problem.alpha, problem.beta),
    )
    grid = (positions * chunks, 1, 1)
    launch = chosen.prepare(policy.device, grid, (LANES * config.warps, 1, 1), scalars)

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        launch(stream, inputs[0], inputs[1], outputs[0])

    facts = {"kernel": chosen.name, "config": config}
    return Executable(run, determinism="gpu_to_gpu", facts=facts, direct=launch.direct)


def _rank(problem: ConvProblem) -> float:
    """Microseconds, from an H200: half the speed of a copy, and what each image adds."""
    return 4 + problem.bytes / 2.2e6 + problem.flops / 1.5e7


def kernels() -> Iterator[Kernel]:
    """Both directions, each dtype and several numbers of images."""
    for direction, dtype, config in (
        ("forward", "float32", UnsharedConfig(8, 4, 288, 4, 4)),
        ("forward", "float16", UnsharedConfig(8, 4, 256, 4, 4)),
        ("forward", "bfloat16", UnsharedConfig(1, 4, 256, 1, 4)),
        ("forward", "float64", UnsharedConfig(4, 2, 128, 1, 4)),
        ("grad_weights", "float32", UnsharedConfig(8, 4, 288, 4, 4)),
        ("grad_weights", "bfloat16", UnsharedConfig(16, 4, 256, 2, 4)),
    ):
        yield kernel(direction, dtype, "float64" if dtype == "float64" else "float32", config)


for _op in ("conv2d", "conv2d_grad_wrt_weights", "causal_conv1d"):
    register(Impl(_op, "numba", "numba.unshared", _supports, _plan, _rank, "ieee", "gpu_to_gpu"))
