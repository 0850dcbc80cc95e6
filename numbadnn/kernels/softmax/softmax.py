"""softmax and its gradient on the GPU, by five kernels: rows and channels, two ways each, and anything at all.

``numba.softmax_rows``: rows along memory, held in registers. ``numba.softmax_long``: longer ones, in shared memory as far as
it goes. ``numba.softmax_channels``: NCHW channels, in registers. ``numba.softmax_tiles``: more of them, in
shared memory too. ``numba.softmax_strided``: any strides and lengths, three walks. ``numba.softmax_alike`` copies
inputs that lie otherwise than the result, for the first four. Each has a module ``softmax_<stem>`` with its
frozen configuration, its heuristic, its speed and its arguments; this one registers them. Nothing that bits depend on
depends on the number of rows or on the GPU. Where a row begins between two vectors decides which elements are summed
together, though: where the bits of a row must be the same in any batch, anywhere, elements are read one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.machine import shared_capacity
from numbadnn.kernels.build.plans import one_launch
from numbadnn.kernels.build.support import LEAF, device_reason, precision_reason
from numbadnn.kernels.softmax import alike
from numbadnn.kernels.softmax import channels as softmax_channels
from numbadnn.kernels.softmax import long as softmax_long
from numbadnn.kernels.softmax import rows as softmax_rows
from numbadnn.kernels.softmax import strided as softmax_strided
from numbadnn.kernels.softmax import tiles as softmax_tiles
from numbadnn.problem import FIXED_LEVELS, ITEMSIZE, Policy, Spec
from numbadnn.problems.softmax import SoftmaxProblem
from numbadnn.registry import BLOCKED, Executable, Impl, Summation, register

OPS = ("softmax", "softmax_grad")
STEMS: dict[str, ModuleType] = {
    "rows": softmax_rows,
    "long": softmax_long,
    "channels": softmax_channels,
    "tiles": softmax_tiles,
    "strided": softmax_strided,
}
#: those whose configuration follows the shared memory of the GPU, in what changes no bits
SIZED = (softmax_long, softmax_tiles)
#: those that some GPUs have too little shared memory for
BOUNDED = (*SIZED, softmax_rows)


def _register(op: str, stem: str, module: ModuleType) -> None:
    def supports(problem: SoftmaxProblem, policy: Policy) -> str:
        problem = anywhere(problem, policy)
        acc = "float64" if problem.y.dtype == "float64" else "float32"
        reason = precision_reason(problem.y.dtype, acc, policy) or module.reason(apart(problem, policy))
        reason = reason or module.reason(problem) or device_reason(policy)
        return reason or module.reason(problem, *_capacity(module, policy.device, BOUNDED))

    def plan(problem: SoftmaxProblem, policy: Policy, config: Any = None) -> Executable:
        problem = anywhere(problem, policy)
        config = config or heuristic(module, problem, policy)
        kernel, grid, threads, scalars, shared_bytes = module.prepare(problem, config)
        launch = kernel.prepare(policy.device, grid, (threads, 1, 1), scalars, shared_bytes)
        level = "gpu_to_gpu" if getattr(config, "vec", 1) == 1 else "run_to_run"
        added = BLOCKED
        if module is softmax_strided:
            added = Summation((LEAF,), "compensated", config.parts)
        elif hasattr(config, "parts"):
            added = Summation((), "sequence", config.parts)
        return one_launch(kernel, launch, config, determinism=level, summation=added)

    def rank(problem: SoftmaxProblem) -> float:
        return 2 + problem.bytes / module.speed(problem)

    def space(problem: SoftmaxProblem, policy: Policy) -> list[Any]:
        if not hasattr(module, "space"):
            return []
        return module.space(anywhere(problem, policy), *_capacity(module, policy.device, BOUNDED))

    name, complete = f"numba.softmax_{stem}", stem == "strided"
    register(Impl(op, "numba", name, supports, plan, rank, "ieee", "gpu_to_gpu", complete=complete, space=space))


def heuristic(module: ModuleType, problem: SoftmaxProblem, policy: Policy) -> Any:
    """The configuration of a kernel; what bits depend on follows from one image where they may not depend on the batch."""
    config = module.heuristic(problem, *_capacity(module, policy.device))
    if module is not softmax_strided:
        return config
    typical = softmax_strided.heuristic(apart(problem, policy))
    return replace(config, lanes=typical.lanes, parts=typical.parts)


def anywhere(problem: SoftmaxProblem, policy: Policy) -> SoftmaxProblem:
    """The problem as it is; where bits may not depend on the place of a row, as if no operand were aligned to a vector."""
    if policy.determinism not in FIXED_LEVELS:
        return problem
    return replace(problem, **{name: replace(spec, aligned=False) for name, spec in _specs(problem).items()})


def apart(problem: SoftmaxProblem, policy: Policy) -> SoftmaxProblem:
    """The problem as it is; where bits of an image may not depend on the batch, that of two images far from each other.

    How its axes fold then follows from one image.
    """
    if policy.determinism not in FIXED_LEVELS:
        return problem
    images = {name: replace(spec, shape=(2, *spec.shape[1:])) for name, spec in _specs(problem).items()}
    far = 2 + 2 * max(abs(s) * n for spec in images.values() for s, n in zip(spec.strides, spec.shape, strict=True))
    return replace(problem, **{n: replace(spec, strides=(far, *spec.strides[1:])) for n, spec in images.items()})


def _specs(problem: SoftmaxProblem) -> dict[str, Any]:
    """The operands by name."""
    specs = {name: getattr(problem, name) for name in ("y", "x", "dy", "dx")}
    return {name: spec for name, spec in specs.items() if spec is not None}


def _capacity(module: ModuleType, device: int, modules: tuple[ModuleType, ...] = SIZED) -> tuple[int, ...]:
    return (shared_capacity(device),) if module in modules else ()


for _op in OPS:
    for _stem, _module in STEMS.items():
        _register(_op, _stem, _module)
    _parts = (alike.supports, alike.plan, alike.rank)
    register(Impl(_op, "numba", "numba.softmax_alike", *_parts, "ieee", "gpu_to_gpu"))


def kernels() -> Iterator[Kernel]:
    """A representative set: each kernel, both operations, each dtype, short and long rows, aligned and not."""
    for op in OPS:
        for i, dtype in enumerate(ITEMSIZE):
            algo = "log" if i % 2 else "accurate"
            for shape in ((8, 37), (8, 4096), (8, 32768)):
                if rows := softmax_rows.heuristic(_packed(op, dtype, shape)):
                    yield softmax_rows.kernel(op, dtype, algo, rows)
            for image in ((2, 21, 8, 8), (2, 256, 7, 7)):
                if channels := softmax_channels.heuristic(_packed(op, dtype, image)):
                    yield softmax_channels.kernel(op, dtype, algo, channels)
            rank = 2 if i % 2 else 4
            for strided in (
                softmax_strided.StridedConfig(rank, rank, wide=i == 0, lanes=32, parts=8),
                softmax_strided.StridedConfig(1, 2, wide=False, lanes=1, parts=1024),
            ):
                yield softmax_strided.kernel(op, dtype, algo, strided)
        yield from _large(op)


def _large(op: str) -> Iterator[Kernel]:
    """Of the kernels that use shared memory: several blocks a multiprocessor and one, data that fits it and that does not."""
    softmax = op == "softmax"
    for dtype, algo, shape in (
        ("float16", "accurate", (8, 32768)),
        ("float32" if softmax else "float64", "log", (8, 65536)),
    ):
        yield softmax_long.kernel(op, dtype, algo, softmax_long.heuristic(_packed(op, dtype, shape)))
    for dtype, algo, image in (
        ("float16", "accurate", (2, 1000, 16, 16)),
        ("float32" if softmax else "bfloat16", "log", (2, 256, 16, 16)),
    ):
        if tiles := softmax_tiles.heuristic(_packed(op, dtype, image)):
            yield softmax_tiles.kernel(op, dtype, algo, tiles)


def _packed(op: str, dtype: str, shape: tuple[int, ...]) -> SoftmaxProblem:
    spec = Spec.of(dtype, shape)
    return SoftmaxProblem(op, spec, x=spec) if op == "softmax" else SoftmaxProblem(op, spec, dy=spec, dx=spec)
