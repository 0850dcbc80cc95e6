"""The ranks of implementations: every one can be estimated for every problem, also for those that it would refuse."""

import math

from numbadnn import cases
from numbadnn.registry import implementations


def test_every_rank_of_every_problem_is_a_number() -> None:
    """``explain`` and ``select`` rank before they ask who supports a problem."""
    for case in cases.find(["contract"]):
        problem = case.problem()
        for impl in implementations(case.op):
            assert not math.isnan(impl.rank(problem)), f"{impl.name}: {case.text}"
