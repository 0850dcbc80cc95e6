"""How many threads a call may use: the option, the quota of control groups, Numba's number; BLAS's, and how threads wait."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn.cpu.lang import parallel
from numbadnn.cpu.lang.blas import _calls, one_thread, product
from numbadnn.host import quota
from numbadnn.measuring.stage import asleep

RANDOM = np.random.default_rng(3)

SEVERAL = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")


@pytest.mark.parametrize(
    ("files", "membership", "expected"),
    [
        ({"cpu.max": "max 100000"}, "0::/\n", []),
        ({"cpu.max": "150000 100000"}, "0::/\n", [1.5]),
        (
            {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000", "cpu.max": "800000 100000"},
            "0::/a/b",
            [3.0, 8.0],
        ),
        ({"cpu.max": "200000 100000"}, "0::/of/the/host", [2.0]),
        ({"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "100000"}, "3:memory:/m\n1:cpu:/a\n", [0.5]),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "1:cpu:/", []),
        (
            {"cpu,cpuacct/cpu.cfs_quota_us": "400000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            "4:cpu,cpuacct:/docker/x",
            [4.0],
        ),
        ({"cpu.max": "what is this"}, "0::/", []),
        ({}, "", []),
    ],
)
def test_quotas_of_both_versions(files: dict[str, str], membership: str, expected: list[float], tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert list(quota.quotas(membership, tmp_path)) == expected


def test_half_a_processor_is_one_thread_and_affinity_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "quotas", lambda *_: [0.5])
    quota.processors.cache_clear()
    try:
        assert quota.processors() == 1
        monkeypatch.setattr(quota, "quotas", lambda *_: [])
        quota.processors.cache_clear()
        if hasattr(os, "sched_getaffinity"):
            assert quota.processors() == len(os.sched_getaffinity(0))
    finally:
        quota.processors.cache_clear()


@SEVERAL
def test_the_option_and_the_quota_bound_the_threads_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    monkeypatch.setattr(parallel, "processors", lambda: 1)
    assert parallel.thread_count(10**9) == 1
    with numbadnn.using(threads=2):
        assert parallel.thread_count(10**9) == 2
    monkeypatch.setattr(parallel, "processors", lambda: 10**6)
    assert parallel.thread_count(10**9) == numba.get_num_threads()
    with numbadnn.using(threads="1"):
        assert parallel.thread_count(10**9) == 1
    assert parallel.thread_count(10) == 1


def _blas() -> tuple[Callable[[], int], Callable[[int], Any]]:
    calls = _calls()
    if calls is None:
        pytest.skip("NumPy's BLAS is not known")
    return calls


def test_blas_has_one_thread_inside_and_its_own_number_after() -> None:
    read, write = _blas()
    before = read()
    write(2)
    try:
        found = read()
        begun, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            with one_thread:
                begun.set()
                go_on.wait()

        other = threading.Thread(target=hold)
        with one_thread:
            other.start()
            begun.wait()
            assert read() == 1
        assert read() == 1  # the other thread is inside still
        go_on.set()
        other.join()
        assert read() == found
    finally:
        write(before)


@pytest.mark.parametrize("shapes", [((1200, 300), (300, 600)), ((2, 40, 500), (2, 500, 4000))])
def test_a_product_in_parts_has_the_bits_of_its_parts_on_any_number_of_threads(shapes: Any) -> None:
    a, b = (RANDOM.standard_normal(shape).astype(np.float32) for shape in shapes)
    a[..., 7, 3] = np.inf
    b[..., 3, 5] = 0
    found = []
    for threads in (1, 2, 3):
        out = np.full((*shapes[0][:-1], shapes[1][-1]), np.nan, np.float32)
        with numbadnn.using(threads=threads), one_thread, np.errstate(all="ignore"):
            assert product(a, b, out) is out
        found.append(out.tobytes())
    assert found[0] == found[1] == found[2]
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(out, np.matmul(a.astype(float), b), rtol=0, atol=1e-4 * 500)


def test_a_forked_child_multiplies_by_itself() -> None:
    code = (
        "import os, numpy as np, numbadnn\n"
        "from numbadnn.cpu.lang.blas import one_thread, product\n"
        "a = np.ones((700, 400), 'f4')\n"
        "def run():\n"
        "    with one_thread: return product(a, a.T.copy(), np.empty((700, 700), 'f4'))\n"
        "run()\n"
        "pid = os.fork()\n"
        "if not pid: os._exit(0 if (run() == 400).all() else 1)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_products_of_a_call_run_on_one_thread_of_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = _blas()
    before, seen, product = read(), [], np.matmul
    write(2)
    found = read()

    def matmul(*arrays: Any, **more: Any) -> Any:
        seen.append(read())
        return product(*arrays, **more)

    monkeypatch.setattr(np, "matmul", matmul)
    try:
        ones = np.ones((1, 2, 5, 5), np.float32)
        with numbadnn.using(only="cpu.corrmm"):
            numbadnn.conv2d(ones, np.ones((2, 2, 3, 3), np.float32))
        assert seen and set(seen) == {1}
        assert read() == found
    finally:
        write(before)


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="the system does not list threads")
def test_asleep_waits_for_threads_that_run() -> None:
    ended: list[float] = []

    def spin() -> None:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 60_000)  # without the interpreter's lock
        ended.append(time.perf_counter())

    spinning = threading.Thread(target=spin)
    spinning.start()
    asleep(30)
    left = time.perf_counter()
    spinning.join()
    assert ended[0] < left + 0.005  # it may have the lock to wait for
    began = time.perf_counter()
    asleep(30)
    assert time.perf_counter() - began < 5
