"""``numba.implicit_tiles``: convolution as a matrix product that gathers its first operand itself, in float32 and float64.

Three directions are one kernel (``device/tiles.py``): a small first launch writes tables of where things lie and what
is padding (``device/tables.py``), so the kernel knows no stride, dilation, padding or flip. float32 under ieee is
multiplied by fused multiply-adds, TF32 and float64 by tensor-core instructions of a warp. Where there are too few
tiles for the GPU the terms are split among blocks, and a last launch adds their sums in a fixed order.

Extra memory: 16 bytes a row and a term of the product, and ``splits`` results in the accumulator's type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from numbadnn.gpu import driver as _driver
from numbadnn.kernels.build import simulate
from numbadnn.kernels.build.arguments import Arguments
from numbadnn.kernels.build.frozen import dataclass
from numbadnn.kernels.build.launch import Kernel, blocks, load_together, sequence
from numbadnn.kernels.build.plans import in_turn
from numbadnn.kernels.build.support import device_reason
from numbadnn.kernels.conv.parts import in_parts
from numbadnn.kernels.conv.tiles import model
from numbadnn.kernels.conv.tiles.config import ENTRY, TABLE_THREADS, TOTAL_THREADS, ImplicitTilesConfig, configured
from numbadnn.kernels.conv.tiles.product import Product, in_vectors, three
from numbadnn.problem import ITEMSIZE, Policy
from numbadnn.problems.conv import OPERATIONS, ConvProblem
from numbadnn.problems.images import is_invariant, level_of, of_images
from numbadnn.registry import Executable, Impl, register

#: of a coordinate: twice as much is what the tables add for a tap that is not there
LIMIT = 1 << 29
#: one bit a tap of each axis, and one more
MOST_TAPS = 31
#: how many times what the model says the tiles of tensor cores take with TF32: 201 random problems on an H200
TF32_TAKEN = {"forward": 0.65, "grad_inputs": 0.75, "grad_weights": 0.65}
#: elements that keep 132 multiprocessors busy with a thread each
FEW_ELEMENTS = 132 * 2048
#: what the kernel that writes the tables takes
TABLES = Arguments(
    *("ptr:2", "i32 phase_count", "i32*4 counts", "i32 channels"),
    *("i32*3 taps padding stride dilation places limits extents", "i32*5 strides", "i32*4 others"),
    *("i32 w_start", "i32*4 w_strides"),
)


def _terms(problem: ConvProblem, policy: Policy) -> int:
    """Terms of a tensor-core instruction: float64 has 4 on sm_80, 8 on sm_90."""
    if problem.x.dtype != "float64":
        return 8 if problem.x.dtype == "float32" else 16
    return 8 if not simulate.active() and _driver.compute_capability(policy.device) == (9, 0) else 4


def heuristic(problem: ConvProblem, policy: Policy) -> ImplicitTilesConfig:
    """The configuration that should be fastest on the policy's device."""
    return model.heuristic(problem, policy, _terms(problem, policy))


def space(problem: ConvProblem, policy: Policy) -> list[ImplicitTilesConfig]:
    """Every configuration worth timing that the workspace limit admits, the heuristic's first."""
    p, limit = Product(problem), policy.workspace_limit
    found = model.space(problem, policy, _terms(problem, policy))
    return [c for c in found if _Memory.of(p, c).end <= limit]


# ---- kernels


def tables_kernel(direction: str, taps_first: bool) -> Kernel:
    """The kernel that writes where everything lies."""
    made_by = "conv.tiles.device.tables.tables"
    return Kernel.of("implicit_tables", made_by, (direction, taps_first), TABLES, TABLE_THREADS)


def kernel(dtype: str, config: ImplicitTilesConfig, inputs: bool, adds: bool = False) -> Kernel:
    """The product; ``inputs``: of the images' gradient, for which ``adds`` says whether beta is not 0."""
    acc = "float64" if dtype == "float64" else "float32"
    real = "f64" if acc == "float64" else "f32"
    parameters = f"ptr:5 i32:7 i32*2 i64*3 {real} {real}"
    frozen = replace(
        config, splits=min(config.splits, 2), taps_first=False
    )  # of these the code does not depend on more
    made_by, arguments = "conv.tiles.device.tiles.convolve", (dtype, acc, frozen, inputs, inputs and adds)
    return Kernel.of("implicit_tiles", made_by, arguments, parameters, config.threads, config.resident)


def total_kernel(dtype: str, along_rows: bool, share: int) -> Kernel:
    """The sum of the splits; ``share`` threads have an element."""
    acc = "float64" if dtype == "float64" else "float32"
    real = "f64" if acc == "float64" else "f32"
    made_by, arguments = "conv.tiles.device.put.total", (dtype, acc, along_rows, share)
    parameters = f"ptr:3 i32:5 i64 i32 i64 {real} {real}"
    return Kernel.of("implicit_total", made_by, arguments, parameters, TOTAL_THREADS)


def clear_kernel(dtype: str, vector: int) -> Kernel:
    """What sets the result to 0, where not all of it is computed."""
    acc = "float64" if dtype == "float64" else "float32"
    return Kernel.of("implicit_clear", "conv.tiles.device.put.clear", (dtype, acc, vector), "ptr i64", TOTAL_THREADS)


def kernels() -> Iterator[Kernel]:
    """Tables; the product on threads, with results in vectors and by way of shared memory; on warps with partial sums; zeros."""
    for direction, taps_first in (("forward", False), ("grad_inputs", True), ("grad_weights", False)):
        yield tables_kernel(direction, taps_first)
    yield clear_kernel("float32", 4)
    yield total_kernel("float32", True, 8)
    for dtype, op, layout, shape, splits, step in (
        ("float32", "conv2d", "", model.THREAD_TILES[0][0], 1, 1),
        ("float32", "conv2d_grad_wrt_inputs", "", model.THREAD_TILES[2][0], 1, 2),
        ("bfloat16", "conv2d_grad_wrt_inputs", ":nhwc", model.HALF_TILES[-1][0], 4, 1),
    ):
        line = f"{op} x={dtype}:8x64x28x28{layout} w={dtype}:128x64x3x3{layout} pad=1,1,1,1 stride={step},{step}"
        p = Product(ConvProblem.parse(line))
        yield kernel(dtype, configured(p, shape, False, splits), p.inputs)


# ---- plans


@dataclass(frozen=True, slots=True)
class _Memory:
    """The workspace: the table of so many rows, then that of terms, then partial sums, in bytes."""

    rows: int
    terms: int
    partial: int
    end: int

    @staticmethod
    def of(p: Product, config: ImplicitTilesConfig) -> _Memory:
        rows = p.phases * p.padded_rows(config.m)
        terms = _padded(rows * ENTRY)
        partial = terms + _padded(p.phases * p.padded_terms(config.k) * ENTRY)
        computed = p.met * p.padded_rows(config.m)
        each = computed * -(-p.columns // config.n) * config.n if config.splits > 1 else 0
        return _Memory(rows, terms, partial, partial + each * config.splits * p.groups * ITEMSIZE[p.accumulator])


def _padded(nbytes: int) -> int:
    return -(-nbytes // 256) * 256


def _farthest(p: Product) -> int:
    """The largest coordinate that is computed."""
    sizes = zip(p.limits, p.extents, p.stride, p.dilation, p.taps, p.padding, strict=True)
    return max((n + 2) * s + e + d * t + pad for n, e, s, d, t, pad in sizes)


def supports(problem: ConvProblem, policy: Policy) -> str:
    if problem.unshared:
        return "needs filters that all positions share"
    if sum(three(problem.taps)) > MOST_TAPS:
        return f"needs at most {MOST_TAPS} taps along all axes together"
    p = Product(problem)
    if policy.precision in ("float16", "float32", "float64") and policy.precision != p.accumulator:
        return f"accumulates {problem.x.dtype} in {p.accumulator}, not in {policy.precision}"
    if problem.x.itemsize == 2 and not in_vectors(p):
        return "needs multiples of 8 channels of 16 bits, next to each other in memory, in all operands"
    if problem.x.itemsize == 2 and not simulate.active():
        return "has 16-bit products that a GPU has confirmed in one direction alone"
    if policy.algo not in ("auto", "none", "deterministic"):
        return f"has no algorithm {policy.algo!r}"
    if reason := device_reason(policy):
        return reason
    specs = (problem.x, problem.w, problem.y)
    reach = max(max(-low, high) for low, high in (s.span for s in specs))
    edge = max(p.padding) * sum(abs(s) for s in p.gathered.strides[2:])
    if reach + edge >= 2**31 or _farthest(p) >= LIMIT or p.groups > 65535:
        return "needs operands and coordinates whose offsets fit 32 bits"
    memory = _Memory.of(p, heuristic(problem, policy))
    if memory.end > policy.workspace_limit:
        return f"needs {memory.end} bytes, the workspace limit is {policy.workspace_limit}"
    if memory.rows * p.columns >= 2**31 or memory.partial >= 2**31:
        return "needs a matrix product of fewer than 2**31 results, and of 2**27 rows and terms"
    return ""


def plan(problem: ConvProblem, policy: Policy, config: ImplicitTilesConfig | None = None) -> Executable:
    """Two launches to four: tables, zeros where no phase writes, product, sum of the splits."""
    p, config = Product(problem), config or heuristic(problem, policy)
    memory, dtype, splits = _Memory.of(p, config), problem.x.dtype, config.splits
    high, across = p.padded_rows(config.m) // config.m, -(-p.columns // config.n)
    rows, width = p.met * high * config.m, across * config.n
    row_table = f"space+{p.begin * high * config.m * ENTRY}"
    term_table = f"space+{memory.terms + p.begin * p.padded_terms(config.k) * ENTRY}"
    row_step, column_step = (1, rows) if config.along_rows else (width, 1)
    a_group, b_group, out_group = p.group_steps
    scaling = (problem.alpha, problem.beta)

    def prepare(kernel: Kernel, grid: tuple[int, int, int], scalars: Any, shared: int = 0) -> Any:
        return kernel.prepare(policy.device, grid, (kernel.threads, 1, 1), scalars, shared)

    tables, chosen = tables_kernel(p.direction, config.taps_first), kernel(dtype, config, p.inputs, problem.beta != 0)
    # many splits of few elements: as many threads an element as it takes to ask memory for enough at a time
    share = share_of(p, policy, splits, rows)
    total = total_kernel(dtype, config.along_rows, share)
    load_together(policy.device, chosen, tables, *([total] if splits > 1 else []))
    entries = memory.rows + p.phases * p.padded_terms(config.k)
    steps = [
        (prepare(tables, blocks(entries, TABLE_THREADS), _geometry(p, config)), f"space space+{memory.terms}"),
    ]
    if p.met < p.phases:
        size, vector = math.prod(p.out.shape), 16 // p.out.itemsize if p.out.aligned else 1
        cleared = prepare(clear_kernel(dtype, vector), blocks(-(-size // vector), TOTAL_THREADS), (size,))
        steps.append((cleared, "out"))
    split = (row_step, (p.other_step, column_step), (a_group, b_group, rows * width))
    whole = (0, (p.other_step, p.out_step), (a_group, b_group, out_group))
    count = p.met * high * across
    scalars = (
        *(count - 1 if p.heavier_last else 0, across, high, p.padded_terms(config.k) // config.k, splits, p.columns),
        *(split if splits > 1 else whole),
        *scaling,
    )
    launch = prepare(chosen, (count, 1, p.groups * splits), scalars, config.shared_bytes)
    target = f"space+{memory.partial}" if splits > 1 else "out"
    steps.append((launch, f"a b {target} {row_table} {term_table}"))
    if splits > 1:
        sizes = (rows, p.columns, splits, row_step, column_step, rows * width, p.out_step, out_group)
        grid = (blocks(rows * p.columns, TOTAL_THREADS // share)[0], p.groups, 1)
        last = prepare(total, grid, (*sizes, *scaling))
        steps.append((last, f"{target} out {row_table}"))
    direct = sequence("a b out space", steps)

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: Any, stream: int) -> None:
        direct(stream, inputs[0], inputs[1], outputs[0], workspace)

    arithmetic = "tensor_core" if problem.x.itemsize == 2 else "ieee"
    if config.warps and dtype == "float32":
        arithmetic = "tf32"
    facts = {"kernel": chosen.name, "config": config}
    return Executable(run, memory.end, arithmetic, level_of(policy), facts, direct, in_turn(p.terms, splits))


def share_of(p: Product, policy: Policy, splits: int, rows: int) -> int:
    """How many threads add up the splits of an element: the order of additions depends on it."""
    if is_invariant(p.problem, policy):
        rows = p.met * Product(of_images(p.problem)).rows
    return 8 if splits >= 16 and rows * p.columns * p.groups < FEW_ELEMENTS else 1


def _geometry(p: Product, config: ImplicitTilesConfig) -> tuple[Any, ...]:
    """What the tables are made of."""
    n, c, *spatial = p.gathered.strides
    return TABLES(
        phase_count=p.phases,
        counts=(p.positions, p.padded_rows(config.m), p.padded_terms(config.k), config.k),
        channels=p.channels,
        taps=p.taps,
        padding=p.padding,
        stride=p.stride,
        dilation=p.dilation,
        places=p.places,
        limits=p.limits,
        extents=p.extents,
        strides=(n, c, *three(tuple(spatial), 0)),
        others=(p.placed.strides[0], *three(p.placed.strides[2:], 0)),
        w_start=p.w_start,
        w_strides=p.w_strides,
    )


def rank(problem: ConvProblem) -> float:
    """Microseconds: launches, and what the model says of the tiles that the heuristic takes.

    The model gives each phase of a gradient of strides the most terms that one has; blocks skip what a phase has not. Of
    phases that have none, all results are set to 0 before.
    """
    if problem.unshared:
        return math.inf
    return 6 + _taken(problem, False)


def rank_tf32(problem: ConvProblem) -> float:
    """Of the tiles of tensor cores: what float32 takes with TF32."""
    if problem.unshared or problem.x.dtype != "float32":
        return rank(problem)
    return 5 + _taken(problem, True)


def _taken(problem: ConvProblem, tf32: bool) -> float:
    p = Product(problem)
    met = math.prod(problem.taps) * p.channels / (p.met * p.terms) if p.inputs else 1.0
    cleared = 2 + problem.output.size * problem.x.itemsize / 3e6 if p.met < p.phases else 0.0
    us = model.estimated(p, tf32)[0][0]
    return cleared + met * us * (TF32_TAKEN[problem.direction] if tf32 else 1.0)


for _op, _operation in OPERATIONS.items():
    # causal convolutions have kernels of their own that are batch_invariant, in a fixed order
    _level = "run_to_run" if _operation.arrangement == "line" else "batch_invariant"
    _how = ("numba", "numba.implicit_tiles", supports, plan, rank, "ieee", _level)
    register(in_parts(Impl(_op, *_how, space=space, rank_tf32=rank_tf32, host_us=10.0)))
