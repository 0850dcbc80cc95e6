"""Pooling and its gradient on the GPU, by three kernels: packed images in tiles of registers, and anything at all.

``numba.pool_tiles``: C order or channels last, each element read once and moved 16 bytes at a time; 16-bit maxima in pairs. It
adds up a window's columns before it adds those, the rows of an element's windows before their columns: half of the sums. The
gradient of a maximum whose windows overlap takes two kernels, with a byte a window between them.
``numba.pool_argmax``: the same for the gradient of a maximum where windows overlap, each of them looked at once.
``numba.pool_strided``: any strides and windows. Each has a module (``tiles``, ``walk``, ``strided``) with its frozen
configuration, its heuristic and its arguments; this one registers them. Sums run in one order in each, row-major in the other
two, and nothing that bits depend on depends on the number of images or on the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numbadnn.gpu import driver as _driver
from numbadnn.kernels.build import simulate
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.plans import around
from numbadnn.kernels.build.support import LIMIT32, accumulator_of, device_reason
from numbadnn.kernels.pool import strided as pool_strided
from numbadnn.kernels.pool import tiles as pool_tiles
from numbadnn.kernels.pool import walk as pool_walk
from numbadnn.problem import Policy
from numbadnn.problems.pool import PoolProblem
from numbadnn.registry import BLOCKED, Executable, Impl, Summation, register

OPS = ("pool", "pool_grad")


def plan_tiles(problem: PoolProblem, policy: Policy, config: Any = None) -> Executable:
    """One launch, or two for the gradient of a maximum whose windows overlap, with codes between them in the workspace.

    The gradient of an average does not get x, none gets y.
    """
    config = config or pool_tiles.heuristic(problem)
    acc, (depth, rows, columns) = accumulator_of(problem.x.dtype, policy), config.window

    def launch(problem: PoolProblem, config: Any) -> Any:
        kernel, grid, scalars = pool_tiles.prepare(problem, config, acc)
        return kernel.prepare(policy.device, grid, (config.threads, 1, 1), scalars).direct

    go, nbytes = launch(problem, config), pool_tiles.codes_bytes(problem)
    choose = launch(pool_tiles.forward(problem), pool_tiles.choosing(problem)[0]) if nbytes else go

    def gradient(stream: int, x: int, y: int, dy: int, dx: int) -> None:
        go(stream, x, dy, dx)

    def in_two(stream: int, x: int, y: int, dy: int, dx: int, codes: int) -> None:
        choose(stream, x, codes)
        go(stream, codes, dy, dx)

    facts = {"kernel": pool_tiles.kernel(problem.x.dtype, acc, config).name, "config": config}
    direct = go if problem.op == "pool" else in_two if nbytes else gradient
    return around(direct, facts, nbytes, summation=Summation((depth * rows, columns), "sequence"))


def plan_argmax(problem: PoolProblem, policy: Policy, config: Any = None) -> Executable:
    """One launch, which reads x and dy."""
    acc = accumulator_of(problem.x.dtype, policy)
    capability = pool_walk.HOPPER if simulate.active() else _driver.compute_capability(policy.device)
    config = pool_walk.possible(problem, config or pool_walk.space(problem)[0], acc, capability)
    kernel, grid, scalars = pool_walk.prepare(problem, config, acc)
    go = kernel.prepare(policy.device, grid, (config.threads, 1, 1), scalars).direct

    def direct(stream: int, x: int, y: int, dy: int, dx: int) -> None:
        go(stream, x, dy, dx)

    return around(direct, {"kernel": kernel.name, "config": config})


def plan_strided(problem: PoolProblem, policy: Policy, config: Any = None) -> Executable:
    """One launch, or two for the gradient of a maximum, with numbers of elements between them in the workspace."""
    config = config or pool_strided.heuristic(problem)
    acc = accumulator_of(problem.x.dtype, policy)
    steps = pool_strided.prepare(problem, config, acc)
    launches = [k.prepare(policy.device, grid, (config.threads, 1, 1), scalars) for k, grid, scalars in steps]
    nbytes = pool_strided.workspace_bytes(problem, config)

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        if problem.op == "pool":
            launches[0](stream, inputs[0], outputs[0])
            return
        numbers = workspace if nbytes else inputs[0]
        if nbytes:
            launches[0](stream, inputs[0], numbers)
        launches[-1](stream, numbers, inputs[2], outputs[0])

    facts = {"kernel": steps[-1][0].name, "config": config}
    added = Summation((), "compensated") if config.long else BLOCKED
    return Executable(run, workspace_bytes=nbytes, determinism="gpu_to_gpu", facts=facts, summation=added)


def _reach_reason(problem: PoolProblem) -> str:
    """Why kernels that find the pixels of a window in 32 bits cannot, "" where they can."""
    padded = (n + 2 * pad for n, pad in zip(problem.x.shape[2:], problem.pad, strict=True))
    return "needs strides and padded images below 2**31" if max(*padded, *problem.stride) >= LIMIT32 else ""


def _capacity_reason(nbytes: int, policy: Policy) -> str:
    if nbytes > policy.workspace_limit:
        return f"needs a workspace of {nbytes} bytes, the limit is {policy.workspace_limit}"
    return ""


def supports_tiles(problem: PoolProblem, policy: Policy) -> str:
    lacks = _reach_reason(problem) or pool_tiles.reason(problem)
    return lacks or _capacity_reason(pool_tiles.codes_bytes(problem), policy) or device_reason(policy)


def supports_argmax(problem: PoolProblem, policy: Policy) -> str:
    return _reach_reason(problem) or pool_walk.reason(problem) or device_reason(policy)


def supports_strided(problem: PoolProblem, policy: Policy) -> str:
    """There is nothing that this kernel cannot do, given the workspace."""
    nbytes = pool_strided.workspace_bytes(problem, pool_strided.heuristic(problem))
    return _capacity_reason(nbytes, policy) or device_reason(policy)


def rank_tiles(problem: PoolProblem) -> float:
    """The gradient of a maximum by two kernels comes behind ``walk.py``'s one, where that takes the problem."""
    two = pool_tiles.codes_bytes(problem) > 0
    return 2 + 2 * two + problem.bytes / (1.2e6 if two else 3.8e6)


def rank_argmax(problem: PoolProblem) -> float:
    """Its kernel, made for one size of image, takes seconds to compile: not for small problems."""
    return 10 + problem.bytes / 2.2e6


def rank_strided(problem: PoolProblem) -> float:
    return 4 + problem.bytes / 0.8e6 + problem.flops / 1e6


for _op in OPS:
    for _name, _supports, _plan, _rank in (
        ("tiles", supports_tiles, plan_tiles, rank_tiles),
        ("strided", supports_strided, plan_strided, rank_strided),
    ):
        _complete = _name == "strided"
        register(
            Impl(_op, "numba", f"numba.pool_{_name}", _supports, _plan, _rank, "ieee", "gpu_to_gpu", complete=_complete)
        )

register(
    Impl("pool_grad", "numba", "numba.pool_argmax", supports_argmax, plan_argmax, rank_argmax, "ieee", "gpu_to_gpu")
)

#: problems whose kernels stand for all: each layout, dtype and kind, overlapping windows and not
_REPRESENTATIVE = (
    "pool x=float32:2x4x16x16 window=2x2",
    "pool x=float16:2x4x16x16 window=3x3 stride=2x2 pad=1x1",
    "pool x=bfloat16:2x16x9x9:nhwc window=3x3 stride=2x2 pad=1x1 mode=average_exc_pad",
    "pool_grad x=float32:2x4x16x16 window=3x3 stride=2x2 pad=1x1 mode=average_exc_pad",
    "pool_grad x=float16:2x16x16x16:nhwc window=2x2",
    "pool_grad x=bfloat16:2x16x16x16:nhwc window=3x3 stride=2x2 pad=1x1 mode=average_exc_pad",
    "pool_grad x=float64:1x2x4x8x8 window=2x2x2 stride=2x2x2 mode=average_inc_pad",
    "pool_grad x=float32:1x2x8x8x8 window=3x3x3 stride=2x2x2 pad=1x1x1",
    "pool_grad x=float16:1x8x8x8x8:nhwc window=3x3x3 stride=2x2x2 pad=1x1x1",
    "pool_grad x=float16:1x8x8x8x8:nhwc window=3x3x3 stride=2x2x2 pad=1x1x1 mode=average_exc_pad",
    "pool_grad x=float32:1x2x8x8x8 window=3x3x3 stride=1x1x1 pad=1x1x1 mode=average_exc_pad",
)
#: the same for gradients of maxima whose windows overlap: few, for each kernel takes long to compile
_OVERLAPPING = tuple(f"pool_grad x={t}:2x4x16x16 window=3x3 stride=2x2 pad=1x1" for t in ("float32", "float16"))


def kernels() -> Iterator[Kernel]:
    """A representative set of the three modules."""
    for line in _REPRESENTATIVE:
        problem = PoolProblem.parse(line)
        config = pool_tiles.heuristic(problem)
        assert config is not None
        acc = "float64" if problem.x.dtype == "float64" else "float32"
        yield pool_tiles.prepare(problem, config, acc)[0]
        if pool_tiles.codes_bytes(problem):
            yield pool_tiles.kernel(problem.x.dtype, acc, pool_tiles.choosing(problem)[0])
    maxima = PoolProblem.parse("pool_grad x=float16:1x1x4x4 window=2x2")
    yield pool_strided.prepare(maxima, pool_strided.heuristic(maxima), "float32")[0][0]
    for line in (
        "pool x=float32:1x1x4x4 window=2x2 mode=average_exc_pad",
        "pool_grad x=float16:1x1x4x4 window=2x2",
        "pool x=float32:1x1x40x40 window=40x40 mode=average_exc_pad",  # a long sum
        "pool_grad x=float16:1x1x40x40 window=20x20 stride=1x1",
    ):
        problem = PoolProblem.parse(line)
        made = pool_strided.prepare(problem, pool_strided.heuristic(problem), "float32")
        yield made[-1][0]  # what comes before it is the same for both gradients of maxima
    for problem in map(PoolProblem.parse, _OVERLAPPING):  # as on the first of three architectures
        first = pool_walk.possible(problem, pool_walk.space(problem)[0], "float32", (8, 0))
        yield pool_walk.prepare(problem, first, "float32")[0]
