"""A short run of the fuzzer, the same each time; ``make fuzz`` runs it for as long as one likes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import numbadnn
from numbadnn.registry import Executable, Impl
from numbadnn.validate.faults import FAULTS, implementation, planted
from numbadnn.validate.fuzz import draws
from numbadnn.validate.fuzz import garbage as fuzz
from numbadnn.validate.fuzz.picks import Drawn, Seeded

some = settings(
    max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(autouse=True)
def one_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "DTYPES", ("float32",))


@pytest.mark.slow(60)  # each dtype and layout costs the CPU's kernels a compilation
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
@some
@given(fuzz.calls())
def test_random_problems(call: fuzz.Call) -> None:
    fuzz.hold(call, -1)


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
@settings(some, max_examples=60)
@given(fuzz.garbage())
def test_random_garbage(spoiled: fuzz.Spoiled) -> None:
    fuzz.survive(spoiled)


def test_a_fault_is_found() -> None:
    (fault,) = (f for f in FAULTS if f.name == "padding")

    def plain_ones(problem: Any, policy: Any) -> str:
        padded = problem.symmetric and min(low for low, _ in problem.padding) > 0
        plain = problem.groups == 1 and problem.stride == problem.dilation == (1, 1) and problem.flip and padded
        plain = plain and not problem.unshared and (problem.alpha, problem.beta) == (1, 0)
        return "" if plain and problem.x.dtype == "float32" else "the planted one computes plain problems alone"

    impl = dataclasses.replace(implementation(fault, True), supports=plain_ones)

    @settings(some, max_examples=2000, report_multiple_bugs=False, phases=(Phase.generate,))
    @given(st.builds(lambda random: draws.convolutions(Drawn(random.draw)), st.data()))
    def search(call: fuzz.Call) -> None:
        if call.function == "conv2d":
            fuzz.hold(call, -1)

    with planted(impl), pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuzz, "BACKENDS", {-1: ("cpu",)})
        patch.setattr(fuzz, "implementations", lambda op: [impl] if op == impl.op else [])
        with pytest.raises(AssertionError, match=r"fault.padding .* on conv2d x=float32"):
            search()


def test_an_unclean_error_and_a_changed_array_are_found() -> None:
    call = fuzz.Call("softmax", (np.ones((2, 3), np.float32),), ("accurate", "channel"), {})
    none = fuzz.GARBAGE.index(None)
    assert fuzz.survive(fuzz.Spoiled(call, 1, none))

    def plan_that(what: Any) -> Any:
        def plan(problem: Any, policy: Any, config: Any) -> Executable:
            def run(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
                what(inputs[0])

            return Executable(run)

        return plan

    def fails(x: np.ndarray) -> None:
        raise IndexError("list index out of range")

    for what, words in ((fails, "IndexError: list index out of range"), (lambda x: x.fill(7), "an array was changed")):
        impl = Impl("softmax", "cpu", "cpu.bad", lambda p, q: "", plan_that(what), lambda p: 0.0)
        with planted(impl), numbadnn.using(only="cpu.bad"), pytest.raises(AssertionError, match=words):
            fuzz.survive(fuzz.Spoiled(call, "stream", none))


def test_what_is_drawn_is_what_is_said() -> None:
    drawn: set[str] = set()

    @settings(some, max_examples=2000, phases=(Phase.generate,))  # of 600 another hypothesis drew 29 functions
    @given(fuzz.calls())
    def collect(call: fuzz.Call) -> None:
        drawn.add(call.function)

    collect()
    assert drawn <= fuzz.COVERED and len(drawn) > len(fuzz.COVERED) - 7


def test_a_message_must_name_an_argument_or_show_the_value() -> None:
    assert fuzz._says("filter_flip: expected a bool", 3.7) and fuzz._says("what is 3.7 for?", 3.7)
    assert not fuzz._says("list index out of range", 3.7) and not fuzz._says("zip() argument 2 is longer", 3.7)


def test_a_round_ends_with_the_time() -> None:
    assert sum(fuzz.run_once(0, 50, -1, lambda: True).values()) == 0


def test_one_form_has_many_sizes_and_one_kind_of_everything_else() -> None:
    problems = [draws.problem_of(draws.lines(Seeded("a form", case))) for case in range(40)]
    assert len({(p.stride, p.dilation, p.flip, p.groups, p.w.shape[-1], p.x.dtype, p.x.aligned) for p in problems}) == 1
    assert len({p.x.shape for p in problems}) > 30
    again = [draws.problem_of(draws.lines(Seeded("a form", case))) for case in range(40)]
    assert again == problems and problems[0] != draws.problem_of(draws.lines(Seeded("another form", 0)))


def test_batch_norm_of_16_bits_has_parameters_of_either_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "DTYPES", ("bfloat16", "float16", "float32"))
    drawn = {tuple(a.dtype.name for a in draws.norms(Seeded(form, 0)).arrays) for form in range(200)}
    gradients = {(dtypes[0], *dtypes[2:]) for dtypes in drawn if len(dtypes) == 5 and dtypes[0] == dtypes[1]}
    halves = ("float16", "bfloat16")
    assert gradients >= {(half, *(kept,) * 3) for half in halves for kept in (half, "float32")}
    assert all(set(dtypes) == {"float32"} for dtypes in drawn if dtypes[0] == "float32")


def test_an_operation_of_two_is_held_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = tuple(np.ones(shape, np.float32) for shape in ((1, 2, 4, 4), (2, 1, 2, 2), (3, 2, 1, 1)))
    call = fuzz.Call("separable_conv2d", arrays, (2,), {"subsample": (2, 1)})
    assert fuzz.hold(call, -1) == 1
    monkeypatch.setattr(numbadnn, "separable_conv2d", lambda *a, **k: np.zeros((1, 3, 2, 3), np.float32))
    with pytest.raises(AssertionError, match="not what its two operations give"):
        fuzz.hold(call, -1)
