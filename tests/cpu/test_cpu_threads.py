"""The CPU backend and threads: the same bits for any number, concurrent calls, a forked child, the workqueue layer."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from folders import ROOT, SUPPORT

import numbadnn
from numbadnn.cpu.conv import im2col
from numbadnn.cpu.lang import parallel as _parallel
from numbadnn.cpu.softmax import softmax
from numbadnn.host import private
from numbadnn.problem import Policy, Spec
from numbadnn.problems.conv import DIRECTIONS, ConvProblem
from numbadnn.problems.softmax import SoftmaxProblem

SHAPES = [
    {"x": (4, 40, 14, 14), "w": (70, 40, 3, 3), "y": (4, 70, 14, 14)},
    {"x": (3, 32, 28, 28), "w": (32, 1, 3, 3), "y": (3, 32, 28, 28)},
    {"x": (2, 32, 28, 28), "w": (48, 4, 3, 3), "y": (2, 48, 28, 28)},
    {"x": (2, 3, 112, 112), "w": (8, 3, 3, 3), "y": (2, 8, 112, 112)},
]


def _nothing(threads):
    """A body that does nothing."""


def conv_call(op, shapes, seed=0):
    """A function that runs one convolution from new arrays and returns its output."""
    rng = np.random.default_rng(seed)
    names, result = DIRECTIONS[op]
    inputs = tuple(rng.standard_normal(shapes[n], dtype=np.float32) for n in names)
    groups = shapes["x"][1] // shapes["w"][1]
    problem = ConvProblem(op, *(Spec.of("float32", shapes[n]) for n in "xwy"), padding=((1, 1), (1, 1)), groups=groups)
    executable = im2col.plan(problem, Policy(), None)

    def call():
        out = np.full(shapes[result], np.nan, np.float32)
        executable.run(inputs, (out,), None, None)
        return out

    return call


def softmax_call(shape):
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    spec = Spec.of("float32", shape)
    executable = softmax.plan(SoftmaxProblem("softmax", y=spec, x=spec), Policy(), None)

    def call():
        out = np.full(shape, np.nan, np.float32)
        executable.run((x,), (out,), None, None)
        return out

    return call


def calls():
    return [conv_call(op, s) for op in DIRECTIONS for s in SHAPES] + [
        softmax_call((64, 500)),
        softmax_call((2, 30, 40, 40)),
    ]


def test_same_bits_for_any_number_of_threads():
    import numba

    before = numba.get_num_threads()
    try:
        for call in calls():
            results = []
            for threads in range(1, numba.config.NUMBA_NUM_THREADS + 1):
                numba.set_num_threads(threads)
                results.append(call())
                assert numba.get_num_threads() == threads
            assert np.isfinite(results[0]).all()
            for other in results[1:]:
                np.testing.assert_array_equal(results[0], other)
    finally:
        numba.set_num_threads(before)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")
def test_parallel_regions_run():
    """Otherwise the test above compares a serial build with itself."""
    from numbadnn.cpu.conv import gather as _gather
    from numbadnn.cpu.lang import parallel as _parallel

    conv_call("conv2d", SHAPES[0])()
    assert _parallel.kernel_of(_gather.gather)._parallel is not None


def in_threads(call, number=4, times=5):
    """Every result of ``number`` Python threads calling at once."""
    results, start = [], threading.Barrier(number)

    def work():
        start.wait()
        for _ in range(times):
            results.append(call())

    threads = [threading.Thread(target=work) for _ in range(number)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == number * times
    return results


def test_concurrent_calls():
    for call in calls():
        expected = call()
        for result in in_threads(call):
            np.testing.assert_array_equal(result, expected)


def run_script(body, **environment):
    """Run Python text in a fresh process that can import this file."""
    text = "from test_cpu_threads import *\n" + textwrap.dedent(body)
    path = os.pathsep.join([os.path.dirname(__file__), str(SUPPORT), str(ROOT), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", text],
        env=os.environ | {"PYTHONPATH": path} | environment,
        timeout=300,
        capture_output=True,
        text=True,
    )


FORK = """
import numba
call = conv_call("conv2d", SHAPES[0])
expected = call()
assert numba.threading_layer() == LAYER or LAYER == ""
child = os.fork()
if child == 0:
    same = all(np.array_equal(call(), expected) for _ in range(3)) and np.isfinite(softmax_call((64, 500))()).all()
    os._exit(0 if same else 3)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert np.array_equal(call(), expected)
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("layer", ["", "workqueue"])
def test_forked_child(layer):
    done = run_script(f"LAYER = {layer!r}\n" + FORK, **({"NUMBA_THREADING_LAYER": layer} if layer else {}))
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


def test_workqueue_layer_survives_concurrent_calls():
    body = """
    import numba
    for op in DIRECTIONS:
        call = conv_call(op, SHAPES[0])
        expected = call()
        assert numba.threading_layer() == "workqueue"
        for result in in_threads(call):
            assert np.array_equal(result, expected)
    print("done")
    """
    done = run_script(body, NUMBA_THREADING_LAYER="workqueue")
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


def test_kernels_run_where_no_folder_can_keep_them(tmp_path, monkeypatch):
    monkeypatch.setattr(private, "_said", set())
    (tmp_path / "file").write_text("")
    with numbadnn.using(cache_dir=tmp_path / "file"), pytest.warns(RuntimeWarning, match="set NUMBADNN_CACHE_DIR"):
        _parallel._compile(_nothing, parallel=False)(1)


def test_a_program_that_makes_the_warning_an_error_gets_it_once(tmp_path, monkeypatch):
    monkeypatch.setattr(private, "_said", set())
    (tmp_path / "file").write_text("")
    with numbadnn.using(cache_dir=tmp_path / "file"):
        kernel = _parallel.Kernel(_nothing)
        with pytest.raises(RuntimeWarning, match="set NUMBADNN_CACHE_DIR"):
            kernel(1)
        kernel(1)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")
@pytest.mark.parametrize("first", ["pool", "openmp", "no build on disk"])
def test_pytorchs_number_of_threads_stays(first):
    """Numba's OpenMP layer sets that of the thread that starts it, and both use one library."""
    pytest.importorskip("torch")
    body = """
    import torch
    torch.get_num_threads()
    torch.set_num_threads(1)
    if FIRST == "no build on disk":  # threads start without Numba, which then is needed
        import numbadnn.cpu.lang.parallel as doors
        assert doors.start_threads() or not doors.layer.layer()
        doors._one_at_a_time()
    import numba, numbadnn, numbadnn.theano
    if FIRST == "pool":
        numbadnn.pool(np.random.rand(4, 32, 96, 96).astype("f4"), (2, 2), stride=(2, 2))
    else:
        assert numbadnn.theano.config.openmp
    assert torch.get_num_threads() == 1

    @numba.njit(parallel=True)
    def which(found):
        for i in numba.prange(len(found)):
            total = 0.0
            for k in range(3_000_000):
                total += 1 / (k + 1)
            found[i] = numba.get_thread_id() + (total < 0)

    found = np.zeros(64, np.int64)
    which(found)
    assert numba.get_num_threads() > 1 and len(set(found)) > 1 and torch.get_num_threads() == 1
    print("done")
    """
    done = run_script(f"FIRST = {first!r}\n" + textwrap.dedent(body))
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


def test_importing_the_backend_loads_no_compiler():
    body = "assert not {'numba', 'scipy', 'llvmlite'} & set(sys.modules), 'loaded at import'\nprint('done')"
    done = run_script(body)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")
def test_a_region_on_fewer_threads_gives_the_same_bits_and_leaves_numbas_number():
    """Of the pool of four, the parallel build runs on two, which is neither the serial build nor all."""
    body = """
    import numba
    from numbadnn.cpu.conv.gather import gather
    from numbadnn.cpu.lang.parallel import kernel_of
    call = conv_call("conv2d", SHAPES[0])
    expected = call()
    seen, run = [], kernel_of(gather)
    build = run._parallel
    run._parallel = lambda *args: (seen.append((args[-1], numba.get_num_threads())), build(*args))
    for threads in (2, 3, 4, 9):
        with numbadnn.using(threads=threads):
            assert np.array_equal(call(), expected)
        assert numba.get_num_threads() == 4
    assert seen == [(2, 2), (3, 3), (4, 4), (4, 4)], seen
    print("done")
    """
    done = run_script(body, NUMBA_NUM_THREADS="4", NUMBADNN_THREADS="4")
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")
def test_threads_wait_asleep():
    """After a parallel region the process spends no time: OpenMP's threads wait actively for some milliseconds otherwise."""
    body = """
    import time, os
    os.environ.pop("OMP_WAIT_POLICY", None)
    call = conv_call("conv2d", SHAPES[0])
    call(), time.sleep(0.3)
    spent = []
    for _ in range(5):
        call()
        begin = time.process_time()
        time.sleep(0.003)
        spent.append(time.process_time() - begin)
    assert "OMP_WAIT_POLICY" not in os.environ
    assert min(spent) < 0.0005, spent
    print("done")
    """
    done = run_script(body, NUMBADNN_THREADS="2", NUMBA_THREADING_LAYER="omp")
    if "No threading layer" in done.stderr:
        pytest.skip("no OpenMP layer")
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr
