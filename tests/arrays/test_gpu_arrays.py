"""Device arrays of every library: same library back, streams in both directions, contexts, threads, graph capture."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from folders import SUPPORT

import numbadnn
import numbadnn.reference as reference
from numbadnn.gpu import streams

pytestmark = pytest.mark.gpu

RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((2, 4, 9, 8)).astype("float32")
W = RANDOM.standard_normal((8, 4, 3, 3)).astype("float32")
EXPECTED = reference.conv2d(X, W)
LIBRARIES = ("torch", "cupy", "numba", "jax")
BACKENDS = ("cudnn", "numba")


def to_device(library: str) -> Callable[[np.ndarray], Any]:
    if library == "torch":
        torch = pytest.importorskip("torch")
        return lambda a: torch.from_numpy(a.copy()).cuda()
    if library == "cupy":
        return pytest.importorskip("cupy").asarray
    if library == "jax":
        jax = pytest.importorskip("jax")
        return lambda a: jax.device_put(a, jax.devices("gpu")[0])
    return pytest.importorskip("numba.cuda").to_device


def to_host(array: Any) -> np.ndarray:
    if hasattr(array, "copy_to_host"):
        return array.copy_to_host()
    if hasattr(array, "cpu"):
        return array.cpu().numpy()
    return array.get() if hasattr(array, "get") else np.asarray(array)


def close(array: Any, expected: np.ndarray) -> bool:
    return np.allclose(to_host(array), expected, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_same_library_comes_back(library: str, backend: str) -> None:
    put = to_device(library)
    x, w = put(X), put(W)
    for _ in range(3):
        result = numbadnn.conv2d(x, w, backend=backend)
        assert type(result) is type(x) and result.shape == (2, 8, 7, 6) and close(result, EXPECTED)
    assert close(numbadnn.softmax(x, backend=backend), reference.softmax(X))
    last = numbadnn.last_call()
    assert last is not None and last.backend == backend


@pytest.mark.parametrize("library", ("torch", "cupy", "numba"))
def test_out_is_written_and_checked(library: str) -> None:
    put = to_device(library)
    x, w, out = put(X), put(W), put(np.full((2, 8, 7, 6), np.nan, "float32"))
    for backend in BACKENDS:
        assert numbadnn.conv2d(x, w, out=out, backend=backend) is out and close(out, EXPECTED)
    doubled = put(np.ones((2, 8, 7, 6), "float32"))
    for backend in BACKENDS:
        numbadnn.conv2d(x, w, alpha=2, beta=0, out=doubled, backend=backend)
        numbadnn.conv2d(x, w, alpha=1, beta=-1, out=doubled, backend=backend)
        assert close(doubled, -EXPECTED)
    for _ in range(2):
        with pytest.raises(ValueError, match="out: expected memory of its own"):
            numbadnn.softmax(x, out=x)


def test_an_unknown_library_gets_an_array_that_speaks_both_protocols() -> None:
    torch = pytest.importorskip("torch")

    class Interface:
        def __init__(self, tensor: Any) -> None:
            self.tensor, self.__cuda_array_interface__ = tensor, tensor.__cuda_array_interface__

    class Capsule:
        def __init__(self, tensor: Any) -> None:
            self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__

    x, w = torch.from_numpy(X).cuda(), torch.from_numpy(W).cuda()
    for kind in (Interface, Capsule):
        for backend in BACKENDS:
            result = numbadnn.conv2d(kind(x), kind(w), backend=backend)
            assert close(torch.from_dlpack(result), EXPECTED)
            assert close(torch.as_tensor(result, device="cuda"), EXPECTED)


def test_layouts_and_dtypes_of_tensors() -> None:
    torch = pytest.importorskip("torch")
    x, w = torch.from_numpy(X).cuda(), torch.from_numpy(W).cuda()
    last = x.to(memory_format=torch.channels_last)
    for backend in BACKENDS:
        result = numbadnn.conv2d(last, w, backend=backend)
        assert result.is_contiguous(memory_format=torch.channels_last) and close(result, EXPECTED)
        half = numbadnn.conv2d(last.half(), w.half().to(memory_format=torch.channels_last), backend=backend)
        assert half.dtype is torch.float16 and np.allclose(half.float().cpu().numpy(), EXPECTED, atol=0.1)
        facts = numbadnn.last_call().facts  # type: ignore[union-attr]
        assert not facts.get("copies"), facts
        for _ in range(3):  # the first call is the cold path, the others are not
            mixed = numbadnn.conv2d(x.half(), w.bfloat16(), backend=backend)
            assert mixed.dtype is torch.float32 and np.allclose(mixed.cpu().numpy(), EXPECTED, atol=0.2)
        strided = x.flip(3)[:, :, :, ::2]
        assert close(numbadnn.conv2d(strided, w, backend="numba"), reference.conv2d(X[..., ::-1][..., ::2], W))
        shifted = torch.empty(x.numel() + 1, device="cuda")[1:].view(x.shape).copy_(x)
        assert close(numbadnn.conv2d(shifted, w, backend=backend), EXPECTED)
        assert close(numbadnn.softmax(shifted, backend=backend), reference.softmax(X))


def test_mixed_devices_are_refused() -> None:
    put = to_device("torch")
    with pytest.raises(
        ValueError, match="filters: expected an array on CUDA device 0, where input is, got one on the CPU"
    ):
        numbadnn.conv2d(put(X), W)
    with pytest.raises(ValueError, match="out: expected an array on CUDA device 0"):
        numbadnn.conv2d(put(X), put(W), out=np.empty((2, 8, 7, 6), "float32"))
    with pytest.raises(numbadnn.BackendUnavailableError, match="the cpu backend takes NumPy arrays"):
        numbadnn.conv2d(put(X), put(W), backend="cpu")


@pytest.mark.slow(15)
def test_jax_arrays_are_immutable_and_tracers_refused() -> None:
    jax = pytest.importorskip("jax")
    put = to_device("jax")
    x, w = put(X), put(W)
    with pytest.raises(TypeError, match="out: expected None for jax arrays, which are immutable"):
        numbadnn.conv2d(x, w, out=put(np.zeros((2, 8, 7, 6), "float32")))
    with pytest.raises(TypeError, match="tracer"):
        jax.jit(numbadnn.softmax)(x)
    gone = put(X)
    gone.delete()
    with pytest.raises(ValueError, match="deleted"):
        numbadnn.conv2d(gone, w)
    chained = jax.numpy.sum(numbadnn.softmax(jax.numpy.exp(x) * 2))  # JAX's own stream before and after ours
    assert abs(float(chained) - 2 * 9 * 8) < 1e-3
    cpu = jax.device_put(X, jax.devices("cpu")[0])
    assert isinstance(numbadnn.softmax(cpu), jax.Array)


@pytest.mark.parametrize("backend", BACKENDS)
def test_stream_waits_for_the_data_and_keeps_memory_until_it_is_done(backend: str) -> None:
    torch = pytest.importorskip("torch")
    x, w = torch.zeros(X.shape, device="cuda"), torch.from_numpy(W).cuda()
    stream, source = torch.cuda.Stream(), torch.from_numpy(X).cuda()
    numbadnn.conv2d(x, w, backend=backend, stream=stream)
    torch.cuda.synchronize()
    torch.cuda._sleep(100_000_000)  # the data comes late, on the current stream
    x.copy_(source)
    result = numbadnn.conv2d(x, w, backend=backend, stream=stream)
    stream.synchronize()
    assert close(result, EXPECTED)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # our work comes late, and the input's memory is given up at once
    result = numbadnn.conv2d(x, w, backend=backend, stream=stream.cuda_stream)
    address = x.data_ptr()
    del x
    thief = torch.full(X.shape, float("nan"), device="cuda")
    stream.synchronize()
    assert close(result, EXPECTED), (address, thief.data_ptr())


@pytest.mark.parametrize("library", ("cupy", "numba"))
def test_streams_of_other_libraries(library: str) -> None:
    torch = pytest.importorskip("torch")
    put = to_device(library)
    x, w, zeros = put(X), put(W), put(np.zeros_like(X))
    if library == "cupy":
        cupy = pytest.importorskip("cupy")
        stream: Any = cupy.cuda.Stream(non_blocking=True)
        synchronise = stream.synchronize
    else:
        from numba import cuda

        stream = cuda.stream()
        synchronise = stream.synchronize
    raw = streams.handle(stream)
    assert raw
    with torch.cuda.stream(torch.cuda.ExternalStream(raw)):
        torch.cuda._sleep(50_000_000)
    result = numbadnn.conv2d(x, w, stream=stream)
    # the array's own stream now waits for ours: overwriting x there must not reach the running kernel
    if library == "cupy":
        x[...] = zeros
    else:
        x.copy_to_device(zeros)
    synchronise()
    assert close(result, EXPECTED)

    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, raw

    result = numbadnn.conv2d(put(X), w, stream=Protocol())
    synchronise()
    assert close(result, EXPECTED)
    with pytest.raises(TypeError, match="stream: expected None, an int"):
        numbadnn.conv2d(x, w, stream="default")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("library", ("torch", "cupy", "numba"))
def test_threads_with_and_without_a_context(library: str, backend: str) -> None:
    put = to_device(library)
    x, w = put(X), put(W)
    numbadnn.conv2d(x, w, backend=backend)
    results, errors = [], []

    def work() -> None:
        try:
            for _ in range(25):
                results.append(numbadnn.conv2d(x, w, backend=backend))
        except Exception as error:  # handed to the main thread
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors
    first = to_host(results[0])
    assert (
        len(results) == 150 and all(np.array_equal(to_host(r), first) for r in results) and close(results[0], EXPECTED)
    )


def test_a_foreign_context_is_a_clear_error_and_nothing_is_broken() -> None:
    put = to_device("torch")
    x, w = put(X), put(W)
    numbadnn.conv2d(x, w)
    cuda = ctypes.CDLL("libcuda.so.1")
    caught: list[BaseException] = []

    def work() -> None:
        context = ctypes.c_void_p()
        assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
        try:
            for backend in BACKENDS:
                try:
                    numbadnn.conv2d(x, w, backend=backend)
                except BaseException as error:
                    caught.append(error)
        finally:
            cuda.cuCtxDestroy_v2(context)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(caught) == 2 and all(isinstance(e, numbadnn.NumbaDNNError) and "primary" in str(e) for e in caught), (
        caught
    )
    assert close(numbadnn.conv2d(x, w), EXPECTED)


@pytest.mark.parametrize("backend", BACKENDS)
def test_graph_capture(backend: str) -> None:
    torch = pytest.importorskip("torch")
    x, w = torch.from_numpy(X).cuda(), torch.from_numpy(W).cuda()
    numbadnn.conv2d(x, w, backend=backend)
    numbadnn.softmax(x, backend=backend)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(numbadnn.CaptureError, match="call it once before capturing"):
            numbadnn.conv2d(x[:1], w, backend=backend)
        y = numbadnn.conv2d(x, w, backend=backend)
        s = numbadnn.softmax(x, backend=backend)
    numbadnn.clear_caches()
    for scale in (1.0, -2.0):
        x.copy_(torch.from_numpy(X * np.float32(scale)))
        graph.replay()
        assert close(y, EXPECTED * scale) and close(s, reference.softmax(X * np.float32(scale)))


def test_capture_without_an_allocator_of_the_graphs_says_so() -> None:
    torch = pytest.importorskip("torch")
    put = to_device("numba")
    x, out = put(X), put(np.zeros_like(X))
    numbadnn.softmax(x)
    numbadnn.softmax(x, out=out)
    stream = torch.cuda.Stream()
    numbadnn.softmax(x, out=out, stream=stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        with pytest.raises(numbadnn.CaptureError, match="pass out="):
            numbadnn.softmax(x, stream=stream)
        numbadnn.softmax(x, out=out, stream=stream)
    graph.replay()
    torch.cuda.synchronize()
    assert close(out, reference.softmax(X))


@pytest.mark.slow(24)
def test_a_forked_child_is_told_to_spawn() -> None:
    code = (
        "import os, sys, torch, numbadnn\n"
        "x = torch.ones(2, 8, device='cuda'); numbadnn.softmax(x); torch.cuda.synchronize()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try: numbadnn.softmax(x)\n"
        "    except numbadnn.NumbaDNNError as e: os._exit(0 if 'spawn' in str(e) else 3)\n"
        "    os._exit(4)\n"
        "_, status = os.waitpid(pid, 0)\n"
        "numbadnn.softmax(x); torch.cuda.synchronize(); sys.exit(os.waitstatus_to_exitcode(status))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow(35)
@pytest.mark.parametrize("order", ("torch,cupy,numba", "cupy,numba,torch", "numba,torch,cupy"))
def test_libraries_may_come_in_any_order_with_one_libcudnn(order: str) -> None:
    code = (
        "import numpy as np, sys, re\n"
        "X = np.random.default_rng(0).standard_normal((1, 2, 6, 6)).astype('float32'); W = X[:, :, :3, :3].copy()\n"
        "def put(name, a):\n"
        "    if name == 'torch': import torch; return torch.from_numpy(a).cuda()\n"
        "    if name == 'cupy': import cupy; return cupy.asarray(a)\n"
        "    from numba import cuda; return cuda.to_device(a)\n"
        "import numbadnn, numbadnn.reference as r\n"
        "for name in sys.argv[1].split(','):\n"
        "    for b in ('cudnn', 'numba'):\n"
        "        y = numbadnn.conv2d(put(name, X), put(name, W), backend=b)\n"
        "        y = y.copy_to_host() if name == 'numba' else y.cpu().numpy() if name == 'torch' else y.get()\n"
        "        assert np.allclose(y, r.conv2d(X, W), atol=1e-4), (name, b)\n"
        "found = set(re.findall(r'/\\S*/libcudnn\\.so\\S*', open('/proc/self/maps').read()))\n"
        "assert len(found) == 1, found"
    )
    done = subprocess.run([sys.executable, "-c", code, order], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow(120)
def test_memory_stays_bounded_over_ten_thousand_changing_shapes() -> None:
    """On the device what this process holds; on the host bytes in use by every malloc of a process of its own, Python's
    objects included: what is resident also depends on which freed pages the allocator happens to keep, which moves by
    megabytes."""
    code = (
        "import ctypes, gc, sys, torch, numbadnn\n"
        "sys.path.append(sys.argv[1])\n"
        "from own_memory import own_memory\n"
        "class Info(ctypes.Structure):\n"
        "    _fields_ = [(n, ctypes.c_size_t) for n in 'a b c d mapped e f used g h'.split()]  # mallinfo2(3)\n"
        "info = ctypes.CDLL(None).mallinfo2\n"
        "info.restype = Info\n"
        "def used():\n"
        "    torch.cuda.synchronize(); torch.cuda.empty_cache(); gc.collect()\n"
        "    return info().used + info().mapped, own_memory()\n"
        "w, base = torch.randn(2, 2, 1, 1, device='cuda'), torch.randn(1 << 20, device='cuda')\n"
        "for i in range(10000):\n"
        "    n = 1 + i * 7919 % 10000  # every length once, long and short mixed: each kernel there is comes early\n"
        "    if i % 4 == 1: numbadnn.softmax(base[: 2 * n].view(2, n))\n"
        "    else: numbadnn.conv2d(base[: 2 * n].view(1, 2, 1, n), w, backend='numba' if i % 4 == 3 else 'cudnn')\n"
        "    if i == 1999: before = used()\n"
        "print(*(b - a for a, b in zip(before, used())))"
    )
    environment = os.environ | {"PYTHONMALLOC": "malloc"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(SUPPORT)],
        capture_output=True, text=True, timeout=300, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    host, device = map(int, done.stdout.split())
    assert host <= 2 << 20, f"host memory grew by {host} bytes"
    assert device <= 2 << 20, f"device memory grew by {device} bytes"


def test_workspace_limit_and_a_users_own_workspace() -> None:
    torch = pytest.importorskip("torch")
    x, w = torch.randn(8, 64, 28, 28, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    with numbadnn.using(workspace_limit="0B"):
        plan = numbadnn.plan(numbadnn.conv2d, x, w, border_mode="half", backend="cudnn")
        assert plan.workspace_bytes == 0
        y = plan(x, w)
    exact = torch.nn.functional.conv2d(x.double(), w.double().flip(2, 3), padding=1)
    assert torch.allclose(y.double(), exact, rtol=1e-5, atol=1e-3)
    plan = numbadnn.plan(numbadnn.conv2d, x, w, border_mode=((1, 0), (2, 1)), backend="cudnn")
    assert plan.workspace_bytes > 0 and plan.facts["copies"]
    space = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device="cuda")
    assert torch.equal(plan(x, w, workspace=space), plan(x, w))
    with pytest.raises(numbadnn.WorkspaceError, match="workspace: expected at least"):
        plan(x, w, workspace=space[:-1])
    longer = torch.empty(plan.workspace_bytes + 16, dtype=torch.uint8, device="cuda")
    with pytest.raises(numbadnn.WorkspaceError, match="workspace: expected bytes .* from a multiple of 256 on"):
        plan(x, w, workspace=longer[16:])
    with pytest.raises(numbadnn.WorkspaceError, match="workspace: expected memory of CUDA device 0, got .* the CPU"):
        plan(x, w, workspace=longer.cpu())
    result = plan(x, w)
    both = torch.empty(plan.workspace_bytes // 4 + result.numel() + 64, device="cuda")
    with pytest.raises(numbadnn.WorkspaceError, match="workspace: expected memory of its own"):
        plan(x, w, out=both[: result.numel()].view(result.shape), workspace=both[64:].view(torch.uint8))
    side = torch.cuda.Stream()
    beside = plan(x, w, stream=side, workspace=space)
    side.synchronize()
    assert torch.equal(beside, result)
