"""Choosing and remembering: forced backends, lists, fallback, filters, explain, plans, caches."""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import json
import pickle
import re
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn import registry
from numbadnn.call import plan_arguments
from numbadnn.call.fallback import sentence
from numbadnn.errors import Refusal
from numbadnn.gpu import devices
from numbadnn.host import bounded
from numbadnn.kept import machine
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import ConvProblem
from numbadnn.problems.softmax import SoftmaxProblem
from numbadnn.registry import Executable, Impl
from numbadnn.validate.faults import planted
from numbadnn.validate.oracle import expected

RANDOM = np.random.default_rng(1)


def image(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


X, W = image(2, 3, 6, 5), image(4, 3, 3, 3)


def test_a_call_says_what_ran() -> None:
    numbadnn.conv2d(X, W)
    last = numbadnn.last_call()
    assert last is not None and last.backend == "cpu" and not last.fallback
    assert last.problem.startswith("conv2d x=float32:2x3x6x5 w=float32:4x3x3x3 y=float32:2x4x4x3 ")
    assert last.decided_by == "rank" and last.arithmetic == "ieee"


def test_problem_text_parses_back() -> None:
    for text in (
        "conv2d x=float16:2x4x9x8:nhwc w=float16:6x2x3x3:nhwc pad=1,2,0,1 stride=2,1 dilation=1,2 flip=0 groups=2 alpha=0.5 "
        "beta=2",
        "conv2d_grad_wrt_weights x=float64:2x4x9x8:576,144,8,1 w=float64:6x4x3x3",
        "conv2d_grad_wrt_inputs x=float32:1x1x5x5:unaligned w=float32:1x1x2x2 y=float32:1x1x4x4:16,16,-4,1",
    ):
        problem = ConvProblem.parse(text)
        assert ConvProblem.parse(str(problem)) == problem
        assert set(text.split()) <= set(str(problem).split())
    problem = SoftmaxProblem.parse("softmax_grad dy=bfloat16:2x3x4:nhwc algo=log mode=instance")
    assert SoftmaxProblem.parse(str(problem)) == problem


@pytest.mark.parametrize(
    "text",
    [
        "conv2d x=float32:1x2x5x5", "conv3d x=float32:1x2x5x5 w=float32:1x2x3x3", "conv2d x=int32:1x2x5x5 w=int32:1x2x3x3",
        "conv2d x=float32:1x2x5x5 w=float32:1x3x3x3", "conv2d x=float32:1x2x5x5 w=float32:1x2x3x3 y=float32:1x1x9x9",
        "conv2d x=float32:1x2x5x5 w=float32:1x2x7x7", "conv2d x=float32:1x2x5x5 w=float32:1x2x3x3 colour=red",
    ],
)  # fmt: skip
def test_malformed_problem_text_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        ConvProblem.parse(text)


def test_a_backend_named_in_the_call_is_strict() -> None:
    for backend in ("cudnn", "numba"):
        with pytest.raises(numbadnn.BackendUnavailableError, match=f"backend='{backend}': the arrays are on the CPU"):
            numbadnn.conv2d(X, W, backend=backend)
    with pytest.raises(ValueError, match="backend: expected None or one of cudnn, numba, cpu, got 'cuda'"):
        numbadnn.conv2d(X, W, backend="cuda")
    assert numbadnn.conv2d(X, W, backend="cpu").shape == (2, 4, 4, 3)


def test_a_backend_of_the_options_falls_back_which_is_recorded_and_on_the_cpu_not_warned_of() -> None:
    """Arrays there have nothing else to run on; pytest makes every warning an error."""
    x = image(1, 3, 6, 7)
    for backend in ("cudnn", "numba", "numba,cpu"):
        with numbadnn.using(backend=backend):
            numbadnn.conv2d(x, W)
        last = numbadnn.last_call()
        assert last is not None and last.fallback and last.backend == "cpu" and last.refusals
    with numbadnn.using(backend="cudnn", fallback="error"), pytest.raises(numbadnn.NotSupportedError) as caught:
        numbadnn.conv2d(x, W)
    assert all(c.reason for c in caught.value.candidates) and caught.value.candidates


def test_an_ordered_list_admits_only_its_members() -> None:
    with numbadnn.using(backend="cudnn,numba"), pytest.raises(numbadnn.NotSupportedError) as caught:
        numbadnn.conv2d(X, W)
    assert {c.backend for c in caught.value.candidates} == {"cudnn", "numba"}


def test_a_warning_of_a_fallback_is_one_short_line_without_shapes() -> None:
    """What runs, what was asked for, one reason of it, the cure; of an algorithm that was named on the CPU too."""
    missing = (
        "no usable cuDNN 9 was found; `pip install it`\nlooked in\n  /usr/lib: nothing\n" + 90 * "  /opt: nothing\n"
    )
    refusals = Refusal("numba", "numba.line", "rank"), Refusal("cudnn", "cudnn.graph", missing)
    text = sentence("conv2d", "cudnn", "", "numba.direct", refusals)
    assert "\n" not in text and len(text) < 300
    assert text.startswith("conv2d runs on numba.direct instead of cudnn: cudnn.graph: no usable cuDNN 9 was found")
    assert "fallback='allow'" in text and "numbadnn.explain" in text
    with numbadnn.using(algo_fwd="fft"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for batch in (1, 2, 3):  # plans of their own, and one text
            numbadnn.conv2d(image(batch, 3, 8, 9), W)
    (text,) = (str(w.message) for w in caught)
    assert "instead of algorithm 'fft'" in text and len(text) < 300


@pytest.mark.gpu
def test_a_fallback_on_a_gpu_is_said_once_for_all_sizes() -> None:
    torch = pytest.importorskip("torch")
    w = torch.ones(4, 3, 3, 3, device="cuda")
    numbadnn.clear_caches()
    with numbadnn.using(backend="cudnn", exclude="cudnn.*"), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for batch in (1, 2, 3):
            numbadnn.conv2d(torch.ones(batch, 3, 8, 8, device="cuda"), w)
    texts = [str(w.message) for w in seen]
    assert len(texts) == 1 and len(texts[0]) < 300 and "instead of cudnn: cudnn." in texts[0], texts


def test_only_and_exclude_name_implementations() -> None:
    with numbadnn.using(exclude="cpu.*"), pytest.raises(numbadnn.NotSupportedError, match=r"excluded by the option"):
        numbadnn.conv2d(X, W)
    with numbadnn.using(only="numba.*"), pytest.raises(numbadnn.NotSupportedError, match="not in the option only"):
        numbadnn.conv2d(X, W)
    with numbadnn.using(only="cpu.*,numba.*"):
        numbadnn.conv2d(X, W)


def test_a_named_algorithm_that_nothing_has_is_strict_in_the_call_and_a_recorded_fallback_in_the_options() -> None:
    x = image(1, 3, 9, 9)
    with numbadnn.using(algo_fwd="fft"), pytest.warns(RuntimeWarning, match="has no algorithm named 'fft'"):
        numbadnn.conv2d(x, W)
    last = numbadnn.last_call()
    assert last is not None and last.fallback and "'fft' is not to be had" in last.decided_by
    with pytest.raises(numbadnn.NotSupportedError, match="has no algorithm named 'fft'"):
        numbadnn.conv2d(x, W, algo="fft", backend="cpu")
    with pytest.raises(ValueError, match="algo: expected one of auto, none"):
        numbadnn.conv2d(x, W, algo="fastest")


def test_a_named_algorithm_that_nothing_has_warns_once_whatever_else_is_asked_for(tmp_path: Path) -> None:
    x = image(2, 3, 6, 5)
    for options in (
        {"backend": "cudnn"},
        {"tune": "measure", "cache_dir": str(tmp_path)},
        {"determinism": "gpu_to_gpu"},
    ):
        numbadnn.clear_caches()
        with numbadnn.using(**options), pytest.warns(RuntimeWarning) as caught:
            numbadnn.conv2d(x, W, algo="fft")
            numbadnn.conv2d(x, W, algo="fft")
        assert [("runs on" in str(w.message), w.filename) for w in caught] == [(True, __file__)], options
        last = numbadnn.last_call()
        assert last is not None and last.fallback and last.decided_by.endswith("; algorithm 'fft' is not to be had")


def test_refusals_are_remembered_and_repeat_every_reason() -> None:
    with numbadnn.using(backend="cudnn,numba"):
        messages = []
        for _ in range(2):
            with pytest.raises(numbadnn.NotSupportedError) as caught:
                numbadnn.conv2d(X, W)
            messages.append(str(caught.value))
    assert messages[0] == messages[1]
    for name in ("cudnn", "numba"):
        assert f"{name}.*: the arrays are on the CPU" in messages[0]


def test_each_implementation_is_asked_once_and_those_of_a_gpu_never_about_numpy_arrays() -> None:
    asked: list[str] = []

    def made(backend: str) -> Impl:
        def supports(problem: Any, policy: Any) -> str:
            asked.append(f"{backend} supports")
            return "takes nothing"

        def rank(problem: Any) -> float:
            asked.append(f"{backend} rank")
            return 0.0

        return Impl("conv2d", backend, f"{backend}.asked", supports, lambda p, q, c: Executable(print), rank)

    with planted(made("cpu"), made("numba")):
        numbadnn.conv2d(X, W)
        assert sorted(asked) == ["cpu rank", "cpu supports"]
        asked.clear()
        rows = {row.impl: row.reason for row in numbadnn.explain(numbadnn.conv2d, X, W).candidates}
        assert sorted(asked) == ["cpu rank", "cpu supports"]
    assert rows["cpu.asked"] == "takes nothing" and "the arrays are on the CPU" in rows["numba.asked"]


def test_explain_lists_every_candidate_with_its_reason_and_computes_nothing() -> None:
    numbadnn.softmax(image(2, 3))
    before = numbadnn.last_call()
    explanation = numbadnn.explain(numbadnn.conv2d, X, W, border_mode="half")
    assert numbadnn.last_call() == before
    by_name = {c.impl: c for c in explanation.candidates}
    assert by_name[explanation.chosen].state == "chosen" and by_name["numba.direct"].state == "refused"
    assert all(bool(c.reason) == (c.state == "refused") for c in explanation.candidates)
    text = str(explanation)
    assert all(len(re.findall(rf"(?<![\w.]){re.escape(c.impl)}(?![\w.])", text)) >= 1 for c in explanation.candidates)
    states = [c.state for c in explanation.candidates]
    assert states == sorted(states, key=("chosen", "admitted", "refused").index)
    assert text.splitlines()[2].split()[:2] == ["chosen", explanation.chosen]
    for backend in ("cudnn", "numba"):  # one reason, said once
        assert text.count(f"the {backend} backend takes arrays on a CUDA device") == 1
    forced = numbadnn.explain(numbadnn.conv2d, X, W, backend="cudnn")
    assert forced.chosen == "" and "the arrays are on the CPU" in forced.decided_by


def test_what_is_no_compute_function_has_nothing_to_explain() -> None:
    x = np.ones((2, 3), np.float32)
    for function in (np.sum, numbadnn.theano.dnn_pool, lambda *args, **options: None, 3):
        for ask in (numbadnn.explain, numbadnn.plan):
            with pytest.raises(TypeError, match="expected one of numbadnn's compute functions, got"):
                ask(function, x)
    with pytest.raises(TypeError, match="got 'softmax': the function itself, numbadnn.softmax"):
        numbadnn.explain("softmax", x)
    assert numbadnn.explain(lambda *args, **options: numbadnn.softmax(*args, **options), x).chosen == "cpu.loops"


def test_a_plan_can_be_kept_and_checks_its_arrays() -> None:
    plan = numbadnn.plan(numbadnn.conv2d, X, W)
    assert np.array_equal(plan(X, W), numbadnn.conv2d(X, W))
    out = np.full((2, 4, 4, 3), np.nan, np.float32)
    assert plan(X, W, out=out) is out and np.array_equal(out, numbadnn.conv2d(X, W))
    with pytest.raises(ValueError, match="this Plan was made for"):
        plan(X[:1], W)
    with pytest.raises(ValueError, match="this Plan was made for"):
        plan(X, W, out=out[:1])
    failed = []

    def elsewhere() -> None:
        try:
            plan(X, W)
        except numbadnn.NumbaDNNError as error:
            failed.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert failed and "belongs to the thread" in failed[0]


def test_a_plan_names_what_does_not_fit_and_takes_what_may_only_be_read() -> None:
    plan, out = numbadnn.plan(numbadnn.conv2d, X, W), np.empty((2, 4, 4, 3), np.float32)
    frozen = X.copy()
    frozen.flags.writeable = False
    assert np.array_equal(plan(frozen, W), numbadnn.conv2d(X, W))
    backwards = numbadnn.plan(numbadnn.corr_mm_grad_inputs, W, out, X.shape[2:])
    for call, message in (
        (lambda: plan(X[:1], W), "array 1: this Plan was made for numpy float32:2x3x6x5 on the CPU, got numpy float32:1x3x6x5"),
        (lambda: plan(X, W.astype("f8")), "array 2: this Plan was made for .* got numpy float64:4x3x3x3"),
        (lambda: plan(X, "W"), "array 2: expected an array .* got builtins.str"),
        (lambda: plan(X, W, out=X), "out: this Plan was made for float32:2x4x4x3, got float32:2x3x6x5"),
        (lambda: plan(X, W, out=[out]), "out: expected an array, or a tuple .* got a list"),
        (lambda: backwards(W, out[:1]), "array 2: this Plan was made for .* got numpy float32:1x4x4x3"),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError), match=f"^{message}"):
            call()


def test_a_plan_made_for_strides_that_no_new_array_has_wants_its_out() -> None:
    """What it allocated was packed, and it wrote with the strides of ``out``: far past its end."""
    whole, y = np.full((2, 4, 4, 24), np.nan, np.float32), numbadnn.conv2d(X, W)
    for out in (whole[..., ::8], whole[..., 2::-1], whole[..., :3]):
        plan = numbadnn.plan(numbadnn.conv2d, X, W, out=out)
        with pytest.raises(
            ValueError, match="^out: expected an array with the strides that this Plan was made for, float32:"
        ):
            plan(X, W)
        assert plan(X, W, out=out) is out and np.array_equal(out, y)
    turned = np.full((2, 3, 4, 4), np.nan, np.float32).transpose(0, 2, 3, 1)  # those of other axes' order it has
    plan = numbadnn.plan(numbadnn.conv2d, X, W, out=turned)
    assert np.array_equal(plan(X, W), y) and plan(X, W).strides == turned.strides
    with pytest.raises(ValueError, match=r"^out: expected an array or a tuple of them, got \(\)"):
        plan(X, W, out=())


def test_a_plan_knows_its_thread_by_more_than_a_number_that_is_given_away_again() -> None:
    found: list[Any] = []

    def make() -> None:
        found.append(numbadnn.plan(numbadnn.conv2d, X, W))

    def use() -> None:
        with pytest.raises(numbadnn.NumbaDNNError, match="belongs to the thread"):
            found[0](X, W)
        found.append("asked")

    for work in (make, use):  # the second thread has the first one's number, on Linux
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found[1:] == ["asked"]


def test_neither_plans_nor_refusals_keep_the_arrays_of_a_call() -> None:
    def mixed() -> weakref.ref[Any]:
        x = X.copy()
        numbadnn.conv2d(x, W.astype("f8"))
        return weakref.ref(x)

    def refused() -> weakref.ref[Any]:
        x = X.copy()
        with numbadnn.using(only="nothing.*"), contextlib.suppress(numbadnn.NotSupportedError):
            numbadnn.conv2d(x, W)
        return weakref.ref(x)

    for call in (mixed, refused, refused):
        alive = call()
        gc.collect()
        assert alive() is None, call.__name__


def test_a_destination_that_may_only_be_read_is_none_in_a_repeated_call_either() -> None:
    class Foreign:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    frozen = np.zeros((2, 4, 4, 3), np.float32)
    frozen.flags.writeable = False
    for _ in range(2):
        numbadnn.conv2d(Foreign(X), Foreign(W), out=Foreign(np.zeros((2, 4, 4, 3), np.float32)))
        with pytest.raises(ValueError, match="^out: expected a writable array"):
            numbadnn.conv2d(Foreign(X), Foreign(W), out=Foreign(frozen))
    assert not frozen.any()


def test_a_destination_with_a_pending_negation_is_refused_in_a_repeated_call_too() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x, w, pairs = torch.from_numpy(X), torch.from_numpy(W), torch.zeros(2, 4, 4, 3, dtype=torch.complex64)
    for _ in range(2):
        numbadnn.conv2d(x, w, out=pairs.imag)
        with pytest.raises(TypeError, match="^out: expected a tensor without a pending conjugation or negation"):
            numbadnn.conv2d(x, w, out=pairs.conj().imag)
    assert np.array_equal(pairs.imag.numpy(), numbadnn.conv2d(X, W))


def test_a_backend_that_was_named_is_strict_with_nothing_to_compute_too() -> None:
    if not devices.gpus():
        with pytest.raises(numbadnn.BackendUnavailableError, match="backend='cudnn'"):
            numbadnn.conv2d(X[:0], W, backend="cudnn")
    assert numbadnn.conv2d(X[:0], W, backend="cpu").shape == (0, 4, 4, 3)


def test_a_plan_is_not_pickled() -> None:
    plan = numbadnn.plan(numbadnn.conv2d, X, W)
    for take in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="a Plan belongs to the thread .* with numbadnn.plan"):
            take(plan)


def test_the_caches_are_bounded_and_can_be_cleared() -> None:
    numbadnn.clear_caches()
    w = np.ones((1, 1, 1, 1), np.float32)
    for n in range(1, bounded.MAX_PLANS + 20):
        numbadnn.conv2d(np.ones((1, 1, 1, n), np.float32), w)
    info = numbadnn.cache_info()
    assert info.plans == bounded.MAX_PLANS and info.choices <= bounded.MAX_CHOICES
    misses = info.misses
    numbadnn.conv2d(np.ones((1, 1, 1, n), np.float32), w)
    assert numbadnn.cache_info().misses == misses
    numbadnn.clear_caches()
    assert numbadnn.cache_info().plans == 0 == numbadnn.cache_info().choices


def test_free_strides_make_no_new_choice() -> None:
    numbadnn.clear_caches()
    base = image(1, 3, 6, 5)
    odd = np.lib.stride_tricks.as_strided(base, base.shape, (12345 * 4, *base.strides[1:]))
    assert np.array_equal(numbadnn.conv2d(base, W), numbadnn.conv2d(odd, W))
    assert numbadnn.cache_info().choices == 1


def test_a_workspace_is_enough_memory_of_the_device_from_a_line_on() -> None:
    memory = np.empty(4096, np.uint8)
    space = memory[-memory.ctypes.data % plan_arguments.ALIGNED :][:2048]
    address = plan_arguments.workspace_address
    assert address(space, 2048, -1) == space.ctypes.data
    assert address(space.view(np.float32).reshape(8, 64), 2048, -1) == space.ctypes.data
    assert address(space[1:], 0, -1) == space.ctypes.data + 1  # which nobody will use
    for wrong, needed, device, why in (
        (space, 2049, -1, "at least 2049 bytes, got 2048"),
        (space, 2048, 0, "memory of CUDA device 0, got an array of the CPU"),
        (space[16:], 1024, -1, f"a multiple of 256 on, as a new array's do, got address {space.ctypes.data + 16:#x}"),
        (space[::2], 1024, -1, r"got strides \(2,\)"),
        (space[1792::-256], 8, -1, r"got strides \(-256,\)"),
    ):
        with pytest.raises(numbadnn.WorkspaceError, match=f"^workspace: expected .*{why}"):
            address(wrong, needed, device)


@pytest.mark.parametrize(("offset", "apart"), [(0, False), (1023, False), (-256, True), (1024, True), (-255, False)])
def test_a_workspace_has_nothing_in_common_with_the_arrays(offset: int, apart: bool) -> None:
    """Of 256 bytes that begin ``offset`` bytes behind an array of 1024."""
    start, specs = 1 << 20, (Spec.of("float32", (16, 16)), Spec.of("float32", (0, 3)))
    check = plan_arguments.check_apart
    with contextlib.nullcontext() if apart else pytest.raises(numbadnn.WorkspaceError, match="^workspace: .* overlaps"):
        check(start + offset, 256, specs, (start, start + offset + 16))
    check(start + offset, 0, specs, (start, start))


def test_threads_share_choices_not_plans() -> None:
    results, errors = [], []

    def work(seed: int) -> None:
        try:
            for i in range(20):
                x = np.random.default_rng(seed).standard_normal((1, 3, 5 + i % 4, 6)).astype("float32")
                results.append(np.array_equal(numbadnn.conv2d(x, W), numbadnn.conv2d(x.copy(), W)))
        except Exception as error:  # handed to the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and len(results) == 80 and all(results)


def test_verbose_dispatch_prints_one_line_a_call(capfd: pytest.CaptureFixture[str]) -> None:
    with numbadnn.using(verbose="dispatch"):
        numbadnn.softmax(image(2, 3))
        numbadnn.softmax(image(2, 3))
    out, err = capfd.readouterr()
    lines = err.splitlines()
    assert (
        not out
        and len(lines) == 2
        and all(line.startswith("numbadnn: cpu.") and "softmax x=float32:2x3" in line for line in lines)
    )


def of_a_process(code: str) -> str:
    """What a new process prints that runs this."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_is_light() -> None:
    code = (
        "import numpy, sys; before = set(sys.modules); import numbadnn; new = set(sys.modules) - before\n"
        "heavy = 'numba', 'scipy', 'torch', 'cuda', 'cupy', 'jax', 'ml_dtypes', 'difflib', 'numbadnn.reference'\n"
        "heavy = [m for m in heavy if m in new]\n"
        "maps = open('/proc/self/maps').read() if sys.platform == 'linux' else ''\n"
        "assert not heavy, heavy\nassert 'libcuda' not in maps and 'libcudnn' not in maps"
    )
    of_a_process(code)


@pytest.mark.parametrize("first", ("numbadnn", "numbadnn.cpu.conv.fft, numbadnn.kernels.conv.unshared.unshared"))
def test_convolutions_are_asked_in_one_order_whatever_was_imported(first: str) -> None:
    code = (
        f"import fnmatch, importlib, {first}\n"
        "from numbadnn.registry import FAMILY, implementations\n"
        "for backend, module in ('cpu', 'cpu.conv.conv'), ('numba', 'kernels.conv.conv'):\n"
        "    found = [[i.name for i in implementations(op, [backend])] for op in FAMILY if FAMILY[op] == 'conv']\n"
        "    order = importlib.import_module(f'numbadnn.{module}').ORDER\n"
        "    assert all(any(fnmatch.filter(names, name) for names in found) for name in order)\n"
        "    for names in found:\n"
        "        places = [[n for n, pattern in enumerate(order) if fnmatch.fnmatch(name, pattern)] for name in names]\n"
        "        assert all(len(place) == 1 for place in places) and places == sorted(places), names"
    )
    of_a_process(code)


def test_an_implementation_that_comes_while_others_are_put_in_order_stays() -> None:
    """Two threads may import different backends of one family at once."""
    late = Impl(
        "pool", "numba", "numba.late", lambda p, q: "", lambda p, q, c: Executable(lambda *a: None), lambda p: 1.0
    )
    other = threading.Thread(target=registry.register, args=(late,))

    class Names(tuple[str, ...]):
        def __iter__(self) -> Any:
            if other.ident is None:  # the first is looked for
                other.start()
                other.join(0.1)
            return super().__iter__()

    registry.implementations("pool", ["cpu"])
    registry._put_in_order("pool", Names(("cpu.*",)))
    other.join()
    try:
        assert late in registry._IMPLS["pool"]
    finally:
        registry.unregister(late)


@pytest.mark.slow
def test_memory_stays_bounded_over_four_thousand_changing_shapes() -> None:
    code = (
        "import ctypes, gc, numpy as np, numbadnn\n"
        "trim = getattr(ctypes.CDLL(None), 'malloc_trim', lambda pad: 0)\n"
        "def used():\n"
        "    gc.collect(); trim(0)\n"
        "    return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "x, w = np.ones(30000, 'float32'), np.ones((2, 2, 1, 1), 'float32')\n"
        "numbadnn.softmax(x[:6].reshape(2, 3))\n"  # short rows are another kernel, which may be compiled
        "for i in range(4000):\n"
        "    n = 1 + i * 7919 % 10000\n"
        "    if i % 2: numbadnn.softmax(x[: 2 * n].reshape(2, n))\n"
        "    else: numbadnn.conv2d(x[: 2 * n].reshape(1, 2, 1, n), w)\n"
        "    if i == 1999: before = used()\n"
        "print(used() - before)"
    )
    grown = int(of_a_process(code))
    most = 2000 * 256  # bytes of the last 2,000 shapes; by then every cache is full
    assert grown <= most, f"memory grew by {grown} bytes"


# ---- what equals a parameter -----------------------------------------------------------------------------------------

ONE = np.ones((1, 1, 1), np.float32)
COUNTED = {
    "subsample": lambda n: numbadnn.conv2d(X, W, subsample=(n, n)),
    "filter_dilation": lambda n: numbadnn.conv2d(X, W, filter_dilation=[n, n]),
    "border_mode": lambda n: numbadnn.conv2d(X, W, border_mode=(n, (n, n))),
    "num_groups": lambda n: numbadnn.conv2d(X, W, num_groups=n),
    "filter_flip": lambda n: numbadnn.conv2d(X, W, filter_flip=n),
    "filter_shape": lambda n: numbadnn.conv2d_grad_wrt_weights(X, X, (3, 3, n, n)),
    "causal_conv1d": lambda n: numbadnn.causal_conv1d(X[:, :, 0], W[:, :, 0], subsample=n),
    "corr_mm": lambda n: numbadnn.corr_mm(X, W, border_mode=(n, n)),
    "pool": lambda n: numbadnn.pool(X, (2, 2), (n, n), "sum", (n, n)),
    "ratio": lambda n: numbadnn.bilinear_upsampling(X, n),
    "frac_ratio": lambda n: numbadnn.bilinear_upsampling(X, frac_ratio=(3, n)),
    "out_dims": lambda n: numbadnn.spatialtf_grid(np.ones((1, 2, 3)), (n, 1, 2, 2)),
    "rnn_forward": lambda n: numbadnn.rnn_forward(
        ONE.repeat(4), ONE, ONE, hidden_size=n, num_layers=n, rnn_mode="rnn_relu"
    )[0],
    "epsilon": lambda n: numbadnn.batch_normalization_test(X, *[np.ones((1, 3, 1, 1), np.float32)] * 4, "spatial", n),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTED)
def test_what_equals_a_parameter_is_that_parameter_in_the_first_call_too(name: str) -> None:
    call = COUNTED[name]
    expected = call(1)
    for equal in (1.0, True, np.int64(1), np.uint8(1), np.float32(1), np.True_, Fraction(1), 1 + 0j, np.complex64(1)):
        numbadnn.clear_caches()
        assert np.array_equal(call(equal), expected), f"cold: {equal!r}"
        assert np.array_equal(call(1), call(equal)) and numbadnn.cache_info().plans == 1, f"warm: {equal!r}"
    for other in (-0.5, "1", 1j):
        with pytest.raises((ValueError, TypeError), match="expected"):
            call(other)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("alpha", lambda n: numbadnn.conv2d(X, W, alpha=n)),
        ("beta", lambda n: numbadnn.conv2d(X, W, beta=n, out=np.ones((2, 4, 4, 3), np.float32))),
        (
            "epsilon",
            lambda n: numbadnn.batch_normalization_train(X, *[np.ones((1, 3, 1, 1), "f")] * 2, "spatial", n)[0],
        ),
        ("scale_height", lambda n: numbadnn.spatialtf(X, np.ones((2, 2, 3), "f"), scale_height=n)),
        ("dropout", lambda n: numbadnn.dropout(X, n, 1)[0]),
    ],
)
def test_a_complex_number_is_the_real_one_that_it_equals_or_none(name: str, call: Callable[[Any], np.ndarray]) -> None:
    """Refused by a first call and taken by a repeated one it was, and NumPy's lost its imaginary part."""
    for equal in (0.5 + 0j, np.complex64(0.5)):
        numbadnn.clear_caches()
        expected = call(0.5)
        assert np.array_equal(call(equal), expected)
        numbadnn.clear_caches()
        assert np.array_equal(call(equal), expected)
    for other in (0.5 + 1j, np.complex64(0.5 + 1j), complex(0.5, np.nan)):
        with pytest.raises(TypeError, match=f"{name}: expected a number, got"):
            call(other)


def test_what_the_backends_asked_for_leave_out_is_said() -> None:
    x = np.ones((2, 3), "float32")
    explained = numbadnn.explain(numbadnn.softmax, x, backend="cudnn")
    (ours,) = (c for c in explained.candidates if c.impl == "cpu.loops")
    assert (ours.state, ours.reason) == ("refused", "not of the backends asked for: backend=cudnn (call)")
    with numbadnn.using(backend="cudnn,numba"):
        explained = numbadnn.explain(numbadnn.softmax, x)
        assert not explained.chosen and all(c.state == "refused" for c in explained.candidates)
        with pytest.raises(
            numbadnn.NotSupportedError, match=r"^no implementation of backend=cudnn,numba \(using\) can compute"
        ):
            numbadnn.softmax(x)
    with numbadnn.using(backend="cudnn"):  # one name is a preference
        assert numbadnn.explain(numbadnn.softmax, x).chosen == "cpu.loops"


def test_what_a_plan_and_a_reserve_are_shows() -> None:
    x = np.ones((2, 3), "f4")
    plan = numbadnn.plan(numbadnn.softmax, x)
    for part in (
        "Plan of softmax by cpu.loops on the CPU", "x=float32:2x3 y=float32:2x3 algo=accurate mode=channel",
        "arithmetic ieee", "determinism gpu_to_gpu", "workspace 0 bytes",
    ):  # fmt: skip
        assert part in repr(plan)
    block = numbadnn.RNNBlock("float32", 3, 1, "gru")
    (y, _), reserve = block.forward(
        np.ones(block.get_param_size([2, 3]), "f4"), np.ones((1, 2, 3), "f4"), np.ones((1, 2, 3), "f4")
    )
    assert repr(reserve) == f"<Reserve of {block!r}>"
    block.backward(reserve, y)
    assert repr(reserve) == f"<Reserve of {block!r}, used>"


# ---- accuracy --------------------------------------------------------------------------------------------------------


def transforming() -> Impl:
    """A convolution on the CPU that declares to compute by transforms, and is the first to be asked."""

    def plan(problem: Any, policy: Policy, config: Any) -> Executable:
        def run(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
            outputs[0][...] = expected(problem, inputs)[0]

        return Executable(run, arithmetic="fft")

    return Impl("conv2d", "cpu", "cpu.transforming", lambda p, q: "", plan, lambda p: 0.0, arithmetic="fft")


def test_accuracy_by_call_by_using_and_in_what_is_kept(tmp_path: Path) -> None:
    x, w = np.ones((1, 2, 5, 5), np.float32), np.ones((3, 2, 3, 3), np.float32)
    path = tmp_path / "plans.json"
    with planted(transforming()), numbadnn.using(plan_file=str(path)):
        ran = []
        for keywords, options in (
            ({}, {}), ({"accuracy": "elementwise"}, {}), ({}, {"accuracy": "elementwise"}),
            ({"accuracy": "normwise"}, {"accuracy": "elementwise"}),
        ):  # fmt: skip
            with numbadnn.using(**options):
                numbadnn.conv2d(x, w, **keywords)
                last = numbadnn.last_call()
                assert last is not None
                ran.append((last.impl == "cpu.transforming", last.accuracy))
                explained = numbadnn.explain(numbadnn.conv2d, x, w, **keywords)
                ours = next(c for c in explained.candidates if c.impl == "cpu.transforming")
                assert (explained.chosen, ours.accuracy) == (last.impl, "normwise")
                wanted = "" if ran[-1][0] else "computes by fft, the option accuracy asks for elementwise"
                assert ours.reason == wanted and (wanted or " normwise") in str(explained)
        assert ran == [(True, "normwise"), (False, "elementwise"), (False, "elementwise"), (True, "normwise")]
        policies = {entry["policy"]: entry["impl"] for entry in json.loads(path.read_text())["plans"]}
    assert len(policies) == 2 and [
        k for k, v in policies.items() if "accuracy=elementwise" in k and v != "cpu.transforming"
    ]
    assert machine.policy_text(Policy()) in policies, "files of before know the default"


@pytest.mark.parametrize("name", [n for n in numbadnn.__all__ if n.startswith(("conv", "separable", "causal"))])
def test_every_convolution_takes_accuracy(name: str) -> None:
    assert inspect.signature(getattr(numbadnn, name)).parameters["accuracy"].default is None


def test_an_accuracy_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="accuracy: expected one of elementwise, normwise, got 'exact'"):
        numbadnn.conv2d(X, W, accuracy="exact")
