"""The contract: every implementation, on every small case, equals the reference within its bound, or refuses and says why.

Outputs and all memory around the operands are NaN before each run, inputs are looked at afterwards, runs are repeated, and
small integers must come out to the bit (``validate/check.py`` does all that). The GPU's implementations run under ``-m gpu``,
and there the public functions once more on arrays of each library. A test's name is the case's.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import threadpoolctl

import numbadnn
from numbadnn import cases, config, reference
from numbadnn.arrays.numpy_ import numpy_dtype
from numbadnn.call import select
from numbadnn.cases import Case
from numbadnn.measuring.data import buffer, untouched
from numbadnn.measuring.laws import law
from numbadnn.problem import Policy, Spec
from numbadnn.registry import FAMILY, implementations
from numbadnn.validate.check import Row, Subject, judge
from numbadnn.validate.execute import targets
from numbadnn.validate.oracle import Trial

CONTRACT = cases.find(["contract"])
BACKENDS = {-1: ("cpu",), 0: ("cudnn", "numba")}

#: of an operation whose kernels take longest to compile; begun first
SLOW = {"rnn_forward": [pytest.mark.slow(6)], "rnn_backward": [pytest.mark.slow(6)]}
MARKED = [pytest.param(case, id=case.name, marks=SLOW.get(case.op, ())) for case in CONTRACT]
#: the scope brings the tests of one case together, which share its reference and its bounds
every_case = pytest.mark.parametrize("case", MARKED, scope="module")


@functools.lru_cache(maxsize=4)
def subject_of(case: Case) -> Subject:
    return Subject(case.name, case.problem())


@functools.lru_cache(maxsize=4)
def more_trials_of(case: Case) -> list[Trial]:
    """The family's other kinds of data, such as numbers far apart, for what must subtract the maximum."""
    problem = case.problem()
    return [Trial.of(problem, 1, kind) for kind in law(case.op).extra_kinds(problem)]


def obey(case: Case, device: int) -> int:
    """Hold every implementation for this device to the contract; how many took the case."""
    subject, policy, ran = subject_of(case), Policy(device=device), 0
    for impl in implementations(case.op):
        if impl.backend not in BACKENDS[device]:
            continue
        reason = select.refusal(impl, subject.problem, policy, config.current())
        if reason:
            assert len(reason.split()) >= 3, f"{impl.name} refuses without a reason in words: {reason!r}"
            assert not impl.complete, f"{impl.name} must take every case: {reason}"
            continue
        row = judge(Row(case.name, impl.name, case.text, "ok"), impl, subject, policy, timed=False)
        assert row.status == "ok", f"{impl.name} {row.facts}: {row.reason}"
        ran += 1
        for trial in more_trials_of(case):
            more = Subject(case.name, trial.problem, trial)
            row = judge(Row(case.name, impl.name, case.text, "ok"), impl, more, policy, timed=False)
            assert row.status == "ok", f"{impl.name} on other data: {row.reason}"
    return ran


@pytest.mark.parametrize("op", FAMILY)
def test_every_operation_has_a_complete_implementation_on_the_cpu_and_on_the_gpu(op: str) -> None:
    assert {i.backend for i in implementations(op) if i.complete} >= {"cpu", "numba"}


@pytest.fixture
def memory_was_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """``numpy.empty`` gives what memory last held, seldom NaN; here it always is, so that no run can be lucky."""

    def all_ones(make: Any) -> Any:
        def made(*args: Any, **keywords: Any) -> np.ndarray:
            array = make(*args, **keywords)
            if not array.dtype.hasobject:
                array.ravel(order="K").view(np.uint8)[...] = 255  # no copy: a new array is packed
            return array

        return made

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(np, name, all_ones(getattr(np, name)))


@every_case
def test_cpu(case: Case, memory_was_nan: None) -> None:
    assert obey(case, -1) > 0


@pytest.mark.parametrize("name", ["rnn_backward/small-states/gru/float32", "conv2d/tile/float32"])
def test_products_on_several_threads(name: str) -> None:
    """Where processes of the tests share the cores out, NumPy multiplies matrices on one thread in all others."""
    with threadpoolctl.threadpool_limits(2, "blas"):
        assert obey(cases.all_cases()[name], -1) > 0


def destination(problem: Any, outs: list[Any]) -> dict[str, Any]:
    """The keyword that names where the results go: one array, or a tuple of several."""
    return {getattr(problem, "out_argument", "out"): outs[0] if len(outs) == 1 else tuple(outs)}


def arguments(problem: Any, arrays: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The inputs, and the parameters, as the public function takes them."""
    named = getattr(problem, "keyword_inputs", ())
    n = len(arrays) - len(named)
    return arrays[:n], {**dict(zip(named, arrays[n:], strict=True)), **problem.keywords}


def results_of(returned: Any, outs: list[Any]) -> tuple[Any, ...]:
    """What a function returned, as a tuple; it must be the very arrays that were given."""
    found = returned[: len(outs)] if isinstance(returned, tuple) else (returned,)  # a state may follow the arrays
    assert [id(a) for a in found] == [id(a) for a in outs]
    return found


@every_case
def test_cpu_public_function(case: Case) -> None:
    problem, trial = case.problem(), subject_of(case).trial
    outs = targets(problem, trial.old)
    arrays = [buffer(s, v).array for s, v in zip(problem.inputs, trial.inputs, strict=True)]
    given = [b.array for b in outs]
    positional, keywords = arguments(problem, arrays)
    returned = getattr(numbadnn, case.op)(*positional, **keywords, **destination(problem, given), backend="cpu")
    results = results_of(returned, given)
    assert all(map(untouched, outs))
    last = numbadnn.last_call()
    assert last is not None and last.problem == str(problem)
    found = trial.compare(results, last.arithmetic, last.summation)
    assert found.ok, str(found)


@pytest.mark.gpu
@every_case
def test_gpu(case: Case) -> None:
    assert obey(case, 0) > 0


#: what cuDNN certainly computes: where it is here, a refusal of these is a mistake in asking it
CUDNN_TAKES = (
    "conv2d/half/float32",
    "conv2d/nhwc/float16",
    "conv2d_grad_wrt_inputs/pad1/float32",
    "conv2d_grad_wrt_weights/pad1/float32",
    "conv2d/asymmetric/float32",
    "softmax/classes/accurate-channel/float32",
    "softmax_grad/images/log-channel/float16",
)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CUDNN_TAKES)
def test_cudnn_takes_what_it_can(name: str) -> None:
    from numbadnn import cudnn

    if not cudnn.available():
        pytest.skip(f"no cudnn: {cudnn.available().reason}")
    (case,) = cases.find([name])
    (impl,) = (
        i
        for i in implementations(case.op)
        if i.backend == "cudnn" and i.name != "cudnn.algorithms" and "_by_" not in i.name
    )
    assert select.refusal(impl, case.problem(), Policy(device=0), config.current()) == ""


# ---- arrays of the libraries, through the public functions -----------------------------------------------------------


class TorchArrays:
    """Tensors on the GPU with given strides, in memory that is NaN elsewhere."""

    def __init__(self) -> None:
        self.torch = pytest.importorskip("torch")

    def put(self, spec: Spec, values: Any) -> Any:
        if min(spec.strides) < 0:
            pytest.skip("PyTorch has no negative strides")
        b = buffer(spec, values)
        bits = b.memory.view(f"i{spec.itemsize}").copy()
        memory = self.torch.from_numpy(bits).cuda().view(getattr(self.torch, spec.dtype))
        return self.torch.as_strided(memory, spec.shape, spec.strides, b.offset // spec.itemsize)

    def get(self, array: Any, spec: Spec) -> np.ndarray:
        bits = array.contiguous().view(getattr(self.torch, f"int{8 * spec.itemsize}"))
        return bits.cpu().numpy().view(numpy_dtype(spec.dtype))


class CupyArrays:
    """CuPy arrays with given strides, in memory that is NaN elsewhere."""

    def __init__(self) -> None:
        self.cupy = pytest.importorskip("cupy")

    def put(self, spec: Spec, values: Any) -> Any:
        b = buffer(spec, values)
        memory = self.cupy.asarray(b.memory.view(np.uint8))
        strides = tuple(s * spec.itemsize for s in spec.strides)
        try:
            return self.cupy.ndarray(spec.shape, numpy_dtype(spec.dtype), memory.data + b.offset, strides)
        except (TypeError, ValueError):
            pytest.skip(f"this CuPy has no {spec.dtype}")

    def get(self, array: Any, spec: Spec) -> np.ndarray:
        return self.cupy.asnumpy(array)


LIBRARIES = {"torch": TorchArrays, "cupy": CupyArrays}


#: float64 and float16 show nothing here that ``test_gpu`` does not see
PUBLIC = [case for case in CONTRACT if case.problem().output.dtype in ("float32", "bfloat16")]


@pytest.mark.gpu
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("case", PUBLIC, ids=lambda case: case.name)
def test_gpu_public_function(case: Case, library: str) -> None:
    problem, trial, arrays = case.problem(), subject_of(case).trial, LIBRARIES[library]()
    inputs = [arrays.put(s, v) for s, v in zip(problem.inputs, trial.inputs, strict=True)]
    for backend in BACKENDS[0]:
        start = [np.full(spec.shape, np.nan) for spec in problem.outputs]
        if trial.old is not None:
            start[0] = trial.old
        outs = [arrays.put(spec, values) for spec, values in zip(problem.outputs, start, strict=True)]
        positional, keywords = arguments(problem, inputs)
        try:
            returned = getattr(numbadnn, case.op)(
                *positional, **keywords, **destination(problem, outs), backend=backend
            )
        except (numbadnn.NotSupportedError, numbadnn.BackendUnavailableError) as error:
            assert backend == "cudnn", f"numba must take every case: {error}"
            continue
        results = results_of(returned, outs)
        last = numbadnn.last_call()
        if last is not None and last.impl == "cudnn.dropout":
            assert last.problem == f"{problem} generator=cudnn"
            continue  # a mask of its own: test_dropout looks at its distribution
        assert last is not None and last.problem == str(problem)
        host = tuple(arrays.get(r, spec) for r, spec in zip(results, problem.outputs, strict=True))
        found = trial.compare(host, last.arithmetic, last.summation)
        assert found.ok, f"{last.impl} {last.facts}: {found}"


# ---- numbers that are not finite -------------------------------------------------------------------------------------

DEVICES = (pytest.param(-1, id="cpu"), pytest.param(0, id="gpu", marks=pytest.mark.gpu))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", ((6, 9), (6, 5, 3), (6, 1200)), ids=str)
@pytest.mark.parametrize("algo", ("accurate", "log"))
def test_softmax_rows_that_are_not_finite(algo: str, shape: tuple[int, ...], device: int) -> None:
    size = "x".join(map(str, shape))
    problem = cases.parse(f"softmax x=float32:{size} algo={algo} mode=instance")
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    rows = x.reshape(6, -1)
    rows[0, 3], rows[1, 2], rows[2, :], rows[3, 1:] = np.nan, np.inf, -np.inf, -np.inf
    rows[4, 0], rows[4, 4] = -np.inf, -3e38
    y = reference.softmax(x, algo, "instance").reshape(6, -1)
    assert np.isnan(y[:3]).all() and not np.isnan(y[3:]).any()  # what the reference itself must say
    assert obey_trial(problem, Trial(problem, (x,)), device, excused="not finite") > 0
    rows[2, 0] = 1.0  # the one row that explain says cuDNN treats otherwise
    assert obey_trial(problem, Trial(problem, (x,)), device) > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("line", (
    "conv2d x=float32:2x3x9x8 w=float32:4x3x3x3 pad=1,1,1,1",
    "conv2d x=float32:2x8x9x8:nhwc w=float32:8x8x3x3:nhwc pad=1,1,1,1 stride=2,2",
    "conv2d_grad_wrt_inputs x=float32:2x3x9x8 w=float32:4x3x3x3 pad=1,1,1,1 stride=2,1",
    "conv2d_grad_wrt_weights x=float32:2x3x9x8 w=float32:4x3x3x3",
    "conv2d_grad_wrt_weights x=float32:2x6x9x6 w=float32:6x1x3x3 pad=1,1,1,1 groups=6",  # one at the end of a strip
    "conv2d_grad_wrt_weights x=float16:2x8x9x6:nhwc w=float16:8x1x3x3 y=float16:2x8x9x6:nhwc pad=1,1,1,1 groups=8",
    "causal_conv1d x=float16:2x2x1x552 w=float16:2x1x1x32 pad=0,0,31,0 groups=2",
), ids=lambda line: line.split()[0])  # fmt: skip
def test_convolution_passes_on_what_is_not_finite(line: str, device: int) -> None:
    problem = cases.parse(line)
    inputs, _ = cases.make_arrays(problem, 3)
    inputs[0][0, 1].flat[35], inputs[0][1, 0].flat[0] = np.nan, np.inf
    trial = Trial(problem, inputs)
    assert 0 < np.isnan(trial.value).sum() < trial.value.size
    assert obey_trial(problem, trial, device) > 0


def obey_trial(problem: Any, trial: Trial, device: int, excused: str = "") -> int:
    """Every implementation for this device that takes the problem gives the trial's values; how many did.

    One whose facts have an entry ``excused``, which explain prints, is passed over.
    """
    policy, ran = Policy(device=device), 0
    for impl in implementations(problem.op):
        if impl.backend not in BACKENDS[device] or select.refusal(impl, problem, policy, config.current()):
            continue
        row = judge(Row("", impl.name, "", "ok"), impl, Subject("", problem, trial), policy, timed=False)
        if excused and excused in row.facts:
            continue
        if row.arithmetic in ("fft", "winograd"):
            continue  # these spread what is not finite over their tile, and explain says so
        if impl.backend == "cudnn" and problem.op == "conv2d_grad_wrt_weights" and any(map(any, problem.padding)):
            continue  # an engine may multiply an infinity of the image by a zero beside dy, or not: docs/errata.md
        assert row.status == "ok", f"{impl.name}: {row.reason}"
        ran += 1
    return ran


def test_every_operation_has_contract_cases() -> None:
    assert {c.op for c in CONTRACT} == set(FAMILY)
