"""How simulated threads take turns; test_kernels_simulator.py starts it. Needs ``NUMBA_ENABLE_CUDASIM=1`` in the environment."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from reporting import end, report

from numbadnn.kernels.build.simulated_block import launch
from numbadnn.kernels.lang.cuda import cuda

THREADS = 8


def neighbour(step: int, meets: bool) -> Callable[..., None]:
    """Each thread writes its number and reads that of the one ``step`` further."""

    def kernel(found):  # type: ignore[no-untyped-def]
        told = cuda.shared.array(8, np.int64)
        number = cuda.threadIdx.x
        told[number] = -1
        cuda.syncthreads()
        told[number] = number
        if meets:
            cuda.syncthreads()
        found[number] = told[(number + step) % 8]

    return kernel


def some_leave(found):  # type: ignore[no-untyped-def]
    """Who has ended is not waited for."""
    number = cuda.threadIdx.x
    if number < 3:
        return
    cuda.syncthreads()
    found[number] = cuda.syncthreads_count(number > 5) + 10 * cuda.syncthreads_and(number > 2)


def stuck(found):  # type: ignore[no-untyped-def]
    if cuda.threadIdx.x == 2:
        threading.current_thread().wait_until(lambda: False)  # type: ignore[attr-defined]
    cuda.syncthreads()


def broken(found):  # type: ignore[no-untyped-def]
    found[cuda.threadIdx.x * 2] = 1


def outcome(kernel: Any) -> Any:
    found = np.full(THREADS, -9)
    try:
        launch(kernel, (2, 1, 1), (THREADS, 1, 1), 0, found)
    except Exception as error:
        return error
    return found


if __name__ == "__main__":
    for step in (1, -1):
        wanted = (np.arange(THREADS) + step) % THREADS
        report(f"with a meeting, step {step}", np.array_equal(outcome(neighbour(step, True)), wanted))
    found = [bool(np.array_equal(outcome(neighbour(s, False)), (np.arange(THREADS) + s) % THREADS)) for s in (1, -1)]
    report("a missing meeting shows", not any(found))
    report("who ended is not waited for", outcome(some_leave).tolist() == [-9, -9, -9, 12, 12, 12, 12, 12])
    report("who waits for ever is told", "threads [2] wait for what none" in str(outcome(stuck)))
    error = outcome(broken)
    report("an error says whose", isinstance(error, IndexError) and "thread (4, 0, 0) of block (0, 0, 0)" in str(error))
    end()
