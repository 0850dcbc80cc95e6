"""Every operation on a GPU when things are hard: inside a captured graph, in eight threads, without memory, after a crash.

Each operation is taken with the first of its small cases that the backend takes, called through the public functions on
PyTorch's tensors. What could harm the process, or needs it alone, runs in one of its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy
import pytest
from test_contract import TorchArrays, arguments

import numbadnn
from numbadnn import cases
from numbadnn.cases import Case
from numbadnn.registry import FAMILY

gpu = pytest.mark.gpu
BACKENDS = ("numba", "cudnn")
SMALL = [*cases.find(["contract"]), *cases.find(["simulate"])]
REFUSED = (numbadnn.NotSupportedError, numbadnn.BackendUnavailableError)

Call = Callable[[], tuple[Any, ...]]


class Warm(NamedTuple):
    """``call`` computes anew from ``inputs``, tensors with the first data; ``others`` are the values of the second."""

    call: Call
    inputs: list[Any]
    others: list[Any]
    first: tuple[Any, ...]


def candidates(op: str) -> list[Case]:
    """Small cases of an operation that PyTorch can hold and that read no old output; float32 first, tiny ones last."""

    def fits(case: Case) -> bool:
        problem = case.problem()
        return all(min(s.strides) > 0 and s.aligned for s in (*problem.inputs, *problem.outputs)) and (
            cases.make_arrays(problem)[1] is None
        )

    def rank(case: Case) -> tuple[bool, int]:
        output = case.problem().output
        return output.dtype != "float32", -min(output.size, 64)

    return sorted((c for c in SMALL if c.op == op and fits(c)), key=rank)[:12]


def bound(case: Case, backend: str, seed: int = 1) -> tuple[Call, list[Any], list[Any]]:
    """(the call on tensors, its inputs, other values for them): nothing has run yet."""
    problem, arrays = case.problem(), TorchArrays()
    inputs, others = (
        [arrays.put(s, v) for s, v in zip(problem.inputs, cases.make_arrays(problem, n)[0], strict=True)]
        for n in (seed, seed + 1)
    )
    positional, keywords = arguments(problem, inputs)

    def call() -> tuple[Any, ...]:
        returned = getattr(numbadnn, case.op)(*positional, **keywords, backend=backend)
        several = returned if isinstance(returned, tuple) else (returned,)
        return tuple(r for r in several if isinstance(r, arrays.torch.Tensor))

    return call, inputs, others


def warm(op: str, backend: str) -> Warm:
    """An operation that has run once; skips with the refusals where the backend takes none of its cases."""
    reasons = []
    for case in candidates(op):
        call, inputs, others = bound(case, backend)
        try:
            return Warm(call, inputs, others, call())
        except REFUSED as error:
            reasons.append(str(error).splitlines()[0])
    assert reasons and backend != "numba", reasons
    pytest.skip(f"{backend} refuses {op}: {reasons[-1]}")


def same_bits(found: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    def raw(tensor: Any) -> bytes:
        import torch

        return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes())

    return [raw(t) for t in found] == [raw(t) for t in expected]


# ---- graphs ----------------------------------------------------------------------------------------------------------


@gpu
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("op", FAMILY)
def test_every_operation_is_captured_after_a_warm_call(op: str, backend: str) -> None:
    torch = pytest.importorskip("torch")
    ready = warm(op, backend)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ready.call()
    for tensor, other in zip(ready.inputs, ready.others, strict=True):
        tensor.copy_(other)
    graph.replay()
    torch.cuda.synchronize()
    plain = ready.call()
    assert same_bits(captured, plain)
    assert not same_bits(plain, ready.first)  # else the replay would show nothing


@gpu
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("op", FAMILY)
def test_a_cold_call_is_refused_and_the_capture_goes_on(op: str, backend: str) -> None:
    torch = pytest.importorskip("torch")
    call, _, _ = bound(candidates(op)[0], backend)
    x = torch.randn(3, 50, device="cuda")
    numbadnn.clear_caches()
    expected = numbadnn.softmax(x, backend="numba")
    x.mul_(-1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(numbadnn.CaptureError, match="call it once before capturing"):
            call()
        y = numbadnn.softmax(x, backend="numba")
    x.mul_(-1)
    graph.replay()
    assert torch.equal(y, expected)


# ---- threads ---------------------------------------------------------------------------------------------------------


@gpu
def test_eight_threads_on_eight_streams_give_the_serial_bits_of_every_family() -> None:
    torch = pytest.importorskip("torch")
    calls = {}
    for op in {family: op for op, family in FAMILY.items()}.values():
        for backend in BACKENDS:
            try:
                calls[op, backend] = warm(op, backend).call
            except pytest.skip.Exception:
                continue
    assert len(calls) > len(set(FAMILY.values()))  # all of Numba's, some of cuDNN's
    serial = {name: call() for name, call in calls.items()}
    torch.cuda.synchronize()
    wrong: list[Any] = []

    def run(number: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for turn in range(2):
                    order = list(calls)
                    random.Random(2 * number + turn).shuffle(order)
                    results = {name: calls[name]() for name in order}
                    wrong.extend((number, turn, n) for n in order if not same_bits(results[n], serial[n]))
        except Exception as error:  # for the main thread
            wrong.append((number, repr(error)))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# ---- processes of their own ------------------------------------------------------------------------------------------


def process(code: str, *words: str, **variables: str) -> list[Any]:
    """What a script prints, a JSON value a line."""
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=280, check=False,
        env=os.environ | variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


NO_MEMORY = """
import json, torch, numbadnn
seen = set()
for op in (numbadnn.conv2d, numbadnn.conv2d_grad_wrt_inputs, numbadnn.conv2d_grad_wrt_weights):
    for kind, pad in (("float32", ((1, 0), (2, 1))), ("float32", 1), ("float64", 1), ("float16", 1)):
        dtype = getattr(torch, kind)
        x, w = torch.randn(32, 64, 64, 64, device="cuda").to(dtype), torch.randn(64, 64, 3, 3, device="cuda").to(dtype)
        y = torch.randn(32, 64, *((64, 64) if pad == 1 else (63, 65)), device="cuda").to(dtype)
        arrays, shape = {"conv2d": ((x, w), None), "conv2d_grad_wrt_inputs": ((y, w), tuple(x.shape)),
                         "conv2d_grad_wrt_weights": ((x, y), tuple(w.shape))}[op.__name__]
        shape = () if shape is None else (shape,)
        for backend in (None, "cudnn", "numba"):
            def call(**more):
                return op(*arrays, *shape, border_mode=pad, backend=backend, **more)
            if len(seen) == 2: continue  # enough
            try:
                plan = numbadnn.plan(op, *arrays, *shape, border_mode=pad, backend=backend)
                if plan.workspace_bytes < 24 << 20 or plan.impl.name in seen: continue
                less = plan.replan(plan.workspace_bytes - 1)
                while less.workspace_bytes > 1 << 20: less = less.replan(less.workspace_bytes - 1)
            except numbadnn.NotSupportedError:
                continue
            expected = call()  # warm, with all the memory there is
            first = numbadnn.last_call()
            seen.add(first.impl)
            torch.cuda.synchronize()
            room = torch.empty(expected.numel() * expected.itemsize + (2 << 20), dtype=torch.uint8, device="cuda")
            torch.cuda.empty_cache()
            total = torch.cuda.get_device_properties(0).total_memory
            have = torch.cuda.memory_reserved()
            del room  # stays with PyTorch: a result has room, a workspace has not
            torch.cuda.set_per_process_memory_fraction(have / total)
            try:
                result = call()
                last = numbadnn.last_call()
            finally:
                torch.cuda.set_per_process_memory_fraction(1.0)
            error = (result - expected).double().abs().max().item() / expected.double().abs().max().item()
            again = call()
            back = numbadnn.last_call()
            print(json.dumps([op.__name__, kind, str(pad), str(backend), first.impl, first.workspace_bytes, last.impl,
                              last.workspace_bytes, last.decided_by, [str(r) for r in last.refusals], error, back.impl,
                              back.workspace_bytes, torch.equal(again, expected)]), flush=True)
            del result, expected, again, plan, less, call
            torch.cuda.empty_cache()
"""


@gpu
@pytest.mark.slow(20)
def test_a_device_without_memory_for_the_workspace_takes_the_next_plan_that_fits() -> None:
    """PyTorch is kept to what it holds already, which leaves the rest of the device to whoever else is on it: the error
    is that of a full device."""
    found = process(NO_MEMORY)
    print(*found, sep="\n")
    assert found, "no convolution here has a large workspace and a smaller plan: take others"
    for op, kind, _, _, first, needed, impl, workspace, decided, refusals, error, back, again, same in found:
        assert workspace < needed and same and (back, again) == (first, needed)
        # of several that did not fit, the last
        why = re.search(r"\w+\.\w+ needs a workspace of (\d+) bytes, out of memory", decided)
        assert why and any(why[0] in r for r in refusals), (impl, decided)
        assert workspace < int(why[1]) <= needed
        assert error < {"float16": 3e-2, "float32": 3e-5, "float64": 1e-12}[kind], (op, impl)


LOST = """
import json, sys, time, torch, numbadnn
backend, culprit = sys.argv[1:]
x, w = torch.randn(4, 8, 16, 16, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda")
out = torch.empty_like(x)
numbadnn.conv2d(x, w, backend=backend)
numbadnn.softmax(x, backend="numba")
cold = torch.randn(3, 4, 5, 5, device="cuda")
torch.cuda.synchronize()
if culprit == "ours":  # one of our kernels writes to address 16
    plan = numbadnn.plan(numbadnn.softmax, x, backend="numba")
    plan.launch((x,), (x.data_ptr(),), (16,), out, None)
else:
    out.view(-1)[torch.tensor([1 << 40], device="cuda")]  # an assertion in a kernel of PyTorch's
time.sleep(1)
said = []
for call in (
    lambda: numbadnn.conv2d(x, w, backend=backend),
    lambda: numbadnn.softmax(x, backend="numba"),
    lambda: numbadnn.softmax(cold, backend=backend),
    lambda: numbadnn.conv2d(x, w, backend=backend, out=out[:, :, :14, :14]),
):
    try:
        call()
        said.append(["nothing", ""])
    except BaseException as error:
        said.append([type(error).__name__, isinstance(error, numbadnn.NumbaDNNError), str(error)])
print(json.dumps(said), flush=True)
import os; os._exit(0)
"""


@gpu
@pytest.mark.parametrize("culprit", ("ours", "anothers"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_that_costs_the_context_is_reported_once_with_the_operation(backend: str, culprit: str) -> None:
    (said,) = process(LOST, backend, culprit)
    print(*said, sep="\n")
    assert all(ours for _, ours, *_ in said), said
    first, *later = (text for *_, text in said)
    name = "CUDA_ERROR_ILLEGAL_ADDRESS" if culprit == "ours" else "CUDA_ERROR_ASSERT"
    assert name in first and "the last call of this thread was numba.softmax" in first
    assert "softmax x=float32:4x8x16x16" in first
    for text in later:  # the context stays lost, and the operation is remembered
        assert "the context was lost before, by numba.softmax" in text


def test_an_error_of_another_library_says_that_the_context_is_lost_and_by_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN and cuda.bindings report what our kernel has done in words of their own."""
    pass
    from numbadnn.cudnn import lib
    from numbadnn.gpu import bindings
    from numbadnn.gpu import driver as _driver

    def texts(status: int, target: Any) -> int:
        ctypes.cast(target, ctypes.POINTER(ctypes.c_char_p))[0] = b"CUDA_ERROR_ASSERT" if status == 710 else None
        return 0

    functions = SimpleNamespace(
        cudnnGetErrorString=lambda status: b"CUDNN_STATUS_SOMETHING", cudnnGetLastErrorString=lambda text, n: None
    )
    cudnn, standing = lib.Library(functions, "", 9), [0]
    driver = SimpleNamespace(cuCtxSynchronize=lambda: standing[0], cuGetErrorName=texts, cuGetErrorString=texts)
    monkeypatch.setattr(_driver, "library", lambda: driver)
    monkeypatch.setattr(_driver, "_lost_by", "")
    numbadnn.softmax(numpy.ones((2, 3), "float32"))
    assert str(cudnn.error("softmax", 5000)) == "softmax: CUDNN_STATUS_SOMETHING (5000)"
    standing[0] = 710
    assert str(cudnn.error("softmax", 3000)) == "softmax: CUDNN_STATUS_SOMETHING (3000)"
    first, second = str(cudnn.error("softmax", 5003)), str(cudnn.error("pool", 5003))
    assert "(5003); CUDA_ERROR_ASSERT" in first and "last call of this thread was cpu.loops on softmax x=" in first
    assert second.startswith("pool: ") and "was lost before, by cpu.loops on softmax x=" in second

    class Status(int):
        name = "CUDA_ERROR_ASSERT"

    with pytest.raises(numbadnn.NumbaDNNError, match=r"CUDA_ERROR_ASSERT \(710\); the context was lost before, by cpu"):
        bindings.check((Status(710),))
    with pytest.raises(numbadnn.NumbaDNNError, match=r"\(1\)$"):
        bindings.check((Status(1),))


SHAPES = """
import ctypes, gc, json, torch, numbadnn
class Info(ctypes.Structure):
    _fields_ = [(n, ctypes.c_size_t) for n in "a b c d mapped e f used g h".split()]  # mallinfo2(3)
info = ctypes.CDLL(None).mallinfo2
info.restype = Info
def used():
    torch.cuda.synchronize(); torch.cuda.empty_cache(); gc.collect()
    return info().used + info().mapped
w, base = torch.randn(2, 2, 1, 1, device="cuda"), torch.randn(1 << 20, device="cuda")
def images(n): return base[: 2 * n].view(1, 2, 1, n)
calls = [
    lambda n: numbadnn.softmax(base[: 2 * n].view(2, n), backend="numba"),
    lambda n: numbadnn.pool(images(n), (1, 2), backend="numba"),
    lambda n: numbadnn.conv2d(images(n), w, backend="numba"),
    lambda n: numbadnn.dropout(base[:n], 0.5, backend="numba"),
]
SHAPES, WARM = 20000, 4000
for n in (*range(2, 66), *(1 << k for k in range(7, 15)), SHAPES):  # what few lengths have a kernel of their own for
    for call in calls: call(n)
for i in range(SHAPES):
    n = 2 + i * 7919 % SHAPES  # every length once, long and short mixed: each kernel there is comes early
    if i % 20 == 19: numbadnn.conv2d(images(n), w, backend="cudnn")
    else: calls[i % 4](n)
    if i == WARM: before = used()
print(json.dumps([before, used(), numbadnn.cache_info()._asdict()]))
"""


@gpu
@pytest.mark.slow(110)
def test_memory_stays_bounded_over_twenty_thousand_shapes_of_five_operations() -> None:
    """On the host: bytes in use by every malloc of a process, Python's objects included.

    The ten thousand shapes of ``test_gpu_arrays`` watch the device's.
    """
    ((before, after, info),) = process(SHAPES, PYTHONMALLOC="malloc")
    print(before, after, info)
    assert info["plans"] <= info["max_plans"] and info["choices"] <= info["max_choices"]
    assert after - before <= 2 << 20, f"host memory grew by {after - before} bytes"
