"""``numba.to_image_halves``: convolutions of 16-bit types whose result has the channels of an image, one to four.

The sum of ``numba.to_image`` on tensor cores: positions of the source, channels last, are the rows of products whose terms are
its channels and whose columns are the image's. With a stride of two, positions of the result that leave the same remainders are a
phase, which meets its own taps; all phases of two neighbouring rows are summed from what a warp reads of the source once
(``device/to_image_halves.py``). Each warp has 16 channels of the source; the order of the sums depends on neither the
images' sizes nor the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.plans import one_launch
from numbadnn.kernels.build.support import LIMIT32, device_reason, float32_reason
from numbadnn.kernels.conv.image.to_image import MOST_CHANNELS, MOST_TAPS, Sum
from numbadnn.kernels.conv.image.to_image_halves_config import ROWS, TERMS, ToImageHalvesConfig
from numbadnn.kernels.conv.parts import in_parts
from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable, Impl, register

WARPS = 4
#: of a block, on the multiprocessors that have the least; of all blocks of an H200's, and how many it has
SHARED_BYTES, ALL_SHARED_BYTES, MULTIPROCESSORS = 99 * 1024, 224 * 1024, 132
PARAMETERS = "ptr ptr ptr i32 i32*2 i32*2 i32*2 i64 i32*2 i32 i32*4 i64 i32*3 f32 f32"


def heuristic(problem: ConvProblem) -> ToImageHalvesConfig | None:
    """The first that ``space`` lists, None where none fits."""
    return next(iter(space(problem)), None)


def space(problem: ConvProblem) -> list[ToImageHalvesConfig]:
    """Every configuration worth timing."""
    s = Sum(problem)
    parts = s.source.shape[1] // TERMS
    ways = max(1, WARPS // parts)
    resident = max(1, 3 * WARPS // (parts * ways))
    base = ToImageHalvesConfig(s.out.shape[1], s.taps, s.stride, s.first, parts, ways, 16, 16, resident)
    found = [replace(base, rows=rows, columns=columns) for rows, columns in ((16, 16), (8, 32), (8, 16), (4, 16))]
    found = [c for c in found if c.shared_bytes <= SHARED_BYTES and (c.rows // ROWS * (c.columns // 16)) % c.ways == 0]
    # the largest of which there are enough comes first
    return sorted(found, key=lambda c: -min(math.prod(_tiles(s, c)) * s.out.shape[0], MULTIPROCESSORS * resident))


def _tiles(s: Sum, config: ToImageHalvesConfig) -> tuple[int, int]:
    """Of an image, down and along."""
    _, _, H, W = s.out.shape
    (down, across), rows, columns = config.stride, config.rows, config.columns
    return -(-H // (rows * down)), -(-W // (columns * across))


def kernel(direction: str, dtype: str, config: ToImageHalvesConfig) -> Kernel:
    """The kernel of a configuration; sizes and strides are arguments."""
    made_by, arguments = "conv.image.device.to_image_halves.convolve", (dtype, config, direction == "grad_inputs")
    return Kernel.of("to_image_halves", made_by, arguments, PARAMETERS, config.threads, config.resident)


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Why it cannot, "" if it can."""
    if problem.axes != 2 or problem.unshared or problem.groups > 1:
        return "needs two spatial axes, shared filters and one group"
    if problem.x.itemsize != 2:
        return "needs float16 or bfloat16"
    if reason := float32_reason(policy):
        return reason
    if any(d != 1 and n > 1 for d, n in zip(problem.dilation, problem.taps, strict=True)):
        return "has no kernel for dilated filters"
    if problem.direction == "forward" and max(problem.stride) > 1:
        return "has strides in the gradient of the image alone"
    if max(problem.stride) > 2 or max(problem.taps) > MOST_TAPS:
        return f"needs strides of 1 or 2 and at most {MOST_TAPS} taps an axis"
    if not all(spec.size for spec in (problem.x, problem.w, problem.y)):
        return "needs operands that are not empty"
    s = Sum(problem)
    if s.out.shape[1] > MOST_CHANNELS:
        return f"needs a result of at most {MOST_CHANNELS} channels"
    channels = s.source.shape[1]
    if channels % TERMS or channels // TERMS not in (1, 2, 4, 8):
        return f"needs {TERMS} channels to be summed, or twice, four or eight times as many"
    n, c, *others = s.source.strides
    if not s.source.aligned or c != 1 or any(step % 8 for step in (n, *others)):
        return "needs aligned channels-last images to sum"
    # of one image: what is taken must not depend on how many there are
    images = (replace(spec, shape=(1, *spec.shape[1:])) for spec in (s.source, s.out))
    if max(max(-a, b) for a, b in (spec.span for spec in (*images, problem.w))) >= LIMIT32:
        return "needs images and filters whose offsets fit 32 bits"
    if heuristic(problem) is None:
        return "needs taps whose tile fits shared memory"
    return device_reason(policy)


def plan(problem: ConvProblem, policy: Policy, config: ToImageHalvesConfig | None = None) -> Executable:
    """One launch."""
    s, config = Sum(problem), config or heuristic(problem)
    assert config is not None, "supports() said that one fits"
    chosen = kernel(problem.direction, problem.x.dtype, config)
    tiles = _tiles(s, config)
    count = s.out.shape[0] * math.prod(tiles)
    together = max(1, min(config.resident, ALL_SHARED_BYTES // (config.shared_bytes + 1024)))
    scalars = (
        *(count, tiles, s.source.shape[2:], s.out.shape[2:]),
        *(s.source.strides[0], s.source.strides[2:], s.start, s.w_strides, s.out.strides[0], s.out.strides[1:]),
        *(problem.alpha, problem.beta),
    )
    grid = (min(count, MULTIPROCESSORS * together), 1, 1)
    launch = chosen.prepare(policy.device, grid, (config.threads, 1, 1), scalars, config.shared_bytes)
    return one_launch(chosen, launch, config, "tensor_core", "batch_invariant", SEQUENCE)


def _space(problem: ConvProblem, policy: Policy) -> list[ToImageHalvesConfig]:
    return space(problem)


def rank(problem: ConvProblem) -> float:
    """Microseconds: a third of the speed of a copy."""
    if problem.axes != 2 or problem.unshared or problem.x.itemsize != 2:
        return math.inf
    rows = 6 if problem.x.shape[2] == 1 else 1  # a tile of one row has little of it
    return 6 + rows * max(problem.bytes / 1.4e6, problem.flops / 1.5e8)


def kernels() -> Iterator[Kernel]:
    """The gradients of first layers."""
    for line in (
        "conv2d_grad_wrt_inputs x=float16:32x3x224x224:nhwc w=float16:64x3x7x7:nhwc pad=3,3,3,3 stride=2,2",
        "conv2d_grad_wrt_inputs x=bfloat16:16x3x224x224:nhwc w=bfloat16:64x3x3x3:nhwc pad=1,1,1,1",
    ):
        problem = ConvProblem.parse(line)
        config = heuristic(problem)
        assert config is not None
        yield kernel(problem.direction, problem.x.dtype, config)


_HOW = ("numba", "numba.to_image_halves", supports, plan, rank, "tensor_core", "batch_invariant")
for _op in ("conv2d", "conv2d_grad_wrt_inputs"):
    register(in_parts(Impl(_op, *_HOW, space=_space)))
