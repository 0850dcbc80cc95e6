"""Processes that work side by side: results, over, and what happens to a task that ends its process."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from typing import Any

import pytest

from numbadnn.measuring import workers


def double(task: Any, note: workers.Note) -> Any:
    """Twice the task; one that is negative ends its process after it said so."""
    note(f"at {task}")
    if task < 0:
        os._exit(7)
    return 2 * task


@pytest.mark.slow
def test_tasks_are_done_and_one_that_ends_its_process_is_tried_again_or_said() -> None:
    tries = []

    def again(task: int, ended: workers.Ended) -> int | None:
        tries.append((task, ended))
        return -task if task == -3 else None

    found = dict(workers.each([1, -3, 5, -4], double, 2, again=again))
    assert {1: 2, 3: 6, 5: 10}.items() <= found.items()
    assert found[-4] == workers.Ended("its process ended with status 7", "at -4")
    assert sorted(task for task, _ in tries) == [-4, -3]


@pytest.mark.slow
def test_no_task_is_begun_when_it_is_over() -> None:
    asked = itertools.count()  # once before each task
    assert list(workers.each(range(1, 100), double, 1, over=lambda: next(asked) >= 2)) == [(1, 2), (2, 4)]


def sleep(task: Any, note: workers.Note) -> Any:
    time.sleep(task)


@pytest.mark.slow
def test_who_stops_listening_ends_the_processes_and_what_they_are_at() -> None:
    """Ctrl-C is such a listener: it waited for all tasks that were left, each in a new process."""
    listening = workers.each([0, 600, 600, 600, 600], sleep, 2)
    assert next(listening) == (0, None)
    begin = time.perf_counter()
    listening.close()  # type: ignore[attr-defined]
    assert time.perf_counter() - begin < 60 and not multiprocessing.active_children()
