"""How long arrays live and who is told that they change: destinations seen by autograd, capsules, copies, JAX, forks."""

from __future__ import annotations

import copy
import ctypes
import json
import os
import pickle
import socket
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import numbadnn
from numbadnn.arrays import Borrowed, device, dlpack, foreign
from numbadnn.gpu import devices, driver, memory, streams

X = np.random.default_rng(5).standard_normal((4, 6)).astype("float32")


def run(code: str, *args: str, **environment: str) -> str:
    """What a fresh process prints; it must end well and say nothing on its standard error."""
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


# ---- destinations and autograd ---------------------------------------------------------------------------------------


def writing(name: str, where: str = "cpu") -> tuple[Callable[[], Any], list[Any]]:
    """A call that writes into tensors, and those."""
    import torch

    from numbadnn import theano

    def new(*shape: int) -> Any:
        return torch.randn(*shape, device=where)

    x, w, out, one = new(2, 3, 6, 6), new(4, 3, 3, 3), new(2, 4, 4, 4), torch.ones(1, 3, 1, 1, device=where)
    kept, wide = numbadnn.plan(numbadnn.conv2d, x, w), new(2, 8, 4, 4)
    several = [torch.empty_like(t) for t in numbadnn.batch_normalization_train(x, one, one, "spatial")]
    norm = theano.GpuDnnBatchNorm("spatial", True, inplace_output=True, inplace_running_mean=True)
    convolution, description = theano.GpuDnnConv(inplace=True), theano.GpuDnnConvDesc("valid")
    return {
        "out": (lambda: numbadnn.conv2d(x, w, out=out), [out]),
        "beta": (lambda: numbadnn.conv2d(x, w, beta=0.5, out=out), [out]),
        "a view": (lambda: numbadnn.conv2d(x, w, out=wide[:, 2:6]), [wide, wide[:, 2:6]]),
        "a kept plan": (lambda: kept(x, w, out=out), [out]),
        "of nothing": (lambda: numbadnn.conv2d(x[:, :0], w[:, :0], out=out), [out]),
        "several": (lambda: numbadnn.batch_normalization_train(x, one, one, "spatial", out=tuple(several)), several),
        "an op": (lambda: convolution(x, w, out, description, 1.0, 0.5), [out]),
        "batch norm in place": (lambda: norm(x, one * 2, one * 3, 1e-4, 0.1, one, one * 4), [x, one]),
        "dropout in place": (lambda: theano.GpuDnnDropoutOp(inplace=True)(x, 0.5), [x]),
    }[name]


WRITING = (
    "out",
    "beta",
    "a view",
    "a kept plan",
    "of nothing",
    "several",
    "an op",
    "batch norm in place",
    "dropout in place",
)


def check_autograd_sees(name: str, where: str) -> None:
    torch = pytest.importorskip("torch")
    call, targets = writing(name, where)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # no cuDNN for arrays on the CPU
        for _ in range(2):  # a cold call and a warm one
            saved = [(torch.ones_like(t, requires_grad=True) * t).sum() for t in targets]
            versions = [t._version for t in targets]
            call()
            assert all(t._version > v for t, v in zip(targets, versions, strict=True))
            for loss in saved:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    loss.backward()


@pytest.mark.parametrize("name", WRITING)
def test_autograd_sees_what_is_written_into(name: str) -> None:
    """A gradient by way of what was overwritten is refused, as after any operation of PyTorch's; views share the count."""
    check_autograd_sees(name, "cpu")


# ---- what an array of another library lives by -----------------------------------------------------------------------


class Exporting:
    """An array of a library that exports copies in capsules of GPU memory, versioned ones or old ones; nothing is read."""

    def __init__(self, versioned: bool, readonly: bool = False, major: int = 1) -> None:
        self.versioned, self.readonly, self.major, self.asked = versioned, readonly, major, 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        if options and not self.versioned:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        if self.versioned and not options:
            raise BufferError("a read-only array cannot be told to an unversioned capsule")
        self.asked += 1
        old = dlpack.capsule(self, 4096 * self.asked, (4, 6), (6, 1), "float32", 0)
        if not self.versioned:
            return old
        tensor = dlpack._Managed.from_address(dlpack._pointer(old, b"dltensor")).tensor
        new = dlpack._Versioned(self.major, 3, 0, 0, int(self.readonly), tensor)
        self.structures = (old, new)
        return dlpack._new(ctypes.addressof(new), b"dltensor_versioned", None)


def test_an_exported_copy_lives_as_long_as_its_address() -> None:
    """Both operands of a call were read from one place: the first copy was gone when the second was made."""
    alive = len(dlpack._alive)
    address, signature = foreign._probe(Exporting(False))
    assert type(address) is Borrowed and address == 4096 and len(dlpack._alive) == alive + 1
    assert signature[1:5] == ((4, 6), (6, 1), "float32", 0)
    del address
    assert len(dlpack._alive) == alive


def test_versioned_capsules_are_read_and_may_be_read_only() -> None:
    for readonly in (False, True):
        view = foreign._view(Exporting(True, readonly))
        assert (view.shape, view.strides, view.dtype, view.device, view.readonly) == (
            (4, 6),
            (6, 1),
            "float32",
            0,
            readonly,
        )
        assert view.pointer == 4096 and type(view.pointer) is int
    with pytest.raises(TypeError, match=r"expected a DLPack capsule of version 1, got 2\.3"):
        foreign._view(Exporting(True, major=2))


def test_read_only_arrays_on_the_cpu_are_inputs_and_no_destinations() -> None:
    class ReadOnly:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, *, max_version: Any = None, **options: Any) -> Any:
            return self.array.__dlpack__(max_version=max_version, **options)

    array = X.copy()
    array.flags.writeable = False
    assert np.array_equal(numbadnn.softmax(ReadOnly(array)), numbadnn.softmax(X))
    with pytest.raises(ValueError, match="out: expected a writable array, got a read-only one"):
        numbadnn.softmax(X, out=ReadOnly(array))


class Events:
    """The driver's events: those recorded are done when ``done`` says so."""

    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    CUresult = SimpleNamespace(CUDA_ERROR_NOT_READY=600)

    def __init__(self) -> None:
        self.made, self.destroyed, self.done = 0, [], set()  # type: ignore[var-annotated]

    def cuEventCreate(self, flags: int) -> tuple[int, int]:
        self.made += 1
        return 0, self.made

    def cuEventRecord(self, event: int, stream: int) -> tuple[int]:
        return (0,)

    def cuEventQuery(self, event: int) -> tuple[int]:
        return (0 if event in self.done else 600,)

    def cuEventDestroy(self, event: int) -> tuple[int]:
        self.destroyed.append(event)
        return (0,)


def test_owners_are_held_until_the_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events()
    monkeypatch.setattr(streams, "driver", lambda: events)
    monkeypatch.setattr("numbadnn.gpu.context.ensure_context", lambda device: nullcontext())
    owners = [np.ones(1) for _ in range(3)]
    gone = [weakref.ref(owner) for owner in owners]
    while owners:
        streams.hold(owners.pop(0), 7, 0)
    events.done = {1, 3}
    numbadnn.clear_caches()
    assert [ref() is None for ref in gone] == [True, False, False] and events.destroyed == [
        1
    ]  # in the order of the calls
    events.done = {2, 3}
    streams.let_go()
    assert not any(ref() for ref in gone) and events.destroyed == [1, 2, 3] and not streams._held


# ---- arrays of our own -----------------------------------------------------------------------------------------------


def own_array() -> device.DeviceArray:
    """One without memory, for there is no GPU; what would be given back is not."""
    nothing = object.__new__(memory.DeviceMemory)
    nothing.device, nothing.stream, nothing.key, nothing.address, nothing.elsewhere = 0, 0, None, 0, False
    array = object.__new__(device.DeviceArray)
    array.shape, array.strides, array.dtype, array.device, array.memory = (4, 3), (1, 4), "float32", 0, nothing
    return array


def test_device_memory_has_one_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies and pickles held the bare address, which two owners then gave back."""
    array, copies = own_array(), []
    for function in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="device memory has one owner"):
            function(array.memory)
    with pytest.raises(TypeError, match=r"cannot be pickled: pickle a copy on the host, cupy\.from_dlpack"):
        pickle.dumps(array)

    class Memory(SimpleNamespace):
        def __init__(self, nbytes: int, number: int, stream: int) -> None:
            super().__init__(address=0xABC000, stream=stream, nbytes=nbytes)

    def copied(*arguments: int) -> tuple[int]:
        copies.append(arguments)
        return (0,)

    monkeypatch.setattr(device, "DeviceMemory", Memory)
    monkeypatch.setattr(device, "driver", lambda: SimpleNamespace(cuMemcpyDtoDAsync=copied))
    monkeypatch.setattr("numbadnn.gpu.context.ensure_context", lambda device: nullcontext())
    for function in (copy.copy, copy.deepcopy):
        other = function(array)
        assert other.memory is not array.memory and other.memory.nbytes == 48
        assert (other.shape, other.strides, other.dtype, other.device) == ((4, 3), (1, 4), "float32", 0)
    assert copies == [(0xABC000, 0, 48, 0)] * 2


def test_small_blocks_are_given_out_again_on_their_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``maker`` gives is what ``DeviceMemory`` gives: never a block that is in use, and kept when it goes."""
    asked: list[tuple[int, int, int]] = []

    def allocate(nbytes: int, device: int, stream: int) -> int:
        asked.append((nbytes, device, stream))
        return 4096 * len(asked)

    monkeypatch.setattr(memory, "_allocate", allocate)
    monkeypatch.setattr(memory, "_kept", {})
    make = memory.maker(1000, 3)
    first, second, plain = make(0), make(0), memory.DeviceMemory(1024, 3, 0)
    assert [b.address for b in (first, second, plain)] == [4096, 8192, 12288] and asked == [(1024, 3, 0)] * 3
    for block in (first, second):
        assert [getattr(block, name) for name in ("device", "stream", "elsewhere", "key")] == [3, 0, False, plain.key]
    del second, block
    again = make(0)
    assert (again.address, again.key, len(asked)) == (8192, plain.key, 3)
    with monkeypatch.context() as patch:  # a stream that may go before the memory does: nothing is kept for it
        patch.setattr(memory.DeviceMemory, "__del__", lambda self: None)
        del first
        assert make(5).address == 4 * 4096 and asked[-1] == (1000, 3, 5)
        large = memory.maker(1 << 21, 3)
        assert [large(0).address for _ in range(2)] == [5 * 4096, 6 * 4096] and asked[-1] == (1 << 21, 3, 0)


def test_a_device_array_says_what_it_cannot_export() -> None:
    array = own_array()
    with pytest.raises(BufferError, match=r"expected DLPack device \(2, 0\), where the array is, got \(1, 0\)"):
        array.__dlpack__(dl_device=(1, 0))
    assert dlpack.read(array.__dlpack__(dl_device=(2, 0), max_version=(1, 1), stream=1)).strides == (1, 4)


def test_what_is_left_at_exit_says_nothing() -> None:
    """Names of the modules are gone by then."""
    code = (
        "from numbadnn.arrays import dlpack\n"
        "dlpack.left = dlpack.capsule(None, 4096, (1,), (1,), 'float32', 0)\n"
        "class Owner: pass\n"
        "owner = Owner()\n"
        "owner.capsule = dlpack.capsule(owner, 4096, (1,), (1,), 'float32', 0)\n"
        "one, another = Owner(), Owner()\n"
        "one.other, another.other, one.capsule = another, one, dlpack.capsule(None, 4096, (1,), (1,), 'float32', 0)\n"
        "from numbadnn.gpu import memory\n"
        "m = object.__new__(memory.DeviceMemory)\n"
        "m.device, m.stream, m.key, m.address, m.elsewhere = 0, 0, (0, 0, 512), 4096, False\n"
        "memory.left = m; del m"
    )
    assert run(code) == ""


# ---- JAX on the CPU --------------------------------------------------------------------------------------------------


@pytest.mark.slow(10)
def test_jax_results_are_where_the_argument_is_and_of_its_dtype() -> None:
    pytest.importorskip("jax")
    code = """
import jax, jax.numpy as jnp, numpy as np, numbadnn
first, second = jax.devices()
x = jax.device_put(jnp.ones((4, 5)), second)
y = numbadnn.softmax(x)
assert y.devices() == {second} and y.committed and (x + y).devices() == {second}
with jax.default_device(second):
    loose = jnp.ones((4, 5))
z = numbadnn.softmax(loose)
assert z.devices() == {second} and not z.committed
assert (z + jax.device_put(x, first)).devices() == {first}  # an array that is tied to no device goes with one that is
with jax.enable_x64(True):
    wide = jnp.arange(20.0, dtype=jnp.float64).reshape(4, 5)
for array in (wide, jax.device_put(wide, second)):
    w = numbadnn.softmax(array)
    assert w.dtype == np.float64 and w.devices() == array.devices()
    assert np.array_equal(np.asarray(w), numbadnn.softmax(np.asarray(array)))
assert jnp.ones(2).dtype == np.float32  # as before
several = numbadnn.batch_normalization_train(jax.device_put(jnp.ones((2, 3)), second), *[jnp.ones((1, 3))] * 2)
assert all(s.devices() == {second} for s in several)
put, handed = jax.device_put, []
jax.device_put = lambda result, *more: handed.append(result.nbytes) or put(result, *more)
for side in (4, 300):  # small results are copied, which costs half of handing them over
    numbadnn.softmax(jnp.ones((side, side)))
assert handed == [300 * 300 * 4]
"""
    run(code, XLA_FLAGS="--xla_force_host_platform_device_count=2", JAX_PLATFORMS="cpu")


@pytest.mark.slow(20)
def test_each_jax_process_gets_results_on_a_device_of_its_own() -> None:
    pytest.importorskip("jax")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    code = """
import sys, jax
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
import jax.numpy as jnp, numpy as np, numbadnn
x = jnp.ones((4, 5))
y = numbadnn.softmax(x)
assert y.devices() == x.devices() and float(np.asarray(y).sum()) == 4
print("done")
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, address, str(number)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    for process in both:
        said, errors = process.communicate(timeout=200)
        assert process.returncode == 0 and said == "done\n", errors


# ---- forks -----------------------------------------------------------------------------------------------------------


def test_asking_for_gpus_leaves_a_process_that_may_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuInit in the parent is the end of CUDA in every child: another process asks where nobody has called it yet."""
    found, asked = [{"device": 0, "name": "a GPU", "memory_bytes": 1}], []

    def refuse(*arguments: Any) -> int:
        raise AssertionError("cuInit in this process")

    def other(command: list[str], **options: Any) -> Any:
        asked.append(command)
        return SimpleNamespace(stdout=b"something printed\n" + json.dumps(found).encode() + b"\n")

    library = SimpleNamespace(cuDeviceGetCount=lambda count: 3, cuInit=refuse, cuDriverGetVersion=lambda number: 0)
    monkeypatch.setattr(driver, "loaded", lambda: library)
    monkeypatch.setattr(subprocess, "run", other)
    for cached in (devices.gpus, driver.library):
        cached.cache_clear()
    try:
        assert devices.gpus() == tuple(found) and devices.no_gpu_reason() == "" and devices.driver_version() == "0.0"
        assert len(asked) == 1 and asked[0][0] == sys.executable
    finally:
        devices.gpus.cache_clear()
        driver.library.cache_clear()


def test_a_child_of_a_process_that_initialised_cuda_is_told_to_spawn() -> None:
    """Planning alone initialises it."""
    code = """
import os
from types import SimpleNamespace
import numbadnn
from numbadnn.call import planning
from numbadnn.gpu import driver
driver.loaded = lambda: SimpleNamespace(cuInit=lambda flags: 0)
driver.library()
child = os.fork()
if child == 0:
    try:
        planning.make_plan(None, SimpleNamespace(device=0), None, None, [])
    except numbadnn.NumbaDNNError as error:
        os._exit(0 if "spawn" in str(error) and "spawn" in driver.aftermath(3) else 3)
    os._exit(4)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    run(code)
