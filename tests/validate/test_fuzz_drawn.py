"""What the fuzzer draws: many problems of a form, which share their kernels, under many options; and every family soon."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from recorded_cuda import DEVICES, RecordedCuda, installed

from numbadnn import config
from numbadnn.call import select
from numbadnn.registry import FAMILY, implementations
from numbadnn.validate.fuzz import draws, rounds, trials

SEED, H200 = 5, next(iter(DEVICES))


@pytest.fixture
def cuda() -> Iterator[RecordedCuda]:
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    with installed() as found:
        yield found


def test_problems_that_follow_each_other_share_their_kernels(cuda: RecordedCuda) -> None:
    """To compile a kernel takes as long as twenty problems: a fuzzer that needs new ones all the time tries little."""
    problems = 0
    for number in range(0, 3 * rounds.CHUNK, 6):
        problem = rounds.drawn(SEED, number)
        if problem is None:
            continue
        problems += 1
        with rounds.quiet(), config.using(workspace_limit=rounds.WORKSPACE, **rounds.options_of(number)):
            policy = select.policy_in_force(problem.op, H200)
            for impl in implementations(problem.op, ("numba",)):
                if not select.refusal(impl, problem, policy, config.current()):
                    impl.plan(problem, policy, None)
    assert problems >= 60 and 0 < len(set(cuda.kernels)) < problems


def test_a_chunk_is_of_one_form_under_many_options_by_one_thread_and_by_many() -> None:
    for chunk in (0, 7, rounds.FORMS + 3):
        numbers = range(chunk * rounds.CHUNK, (chunk + 1) * rounds.CHUNK)
        assert {rounds.form_of(number) for number in numbers} == {chunk % rounds.FORMS}
        assert len({str(rounds.options_of(number)) for number in numbers}) >= 3
        assert {rounds.threads_of(number) for number in numbers} == {1, trials.THREADS}


def test_a_short_run_meets_every_family() -> None:
    first = [rounds.drawn(SEED, form * rounds.CHUNK + n) for form in range(len(draws.FAMILIES)) for n in range(12)]
    families = {FAMILY[problem.op] for problem in first if problem is not None}
    assert families == set(FAMILY.values()), set(FAMILY.values()) - families


def test_every_problem_has_its_turn_and_processes_begin_with_a_form_each() -> None:
    for count, abreast in ((7 * rounds.CHUNK + 30, 3), (10, 4), (2 * rounds.CHUNK, 1)):
        todo = list(rounds.tasks("numba", 0, SEED, count, 0.0, abreast))
        assert sorted(n for task in todo for n in range(task.first, task.last)) == list(range(count))
        first = [rounds.form_of(task.first) for task in todo[:abreast]]
        assert first == list(range(len(first))) and len(first) == min(abreast, len(todo))
        assert all(task.first // rounds.VISIT == (task.last - 1) // rounds.VISIT for task in todo)
