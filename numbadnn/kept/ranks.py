"""What runs untuned, learned from measurements: ``heuristics.json``, made by bench/learn_rank.py.

``operations``: in a class of convolutions (dtype, layout, dense or depthwise) an implementation takes ``ratio`` times what
the fastest takes where its own ``rank`` is no more than memory and arithmetic must take, and ``excess ** slope`` times that
where it is ``excess`` times as much, but not less than its rank over BELIEVED. Where the table says nothing, the rank itself
stands. ``engines``: of each engine of cuDNN's graph API, in nested classes of one operation, how many times the fastest it
takes within an implementation: where cuDNN's heuristics name first what was much slower, the engine that was fastest is
taken instead. ``layers``: the fastest of those very problems that were measured and for which all this says something slower.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

from numbadnn.errors import BackendUnavailableError
from numbadnn.host import files as stored
from numbadnn.kept import tensor_cores
from numbadnn.problem import Policy
from numbadnn.problems.conv_routes import DETOUR_US, without_detour
from numbadnn.registry import FAMILY, Impl

TABLE, FORMAT = Path(__file__).with_name("heuristics.json"), "numbadnn-heuristics-4"

#: engines of cuDNN 9.19 for 16 bits in groups. Where there are two to eight groups of 8 to 48 channels its heuristics may name an
#: engine that knows no groups: these took 0.34 to 0.89 of its time in 15 of 15 random problems on an H200, but 2.9 times it in
#: the gradient of a strided image
FOR_GROUPS = {"forward": 22, "grad_inputs": 22, "grad_weights": 65}

#: an engine replaces what the heuristics name, which the table calls "own", only where it was this much faster
MARGIN, OWN = 1.05, "own"

#: floors up to here, in microseconds, are of small and middle problems: launches decide the first, memory latency the second
SMALL_US, MIDDLE_US = 6.0, 30.0

#: below this floor there is next to nothing but a launch, and no class of real layers says anything about it
TINY_US = 3.2

#: what was not measured in a class is held to take at least so many times the fastest of it
UNKNOWN = 1.25

#: a class is not believed where it says a time so many times shorter than the implementation's own estimate
BELIEVED = 1.25

#: of what follows neither cuDNN nor kernels of ours gain much by tf32
NO_TF32 = ("unshared", "depthwise", "image")

#: of the row of a class: times ``floor_us``
FASTEST = "fastest"

Rows = dict[str, dict[str, Any]]  # class -> FASTEST -> times the floor, implementation -> [ratio, slope]
Engines = dict[str, dict[str, float]]  # class -> implementation and engine -> times the fastest


@functools.cache
def table() -> dict[str, Any]:
    """architecture -> "operations" -> family -> Rows, "engines" -> operation -> Engines, "layers" -> problem -> ``known``."""
    found = stored.read(TABLE, FORMAT, private=False) or {}
    return found.get("architectures", {})


@functools.cache
def architecture(device: int) -> str:
    """``sm_90`` for a GPU of compute capability 9.0, "cpu" for -1, "" for a device that is not there."""
    if device < 0:
        return "cpu"
    from numbadnn.gpu import driver as _driver

    try:
        return "sm_{}{}".format(*_driver.compute_capability(device))
    except BackendUnavailableError:
        return ""


def class_of(problem: Any) -> str:
    """The class of a convolution in ``operations``; "" for what has none: the own ranks decide.

    Those of 16 bits have none: own kernels and cuDNN's are so near one another that what is added to memory and arithmetic
    decides, which the ranks know of each problem and no class does. Nor have those in groups and of few channels, which
    waste the more the smaller they are. Directions and axes of a dense convolution are one matrix product and one class, so
    that what is known of one serves the others. Those of a depthwise one are computed in three ways.

    >>> from numbadnn.cases import parse
    >>> class_of(parse("conv2d x=float32:8x64x99x99:nhwc w=float32:4x64x1x1:nhwc"))
    'float32 nhwc dense'
    """
    from numbadnn.problems.conv import OPERATIONS

    kind = kind_of(problem)
    if kind in ("", "unshared") or OPERATIONS[problem.op].arrangement or floor_us(problem) < TINY_US:
        return ""
    if problem.inputs[0].itemsize == 2 or kind.startswith(("grouped", "image")):
        return ""
    dtype, layout = problem.inputs[0].dtype, problem.inputs[0].layout or "nchw"
    form = f"depthwise {problem.direction}" if kind.startswith("depthwise") else "dense"
    return f"{dtype} {layout} {form}"


def keys_of(problem: Any) -> tuple[str, ...]:
    """The classes of a problem in ``engines``, the finest first; () for what has none.

    >>> from numbadnn.cases import parse
    >>> keys_of(parse("conv2d x=float16:8x64x99x99:nhwc w=float16:4x64x1x1:nhwc stride=2,2"))
    ('float16 nhwc 1x1/2 small', 'float16 nhwc 1x1/2', 'float16 nhwc')
    """
    kind, floor = kind_of(problem), floor_us(problem)
    if not kind or floor < TINY_US:
        return ()
    dtype, layout = problem.inputs[0].dtype, problem.inputs[0].layout or "nchw"
    size = "small" if floor < SMALL_US else "middle" if floor < MIDDLE_US else "large"
    return f"{dtype} {layout} {kind} {size}", f"{dtype} {layout} {kind}", f"{dtype} {layout}"


def kind_of(problem: Any) -> str:
    """What decides which way of computing a convolution is fast: unshared, depthwise, grouped or the filter; the stride.

    "" for all other operations.
    """
    taps = getattr(problem, "taps", None)
    if taps is None:
        return ""
    step = f"/{max(problem.stride)}" if max(problem.stride) > 1 else ""
    if problem.unshared:
        return "unshared"
    if problem.groups > 1:
        return ("depthwise" if problem.groups == problem.x.shape[1] else "grouped") + step
    if problem.x.shape[1] <= 4:
        return "image" + step  # so few channels that they fill no vector
    return ("1x1" if max(taps) == 1 else "3x3" if max(taps) <= 3 else "larger") + step


def floor_us(problem: Any) -> float:
    """Microseconds that a launch and the memory or the arithmetic of an H200 take at least."""
    rate = 8e8 if problem.inputs[0].itemsize == 2 else 6e7  # operations a microsecond
    return 3.0 + max(problem.bytes / 4.2e6, problem.flops / rate)


def _rows(which: str, name: str, device: int) -> dict[str, Any]:
    known = table()
    return known.get(architecture(device), {}).get(which, {}).get(name, {}) if known else {}


def excess(impl: Impl, problem: Any, own_us: float) -> float:
    """How many times the floor an implementation's own estimate is, 1 at least; a detour's without what keeps it behind."""
    return max(1.0, without_detour(impl.name, own_us) / floor_us(problem))


def estimate_by(rows: Rows, impl: Impl, problem: Any) -> float:
    """Microseconds by the class of the problem, else the implementation's own estimate.

    Where others were measured and this one was not, it is not believed to be faster than all of them.
    """
    row, own = rows.get(class_of(problem)) if rows else None, impl.rank(problem)
    if row is None or own == math.inf:
        return own
    fastest = floor_us(problem) * row[FASTEST]
    if impl.name not in row:
        return max(own, UNKNOWN * fastest)
    ratio, slope = row[impl.name]
    beyond = excess(impl, problem, own)
    # a detour meets odd shapes: it is not held to be faster than it says itself
    believed = BELIEVED if without_detour(impl.name, own) == own else 1.0
    return max(fastest * ratio * beyond**slope, floor_us(problem) * beyond / believed)


def estimate(impl: Impl, problem: Any, policy: Policy, usable: bool = True) -> float:
    """Microseconds that an implementation takes untuned, estimated; what it foretells itself, where ``usable``, comes first."""
    if impl.foretell and usable and policy.device >= 0 and (told := impl.foretell(problem, policy)) is not None:
        return told
    if policy.fp32_precision == "tf32" and (us := _under_tf32(impl, problem)) is not None:
        return us
    return estimate_by(_rows("operations", FAMILY[problem.op], policy.device), impl, problem)


def _under_tf32(impl: Impl, problem: Any) -> float | None:
    """Microseconds on tensor cores, for which no table was learned; None where nothing gains by them."""
    kind = kind_of(problem)
    if not kind or problem.x.dtype != "float32":
        return None
    if impl.rank_tf32:
        return impl.rank_tf32(problem)
    if kind.startswith(NO_TF32):
        return None
    own = impl.rank(problem)
    if impl.backend != "cudnn":
        return own
    behind = 0.0 if impl.name == "cudnn.graph" else DETOUR_US
    return behind + tensor_cores.under_tf32(problem, own)


def engine_name(config: dict[str, Any]) -> str:
    """What the table calls an engine.

    >>> engine_name({"form": "nhwc", "engine": 62, "knobs": {}})
    'nhwc 62'
    """
    return f"{config['form']} {config['engine']}"


def merged(rows: Engines, problem: Any, impl: str) -> dict[str, float]:
    """ "form engine" -> times the fastest, of one implementation, each from the finest class that knows it; and OWN.

    The widest class is left out: which engine is fast depends on the filter.
    """
    found: dict[str, float] = {}
    for key in keys_of(problem)[:-1] if rows else ():
        for name, ratio in rows.get(key, {}).items():
            head, _, engine = name.partition(" ")
            if head == impl:
                found.setdefault(engine, ratio)
    return found


def preferred(listed: list[dict[str, Any]], ratios: dict[str, float]) -> dict[str, Any] | None:
    """The configuration to take instead of what the implementation takes by itself, None to leave it: of the best engine.

    >>> preferred([{"form": "nchw", "engine": 2}, {"form": "nchw", "engine": 74}], {"own": 1.5, "nchw 2": 3.3, "nchw 74": 1.1})
    {'form': 'nchw', 'engine': 74}
    """
    known = [c for c in listed if engine_name(c) in ratios]
    if not known or OWN not in ratios:
        return None
    best = min(known, key=lambda c: ratios[engine_name(c)])
    return best if ratios[engine_name(best)] * MARGIN < ratios[OWN] else None


def as_measured(policy: Policy, levels: tuple[str, ...] = ("run_to_run",)) -> bool:
    """Whether arithmetic, level and algorithm are the default ones, as everything was measured, or the level one of these."""
    return policy.fp32_precision == "ieee" and policy.determinism in levels and policy.algo == "auto"


def known(problem: Any, policy: Policy) -> dict[str, Any] | None:
    """{"impl", "config", "time_us"}: what was the fastest of this very problem, where the estimates say otherwise.

    Where nothing is guaranteed it is better than an estimate, too. Of cuDNN's also "made_with", the version.
    """
    tables, applies = table(), as_measured(policy, ("run_to_run", "not_guaranteed"))
    layers = tables.get(architecture(policy.device), {}).get("layers", {}) if tables and applies else {}
    return layers.get(str(problem)) if layers else None


def configuration(impl: Impl, problem: Any, policy: Policy) -> Any:
    """The configuration that was learned to be better than the implementation's own choice; None: leave it to it."""
    if not as_measured(policy):
        return None
    few = impl.name == "cudnn.graph" and _in_few_groups(problem) and architecture(policy.device) in table()
    ratios = {} if few else merged(_rows("engines", problem.op, policy.device), problem, impl.name)
    listed = [c for c in impl.space(problem, policy) if c is not None] if (few or ratios) and impl.space else []
    if few:
        return next((c for c in listed if c["engine"] == FOR_GROUPS[problem.direction]), None)
    return preferred(listed, ratios)


def _in_few_groups(problem: Any) -> bool:
    """Whether it is a convolution in 16 bits of which FOR_GROUPS speaks."""
    if not kind_of(problem).startswith("grouped") or problem.x.itemsize != 2 or not 2 <= problem.groups <= 8:
        return False
    if problem.direction == "grad_inputs" and max(problem.stride) > 1:
        return False
    return all(
        8 <= n <= 48 and n % 8 == 0
        for n in (problem.x.shape[1] // problem.groups, problem.y.shape[1] // problem.groups)
    )
