"""The user's own arrays, from .npy files, through the public function with every backend named in the call."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

import numbadnn
from numbadnn.arrays.numpy_ import address, numpy_dtype, strided_empty
from numbadnn.config import BACKENDS
from numbadnn.errors import BackendUnavailableError, NotSupportedError
from numbadnn.gpu.devices import no_gpu_reason
from numbadnn.validate import report
from numbadnn.validate.check import RUNS, Row, speed
from numbadnn.validate.determinism import fingerprint, same_bits
from numbadnn.validate.oracle import Trial

ARRAYS = {
    "conv2d": "x w",
    "conv2d_grad_wrt_inputs": "dy w",
    "conv2d_grad_wrt_weights": "x dy",
    "softmax": "x",
    "softmax_grad": "dy sm",
}


def load(op: str, files: list[str]) -> tuple[np.ndarray, ...]:
    """The arrays of an operation; ValueError or OSError say which file is wrong. Two-byte void is bfloat16, as NumPy saves it."""
    if op not in ARRAYS:
        raise ValueError(
            f"--data: expected one of {', '.join(ARRAYS)}, got {op}, which needs parameters besides arrays"
        )
    names = ARRAYS[op].split()
    if len(files) != len(names):
        raise ValueError(
            f"--data: {op} takes {len(names)} files ({', '.join(n + '.npy' for n in names)}), got {len(files)}"
        )
    arrays = []
    for file in files:
        try:
            array = np.load(Path(file), allow_pickle=False)
        except OSError as error:
            raise ValueError(f"--data: cannot read {file}: {error.strerror}") from None
        except MemoryError as error:
            raise MemoryError(f"--data: {file}: {error}") from None
        except (
            Exception
        ) as error:  # whatever NumPy, or zipfile or tokenize below it, makes of a file that is something else
            raise ValueError(f"--data: {file} is not a .npy file: {error}") from None
        if not isinstance(array, np.ndarray):
            raise ValueError(f"--data: expected a .npy file with one array, got {file}")
        arrays.append(array.view(numpy_dtype("bfloat16")) if array.dtype.str == "|V2" else array)
    return tuple(arrays)


def _arguments(op: str, arrays: tuple[np.ndarray, ...]) -> dict[str, Any]:
    """What the gradients need besides arrays: the shape that belongs to no padding and no stride."""
    first, second = arrays[0].shape, arrays[-1].shape
    if op == "conv2d_grad_wrt_inputs" and len(first) == len(second) == 4:
        return {"input_shape": (None, None, first[2] + second[2] - 1, first[3] + second[3] - 1)}
    if op == "conv2d_grad_wrt_weights" and len(first) == len(second) == 4:
        return {"filter_shape": (None, None, first[2] - second[2] + 1, first[3] - second[3] + 1)}
    return {}


def check(op: str, arrays: tuple[np.ndarray, ...], backend: str) -> Row:
    """One backend on the user's arrays; ValueError and TypeError are the user's to see."""
    shapes = " ".join(f"{a.dtype.name}:{'x'.join(map(str, a.shape))}" for a in arrays)
    row = Row(f"data {op}", backend, f"{op} {shapes}", "ok")
    if backend != "cpu" and (reason := no_gpu_reason()):
        row.status, row.reason = "refused", reason
        return row
    there = [a if backend == "cpu" else _to_device(a) for a in arrays]
    function, arguments = getattr(numbadnn, op), _arguments(op, arrays)
    before = [fingerprint(a) for a in arrays]
    try:
        plan = numbadnn.plan(function, *there, **arguments, backend=backend)
        results, times = [], []
        for _ in range(RUNS):
            start = time.perf_counter()
            result = function(*there, **arguments, backend=backend)
            given = result if isinstance(result, tuple) else (result,)
            results.append(given if backend == "cpu" else tuple(map(_to_host, given)))
            times.append(1e6 * (time.perf_counter() - start))
    except (NotSupportedError, BackendUnavailableError) as error:
        row.status, row.reason = "refused", str(error)
        return row
    last = numbadnn.last_call()
    assert last is not None
    row.impl, row.arithmetic, row.problem = last.impl, last.arithmetic, last.problem
    found = Trial(plan.problem, arrays).compare(results[0], last.arithmetic, last.summation)
    row.worst, row.where, row.ulp, row.same_bits = found.worst, found.where, found.ulp, same_bits(results)
    row.runs = RUNS
    row.time_us = min(times) if backend == "cpu" else 0.0  # copying back is no part of a kernel's time
    row.speed, row.speed_unit = speed(plan.problem, row.time_us)
    wrong = [] if found.ok else [str(found)]
    wrong += ["an input was changed"] if [fingerprint(a) for a in arrays] != before else []
    wrong += [] if row.same_bits or last.determinism == "not_guaranteed" else [f"{RUNS} runs gave different bits"]
    if wrong:
        row.status, row.reason = "mismatch", "; ".join(wrong)
    return row


def operation(names: list[str], files: list[str]) -> str:
    """The one operation that is named; ValueError otherwise, which says where it is to stand."""
    if len(names) != 1:
        beside = f"; put {files[-1]} before --data" if files[-1] in ARRAYS else ""
        raise ValueError(
            f"--data: expected exactly one operation of {', '.join(ARRAYS)}, got {names or 'none'}{beside}"
        )
    return names[0]


def rows(op: str, files: list[str], backend: str | None) -> list[Row]:
    """A row a backend; interrupted, those there are and one that says so."""
    arrays, found = load(op, files), []
    try:
        for one in [backend] if backend else BACKENDS:
            found.append(check(op, arrays, one))
    except KeyboardInterrupt:
        found.append(Row(f"data {op}", "all", "", report.NOT_RUN, report.BY_CTRL_C))
    return found


def _to_device(array: np.ndarray) -> Any:
    """A packed copy on the first GPU, as an array of no library."""
    from numbadnn.arrays.device import DeviceArray
    from numbadnn.gpu import bindings
    from numbadnn.gpu.context import ensure_context
    from numbadnn.problem import Spec

    host = np.ascontiguousarray(array)
    with ensure_context(0):
        copy = DeviceArray(Spec.of(host.dtype.name, host.shape), 0, 0)
        bindings.check(bindings.driver().cuMemcpyHtoD(copy.memory.address, host.ctypes.data, host.nbytes))
    return copy


def _to_host(array: Any) -> np.ndarray:
    from numbadnn.gpu import bindings
    from numbadnn.gpu.context import ensure_context
    from numbadnn.problem import Spec

    host = strided_empty(Spec(array.dtype, array.shape, array.strides))
    with ensure_context(0):
        bindings.check(bindings.driver().cuMemcpyDtoH(address(host), array.memory.address, host.nbytes))
    return host
