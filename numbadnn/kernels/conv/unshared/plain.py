"""``numba.unshared``: unshared convolutions of any shape, each filter read or written once.

Images and filters of a block are frozen into a kernel, all else is an argument; a filter's terms must lie together in
memory, in whatever order the other axes. The gradient of the images is in ``inputs/boxes.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple
from typing import Any

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.plans import one_launch
from numbadnn.kernels.build.support import LIMIT32, accumulator_of, device_reason, reach_reason
from numbadnn.kernels.conv.unshared.inputs import boxes
from numbadnn.kernels.conv.unshared.parts.tile import facts_of, vector
from numbadnn.kernels.conv.unshared.plain_config import LANES, MOST_WARPS, UnsharedConfig
from numbadnn.problem import ITEMSIZE, Policy, contiguous_strides
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable

#: blocks that fill a GPU
ENOUGH_BLOCKS = 4 * 132
#: of a block; four fit a multiprocessor
SHARED_BYTES = 47 * 1024
#: images of a block at a time: forward, with 4 filters, a thread has this times 4 sums
MOST_IMAGES = 8


def heuristic(problem: ConvProblem, acc: str = "float32") -> UnsharedConfig:
    """Images in the smallest power of two that holds them, up to 8; as many warps as the filters of a group can feed."""
    if problem.direction == "grad_weights":
        return _of_weights(problem, acc)
    filters = min(4, 1 << (problem.w.shape[0] // problem.groups - 1).bit_length())
    images = min(MOST_IMAGES, 1 << (problem.x.shape[0] - 1).bit_length())
    warps = max(1, min(MOST_WARPS, -(-problem.w.shape[0] // problem.groups // filters)))
    vec, held = _most_terms(problem), ITEMSIZE[acc]
    each = problem.w.itemsize if vec * problem.w.itemsize >= 4 else held
    most = SHARED_BYTES // (images * held + warps * filters * each)
    terms = -(-math.prod(problem.w.shape[3:]) // 32) * 32
    return UnsharedConfig(images, filters, max(32, min(terms, most // 32 * 32)), vec, warps)


def _of_weights(problem: ConvProblem, acc: str) -> UnsharedConfig:
    """All images, or some at a time: then as many terms and warps as leave the fewest lanes idle."""
    per_group, terms, vec = problem.w.shape[0] // problem.groups, math.prod(problem.w.shape[3:]), _most_terms(problem)
    images = 1 << (problem.x.shape[0] - 1).bit_length()
    if images <= 2 * MOST_IMAGES:
        filters = min(4, 1 << (per_group - 1).bit_length())
        most = SHARED_BYTES // (2 * images * ITEMSIZE[acc])  # stores wait for nothing: more blocks, less for each
        capacity = max(32, min(-(-terms // 32) * 32, most // 32 * 32))
        return UnsharedConfig(images, filters, capacity, vec, max(1, min(MOST_WARPS, -(-per_group // filters))))
    images = MOST_IMAGES
    filters = min(8 if acc == "float32" else 4, 1 << (per_group - 1).bit_length())
    span = min(32, -(-per_group // filters) * filters)
    most = min(SHARED_BYTES // (2 * images * ITEMSIZE[acc]), max(1, LANES * MOST_WARPS * filters // span) * vec)
    fewest = -(-terms // max(32, most // 32 * 32))
    sizes = {-(-terms // parts // 32) * 32 for parts in range(fewest, fewest + 4)}
    found = [(capacity, warps) for capacity in sorted(sizes) for warps in range(1, MOST_WARPS + 1)]
    capacity, warps = max(found, key=lambda pair: (_share(span // filters, terms, vec, *pair), pair))
    return UnsharedConfig(images, filters, capacity, vec, warps, 16 // warps, span)


def _share(parts: int, terms: int, vec: int, capacity: int, warps: int) -> float:
    """The share of lanes that have a task; few warps and many turns are worth less."""
    lanes, turns = LANES * warps, -(-terms // capacity)
    tasks = [parts * -(-min(capacity, terms - start) // vec) for start in range(0, terms, capacity)]
    return sum(tasks) / sum(-(-t // lanes) * lanes for t in tasks) * (0.8 + 0.05 * warps) * 0.99**turns


def _most_terms(problem: ConvProblem) -> int:
    """Of a filter in an access: more than four would need too many registers."""
    return vector(problem, problem.w.shape[3], min(4, 16 // problem.w.itemsize))


def kernel(direction: str, dtype: str, acc: str, config: UnsharedConfig) -> Kernel:
    def build() -> Callable[..., None]:
        from numbadnn.kernels.conv.unshared.forward.device import plain as plain_forward
        from numbadnn.kernels.conv.unshared.weights.device import plain as plain_weights

        if direction == "forward":
            return plain_forward.forward(dtype, acc, config)
        return (plain_weights.many if config.span else plain_weights.few)(dtype, acc, config)

    name = f"unshared {direction} {dtype} {acc} " + " ".join(str(v) for v in astuple(config))
    return Kernel(name, parameters(acc), build, config.threads, config.resident)


def parameters(acc: str) -> Arguments:
    """Of the kernels of both directions and of that on tensor cores."""
    return Arguments(
        *(
            "ptr:3",
            "i32 chunks groups N K C",
            "i32*2 image",
            "i32 Q",
            "i32*2 taps padding stride dilation",
            "i32 flip terms",
        ),
        *(
            "i64*4 x_strides",
            "i64*3 w_strides",
            "i64*4 y_strides",
            f"{'f64' if acc == 'float64' else 'f32'} alpha beta",
        ),
    )


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Why no kernel for unshared filters takes a problem ("" = some do)."""
    if not problem.unshared:
        return "needs a filter for each position of the output (unshared)"
    if problem.w.strides[3:] != contiguous_strides(problem.w.shape[3:]):
        return "needs each filter packed in memory"
    if policy.precision == "float16":
        return "accumulates in float32 or float64, not in float16"
    if policy.precision == "float32" and problem.x.dtype == "float64":
        return "accumulates float64 data in float64, not in float32"
    if reason := reach_reason(problem):
        return reason
    blocks = math.prod(problem.y.shape[2:]) * problem.groups * problem.x.shape[0]
    if max(blocks, math.prod(problem.w.shape[3:])) >= LIMIT32:
        return "needs fewer than 2**31 blocks and terms"
    reason = boxes.supports(problem, policy) if problem.direction == "grad_inputs" else ""
    return reason or device_reason(policy)


def plan(problem: ConvProblem, policy: Policy, config: UnsharedConfig) -> Executable:
    """One launch; under the levels that must not depend on the batch, as for a batch of typical size."""
    dtype, acc = problem.x.dtype, accumulator_of(problem.x.dtype, policy)
    chosen = kernel(problem.direction, dtype, acc, config)
    forward = problem.direction == "forward"
    positions = math.prod(problem.y.shape[2:]) * problem.groups
    chunks = -(-problem.x.shape[0] // config.images) if forward else 1
    chunks = max(1, min(chunks, ENOUGH_BLOCKS // positions))
    values = scalars(problem, chunks, chosen)
    launch = chosen.prepare(policy.device, (positions * chunks, 1, 1), (config.threads, 1, 1), values)
    fixed = not forward or boxes.typical(problem, policy) is not problem
    return one_launch(chosen, launch, config, "ieee", "gpu_to_gpu" if fixed else "run_to_run", SEQUENCE)


def scalars(problem: ConvProblem, chunks: int, chosen: Kernel) -> tuple[Any, ...]:
    """What the kernels here and that of ``forward/f16.py`` take besides addresses."""
    return chosen.values(facts_of(problem), chunks=chunks, terms=math.prod(problem.w.shape[3:]))


def configured(problem: ConvProblem, policy: Policy) -> UnsharedConfig:
    """The configuration of a problem, or of the one that stands for it under the options."""
    typical = boxes.typical(problem, policy) if problem.direction == "forward" else problem
    return heuristic(typical, accumulator_of(problem.x.dtype, policy))


def estimate(problem: ConvProblem, config: Any) -> float:
    """Microseconds on an H200: half the speed of a copy, and what each image adds."""
    rate = 1.5e7 if problem.direction == "forward" else 8e6 if problem.x.shape[0] > 2 * MOST_IMAGES else 3.0e7
    return 4 + problem.bytes / 2.2e6 + problem.flops / rate


def kernels() -> Iterator[Kernel]:
    """Both directions, each dtype and several numbers of images."""
    for direction, dtype, config in (
        ("forward", "float32", UnsharedConfig(8, 4, 288, 4, 4)),
        ("forward", "bfloat16", UnsharedConfig(1, 4, 256, 1, 4)),
        ("forward", "float64", UnsharedConfig(4, 2, 128, 1, 4)),
        ("grad_weights", "bfloat16", UnsharedConfig(16, 4, 256, 2, 4)),
        ("grad_weights", "float32", UnsharedConfig(8, 8, 96, 4, 3, 5, 32)),
    ):
        yield kernel(direction, dtype, "float64" if dtype == "float64" else "float32", config)
