"""Random problems on every implementation against the reference, and random garbage that must raise cleanly.

``problems()`` draws a call of a public function (shapes, strides, alignment, dtypes, options) and takes the problem that the
function makes of it; every implementation for the device is then held to the contract on it. ``garbage()`` draws a good call
and spoils one argument: it must work, or raise ValueError, TypeError or one of the library's own errors, and leave the arrays
as they were. ``python -m numbadnn.validate.fuzz --seconds 60 --seed 0`` (``make fuzz``) runs both until the time is over.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from typing import Any, NamedTuple

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import numbadnn
from numbadnn import config, dispatch, select
from numbadnn.cases.layouts import operand
from numbadnn.problem import ITEMSIZE, Policy
from numbadnn.registry import implementations
from numbadnn.validate.check import Row, Subject, judge
from numbadnn.validate.data import buffer
from numbadnn.validate.determinism import fingerprint
from numbadnn.validate.oracle import Trial

BACKENDS = {-1: ("cpu",), 0: ("numba", "cudnn")}
LAYOUTS = ("", "", "nhwc", "rows", "reversed", "broadcast", "transposed", "steps", ",unaligned", "rows,unaligned")
#: more multiplications than this take the NumPy reference too long
MOST_WORK = 2_000_000


class Call(NamedTuple):
    """A public function with good arguments: arrays, other positional arguments, keywords."""

    function: str
    arrays: tuple[np.ndarray, ...]
    others: tuple[Any, ...]
    keywords: dict[str, Any]

    def __repr__(self) -> str:
        arrays = ", ".join(f"{a.dtype.name}{a.shape}{a.strides}" for a in self.arrays)
        return f"{self.function}({arrays}, {self.others}, {self.keywords})"


def _array(draw: Any, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Zeros in a random layout; the values come from the family's law."""
    layout = draw(st.sampled_from(LAYOUTS))
    if layout.split(",")[0] in ("nhwc", "transposed") and len(shape) < 3:
        layout = ""
    return buffer(operand(dtype, shape, layout), 0).array


#: what is drawn from; a short run may take fewer, each costs the CPU's kernels a compilation
DTYPES = tuple(sorted(ITEMSIZE))


def _dtype(draw: Any) -> str:
    return draw(st.sampled_from(DTYPES))


def _sizes(draw: Any, count: int, most: int) -> tuple[int, ...]:
    return tuple(draw(st.integers(1, most)) for _ in range(count))


@st.composite
def convolutions(draw: Any) -> Call:
    """conv2d and conv3d, and their gradients."""
    axes = draw(st.sampled_from((2, 2, 2, 3)))
    dtype, groups = _dtype(draw), draw(st.sampled_from((1, 1, 1, 2, 3)))
    n, c, k = (draw(st.integers(1, m)) for m in (3, 4, 5))
    taps, image = _sizes(draw, axes, 6 - axes), _sizes(draw, axes, 10 if axes == 2 else 6)
    pairs = tuple((draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in range(axes))
    border = draw(st.sampled_from(("valid", "half", "full", 1, (1,) * axes, pairs)))
    keywords = {
        "border_mode": border,
        "subsample": _sizes(draw, axes, 3),
        "filter_dilation": _sizes(draw, axes, 3),
        "filter_flip": draw(st.booleans()),
        "num_groups": groups,
    }
    x, w = _array(draw, dtype, (n, c * groups, *image)), _array(draw, dtype, (k * groups, c, *taps))
    forward = Call(f"conv{axes}d", (x, w), (), keywords)
    direction = draw(st.sampled_from(("", "_grad_wrt_inputs", "_grad_wrt_weights")))
    if not direction:
        return forward
    try:
        y = _array(draw, dtype, problem_of(forward).y.shape)
    except ValueError:  # the filters do not fit the image
        return forward
    if direction == "_grad_wrt_inputs":
        return Call(f"conv{axes}d{direction}", (y, w), (x.shape,), keywords)
    return Call(f"conv{axes}d{direction}", (x, y), (w.shape,), keywords)


@st.composite
def softmaxes(draw: Any) -> Call:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=2, max_size=5)))
    if draw(st.booleans()):
        shape = (draw(st.integers(1, 5)), draw(st.integers(1, 3000)))
    dtype, others = (
        _dtype(draw),
        (draw(st.sampled_from(("accurate", "log"))), draw(st.sampled_from(("channel", "instance")))),
    )
    arrays = [_array(draw, dtype, shape) for _ in range(draw(st.integers(1, 2)))]
    return Call("softmax" if len(arrays) == 1 else "softmax_grad", tuple(arrays), others, {})


@st.composite
def pools(draw: Any) -> Call:
    axes, dtype = draw(st.sampled_from((2, 2, 3))), _dtype(draw)
    image = tuple(draw(st.integers(1, 9 if axes == 2 else 6)) for _ in range(axes))
    window, stride = _sizes(draw, axes, 4), _sizes(draw, axes, 3)
    pad = tuple(draw(st.integers(0, w - 1)) for w in window)
    mode = draw(st.sampled_from(("max", "max_deterministic", "average_inc_pad", "average_exc_pad", "sum")))
    x = _array(draw, dtype, (draw(st.integers(1, 3)), draw(st.integers(1, 5)), *image))
    others = (window, stride, mode, pad)
    forward = Call("pool", (x,), others, {})
    if draw(st.booleans()):
        return forward
    try:
        shape = problem_of(forward).y.shape
    except ValueError:
        return forward
    return Call("pool_grad", (x, _array(draw, dtype, shape), _array(draw, dtype, shape)), others, {})


@st.composite
def norms(draw: Any) -> Call:
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=2, max_size=5)))
    mode, dtype = draw(st.sampled_from(("per-activation", "spatial"))), _dtype(draw)
    small = (1, *shape[1:]) if mode == "per-activation" else (1, shape[1], *(1,) * (len(shape) - 2))
    if draw(st.booleans()):
        arrays = [_array(draw, dtype, shape), *(_array(draw, dtype, small) for _ in range(4))]
        return Call("batch_normalization_test", tuple(arrays), (mode, draw(st.sampled_from((1e-4, 0.5)))), {})
    arrays = [_array(draw, dtype, shape), *(_array(draw, dtype, small) for _ in range(2))]
    return Call("batch_normalization_train", tuple(arrays), (mode,), {})


@st.composite
def images(draw: Any) -> Call:
    """Upsampling, and the sampler of the spatial transformer."""
    dtype, n, c = _dtype(draw), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    x = _array(draw, dtype, (n, c, *_sizes(draw, 2, 7)))
    if draw(st.booleans()):
        return Call("bilinear_upsampling", (x,), (draw(st.integers(1, 4)),), {})
    return Call("spatialtf_sampler", (x, _array(draw, dtype, (n, *_sizes(draw, 2, 6), 2))), (), {})


def calls() -> Any:
    return st.one_of(convolutions(), convolutions(), softmaxes(), pools(), norms(), images())


def problem_of(call: Call) -> Any:
    """The problem that the public function makes of a call; ValueError and TypeError are its own."""
    function = getattr(numbadnn, call.function)
    return dispatch.intercept("problem", function, (*call.arrays, *call.others), dict(call.keywords))


def hold(call: Call, device: int) -> int:
    """Every implementation for the device, held to the contract on this call's problem; how many took it."""
    try:
        problem = problem_of(call)
    except ValueError:
        return 0  # shapes that do not fit one another, said so
    if any(s.size == 0 for s in (*problem.inputs, *problem.outputs)) or problem.flops > MOST_WORK:
        return 0
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


# ---- garbage ---------------------------------------------------------------------------------------------------------

GARBAGE: tuple[Any, ...] = (
    None, "", "half ", -1, 0, 3.7, math.nan, math.inf, 2**70, True, b"x", [], (), {}, object(), (1,), (0, 0), (-1, 2), (1, 2, 3),
    (1, 1, 1, 1, 1, 1, 1), ("a", "b"), ((1, 2), 3), 1j, np.float32(2), np.int64(2), np.zeros(0), np.zeros((2, 0, 3, 3), "f"),
    np.float32(1) * np.ones(()), np.ones((2, 3), "int32"), np.ones((1, 2, 3, 4), complex), np.array([None]), np.array(["a"]),
    np.ones((1, 2, 3, 4, 5, 6, 7), "f"), np.ones((2, 3), "f"), range(2), slice(3), Ellipsis, NotImplemented, type, print,
)  # fmt: skip
CLEAN = (ValueError, TypeError, numbadnn.NumbaDNNError, NotImplementedError)


class Spoiled(NamedTuple):
    """A call with the argument at ``place`` (a position or a keyword) replaced by GARBAGE[``number``]."""

    call: Call
    place: Any
    number: int


@st.composite
def garbage(draw: Any) -> Spoiled:
    call = draw(calls())
    places = [*range(len(call.arrays) + len(call.others)), *call.keywords, "backend", "out", "stream"]
    return Spoiled(call, draw(st.sampled_from(places)), draw(st.integers(0, len(GARBAGE) - 1)))


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
        assert str(error), f"{type(error).__name__} without a word: {spoiled}"
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error} from {call!r} with {spoiled.place}={bad!r}") from error
    assert [fingerprint(a) for a in call.arrays] == before, f"an array was changed by {spoiled}"
    return raised


# ---- the command -----------------------------------------------------------------------------------------------------


def run_once(number: int, examples: int, device: int) -> dict[str, int]:
    """``examples`` problems and as many spoiled calls from one seed; raises at the first failure, made small."""
    counts = {"problems": 0, "runs": 0, "spoiled": 0, "raised": 0}
    how = settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink), print_blob=False,
    )  # fmt: skip

    @seed(number)
    @how
    @given(calls())
    def problems(call: Call) -> None:
        ran = hold(call, device)
        counts["problems"] += bool(ran)
        counts["runs"] += ran

    @seed(number)
    @how
    @given(garbage())
    def spoil(spoiled: Spoiled) -> None:
        counts["spoiled"] += 1
        counts["raised"] += survive(spoiled)

    problems()
    spoil()
    return counts


def main() -> int:
    from contextlib import nullcontext

    from numbadnn import info
    from numbadnn.kernels._context import ensure_context

    parser = argparse.ArgumentParser(
        prog="fuzz", description="Random problems and random garbage until the time is over."
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed; every round takes the next")
    parser.add_argument("--examples", type=int, default=100, help="problems, and spoiled calls, a round")
    options = parser.parse_args()
    begin, number, total = (
        time.perf_counter(),
        options.seed,
        dict.fromkeys(("problems", "runs", "spoiled", "raised"), 0),
    )
    device = 0 if info.gpus() else -1
    with ensure_context(0) if device == 0 else nullcontext():
        while time.perf_counter() - begin < options.seconds:
            try:
                found = run_once(number, options.examples, device)
            except AssertionError as error:
                print(f"seed {number}: {error}")
                return 1
            total = {name: total[name] + found[name] for name in total}
            number += 1
    print(f"seeds {options.seed} to {number - 1}: " + ", ".join(f"{count} {name}" for name, count in total.items()))
    return 0


#: what is drawn; the other operations take arguments that belong together more closely
COVERED = {
    "conv2d", "conv2d_grad_wrt_inputs", "conv2d_grad_wrt_weights", "conv3d", "conv3d_grad_wrt_inputs",
    "conv3d_grad_wrt_weights", "softmax", "softmax_grad", "pool", "pool_grad", "batch_normalization_test",
    "batch_normalization_train", "bilinear_upsampling", "spatialtf_sampler",
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
