"""Random calls by Hypothesis, which makes a failure small: good ones against the reference, and garbage that must raise cleanly.

``calls()`` draws a call of a public function; every implementation for the device is held to the contract on the problem that
the function makes of it. ``garbage()`` draws a good call and spoils one argument: it must work, or raise ValueError, TypeError
or one of the library's own errors that names an argument or shows the value, and leave the arrays as they were.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import numbadnn
from numbadnn import config
from numbadnn.call import select
from numbadnn.problem import Policy
from numbadnn.registry import FAMILY, implementations
from numbadnn.validate.check import Row, Subject, judge
from numbadnn.validate.determinism import fingerprint
from numbadnn.validate.fuzz.draws import COMPOSED, Call, composed, draw, problem_of
from numbadnn.validate.fuzz.picks import Drawn
from numbadnn.validate.oracle import Trial

BACKENDS = {-1: ("cpu",), 0: ("numba", "cudnn")}
#: what is drawn
COVERED = {
    *FAMILY, "corr_mm", "corr_mm_grad_inputs", "corr_mm_grad_weights", "corr3d_mm", "corr3d_mm_grad_inputs",
    "corr3d_mm_grad_weights", "conv2d_transpose", "conv3d_transpose", *COMPOSED,
}  # fmt: skip
#: more multiplications than this take the NumPy reference too long
MOST_WORK = 2_000_000


@st.composite
def calls(draw_one: Any) -> Call:
    """A call of a function of any family."""
    return draw(Drawn(draw_one))


def hold(call: Call, device: int) -> int:
    """Every implementation for the device, held to the contract on this call's problem; how many took it."""
    if call.function in COMPOSED:
        return _hold_composed(call)
    try:
        problem = problem_of(call)
    except ValueError:
        return 0  # shapes that do not fit one another, said so
    if any(s.size == 0 for s in (*problem.inputs, *problem.outputs)) or problem.flops > MOST_WORK:
        return 0
    if device < 0:  # choosing among them must not fail either
        getattr(numbadnn, call.function)(*call.arrays, *call.others, **call.keywords)
    assert type(problem).parse(str(problem)) == problem, f"does not parse back: {problem}"
    policy, ran = Policy(device=device), 0
    subject = Subject("fuzz", problem, Trial.of(problem, 1))
    for impl in implementations(problem.op):
        if impl.backend not in BACKENDS[device]:
            continue
        reason = select.refusal(impl, problem, policy, config.current())
        if reason:
            assert not impl.complete, f"{impl.name} must take {problem}: {reason}"
            continue
        row = judge(Row("fuzz", impl.name, str(problem), "ok"), impl, subject, policy, timed=False)
        assert row.status == "ok", f"{impl.name} {row.facts} on {problem}: {row.reason}"
        ran += 1
    return ran


def _hold_composed(call: Call) -> int:
    """A function that is two operations gives what these give."""
    try:
        expected = composed(call)
    except ValueError:
        return 0
    got = getattr(numbadnn, call.function)(*call.arrays, *call.others, **call.keywords)
    assert fingerprint(got) == fingerprint(expected), f"not what its two operations give: {call}"
    return 1


# ---- garbage ---------------------------------------------------------------------------------------------------------

GARBAGE: tuple[Any, ...] = (
    None, "", "half ", -1, 0, 3.7, math.nan, math.inf, 2**70, True, b"x", [], (), {}, object(), (1,), (0, 0), (-1, 2), (1, 2, 3),
    (1, 1, 1, 1, 1, 1, 1), ("a", "b"), ((1, 2), 3), 1j, np.float32(2), np.int64(2), np.zeros(0), np.zeros((2, 0, 3, 3), "f"),
    np.float32(1) * np.ones(()), np.ones((2, 3), "int32"), np.ones((1, 2, 3, 4), complex), np.array([None]), np.array(["a"]),
    np.ones((1, 2, 3, 4, 5, 6, 7), "f"), np.ones((2, 3), "f"), range(2), slice(3), Ellipsis, NotImplemented, type, print,
    (np.ones((2, 3)), 1), [np.ones(2), np.ones(2)],
)  # fmt: skip
CLEAN = (ValueError, TypeError, numbadnn.NumbaDNNError, NotImplementedError)


class Spoiled(NamedTuple):
    """A call with the argument at ``place`` (a position or a keyword) replaced by GARBAGE[``number``]."""

    call: Call
    place: Any
    number: int


@st.composite
def garbage(draw_one: Any) -> Spoiled:
    call = draw_one(calls())
    parameters = inspect.signature(getattr(numbadnn, call.function)).parameters.values()
    named = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} | set(call.keywords)
    places = [*range(len(call.arrays) + len(call.others)), *sorted(named)]
    return Spoiled(call, draw_one(st.sampled_from(places)), draw_one(st.integers(0, len(GARBAGE) - 1)))


def survive(spoiled: Spoiled) -> bool:
    """Whether the spoiled call raised; AssertionError for an unclean error or a changed array."""
    call, bad = spoiled.call, GARBAGE[spoiled.number]
    positional, keywords = [*call.arrays, *call.others], dict(call.keywords)
    if isinstance(spoiled.place, int):
        positional[spoiled.place] = bad
    else:
        keywords[spoiled.place] = bad
    before, raised = [fingerprint(a) for a in call.arrays], False
    try:
        getattr(numbadnn, call.function)(*positional, **keywords)
    except CLEAN as error:
        raised = True
        assert _says(str(error), bad), f"{type(error).__name__} names no argument: {error} from {spoiled}"
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error} from {call!r} with {spoiled.place}={bad!r}") from error
    assert [fingerprint(a) for a in call.arrays] == before, f"an array was changed by {spoiled}"
    return raised


@functools.cache
def _argument_names() -> re.Pattern[str]:
    """The arguments of all functions, for some stand on others; rnn_backward names in ``given`` what has no name of its own."""
    names = {n for function in COVERED for n in inspect.signature(getattr(numbadnn, function)).parameters}
    names |= {"cx", "dy", "dhy", "dcy"}
    plain = "|".join(sorted(n for n in names if "_" not in n))  # "out" is a word of many sentences
    others = "|".join(sorted(n for n in names if "_" in n))
    return re.compile(rf"\b({plain})[:=]|\b({others})\b")


def _says(message: str, bad: Any) -> bool:
    """Whether a message names an argument, or shows the value given."""
    shown = any(text and text in message for text in (repr(bad), str(bad)))
    return shown or bool(_argument_names().search(message))


# ---- rounds -----------------------------------------------------------------------------------------------------


def run_once(number: int, examples: int, device: int, over: Callable[[], bool] = lambda: False) -> dict[str, int]:
    """``examples`` problems and as many spoiled calls from one seed, none begun once ``over()``.

    Raises at the first failure, made small, for which there is always time.
    """
    counts = {"problems": 0, "runs": 0, "spoiled": 0, "raised": 0}
    failed: list[bool] = []
    how = settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink), print_blob=False,
    )  # fmt: skip

    @contextmanager
    def watched() -> Iterator[None]:
        try:
            yield
        except BaseException:
            failed.append(True)
            raise

    @seed(number)
    @how
    @given(calls())
    def problems(call: Call) -> None:
        if over() and not failed:
            return
        with watched():
            ran = hold(call, device)
        counts["problems"] += bool(ran)
        counts["runs"] += ran

    @seed(number)
    @how
    @given(garbage())
    def spoil(spoiled: Spoiled) -> None:
        if over() and not failed:
            return
        with watched():
            raised = survive(spoiled)
        counts["spoiled"] += 1
        counts["raised"] += raised

    problems()
    spoil()
    return counts
