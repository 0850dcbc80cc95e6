"""The validator is validated: each planted fault is found, its twin passes, and without the check that sees it it is missed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn.cases import parse
from numbadnn.measuring.compare import Comparison
from numbadnn.measuring.data import buffer
from numbadnn.validate import execute, run
from numbadnn.validate.check import RUNS
from numbadnn.validate.faults import CHECKS, FAULTS, Fault, implementation, planted
from numbadnn.validate.oracle import Trial

RIGHT = Comparison(0.0, (), 0, 0)
every_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)


def remove(check: str, fault: Fault, patch: pytest.MonkeyPatch) -> None:
    """Validate without one of its checks."""
    if check == "bound":
        patch.setattr(Trial, "compare", lambda self, results, *more: RIGHT)
    elif check == "integers":
        patch.setattr(Trial, "compare_exactly", lambda self, results: RIGHT)
    elif check == "same bits":
        patch.setattr(execute, "same_bits", lambda results: True)
    elif check == "guard":
        patch.setattr(execute, "_damage", lambda *what: "")
    elif check == "fill":
        known = {k: Trial.of(parse(fault.case), 0, k).value for k in ("random", "integers")}
        values = iter([known["random"]] * (RUNS + 1) + [known["integers"]])  # the runs, the timing, the integers
        patch.setattr(execute, "targets", lambda problem, old=None: [buffer(problem.output, next(values))])


def status(fault: Fault, faulty: bool) -> int:
    """What ``numbadnn validate CASE`` exits with where the only implementation is the fault, or its twin."""
    impl = implementation(fault, faulty)
    with planted(impl), numbadnn.using(only=impl.name):
        return run.validate([fault.case], "cpu")


@every_fault
def test_the_fault_is_found_and_its_twin_passes(fault: Fault) -> None:
    assert status(fault, faulty=True) == 1
    assert status(fault, faulty=False) == 0


@every_fault
def test_without_its_check_it_is_missed_and_with_any_of_them_it_is_not(fault: Fault) -> None:
    assert fault.caught_by <= set(CHECKS)
    for kept in (None, *fault.caught_by):
        with pytest.MonkeyPatch.context() as patch:
            for check in fault.caught_by - {kept}:
                remove(check, fault, patch)
            assert status(fault, faulty=True) == (0 if kept is None else 1), f"removed all but {kept}"


@every_fault
def test_the_other_checks_do_not_see_it(fault: Fault) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # what was not written shows as NaN, which is beyond every bound
        needed = fault.caught_by | ({"bound"} if "fill" in fault.caught_by else {"fill"})
        for check in set(CHECKS) - needed:
            remove(check, fault, patch)
        assert status(fault, faulty=True) == 1


def test_every_check_is_needed_by_some_fault() -> None:
    assert frozenset().union(*(fault.caught_by for fault in FAULTS)) == set(CHECKS)


def test_a_planted_implementation_runs_through_dispatch_and_is_gone_afterwards() -> None:
    x, w = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 3, 3), np.float32)
    right: Any = numbadnn.conv2d(x, w, border_mode="half")
    fault = next(f for f in FAULTS if f.name == "padding")
    with planted(implementation(fault, True), implementation(fault, False)):
        for name, same in (("fault.padding", False), ("twin.padding", True)):
            with numbadnn.using(only=name):
                found = numbadnn.conv2d(x, w, border_mode="half")
            last = numbadnn.last_call()
            assert last is not None and last.impl == name and np.array_equal(found, right) == same
    with numbadnn.using(only="fault.*"), pytest.raises(numbadnn.NotSupportedError):
        numbadnn.conv2d(x, w, border_mode="half")
