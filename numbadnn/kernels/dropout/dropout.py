"""Dropout and its gradient on the GPU, by three kernels: packed arrays, channels-last ones, and anything at all.

``numba.dropout_flat`` and ``numba.dropout_tiles`` move 16 bytes an access; where a call's offset is no multiple of 4
they leave it to the kernel of ``numba.dropout_strided``. The mask follows from the element's number in C order alone,
so all three have the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from numbadnn.kernels.build.launch import Kernel, blocks
from numbadnn.kernels.build.plans import around
from numbadnn.kernels.build.support import LIMIT32, device_reason
from numbadnn.problem import ITEMSIZE, Policy, Spec
from numbadnn.problems.dropout import DropoutProblem
from numbadnn.registry import Executable, Impl, register

THREADS = 256
#: groups of elements a thread of the flat kernel has under way, by itemsize: the best on an H200
UNROLL = {2: 2, 4: 1, 8: 2}
#: blocks that share a multiprocessor, at least: of 16-bit data, whose random words take most of the time
RESIDENT = {"flat": 6, "tiles": 4}


def _kernel(name: str, dtype: str, parameters: str, *config: Any) -> Kernel:
    acc, real = ("float64", "f64") if dtype == "float64" else ("float32", "f32")
    arguments, parameters = (dtype, acc, *config), f"ptr:4 i64 {real} {parameters}"
    resident = RESIDENT.get(name, 1) if ITEMSIZE[dtype] == 2 else 1
    return Kernel.of(f"dropout_{name}", f"dropout.device.kernels.{name}", arguments, parameters, THREADS, resident)


def _folded(problem: DropoutProblem) -> list[tuple[int, int, int]]:
    """(length, source stride, result stride) of each axis, in C order, joined where both operands walk on at one step."""
    axes: list[tuple[int, int, int]] = []
    for n, s, t in zip(problem.source.shape, problem.source.strides, problem.output.strides, strict=True):
        if n == 1:
            continue
        if axes and axes[-1][1:] == (n * s, n * t):
            axes[-1] = (axes[-1][0] * n, s, t)
        else:
            axes.append((n, s, t))
    return axes or [(1, 1, 1)]


def _vec(problem: DropoutProblem) -> int:
    return 16 // problem.source.itemsize


def _strided(problem: DropoutProblem) -> tuple[Any, ...]:
    """(kernel, grid, scalars after threshold and scale)."""
    axes, count = _folded(problem), problem.source.size
    rank = len(axes) if len(axes) <= 2 else max(len(axes), 5)
    axes = [(1, 0, 0)] * (rank - len(axes)) + axes
    wide = count >= LIMIT32
    i = "i64" if wide else "i32"
    kernel = _kernel("strided", problem.source.dtype, f"i64 {i}*{rank} i64*{rank} i64*{rank}", rank, wide)
    # an offset shifts the groups of four by up to three elements
    return kernel, blocks(count // 4 + 2, THREADS), (count, *(tuple(a[k] for a in axes) for k in range(3)))


def _flat(problem: DropoutProblem) -> tuple[Any, ...]:
    vec, count = _vec(problem), problem.source.size
    group, unroll = max(vec, 4), UNROLL[problem.source.itemsize]
    kernel = _kernel("flat", problem.source.dtype, "i64 i32", vec, unroll)
    return kernel, blocks(count // group, THREADS * unroll), (count // group, count % group)


def _flat_reason(problem: DropoutProblem) -> str:
    if not (problem.source.aligned and problem.output.aligned):
        return "needs arrays that start at a multiple of 16 bytes"
    if [a[1:] for a in _folded(problem)] != [(1, 1)]:
        return "needs arrays packed in C order"
    return "" if problem.source.size >= 2 * max(_vec(problem), 4) else "needs at least two groups of elements"


def _tiles(problem: DropoutProblem) -> tuple[Any, ...]:
    n, c, *spatial = problem.source.shape
    vec, positions = _vec(problem), math.prod(spatial)
    kernel = _kernel("tiles", problem.source.dtype, "i64 i32 i32", vec)
    count = n * (positions // 4) * (c // vec)
    return kernel, blocks(count, THREADS), (count, c, positions)


def _tiles_reason(problem: DropoutProblem) -> str:
    if not (problem.source.is_channels_last and problem.output.is_channels_last):
        return "needs arrays packed channels last"
    if not (problem.source.aligned and problem.output.aligned):
        return "needs arrays that start at a multiple of 16 bytes"
    if problem.source.shape[1] % _vec(problem) or math.prod(problem.source.shape[2:]) % 4:
        return "needs channels in whole accesses and a multiple of 4 positions"
    if problem.source.size // 4 >= LIMIT32:
        return "needs fewer than 2**33 elements"
    return ""


#: stem -> (why not, the launch, bytes a microsecond on an H200)
STEMS: dict[str, tuple[Callable[[DropoutProblem], str], Callable[[DropoutProblem], tuple[Any, ...]], float]] = {
    "flat": (_flat_reason, _flat, 4.0e6),
    "tiles": (_tiles_reason, _tiles, 3.8e6),
    "strided": (lambda problem: "", _strided, 0.8e6),
}


def _launcher(problem: DropoutProblem, device: int, made: tuple[Any, ...]) -> Callable[..., None]:
    kernel, grid, scalars = made
    scalars = (problem.threshold, problem.scale, *scalars)
    return kernel.prepare(device, grid, (THREADS, 1, 1), scalars).direct


def _plan(problem: DropoutProblem, device: int, stem: str) -> Executable:
    if problem.threshold > 0xFFFFFFFF:  # no word is as large: nothing is kept
        from numbadnn.kernels.copies.copy import plan_fill

        fill = plan_fill(problem.output, 0.0, device)

        def zeros(stream: int, x: int, seed: int, offset: int, y: int) -> None:
            fill(y, stream)

        direct: Callable[..., None] = zeros
    else:
        direct = _launcher(problem, device, STEMS[stem][1](problem))
        if stem != "strided":
            direct = _by_offset(direct, _launcher(problem, device, _strided(problem)))

    return around(direct, {"kernel": stem})


def _by_offset(fast: Callable[..., None], general: Callable[..., None]) -> Callable[..., None]:
    def direct(stream: int, x: int, seed: int, offset: int, y: int) -> None:
        (general if offset & 3 else fast)(stream, x, seed, offset, y)

    return direct


def _register(op: str, stem: str) -> None:
    reason, _, speed = STEMS[stem]

    def supports(problem: DropoutProblem, policy: Policy) -> str:
        if problem.generator != "philox":
            return "cuDNN's own random numbers come from cuDNN alone"
        return reason(problem) or device_reason(policy)

    def plan(problem: DropoutProblem, policy: Policy, config: Any = None) -> Executable:
        return _plan(problem, policy.device, stem)

    def rank(problem: DropoutProblem) -> float:
        return 2 + problem.bytes / speed

    complete = stem == "strided"
    name = f"numba.dropout_{stem}"
    register(Impl(op, "numba", name, supports, plan, rank, "ieee", "gpu_to_gpu", complete=complete))


for _op in ("dropout", "dropout_grad"):
    for _stem in STEMS:
        _register(_op, _stem)


def kernels() -> Iterator[Kernel]:
    """A representative set: each kernel, each dtype somewhere."""
    for dtype in ITEMSIZE:
        yield _flat(DropoutProblem("dropout", spec := Spec.of(dtype, (64, 64)), spec))[0]
    for dtype in ("float16", "float32"):
        yield _tiles(DropoutProblem("dropout", spec := Spec.of(dtype, (2, 64, 4, 4), "nhwc"), spec))[0]
    yield _strided(DropoutProblem("dropout", spec := Spec("bfloat16", (4, 4, 4), (32, 8, 2)), spec))[0]
