"""Convolutions and gradients on the CPU: plans, for Numba kernels that multiply while they lay out the Toeplitz matrix.

A plan is pure integer geometry: lists of filter taps (slice, row and column they add), of terms of the sum (where in the
image and in the filters each lies), and of phases (``_gather.py``). Whatever the direction, padding, subsample, dilation,
flip, groups and strides, they end here; the kernels know only these lists. Groups of few channels (depthwise among them)
have no product worth making: ``_thin.py`` takes the same lists. Unshared filters have none either (``_unshared.py``). The
gradient of the filters is ``_filters.py``, of few filters a group ``_thin_filters.py``.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from numbadnn.cpu._parallel import STORED, address, kernel_of, scratch, thread_count
from numbadnn.cpu._terms import Terms, flattened, scalars, split_of, tap_list, volume
from numbadnn.cpu._thin_filters_plan import few_filters, plan_few_filters
from numbadnn.cpu._thin_plan import is_thin, plan_thin
from numbadnn.ops.conv import OPERATIONS, ConvProblem
from numbadnn.problem import Policy
from numbadnn.registry import Executable, Impl, register


def gather_terms(problem: ConvProblem, block: tuple[int, int], rows: int) -> tuple[Any, Terms]:
    """Geometry and lists of ``_gather.py``, of volumes: the forward direction or the gradient with respect to the inputs."""
    from numbadnn.cpu._gather import Geometry

    x, w, y, G = problem.x, problem.w, problem.y, problem.groups
    (N, _, *image), (K, Cg, *_), (_, _, *out) = x.shape, w.shape, y.shape
    Kg, stride = K // G, problem.stride
    (xn, xc, *x_steps), (yn, yk, *y_steps), (wk, wc, *_) = x.strides, y.strides, w.strides
    taps, terms = tap_list(problem), Terms()
    later = {"limit": 0, "run": 1, "packed": 0, "outside": 0, "G": G, "a_group": Kg * wk}
    if problem.direction == "forward":
        geo = Geometry(
            M=Kg,
            a_row=wk,
            **_named("", "DHW", image),
            src_group=Cg * xc,
            src_c=xc,
            src_n=xn,
            **_named("src_", "dhw", x_steps),
            **_named("step_", "dhw", stride),
            out_group=Kg * yk,
            out_m=yk,
            out_n=yn,
            **_named("out_", "dhw", y_steps),
            **later,
        )
        terms.add_phase(tuple(out), N * math.prod(out), 0, taps, Cg, wc, G * -(-Kg // rows), block)
        return geo, terms
    geo = Geometry(
        M=Cg,
        a_row=wc,
        **_named("", "DHW", out),
        src_group=Kg * yk,
        src_c=yk,
        src_n=yn,
        **_named("src_", "dhw", y_steps),
        **_named("step_", "dhw", (1, 1, 1)),
        out_group=Cg * xc,
        out_m=xc,
        out_n=xn,
        **_named("out_", "dhw", [s * step for s, step in zip(stride, x_steps, strict=True)]),
        **later,
    )
    outside = False
    for first in itertools.product(*(range(min(s, n)) for s, n in zip(stride, image, strict=True))):
        here = []
        for *places, offset in taps:
            behind = [(a - place) for a, place in zip(first, places, strict=True)]
            if not any(d % s for d, s in zip(behind, stride, strict=True)):
                here.append((*(d // s for d, s in zip(behind, stride, strict=True)), offset))
        grid = tuple(-(-(n - a) // s) for n, a, s in zip(image, first, stride, strict=True))
        at = sum(a * step for a, step in zip(first, x_steps, strict=True))
        terms.add_phase(grid, N * math.prod(grid), at, here, Kg, wk, G * -(-Cg // rows), block)
        reached = (zip(place, grid, out, strict=False) for place in here)
        outside |= any(low < 0 or low + n > m for axes in reached for low, n, m in axes)
    return geo._replace(outside=int(outside)), terms


def _named(prefix: str, letters: str, values: Any) -> dict[str, int]:
    """{prefix + letter: value}, one an axis."""
    return {prefix + letter: value for letter, value in zip(letters, values, strict=True)}


def plan_gather(problem: ConvProblem, policy: Policy, config: Any = None) -> Executable:
    """Forward, or the gradient with respect to the inputs, by ``_gather.py``."""
    from numbadnn.cpu import _gather
    from numbadnn.cpu._micro import KC, MR, NV
    from numbadnn.cpu._vector import VECTOR_BYTES

    like = np.empty(1, STORED[problem.x.dtype])
    acc = 8 if problem.x.dtype == "float64" else 4
    problem = flattened(volume(problem))
    vl = VECTOR_BYTES // acc
    geo, terms = gather_terms(problem, (KC, MR * KC), MR)
    narrow = min(p[1] for p in terms.phases)
    geo = geo._replace(limit=min(vl, (vl + narrow - 2) // narrow + 1))
    lists = terms.arrays()
    phases, taps = lists["phases"], lists["taps"]
    offsets = lists["a_offsets"]
    run_length = terms.run_length()
    # filters that are neither copied by long runs nor turned by squares are laid out once, not for every stretch
    early = run_length < 16 and not (run_length == geo.a_row == 1)
    geo = geo._replace(run=run_length, packed=int(early))
    if not early:
        terms.packed = 0
    panels = -(-geo.M // MR)
    columns = -(-max(p[2] for p in terms.phases) // (NV * vl))
    most_taps, deepest = max(p[5] for p in terms.phases), max(p[7] for p in terms.phases)
    alpha, beta = scalars(problem)
    flops = problem.flops

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(flops)
        wide, high = split_of(columns, panels, geo.G * len(phases), threads, 384 // (NV * 16))
        stretch = wide * NV
        tiles = high * wide if deepest > KC else 1
        work = (_gather.COLUMN * stretch * vl + (_gather.MC_PANELS + 3) * MR * KC + max(tiles * MR * NV, vl) * vl) * acc
        counts = (most_taps + 1) * stretch
        table = counts * 2 * geo.limit
        memory = scratch(terms.packed * acc + threads * (work + (counts + table) * 8))
        base = address(memory)
        packed = base
        base += terms.packed * acc
        rest = memory[terms.packed * acc + threads * work :].view(np.int64)
        count = rest[: threads * counts].reshape(threads, counts)
        tables = rest[threads * counts : threads * (counts + table)].reshape(threads, table)
        filters = address(inputs[1])
        if early:
            _pack_filters(threads, filters, like, geo, phases, offsets, packed, base, work)
        _gather_run(
            threads,
            address(inputs[0]),
            filters,
            address(outputs[0]),
            packed,
            offsets,
            like,
            geo,
            phases,
            taps,
            (wide, high),
            base,
            work,
            count,
            tables,
            alpha,
            beta,
        )

    _pack_filters, _gather_run = kernel_of(_gather.pack_filters), kernel_of(_gather.gather)
    return Executable(run, determinism="gpu_to_gpu", facts={"kernel": "gather", "tile": f"{MR}x{NV * vl}x{KC}"})


def plan_filters(problem: ConvProblem, policy: Policy, config: Any = None) -> Executable:
    """The gradient with respect to the weights by ``_filters.py``."""
    from numbadnn.cpu import _filters
    from numbadnn.cpu._micro import KC, MR, NV
    from numbadnn.cpu._vector import VECTOR_BYTES

    like = np.empty(1, STORED[problem.x.dtype])
    acc = 8 if problem.x.dtype == "float64" else 4
    vl = VECTOR_BYTES // acc
    problem = flattened(volume(problem))
    x, w, y, G = problem.x, problem.w, problem.y, problem.groups
    (N, _, *image), (K, Cg, *_), (_, _, *out) = x.shape, w.shape, y.shape
    places, Q = tap_list(problem), y.shape[4]
    T, M, Kg, pixels = len(places), Cg * len(places), K // G, N * math.prod(out)
    panels, columns = -(-M // MR), -(-Kg // (NV * vl))
    tile_elements = G * panels * columns * MR * NV * vl
    # parts: a power of two, while each has some thousands of pixels and they are not larger than the operands together
    splits = 1
    while splits < 8 and pixels >= splits * 4096 and tile_elements * splits * 2 <= max(x.size + y.size, 1 << 18):
        splits *= 2
    part = -(-pixels // (splits * KC)) * KC
    splits = -(-pixels // part)
    geo = _filters.Geometry(
        M=M,
        K=Kg,
        G=G,
        T=T,
        **_named("", "OPQ", out),
        pixels=pixels,
        **_named("", "DHW", image),
        x_group=Cg * x.strides[1],
        x_c=x.strides[1],
        x_n=x.strides[0],
        **_named("x_", "dhw", x.strides[2:]),
        **_named("step_", "dhw", problem.stride),
        y_group=Kg * y.strides[1],
        y_k=y.strides[1],
        y_n=y.strides[0],
        **_named("y_", "dhw", y.strides[2:]),
        w_group=Kg * w.strides[0],
        w_k=w.strides[0],
        limit=min(vl, (vl + Q - 2) // Q + 1),
        splits=splits,
        split=part,
    )
    taps = np.array([t[:3] for t in places], np.int64)
    channel = np.arange(Cg, dtype=np.int64)[:, None]
    w_offsets = (channel * w.strides[1] + np.array([t[3] for t in places], np.int64)).ravel()
    alpha, beta = scalars(problem)
    product, finish, flops = kernel_of(_filters.product), kernel_of(_filters.finish), problem.flops
    counts = (T + 1) * (KC // vl)
    table = counts * 2 * geo.limit

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(flops)
        wide, high = split_of(columns, panels, G * splits, threads, 512 // (NV * 16), 2.0, 0.25)
        work = ((wide * NV + 1) * vl * KC + min(high, _filters.MC_PANELS) * MR * KC) * acc
        memory = scratch(splits * tile_elements * acc + threads * (work + (counts + table) * 8))
        tiles = address(memory)
        base = tiles + splits * tile_elements * acc
        rest = memory[splits * tile_elements * acc + threads * work :].view(np.int64)
        count = rest[: threads * counts].reshape(threads, counts)
        tables = rest[threads * counts : threads * (counts + table)].reshape(threads, table)
        product(
            threads,
            address(inputs[0]),
            address(inputs[1]),
            like,
            geo,
            taps,
            tiles,
            (wide, high),
            base,
            work,
            count,
            tables,
        )
        finish(threads, address(outputs[0]), like, geo, w_offsets, tiles, base, work, alpha, beta)

    return Executable(run, determinism="gpu_to_gpu", facts={"kernel": "filters", "tile": f"{MR}x{NV * vl}x{KC}"})


#: images whose patches lie together in a buffer of the forward direction
IMAGES_TOGETHER = 32


def plan_unshared(problem: ConvProblem, policy: Policy, config: Any = None) -> Executable:
    """Any direction, by ``_unshared.py``."""
    from numbadnn.cpu import _unshared
    from numbadnn.cpu._vector import VECTOR_BYTES

    x, w, y, G = problem.x, problem.w, problem.y, problem.groups
    (N, _, H, W), (_, K, P, Q) = x.shape, y.shape
    C, real = w.shape[3], np.float64 if x.dtype == "float64" else np.float32
    like, slack = np.empty(1, STORED[x.dtype]), VECTOR_BYTES // real().itemsize
    taps = np.array(tap_list(problem), np.int64)
    channel = np.repeat(np.arange(C, dtype=np.int64), len(taps))
    # channel, row and column it adds, offset in the filter
    terms = np.column_stack([channel, np.tile(taps[:, :2], (C, 1)), channel * w.strides[3] + np.tile(taps[:, 2], C)])
    steps = set(np.diff(terms[:, 3]).tolist()) or {1}
    pitch = -(-len(terms) // slack) * slack
    geo = _unshared.Geometry(
        N=N,
        G=G,
        C=C,
        K=K // G,
        terms=len(terms),
        pitch=pitch,
        **_named("", "HWPQ", (H, W, P, Q)),
        **_named("step_", "hw", problem.stride),
        **_named("x_", "nchw", x.strides),
        **_named("y_", "nkhw", y.strides),
        **_named("w_", "khw", w.strides[:3]),
        w_step=steps.pop() if len(steps) == 1 else 0,
    )
    body = {"forward": _unshared.forward, "grad_inputs": _unshared.inputs, "grad_weights": _unshared.filters}
    kernel, work, direction = kernel_of(body[problem.direction]), problem.flops, problem.direction
    alpha, beta = scalars(problem)
    order = [("x", "w", "y").index(name) for name in (*problem.input_names, problem.output_name)]

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(work)
        together = N if direction == "grad_weights" else min(N, IMAGES_TOGETHER)
        if direction == "grad_inputs":  # channels of a job: such that there are as many jobs as threads
            together = -(-C // min(C, max(1, -(-threads // (N * G)))))
        size = (together * H * W + 2 * pitch if direction == "grad_inputs" else (together + 1) * pitch) + 2 * slack
        size = -(-size // 16) * 16
        addresses = [0, 0, 0]
        for which, array in zip(order, (*inputs, *outputs), strict=True):
            addresses[which] = address(array)
        nbytes = threads * size * real().itemsize
        planes = scratch(nbytes)[:nbytes]
        rows = planes.view(real).reshape(threads, size)
        kernel(threads, *addresses, like, geo, terms, rows, address(planes), together, alpha, beta)

    return Executable(run, determinism="gpu_to_gpu", facts={"kernel": "unshared"})


def plan(problem: ConvProblem, policy: Policy, config: Any = None) -> Executable:
    """The kernels that suit the problem."""
    if problem.unshared:
        return plan_unshared(problem, policy)
    if problem.direction == "grad_weights":
        return plan_few_filters(problem) if few_filters(problem) else plan_filters(problem, policy)
    if is_thin(problem):
        return plan_thin(volume(problem), *gather_terms(volume(problem), (1, 1), 1))
    return plan_gather(problem, policy)


def supports(problem: ConvProblem, policy: Policy) -> str:
    """Everything, except what would need another accumulator."""
    if policy.precision == "float64" and problem.x.dtype != "float64":
        return f"the CPU kernels accumulate {problem.x.dtype} in float32; convert the arrays to float64 instead"
    if policy.precision in ("float16", "float32") and problem.x.dtype == "float64":
        return f"the CPU kernels accumulate float64 in float64, not in {policy.precision}"
    if policy.precision == "float16":
        return "the CPU kernels accumulate float16 and bfloat16 in float32"
    return ""


def rank(problem: ConvProblem) -> float:
    """Microseconds, roughly, at 100 GFLOP/s."""
    return 20 + problem.flops / 1e5


for _op in OPERATIONS:
    register(
        Impl(
            op=_op,
            backend="cpu",
            name="cpu.im2col",
            supports=supports,
            plan=plan,
            rank=rank,
            arithmetic="ieee",
            determinism="gpu_to_gpu",
            complete=True,
        )
    )

from numbadnn.cpu import corrmm as corrmm  # noqa: E402  registers cpu.corrmm
