"""The matrix operation x backend: what can compute what (``Impl``), and what planning gives (``Executable``).

Each backend has one module a family that calls ``register`` at import (``cpu/conv/conv.py``, ``kernels/conv/conv.py``,
``cudnn/conv.py``). ``implementations(op, backends)`` imports the modules of a family and of these backends on first use, so
that nothing is loaded that no call needs. Importing such a module loads no CUDA and no Numba: that happens in ``plan``.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import importlib
import importlib.util
import math
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from numbadnn.host.undisturbed import undisturbed
from numbadnn.problem import Policy

#: backend -> where the module of a family lies that registers it
MODULES = {"cudnn": "numbadnn.cudnn.{0}", "numba": "numbadnn.kernels.{0}.{0}", "cpu": "numbadnn.cpu.{0}.{0}"}

#: operation -> family (the stem of its files)
FAMILY: dict[str, str] = {
    "conv2d": "conv",
    "conv2d_grad_wrt_inputs": "conv",
    "conv2d_grad_wrt_weights": "conv",
    "conv3d": "conv",
    "conv3d_grad_wrt_inputs": "conv",
    "conv3d_grad_wrt_weights": "conv",
    "causal_conv1d": "conv",
    "conv3d2d": "conv",
    "softmax": "softmax",
    "softmax_grad": "softmax",
    "pool": "pool",
    "pool_grad": "pool",
    "batch_normalization_train": "norm",
    "batch_normalization_test": "norm",
    "batch_normalization_train_grad": "norm",
    "batch_normalization_test_grad": "norm",
    "spatialtf_grid": "spatial",
    "spatialtf_grid_grad": "spatial",
    "spatialtf_sampler": "spatial",
    "spatialtf_sampler_grad": "spatial",
    "bilinear_upsampling": "upsample",
    "bilinear_upsampling_grad": "upsample",
    "dropout": "dropout",
    "dropout_grad": "dropout",
    "rnn_forward": "rnn",
    "rnn_backward": "rnn",
}

#: from the weakest to the strongest guarantee
DETERMINISM = ("not_guaranteed", "run_to_run", "batch_invariant", "gpu_to_gpu")

#: arithmetic that sums transforms of a tile or an image: an error there is as large as the largest number, not as the element
TRANSFORMS = ("fft", "winograd")


def accuracy_of(arithmetic: str) -> str:
    """What the option ``accuracy`` calls results of an arithmetic.

    >>> accuracy_of("tensor_core"), accuracy_of("winograd")
    ('elementwise', 'normwise')
    """
    return "normwise" if arithmetic in TRANSFORMS else "elementwise"


@dataclass(frozen=True, slots=True)
class Summation:
    """How an implementation adds the terms of a long sum; the bounds of ``compare`` follow from it.

    Terms are dealt to ``lanes`` (threads, vector lanes), whose sums are added pairwise in the end. A lane adds ``chains[0]``
    terms one after the other, then as many such sums as ``chains[1]`` says, and so on. What ``chains`` leave over is added
    in ``rest``: "pairwise", in "sequence", or "compensated" (what each addition rounds off is kept, and added too).
    """

    chains: tuple[int, ...] = ()
    rest: str = "pairwise"
    lanes: int = 1

    def __post_init__(self) -> None:
        if self.rest not in ("pairwise", "sequence", "compensated"):
            raise ValueError(f"rest: expected pairwise, sequence or compensated, got {self.rest!r}")
        if self.lanes < 1 or min(self.chains, default=1) < 1:
            raise ValueError(f"chains, lanes: expected positive numbers, got {self.chains} and {self.lanes}")

    def depth(self, terms: float) -> float:
        """The most roundings that one of so many terms passes through, its own (as a product) among them: k of gamma_k.

        >>> SEQUENCE.depth(1000), BLOCKED.depth(1000), BLOCKED.depth(10**9)
        (1000, 258, 278)
        """
        left, depth = max(math.ceil(terms / self.lanes), 1), 1 + math.ceil(math.log2(self.lanes))
        for chain in self.chains:
            depth += min(left, chain) - 1
            left = math.ceil(left / chain)
        if self.rest == "pairwise":
            return depth + math.ceil(math.log2(left))
        return depth + (min(left - 1, 2) if self.rest == "compensated" else left - 1)


#: one term after the other, or an order that nobody knows
SEQUENCE = Summation((), "sequence")
#: blocks of 256 terms, whose sums are added pairwise: what an implementation that declares nothing is held to
BLOCKED = Summation((256,))
#: chains of 128 terms, whose sums are added with what each addition loses, or in float64 for float32
COMPENSATED = Summation((128,), "compensated")


@dataclass(slots=True)
class Executable:
    """A problem made ready on one device for one thread.

    ``run(inputs, outputs, workspace, stream)``: on the GPU every array and the workspace is an address (int) and
    ``stream`` a raw handle (int); on the CPU arrays are NumPy arrays, workspace and stream are None. An operation's words
    (integers that are no part of the problem, such as a seed) come after the input arrays. Only enqueues.
    ``facts`` is what explain, last_call and validate print: engine, configuration, copies paid.
    """

    run: Callable[[tuple[Any, ...], tuple[Any, ...], Any, Any], None]
    workspace_bytes: int = 0
    arithmetic: str = "ieee"
    determinism: str = "run_to_run"
    facts: dict[str, Any] = field(default_factory=dict)
    #: the same as ``run`` for the hot path of a GPU call: direct(stream, *inputs, *words, *outputs), then workspace if any
    direct: Callable[..., None] | None = None
    #: how its long sums are added: what its results may be off by follows from this
    summation: Summation = BLOCKED
    #: the most that a call takes on the CPU besides its arrays, which is memory of its own: the option workspace_limit bounds it
    scratch_bytes: int = 0

    @property
    def accuracy(self) -> str:
        """elementwise or normwise, as its arithmetic has it."""
        return accuracy_of(self.arithmetic)


#: an estimate from here on puts an implementation behind all others and tells no time
LAST_US = 1e9


@dataclass(frozen=True, slots=True)
class Impl:
    """One way to compute one operation on one backend.

    ``supports(problem, policy)`` is "" for yes, else the reason in words; it may load libraries, never launch.
    ``plan(problem, policy, config)`` makes the Executable; ``config`` None means the implementation's own heuristic.
    ``rank(problem)``: lower is tried first among all backends that the options admit.
    """

    op: str
    backend: str
    name: str
    supports: Callable[[Any, Policy], str]
    plan: Callable[[Any, Policy, Any], Executable]
    rank: Callable[[Any], float]
    arithmetic: str = "ieee"
    determinism: str = "run_to_run"
    #: takes every problem of its operation: a refusal of one is a failure of the contract
    complete: bool = False
    #: the candidates inside this implementation (cuDNN engines, kernel configurations), for explain
    options: Callable[[Any, Policy], list[dict[str, Any]]] | None = None
    #: the configurations worth timing, each to be given to ``plan``; None in the list is the implementation's own heuristic
    space: Callable[[Any, Policy], list[Any]] | None = None
    #: restore(problem, policy, stored) -> the config that a JSON file stores, where ``space`` is slow to list; it holds all
    #: that ``supports`` would, with NotSupportedError for what may not be
    restore: Callable[[Any, Policy, Any], Any] | None = None
    #: foretell(problem, policy) -> microseconds of what it would run on this device, where that must be asked for and tells
    #: more than ``rank``; None where it does not. Asked on the cold path alone
    foretell: Callable[[Any, Policy], float | None] | None = None
    #: foretold_least(problem) -> what ``foretell`` says at least, without asking: where another is faster it need not be asked
    foretold_least: Callable[[Any], float] | None = None
    #: ``rank`` of float32 with TF32, where a model of its own says it
    rank_tf32: Callable[[Any], float] | None = None
    #: microseconds that a warm call keeps the host, beyond what every call does: what a small problem takes
    host_us: float = 0.0
    #: reserve_bytes(problem, device) -> what it writes of a forward pass for the gradient, of operations that keep a reserve
    reserve_bytes: Callable[[Any, int], int] | None = None


def problem_class(op: str) -> Any:
    """The Problem of an operation: ``PROBLEM`` of its module in problems/."""
    return importlib.import_module(f"numbadnn.problems.{FAMILY[op]}").PROBLEM


#: what everybody reads of any problem that has it: name -> what it must mean
RESERVED = {
    "alpha": "what a result is multiplied by",
    "beta": "how much of ``out`` is added to it",
    "empty_values": "what fills results without a reduction",
    "keyword_inputs": "inputs that the function takes behind its parameters",
    "out_argument": "the name of the function's destination",
    "spent": "inputs that a run writes over",
    "taps": "the sizes of its filters",
    "words": "integers that the implementation gets after its arrays",
}


@functools.cache
def check_fields(problem: Any) -> None:
    """ValueError where a field of a Problem has a reserved name and its class does not say, in ``MEANT``, that it means that."""
    meant = getattr(problem, "MEANT", ())
    for field_of in dataclasses.fields(problem):
        if field_of.name in RESERVED and field_of.name not in meant:
            raise ValueError(
                f"{problem.__name__}: the field {field_of.name!r} is read of every problem as {RESERVED[field_of.name]}; "
                f"expected another name, or {field_of.name!r} in {problem.__name__}.MEANT where it is that"
            )


def plan(impl: Impl, problem: Any, policy: Policy, config: Any) -> Executable:
    """``impl.plan``, which may import and compile, as a whole: nothing breaks it off half way."""
    with undisturbed():
        return impl.plan(problem, policy, config)


def beyond_limit(executable: Executable, policy: Policy) -> str:
    """Why a call may not take the memory of its own that this needs ("" = it may)."""
    if executable.scratch_bytes <= policy.workspace_limit:
        return ""
    return f"needs {executable.scratch_bytes} bytes of scratch, the workspace limit is {policy.workspace_limit}"


_IMPLS: dict[str, list[Impl]] = {}
#: (family, backend) of the modules that were imported
_LOADED: set[tuple[str, str]] = set()
#: (op, name) -> the names of the module that registered it
_BY: dict[tuple[str, str], dict[str, Any]] = {}
#: held while a list in ``_IMPLS`` changes: threads may import different backends of a family at once
_changing = threading.Lock()


def register(impl: Impl) -> Impl:
    """Add an implementation; its (op, name) is unique.

    A module that is imported again, after something broke its import off, puts its own in the place of what it had registered.
    ValueError for a name that is taken, and for a Problem whose fields have reserved names (``check_fields``).
    """
    check_fields(problem_class(impl.op))
    by = sys._getframe(1).f_globals
    with _changing:
        known = _IMPLS.setdefault(impl.op, [])
        for place, other in enumerate(known):
            if other.name == impl.name:
                before = _BY[impl.op, impl.name]
                if before is by or before["__name__"] != by["__name__"]:
                    raise ValueError(f"implementation {impl.name!r} of {impl.op!r} is registered twice")
                known[place] = impl
                break
        else:
            known.append(impl)
        _BY[impl.op, impl.name] = by
    return impl


def unregister(impl: Impl) -> None:
    """Take an implementation out again: one that was registered for a while."""
    with _changing:
        _IMPLS[impl.op].remove(impl)


def implementations(op: str, backends: Iterable[str] = tuple(MODULES)) -> list[Impl]:
    """The implementations of ``op`` on these backends: backend by backend as in MODULES.

    Each in order of registration, but as the family's module has their names in ``ORDER``, where it says so.
    """
    backends = [backend for backend in MODULES if backend in backends]
    for backend in backends:
        _load(FAMILY[op], backend)
    return [impl for backend in backends for impl in _IMPLS.get(op, []) if impl.backend == backend]


def _load(family: str, backend: str) -> None:
    """Import the module in which a backend registers a family, all or nothing; it may have none."""
    if (family, backend) in _LOADED:
        return
    name = MODULES[backend].format(family)
    with undisturbed():
        wing = name.rpartition(".")[0]
        if importlib.util.find_spec(wing) and importlib.util.find_spec(name):
            _put_in_order(family, getattr(importlib.import_module(name), "ORDER", ()))
    _LOADED.add((family, backend))


def _put_in_order(family: str, names: Sequence[str]) -> None:
    """The implementations of these names (``*`` allowed) as they are listed, whatever was imported before; others come behind."""

    def place(impl: Impl) -> int:
        return next((n for n, name in enumerate(names) if fnmatch.fnmatchcase(impl.name, name)), len(names))

    with _changing:
        for op in (op for op in _IMPLS if names and FAMILY[op] == family):
            _IMPLS[op] = sorted(_IMPLS[op], key=place)


def library_version(backend: str) -> str:
    """The version of the library behind a backend, as files name it; "-1" where it cannot be loaded."""
    from numbadnn.errors import BackendUnavailableError

    try:
        return str(importlib.import_module(f"numbadnn.{backend}.lib").load().version)
    except BackendUnavailableError:
        return "-1"
