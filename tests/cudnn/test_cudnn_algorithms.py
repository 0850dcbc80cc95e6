"""cuDNN's convolution algorithms by name: what each direction has, what is refused and why, and on a GPU what they compute."""

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

import numbadnn
from numbadnn import cases, config
from numbadnn.call import select
from numbadnn.cudnn import _conv_calls, algorithms, lib
from numbadnn.errors import DeterminismError, NotSupportedError
from numbadnn.gpu import context as _context
from numbadnn.problem import Policy
from numbadnn.problems.conv import OPERATIONS
from numbadnn.registry import implementations
from numbadnn.validate.check import Row, Subject, judge

PLANE = "x={t}:4x16x12x12 w={t}:16x16x3x3 pad=1,1,1,1 flip=0"
SPACE = "x={t}:2x8x6x7x8 w={t}:8x8x3x3x3 pad=1,1,1,1,1,1 flip=0"
OPS = [f"conv{n}d{direction}" for n in (2, 3) for direction in ("", "_grad_wrt_inputs", "_grad_wrt_weights")]


def problem_of(op: str, dtype: str = "float32", more: str = "") -> Any:
    return cases.parse(f"{op} {(PLANE if op.startswith('conv2d') else SPACE).format(t=dtype)} {more}".strip())


def reason(op: str, algo: str, dtype: str = "float32", **policy: Any) -> str:
    return algorithms._static_refusal(problem_of(op, dtype), Policy(device=0, algo=algo, **policy))


def test_the_names_are_theanos() -> None:
    names = {stem: set(call.algorithms) for stem, call in _conv_calls.CALLS.items()}
    both = {"none", "fft", "fft_tiling", "winograd_non_fused"}
    assert names["forward"] == both | {"small", "large", "winograd"}
    assert names["grad_inputs"] == both | {"deterministic", "winograd"}
    assert names["grad_weights"] == both | {"deterministic", "small"}


#: the table of the specification's names, by cuDNN's
THEANOS = {
    "forward": {
        "none": "IMPLICIT_GEMM", "small": "IMPLICIT_PRECOMP_GEMM", "large": "GEMM", "fft": "FFT", "fft_tiling": "FFT_TILING",
        "winograd": "WINOGRAD", "winograd_non_fused": "WINOGRAD_NONFUSED",
    },
    "grad_inputs": {
        "none": "ALGO_0", "deterministic": "ALGO_1", "fft": "ALGO_FFT", "fft_tiling": "ALGO_FFT_TILING",
        "winograd": "ALGO_WINOGRAD", "winograd_non_fused": "ALGO_WINOGRAD_NONFUSED",
    },
    "grad_weights": {
        "none": "ALGO_0", "deterministic": "ALGO_1", "small": "ALGO_3", "fft": "ALGO_FFT", "fft_tiling": "ALGO_FFT_TILING",
        "winograd_non_fused": "ALGO_WINOGRAD_NONFUSED",
    },
}  # fmt: skip
IN_3D = {
    "forward": {"none", "small", "fft_tiling"}, "grad_inputs": {"none", "deterministic", "fft_tiling"},
    "grad_weights": {"none", "small"},
}  # fmt: skip
RUN_TO_RUN = {"forward": set(THEANOS["forward"]), "grad_inputs": set(THEANOS["grad_inputs"]) - {"none"},
              "grad_weights": {"deterministic", "fft", "winograd_non_fused", "fft_tiling"}}  # fmt: skip


@pytest.mark.parametrize("direction", THEANOS)
def test_each_name_is_the_algorithm_that_theano_ran(direction: str) -> None:
    call = _conv_calls.CALLS[direction]
    assert {name: a.name for name, a in call.algorithms.items()} == THEANOS[direction]  # type: ignore[attr-defined]
    assert set(call.in_3d) == IN_3D[direction]
    assert {name for name, a in call.algorithms.items() if a in call.deterministic} == RUN_TO_RUN[direction]


@pytest.mark.parametrize("op", OPS)
def test_a_name_of_another_direction_or_of_two_axes_is_refused(op: str) -> None:
    impl = next(i for i in implementations(op, ["cudnn"]) if i.name == "cudnn.algorithms")
    assert "runs an algorithm that is named" in impl.supports(problem_of(op, "float32"), Policy(device=0))
    assert ("has no algorithm" in reason(op, "deterministic")) == (op in ("conv2d", "conv3d"))
    assert ("two spatial axes" in reason(op, "fft")) == op.startswith("conv3d")
    assert reason(op, "none") == reason(op, "time_once") == ""


def test_precision_is_the_type_of_the_sums() -> None:
    for precision, kind in (("as_input_f32", "FLOAT"), ("as_input", "HALF"), ("float32", "FLOAT"), ("float16", "HALF")):
        found, why = algorithms.compute_type(problem_of("conv2d", "float16"), Policy(precision=precision))
        assert (found.name, why) == (kind, "")
    for op in ("conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights"):
        assert "Float16 precision is disabled" in reason(op, "deterministic", "float16", precision="float16")
        assert reason(op, "deterministic", "float16") == ""
        assert "rounded to float16" in reason(op, "none", "float16")
    assert "in float64" in reason(op, "none", "float32", precision="float64")
    assert "in float32" in reason(op, "none", "float64", precision="float32")


def test_a_named_algorithm_beats_the_default_level_and_not_the_users() -> None:
    op = "conv2d_grad_wrt_weights"
    assert reason(op, "none") == ""
    with numbadnn.using(determinism="run_to_run"):
        assert reason(op, "deterministic") == ""
        with pytest.raises(DeterminismError, match=r"algo='none'.*determinism='run_to_run'"):
            reason(op, "none")
    with numbadnn.using(determinism="not_guaranteed"):
        assert reason(op, "none", determinism="not_guaranteed") == ""


def test_once_keeps_nothing_that_the_level_in_force_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    op, algo = "conv2d_grad_wrt_weights", "guess_once"
    call = _conv_calls.call_of(op)
    atomic, ordered = int(call.algorithms["none"]), int(call.algorithms["deterministic"])
    monkeypatch.setattr(algorithms, "_ONCE", {(op, algo): atomic})  # kept while the level was not_guaranteed
    ranking = [SimpleNamespace(algo=atomic, determinism=0), SimpleNamespace(algo=ordered, determinism=1)]
    monkeypatch.setattr(algorithms, "ranked", lambda *more: ranking)

    def tried(level: str, dtype: str = "float32") -> list[int]:
        policy = Policy(algo=algo, determinism=level)
        return list(algorithms._algorithms(None, 0, call, problem_of(op, dtype), policy, (), False))  # type: ignore[arg-type]

    assert tried("not_guaranteed") == [atomic, ordered]
    assert tried("run_to_run") == [ordered]
    assert tried("not_guaranteed", "float16") == [ordered]  # kept by a call of another type


def test_nothing_is_timed_where_what_is_kept_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(*more: Any) -> Any:
        raise AssertionError("cuDNN was asked to time its algorithms")

    call, problem = _conv_calls.call_of("conv2d"), problem_of("conv2d")
    monkeypatch.setattr(algorithms, "ranked", timed)
    for algo in algorithms.RUNTIME:
        policy = Policy(algo=algo)
        monkeypatch.setattr(algorithms, "_ONCE", {("conv2d", algo): 1})
        monkeypatch.setattr(algorithms, "_CHOSEN", {(problem, policy): ("nhwc", 1)})
        tried = algorithms._algorithms(None, 0, call, problem, policy, (), True)  # type: ignore[arg-type]
        assert next(tried) == 1
        with pytest.raises(AssertionError, match="was asked"):
            next(tried)
    numbadnn.clear_caches()
    assert not algorithms._ONCE and not algorithms._CHOSEN


def test_the_form_that_was_chosen_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the forms before it would be timed again."""
    asked: list[str] = []
    problem, policy = problem_of("conv2d"), Policy(device=0, algo="time_on_shape_change")

    def form(name: str) -> Any:
        return SimpleNamespace(name=name, problem=SimpleNamespace(name=name), room=lambda limit: limit)

    monkeypatch.setattr(lib, "load", lambda: SimpleNamespace(version=0))
    monkeypatch.setattr(lib, "handle", lambda library, device: SimpleNamespace(value=0, set_stream=lambda stream: None))
    monkeypatch.setattr(_context, "ensure_context", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(algorithms, "forms", lambda problem: map(form, ("nchw", "nhwc", "copied")))
    monkeypatch.setattr(algorithms, "_descriptors", lambda library, call, problem, policy: asked.append(problem.name))
    monkeypatch.setattr(algorithms, "_algorithms", lambda *more: iter(()))
    for chosen, order in (
        ({}, ["nchw", "nhwc", "copied"]),
        ({(problem, policy): ("nhwc", 1)}, ["nhwc", "nchw", "copied"]),
    ):
        asked.clear()
        monkeypatch.setattr(algorithms, "_CHOSEN", chosen)
        with pytest.raises(NotSupportedError):
            algorithms._find(problem, policy, True)
        assert asked == order


def test_cudnn_times_on_no_stream_of_a_call_before(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[int] = []
    handle = SimpleNamespace(value=0, set_stream=streams.append)
    monkeypatch.setattr(lib, "load", lambda: SimpleNamespace(version=0))
    monkeypatch.setattr(lib, "handle", lambda library, device: handle)
    monkeypatch.setattr(_context, "ensure_context", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(algorithms, "forms", lambda problem: ())
    for timed in (False, True):
        with pytest.raises(NotSupportedError):
            algorithms._find(problem_of("conv2d"), Policy(device=0, algo="time_once"), timed)
    assert streams == [0]


# ---- on a GPU --------------------------------------------------------------------------------------------------------

#: what cuDNN 9.19 certainly has for these problems: a refusal is a mistake in asking
CERTAIN = {
    "conv2d": ("none", "small", "large", "fft", "fft_tiling", "winograd_non_fused"),
    "conv2d_grad_wrt_inputs": ("none", "deterministic", "fft", "fft_tiling", "winograd_non_fused"),
    "conv2d_grad_wrt_weights": ("none", "deterministic", "small", "fft", "winograd_non_fused"),
    "conv3d": ("none", "small"),
    "conv3d_grad_wrt_inputs": ("none", "deterministic"),
    "conv3d_grad_wrt_weights": ("none",),
}


def judged(op: str, algo: str, dtype: str, **policy: Any) -> Row:
    (impl,) = (i for i in implementations(op) if i.name == "cudnn.algorithms")
    problem, wanted = problem_of(op, dtype), Policy(device=0, algo=algo, **policy)
    why = select.refusal(impl, problem, wanted, config.current())
    if why:
        return Row("", impl.name, str(problem), "refused", why)
    return judge(Row("", impl.name, str(problem), "ok"), impl, Subject("", problem), wanted, timed=False)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bfloat16"])
@pytest.mark.parametrize("op", OPS)
def test_every_algorithm_agrees_or_is_refused_with_a_reason(op: str, dtype: str) -> None:
    for algo in (*_conv_calls.call_of(op).algorithms, *algorithms.RUNTIME):
        row = judged(op, algo, dtype)
        assert row.status in ("ok", "refused"), f"{algo}: {row.reason} {row.facts}"
        assert row.status == "ok" or len(row.reason.split()) > 3
        if dtype == "float32" and algo in (*CERTAIN[op], *algorithms.RUNTIME):
            assert row.status == "ok", f"{algo}: {row.reason}"
            assert algo in algorithms.RUNTIME or row.facts["algorithm"] == algo


@pytest.mark.gpu
def test_float16_sums_where_they_are_asked_for() -> None:
    row = judged("conv2d", "small", "float16", precision="float16")
    assert row.status == "refused" or (row.status, row.arithmetic) == ("ok", "half"), row.reason


@pytest.mark.gpu
def test_a_name_that_is_not_to_be_had_falls_back_and_is_recorded() -> None:
    torch = pytest.importorskip("torch")
    x, w = torch.randn(2, 8, 12, 12, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda")
    with pytest.warns(RuntimeWarning, match="runs on"):
        numbadnn.conv2d(x, w, subsample=(2, 2), algo="fft")
    last = numbadnn.last_call()
    assert last is not None and last.fallback and any(r.impl == "cudnn.algorithms" for r in last.refusals)
    with pytest.raises(NotSupportedError, match="fft"):
        numbadnn.conv2d(x, w, subsample=(2, 2), algo="fft", backend="cudnn")
    numbadnn.conv2d(x, w, algo="fft")
    last = numbadnn.last_call()
    assert last is not None and not last.fallback and last.facts["algorithm"] == "fft"


@pytest.mark.gpu
def test_once_keeps_the_first_choice_and_asks_again_for_support() -> None:
    torch = pytest.importorskip("torch")
    algorithms.forget()
    w = torch.randn(8, 8, 3, 3, device="cuda")
    for size in (12, 20, 300):  # the last is far larger: its workspace is asked for anew
        x = torch.randn(1, 8, size, size, device="cuda")
        y = numbadnn.conv2d(x, w, algo="time_once", backend="cudnn", filter_flip=False)
        assert torch.allclose(y, torch.nn.functional.conv2d(x, w), atol=1e-3)
    assert set(algorithms._ONCE) == {("conv2d", "time_once")}


@pytest.mark.gpu
@pytest.mark.parametrize("algo", ["guess_on_shape_change", "time_on_shape_change"])
def test_on_shape_change_chooses_once_for_each_shape(algo: str) -> None:
    torch = pytest.importorskip("torch")
    w = torch.randn(8, 8, 3, 3, device="cuda")
    sizes = (12, 20, 12, 33, 20, 40, 12, 33)  # coming back to a shape finds what was chosen for it
    numbadnn.clear_caches()
    misses = numbadnn.cache_info().misses
    for size in sizes:
        x = torch.randn(2, 8, size, size, device="cuda")
        y = numbadnn.conv2d(x, w, algo=algo, backend="cudnn", filter_flip=False)
        assert torch.allclose(y, torch.nn.functional.conv2d(x, w), atol=1e-3)
    assert numbadnn.cache_info().misses - misses == len(set(sizes))


@pytest.mark.parametrize("direction", _conv_calls.CALLS)
def test_elementwise_leaves_out_the_algorithms_that_transform(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op = next(op for op, o in OPERATIONS.items() if o.direction == direction and op.startswith("conv2d"))
    call, problem = _conv_calls.CALLS[direction], problem_of(op)
    refused = {algo for algo in call.algorithms if "asks for elementwise" in reason(op, algo, accuracy="elementwise")}
    assert refused == {algo for algo in call.algorithms if "fft" in algo or "winograd" in algo} != set()
    assert "asks for elementwise" in reason(op, "time_once", accuracy="elementwise")
    assert reason(op, "guess_once", accuracy="elementwise") == "" == reason(op, "fft")
    # what cuDNN ranks is filtered, and so is what was kept of another call
    ranking = [SimpleNamespace(algo=int(a), determinism=1) for a in call.algorithms.values()]
    monkeypatch.setattr(algorithms, "ranked", lambda *more: ranking)
    monkeypatch.setattr(algorithms, "_ONCE", {(op, "guess_once"): int(call.algorithms["fft"])})
    found = {}
    for accuracy in ("normwise", "elementwise"):
        policy = Policy(0, "not_guaranteed", algo="guess_once", accuracy=accuracy)
        found[accuracy] = set(algorithms._algorithms(None, 0, call, problem, policy, (), False))  # type: ignore[arg-type]
    transforms = {int(call.algorithms[algo]) for algo in refused}
    assert found["normwise"] - found["elementwise"] == transforms and found["elementwise"]
