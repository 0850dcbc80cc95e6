"""cudnn.graph from problem to numbers without a GPU: every form through the fake library, against the reference.

The fake takes packed operands and even padding only, as cuDNN does, so uneven padding, odd strides and turned filters
must be copied for it; its engines scribble over their workspace, and every buffer is guarded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
import threading
import types

import ml_dtypes
import numpy as np
import pytest
from fake_cudnn import EXECUTION_FAILED, FakeCudnn, engine, view

from numbadnn import reference
from numbadnn.cudnn import algorithms, conv
from numbadnn.cudnn._enums import DescriptorType, NumericalNote
from numbadnn.cudnn.graph import descriptors as _descriptors
from numbadnn.cudnn.graph import estimate as _estimate
from numbadnn.cudnn.graph import forms as _forms
from numbadnn.errors import CudnnError, NotSupportedError
from numbadnn.kept import shipped_errata
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import DIRECTIONS, ConvProblem

GPU = Policy(device=0)
NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
copied = []


def plan_copy(src, dst, offset, device):
    """dst[i] = src[i - offset], 0 outside, on host memory; src and dst may have negative strides."""
    assert device == 0

    def step(source, target, stream):
        copied.append((src, dst, offset))
        inside, outside = host(src, source), host(dst, target)
        outside[...] = 0
        low = [max(o, 0) for o in offset]
        high = [min(n, m + o) for n, m, o in zip(dst.shape, src.shape, offset, strict=True)]
        to = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
        of = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, offset, strict=True))
        outside[to] = inside[of]

    return step


def host(spec, address):
    """The array a spec describes at an address, any strides."""
    low, high = spec.span
    size = spec.itemsize
    dtype = np.dtype(NUMPY[spec.dtype])
    flat = view(address + low * size, dtype, (high - low + 1,), (1,))
    return np.lib.stride_tricks.as_strided(flat[-low:], spec.shape, [s * size for s in spec.strides], writeable=True)


@pytest.fixture
def fake(monkeypatch):
    copied.clear()
    monkeypatch.setitem(sys.modules, "numbadnn.kernels.copies.copy", types.SimpleNamespace(plan_copy=plan_copy))
    made = FakeCudnn([engine(workspace=300)]).install(monkeypatch)
    yield made
    assert not made.problems


def operand(spec, rng, fill=None):
    """(address, keeper, array): memory for a spec with its lowest element 16-byte aligned or, if unaligned, not."""
    low, high = spec.span
    store = np.zeros((high - low + 1) * spec.itemsize + 64, np.uint8)
    start = (-store.ctypes.data) % 16 + (0 if spec.aligned else spec.itemsize)
    address = store.ctypes.data + start - low * spec.itemsize
    array = host(spec, address)
    array[...] = rng.integers(-3, 4, spec.shape) if fill is None else fill
    return address, store, array


def compute(problem, policy=GPU, config=None):
    """Plan and run with guarded, NaN-filled workspace and output; (result, old output, inputs, executable)."""
    assert conv.supports(problem, policy) == ""
    executable = conv.plan(problem, policy, config)
    rng = np.random.default_rng(5)
    inputs = [operand(s, rng) for s in problem.inputs]
    before = [a.copy() for _, _, a in inputs]
    out = operand(problem.output, rng, None if problem.beta else np.nan)
    old = out[2].copy()
    space = np.full(executable.workspace_bytes + 256 + 64, 0xFF, np.uint8)
    base = space.ctypes.data + (-space.ctypes.data) % 256
    executable.run(tuple(a for a, _, _ in inputs), (out[0],), base, 0)
    end = base - space.ctypes.data + executable.workspace_bytes
    assert (space[end:] == 0xFF).all(), "written behind the workspace"
    for (_, _, array), kept in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(array, kept)
    return out[2].copy(), old, before, executable


def expected(problem, inputs, old):
    x_shape, w_shape = problem.x.shape, problem.w.shape
    extra = {
        "conv2d": (),
        "conv2d_grad_wrt_inputs": (x_shape,),
        "conv2d_grad_wrt_weights": (w_shape,),
    }[problem.op]
    return getattr(reference, problem.op)(
        *[a.astype(np.float64) for a in inputs],
        *extra,
        border_mode=problem.padding,
        subsample=problem.stride,
        filter_flip=problem.flip,
        filter_dilation=problem.dilation,
        num_groups=problem.groups,
        alpha=problem.alpha,
        beta=problem.beta,
        out=old.astype(np.float64) if problem.beta else None,
    )


def problem_of(
    op="conv2d", dtype="float32", padding=((1, 1), (1, 1)), stride=(1, 1), dilation=(1, 1), groups=1, layout="", **rest
):
    n, c, k, (h, w), (r, s) = 2, 4, 6, (7, 8), (3, 2)
    out = [
        (size + low + high - ((taps - 1) * d + 1)) // step + 1
        for size, taps, (low, high), d, step in zip((h, w), (r, s), padding, dilation, stride, strict=True)
    ]
    shapes = (n, c, h, w), (k, c // groups, r, s), (n, k, *out)
    specs = rest.pop("specs", None) or [Spec.of(dtype, shape, layout) for shape in shapes]
    return ConvProblem(op, *specs, padding, stride, dilation, groups=groups, **rest)


def strided(spec):
    """The same shape with a hole behind each row and the channels outermost."""
    n, _, h, w = spec.shape
    return Spec(spec.dtype, spec.shape, (h * (w + 3), n * h * (w + 3), w + 3, 1))


VARIATIONS = {
    "plain": {},
    "correlation": {"flip": False},
    "uneven padding": {"padding": ((2, 0), (0, 1))},
    "strided, dilated": {"stride": (2, 3), "dilation": (2, 1)},
    "groups": {"groups": 2},
    "alpha, beta": {"alpha": 0.5, "beta": -2.0},
    "nhwc": {"layout": "nhwc"},
    "float64": {"dtype": "float64", "alpha": 2.0},
    "float16": {"dtype": "float16"},
    "bfloat16 nhwc uneven": {"dtype": "bfloat16", "layout": "nhwc", "padding": ((0, 1), (2, 0))},
}


@pytest.mark.parametrize("op", DIRECTIONS)
@pytest.mark.parametrize("variation", VARIATIONS)
def test_equals_the_reference(fake, op, variation):
    problem = problem_of(op, **VARIATIONS[variation])
    result, old, inputs, executable = compute(problem)
    np.testing.assert_array_equal(result.astype(np.float64), expected(problem, inputs, old))
    pads = op != "conv2d_grad_wrt_inputs" and not problem.symmetric
    crops = op == "conv2d_grad_wrt_inputs" and not problem.symmetric
    assert len(executable.facts["copies"]) == len(copied) == pads + crops * (2 if problem.beta else 1)
    assert executable.arithmetic == ("tensor_core" if problem.x.itemsize == 2 else "ieee")


@pytest.mark.parametrize("op", DIRECTIONS)
@pytest.mark.parametrize("which", list(itertools.product((False, True), repeat=3)), ids=str)
def test_strides_that_cudnn_does_not_know_are_packed(fake, op, which):
    base = problem_of(op)
    specs = [strided(s) if odd else s for s, odd in zip((base.x, base.w, base.y), which, strict=True)]
    problem = problem_of(op, specs=specs, beta=1.0)
    result, old, inputs, executable = compute(problem)
    np.testing.assert_array_equal(result.astype(np.float64), expected(problem, inputs, old))
    # an output that is read as well is copied both ways
    output = DIRECTIONS[op][1]
    steps = sum(2 if name == output else 1 for name, odd in zip(("x", "w", "y"), which, strict=True) if odd)
    assert len(executable.facts["copies"]) == steps == len(copied)


@pytest.mark.parametrize("op", DIRECTIONS)
def test_broadcast_and_reversed_inputs(fake, op):
    base = problem_of(op)
    first = DIRECTIONS[op][0][0]
    spec = getattr(base, first)
    *_, h, w = spec.shape
    odd = Spec(spec.dtype, spec.shape, (0, h * w, w, -1))
    specs = [odd if name == first else getattr(base, name) for name in ("x", "w", "y")]
    problem = problem_of(op, specs=specs)
    result, old, inputs, _ = compute(problem)
    np.testing.assert_array_equal(result.astype(np.float64), expected(problem, inputs, old))


@pytest.mark.parametrize("op", DIRECTIONS)
@pytest.mark.parametrize("beta", [0.0, -1.0])
def test_filters_are_turned_where_no_engine_does_true_convolution(fake, op, beta):
    fake.engines = [engine(correlation_only=True, workspace=64)]
    problem = problem_of(op, padding=((0, 1), (1, 1)), beta=beta)
    result, old, inputs, executable = compute(problem)
    np.testing.assert_array_equal(result.astype(np.float64), expected(problem, inputs, old))
    assert executable.facts["form"] == "nchw-turned"
    assert any("turned" in line for line in executable.facts["copies"])


def test_a_one_by_one_filter_needs_no_turning(fake):
    problem = ConvProblem(
        "conv2d", Spec.of("float32", (1, 2, 3, 3)), Spec.of("float32", (2, 2, 1, 1)), Spec.of("float32", (1, 2, 3, 3)),
        ((0, 0), (0, 0)),
    )  # fmt: skip
    assert [f.name for f in _forms.forms(problem)] == ["nchw", "nhwc"]
    assert not next(_forms.forms(problem)).problem.flip


@pytest.mark.parametrize("op", DIRECTIONS)
def test_three_spatial_axes(fake, op):
    shapes = (2, 2, 4, 5, 3), (3, 2, 2, 3, 1), (2, 3, 4, 3, 3)
    problem = ConvProblem(
        op, *[Spec.of("float64", s) for s in shapes], ((1, 0), (0, 0), (0, 0)), (1, 1, 1), (1, 1, 1), flip=True
    )
    result, _, inputs, _ = compute(problem)
    operands = dict(zip(DIRECTIONS[op][0], inputs, strict=True))
    full = {n: operands.get(n, np.zeros(s)) for n, s in zip(("x", "w", "y"), shapes, strict=True)}
    want = np.zeros(getattr(problem, DIRECTIONS[op][1]).shape)
    padded = np.pad(full["x"], ((0, 0), (0, 0), (1, 0), (0, 0), (0, 0)))
    gradient = np.zeros_like(padded)
    for n, k, c, p, q, o, a, b in np.ndindex(2, 3, 2, 4, 3, 3, 2, 3):
        at, tap = (n, c, p + a, q + b, o), (k, c, 1 - a, 2 - b, 0)
        if op == "conv2d":
            want[n, k, p, q, o] += padded[at] * full["w"][tap]
        elif op == "conv2d_grad_wrt_weights":
            want[tap] += padded[at] * full["y"][n, k, p, q, o]
        else:
            gradient[at] += full["w"][tap] * full["y"][n, k, p, q, o]
    if op == "conv2d_grad_wrt_inputs":
        want = gradient[:, :, 1:]
    np.testing.assert_array_equal(result, want)


def test_unaligned_operands_are_promised_less_and_copied_only_if_needed(fake):
    base = problem_of()
    odd = [Spec(s.dtype, s.shape, s.strides, aligned=False) for s in (base.x, base.w, base.y)]
    problem = problem_of(specs=odd)
    result, old, inputs, executable = compute(problem)  # the fake's memory() checks the promise
    np.testing.assert_array_equal(result, expected(problem, inputs, old))
    assert executable.facts["copies"] == []
    assert [f.name for f in _forms.forms(problem)][:2] == ["nchw", "nchw-aligned"]
    assert [b.name for b in list(_forms.forms(problem))[1].buffers] == ["x", "w", "y"]


def test_options_go_on_to_the_form_that_serves(fake):
    fake.engines = [engine(3, correlation_only=True), engine(4, notes=(NumericalNote.NONDETERMINISTIC,))]
    listed = conv.options(problem_of(), GPU)
    assert [(o["form"], o["engine"], bool(o["refusal"])) for o in listed] == [
        ("nchw", 4, True), ("nchw-turned", 3, False), ("nchw-turned", 4, True),
    ]  # fmt: skip


def test_uneven_padding_is_never_left_to_cudnn():
    for form in _forms.forms(problem_of(padding=((1, 0), (0, 0)))):
        assert form.problem.symmetric and any(b.name == "x" for b in form.buffers)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_beta_is_refused_because_it_rounds_twice(fake, dtype):
    assert "rounds twice" in conv.supports(problem_of(dtype=dtype, beta=0.5), GPU)


def test_an_engine_measured_wrong_is_refused_with_the_evidence(fake):
    """Of the shipped errata, for the versions that have it."""
    ops = {"forward": "conv2d", "grad_inputs": "conv2d_grad_wrt_inputs", "grad_weights": "conv2d_grad_wrt_weights"}
    known = [e for e in shipped_errata.entries() if e.effect == "refused" and e.engine is not None]
    assert len(known) >= 10
    for entry in known:
        (direction,), dtypes = entry.where["direction"], entry.where["dtype"]
        knobs = {int(kind): values[0] for kind, values in entry.knobs.items()}
        for dtype in dtypes:
            fake.engines = [engine(entry.engine, knobs=knobs), engine(4)]
            refused = {o["engine"]: o["refusal"] for o in conv.options(problem_of(ops[direction], dtype), GPU)}
            assert f"measured wrong: {entry.id}" in refused[entry.engine] and not refused[4]
        fake.library.version = 80900  # before cuDNN 9: nobody knows
        assert not any(o["refusal"] for o in conv.options(problem_of(ops[direction], dtype), GPU))
        fake.library.version = 91900


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    "number, op, halves", [(58, "conv2d", 2), (62, "conv2d_grad_wrt_weights", 1), (63, "conv2d_grad_wrt_inputs", 2)]
)
def test_an_engine_wrong_in_one_setting_runs_in_another(fake, dtype, number, op, halves):
    """These round sums of slices to 16 bits where their workspace is to be small (knob 25; in float16 up to ``halves``)."""
    fake.engines = [engine(number, (NumericalNote.TENSOR_CORE,), knobs={25: setting}) for setting in (1, 2, 0)]
    policy = dataclasses.replace(GPU, fp32_precision="tf32")
    listed = conv.options(problem_of(op, dtype), policy)
    refused = [o["knobs"][25] for o in listed if f"engine-{number}-rounded" in o["refusal"]]
    assert len(listed) == 3
    assert refused == {"float32": [], "bfloat16": [1], "float16": [1, 2][:halves]}[dtype]
    chosen = conv.plan(problem_of(op, dtype), policy, None)
    assert chosen.facts["knobs"][25] == {0: 1, 1: 2, 2: 0}[len(refused)]
    with pytest.raises(NotSupportedError, match=f"engine-{number}") if refused else contextlib.nullcontext():
        conv.plan(problem_of(op, dtype), policy, {"form": listed[0]["form"], "engine": number, "knobs": {25: 1}})


@pytest.mark.parametrize("layout, padding", [("", 0), ("", 1), ("nhwc", 0)])
def test_a_whole_gradient_of_nchw_images_in_halves_turns_the_filter(fake, layout, padding):
    """Whichever engine convolves there without padding was up to 27 times over the bound; the turned filter is another form."""
    fake.engines = [engine(1)]
    specs = [
        Spec.of("float16", shape, layout)
        for shape in ((2, 4, 9, 8), (6, 4, 3, 3), (2, 6, 7 + 2 * padding, 6 + 2 * padding))
    ]
    pairs = ((padding, padding),) * 2
    listed = conv.options(problem_of("conv2d_grad_wrt_inputs", "float16", pairs, specs=specs, flip=True), GPU)
    refused = {o["form"] for o in listed if "nchw-convolution-of-the-whole-gradient" in o["refusal"]}
    assert refused == ({"nchw"} if (layout, padding) == ("", 0) else set())
    chosen = conv.plan(problem_of("conv2d_grad_wrt_inputs", "float16", pairs, specs=specs, flip=True), GPU, None)
    assert chosen.facts["form"] == {("", 0): "nchw-turned", ("", 1): "nchw", ("nhwc", 0): "nhwc"}[layout, padding]


@pytest.mark.parametrize("dtype, channels, groups, size, taken", [
    ("float16", 12, 3, 1, False), ("bfloat16", 12, 3, 1, False), ("float32", 12, 3, 1, True),
    ("float16", 24, 3, 1, True), ("float16", 12, 1, 1, True), ("float16", 12, 3, 2, True),
])  # fmt: skip
def test_nothing_is_written_past_one_pixel_of_odd_groups(dtype, channels, groups, size, taken):
    shapes = (1, channels, 2 + size, 2 + size), (channels, channels // groups, 3, 3), (1, channels, size, size)
    problem = ConvProblem("conv2d", *(Spec.of(dtype, s) for s in shapes), ((0, 0), (0, 0)), groups=groups)
    assert ("past one pixel" in conv.supports(problem, GPU)) != taken


def test_a_plan_used_under_capture_is_kept_for_good(fake):
    from numbadnn.cudnn import _shim

    before = len(_shim.PINNED)
    compute(problem_of())
    assert len(_shim.PINNED) == before
    fake.capturing = 1
    compute(problem_of())
    assert len(_shim.PINNED) == before + 1


def test_workspace_limit_counts_the_copies(fake):
    problem = problem_of(padding=((1, 0), (0, 0)))
    total = compute(problem)[3].workspace_bytes
    assert total == 512 + next(_forms.forms(problem)).buffer_bytes
    assert conv.supports(problem, Policy(device=0, workspace_limit=total)) == ""
    reason = conv.supports(problem, Policy(device=0, workspace_limit=400))
    assert "copies of" in reason and "400 are allowed" in reason


def test_plan_without_supports_in_another_thread_has_its_own_handle(fake):
    problem = problem_of()
    compute(problem)
    out = []
    thread = threading.Thread(target=lambda: out.append(conv.plan(problem, GPU, None)))
    thread.start()
    thread.join()
    assert len(out) == 1
    assert fake.names().count("cudnnCreate") == 2


def test_the_streams_are_set_only_when_they_change(fake):
    problem = problem_of()
    executable = conv.plan(problem, GPU, None)
    rng = np.random.default_rng(1)
    x, w, y = (operand(s, rng) for s in (problem.x, problem.w, problem.y))
    space = np.zeros(1024, np.uint8)
    for stream in (0, 0, 7, 7, 7, 0):
        executable.run((x[0], w[0]), (y[0],), space.ctypes.data, stream)
    assert [call[2] for call in fake.calls if call[0] == "cudnnSetStream"] == [None, 7, None]


def test_a_stored_choice_is_built_without_heuristics(fake):
    fake.engines = [engine(3, knobs={2: 5}), engine(8, knobs={1: 4, 12: 2})]
    problem = problem_of()
    listed = conv.options(problem, GPU)
    assert [(o["form"], o["engine"], o["refusal"]) for o in listed] == [("nchw", 3, ""), ("nchw", 8, "")]
    fake.calls.clear()
    executable = conv.plan(problem, GPU, listed[1])
    assert executable.facts["engine"] == 8
    assert executable.facts["knobs"] == {1: 4, 12: 2}
    assert 4 not in [call[1] for call in fake.calls if call[0] == "cudnnBackendCreateDescriptor"]
    with pytest.raises(ValueError, match="form: expected one of nchw"):
        conv.plan(problem, GPU, {**listed[1], "form": "nope"})


def test_refusals_say_why(fake):
    problem = problem_of()
    assert "algorithm named 'fft'" in conv.supports(problem, Policy(device=0, algo="fft"))
    assert "float64" in conv.supports(problem, Policy(device=0, precision="float64"))
    assert "float16" in conv.supports(problem, Policy(device=0, precision="float16"))
    assert "batch_invariant" in conv.supports(problem, Policy(device=0, determinism="batch_invariant"))
    assert not fake.calls, "refused without asking cuDNN"
    fake.engines = [engine(4, notes=(NumericalNote.TENSOR_CORE,))]
    assert "TENSOR_CORE: not IEEE float32" in conv.supports(problem, GPU)
    with pytest.raises(NotSupportedError, match="engine 4: TENSOR_CORE"):
        conv.plan(problem, GPU, None)
    executable = conv.plan(problem, Policy(device=0, fp32_precision="tf32"), None)
    assert executable.arithmetic == "tf32_cut"


def test_an_error_in_execution_is_a_cudnn_error_with_its_message(fake):
    problem = problem_of()
    executable = conv.plan(problem, GPU, None)
    fake.failing["cudnnBackendExecute"] = EXECUTION_FAILED
    space = np.zeros(1024, np.uint8)
    message = r"conv2d: cudnnBackendExecute: CUDNN_STATUS_5000 \(5000\): the fake"
    with pytest.raises(CudnnError, match=message) as caught:
        executable.run((0, 0), (0,), space.ctypes.data, 0)
    assert caught.value.status == EXECUTION_FAILED


def test_descriptors_die_with_the_executable(fake):
    import gc

    executable = conv.plan(problem_of(), GPU, None)
    assert fake.items
    del executable
    gc.collect()
    assert not fake.items


def test_a_stored_engine_that_this_cudnn_has_not_is_a_refusal(fake):
    stored = conv.options(problem_of(), GPU)[0]
    with pytest.raises(NotSupportedError, match="no engine 67 so"):
        conv.plan(problem_of(), GPU, {**stored, "engine": 67})


def test_an_engine_that_transforms_is_foretold_where_it_would_run(fake):
    shapes = (32, 128, 28, 28), (128, 128, 3, 3), (32, 128, 28, 28)
    problem = problem_of(specs=[Spec.of("float32", s) for s in shapes])
    fake.engines = [engine(3, notes=(NumericalNote.FFT,), workspace=1000), engine(0)]
    assert conv.foretell(problem, GPU) == _estimate.transformed(problem) < conv.rank(problem)
    assert conv.plan(problem, GPU, None).arithmetic == "fft"
    small = Policy(device=0, workspace_limit=999)  # the engine that is left does not transform
    assert conv.foretell(problem, small) is None
    assert conv.plan(problem, small, None).facts["engine"] == 0
    fake.calls.clear()
    for other in (problem_of(stride=(2, 2)), problem_of("conv2d_grad_wrt_weights"), problem_of(dtype="float16")):
        assert conv.foretell(other, GPU) is None
    assert conv.foretell(problem, Policy(device=0, fp32_precision="tf32")) is None
    assert not fake.calls, "asked where no answer would be believed"


def test_what_a_limit_leaves_to_an_engine_is_what_it_takes_with_the_copies_behind_it():
    problem = ConvProblem.parse("conv2d x=float32:2x3x5x5:75,25,5,1:unaligned w=float32:4x3x3x3 pad=1,0,1,0")
    some = [f for f in _forms.forms(problem) if f.buffers]
    assert some
    for form in some[:4]:
        for over in (-300, -1, 0, 1, 255, 256, 257, 1000):
            room = form.room(form.buffer_bytes + over)
            assert room % _forms.BUFFER_ALIGNMENT == 0 and room <= over < room + _forms.BUFFER_ALIGNMENT
    plain = next(
        f for f in _forms.forms(ConvProblem.parse("conv2d x=float32:2x3x5x5 w=float32:4x3x3x3")) if not f.buffers
    )
    assert plain.room(1001) == 1001


@pytest.mark.parametrize("op", DIRECTIONS)
def test_a_step_between_the_taps_of_one_tap_is_not_cudnns_business(fake, op):
    """cuDNN 9.19 failed over a dilation of 2**31 where the filter has one tap, which reads the same pixels for any."""
    shapes = (2, 4, 7, 8), (6, 4, 1, 2), (2, 6, 7, 4)
    specs = [Spec.of("float32", s) for s in shapes]
    problem = ConvProblem(op, *specs, ((0, 0), (0, 0)), (1, 1), (2**33, 4))
    told = next(_forms.forms(problem)).problem
    assert told.dilation == (1, 4)
    result, old, inputs, _ = compute(problem)
    same = ConvProblem(op, *specs, ((0, 0), (0, 0)), (1, 1), (1, 4))
    np.testing.assert_array_equal(result.astype(np.float64), expected(same, inputs, old))


@pytest.mark.parametrize(("taps", "pads", "stride", "dilation", "says"), [
    (2, (2**31, 0), 1, 2**31, "padded image has 2147483652"), (2, (2**30, 2**30), 1, 2**31 - 1, "image has"),
    (1, (0, 0), 2**31, 1, "stride has"), (2, (1000, 1000), 1, 1000, ""),
])  # fmt: skip
def test_what_cudnn_cannot_count_is_refused(fake, taps, pads, stride, dilation, says):
    """Plans for it are built; they fail with CUDNN_STATUS_INTERNAL_ERROR where they run."""
    rows = (4 + sum(pads) - ((taps - 1) * dilation + 1)) // stride + 1
    specs = [Spec.of("float32", s) for s in ((1, 2, 4, 5), (3, 2, taps, 1), (1, 3, rows, 5))]
    problem = ConvProblem("conv2d", *specs, (pads, (0, 0)), (stride, 1), (dilation, 1))
    for refused in (conv.supports(problem, GPU), algorithms._static_refusal(problem, Policy(device=0, algo="none"))):
        assert says in refused if says else refused == ""


@pytest.mark.parametrize("status", [2000, 3000, 4000, 4002])
def test_a_question_that_cudnn_fails_over_is_a_refusal(fake, monkeypatch, status):
    make = _descriptors.make

    def failing(library, kind, attributes):
        if kind == DescriptorType.ENGINEHEUR:
            raise CudnnError(f"ENGINEHEUR: {status}", status)
        return make(library, kind, attributes)

    monkeypatch.setattr(_descriptors, "make", failing)
    refused = conv.supports(problem_of(), GPU)
    assert "has no admissible engine" in refused and (status == 3000 or f"ENGINEHEUR: {status}" in refused)


def test_lack_of_memory_while_cudnn_is_asked_is_no_refusal(fake, monkeypatch):
    def failing(library, kind, attributes):
        raise CudnnError("host allocation", 4003)

    monkeypatch.setattr(_descriptors, "make", failing)
    with pytest.raises(CudnnError, match="host allocation"):
        conv.supports(problem_of(), GPU)
