"""What a call on the CPU takes besides its arrays: each implementation says the most, and the option workspace_limit holds it."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import numbadnn
from numbadnn import cases
from numbadnn.cpu.lang import parallel
from numbadnn.measuring.data import buffer
from numbadnn.problem import Policy
from numbadnn.registry import beyond_limit, implementations
from numbadnn.validate.execute import targets, words
from numbadnn.validate.oracle import Trial

#: bytes of Python's own objects, which are not counted
SLACK = 1 << 14
RNN = "w=float32:{w} x=float32:4x5x6 hx=float32:2x5x8"
#: of so little work that one thread does it, by kernels that the contract's cases compile too
LINES = (
    "conv2d x=float32:2x8x8x8 w=float32:12x8x3x3 pad=1,1,1,1",
    "conv2d x=float16:2x8x8x8:nhwc w=float16:12x8x3x3 pad=1,1,1,1",
    "conv2d x=float32:2x16x9x9 w=float32:16x1x3x3 pad=1,1,1,1 groups=16",
    "conv2d_grad_wrt_weights x=float32:2x8x8x8 w=float32:12x8x3x3 pad=1,1,1,1",
    "conv2d_grad_wrt_weights x=float16:2x8x8x8:nhwc w=float16:12x8x3x3 y=float16:2x12x8x8:nhwc pad=1,1,1,1",
    "conv2d_grad_wrt_weights x=float32:2x16x9x9 w=float32:16x1x3x3 pad=1,1,1,1 groups=16",
    "conv2d_grad_wrt_inputs x=float32:3x4x6x7 w=float32:6x4x5x4x3x3",
    "conv2d_grad_wrt_weights x=float32:3x4x6x7 w=float32:6x4x5x4x3x3",
    "pool x=float32:1x2x20x40 window=3x3 stride=2x2 mode=average_inc_pad",
    "pool_grad x=float32:1x2x20x40 window=3x3 stride=2x2 mode=max",
    "softmax x=float32:5x1200",
    "batch_normalization_train x=float32:4x8x20x30 mode=per-activation epsilon=0.0001",
    "bilinear_upsampling x=float32:1x3x20x60 ratio=2",
    "spatialtf_sampler_grad img=float32:2x8x24x24 grid=float32:2x12x24x2 dy=float32:2x8x12x24",
    "dropout x=float32:10x1000 p=0.5",
    f"rnn_forward {RNN.format(w=1088)} cx=float32:2x5x8 mode=lstm hidden=8 layers=2",
    f"rnn_backward {RNN.format(w=816)} dy=float32:4x5x8 mode=gru hidden=8 layers=2",
)


def measured(run, problem) -> int:  # type: ignore[no-untyped-def]
    """The most bytes that a second run holds at a time, by Python's and NumPy's own count."""
    trial, peak = Trial.of(problem, 1), 0
    inputs = [buffer(s, v).array for s, v in zip(problem.inputs, trial.inputs, strict=True)]
    outputs = tuple(b.array for b in targets(problem, trial.old))
    for _ in range(2):
        parallel._local.buffer = None
        tracemalloc.start()
        try:
            run((*inputs, *words(problem)), outputs, None, None)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    return peak


@pytest.mark.parametrize("line", LINES)
def test_a_call_takes_no_more_than_its_plan_says(line: str) -> None:
    problem, ran = cases.parse(line), 0
    for impl in implementations(problem.op, ["cpu"]):
        if impl.supports(problem, Policy()):
            continue
        made = impl.plan(problem, Policy(), None)
        peak = measured(made.run, problem)
        assert made.scratch_bytes > 0 or peak < SLACK
        assert peak <= made.scratch_bytes + SLACK, impl.name
        assert made.scratch_bytes <= 3 * peak + SLACK, impl.name
        ran += 1
    assert ran


X, W = np.ones((1, 8, 8, 8), "float32"), np.ones((16, 8, 3, 3), "float32")


def test_what_takes_too_much_gives_way_to_another_and_says_so() -> None:
    def needed(name: str) -> int:
        return next(c.scratch_bytes for c in numbadnn.explain(numbadnn.conv2d, X, W).candidates if c.impl == name)

    assert needed("cpu.im2col") > needed("cpu.corrmm") > 0
    want = numbadnn.conv2d(X, W)
    assert numbadnn.last_call().impl == "cpu.im2col" and numbadnn.last_call().scratch_bytes == needed("cpu.im2col")
    with numbadnn.using(workspace_limit=f"{needed('cpu.corrmm')}B"):
        for _ in range(2):  # the second time it is known
            assert np.array_equal(numbadnn.conv2d(X, W), want) and numbadnn.last_call().impl == "cpu.corrmm"
        assert "bytes of scratch, the workspace limit is" in str(numbadnn.last_call().refusals)
        told = {c.impl: (c.state, c.reason) for c in numbadnn.explain(numbadnn.conv2d, X, W).candidates}
        assert told["cpu.corrmm"] == ("chosen", "") and told["cpu.im2col"][0] == "refused"
        refused = pytest.raises(numbadnn.NotSupportedError, match=r"cpu\.im2col: needs \d+ bytes of scratch")
        with numbadnn.using(only="cpu.im2col"), refused:
            numbadnn.conv2d(X, W)


def test_where_nothing_fits_each_says_what_it_needs() -> None:
    x = np.ones((5, 1200), "float32")
    with numbadnn.using(workspace_limit="16B"):
        for _ in range(2):
            with pytest.raises(numbadnn.NotSupportedError, match="bytes of scratch, the workspace limit is 16"):
                numbadnn.softmax(x)
        assert not numbadnn.explain(numbadnn.softmax, x).chosen
    numbadnn.softmax(x)


def test_the_limit_itself_may_be_taken() -> None:
    problem = cases.parse(LINES[0])
    (impl,) = (i for i in implementations("conv2d", ["cpu"]) if i.name == "cpu.im2col")
    made = impl.plan(problem, Policy(), None)
    assert beyond_limit(made, Policy(workspace_limit=made.scratch_bytes)) == ""
    assert "limit is 7" in beyond_limit(made, Policy(workspace_limit=7))
