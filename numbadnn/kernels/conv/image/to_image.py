"""``numba.to_image``: float32 convolutions whose result has the channels of an image, one to four.

The gradient with respect to a network's first image, a transposed convolution that draws one, a last layer: a matrix product
has too few columns to be worth gathering an operand for. Each thread has a small patch of the result in all channels, and reads
the many channels of the other image from shared memory (``device/to_image.py``). Both directions are one sum,
``out[n,c,h,w] = sum over k,r,s of source[n, k, (h+top-r)/down, (w+left-s)/across] * filters[k,c,r,s]``, where the
divisions are even. Its order depends on neither the sizes of the images nor the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.build.plans import one_launch
from numbadnn.kernels.build.support import LIMIT32, device_reason
from numbadnn.kernels.conv.image.to_image_config import ACROSS, DOWN, THREADS, ToImageConfig, _pair
from numbadnn.kernels.conv.parts import in_parts
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import ConvProblem
from numbadnn.registry import SEQUENCE, Executable, Impl, register

MOST_CHANNELS, MOST_TAPS = 4, 7
#: bytes of shared memory that every GPU of sm_80 and later gives a block
SHARED = 99 << 10
PARAMETERS = "ptr ptr ptr i32*2 i32*2 i32*2 i32*2 i64 i32*3 i32 i32*4 i64 i32*3 f32 f32"


class Sum:
    """A problem as the sum above: the two images, and the filters' start and strides along k, c, r and s."""

    def __init__(self, problem: ConvProblem) -> None:
        forward = problem.direction == "forward"
        self.source, self.out = (problem.x, problem.y) if forward else (problem.y, problem.x)
        self.taps, self.stride = _pair(problem.taps), _pair(problem.stride)
        low = _pair(tuple(low for low, _ in problem.padding))
        self.first = (self.taps[0] - 1 - low[0], self.taps[1] - 1 - low[1]) if forward else low
        k, c, *steps = problem.w.strides
        self.start = 0
        if problem.flip != forward:  # a forward sum meets the taps from the other end
            self.start = sum((n - 1) * s for n, s in zip(self.taps, steps, strict=True))
            steps = [-s for s in steps]
        self.w_strides = (c if forward else k, k if forward else c, *steps)

    @property
    def last(self) -> bool:
        """Whether neighbours in memory are channels of the source, rather than columns."""
        return self.source.strides[1] == 1 and self.source.strides[3] != 1


def heuristic(problem: ConvProblem) -> ToImageConfig:
    """Eight channels at a time where they are neighbours, a sector of memory; else four, for more blocks a multiprocessor."""
    s = Sum(problem)
    chunk, lanes = (8, 8) if s.last else (4, 1)
    config = ToImageConfig(s.out.shape[1], s.taps, s.stride, s.first, chunk, lanes, _vector(s.out))
    while config.shared_bytes > SHARED and config.chunk > config.lanes:
        config = replace(config, chunk=config.chunk // 2)
    return config


def space(problem: ConvProblem, policy: Policy) -> list[ToImageConfig]:
    """Every configuration worth timing, the heuristic's first."""
    best = heuristic(problem)
    pairs = ((8, 8), (4, 4), (16, 8)) if best.lanes > 1 else ((4, 1), (8, 1), (2, 1))
    found = dict.fromkeys((best, *(replace(best, chunk=chunk, lanes=lanes) for chunk, lanes in pairs)))
    return [config for config in found if config.shared_bytes <= SHARED]


def _vector(out: Spec) -> int:
    """Four where every patch's rows begin aligned, else one."""
    others = (*out.strides[:3], out.shape[3])
    return 4 if out.aligned and out.strides[3] == 1 and all(n % 4 == 0 for n in others) else 1


def kernel(direction: str, config: ToImageConfig) -> Kernel:
    """The kernel of a configuration; sizes and strides are arguments."""
    made_by, arguments = "conv.image.device.to_image.convolve", (config, direction == "grad_inputs")
    return Kernel.of("to_image float32", made_by, arguments, PARAMETERS, THREADS)


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Why it cannot, "" if it can."""
    if problem.axes != 2 or problem.unshared or problem.groups > 1:
        return "needs two spatial axes, shared filters and one group"
    if problem.x.dtype != "float32" or policy.precision in ("float16", "float64"):
        return "needs float32, which it accumulates in float32"
    if policy.algo not in ("auto", "none", "deterministic"):
        return f"has no algorithm {policy.algo!r}"
    if any(d != 1 and n > 1 for d, n in zip(problem.dilation, problem.taps, strict=True)):
        return "has no kernel for dilated filters"
    if problem.direction == "forward" and max(problem.stride) > 1:
        return "has strides in the gradient of the image alone"
    if max(problem.stride) > 2 or max(problem.taps) > MOST_TAPS:
        return f"needs strides of 1 or 2 and at most {MOST_TAPS} taps an axis"
    s = Sum(problem)
    if s.out.shape[1] > MOST_CHANNELS:
        return f"needs a result of at most {MOST_CHANNELS} channels"
    if 1 not in (s.source.strides[1], s.source.strides[3]) or min(s.source.strides) < 0:
        return "needs neighbouring columns or neighbouring channels next to each other in memory"
    if max(max(-a, b) for a, b in (spec.span for spec in (problem.x, problem.w, problem.y))) >= LIMIT32:
        return "needs operands whose offsets fit 32 bits"
    if not all(spec.size for spec in (problem.x, problem.w, problem.y)):
        return "needs operands that are not empty"
    if heuristic(problem).shared_bytes > SHARED:
        return "needs taps whose tile fits shared memory"
    return device_reason(policy)


def plan(problem: ConvProblem, policy: Policy, config: ToImageConfig | None = None) -> Executable:
    """One launch."""
    s, config = Sum(problem), config or heuristic(problem)
    chosen = kernel(problem.direction, config)
    N, _, H, W = s.out.shape
    rows, columns = config.patch
    high, wide = -(-H // (DOWN * rows)), -(-W // (ACROSS * columns))
    scalars = (
        *((N, s.source.shape[1]), s.source.shape[2:], (H, W), (high, wide)),
        *(s.source.strides[0], s.source.strides[1:], s.start, s.w_strides, s.out.strides[0], s.out.strides[1:]),
        *(problem.alpha, problem.beta),
    )
    launch = chosen.prepare(policy.device, blocks(N * high * wide, 1), (THREADS, 1, 1), scalars, config.shared_bytes)
    return one_launch(chosen, launch, config, summation=SEQUENCE)


def rank(problem: ConvProblem) -> float:
    """Microseconds, as measured on an H200: copies into shared memory, which neighbouring channels make slower, and sums.

    A block of a gradient waits for one filter's copy after another.
    """
    if problem.unshared:
        return math.inf
    waits = 0.3 * problem.y.shape[1] if problem.direction == "grad_inputs" else 0.0
    return 5 + problem.bytes / (1.4e6 if Sum(problem).last else 3.3e6) + problem.flops / 3.8e7 + waits


def kernels() -> Iterator[Kernel]:
    """The gradient of first layers, and a last layer; both layouts."""
    for line in (
        "conv2d_grad_wrt_inputs x=float32:2x3x32x32 w=float32:64x3x3x3 pad=1,1,1,1",
        "conv2d_grad_wrt_inputs x=float32:2x3x32x32:nhwc w=float32:64x3x7x7 stride=2,2 pad=3,3,3,3",
        "conv2d x=float32:2x64x32x32:nhwc w=float32:1x64x5x5 pad=2,2,2,2",
    ):
        problem = ConvProblem.parse(line)
        yield kernel(problem.direction, heuristic(problem))


for _op in ("conv2d", "conv2d_grad_wrt_inputs"):
    register(in_parts(Impl(_op, "numba", "numba.to_image", supports, plan, rank, "ieee", "gpu_to_gpu", space=space)))
