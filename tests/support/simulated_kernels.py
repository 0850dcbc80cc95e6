"""Run own kernels under the CUDA simulator and hold them against the reference; test_kernels_simulator.py starts it.

Prints one line a check and exits 1 if any fails. Needs ``NUMBA_ENABLE_CUDASIM=1`` in the environment.
"""

import sys
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
from reporting import end, report

from numbadnn import cases
from numbadnn.kernels.copies import copy
from numbadnn.kernels.lang import access
from numbadnn.kernels.pool import tiles as pool_tiles
from numbadnn.measuring.data import buffer
from numbadnn.measuring.laws import law
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import DIRECTIONS, ConvProblem
from numbadnn.problems.softmax import SoftmaxProblem
from numbadnn.registry import FAMILY, implementations
from numbadnn.validate import simulate
from numbadnn.validate.oracle import Trial

DTYPES = ("float32", "float16", "bfloat16", "float64")
CONV = (
    "x={t}:2x2x5x4 w={t}:3x2x3x2 pad=1,1,0,2",
    "x={t}:1x4x6x7:nhwc w={t}:6x2x2x3:nhwc pad=2,0,1,1 stride=2,3 dilation=2,1 flip=0 groups=2 alpha=2 beta=-3",
    "x={t}:2x3x4x4:-48,16,-4,1 w={t}:3x1x3x3 pad=1,1,1,1 groups=3 alpha=-1 beta=1",
)
SOFTMAX = (
    "{t}:3x37",
    "{t}:5x40",
    "{t}:2x5x3x4",
    "{t}:2x5x3x3",
    "{t}:3x9:0,1",
    "{t}:3x19:21,1",
    "{t}:3x32:unaligned",
    "{t}:3x5x2x2:nhwc",
    "{t}:2x3x2x2x2:1,2,6,12,24",
    "{t}:2x700",
)
COPIES = (  # source shape and layout, destination shape and layout, offset
    ("2x3x4x4", "2x3x6x7", (0, 0, 1, 2)),
    ("2x3x4x4", "2x3x4x4:nhwc", (0, 0, 0, 0)),
    ("1x8x3x2:nhwc", "1x8x3x3:nhwc", (0, 0, 0, 1)),
    ("2x2x5x8", "2x2x3x8", (0, 0, -2, 0)),
    ("300", "300", (0,)),
    ("3x4:-4,0", "3x4", (0, 0)),
    ("3x4", "2x1", (0, 5)),
    ("2x3x2x2x2x2", "2x3x2x2x2x2:1,2,6,12,24,48", (0,) * 6),
    ("1x9x7x11", "1x9x7x11:nhwc", (0, 0, 0, 0)),  # transposed, by elements and by pairs
    ("1x10x2x43", "1x10x2x43:nhwc", (0, 0, 0, 0)),
    ("2x34x1x14:nhwc", "2x34x1x14", (0, 0, 0, 0)),
)


def check(problem: Any, trial: Trial, name: str, exactly: bool = False, config: object = None) -> None:
    arrays = (*trial.inputs, *(() if trial.old is None else (trial.old,)))
    got = simulate.run(problem, arrays, name, config=config)
    verdict = trial.compare_exactly(got) if exactly else trial.compare(got, "ieee")
    report(f"{name} {problem}", verdict.ok, str(verdict))


def tagged(family: str) -> None:
    """The family's cases tagged ``simulate``: every own kernel that takes them, on integers where they show most."""
    policy = Policy(device=0)
    for case in cases.all_cases().values():
        if "simulate" not in case.tags or FAMILY[case.op] != family:
            continue
        problem = case.problem()
        rules = law(case.op)
        kinds = ["integers" if rules.exact_integers(problem) else "random", *rules.extra_kinds(problem)]
        own = [
            i for i in implementations(case.op) if i.backend == "numba" and "_by_" not in i.name
        ]  # routes run others' code
        taking = [i.name for i in own if not i.supports(problem, policy)]
        for kind in kinds:
            trial = Trial.of(problem, kind=kind)
            for name in taking:
                check(problem, trial, name, exactly=kind == "integers")


def convolutions() -> None:
    from numbadnn.kernels.conv.direct import DirectConfig, heuristic

    for dtype in DTYPES:
        for op in DIRECTIONS:
            for text in CONV:
                problem = ConvProblem.parse(f"{op} {text.format(t=dtype)}")
                check(problem, Trial.of(problem, kind="integers"), "numba.direct", exactly=True)
            check(problem, Trial.of(problem), "numba.direct")
            if dtype == "float32":
                check(problem, Trial.of(problem), "numba.direct", config=DirectConfig(heuristic(problem).parts, True))


def softmaxes() -> None:
    for op, first in (("softmax", "x"), ("softmax_grad", "dy")):
        for i, dtype in enumerate(DTYPES):
            for j, text in enumerate(SOFTMAX):
                if (i + j) % 2 == (op == "softmax"):  # every dtype meets every kind of layout in one of the two
                    continue
                algo, mode = ("accurate", "log", "fast")[(i + j) % 3], ("channel", "instance")[(i // 2 + j) % 2]
                problem = SoftmaxProblem.parse(f"{op} {first}={text.format(t=dtype)} algo={algo} mode={mode}")
                if "unaligned" in text:
                    spec = getattr(problem, first)
                    problem = SoftmaxProblem(op, spec, x=problem.x, dy=problem.dy, dx=spec, algo=algo, mode=mode)
                trial = Trial.of(problem)
                for impl in implementations(op):
                    if (
                        impl.name == "numba.softmax_long" and (i + j) % 4 > 1
                    ):  # the slowest here, and much the same each time
                        continue
                    if impl.backend == "numba" and not impl.supports(problem, Policy(device=0)):
                        check(problem, trial, impl.name)


def configurations() -> None:
    """What the heuristics choose only for rows too long for the simulator."""
    from numbadnn.kernels.softmax.rows import RowsConfig

    for dtype in DTYPES:
        vec = 16 // Spec.of(dtype, (1,)).itemsize
        for length in (128 * vec, 128 * vec - 3):
            for op, first in (("softmax", "x"), ("softmax_grad", "dy")):
                for algo in ("accurate", "log"):
                    problem = SoftmaxProblem.parse(f"{op} {first}={dtype}:2x{length} algo={algo}")
                    config = RowsConfig(128, 2, vec, length % vec > 0, False, 128, stash=op == "softmax_grad")
                    check(problem, Trial.of(problem), "numba.softmax_rows", config=config)


def shared_configurations() -> None:
    """The same for the kernels that use shared memory: what fits it and what does not, many warps, channels kept in registers."""
    from numbadnn.kernels.softmax.long import LongConfig
    from numbadnn.kernels.softmax.tiles import TilesConfig

    for i, dtype in enumerate(DTYPES):
        size = Spec.of(dtype, (1,)).itemsize
        vec = 16 // size
        for j, (op, first) in enumerate((("softmax", "x"), ("softmax_grad", "dy"))):
            algo = ("accurate", "log")[(i + j) % 2]
            problem = SoftmaxProblem.parse(f"{op} {first}={dtype}:2x{200 * vec + 3} algo={algo}")
            for shared in (64 * 16 * (j + 1), 0):
                check(problem, Trial.of(problem), "numba.softmax_long", config=LongConfig(32, vec, 2, shared))
            problem = SoftmaxProblem.parse(f"{op} {first}={dtype}:1x21x4x4 algo={algo}")
            for lanes, parts, kept in ((4, 16, 1), (2, 16, 2)):
                config = TilesConfig(vec, lanes, parts, kept, 1, 48 * 1024)
                check(problem, Trial.of(problem), "numba.softmax_tiles", config=config)


def special_values() -> None:
    x = np.random.default_rng(0).standard_normal((6, 9, 4)).astype("float32")
    x[0, 0], x[1, 1], x[2], x[3, 1], x[4] = np.nan, np.inf, -np.inf, -np.inf, 3e38
    for array in (x, x[:, :, 0]):
        for algo in ("accurate", "log"):
            problem = SoftmaxProblem("softmax", *[Spec.of("float32", array.shape)] * 2, algo=algo)
            trial = Trial(problem, (array,))
            for impl in implementations("softmax"):
                if impl.backend == "numba" and not impl.supports(problem, Policy(device=0)):
                    check(problem, trial, impl.name)


def copies() -> None:
    from numbadnn.kernels.lang import access as _access

    types = {"bfloat16": ml_dtypes.bfloat16}
    values = np.random.default_rng(1).standard_normal(1000) * 300
    for i, (source, target, offset) in enumerate(COPIES):
        for j, dtype in enumerate(DTYPES):
            for other in (dtype, DTYPES[(i + j) % 4]):
                src = Spec.parse(f"{dtype}:{source}")
                dst = Spec.parse(f"{other}:{target}")
                a, b = buffer(src, values[: src.size].reshape(src.shape)), buffer(dst)
                _access.MEMORY[:] = [simulate._range(a), simulate._range(b)]
                copy.plan_copy(src, dst, offset, 0)(a.array.ctypes.data, b.array.ctypes.data, 0)
                expected = np.zeros(dst.shape, types.get(other, other))
                for index in np.ndindex(*dst.shape):
                    inside = tuple(k - o for k, o in zip(index, offset, strict=True))
                    if all(0 <= k < n for k, n in zip(inside, src.shape, strict=True)):
                        expected[index] = a.array[inside].astype(expected.dtype)
                report(f"copy {src} -> {dst} by {offset}", np.array_equal(expected, b.array))
    for dtype in DTYPES:
        spec = Spec(dtype, (3, 4), (-5, 1))
        a = buffer(spec, values[:12].reshape(3, 4))
        _access.MEMORY[:] = [simulate._range(a)]
        expected = (a.array.astype("float64") * -2).astype(a.array.dtype)
        copy.plan_scale(spec, -2.0, 0)(a.array.ctypes.data, 0)
        report(f"scale {spec}", np.array_equal(expected, a.array))
        copy.plan_fill(spec, 2.5, 0)(a.array.ctypes.data, 0)
        report(f"fill {spec}", bool((a.array == 2.5).all()))


MAXIMA = (
    "2x2x6x7 window=3x3 stride=2x2 pad=1x1",
    "1x1x4x5x8 window=3x3x3 stride=2x2x2 pad=1x1x1",
    "1x8x4x5x3:nhwc window=3x3x3 stride=2x2x2 pad=1x1x1",
    "1x2x3x5x6 window=2x3x2 stride=3x2x1 pad=1x2x1",
    "1x1x4x4x4 window=2x2x2",
)


def maxima() -> None:
    """Gradients of maxima of what has a first of equals: few numbers, both zeros, -inf at the rims, NaN."""
    rng = np.random.default_rng(5)
    for line in MAXIMA:
        for dtype in DTYPES:
            problem = cases.parse(f"pool_grad x={dtype}:{line}")
            x, y, dy = (rng.integers(-2, 3, s.shape).astype(access._numpy_type(dtype)) for s in problem.inputs)
            drawn = rng.random(x.shape)
            x[drawn > 0.9], x[(drawn > 0.5) & (drawn < 0.6)], x[drawn < 0.03] = -np.inf, -0.0, np.nan
            x[:, :, : x.shape[2] // 2] = -np.inf
            trial = Trial(problem, (x, y, dy))
            for name in ("numba.pool_tiles", "numba.pool_strided"):
                check(problem, trial, name, exactly=True)
            for config in pool_tiles.space(problem)[1:3]:
                check(problem, trial, "numba.pool_tiles", exactly=True, config=config)
            for config in pool_tiles.choosing(problem)[1::3] if pool_tiles.codes_bytes(problem) else ():
                with patch.object(pool_tiles, "choosing", lambda problem, c=config: [c]):
                    check(problem, trial, "numba.pool_tiles", exactly=True)


if __name__ == "__main__":
    for part in sys.argv[1:]:
        if part in globals():
            globals()[part]()
        else:
            tagged(part)
    end()
