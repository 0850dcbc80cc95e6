"""``numba.unshared`` on a GPU where kernels of many positions and images take over: other cases are too small for them."""

import pytest
from large_problems import IMAGES, UNSHARED, first
from simulated_unshared import with_extremes

from numbadnn.problem import Policy
from numbadnn.problems.conv import ConvProblem
from numbadnn.validate.check import Subject, check


@pytest.mark.gpu
@pytest.mark.slow(10)
@pytest.mark.parametrize(("kind", "text"), UNSHARED)
def test_what_larger_kernels_compute(kind: str, text: str) -> None:
    problem = ConvProblem.parse(text)
    impl = first("numba.unshared", problem, Policy(device=0))
    row = check(impl, Subject(text, problem), Policy(device=0), timed=False)
    assert row.status == "ok", row.reason
    assert row.same_bits
    assert row.facts["config"].startswith(kind), row.facts


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"{IMAGES} x=float32:32x16x36x36 w=float32:16x32x32x16x5x5 alpha=-2", "InputsF32x2Config"),
        ("conv2d x=float32:32x16x31x31 w=float32:16x23x23x16x9x9 alpha=-2", "F32x2Config"),
    ],
)
def test_what_tensor_cores_cannot_multiply_is_as_it_would_be_without_them(text: str, kind: str) -> None:
    problem = ConvProblem.parse(text)
    impl = first("numba.unshared", problem, Policy(device=0))
    row = check(impl, Subject("extremes", problem, with_extremes(problem)), Policy(device=0), timed=False)
    assert row.status == "ok", row.reason
    assert row.facts["config"].startswith(kind), row.facts
