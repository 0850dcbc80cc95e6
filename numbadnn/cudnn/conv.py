"""Convolutions of images and volumes, and their gradients, through cuDNN's graph API: implementation "cudnn.graph".

Source: the cuDNN backend API (cudnn_graph.h). ``supports`` asks the heuristics for an engine that the rules admit, in
the forms of ``graph/forms.py`` (cheapest copies first); what it finds is kept for the ``plan`` that follows. A call runs the
copies into the workspace, the plan through the compiled shim, and the copies out.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from numbadnn.cudnn import lib
from numbadnn.cudnn.graph import estimate as _estimate
from numbadnn.cudnn.graph import space as _space
from numbadnn.cudnn.graph.around import running, static_refusal, surrounded
from numbadnn.cudnn.graph.forms import Form, forms
from numbadnn.errors import BackendUnavailableError, CudnnError, NotSupportedError
from numbadnn.problem import Policy
from numbadnn.problems.conv import OPERATIONS, ConvProblem
from numbadnn.problems.conv_routes import routed
from numbadnn.registry import SEQUENCE, TRANSFORMS, Executable, Impl, register


@dataclass(slots=True)
class _Prepared:
    """An engine that was found, with everything a plan of this thread needs."""

    library: lib.Library
    handle: lib.Handle
    form: Form
    candidate: Any


class _Last(threading.local):
    """What ``supports`` last found on this thread: plans belong to a thread, and ``plan`` comes right after."""

    key: Any = None
    prepared: _Prepared | None = None


_LAST = _Last()


def supports(problem: ConvProblem, policy: Policy) -> str:
    """ "" if cuDNN has an engine that the rules admit for this problem, else the reason."""
    reason = static_refusal(problem, policy)
    if reason:
        return reason
    try:
        _LAST.prepared = prepare(problem, policy, None)
    except NotSupportedError as error:
        return str(error)
    except BackendUnavailableError as error:
        return f"cuDNN cannot be used: {error}"
    _LAST.key = (problem, policy)
    return ""


def prepare(problem: ConvProblem, policy: Policy, config: dict[str, Any] | None) -> _Prepared:
    """Find and build the engine; NotSupportedError lists what was passed over.

    ``config`` {"form", "engine", "knobs"} names one (as ``candidates`` lists them) instead of asking the heuristics.
    """
    from numbadnn.gpu.context import ensure_context

    library = lib.load()
    passed = []
    with ensure_context(policy.device):
        handle = lib.handle(library, policy.device)
        for form in _forms_of(problem, config):
            limit = form.room(policy.workspace_limit)
            if limit < 0:
                passed.append(f"{form.name}: copies of {form.buffer_bytes} bytes, {policy.workspace_limit} are allowed")
                continue
            try:
                chosen, others = _candidates(library, handle, form, problem, policy, config, limit)
            except CudnnError as error:
                if not error.refuses:
                    raise
                passed.append(f"{form.name}: {error}")
                continue
            if chosen is not None:
                lib.check_single_folder()
                return _Prepared(library, handle, form, chosen)
            passed += [f"{form.name}: engine {c.engine}: {c.refusal}" for c in others] or [f"{form.name}: no engine"]
    raise NotSupportedError(f"cuDNN {library.version} has no admissible engine: {_summary(passed)}")


def _candidates(
    library: lib.Library, handle: lib.Handle, form: Form, problem: ConvProblem, policy: Policy,
    config: dict[str, Any] | None, limit: int,
) -> tuple[Any, list[Any]]:  # fmt: skip
    """The engine of a form that may run, None if there is none, and those that were passed over."""
    from numbadnn.cudnn.graph import plan

    graph = plan.graph(library, handle, form.problem)
    if not config:
        return plan.first_admissible(library, handle, graph, form.problem, policy, limit)
    found = _named(library, graph, config)
    found.refusal = plan.refusal(found, problem, policy)
    built = not found.refusal and plan.finalise(library, handle, found, limit)
    return (found if built else None), [found]


def _named(library: lib.Library, graph: Any, config: dict[str, Any]) -> Any:
    """The engine configuration that ``config`` names; NotSupportedError where this cuDNN has no such engine or knob."""
    from numbadnn.cudnn.graph import plan

    try:
        return plan.configuration(library, graph, config["engine"], config.get("knobs") or {})
    except CudnnError as error:
        if not error.refuses:
            raise
        raise NotSupportedError(f"cuDNN {library.version} has no engine {config['engine']} so: {error}") from error


def _forms_of(problem: ConvProblem, config: dict[str, Any] | None) -> Iterator[Form]:
    wanted = (config or {}).get("form")
    found = [form for form in forms(problem) if wanted in (None, form.name)]
    if not found:
        raise ValueError(f"form: expected one of {', '.join(f.name for f in forms(problem))}, got {wanted!r}")
    return iter(found if wanted or not config else found[:1])


def _summary(passed: list[str], most: int = 4) -> str:
    more = f"; and {len(passed) - most} more" if len(passed) > most else ""
    return "; ".join(passed[:most]) + more


def plan(problem: ConvProblem, policy: Policy, config: Any) -> Executable:
    """The Executable of the engine that ``supports`` found, or of the one that ``config`` names."""
    prepared = None
    if config is None and _LAST.key == (problem, policy):
        prepared = _LAST.prepared
    _LAST.key = _LAST.prepared = None
    return executable(problem, policy, prepared or prepare(problem, policy, config))


def executable(problem: ConvProblem, policy: Policy, prepared: _Prepared) -> Executable:
    """Bind an engine, its copies and the shim into one callable."""
    from numbadnn.cudnn.graph.plan import arithmetic

    form, candidate = prepared.form, prepared.candidate
    issue = _engine_call(problem, policy.device, prepared)
    direct, nbytes = surrounded(form, issue, candidate.workspace, policy.device)
    facts = {"form": form.name, **candidate.facts(), "copies": form.copies, "cudnn": prepared.library.version}
    return Executable(
        run=running(direct),
        workspace_bytes=nbytes,
        arithmetic=arithmetic(candidate, problem),
        determinism="not_guaranteed" if "NONDETERMINISTIC" in candidate.notes else "run_to_run",
        facts=facts,
        direct=direct,
        summation=SEQUENCE,
    )


def _engine_call(problem: ConvProblem, device: int, prepared: _Prepared) -> Callable[..., None]:
    """(stream, a, b, out, workspace=0) -> None: the plan on three addresses, in the order of the operation's arguments."""
    from numbadnn.cudnn import _shim
    from numbadnn.cudnn.graph.plan import UID
    from numbadnn.gpu import context as _context
    from numbadnn.gpu import driver as _driver
    from numbadnn.host.entry import address_of, entry

    inputs, output = problem.input_names, problem.output_name
    library, handle, descriptor = prepared.library, prepared.handle, prepared.candidate.plan
    current = address_of(_driver.library(), "cuCtxGetCurrent")
    words = _shim.graph_table(
        library,
        current,
        _context.primary_context(device),
        handle.value,
        descriptor.pointer,
        [UID[name] for name in (*inputs, output)],
        address_of(_driver.library(), "cuStreamIsCapturing"),
    )
    table, execute, what = ctypes.addressof(words), entry(_shim.COMPILED, "execute_plan"), problem.op

    # the defaults keep alive what the table points to
    def issue(stream: int, a: int, b: int, out: int, workspace: int = 0, _keep: Any = (words, descriptor)) -> None:
        if stream != handle.stream:
            handle.set_stream(stream)
        code = execute(table, workspace, a, b, out, stream)
        if code:
            _shim.recover(library, code, device, what, _keep, execute, table, workspace, a, b, out, stream)

    return issue


def options(problem: ConvProblem, policy: Policy) -> list[dict[str, Any]]:
    """The engine configurations of the form that would run, each built or with the reason why it is left out.

    Forms before it, which have none that serves, are listed too. An entry can be given to ``plan`` as ``config``.
    """
    found = []
    for form in forms(problem):
        listed = form_options(problem, policy, form)
        found += listed
        if not all(entry["refusal"] for entry in listed):
            break
    return found


def form_options(problem: ConvProblem, policy: Policy, form: Form) -> list[dict[str, Any]]:
    """The engine configurations of one form."""
    from numbadnn.cudnn.graph import plan as graphs
    from numbadnn.gpu.context import ensure_context

    library = lib.load()
    limit = form.room(policy.workspace_limit)
    with ensure_context(policy.device):
        handle = lib.handle(library, policy.device)
        try:
            listed = graphs.candidates(library, handle, form.problem, policy, limit)
        except CudnnError as error:
            if error.status in graphs.NO_MEMORY:
                raise
            return [{"form": form.name, "refusal": str(error)}]
    return [{"form": form.name, **c.facts(), "refusal": c.refusal} for c in listed]


def rank(problem: ConvProblem) -> float:
    """An estimate in microseconds: launch, arithmetic or memory, copies."""
    return _estimate.microseconds(problem)


def foretell(problem: ConvProblem, policy: Policy) -> float | None:
    """Microseconds of an engine by FFT or Winograd where cuDNN's heuristics name one first, which nothing else foretells.

    It is the engine that ``supports`` finds: what is foretold runs.
    """
    from numbadnn.cudnn.graph.plan import arithmetic

    if policy.fp32_precision != "ieee" or not _estimate.may_transform(problem) or supports(problem, policy):
        return None
    prepared = _LAST.prepared
    assert prepared is not None
    if arithmetic(prepared.candidate, prepared.form.problem) not in TRANSFORMS:
        return None
    return _estimate.transformed(problem) + _estimate.copies(prepared.form)


def foretold_least(problem: ConvProblem) -> float:
    """``foretell`` without the copies, which only cuDNN's answer tells; inf where nothing is foretold."""
    return _estimate.transformed(problem) if _estimate.may_transform(problem) else math.inf


_GRAPH = [
    Impl(
        op=_op,
        backend="cudnn",
        name="cudnn.graph",
        supports=supports,
        plan=plan,
        rank=rank,
        arithmetic="ieee",
        determinism="run_to_run",
        options=options,
        space=_space.space,
        restore=_space.restore,
        foretell=foretell,
        foretold_least=foretold_least,
        host_us=8.0,
    )
    for _op in OPERATIONS
]
for _impl in [*_GRAPH, *routed(_GRAPH)]:
    register(_impl)


# the same operations by algorithms that are named: their module and its tables are imported for a call that names one


def _named_supports(problem: ConvProblem, policy: Policy) -> str:
    if policy.algo == "auto":
        return "runs an algorithm that is named (algo=...), and none is"
    from numbadnn.cudnn import algorithms

    return algorithms.supports(problem, policy)


def _named_plan(problem: ConvProblem, policy: Policy, config: Any) -> Executable:
    from numbadnn.cudnn import algorithms

    return algorithms.plan(problem, policy, config)


def _named_rank(problem: ConvProblem) -> float:
    """Behind the graph's engines."""
    return 10.0 + max(problem.flops / 1e7, rank(problem))


for _op, _operation in OPERATIONS.items():
    if not _operation.arrangement:
        register(
            Impl(_op, "cudnn", "cudnn.algorithms", _named_supports, _named_plan, _named_rank, "ieee", "run_to_run")
        )
