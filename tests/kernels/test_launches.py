"""What every implementation on the GPU asks of the CUDA driver, held without one: plans of ordinary and of extreme problems.

Whatever ``supports`` admits can be planned, in the heuristic's configuration and in others; its workspace keeps to the limit,
and every launch is one that CUDA takes (``recorded_cuda``). Kernels do not run. A failure gives the line of the problem and the
policy: ``failures(cuda, LINE, [POLICY])`` replays it.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import extreme_problems
import large_problems
import pytest
from fixed_problems import FIXED
from recorded_cuda import DEVICES, RecordedCuda, held, installed

from numbadnn import cases, config
from numbadnn.call import select
from numbadnn.cases.layouts import operand
from numbadnn.kernels.build import tensormap as _tensormap
from numbadnn.kernels.build.launch import Kernel
from numbadnn.kernels.build.support import LIMIT32
from numbadnn.kernels.copies.copy import plan_copy, plan_fill, plan_scale
from numbadnn.kernels.gemm.gemm import GemmProblem, plan_gemm, space
from numbadnn.problem import ITEMSIZE, Policy, Spec
from numbadnn.problems.rnn import make
from numbadnn.problems.rnn_network import GATES, Network
from numbadnn.registry import FAMILY, Executable, Impl, implementations
from numbadnn.validate.reserve import backward_of, forward_of

pytest.importorskip("numba_cuda")

H200 = next(iter(DEVICES))
#: the options that change what is planned
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"fp32_precision": "tf32"},
    {"determinism": "gpu_to_gpu"},
    {"workspace_limit": 1 << 20},
    {"determinism": "batch_invariant"},
    {"precision": "float64"},
)
#: every device and every option at least once
POLICIES = [Policy(device=H200, **options) for options in OPTIONS]
POLICIES += [Policy(device=device, **OPTIONS[i % 4]) for i, device in enumerate(DEVICES) if device != H200]
#: configurations besides the heuristic's, of all that there are
CONFIGURATIONS = 3
#: problems of a family
EXTREMES = 200


def failures(cuda: RecordedCuda, line: str, policies: Iterable[Policy]) -> list[str]:
    """What is wrong with any implementation of a problem under these policies, a sentence each."""
    problem, found = cases.parse(line), []
    for policy in policies:
        for impl in implementations(problem.op):
            try:
                rank = impl.rank(problem)
                assert rank >= 0, f"rank {rank}"
                if impl.backend == "numba" and not select.refusal(impl, problem, policy, config.current()):
                    _hold_configurations(cuda, impl, problem, policy)
            except Exception as error:
                found.append(f"{impl.name}: {type(error).__name__}: {error}\n  {line}\n  {policy}")
    return found


def _hold_configurations(cuda: RecordedCuda, impl: Impl, problem: Any, policy: Policy) -> None:
    listed = impl.space(problem, policy) if impl.space else []
    others = listed[:: max(len(listed) // CONFIGURATIONS, 1)]
    for chosen in [None, *(c for c in others if c is not None)]:
        executable = impl.plan(problem, policy, chosen)
        if impl.name != "numba.rnn":  # has one way alone, which no limit refuses
            assert executable.workspace_bytes <= policy.workspace_limit, f"{executable.workspace_bytes} bytes"
        held(cuda, executable, problem, policy.device)


def _holds(lines: Iterable[str], policies: Callable[[int], Iterable[Policy]]) -> None:
    with installed() as cuda:
        found = [failure for i, line in enumerate(lines) for failure in failures(cuda, line, policies(i))]
    assert not found, f"{len(found)} failures\n" + "\n".join(found)


def _in_turn(count: int) -> Callable[[int], list[Policy]]:
    """So many policies for each problem, others for the next."""
    return lambda i: [POLICIES[(count * i + k) % len(POLICIES)] for k in range(count)]


@pytest.mark.parametrize(
    ("name", "kind", "line"), [*(("numba.unshared", *row) for row in large_problems.UNSHARED), *large_problems.OTHERS]
)
def test_kernels_of_larger_problems(name: str, kind: str, line: str) -> None:
    problem = cases.parse(line)
    with installed():
        impl = large_problems.first(name, problem, Policy(device=H200))
        assert type(impl.plan(problem, Policy(device=H200)).facts["config"]).__name__ == kind
    _holds([line], lambda _: POLICIES)


KERNEL = Kernel("a kernel", "ptr ptr i32", lambda: lambda: None, 1024)
PLAIN: dict[str, Any] = {"grid": (1, 1, 1), "block": (128, 1, 1), "scalars": (5,)}


@pytest.mark.parametrize(
    ("wrong", "at", "message"),
    [
        ({}, 0, ""),
        ({"shared_bytes": 200 << 10}, 1020, ""),
        ({"grid": (0, 1, 1)}, 0, "grid"),
        ({"grid": (1, 65536, 1)}, 0, "grid"),
        ({"grid": (2**31, 1, 1)}, 0, "grid"),
        ({"block": (4, 2, 65)}, 0, "block"),
        ({"shared_bytes": 228 << 10}, 0, "shared memory"),
        ({"scalars": (2**31,)}, 0, "format requires"),
        ({}, -4, "address input 0-4 of 0 to 4000"),
        ({}, 4000, r"address input 0\+4000 of 0 to 4000"),
    ],
)
def test_what_cuda_refuses_is_found(wrong: dict[str, Any], at: int, message: str) -> None:
    x, y = Spec.of("float32", (1000,)), Spec.of("float32", (7,))
    with installed() as cuda:
        raises = pytest.raises((AssertionError, struct.error), match=message) if message else nullcontext()
        with raises:
            launch = KERNEL.prepare(H200, **{**PLAIN, **wrong})
            executable = Executable(lambda inputs, outputs, space, stream: launch(stream, inputs[0] + at, outputs[0]))
            assert held(cuda, executable, SimpleNamespace(inputs=(x,), outputs=(y,)), H200) == 1


def test_what_networks_keep_lies_in_their_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward by way of a reserve, small networks of several layers: every piece is somebody's memory."""
    monkeypatch.setattr(
        "numbadnn.cudnn.available", lambda: False
    )  # its reserve may be larger, and is asked of a device
    draw, of = random.Random(0), Spec.of
    (impl,) = (i for i in implementations("rnn_backward") if i.backend == "numba")
    (first,) = (i for i in implementations("rnn_forward") if i.backend == "numba")
    with installed() as cuda:
        for _ in range(150):
            n = Network(
                draw.choice((1, 2, 3, 5, 17, 32, 33)), draw.randint(1, 4), draw.choice(list(GATES)),
                direction_mode=draw.choice(("unidirectional", "bidirectional")),
            )  # fmt: skip
            (steps, batch, width), dtype = (draw.randint(1, 5) for _ in range(3)), draw.choice(("float16", "float32"))
            state, output = (n.num_layers * n.directions, batch, n.hidden_size), n.hidden_size * n.directions
            shapes = {"w": (n.blocks(width)[1],), "x": (steps, batch, width), "hx": state, "dy": (steps, batch, output)}
            problem = make("rnn_backward", n, {name: of(dtype, shape) for name, shape in shapes.items()})
            forward = forward_of(problem, H200)
            for one, asked in ((first, forward), (impl, backward_of(problem, forward, impl.name))):
                try:
                    held(cuda, one.plan(asked, Policy(device=H200), None), asked, H200)
                except AssertionError as error:
                    raise AssertionError(f"{asked}: {error}") from None
        short = replace(forward, outputs=(*forward.outputs[:-1], of(dtype, (forward.outputs[-1].size - 1,))))
        with pytest.raises(ValueError, match="reserve: expected at least"):
            first.plan(short, Policy(device=H200), None)


def test_a_first_launch_that_starts_early_is_found() -> None:
    early = Kernel("an early kernel", "ptr ptr i32", lambda: lambda: None, 1024, early=True)
    x, y = Spec.of("float32", (1000,)), Spec.of("float32", (7,))
    with installed() as cuda:
        plain, behind = (kernel.prepare(H200, **PLAIN) for kernel in (KERNEL, early))
        for launches in ((plain, behind), (behind, plain)):

            def run(inputs: Any, outputs: Any, space: Any, stream: Any, launches: Any = launches) -> None:
                for launch in launches:
                    launch(stream, inputs[0], outputs[0])

            with nullcontext() if launches[0] is plain else pytest.raises(AssertionError, match="starts early"):
                assert held(cuda, Executable(run), SimpleNamespace(inputs=(x,), outputs=(y,)), H200) == 2


@pytest.mark.parametrize(
    ("extents", "strides", "box", "message"),
    [
        ((64, 100), (256,), (32, 100), ""),
        ((64, 100), (256,), (32, 257), "box"),
        ((64, 100), (256,), (33, 8), "no multiple of 16"),
        ((64, 100), (256,), (64, 8), "more than the swizzle's 128"),
        ((64, 100), (264,), (32, 8), "strides"),
        ((64, 0), (256,), (32, 8), "extents"),
        ((64, 101), (256,), (32, 8), "25856 bytes at input 0"),
    ],
)
def test_descriptors_that_cuda_refuses_are_found(extents: Any, strides: Any, box: Any, message: str) -> None:
    kernel, x = Kernel("a kernel", "map i32", lambda: lambda: None, 128), Spec.of("float32", (100, 64))
    with installed() as cuda, pytest.raises(AssertionError, match=message) if message else nullcontext():
        described = _tensormap.described(H200, "float32", (extents, strides, box))
        launch = kernel.prepare(H200, **{**PLAIN, "scalars": (described, 5)})
        executable = Executable(lambda inputs, outputs, space, stream: launch(stream, inputs[0]))
        assert held(cuda, executable, SimpleNamespace(inputs=(x,), outputs=()), H200) == 1


def _product(r: random.Random) -> GemmProblem:
    """A product of matrices that a GPU's memory can hold."""
    while True:
        m, n, k = (r.choice(extreme_problems.SIZES) for _ in range(3))
        dtype, batch = r.choice(tuple(ITEMSIZE)), r.choice((1, 1, 2, 3, 65535))
        if max(m, n, k) >= LIMIT32 or batch * max(m * k, k * n, m * n) * ITEMSIZE[dtype] >= extreme_problems.MOST:
            continue
        return GemmProblem.of(
            m, n, k, dtype, r.random() < 0.5, r.random() < 0.5, batch=batch, beta=r.choice((0.0, 1.0)),
            out=r.choice((dtype, "float32")), precision=r.choice(("ieee", "tf32")), aligned=(r.random() < 0.8,) * 3,
        )  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
def test_products(device: int) -> None:
    r, found = random.Random(device), []
    with installed() as cuda:
        for _ in range(EXTREMES):
            p = _product(r)
            shapes = ((p.m, p.k), (p.k, p.n), (p.m, p.n))
            strides = zip(p.batch_strides, (p.a_strides, p.b_strides, p.c_strides), strict=True)
            a, b, c = (
                Spec(dtype, (p.batch, *shape), (step, *inner), aligned)
                for dtype, shape, (step, inner), aligned in zip(
                    (p.dtype, p.dtype, p.out), shapes, strides, p.aligned, strict=True
                )
            )
            for chosen in [None, *space(p, DEVICES[device][0])[:CONFIGURATIONS]]:
                try:
                    held(cuda, plan_gemm(p, device, chosen), SimpleNamespace(inputs=(a, b), outputs=(c,)), device)
                except Exception as error:
                    found.append(f"{type(error).__name__}: {error}\n  {p}\n  {chosen}")
    assert not found, "\n".join(found)


def _operands(r: random.Random) -> tuple[Spec, Spec, tuple[int, ...]]:
    """Source, destination and offset of a copy: the same sizes, or an axis padded or cropped at both ends."""
    while True:
        rank = r.choice((1, 2, 3, 4, 5))
        source = tuple(r.choice(extreme_problems.SIZES[:34]) for _ in range(rank))
        margins = [r.choice((0, 0, 0, 1, -1, 3)) for _ in source]
        target = tuple(n + 2 * low for n, low in zip(source, margins, strict=True))
        if min(target) < 1 or max(math.prod(source), math.prod(target)) * 16 >= extreme_problems.MOST:
            continue
        dtypes = [r.choice(tuple(ITEMSIZE))] * 2 if r.random() < 0.6 else r.choices(tuple(ITEMSIZE), k=2)
        src, dst = (
            operand(dtype, shape, extreme_problems.layout(r, rank), is_output)
            for dtype, shape, is_output in zip(dtypes, (source, target), (False, True), strict=True)
        )
        if max(abs(end) for spec in (src, dst) for end in spec.span) * 8 < extreme_problems.MOST:
            return src, dst, tuple(margins)


def test_copies_and_fills() -> None:
    r, found = random.Random(0), []
    with installed() as cuda:
        for _ in range(5 * EXTREMES):
            src, dst, offset = _operands(r)
            copy = plan_copy(src, dst, offset, H200)
            fill, scale = plan_fill(dst, 1.0, H200), plan_scale(dst, 2.0, H200)

            def run(inputs: Any, outputs: Any, workspace: int, stream: int, steps: Any = (copy, fill, scale)) -> None:
                steps[0](*inputs, *outputs, stream)
                for step in steps[1:]:
                    step(*outputs, stream)

            try:
                assert held(cuda, Executable(run), SimpleNamespace(inputs=(src,), outputs=(dst,)), H200) == 3
            except AssertionError as error:
                found.append(f"{error}\n  {src} {dst} {offset}")
    assert not found, "\n".join(found)


def _contract(op: str) -> list[str]:
    problems = {case.text: cases.parse(case.text) for case in cases.find(["contract"]) if case.op == op}
    return [text for text, p in problems.items() if all(s.size for s in (*p.inputs, *p.outputs))]


@pytest.mark.slow
@pytest.mark.parametrize("op", FAMILY)
def test_the_contracts_problems(op: str) -> None:
    _holds(_contract(op), lambda i: [POLICIES[0], *_in_turn(1)(i)])


@pytest.mark.slow
@pytest.mark.parametrize("family", extreme_problems.FAMILIES)
def test_extreme_problems(family: str) -> None:
    r = random.Random(family)
    _holds([extreme_problems.line(family, r) for _ in range(EXTREMES)], _in_turn(3))


@pytest.mark.parametrize("line", FIXED)
def test_problems_that_went_wrong_once(line: str) -> None:
    _holds([line], lambda _: POLICIES)
