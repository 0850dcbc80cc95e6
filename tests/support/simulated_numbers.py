"""Numbers at the edges under the CUDA simulator: long sums, scales that squares overflow at, numbers that are not finite.

Expected values are closed forms or the reference; test_numbers.py starts it. Needs ``NUMBA_ENABLE_CUDASIM=1``.
"""

import sys
from dataclasses import replace

import numpy as np
from reporting import end, report

from numbadnn import cases
from numbadnn.problem import Policy
from numbadnn.registry import implementations
from numbadnn.validate import simulate
from numbadnn.validate.oracle import Trial

TENTH = float(np.float32(0.1))


def own(problem):
    """The kernels that take the problem, but for routes, which run others' code."""
    found = [i for i in implementations(problem.op) if i.backend == "numba" and "_by_" not in i.name]
    return [i.name for i in found if not i.supports(problem, Policy(device=0))]


def long_sums() -> None:
    """Of constants, whose roundings all go one way: a running sum of so many is off by more than 1e-6."""
    from numbadnn.kernels.norm import strided as norm
    from numbadnn.kernels.softmax import strided as softmax

    def near(line, name, got, right):
        error = abs(float(got) / right - 1)
        report(f"{name} {line}", error < 1e-6, f"{got} for {right}, {error:.1e} off")

    for line, name, right in (
        ("pool x=float32:1x1x40x30 window=40x30 stride=1x1 mode=sum", "numba.pool_strided", 1200 * TENTH),
        ("pool x=float32:1x1x300x4 window=300x4 stride=1x1 mode=average_inc_pad", "numba.pool_strided", TENTH),
        ("pool_grad x=float32:1x1x51x41 window=26x21 stride=1x1 mode=sum", "numba.pool_strided", 26 * 21 * TENTH),
        ("conv2d x=float32:1x700x1x1 w=float32:1x700x1x1", "numba.direct", 700 * TENTH**2),
        ("conv2d_grad_wrt_inputs x=float32:1x1x1x1 w=float32:700x1x1x1", "numba.direct", 700 * TENTH**2),
        ("conv2d_grad_wrt_weights x=float32:1400x1x1x1 w=float32:1x1x1x1", "numba.direct", 1400 * TENTH**2),
    ):
        problem = cases.parse(line)
        arrays = [np.full(spec.shape, 0.1, "f4") for spec in problem.inputs]
        near(line, name, simulate.run(problem, arrays, name)[0].max(), right)
    n, mixed = 3000, np.full((1, 3000), np.log(0.1), "f4")
    mixed[0, 0] = 0
    for line, arrays, right in (
        ("softmax x=float32:1x3000", (mixed,), 1 / (1 + (n - 1) * TENTH)),
        (
            "softmax_grad dy=float32:1x3000 algo=log",
            (np.full((1, n), 0.1, "f4"), np.zeros((1, n), "f4")),
            -(n - 1) * TENTH,
        ),
    ):
        problem = cases.parse(line)
        config = replace(softmax.heuristic(problem), lanes=128, parts=1)
        near(
            line,
            "numba.softmax_strided",
            simulate.run(problem, arrays, "numba.softmax_strided", config=config)[0][0, 0],
            right,
        )
    small = " ".join(f"{name}=float32:1x1x1x1" for name in ("gamma", "mean", "invstd"))
    problem = cases.parse(
        f"batch_normalization_train_grad x=float32:30x1x10x10 dy=float32:30x1x10x10 {small} mode=spatial"
    )
    x, one = np.zeros((30, 1, 10, 10), "f4"), np.ones((1, 1, 1, 1), "f4")
    config = replace(norm.heuristic(problem), lanes=256, parts=1)
    got = simulate.run(problem, (x, x + np.float32(0.1), one, -one, one), "numba.norm_strided", config=config)
    near(str(problem), "numba.norm_strided", got[1].item(), n * TENTH)
    near(str(problem), "numba.norm_strided", got[2].item(), n * TENTH)
    for stem, channels, layout in (("planes", 4, ""), ("channels", 4, ":nhwc"), ("staged", 16, "")):
        line = f"spatialtf_sampler_grad img=float32:1x{channels}x2x16{layout} grid=float32:1x26x24x2"
        problem = cases.parse(f"{line} dy=float32:1x{channels}x26x24{layout}")
        img, dy = np.ones((1, channels, 2, 16), "f4"), np.full((1, channels, 26, 24), 0.1, "f4")
        got = simulate.run(problem, (img, np.full((1, 26, 24, 2), -1, "f4"), dy), f"numba.spatial_{stem}")
        for c in (0, channels - 1):
            near(line, f"numba.spatial_{stem}", got[0][0, c, 0, 0], 26 * 24 * TENTH)


def a_grid_beside_the_image() -> None:
    """No pixel has a record: what lies in their memory was never written."""
    problem = cases.parse(
        "spatialtf_sampler_grad img=float32:1x4x2x2:nhwc grid=float32:1x1x1x2 dy=float32:1x4x1x1:nhwc"
    )
    arrays = np.ones((1, 4, 2, 2), "f4"), np.array([9, 0], "f4").reshape(1, 1, 1, 2), np.ones((1, 4, 1, 1), "f4")
    for name in own(problem):
        got = simulate.run(problem, arrays, name)
        report(f"{name} {problem}", not any(np.any(a) for a in got), got)


def scales() -> None:
    """Batch normalization and its gradients of numbers whose squares float32 does not hold."""
    from numbadnn.kernels.norm.columns import ColumnsConfig
    from numbadnn.kernels.norm.planes import PlanesConfig

    some_parts = {"numba.norm_planes": PlanesConfig(4, 1, 32), "numba.norm_columns": ColumnsConfig(4, 2, 2, 16)}
    rng = np.random.default_rng(0)
    for scale, epsilon in ((1.0, 1e-5), (1e20, 1e-5), (1e30, 1e-5), (1e-15, 0.0), (1e-25, 0.0)):
        for shape, layout in (
            ((4, 3, 2, 2), ""),
            ((4, 3, 2, 2), ":nhwc"),
            ((2, 2, 16, 32), ""),
            ((6, 8, 8, 4), ":nhwc"),
        ):
            x, dy = (rng.standard_normal(shape) * scale).astype("f4"), rng.standard_normal(shape).astype("f4")
            if epsilon:
                x[:, 0] = np.float32(scale)  # one channel is constant
            ones = [np.full((1, shape[1], 1, 1), n, "f4") for n in (1, 0.25)]
            wide = x.astype("f8")
            mean, var = (f(wide, axis=(0, 2, 3), keepdims=True) for f in (np.mean, np.var))
            given = mean.astype("f4"), (1 / np.sqrt(var + epsilon)).astype("f4")
            text = "x".join(map(str, shape)) + layout
            for op, arrays in (("train", (x, *ones)), ("train_grad", (x, dy, ones[0], *given))):
                names = "x gamma beta" if op == "train" else "x dy gamma mean invstd"
                specs = (
                    f"{n}=float32:{text}" if n in ("x", "dy") else f"{n}=float32:1x{shape[1]}x1x1"
                    for n in names.split()
                )
                problem = cases.parse(f"batch_normalization_{op} {' '.join(specs)} mode=spatial epsilon={epsilon!r}")
                trial = Trial(problem, arrays)
                for name in own(problem):
                    for config in (None, some_parts[name]) if name in some_parts and shape[2] > 2 else (None,):
                        verdict = trial.compare(simulate.run(problem, arrays, name, config=config), "ieee")
                        report(f"{name} {problem} {config}", verdict.ok, verdict)


def not_finite() -> None:
    """NaN where the definition multiplies one, padding's zeros among the factors; nothing from where no window reaches."""
    rng = np.random.default_rng(0)
    for line in (
        "x=float32:1x4x3x4 w=float32:8x4x3x3 pad=1,1,1,1",
        "x=float32:1x4x3x3 w=float32:4x1x1x2 pad=0,0,1,1 flip=0 groups=4",
        "x=float32:2x1x3x3 w=float32:8x1x1x2 pad=0,1,2,0 stride=2,1",
        "x=float32:1x8x4x4:nhwc w=float32:8x1x3x3:nhwc pad=1,1,1,1 groups=8",
        "x=float16:1x8x5x4:nhwc w=float16:8x8x3x3:nhwc pad=2,0,1,1 stride=2,1 dilation=1,2",
        "x=float16:1x1x4x5 w=float16:8x1x3x3 pad=1,1,1,1",
        "x=float16:1x2x5x5:nhwc w=float16:16x2x3x3:nhwc pad=1,1,1,1 stride=2,1",
        "x=bfloat16:2x8x5x5:nhwc w=bfloat16:16x4x3x3:nhwc pad=2,1,1,2 stride=2,2 groups=2",
        "x=float32:1x4x4x4 w=float32:8x1x3x3 pad=1,1,1,1 groups=4 beta=2",
        "x=float64:1x3x4x4 w=float64:4x3x3x3 pad=1,1,1,1 stride=2,2 beta=2",
    ):
        for op in ("conv2d", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights"):
            problem = cases.parse(f"{op} {line}")
            for which, values in ((0, [np.inf]), (1, [np.nan, -np.inf])):
                made = Trial.of(problem)
                arrays = [np.array(a) for a in made.inputs]
                arrays[which].flat[rng.choice(arrays[which].size, len(values), replace=False)] = values
                with np.errstate(invalid="ignore"):
                    right = Trial(problem, tuple(arrays), made.old).value
                given = arrays if made.old is None else [*arrays, made.old]
                for name, config in ((n, config) for n in own(problem) for config in ways(n, problem)):
                    got = np.asarray(simulate.run(problem, given, name, config=config)[0]).astype("f8")
                    report(
                        f"{name} {problem} {values} in operand {which} {config}",
                        agree(got, right),
                        f"{got.ravel()[:9]} for {right.ravel()[:9]}",
                    )


def agree(got, right) -> bool:
    """Whether the same are NaN and infinite; the others differ by roundings."""
    both = np.isfinite(got) & np.isfinite(right)
    near = np.allclose(got[both], right[both], 0.02, 0.02)
    return near and np.array_equal(np.isnan(got), np.isnan(right)) and np.array_equal(np.isfinite(got), both)


def ways(name: str, problem) -> list:
    """Configurations to try: the heuristic's, and one that shares the terms among blocks."""
    (found,) = (i for i in implementations(problem.op) if i.name == name)
    if name != "numba.implicit_tiles":
        return [None]
    return [None, *[c for c in found.space(problem, Policy(device=0)) if c.splits > 1][:1]]


if __name__ == "__main__":
    for part in sys.argv[1:]:
        globals()[part]()
    end()
