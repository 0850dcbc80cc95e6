"""What runs untuned, learned from measurements: ``heuristics.json``, made by bench/learn_rank.py.

``operations`` has, for an architecture, an operation and an implementation on a kind of convolution (dtype, layout, filter), how
many times ``floor_us`` it took; where it says nothing, the implementation's own ``rank`` stands.
``engines`` says how much slower than the best each engine of cuDNN's graph API was on the cases that offered it: where cuDNN's
heuristics name first what was much slower, the engine that was fastest is taken instead.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from numbadnn.errors import BackendUnavailableError
from numbadnn.problem import Policy
from numbadnn.registry import Impl

TABLE = Path(__file__).with_name("heuristics.json")

#: an engine replaces the heuristics' first only where it was this much faster
MARGIN = 1.05

#: below this, three microseconds of which are the launch, the table says nothing
SMALL_US = 5.0


@functools.cache
def table() -> dict[str, Any]:
    """architecture -> "operations" and "engines" -> operation -> "implementation dtype" -> numbers."""
    return json.loads(TABLE.read_text())["architectures"] if TABLE.exists() else {}


@functools.cache
def architecture(device: int) -> str:
    """``sm_90`` for a GPU of compute capability 9.0, "cpu" for -1, "" for a device that is not there."""
    if device < 0:
        return "cpu"
    from numbadnn.kernels import _driver

    try:
        return "sm_{}{}".format(*_driver.compute_capability(device))
    except BackendUnavailableError:
        return ""


def key_of(name: str, problem: Any) -> str:
    """The row of an implementation for a problem.

    >>> from numbadnn.cases import parse
    >>> key_of("numba.direct", parse("conv2d x=float16:8x4x9x9:nhwc w=float16:4x4x1x1:nhwc stride=2,2"))
    'numba.direct float16 nhwc 1x1/2'
    """
    first = problem.inputs[0]
    layout = ["nhwc"] if first.is_channels_last and not first.is_contiguous else []
    return " ".join([name, first.dtype, *layout, *([kind] if (kind := kind_of(problem)) else [])])


def kind_of(problem: Any) -> str:
    """What decides which way of computing a convolution is fast: unshared, depthwise, grouped or the filter; the stride.

    "" for all other operations: which of their implementations is fast depends on sizes, as their own ranks say.
    """
    taps = getattr(problem, "taps", None)
    if taps is None:
        return ""
    step = f"/{max(problem.stride)}" if max(problem.stride) > 1 else ""
    if problem.unshared:
        return "unshared"
    if problem.groups > 1:
        return ("depthwise" if problem.groups == problem.x.shape[1] else "grouped") + step
    return ("1x1" if max(taps) == 1 else "3x3" if max(taps) <= 3 else "large") + step


def _row(which: str, impl: Impl, problem: Any, device: int) -> Any:
    known = table()
    if not known:
        return None
    return known.get(architecture(device), {}).get(which, {}).get(problem.op, {}).get(key_of(impl.name, problem))


def floor_us(problem: Any) -> float:
    """Microseconds that a launch and the memory or the arithmetic of an H200 take at least."""
    rate = 8e8 if problem.inputs[0].itemsize == 2 else 6e7  # operations a microsecond
    return 3.0 + max(problem.bytes / 4.2e6, problem.flops / rate)


def estimate(impl: Impl, problem: Any, device: int) -> float:
    """Microseconds, estimated; what launches alone decide is not scaled by factors learned on large layers."""
    factor, floor = _row("operations", impl, problem, device), floor_us(problem)
    return impl.rank(problem) if factor is None or floor < SMALL_US else floor * factor


def preferred(listed: list[dict[str, Any]], ratios: dict[str, float]) -> dict[str, Any] | None:
    """The configuration to take instead of the first one listed, None to leave it: of its form, of the engine known fastest.

    >>> preferred([{"form": "nchw", "engine": 2}, {"form": "nchw", "engine": 74}], {"2": 3.3, "74": 1.0})
    {'form': 'nchw', 'engine': 74}
    """
    if not listed or str(listed[0]["engine"]) not in ratios:
        return None
    same = [c for c in listed if c["form"] == listed[0]["form"] and str(c["engine"]) in ratios]
    best = min(same, key=lambda c: ratios[str(c["engine"])])
    return best if ratios[str(best["engine"])] * MARGIN < ratios[str(listed[0]["engine"])] else None


def configuration(impl: Impl, problem: Any, policy: Policy) -> Any:
    """The configuration that was learned to be better than the implementation's own choice; None: leave it to it."""
    if policy.fp32_precision != "ieee" or policy.determinism != "run_to_run" or policy.algo != "auto":
        return None  # measured under the default rules
    ratios = _row("engines", impl, problem, policy.device)
    return preferred(impl.space(problem, policy), ratios) if ratios and impl.space else None
