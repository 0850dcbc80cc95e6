"""Own kernels without a GPU, held against the reference: the same source under Numba's CUDA simulator, in its own process."""

import pytest
from simulated import checks_passed

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
from numbadnn import cases
from numbadnn.registry import FAMILY


@pytest.mark.parametrize(
    ("part", "checks"),
    [
        ("convolutions", 51),
        ("softmaxes", 96),
        ("configurations", 32),
        ("shared_configurations", 32),
        ("special_values", 12),
        ("copies", 96),
        ("maxima", 60),
    ],
)
@pytest.mark.slow(15)
def test_kernels_under_the_simulator(part: str, checks: int) -> None:
    assert checks_passed("kernels", part) >= checks


SIMULATED = [case for case in cases.all_cases().values() if "simulate" in case.tags]


@pytest.mark.slow(15)
@pytest.mark.parametrize("family", sorted({FAMILY[case.op] for case in SIMULATED}))
def test_cases_under_the_simulator(family: str) -> None:
    assert checks_passed("kernels", family) >= sum(FAMILY[case.op] == family for case in SIMULATED)


def test_every_kernel_imports_where_numba_cuda_is_not_installed() -> None:
    assert checks_passed("plain") > 200


def test_threads_take_turns() -> None:
    assert checks_passed("block") == 6


def test_simulate_refuses_outside_the_simulator() -> None:
    from numbadnn.validate import simulate

    with pytest.raises(RuntimeError, match="NUMBA_ENABLE_CUDASIM"):
        simulate.run(None, ())
