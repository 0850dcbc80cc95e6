"""NVTX ranges, which Nsight shows above the kernels of each call: the option ``nvtx``, by whatever library has them."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from numbadnn.errors import BackendUnavailableError

#: (push a range of this name, pop it)
Ranges = tuple[Callable[[str], Any], Callable[[], Any]]


def _nvtx() -> Ranges:
    nvtx = importlib.import_module("nvtx")
    return functools.partial(nvtx.push_range, domain="numbadnn"), functools.partial(nvtx.pop_range, domain="numbadnn")


def _torch() -> Ranges:
    nvtx = sys.modules["torch"].cuda.nvtx  # imported by the program, if at all
    nvtx.range_push("numbadnn"), nvtx.range_pop()  # RuntimeError where PyTorch was built without
    return nvtx.range_push, nvtx.range_pop


def _cupy() -> Ranges:
    nvtx = sys.modules["cupy"].cuda.nvtx
    nvtx.RangePush("numbadnn"), nvtx.RangePop()
    return nvtx.RangePush, nvtx.RangePop


def _library() -> Ranges:
    library = ctypes.CDLL(ctypes.util.find_library("nvToolsExt") or "libnvToolsExt.so.1")
    return lambda name: library.nvtxRangePushA(name.encode()), library.nvtxRangePop


_WAYS = {"the package nvtx": _nvtx, "torch": _torch, "cupy": _cupy, "libnvToolsExt.so.1": _library}


@functools.cache
def ranges() -> Ranges:
    """How ranges are pushed and popped here; BackendUnavailableError, with every reason, where nothing can."""
    reasons = []
    for name, way in _WAYS.items():
        try:
            return way()
        except (ImportError, KeyError, AttributeError, OSError, RuntimeError) as error:
            reasons.append(f"{name}: {error or type(error).__name__}")
    raise BackendUnavailableError(f"nvtx: nothing here makes ranges ({'; '.join(reasons)}): pip install nvtx")


def ranged(run: Callable[..., None], name: str) -> Callable[..., None]:
    """``run`` within a range of this name."""
    push, pop = ranges()

    def within(inputs: Any, outputs: Any, workspace: Any, stream: Any) -> None:
        push(name)
        try:
            run(inputs, outputs, workspace, stream)
        finally:
            pop()

    return within
