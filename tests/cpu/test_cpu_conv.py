"""conv2d and its gradients on the CPU against the definition, summed here in float64 over a padded image."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from numbadnn import cases
from numbadnn.cpu.conv import im2col
from numbadnn.problem import Policy, Spec, normalised_strides
from numbadnn.problems.conv import DIRECTIONS, ConvProblem
from numbadnn.registry import implementations
from numbadnn.validate.check import Row, Subject, judge
from numbadnn.validate.oracle import Trial

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}


def definition(op, first, second, shapes, padding, stride, dilation, flip, groups):
    """The sum over taps, in float64; x, w, y shapes in ``shapes``; the two inputs in call order."""
    (_, _, H, W), (K, Cg, R, S), (_, _, P, Q) = (shapes[n] for n in "xwy")
    (top, bottom), (left, right) = padding
    padded = np.zeros((*shapes["x"][:2], H + top + bottom, W + left + right))
    inside = (..., slice(top, top + H), slice(left, left + W))
    out = np.zeros(shapes[DIRECTIONS[op][1]])
    if op != "conv2d_grad_wrt_inputs":
        padded[inside] = first
    for r in range(R):
        for s in range(S):
            i = (R - 1 - r if flip else r) * dilation[0]
            j = (S - 1 - s if flip else s) * dilation[1]
            seen = padded[
                :, :, i : i + (P - 1) * stride[0] + 1 : stride[0], j : j + (Q - 1) * stride[1] + 1 : stride[1]
            ]
            for g in range(groups):
                c, k = slice(g * Cg, (g + 1) * Cg), slice(g * K // groups, (g + 1) * K // groups)
                if op == "conv2d":
                    out[:, k] += np.einsum("nchw,kc->nkhw", seen[:, c], second[k, :, r, s], optimize=True)
                elif op == "conv2d_grad_wrt_weights":
                    out[k, :, r, s] = np.einsum("nchw,nkhw->kc", seen[:, c], second[:, k], optimize=True)
                else:
                    seen[:, c] += np.einsum("nkhw,kc->nchw", first[:, k], second[k, :, r, s], optimize=True)
    return padded[inside] if op == "conv2d_grad_wrt_inputs" else out


def laid_out(array, layout):
    """The same values in another memory layout."""
    if layout == "nhwc":
        return np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    if layout == "reversed":
        return np.ascontiguousarray(array[::-1, ::-1, ::-1, ::-1])[::-1, ::-1, ::-1, ::-1]
    if layout == "every second":
        wide = np.zeros((*array.shape[:3], 2 * array.shape[3]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if layout == "transposed":
        return np.ascontiguousarray(array.T).T
    return array


def spec(dtype, array):
    strides = tuple(s // array.itemsize for s in array.strides)
    return Spec(dtype, array.shape, normalised_strides(array.shape, strides))


def check(
    op,
    x,
    w,
    padding=((0, 0), (0, 0)),
    stride=(1, 1),
    dilation=(1, 1),
    flip=True,
    groups=1,
    alpha=1.0,
    beta=0.0,
    dtype="float32",
    layouts=("", "", ""),
    integers=False,
    zero_stride=False,
    seed=0,
):
    """Run one problem on an output full of NaN (or, with beta, of numbers) and compare every element with its bound."""
    rng = np.random.default_rng(seed)
    P, Q = ((x[2 + i] + sum(padding[i]) - dilation[i] * (w[2 + i] - 1) - 1) // stride[i] + 1 for i in range(2))
    shapes = {"x": x, "w": (w[0], w[1], *w[2:]), "y": (x[0], w[0], P, Q)}
    names, result = DIRECTIONS[op]

    def numbers(name):
        values = rng.integers(-2, 3, shapes[name]) if integers else rng.standard_normal(shapes[name])
        return laid_out(values.astype(DTYPES[dtype]), layouts["xwy".index(name)])

    arrays = {n: numbers(n) for n in "xwy"}
    if zero_stride:
        arrays[names[0]] = np.broadcast_to(arrays[names[0]][:1, :, :1], shapes[names[0]])
    inputs = tuple(arrays[n] for n in names)
    before = [a.copy() for a in inputs]
    old = arrays[result].astype(float) if beta else 0.0
    if not beta:
        arrays[result][...] = np.nan
    problem = ConvProblem(
        op,
        *(spec(dtype, arrays[n]) for n in "xwy"),
        padding=padding,
        stride=stride,
        dilation=dilation,
        flip=flip,
        groups=groups,
        alpha=alpha,
        beta=beta,
    )
    im2col.plan(problem, Policy(), None).run(inputs, (arrays[result],), None, None)
    for a, b in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(a, b)
    wide = [a.astype(float) for a in inputs]
    rest = (shapes, padding, stride, dilation, flip, groups)
    expected = alpha * definition(op, *wide, *rest) + beta * old
    got = arrays[result].astype(float)
    if integers:
        np.testing.assert_array_equal(got, expected)
        return
    size = abs(alpha) * definition(op, *map(abs, wide), *rest) + abs(beta * old)
    terms = {
        "conv2d": w[1] * w[2] * w[3],
        "conv2d_grad_wrt_inputs": w[0] // groups * w[2] * w[3],
        "conv2d_grad_wrt_weights": x[0] * P * Q,
    }[op] + 3
    unit = UNIT["float64" if dtype == "float64" else "float32"]
    bound = terms * unit / (1 - terms * unit) * size + UNIT[dtype] * abs(expected) + SMALLEST[dtype]
    if dtype == "float64":
        bound = 2 * bound  # the definition above rounds as well
    worst = np.max(np.abs(got - expected) / bound)
    assert worst <= 1, f"{problem}: {worst:.2f} times the bound"  # NaN fails too


CASES = {
    "one": dict(x=(1, 1, 1, 1), w=(1, 1, 1, 1)),
    "half": dict(x=(2, 3, 9, 8), w=(5, 3, 3, 3), padding=((1, 1), (1, 1))),
    "full": dict(x=(1, 2, 4, 3), w=(3, 2, 3, 5), padding=((2, 2), (4, 4))),
    "window larger than the image": dict(x=(2, 2, 2, 2), w=(3, 2, 5, 5), padding=((2, 2), (2, 2))),
    "asymmetric, stride, dilation": dict(
        x=(2, 3, 11, 12), w=(5, 3, 3, 2), padding=((1, 2), (0, 3)), stride=(2, 3), dilation=(1, 2)
    ),
    "untouched rows": dict(x=(2, 3, 10, 11), w=(4, 3, 1, 1), stride=(3, 4)),
    "groups, correlation": dict(
        x=(2, 6, 9, 11), w=(9, 2, 3, 2), padding=((1, 2), (0, 1)), stride=(1, 2), dilation=(2, 1), flip=False, groups=3
    ),
    "depthwise": dict(x=(2, 5, 19, 38), w=(5, 1, 3, 3), padding=((1, 1), (1, 1)), groups=5),
    "depthwise, two filters": dict(
        x=(2, 3, 12, 37), w=(6, 1, 3, 2), padding=((2, 1), (0, 1)), stride=(2, 3), dilation=(1, 2), groups=3, flip=False
    ),
    "depthwise, many filters": dict(x=(1, 2, 9, 9), w=(20, 1, 3, 3), stride=(2, 2), groups=2),
    "depthwise, wide rows": dict(x=(2, 3, 9, 75), w=(3, 1, 5, 3), padding=((2, 2), (1, 1)), groups=3),
    "depthwise, many channels": dict(x=(1, 300, 13, 14), w=(300, 1, 3, 3), padding=((1, 1), (1, 1)), groups=300),
    "thin groups": dict(x=(2, 24, 21, 30), w=(42, 4, 3, 3), padding=((1, 1), (1, 1)), groups=6),
    "thin groups, stride, dilation": dict(
        x=(2, 26, 20, 45), w=(10, 13, 3, 4), padding=((2, 1), (0, 3)), stride=(2, 2), dilation=(2, 3), groups=2
    ),
    "several blocks": dict(x=(3, 70, 7, 7), w=(300, 70, 3, 3), padding=((1, 1), (1, 1))),
    "several blocks, stride": dict(x=(2, 70, 9, 9), w=(290, 70, 3, 3), padding=((1, 1), (1, 1)), stride=(2, 2)),
    "pointwise": dict(x=(2, 300, 12, 13), w=(290, 300, 1, 1)),
    "first layer": dict(x=(1, 3, 40, 37), w=(10, 3, 7, 7), padding=((3, 3), (3, 3)), stride=(2, 2)),
    "many pixels": dict(x=(2, 3, 100, 120), w=(4, 3, 3, 3)),
    "planes, several stretches": dict(x=(2, 40, 70, 60), w=(48, 40, 3, 3), padding=((1, 1), (2, 0))),
    "planes of a stride, slices of blocks": dict(
        x=(1, 48, 41, 60), w=(48, 48, 4, 3), padding=((1, 2), (0, 1)), stride=(3, 2)
    ),
    "taps far apart": dict(x=(2, 3, 50, 45), w=(6, 3, 3, 3), padding=((20, 20), (19, 20)), dilation=(20, 20)),
    "padded pointwise": dict(x=(2, 24, 9, 7), w=(48, 24, 1, 1), padding=((1, 0), (0, 2))),
    "less than a tile left over": dict(x=(1, 24, 7, 7), w=(48, 24, 3, 3), padding=((1, 1), (1, 1))),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("op", DIRECTIONS)
def test_float32(op, name):
    check(op, **CASES[name])
    check(op, **CASES[name], alpha=-0.75, beta=0.5, seed=1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("op", DIRECTIONS)
def test_other_dtypes(op, dtype):
    for name in ("half", "asymmetric, stride, dilation", "groups, correlation", "depthwise, two filters", "pointwise"):
        check(op, **CASES[name], dtype=dtype)
        check(op, **CASES[name], dtype=dtype, alpha=0.5, beta=2.0, layouts=("nhwc", "reversed", "nhwc"))


@pytest.mark.parametrize("layout", ["nhwc", "reversed", "every second", "transposed"])
@pytest.mark.parametrize("op", DIRECTIONS)
def test_strides(op, layout):
    for name in ("half", "asymmetric, stride, dilation", "groups, correlation", "depthwise, two filters", "pointwise"):
        for which in ((layout, "", ""), ("", layout, ""), ("", "", layout), (layout,) * 3):
            check(op, **CASES[name], layouts=which)
        check(op, **CASES[name], layouts=(layout,) * 3, beta=1.5)
    check(op, **CASES["half"], zero_stride=True)
    check(op, **CASES["depthwise"], zero_stride=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", DIRECTIONS)
def test_small_integers_to_the_bit(op, dtype):
    for name in ("half", "full", "groups, correlation", "depthwise"):
        # gradients of the filters sum over all pixels: keep every sum exact in bfloat16's 8 bits
        x = (1, *CASES[name]["x"][1:]) if name != "depthwise" else (1, 5, 6, 7)
        check(op, **CASES[name] | {"x": x}, dtype=dtype, integers=True)
    if dtype in ("float32", "float64"):
        check(op, **CASES["several blocks"], dtype=dtype, integers=True, alpha=2.0, beta=-1.0)


def test_float16_subnormals_and_specials():
    values = np.arange(65536, dtype=np.uint16).view(np.float16).reshape(1, 1, 256, 256)
    one = np.ones((1, 1, 1, 1), np.float16)
    for dtype, x in (("float16", values), ("bfloat16", values.view(ml_dtypes.bfloat16))):
        w, y = one.astype(x.dtype), np.empty_like(x)
        problem = ConvProblem("conv2d", spec(dtype, x), spec(dtype, w), spec(dtype, y), padding=((0, 0), (0, 0)))
        im2col.plan(problem, Policy(), None).run((x, w), (y,), None, None)
        with np.errstate(invalid="ignore"):  # signalling NaNs
            np.testing.assert_array_equal(y.astype(np.float64), x.astype(np.float64))  # here NaN equals NaN
    x = np.linspace(-70000, 70000, 4001, dtype=np.float32).reshape(1, 1, 1, -1)
    x = np.concatenate([x, x * 1e-9, x * 1e-12], 3)
    for dtype in ("float16", "bfloat16"):  # rounding: a product of two 16-bit numbers is exact in float32
        with np.errstate(over="ignore"):
            a, w = x.astype(DTYPES[dtype]), np.full((1, 1, 1, 1), 1.0078125, DTYPES[dtype])
            y = np.empty_like(a)
            problem = ConvProblem("conv2d", spec(dtype, a), spec(dtype, w), spec(dtype, y), padding=((0, 0), (0, 0)))
            im2col.plan(problem, Policy(), None).run((a, w), (y,), None, None)
            np.testing.assert_array_equal(y, (a.astype(np.float32) * w.astype(np.float32)).astype(DTYPES[dtype]))


@pytest.mark.parametrize("layout", ["", "nhwc"])
@pytest.mark.parametrize("name", ["depthwise", "thin groups, stride, dilation"])
def test_an_infinite_filter_meets_padding_forward_and_nothing_outside_the_gradient(name, layout):
    case = CASES[name]
    padding, stride, dilation, groups = (
        case["padding"],
        case.get("stride", (1, 1)),
        case.get("dilation", (1, 1)),
        case["groups"],
    )
    P, Q = (
        (case["x"][2 + i] + sum(padding[i]) - dilation[i] * (case["w"][2 + i] - 1) - 1) // stride[i] + 1 for i in (0, 1)
    )
    shapes = {"x": case["x"], "w": case["w"], "y": (case["x"][0], case["w"][0], P, Q)}
    rng = np.random.default_rng(5)
    arrays = {n: laid_out(rng.standard_normal(shapes[n]).astype(np.float32), layout) for n in "xwy"}
    arrays["w"][1, 0, 0, 0], arrays["w"][-1, -1, -1, -1] = np.inf, np.nan
    for op in ("conv2d", "conv2d_grad_wrt_inputs"):
        names, result = DIRECTIONS[op]
        inputs = tuple(arrays[n] for n in names)
        out = laid_out(np.full(shapes[result], 7, np.float32), layout)
        specs = {n: spec("float32", out if n == result else arrays[n]) for n in "xwy"}
        problem = ConvProblem(op, *specs.values(), padding, stride, dilation, groups=groups)
        im2col.plan(problem, Policy(), None).run(inputs, (out,), None, None)
        with np.errstate(invalid="ignore"):
            expected = definition(
                op, *(a.astype(float) for a in inputs), shapes, padding, stride, dilation, True, groups
            )
        assert 0 < np.isfinite(expected).sum() < expected.size
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("filters", [3, 48])
@pytest.mark.parametrize("op", DIRECTIONS)
def test_an_infinity_reaches_only_what_is_summed_from_it(op, filters):
    """Some pixels are computed that no output has, and every pixel lies beside others that are none of its own."""
    rng = np.random.default_rng(4)
    shapes = {"x": (2, 8, 20, 21), "w": (filters, 8, 3, 3), "y": (2, filters, 20, 19)}
    arrays = {n: rng.standard_normal(shape, dtype=np.float32) for n, shape in shapes.items()}
    names, result = DIRECTIONS[op]
    problem = ConvProblem(op, *(spec("float32", arrays[n]) for n in "xwy"), padding=((1, 1), (0, 0)), flip=False)
    for place in ((0, 1, 0, 0), (-1, 2, -1, -1), (0, 1, 7, -1)):
        first = arrays[names[0]].copy()
        first[place] = np.inf
        im2col.plan(problem, Policy(), None).run((first, arrays[names[1]]), (arrays[result],), None, None)
        wide = (first.astype(float), arrays[names[1]].astype(float))
        with np.errstate(invalid="ignore"):
            expected = definition(op, *wide, shapes, ((1, 1), (0, 0)), (1, 1), (1, 1), False, 1)
        np.testing.assert_array_equal(np.isfinite(arrays[result]), np.isfinite(expected))


def test_an_image_does_not_depend_on_its_batch():
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((5, 70, 7, 7), dtype=np.float32), rng.standard_normal((40, 70, 3, 3), dtype=np.float32)

    def run(image):
        y = np.empty((len(image), 40, 5, 5), np.float32)
        problem = ConvProblem("conv2d", *(spec("float32", a) for a in (image, w, y)), padding=((0, 0), (0, 0)))
        im2col.plan(problem, Policy(), None).run((image, w), (y,), None, None)
        return y

    np.testing.assert_array_equal(run(x)[3], run(x[3:4])[0])


def test_registered_and_refuses_with_a_reason():
    x = Spec.of("float32", (1, 2, 4, 4))
    problem = ConvProblem(
        "conv2d", x, Spec.of("float32", (3, 2, 1, 1)), Spec.of("float32", (1, 3, 4, 4)), ((0, 0), (0, 0))
    )
    for op in DIRECTIONS:
        (impl,) = (i for i in implementations(op) if i.name == "cpu.im2col")
        assert impl.supports(problem, Policy()) == ""
        assert "float32" in impl.supports(problem, Policy(precision="float64"))
        assert impl.supports(problem, Policy(precision="float16"))


@pytest.mark.parametrize("line", (
    "conv2d_grad_wrt_inputs x=float32:2x5x9x8 w=float32:7x5x3x3 pad=1,1,1,1 beta=0.5",
    "conv2d_grad_wrt_inputs x=float32:2x3x9x40 w=float32:40x3x3x3 stride=2,1 dilation=1,2",
    "conv2d_grad_wrt_inputs x=float64:2x20x9x8:nhwc w=float64:4x10x3x2:nhwc pad=2,0,0,1 stride=2,3 groups=2",
    "conv2d_grad_wrt_inputs x=float16:2x4x7x7 w=float16:8x1x3x3 pad=1,1,1,1 groups=4",
    "conv2d_grad_wrt_inputs x=float32:2x3x5x5 w=float32:4x5x5x3x3x3 pad=1,1,1,1",
    "conv3d_grad_wrt_inputs x=float32:1x3x4x5x6 w=float32:40x3x2x3x2 pad=1,0,1,1,1,1 stride=1,2,2",
), ids=str)  # fmt: skip
def test_infinite_filters_meet_no_position_outside_the_gradient(line):
    """Zeros stand there for the product, and zero times infinity is NaN."""
    problem = cases.parse(line)
    inputs, old = cases.make_arrays(problem, 3)
    filters = next(a for a, s in zip(inputs, problem.inputs, strict=True) if s.shape == problem.w.shape)
    filters.flat[:: filters.size // 5] = np.inf
    trial = Trial(problem, inputs, old)
    with np.errstate(invalid="ignore"):
        assert np.isinf(trial.value).any() and np.isfinite(trial.value).any()
    for impl in (i for i in implementations(problem.op) if i.backend == "cpu" and not i.supports(problem, Policy())):
        row = judge(Row("", impl.name, "", "ok"), impl, Subject("", problem, trial), Policy(device=-1), timed=False)
        assert row.status == "ok", f"{impl.name}: {row.reason}"
