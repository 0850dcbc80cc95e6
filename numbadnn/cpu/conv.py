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
from numbadnn.cpu._terms import Planes, Terms, flattened, planes_of, planes_of_taps, scalars, split_of, tap_list, volume
from numbadnn.cpu._thin_filters_plan import few_filters, plan_few_filters
from numbadnn.cpu._thin_plan import is_thin, plan_thin
from numbadnn.ops.conv import OPERATIONS, ConvProblem
from numbadnn.problem import Policy
from numbadnn.registry import Executable, Impl, register


def gather_terms(problem: ConvProblem, block: tuple[int, int], rows: int, planes: bool) -> tuple[Any, Terms]:
    """Geometry and lists of ``_gather.py``, of volumes: the forward direction or the gradient with respect to the inputs.

    ``planes``: whether images are laid out, or every term is.
    """
    from numbadnn.cpu._gather import Geometry

    x, w, y, G = problem.x, problem.w, problem.y, problem.groups
    (N, _, *image), (K, Cg, *_), (_, _, *out) = x.shape, w.shape, y.shape
    Kg, stride = K // G, problem.stride
    (xn, xc, *x_steps), (yn, yk, *y_steps), (wk, wc, *_) = x.strides, y.strides, w.strides
    taps, forward = tap_list(problem), problem.direction == "forward"
    terms = Terms(N, (stride if forward else (1, 1, 1)) if planes else None)
    later = {"limit": 0, "run": 1, "packed": 0, "in_place": 0, "plane": 0, "block": 0, "outside": 0}
    later |= {"G": G, "a_group": Kg * wk}
    if forward:
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
        terms.add_phase(tuple(out), 0, taps, Cg, wc, G * -(-Kg // rows), block)
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
        terms.add_phase(grid, at, here, Kg, wk, G * -(-Cg // rows), block)
        reached = (zip(place, grid, out, strict=False) for place in here)
        outside |= any(low < 0 or low + n > m for axes in reached for low, n, m in axes)
    return geo._replace(outside=int(outside)), terms


def _named(prefix: str, letters: str, values: Any) -> dict[str, int]:
    """{prefix + letter: value}, one an axis."""
    return {prefix + letter: value for letter, value in zip(letters, values, strict=True)}


#: filters for which to lay out every term of a pixel costs as much as to multiply once more
PACKING = 12
#: columns of register tiles, at most, whose pixels are laid out together as planes
PLANES_WIDE = 32


def plan_gather(problem: ConvProblem, policy: Policy, config: Any = None) -> Executable:
    """Forward, or the gradient with respect to the inputs, by ``_gather.py``."""
    from numbadnn.cpu import _gather
    from numbadnn.cpu._micro import KC, MR, NV, ROW
    from numbadnn.cpu._vector import VECTOR_BYTES

    like = np.empty(1, STORED[problem.x.dtype])
    acc = 8 if problem.x.dtype == "float64" else 4
    problem = flattened(volume(problem))
    vl = VECTOR_BYTES // acc
    geo, terms = gather_terms(problem, (KC, MR * ROW), MR, True)
    stretch = PLANES_WIDE * NV * vl
    planes = terms.pixels_wasted(NV * vl) < PACKING * (1 - terms.laid_out(stretch)) / (-(-geo.M // MR) * MR)
    if not planes:
        geo, terms = gather_terms(problem, (KC, MR * ROW), MR, False)
    lists = terms.arrays()
    phases, taps = lists["phases"], lists["taps"]
    slices, pixels, _, pitches, reach = phases[:, 10:].T
    narrow, reach = pitches.min(), int(reach.max())
    geo = geo._replace(limit=min(vl, (vl + int(narrow) - 2) // int(narrow) + 1))
    offsets = np.append(lists["a_offsets"], np.zeros(vl, np.int64))  # they are read by vectors
    run_length = terms.run_length()
    # filters that lie in runs are read where they lie; others, which are neither copied by long runs nor turned by squares, are
    # laid out once, not for each of many stretches
    in_place = run_length >= min(4, terms.depth) and problem.x.dtype in ("float32", "float64") and geo.M % MR == 0
    early = run_length < 16 and not (run_length == geo.a_row == 1) and not in_place
    widest = PLANES_WIDE if planes else 384 // (NV * 16)
    early = early and (len(phases) > 1 or (slices * -(-pixels // (widest * NV * vl))).max() > 2)
    geo = geo._replace(run=run_length, packed=int(early), in_place=int(in_place))
    if not early:
        terms.packed = 0
    panels = -(-geo.M // MR)
    columns = int(-(-pixels.max() // (NV * vl)))
    most_taps, deepest = int(phases[:, 5].max()), int(phases[:, 8].max())
    places = np.arange(KC, dtype=np.int64) * (NV * vl * acc)
    a_places = (offsets if in_place else np.arange(KC, dtype=np.int64)) * acc
    if planes:
        # an odd number of lines, so that planes do not all start in one set of the cache
        plane = -(-(min(widest, columns) * NV * vl + reach) // vl) | 1
        geo = geo._replace(plane=plane * vl, block=plane * vl * terms.most_planes(KC))
        places = terms.places_of(plane * vl) * acc
    alpha, beta = scalars(problem)
    # a phase of few terms is less than a job
    jobs = max(1, int(geo.G * (slices * phases[:, 8]).sum() / max(deepest, 1)))
    flops = problem.flops

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(flops)
        wide, high = split_of(columns, panels, jobs, threads, widest)
        stretch = wide * NV
        tiles = high * wide if deepest > KC else 1
        block = geo.block or _gather.COLUMN * stretch * vl
        work = (block + (_gather.MC_PANELS + 3) * MR * ROW + max(tiles * MR * NV, vl) * vl) * acc
        counts = (most_taps + 1) * (stretch + -(-reach // vl))
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
            a_places,
            places,
            like,
            geo,
            phases,
            taps,
            lists["term_taps"],
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


def _longest(pixels: int, block: int, planes: Planes, grid: Any) -> int:
    """Pixels of a plane that ``block`` pixels in succession lie in, and what is read behind them, at most."""
    first = np.arange(0, pixels, block)
    _, P, Q = grid

    def place(pixel: Any) -> Any:
        return pixel // (P * Q) * planes.rows * planes.pitch + pixel // Q % P * planes.pitch + pixel % Q

    return int((place(np.minimum(first + block, pixels) - 1) - place(first)).max()) + 1 + planes.reach


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
    listed, Q = tap_list(problem), y.shape[4]
    planes, each = planes_of(tuple(out), problem.stride, listed), planes_of_taps(tuple(out), listed)
    # taps far apart reach far beyond a block of pixels
    planes = min(planes, each, key=lambda p: len(p.taps) * _longest(N * math.prod(out), KC, p, out))
    taps = np.array(planes.taps, np.int64).reshape(-1, 3)
    T, M, Kg, pixels = len(listed), Cg * len(listed), K // G, N * math.prod(out)
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
        plane=0,
        rows=planes.rows,
        pitch=planes.pitch,
        reach=planes.reach,
    )
    channel = np.arange(Cg, dtype=np.int64)[:, None]
    number, shift = np.array(planes.terms, np.int64).reshape(-1, 2).T
    if T == 1 and not any(map(any, problem.padding)) and x.dtype in ("float32", "float64"):
        rows = channel * x.strides[1] + shift
    else:
        # an odd number of lines, so that planes do not all start in one set of the cache
        plane = (-(-_longest(pixels, KC, planes, out) // vl) | 1) * vl
        geo = geo._replace(plane=plane)
        rows = (channel * len(taps) + number) * plane + shift
    rows = np.append(rows, np.full(-M % MR, rows[-1, -1])) * acc
    w_offsets = (channel * w.strides[1] + np.array([t[3] for t in listed], np.int64)).ravel()
    alpha, beta = scalars(problem)
    product, finish, flops = kernel_of(_filters.product), kernel_of(_filters.finish), problem.flops
    places = np.arange(KC, dtype=np.int64) * (NV * vl * acc)
    lists = len(taps) * geo.plane // vl + KC // vl
    counts, table = lists + KC, lists * 2 * geo.limit
    block = min(Cg, (_filters.MC_PANELS * MR - 2) // T + 2) * len(taps) * geo.plane

    def run(inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Any, stream: Any) -> None:
        threads = thread_count(flops)
        wide, high = split_of(columns, panels, G * splits, threads, 512 // (NV * 16), 2.0, 0.25)
        work = ((wide * NV + 1) * vl * KC + block) * acc
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
            address(outputs[0]),
            places,
            rows,
            like,
            geo,
            taps,
            w_offsets,
            tiles,
            (wide, high),
            base,
            work,
            count,
            tables,
            alpha,
            beta,
        )
        if splits > 1:
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
        return plan_thin(volume(problem), *gather_terms(volume(problem), (1, 1), 1, planes=False))
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
