"""Which of the GPU's softmax kernels takes which problem, and that what its bits depend on is not the batch or the GPU."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest

import numbadnn
from numbadnn import dispatch
from numbadnn.kernels.build.machine import DEFAULT_CAPACITY, LARGEST_CAPACITY
from numbadnn.kernels.softmax import alike, softmax
from numbadnn.kernels.softmax import channels as softmax_channels
from numbadnn.kernels.softmax import long as softmax_long
from numbadnn.kernels.softmax import rows as softmax_rows
from numbadnn.kernels.softmax import tiles as softmax_tiles
from numbadnn.kernels.softmax.layout import shared_limit
from numbadnn.kernels.softmax.softmax import STEMS
from numbadnn.measuring.data import make_arrays
from numbadnn.problem import ITEMSIZE, Policy, Spec
from numbadnn.problems.softmax import SoftmaxProblem
from numbadnn.registry import implementations

ROOMS = (LARGEST_CAPACITY, 163 * 1024, 99 * 1024)


def packed(op: str, dtype: str, *shape: int) -> SoftmaxProblem:
    spec = Spec.of(dtype, shape)
    return SoftmaxProblem(op, spec, x=spec) if op == "softmax" else SoftmaxProblem(op, spec, dy=spec, dx=spec)


@pytest.mark.parametrize(
    ("stem", "op", "dtype", "shape"),
    [
        ("rows", "softmax", "float16", (64, 16384)),
        ("long", "softmax", "float16", (64, 20480)),
        ("long", "softmax", "float32", (64, 65536)),
        ("rows", "softmax", "float32", (64, 32768)),
        ("long", "softmax_grad", "float32", (64, 32768)),
        ("rows", "softmax_grad", "bfloat16", (64, 8192)),
        ("long", "softmax_grad", "bfloat16", (64, 16384)),
        ("long", "softmax", "float64", (4, 1 << 20)),
        ("tiles", "softmax", "float16", (8, 21, 64, 64)),
        ("channels", "softmax", "float32", (8, 256, 64, 64)),
        ("tiles", "softmax", "float32", (8, 1000, 64, 64)),
        ("tiles", "softmax_grad", "float32", (8, 256, 64, 64)),
        ("tiles", "softmax_grad", "float16", (8, 4000, 64, 64)),
        ("channels", "softmax", "float16", (8, 256, 7, 7)),
        ("strided", "softmax", "float32", (8, 30000, 7, 7)),
    ],
)
def test_the_fastest_kernel_goes_first(stem: str, op: str, dtype: str, shape: tuple[int, ...]) -> None:
    problem = packed(op, dtype, *shape)
    able = [
        i for i in implementations(op, ("numba",)) if (m := STEMS.get(i.name.split("_")[1])) and not m.reason(problem)
    ]
    assert min(able, key=lambda i: i.rank(problem)).name == f"numba.softmax_{stem}"


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_layouts_that_differ_are_made_alike_before_strides_are_walked(dtype: str) -> None:
    alike, strided = (
        next(i for i in implementations("softmax_grad", ("numba",)) if i.name.endswith(s)) for s in ("alike", "strided")
    )
    one, other = f"{dtype}:64x256x96x96", f"{dtype}:64x256x96x96:nhwc"
    mixed, same = (SoftmaxProblem.parse(f"softmax_grad dy={other} y={y} dx={other} algo=log") for y in (one, other))
    assert alike.rank(mixed) < strided.rank(mixed)
    assert "lies otherwise" in alike.supports(same, Policy(device=0))
    assert "lies otherwise" not in alike.supports(mixed, Policy(device=0))


def problems() -> Iterator[SoftmaxProblem]:
    for op in ("softmax", "softmax_grad"):
        for dtype in ITEMSIZE:
            for n in (*range(1, 40, 3), 150, 256, 700, 1000, 3000, 9000, 20480, 33001, 65536, 200000, 1 << 20):
                yield packed(op, dtype, 4, n)
                yield packed(op, dtype, 2, n, 4, 8)


def test_bits_depend_on_neither_the_batch_nor_the_gpu() -> None:
    taken = 0
    for problem in problems():
        more = packed(problem.op, problem.y.dtype, 64, *problem.y.shape[1:])
        for module, names in ((softmax_tiles, ("vec", "lanes", "parts")), (softmax_long, ("vec", "threads", "ahead"))):
            found = [module.heuristic(p, room) for p in (problem, more) for room in ROOMS if not module.reason(p, room)]
            assert len({tuple(getattr(config, name) for name in names) for config in found}) <= 1, problem
            taken += len(found)
        for module in (softmax_rows, softmax_channels):
            if not module.reason(problem):
                assert module.heuristic(problem) == module.heuristic(more)
    assert taken > 1000


def test_a_kernel_always_asks_for_the_same_large_shared_memory() -> None:
    asked = defaultdict(set)
    for problem in problems():
        for module in (softmax_rows, softmax_long, softmax_tiles):
            if not module.reason(problem):
                made = module.prepare(problem, module.heuristic(problem))
                assert made.shared_bytes <= LARGEST_CAPACITY
                asked[made.kernel].add(made.shared_bytes)
    assert any(len(sizes) > 1 for sizes in asked.values())
    assert all(len(sizes) == 1 or max(sizes) <= DEFAULT_CAPACITY for sizes in asked.values())
    assert len({k for k in asked if "_long " in k.name and " float16 " in k.name}) < 20  # not one for each length


@pytest.mark.parametrize("room", ROOMS)
def test_shared_limit(room: int) -> None:
    assert shared_limit(1000, 200, room) == DEFAULT_CAPACITY - 200
    assert shared_limit(10**9, 200, room) == room - 200
    for needed in range(0, room - 200, 1000):
        assert needed <= shared_limit(needed, 200, room) <= room - 200


def test_refusals_say_why() -> None:
    nhwc = Spec.of("float16", (2, 64, 8, 8), "nhwc")
    assert "contiguous" in softmax_tiles.reason(SoftmaxProblem("softmax", nhwc, x=nhwc))
    assert "aligned" in softmax_tiles.reason(packed("softmax", "float16", 2, 64, 7, 7))
    assert "shared memory" in softmax_tiles.reason(packed("softmax", "float32", 2, 30000, 8, 8))
    assert softmax_tiles.reason(packed("softmax", "float32", 2, 4000, 8, 8)) == ""
    assert "101376 bytes" in softmax_tiles.reason(packed("softmax_grad", "float32", 2, 4000, 8, 8), 99 * 1024)
    assert "contiguous" in softmax_long.reason(packed("softmax", "float32", 2, 64, 8, 8))
    assert "2**30" in softmax_long.reason(packed("softmax", "float32", 1, 2**30))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shapes", [((3, 9000), (3, 20000), (3, 90000), (3, 33000)), ((1, 1000, 64), (1, 600, 64), (1, 40, 64))]
)
def test_one_kernel_for_problems_of_different_sizes(shapes: tuple[tuple[int, ...], ...]) -> None:
    import cupy

    from numbadnn.validate.oracle import Trial

    name = "numba.softmax_long" if len(shapes[0]) == 2 else "numba.softmax_tiles"
    impl = next(i for i in implementations("softmax") if i.name == name)
    planned = [(packed("softmax", "float32", *shape), cupy.empty(shape, "float32")) for shape in shapes]
    plans = [impl.plan(problem, Policy(device=0), None) for problem, _ in planned]
    for plan, (problem, y) in zip(plans, planned, strict=True):  # every one planned before the first is launched
        (x,), _ = make_arrays(problem)
        source = cupy.asarray(x)
        plan.run((source.data.ptr,), (y.data.ptr,), None, 0)
        verdict = Trial(problem, (x,)).compare(cupy.asnumpy(y), "ieee")
        assert verdict.ok, verdict
        assert np.isfinite(cupy.asnumpy(y)).all()


@pytest.mark.parametrize("level", ["batch_invariant", "gpu_to_gpu"])
def test_where_a_row_begins_decides_no_bits_where_none_may_depend_on_it(level: str) -> None:
    """Rows of 7 float64 begin at and between pieces of 16 bytes: by default their sums are ordered by these."""
    policy = Policy(0, level)
    for dtype, shape in (
        ("float64", (5, 7)),
        ("float32", (5, 4099)),
        ("float16", (3, 32768)),
        ("float32", (2, 64, 9, 7)),
    ):
        configs = defaultdict(set)
        for part in (shape, (1, *shape[1:])):
            for aligned in (True, False):
                specs = Spec.of(dtype, part), dataclasses.replace(Spec.of(dtype, part), aligned=aligned)
                problem = softmax.anywhere(SoftmaxProblem("softmax", specs[0], x=specs[1]), policy)
                for stem, module in STEMS.items():
                    room = (LARGEST_CAPACITY,) if module in softmax.SIZED else ()
                    if hasattr(module, "heuristic") and not module.reason(problem, *room):
                        configs[stem].add(getattr(module.heuristic(problem, *room), "vec", 1))
        assert configs and all(vec == {1} for vec in configs.values())
    free = SoftmaxProblem("softmax", Spec.of("float64", (5, 7)), x=Spec.of("float64", (5, 7)))
    assert softmax.anywhere(free, Policy(0)) is free and softmax_rows.heuristic(free).vec == 2


def by_whom(problem: SoftmaxProblem, policy: Policy) -> tuple[str, ...]:
    """The kernel that the order of registration comes to, and what of its configuration bits depend on."""
    able = [i for i in implementations(problem.op, ("numba",)) if not i.supports(problem, policy)]
    impl = min(able, key=lambda i: i.complete)
    if impl.name.endswith("alike"):
        problem, impl = alike._inner(problem, policy)
    module = STEMS[impl.name.split("_")[1]]
    config = softmax.heuristic(module, softmax.anywhere(problem, policy), policy)
    return impl.name, *(str(getattr(config, name, "")) for name in ("vec", "lanes", "parts", "threads"))


def test_an_image_alone_has_the_kernel_that_it_has_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images lie in any order of their axes, or are cut out of larger ones."""
    monkeypatch.setattr(softmax, "device_reason", lambda policy: "")
    monkeypatch.setattr(softmax, "shared_capacity", lambda device: LARGEST_CAPACITY)
    random, policy, found = np.random.default_rng(0), Policy(0, "batch_invariant"), set()
    for _ in range(300):
        rank = int(random.integers(2, 5))
        order, cut = random.permutation(rank), random.integers(0, 2, rank) * (random.random() < 0.5)
        shape = (8, *random.choice([1, 3, 9, 70], rank - 1).tolist())
        x, dy = (
            np.zeros([shape[a] + cut[a] for a in axes], np.float32).transpose(np.argsort(axes))
            for axes in (order, range(rank))
        )
        step = (1, 1, 2, -1)[random.integers(4)]  # of a batch that is cut or turned round the result is in C order
        x, dy = (a[tuple(slice(0, n) for n in shape)][::step] for a in (x, dy))
        mode = str(random.choice(["channel", "instance"]))
        for function, arrays in ((numbadnn.softmax, (x,)), (numbadnn.softmax_grad, (dy, x))):
            whole, alone = (
                by_whom(dispatch.intercept("problem", function, tuple(a[:n] for a in arrays), {"mode": mode}), policy)
                for n in (len(x), 1)
            )
            assert whole == alone, (shape, x.strides, mode)
            found.add(whole[0])
    assert found >= {"numba.softmax_rows", "numba.softmax_channels", "numba.softmax_strided"}


@pytest.mark.gpu
def test_an_image_alone_has_its_bits_on_a_gpu() -> None:
    """In C order, Fortran's and channels last, whole and cut out of larger images."""
    cupy = pytest.importorskip("cupy")
    random, found = np.random.default_rng(0), set()
    for shape in ((9, 70), (9, 5), (9, 70, 3, 4), (9, 16, 5, 5)):
        last = (0, *range(2, len(shape)), 1)
        for order in {tuple(range(len(shape))), tuple(reversed(range(len(shape)))), last}:
            for cut in (0, 1):
                memory = cupy.asarray(random.standard_normal([shape[a] + cut for a in order], np.float32))
                x = memory.transpose(np.argsort(order).tolist())[tuple(slice(0, n) for n in shape)]
                with numbadnn.using(backend="numba", determinism="batch_invariant"):
                    y, one = numbadnn.softmax(x), numbadnn.softmax(x[4:5])
                    found.add(numbadnn.last_call().impl)
                    dy = cupy.ascontiguousarray(x)
                    dx, two = numbadnn.softmax_grad(dy, y), numbadnn.softmax_grad(dy[4:5], y[4:5])
                for whole, alone in ((y, one), (dx, two)):
                    np.testing.assert_array_equal(cupy.asnumpy(whole[4:5]), cupy.asnumpy(alone))
    assert "numba.softmax_strided" in found and len(found) > 1
