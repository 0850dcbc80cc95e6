"""cuDNN's facts on a real GPU: what each admitted engine computes, on which the binding's rules rely.

The contract tests compare the implementation that is chosen; here every engine that the rules let in is run: float32
must be IEEE float32 for all of them, a result must have the same bits twice, beta 0 must not read the output, and the
forms of a problem must agree with each other.
"""

from __future__ import annotations

import threading

import cudnn_sweep
import numpy as np
import pytest

from numbadnn import reference
from numbadnn.cudnn import conv, softmax
from numbadnn.cudnn.graph import forms as _forms
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import DIRECTIONS, ConvProblem
from numbadnn.problems.softmax import SoftmaxProblem
from numbadnn.registry import FAMILY

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

GPU = Policy(device=0)
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
#: unit roundoff of the stored type, and of the accumulator (tensor cores truncate: measured within 4 units of 2**-24)
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
ACCUMULATOR = {"float16": 2.0**-22, "bfloat16": 2.0**-22, "float32": 2.0**-24, "float64": 2.0**-53}


def tensor(spec, values=None):
    """A tensor of the spec's shape and strides on the device (positive strides)."""
    store = torch.full((spec.span[1] + 1,), float("nan"), dtype=DTYPES[spec.dtype], device="cuda")
    made = store.as_strided(spec.shape, spec.strides)
    if values is not None:
        made.copy_(torch.as_tensor(values))
    return made


def float64(t):
    return t.detach().cpu().double().numpy()


def problem_of(
    op, dtype, layout="", n=3, c=16, k=8, size=11, taps=3, padding=(1, 1), stride=1, dilation=1, groups=1, **rest
):
    out = (size + sum(padding) - ((taps - 1) * dilation + 1)) // stride + 1
    shapes = (n, c, size, size), (k, c // groups, taps, taps), (n, k, out, out)
    specs = rest.pop("specs", None) or [Spec.of(dtype, s, layout) for s in shapes]
    pads, strides, dilations = (padding,) * 2, (stride,) * 2, (dilation,) * 2
    return ConvProblem(op, *specs, pads, strides, dilations, groups=groups, **rest)


def run(problem, executable, tensors, old):
    """Execute on the current stream; the result as a fresh tensor."""
    out = tensor(problem.output, old)
    space = torch.empty(executable.workspace_bytes + 256, dtype=torch.uint8, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    executable.run(tuple(t.data_ptr() for t in tensors), (out.data_ptr(),), space.data_ptr(), stream)
    torch.cuda.synchronize()
    return out


def arguments(problem, inputs):
    sized = {
        "conv2d": (),
        "conv2d_grad_wrt_inputs": (problem.x.shape,),
        "conv2d_grad_wrt_weights": (problem.w.shape,),
    }
    words = dict(
        border_mode=problem.padding, subsample=problem.stride, filter_flip=problem.flip,
        filter_dilation=problem.dilation, num_groups=problem.groups, alpha=problem.alpha, beta=problem.beta,
    )  # fmt: skip
    return [float64(t) for t in inputs] + list(sized[problem.op]), words


def check(problem, policy=GPU, configs=None):
    """Every configuration against the reference, within the bound of its arithmetic; twice the same bits."""
    torch.manual_seed(1)
    inputs = [tensor(s, torch.randn(s.shape, dtype=torch.float64)) for s in problem.inputs]
    old = torch.randn(problem.output.shape, dtype=torch.float64) if problem.beta else None
    args, words = arguments(problem, inputs)
    if problem.beta:
        words["out"] = float64(tensor(problem.output, old))
    want = getattr(reference, problem.op)(*args, **words)
    magnitude = getattr(reference, problem.op + "_magnitude")(*args, **words)
    length = {"conv2d": problem.w.size // problem.w.shape[0], "conv2d_grad_wrt_inputs": problem.w.size,
              "conv2d_grad_wrt_weights": problem.y.size // problem.y.shape[1]}[problem.op]  # fmt: skip
    dtype, wrong = problem.x.dtype, []
    for config in configs or [None]:
        executable = conv.plan(problem, policy, config)
        got = run(problem, executable, inputs, old)
        again = run(problem, executable, inputs, old)
        slack = {"winograd": 64.0, "fft": 64.0}.get(executable.arithmetic, 1.0)
        bound = (length + 2) * ACCUMULATOR[dtype] * magnitude * slack + UNIT[dtype] * np.abs(want) * 1.01
        bound += {"float16": 2.0**-24}.get(dtype, 1e-300)  # where no tap reaches, 0 is exact and 0/0 is no error
        excess = float(np.max(np.abs(float64(got) - want) / bound))
        if not excess <= 1 or not torch.equal(got, again):
            wrong.append((executable.facts, executable.arithmetic, excess, bool(torch.equal(got, again))))
    assert not wrong, wrong


def admitted(problem, form, policy=GPU):
    """One configuration of each engine that the rules let in."""
    found = {}
    for entry in conv.form_options(problem, policy, form):
        if not entry["refusal"]:
            found.setdefault(entry["engine"], entry)
    return list(found.values())


SHAPES = {
    "3x3": {},
    "correlation": {"flip": False},
    "beta": {"alpha": 0.5, "beta": -1.25},
    "1x1": {"taps": 1, "padding": (0, 0)},
    "3 channels": {"c": 3, "k": 5},
    "groups": {"groups": 4},
    "depthwise": {"c": 8, "k": 8, "groups": 8},
    "strided, dilated": {"stride": 3, "dilation": 2, "padding": (2, 2), "size": 13},
    "wide padding": {"padding": (4, 4)},
    "untouched rows": {"stride": 4, "size": 13, "padding": (0, 0)},
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("dtype", "layout"), [
    ("float32", ""), ("float32", "nhwc"), ("float16", "nhwc"), ("float16", ""), ("bfloat16", "nhwc"), ("float64", ""),
])  # fmt: skip
@pytest.mark.parametrize("op", DIRECTIONS)
def test_every_admitted_engine(op, dtype, layout, name):
    problem = problem_of(op, dtype, layout, **SHAPES[name])
    if problem.beta and problem.x.itemsize == 2:
        assert "rounds twice" in conv.supports(problem, GPU)
        return
    configs = admitted(problem, next(_forms.forms(problem)))
    assert configs
    check(problem, configs=configs)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("op", DIRECTIONS)
def test_every_form_of_an_uneven_problem(op, dtype):
    problem = problem_of(op, dtype, padding=(2, 1), beta=0.0 if dtype == "float16" else 0.5)
    assert conv.supports(problem, GPU) == ""
    check(problem)
    for form in _forms.forms(problem):
        check(problem, configs=admitted(problem, form))


@pytest.mark.parametrize("op", DIRECTIONS)
def test_every_form_of_a_strided_problem(op):
    base = problem_of(op, "float32")
    n, _, h, w = base.x.shape
    x = Spec("float32", base.x.shape, (h * (w + 3), n * h * (w + 3), w + 3, 1))
    y = Spec("float32", base.y.shape, tuple(2 * s for s in base.y.strides))
    problem = problem_of(op, "float32", specs=[x, base.w, y], beta=1.0)
    for form in _forms.forms(problem):
        check(problem, configs=admitted(problem, form))


def test_tf32_is_seen_by_the_bound_of_ieee():
    """The check above would notice an engine that rounds float32 to TF32: this one does, by its option."""
    problem = problem_of("conv2d", "float32", n=32, c=64, k=64, size=28)
    tf32 = Policy(device=0, fp32_precision="tf32")
    configs = [c for c in admitted(problem, next(_forms.forms(problem)), tf32) if "TENSOR_CORE" in c["notes"]]
    assert configs
    with pytest.raises(AssertionError):
        check(problem, tf32, configs)


@pytest.mark.parametrize("op", ["conv2d", "conv2d_grad_wrt_inputs"])
def test_what_is_foretold_runs(op):
    """Where cuDNN is asked before it is ranked, its answer is the engine that it then takes, with the workspace there is."""
    found = {}
    for channels in (64, 128, 512):
        problem = problem_of(op, "float32", n=32, c=channels, k=channels, size=3584 // channels)
        for limit in (1 << 30, 0):
            policy = Policy(device=0, workspace_limit=limit)
            told = conv.foretell(problem, policy)
            planned = conv.plan(problem, policy, None)
            assert (told is not None) == (planned.arithmetic in ("fft", "winograd")), planned.facts
            found[channels, limit] = told
        assert conv.foretell(problem, Policy(device=0, fp32_precision="tf32")) is None
    assert any(told is not None for told in found.values()), "cuDNN names no engine by FFT or Winograd for any of these"


@pytest.mark.parametrize("op", ["conv2d", "conv2d_grad_wrt_inputs"])
def test_elementwise_leaves_out_every_engine_that_transforms(op):
    kinds = {"normwise": set(), "elementwise": set()}
    for channels in (64, 128, 512):
        problem = problem_of(op, "float32", n=32, c=channels, k=channels, size=3584 // channels)
        for accuracy, found in kinds.items():
            policy = Policy(device=0, accuracy=accuracy)
            configs = admitted(problem, next(_forms.forms(problem)), policy)
            found |= {conv.plan(problem, policy, config).arithmetic for config in configs}
        assert conv.foretell(problem, policy) is None
    assert kinds["elementwise"] == {"ieee"}
    assert kinds["normwise"] & {"fft", "winograd"}, "cuDNN names no engine by FFT or Winograd for any of these"


@pytest.mark.parametrize("op", [op for op in FAMILY if cudnn_sweep.impls_of(op)])
def test_what_is_admitted_the_library_never_refuses(op):
    """Layouts, dtypes, sizes and dilations in a random order, for a few seconds; ``cudnn_sweep.py`` runs longer."""
    counts, failures = cudnn_sweep.sweep(op, 6.0, seed=1)
    assert not failures, "\n".join(failures)
    assert sum(n for (*_, result), n in counts.items() if result == "") > 0


def test_three_spatial_axes():
    shapes = (2, 8, 5, 6, 7), (4, 8, 3, 3, 3), (2, 4, 5, 6, 7)
    specs = [Spec.of("float32", s) for s in shapes]
    x, w = (torch.randn(s, device="cuda") for s in shapes[:2])
    want = torch.nn.functional.conv3d(x.double(), w.double(), padding=1)
    problem = ConvProblem("conv2d", *specs, ((1, 1),) * 3, (1, 1, 1), (1, 1, 1), flip=False)
    assert conv.supports(problem, GPU) == ""
    got = run(problem, conv.plan(problem, GPU, None), (x, w), None)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-4)


def test_threads_and_streams():
    problem = problem_of("conv2d", "float32")
    x, w = (tensor(s, torch.randn(s.shape)) for s in problem.inputs)
    assert conv.supports(problem, GPU) == ""
    want = run(problem, conv.plan(problem, GPU, None), (x, w), None)
    got = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            executable = conv.plan(problem, GPU, None)
            for _ in range(20):
                got.append(run(problem, executable, (x, w), None))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(got) == 80
    assert all(torch.equal(g, want) for g in got)


@pytest.mark.parametrize("mode", ["channel", "instance"])
@pytest.mark.parametrize("algo", ["fast", "accurate", "log"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["", "nhwc", "strided", "rank 2"])
def test_softmax(layout, dtype, algo, mode):
    shape = (3, 40) if layout == "rank 2" else (3, 10, 7, 5)
    spec = Spec.of(dtype, shape, "nhwc" if layout == "nhwc" else "")
    if layout == "strided":
        spec = Spec(dtype, shape, (1000, 80, 10, 2))
    x = tensor(spec, 3 * torch.randn(shape))
    problem = SoftmaxProblem("softmax", y=spec, x=spec, algo=algo, mode=mode)
    refused = softmax.supports(problem, GPU)
    assert ("rounds twice" in refused) if spec.itemsize == 2 else not refused
    want = reference.softmax(float64(x), algo, mode)
    # a forward that is refused is not run: "fast" overflows float16 where x is above 11
    y = tensor(spec, torch.tensor(want)) if refused else run(problem, softmax.plan(problem, GPU, None), (x,), None)
    unit = UNIT[dtype]
    scale = np.abs(want) if algo != "log" else 1 + np.abs(want)
    tiny = 2.0**-24 if dtype == "float16" else 0.0
    error = np.abs(float64(y) - want) - tiny
    assert np.all(error <= (2 * unit + 200 * max(ACCUMULATOR[dtype] / 4, 2.0**-53)) * scale), float(error.max())
    dy = tensor(spec, torch.randn(shape))
    problem = SoftmaxProblem("softmax_grad", y=spec, dy=spec, dx=spec, algo=algo, mode=mode)
    assert softmax.supports(problem, GPU) == ""
    dx = run(problem, softmax.plan(problem, GPU, None), (dy, y), None)
    want = reference.softmax_grad(float64(dy), float64(y), algo, mode)
    reach = np.abs(float64(dy)).sum() * max(ACCUMULATOR[dtype] / 4, 2.0**-53) * 4
    assert np.all(np.abs(float64(dx) - want) <= 2 * unit * np.abs(want) + reach + tiny)


@pytest.mark.parametrize("algo", ["accurate", "log"])
def test_softmax_of_infinities(algo):
    x_spec = Spec.of("float32", (2, 3, 4, 5))
    values = torch.randn((2, 3, 4, 5))
    values[0, 0, 0, 0], values[0, 1, 1, 1], values[0, :2, 2, 2] = float("nan"), float("inf"), -float("inf")
    values[0, 0, 3, 3] = -float("inf")
    x = tensor(x_spec, values)
    uneven = SoftmaxProblem("softmax", y=Spec.of("float32", (2, 3, 4, 5), "nhwc"), x=x_spec, algo=algo)
    assert "same strides" in softmax.supports(uneven, GPU)
    problem = SoftmaxProblem("softmax", y=x_spec, x=x_spec, algo=algo)
    y = run(problem, softmax.plan(problem, GPU, None), (x,), None)
    want = reference.softmax(float64(x), algo, "channel")
    np.testing.assert_allclose(float64(y), want, rtol=1e-5, atol=1e-6)
