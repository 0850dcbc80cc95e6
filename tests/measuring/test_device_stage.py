"""Memory and times of a GPU that is none: the driver's calls on the host's memory, with a clock that only its work moves."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from numbadnn.cases import parse
from numbadnn.errors import NumbaDNNError
from numbadnn.measuring import device as measuring
from numbadnn.measuring.stage import stage
from numbadnn.problem import Policy
from numbadnn.registry import Executable, Impl
from numbadnn.validate.check import Row, Subject, judge
from numbadnn.validate.execute import execute

GPU = Policy(device=0)
PROBLEM = parse("softmax x=float32:3x5")
CACHE, KERNEL_MS, FILL_MS = 2000, 0.25, 2.0


class Status(enum.IntEnum):
    CUDA_ERROR_OUT_OF_MEMORY = 2


class HostDriver:
    """cuda.bindings.driver as far as measuring calls it; ``work`` is what the device has done, in order."""

    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE=38)

    def __init__(self, room: float = math.inf) -> None:
        self.memory: dict[int, Any] = {}
        self.events: dict[int, float] = {}
        self.left, self.now = room, 0.0
        self.work: list[str] = []

    def cuMemAlloc(self, nbytes: int) -> tuple[int, int]:
        if nbytes > self.left:
            return Status.CUDA_ERROR_OUT_OF_MEMORY, 0
        self.left -= nbytes
        held = ctypes.create_string_buffer(nbytes)
        self.memory[ctypes.addressof(held)] = held
        return 0, ctypes.addressof(held)

    cuMemAllocHost = cuMemAlloc

    def cuMemFree(self, address: int) -> tuple[int]:
        del self.memory[address]
        return (0,)

    cuMemFreeHost = cuMemFree

    def cuMemcpyHtoD(self, to: int, at: int, nbytes: int) -> tuple[int]:
        ctypes.memmove(to, at, nbytes)
        return (0,)

    cuMemcpyDtoH = cuMemcpyDtoD = cuMemcpyHtoD

    def cuMemsetD8(self, address: int, value: int, nbytes: int) -> tuple[int]:
        ctypes.memset(address, value, nbytes)
        return (0,)

    def cuMemsetD32Async(self, address: int, value: int, count: int, stream: int) -> tuple[int]:
        assert 4 * count <= len(self.memory[address])
        self.now += FILL_MS
        self.work.append("fill")
        return (0,)

    def cuEventCreate(self, flags: int) -> tuple[int, int]:
        number = len(self.events) + 1
        self.events[number] = math.nan
        return 0, number

    def cuEventRecord(self, event: int, stream: int) -> tuple[int]:
        self.events[event] = self.now
        return (0,)

    def cuEventElapsedTime(self, begin: int, end: int) -> tuple[int, float]:
        return 0, self.events[end] - self.events[begin]

    def cuEventDestroy(self, event: int) -> tuple[int]:
        del self.events[event]
        return (0,)

    def cuCtxSynchronize(self) -> tuple[int]:
        return (0,)

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[int, int]:
        return 0, CACHE


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HostDriver]:
    made = HostDriver()
    monkeypatch.setattr("numbadnn.gpu.bindings.driver", lambda: made)
    monkeypatch.setattr("numbadnn.gpu.context.ensure_context", lambda device: contextlib.nullcontext())
    monkeypatch.setattr("numbadnn.kept.machine.lock_name", lambda device: tmp_path / "lock")
    monkeypatch.setattr(measuring, "BLOCK_BYTES", 64)
    yield made
    assert not made.memory and not made.events  # all was given back


def array(address: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_float * 15).from_address(address)).reshape(3, 5)


def softmax(driver: HostDriver, workspace: int = 0) -> Executable:
    """A kernel, which notes where its input lies."""

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], room: int, stream: int) -> None:
        e = np.exp(array(inputs[0]))
        array(outputs[0])[...] = e / e.sum(1, keepdims=True)
        if workspace:
            ctypes.memset(room, 1, workspace)
        driver.now += KERNEL_MS
        driver.work.append(f"kernel {inputs[0]}")

    return Executable(run, workspace)


def test_launches_are_timed_alone_behind_other_work_on_operands_that_no_cache_holds(driver: HostDriver) -> None:
    with stage(PROBLEM, GPU) as place:
        driver.work.clear()
        times = place.times(softmax(driver), 20)
        nbytes = sum(b.memory.nbytes for buffers in place.start["random"] for b in buffers)
    assert times == pytest.approx([1000 * KERNEL_MS] * 20)
    fills, pairs = ["fill"] * measuring.BLOCKS, measuring.PAIRS
    kernels = [work for work in driver.work if work != "fill"]
    turns = kernels[: measuring.sets(nbytes, CACHE)]
    assert driver.work == [*fills, *kernels[:pairs], *fills, *kernels[pairs:]]
    assert kernels == [*turns, *turns, *turns, *turns][:20] and len(set(turns)) == len(turns)
    assert len(turns) * nbytes > 2 * CACHE


def test_a_stage_shows_results_and_grows_its_workspace(driver: HostDriver) -> None:
    with stage(PROBLEM, GPU) as place:
        x = place.start["random"][0][0].array
        for size in (0, 16, 8, 4096):
            place.times(softmax(driver, size), 1)
        (found,) = place.results(softmax(driver), "random")
        spec = place.start["random"][1][0]
        got = found[spec.offset // 4 :][:15].reshape(3, 5)
        e = np.exp(x)
        assert np.allclose(got, e / e.sum(1, keepdims=True), rtol=1e-6)


def test_validation_times_by_the_same_clock(driver: HostDriver) -> None:
    x = np.arange(15, dtype="f").reshape(3, 5) / 7
    impl = Impl("softmax", "numba", "numba.host", lambda p, q: "", lambda p, q, c: softmax(driver, 32), lambda p: 0.0)
    outcome = execute(impl, PROBLEM, GPU, (x,), runs=2, timed=True)
    assert outcome.time_us == pytest.approx(1000 * KERNEL_MS) and not outcome.damage and outcome.same_bits
    assert np.allclose(outcome.results[0].sum(1), 1)
    assert driver.work.count("fill") == 2 * measuring.BLOCKS and len(set(driver.work)) > 3


@pytest.mark.parametrize("timed", [True, False])
def test_runs_wait_for_other_processes_only_where_one_measures(
    timed: bool, driver: HostDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many processes that test on one GPU and measure nothing would otherwise take turns, one run of a kernel each."""
    held: list[Path] = []

    def hold(path: Path) -> contextlib.AbstractContextManager[None]:
        held.append(path)
        return contextlib.nullcontext()

    monkeypatch.setattr(measuring.stored, "lock_file", hold)
    impl = Impl("softmax", "numba", "numba.host", lambda p, q: "", lambda p, q, c: softmax(driver), lambda p: 0.0)
    subject = Subject("", PROBLEM)
    subject.integers = subject.trial  # a pass that is never timed itself
    judge(Row("", impl.name, "", "ok"), impl, subject, GPU, timed)
    assert sum(work.startswith("kernel") for work in driver.work) >= 4
    assert len(held) == (5 if timed else 0)  # three runs, the times of all launches, one run of integers


def test_what_does_not_fit_is_an_error_and_all_is_given_back(driver: HostDriver) -> None:
    driver.left = 1000
    with pytest.raises(NumbaDNNError, match="OUT_OF_MEMORY"), stage(PROBLEM, GPU):
        raise AssertionError("it must not begin")
