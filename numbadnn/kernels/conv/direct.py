"""``numba.direct``: the readable reference convolution on the GPU; every case, three directions, fixed summation order.

This file is the host side: it turns a ``ConvProblem`` into the arguments of one of the kernels of ``device/direct.py``.
Strides, padding, dilation, groups and unshared filters are run-time arguments, so that a process compiles one kernel per
direction, number of axes, dtype and index width. Threads are numbered along the memory of what they write (read, for the
weights' gradient), NCHW or NHWC.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.build.plans import one_launch
from numbadnn.kernels.build.support import LEAF, LIMIT32, accumulator_of, device_reason, reach_reason
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import OPERATIONS, ConvProblem
from numbadnn.registry import Executable, Impl, register

THREADS = 256
#: bytes of filters that the first cache keeps, and how many times as long larger ones take where neighbouring threads read those
#: of different filters: 0.8 to 5.9 of 40 random convolutions of channels-last images
SMALL_FILTERS, SCATTERED = 40_000, 2.5
#: the kernels in which several threads share a sum
SHARED_SUMS = ("grad_weights", "grad_unshared")


@dataclass(frozen=True, slots=True)
class DirectConfig:
    """``parts`` threads share one element of the weights' gradient (a power of two); 1 in the other directions.

    ``long``: a thread adds up more than LEAF terms, with account of what it rounds off.
    """

    parts: int = 1
    wide: bool = False
    long: bool = False


def heuristic(problem: ConvProblem) -> DirectConfig:
    """Parts as many as the positions of one image can feed; 64-bit indices where any offset or count needs them."""
    parts = 1
    if problem.direction == "grad_weights" and not problem.unshared:
        positions = math.prod(problem.y.shape[2:])
        most = 8 if _channels_last(problem.x) else THREADS
        while parts < most and parts * 2 <= positions:
            parts *= 2
    return DirectConfig(parts, is_wide(problem), _is_long(problem, parts))


def _is_long(problem: ConvProblem, parts: int) -> bool:
    """Whether a thread adds up so many terms that their roundings show."""
    taps, filters = math.prod(problem.taps), problem.w.shape[0] // problem.groups
    channels, positions = problem.x.shape[1] // problem.groups, math.prod(problem.y.shape[2:])
    if problem.direction == "grad_weights":
        return problem.y.shape[0] * (1 if problem.unshared else -(-positions // parts)) > LEAF
    return (channels if problem.direction == "forward" else filters) * taps > LEAF


def is_wide(problem: ConvProblem) -> bool:
    """Whether any offset or count of elements needs 64 bits."""
    specs = (problem.x, problem.w, problem.y)
    reach = max(max(-low, high) for low, high in (s.span for s in specs))
    return max(reach, *(s.size for s in specs)) >= LIMIT32


def space(problem: ConvProblem) -> list[DirectConfig]:
    """Every configuration worth timing."""
    best = heuristic(problem)
    if problem.direction != "grad_weights" or problem.unshared:
        return [best]
    return [DirectConfig(1 << i, best.wide, _is_long(problem, 1 << i)) for i in range(9)]


def _space(problem: ConvProblem, policy: Policy) -> list[DirectConfig]:
    return space(problem)


def kernel(body: str, axes: int, dtype: str, acc: str, wide: bool, long: bool = False) -> Kernel:
    """The kernel of one direction (a function of ``device/direct.py``), data type, accumulator and index width."""
    i, real = "i64" if wide else "i32", "f64" if acc == "float64" else "f32"
    parameters = Arguments(
        *("ptr:3", f"{i} count", "i32 channels_last group_filters", "i32*5 image filters output"),
        *("i32*3 padding stride dilation", f"{i}*5 x_strides", f"{i} w_start", f"{i}*5 w_strides", f"{i}*3 regions"),
        *(f"{i}*5 y_strides", f"{real} alpha beta", *(("i32 lanes parts",) if body in SHARED_SUMS else ())),
    )
    title, arguments = f"conv{axes}d {body}", (axes, dtype, acc, wide, long)
    return Kernel.of(title, f"conv.device.direct.{body}", arguments, parameters, THREADS)


def _volume(values: tuple[int, ...], ahead: int, fill: int) -> tuple[int, ...]:
    """``values`` of an array with ``ahead`` axes before the spatial ones, as those of a volume."""
    return (*values[:ahead], *((fill,) if len(values) - ahead == 2 else ()), *values[ahead:])


def arguments(problem: ConvProblem, config: DirectConfig, chosen: Kernel) -> tuple[Any, ...]:
    """Everything the kernel takes after its three addresses."""
    axes, w = problem.axes, problem.w
    w_start, w_strides = 0, (w.strides[0], *w.strides[-axes - 1 :])
    regions = w.strides[1 : axes + 1] if problem.unshared else (0,) * axes
    if problem.flip:
        last = [(n - 1) * s for n, s in zip(problem.taps, w_strides[2:], strict=True)]
        w_start, w_strides = sum(last), (*w_strides[:2], *(-s for s in w_strides[2:]))
    written = getattr(problem, problem.output_name)
    walked = problem.x if problem.direction == "grad_weights" else written
    padding = tuple(low for low, _ in problem.padding)
    return chosen.values(
        {"lanes": THREADS // config.parts, "parts": config.parts},
        count=written.size,
        channels_last=int(_channels_last(walked)),
        group_filters=w.shape[0] // problem.groups,
        image=_volume(problem.x.shape, 2, 1),
        filters=_volume((w.shape[0], *w.shape[-axes - 1 :]), 2, 1),
        output=_volume(problem.y.shape, 2, 1),
        padding=_volume(padding, 0, 0),
        stride=_volume(problem.stride, 0, 1),
        dilation=_volume(problem.dilation, 0, 1),
        x_strides=_volume(problem.x.strides, 2, 0),
        w_start=w_start,
        w_strides=_volume(w_strides, 2, 0),
        regions=_volume(regions, 0, 0),
        y_strides=_volume(problem.y.strides, 2, 0),
        alpha=problem.alpha,
        beta=problem.beta,
    )


def grid(problem: ConvProblem, config: DirectConfig) -> tuple[int, int, int]:
    return blocks(getattr(problem, problem.output_name).size, THREADS // config.parts)


def _channels_last(spec: Spec) -> bool:
    """Whether neighbouring channels lie closer together than neighbouring columns."""
    return spec.shape[1] > 1 and (spec.shape[-1] == 1 or abs(spec.strides[1]) < abs(spec.strides[-1]))


def _supports(problem: ConvProblem, policy: Policy) -> str:
    if policy.precision == "float16":
        return "accumulates in float32 or float64, not in float16"
    if policy.precision == "float32" and problem.x.dtype == "float64":
        return "accumulates float64 data in float64, not in float32"
    if policy.algo not in ("auto", "none", "deterministic"):
        return f"has no algorithm {policy.algo!r}"
    if max(*problem.x.shape, *problem.w.shape, *problem.y.shape) >= LIMIT32:
        return "needs fewer than 2**31 images, channels and filters"
    return reach_reason(problem) or device_reason(policy)


def _plan(problem: ConvProblem, policy: Policy, config: DirectConfig | None = None) -> Executable:
    config = config or heuristic(problem)
    dtype = problem.output.dtype
    body = "grad_unshared" if problem.direction == "grad_weights" and problem.unshared else problem.direction
    chosen = kernel(body, problem.axes, dtype, accumulator_of(dtype, policy), config.wide, config.long)
    values = arguments(problem, config, chosen)
    launch = chosen.prepare(policy.device, grid(problem, config), (THREADS, 1, 1), values)
    return one_launch(chosen, launch, config)


def _rank(problem: ConvProblem) -> float:
    """Microseconds, as 198 random problems and layers on an H200 have them: within 30 % in two of three.

    A sum waits for each of its terms; a thread works out where a tap lies before it multiplies. In the gradient of filters
    several threads share an element, and waits are longer. Of unshared filters an element is one thread's sum over the images.
    """
    if problem.direction == "grad_weights" and problem.unshared:
        return 3 + problem.flops / 1.35e6
    if problem.direction != "grad_weights":
        forward, taps = problem.direction == "forward", math.prod(problem.taps)
        summed, written = (problem.x, problem.y) if forward else (problem.y, problem.x)
        channels = summed.shape[1] // problem.groups
        scattered = forward and channels > 8 and problem.w.size * problem.w.itemsize > SMALL_FILTERS
        slower = SCATTERED if scattered and _channels_last(written) else 1.0
        waited = 0.049 * channels * taps
        return (
            7.4 + slower * max(waited, problem.flops / 2.2e6) + written.size * taps * (2.5 if forward else 4.1) / 1.1e6
        )
    parts = heuristic(problem).parts
    serial = problem.y.shape[0] * -(-math.prod(problem.y.shape[2:]) // parts)
    return 7.4 + max(0.145 * serial, problem.flops / 1.77e6) + problem.w.size * parts / 5.4e4


def kernels() -> Iterator[Kernel]:
    """Each direction with each type and number of axes among them; and 64-bit indices."""
    for i, body in enumerate(("forward", "grad_inputs", "grad_weights", "grad_unshared")):
        for j, dtype in enumerate(("float16", "bfloat16", "float32", "float64")):
            if (i + j) % 2 == 0 or dtype == "float32":
                axes = 2 if body == "grad_unshared" else 2 + (j + i // 2) % 2
                yield kernel(body, axes, dtype, "float64" if dtype == "float64" else "float32", False)
    yield kernel("grad_weights", 3, "float16", "float64", True)
    for body in ("forward", "grad_inputs", "grad_weights", "grad_unshared"):
        yield kernel(body, 2, "float32", "float32", False, True)


for _op in OPERATIONS:
    register(
        Impl(_op, "numba", "numba.direct", _supports, _plan, _rank, "ieee", "gpu_to_gpu", complete=True, space=_space)
    )
