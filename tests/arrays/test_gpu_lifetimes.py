"""On a GPU, for each array library: inputs that go, change or are donated as soon as a call returns, and outputs used elsewhere.

The work of a call is made late, by a kernel that sleeps on the stream it runs on, so that what comes too early is seen.
"""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from test_gpu_arrays import to_device, to_host
from test_lifetimes import check_autograd_sees

import numbadnn
from numbadnn import reference
from numbadnn.arrays import dlpack, library_of
from numbadnn.gpu import streams

pytestmark = pytest.mark.gpu

LIBRARIES = ("torch", "cupy", "numba", "jax", "old dlpack", "new dlpack", "interface")
RANDOM = np.random.default_rng(11)
#: 4 MB: of a size that is given out again at once by every library's pool
X, OTHER = (RANDOM.standard_normal((1024, 1024)).astype("float32") for _ in range(2))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype("float64") - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


WANTED = softmax(X)


class Exporter:
    """A library of which nothing is known. It copies to export, on a stream of its own, as one that computes lazily does."""

    def __init__(self, array: np.ndarray, how: str) -> None:
        import cupy

        self.how, self.working = how, cupy.cuda.Stream(non_blocking=True)
        with self.working:
            self.array = cupy.asarray(array)
        self.working.synchronize()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def _told(self, **options: Any) -> Any:
        with self.working:
            return self.array.copy().__dlpack__(**options)

    def spoil(self) -> None:
        """On its own stream: what it has, and memory that a copy of it had."""
        with self.working:
            self.array.fill(np.nan)
            for _ in range(3):
                (self.array * np.nan).fill(np.nan)


class Old(Exporter):
    def __dlpack__(self, *, stream: Any = None) -> Any:
        return self._told(stream=stream)


class New(Exporter):
    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, **_: Any) -> Any:
        if max_version is None:
            raise BufferError("a read-only array cannot be told to an unversioned capsule")
        return self._told(stream=stream, max_version=max_version)


class Interface(Exporter):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.array.__cuda_array_interface__, "version": 3, "stream": self.working.ptr}


EXPORTERS = {"old dlpack": Old, "new dlpack": New, "interface": Interface}


def put(library: str, array: np.ndarray) -> Any:
    if library not in EXPORTERS:
        return to_device(library)(array)
    pytest.importorskip("cupy")
    return EXPORTERS[library](array, library)


def got(array: Any) -> np.ndarray:
    if type(array).__module__.startswith("numbadnn"):
        array = pytest.importorskip("cupy").from_dlpack(array)
    return to_host(array)


def make_late(array: Any) -> None:
    """Some 50 ms of nothing on the stream that a call with this array runs on."""
    torch = pytest.importorskip("torch")
    raw = library_of(array).current_stream(0)
    with torch.cuda.stream(torch.cuda.ExternalStream(raw)) if raw else nullcontext():
        torch.cuda._sleep(100_000_000)


def spoil(library: str, array: Any, how: str) -> Any:
    """Do to an input what its library may do as soon as a call has returned; what is returned stays alive."""
    nan = np.full(X.shape, np.nan, "float32")
    if library in EXPORTERS:
        array.spoil()
        return None
    if library == "jax":
        import jax

        if how == "donated":
            return jax.jit(lambda a: a * 0 + 1e9, donate_argnums=0)(array)
        array.delete()
        return [jax.numpy.full(X.shape, 1e9) for _ in range(3)]
    if how == "overwritten":
        if library == "numba":
            array.copy_to_device(nan)
        else:
            array.fill_(np.nan) if library == "torch" else array.fill(np.nan)
        return None
    return library


@pytest.mark.parametrize("how", ("freed", "overwritten", "donated", "collected"))
@pytest.mark.parametrize("library", LIBRARIES)
def test_inputs_may_go_as_soon_as_a_call_returns(library: str, how: str) -> None:
    if how == "donated" and library != "jax":
        pytest.skip("JAX alone donates")
    want = numbadnn.softmax(put(library, X))  # compiled
    assert np.allclose(got(want), WANTED, atol=1e-6)
    for _ in range(3):
        x = put(library, X)
        make_late(x)
        if how == "collected":
            circle: list[Any] = [x]
            circle.append(circle)
            del x
            result = numbadnn.softmax(circle[0])
            del circle
            gc.collect()
            after: Any = [put(library, np.full(X.shape, np.nan, "float32")) for _ in range(2)]
        else:
            result = numbadnn.softmax(x)
            after = spoil(library, x, how)
            del x
            if how == "freed":
                after = [after, *(put(library, np.full(X.shape, np.nan, "float32")) for _ in range(2))]
        assert np.allclose(got(result), WANTED, atol=1e-6)
        del after
    numbadnn.clear_caches()


@pytest.mark.parametrize("library", ("old dlpack", "new dlpack"))
def test_two_copies_made_for_one_call_have_each_its_place(library: str) -> None:
    dy, sm = put(library, X), put(library, OTHER)
    want = got(numbadnn.softmax_grad(put("cupy", X), put("cupy", OTHER)))
    for _ in range(5):
        assert np.allclose(got(numbadnn.softmax_grad(dy, sm)), want, atol=1e-4)


@pytest.mark.parametrize("library", ("jax", "old dlpack", "interface"))
def test_results_may_be_used_at_once_on_another_stream(library: str) -> None:
    torch = pytest.importorskip("torch")
    x, other = put(library, X), put(library, OTHER)
    numbadnn.softmax(x)
    for _ in range(3):
        make_late(x)
        result = numbadnn.softmax(x)
        if library == "jax":
            kept = result + 1
            for _ in range(3):  # where the result lay
                del result
                result = numbadnn.softmax(other)
            assert np.allclose(np.asarray(kept), WANTED + 1, atol=1e-6)
            continue
        elsewhere = torch.cuda.Stream()
        with torch.cuda.stream(elsewhere):
            there = torch.from_dlpack(result)
            torch.cuda._sleep(50_000_000)
            kept = there + 1
        del result, there
        for _ in range(3):
            numbadnn.softmax(other)
        elsewhere.synchronize()
        assert np.allclose(kept.cpu().numpy(), WANTED + 1, atol=1e-6)


@pytest.mark.parametrize("first", ("torch", "cupy", "numba", "jax", "old dlpack"))
@pytest.mark.parametrize("second", ("torch", "cupy", "jax", "interface"))
def test_libraries_in_one_call_wait_for_each_other(first: str, second: str) -> None:
    """Each works on a stream of its own; the second's data comes late, and is overwritten at once where that can be."""
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
    want = got(numbadnn.softmax_grad(put("cupy", X), put("cupy", OTHER)))
    on_torch, on_cupy = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    torch.cuda.synchronize()
    with torch.cuda.stream(on_torch), on_cupy:
        dy, sm, data = put(first, X), put(second, np.zeros_like(OTHER)), put(second, OTHER)
        torch.cuda.synchronize()
        numbadnn.softmax_grad(dy, sm)
        for _ in range(2):
            if second in ("torch", "cupy"):
                make_late(sm)
                sm[...] = data
            else:
                sm = data
            result = numbadnn.softmax_grad(dy, sm)
            if second in ("torch", "cupy"):
                sm[...] = np.nan
            assert np.allclose(got(result), want, atol=1e-4)


@pytest.mark.parametrize("library", ("numba", "jax", "old dlpack"))
def test_results_of_a_callers_stream_outlive_it(library: str) -> None:
    cupy = pytest.importorskip("cupy")
    x = put(library, X)
    numbadnn.softmax(x)
    stream = cupy.cuda.Stream(non_blocking=True)
    result = numbadnn.softmax(x, stream=stream)
    del stream
    gc.collect()
    assert np.allclose(got(result), WANTED, atol=1e-6)
    del result
    assert np.allclose(got(numbadnn.softmax(x)), WANTED, atol=1e-6)


@pytest.mark.parametrize("name", ("out", "beta", "a view", "a kept plan", "several", "of nothing"))
def test_autograd_sees_what_is_written_into_on_a_gpu(name: str) -> None:
    check_autograd_sees(name, "cuda")


def test_tensors_of_zeros_that_lie_nowhere_are_refused() -> None:
    torch = pytest.importorskip("torch")
    z, nothing = torch.randn(4, 5, device="cuda"), torch._efficientzerotensor((4, 5), device="cuda")
    numbadnn.softmax(z)
    for call in (
        lambda: numbadnn.softmax(nothing),
        lambda: numbadnn.softmax_grad(z, nothing),
        lambda: numbadnn.softmax(z, out=nothing),
    ):
        with pytest.raises(TypeError, match="expected a tensor with memory of its own"):
            call()
    torch.cuda.synchronize()


def test_device_arrays_are_copied() -> None:
    array = numbadnn.softmax(put("old dlpack", X))
    for other in (copy.copy(array), copy.deepcopy(array)):
        assert other.memory.address != array.memory.address and np.allclose(got(other), WANTED, atol=1e-6)
    exported = array.__dlpack__(stream=1, copy=True)
    assert dlpack.read(exported).address != array.memory.address


@pytest.mark.slow(28)
def test_a_process_that_listed_its_gpus_may_be_forked() -> None:
    code = """
import os, numbadnn
from numbadnn.call import info
from numbadnn.gpu import devices
info.text()
assert devices.gpus()
child = os.fork()
if child == 0:
    import torch
    y = numbadnn.softmax(torch.randn(4, 5, device="cuda"))
    os._exit(0 if abs(float(y.sum()) - 4) < 1e-4 else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_capture_keeps_what_a_graph_reads() -> None:
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")

    class Plain:
        def __init__(self, array: Any) -> None:
            self.keep = array
            self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "stream": None}

    x, out, stream = Plain(cupy.asarray(X)), torch.empty(X.shape, device="cuda"), torch.cuda.Stream()
    numbadnn.softmax(x, out=out, stream=stream)
    kept = len(streams._captured)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        numbadnn.softmax(x, out=out, stream=stream)
    assert len(streams._captured) == kept + 1
    del x
    gc.collect()
    thieves = [cupy.full(X.shape, np.nan, "float32") for _ in range(3)]
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert np.allclose(out.cpu().numpy(), WANTED, atol=1e-6) and len(thieves) == 3


@pytest.mark.parametrize("asked", (True, False))
def test_tensors_outlive_a_foreign_stream_that_used_them(asked: bool) -> None:
    """PyTorch would ask the stream that is gone, and end the process."""
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    x, y = torch.tensor(X, device="cuda"), torch.tensor(OTHER, device="cuda")
    with nullcontext() if asked else stream:
        first = cupy.asarray(X) if not asked else x
        torch.cuda.synchronize()
        result = numbadnn.softmax_grad(first, y, stream=stream if asked else None)
    stream.synchronize()  # only its owner waits for a stream that was asked for
    found = got(result)
    del stream
    gc.collect()
    del x, y, first, result
    again = got(numbadnn.softmax_grad(torch.tensor(X, device="cuda"), torch.tensor(OTHER, device="cuda")))
    want = reference.softmax_grad(X, OTHER)
    assert np.allclose(found, want, atol=1e-4) and np.allclose(again, want, atol=1e-4)
