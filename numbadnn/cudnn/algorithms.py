"""Convolutions by an algorithm that the caller names, as Theano's users do: implementation "cudnn.algorithms".

``algo="fft"`` and its like run cuDNN's C call with exactly that algorithm; a name that this GPU, type or shape does not have
is a refusal with cuDNN's reason, and the fallback option says what then. ``guess_*`` takes the first of cuDNN's ranking that
fits the workspace limit, ``time_*`` the first of its timings; ``*_on_shape_change`` chooses anew for each problem, ``*_once``
keeps the first choice of the process for a direction, asks again for each problem whether it is supported and fits, and where
it is not takes the next of that problem's own ranking (``facts`` name the algorithm that runs). What is chosen is the
process's: a thread that comes later takes it and times nothing. ``numbadnn.clear_caches`` forgets it.
Source: cudnn_cnn.h, docs/explanation/semantics.md#algorithms-by-name. Operands are first brought into the forms of
``graph/forms.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numbadnn import config as options
from numbadnn.cudnn import lib
from numbadnn.cudnn._conv_calls import FORWARD, Call, call_of, convolution, filters, ranked, workspace_bytes
from numbadnn.cudnn._enums import DATA_TYPE, DataType, MathType
from numbadnn.cudnn._tensors import scalars, tensor
from numbadnn.cudnn.graph.forms import Form, forms, uncountable
from numbadnn.errors import BackendUnavailableError, CudnnError, DeterminismError, NotSupportedError
from numbadnn.problem import Policy
from numbadnn.registry import SEQUENCE, TRANSFORMS, Executable

RUNTIME = ("guess_once", "guess_on_shape_change", "time_once", "time_on_shape_change")

#: what no name tells, measured on an H200 with cuDNN 9.19
ROUNDED = "adds partial sums that it has rounded to float16: up to 4.4 of the bound (cuDNN 9.19, H200)"
UNKNOWN = (
    "cuDNN's C calls compute bfloat16 by engines that they do not name: small integers differed (cuDNN 9.19, H200)"
)

#: (operation, runtime name) -> the algorithm that ``*_once`` keeps
_ONCE: dict[tuple[str, str], int] = {}
#: (problem, rules) -> the form and the algorithm that ``*_on_shape_change`` has chosen
_CHOSEN: dict[tuple[Any, Policy], tuple[str, int]] = {}


def forget() -> None:
    """Choose anew from here on."""
    _ONCE.clear()
    _CHOSEN.clear()


def _kept(problem: Any, policy: Policy) -> tuple[str, int | None]:
    """The form ("" = any) and the algorithm to try first."""
    if policy.algo.endswith("_once"):
        return "", _ONCE.get((problem.op, policy.algo))
    return _CHOSEN.get((problem, policy), ("", None))


@dataclass(slots=True)
class _Ready:
    """An algorithm that fits, with the descriptors it is called with."""

    form: Form
    descriptors: tuple[Any, ...]
    algorithm: int
    workspace: int
    math: MathType


def supports(problem: Any, policy: Policy) -> str:
    """ "" if the named algorithm can compute this, else the reason; DeterminismError against a level that the user set."""
    reason = _static_refusal(problem, policy)
    if reason:
        return reason
    try:
        _find(problem, policy, timed=False)
    except NotSupportedError as error:
        return str(error)
    except BackendUnavailableError as error:
        return f"cuDNN cannot be used: {error}"
    return ""


def _static_refusal(problem: Any, policy: Policy) -> str:
    call = call_of(problem.op)
    if policy.algo not in RUNTIME:
        if policy.algo not in call.algorithms:
            return f"has no algorithm {policy.algo!r} in this direction, but {', '.join(call.algorithms)}"
        if len(problem.stride) == 3 and policy.algo not in call.in_3d:
            return f"cuDNN's algorithm {policy.algo!r} has two spatial axes, {problem.op} has three"
        if policy.accuracy == "elementwise" and _transforms(call, call.algorithms[policy.algo]):
            return f"cuDNN's algorithm {policy.algo!r} transforms, the option accuracy asks for elementwise"
        _check_determinism(call.algorithms[policy.algo] in call.deterministic, policy)
        if _rounds(call, problem, call.algorithms[policy.algo]):
            return f"cuDNN's algorithm {policy.algo!r} {ROUNDED}"
    elif policy.accuracy == "elementwise" and policy.algo.startswith("time_"):
        return "what cuDNN times may transform whatever its name, the option accuracy asks for elementwise"
    if problem.x.dtype == "bfloat16":
        return UNKNOWN
    if problem.unshared:
        return "cuDNN has no unshared convolution: its filters are the same at every position of the output"
    return compute_type(problem, policy)[1] or uncountable(problem)


def _rounds(call: Call, problem: Any, algorithm: int) -> bool:
    """The gradients' algorithm 0 adds to its result by atomic operations, in the result's type."""
    return algorithm == 0 and call is not FORWARD and problem.x.dtype == "float16"


def _transforms(call: Call, algorithm: int) -> bool:
    return any(n.startswith(TRANSFORMS) and a == algorithm for n, a in call.algorithms.items())


def _check_determinism(deterministic: bool, policy: Policy) -> None:
    """An algorithm that is named beats the default level; against one that the user set it is an error."""
    level = options.current().origin["determinism"]
    if not deterministic and level != "default" and policy.determinism != "not_guaranteed":
        raise DeterminismError(
            f"algo={policy.algo!r} may give other bits in each run, but determinism={policy.determinism!r} ({level}) asks "
            "for more: name a deterministic algorithm, or set determinism='not_guaranteed'"
        )


def compute_type(problem: Any, policy: Policy) -> tuple[DataType, str]:
    """The type that sums are kept in, as ``precision`` says; and why not, in words."""
    dtype, precision = problem.x.dtype, policy.precision
    wanted = {"as_input": dtype, "as_input_f32": "float32" if dtype in ("float16", "bfloat16") else dtype}.get(
        precision, precision
    )
    wanted = "float32" if wanted == "bfloat16" else wanted
    kind = DATA_TYPE[wanted]
    if wanted == "float16" and call_of(problem.op).stem != "ConvolutionForward":
        return kind, "Float16 precision is disabled for cuDNN backward convolutions"
    if wanted == "float16" and dtype != "float16":
        return kind, f"cuDNN does not compute {dtype} data in float16"
    if (wanted == "float64") != (dtype == "float64"):
        return kind, f"cuDNN does not compute {dtype} data in {wanted}"
    if problem.beta and dtype in ("float16", "bfloat16"):
        return kind, f"cuDNN rounds the convolution to {dtype} before it adds beta * out, which rounds twice"
    return kind, ""


def _math(problem: Any, policy: Policy) -> MathType:
    """IEEE float32 and float64 by plain multiply-adds; 16-bit data, and float32 where tf32 is asked for, on tensor cores."""
    if problem.x.dtype in ("float16", "bfloat16"):
        return MathType.TENSOR_OP
    return MathType.DEFAULT if policy.fp32_precision == "tf32" and problem.x.dtype == "float32" else MathType.FMA


def _descriptors(library: lib.Library, call: Call, problem: Any, policy: Policy) -> tuple[Any, ...]:
    """Those of the operands in cuDNN's order, then the convolution's."""
    specs = [(name, getattr(problem, name)) for name in call.order]
    operands = [filters(library, s) if n == "w" else tensor(library, s.dtype, s.shape, s.strides) for n, s in specs]
    kind = compute_type(problem, policy)[0]
    return (*operands, convolution(library, problem, kind, _math(problem, policy)))


def _find(problem: Any, policy: Policy, timed: bool) -> _Ready:
    """The algorithm, in the first form that has it and fits the workspace limit; NotSupportedError says what was in the way."""
    from numbadnn.gpu.context import ensure_context

    library, call = lib.load(), call_of(problem.op)
    passed: list[str] = []
    with ensure_context(policy.device):
        ours = lib.handle(library, policy.device)
        if timed:  # cuDNN runs its algorithms on it: the stream of a call before this may be gone, or captured
            ours.set_stream(0)
        handle = ours.value
        first = _kept(problem, policy)[0]
        for form in sorted(forms(problem), key=lambda form: form.name != first):
            limit = form.room(policy.workspace_limit)
            with _unsupported(passed, form.name):
                descriptors = _descriptors(library, call, form.problem, policy)
                for algorithm in _algorithms(library, handle, call, problem, policy, descriptors, timed):
                    size = limit + 1
                    with _unsupported(passed, form.name):
                        size = workspace_bytes(library, handle, call, descriptors, algorithm)
                        if size > limit:
                            passed.append(f"{form.name}: needs a workspace of {size} bytes, {limit} are allowed")
                    if size <= limit:
                        lib.check_single_folder()
                        return _Ready(form, descriptors, algorithm, size, _math(problem, policy))
    raise NotSupportedError(f"cuDNN {library.version} has no {policy.algo!r} here: {'; '.join(passed[:3])}")


@contextlib.contextmanager
def _unsupported(passed: list[str], form: str) -> Iterator[None]:
    """What cuDNN says it does not support is noted and passed over; its other errors are raised."""
    try:
        yield
    except CudnnError as error:
        if not error.refuses:
            raise
        passed.append(f"{form}: {error}")
    except NotSupportedError as error:  # strides and sizes beyond 32 bits
        passed.append(f"{form}: {error}")


def _algorithms(
    library: lib.Library,
    handle: int,
    call: Call,
    problem: Any,
    policy: Policy,
    descriptors: tuple[Any, ...],
    timed: bool,
) -> Iterator[int]:
    """What is to be tried: the one that is named, or the one kept, and a ranking where that is not to be had."""
    if policy.algo in call.algorithms:
        yield int(call.algorithms[policy.algo])
        return
    free, kept = policy.determinism == "not_guaranteed", _kept(problem, policy)[1]
    elementwise = policy.accuracy == "elementwise"

    def may(algorithm: int) -> bool:
        return not _rounds(call, problem, algorithm) and not (elementwise and _transforms(call, algorithm))

    # it may have been chosen under another level, or for another type
    if kept is not None and (free or kept in call.deterministic) and may(kept):
        yield kept
    found = [p for p in ranked(library, handle, call, descriptors, timed) if may(p.algo)]
    yield from (
        p.algo for p in found if p.algo != kept and (free or (p.determinism == 1 and p.algo in call.deterministic))
    )


def plan(problem: Any, policy: Policy, config: Any) -> Executable:
    """Descriptors, scalars and table, bound into one callable; ``time_*`` lets cuDNN run its algorithms here."""
    from numbadnn.cudnn.graph.around import running, surrounded
    from numbadnn.host.bounded import MAX_CHOICES, remember

    timed = policy.algo.startswith("time_")
    ready = _find(problem, policy, timed)
    if policy.algo.endswith("_once"):
        _ONCE.setdefault((problem.op, policy.algo), ready.algorithm)
    elif policy.algo in RUNTIME:
        if (problem, policy) not in _CHOSEN:
            remember(_CHOSEN, (problem, policy), (ready.form.name, ready.algorithm), MAX_CHOICES)
        elif _CHOSEN[problem, policy] != (ready.form.name, ready.algorithm):  # another thread was there first
            ready = _find(problem, policy, timed)
    call, form = call_of(problem.op), ready.form
    issue = _issue(problem, policy.device, ready)
    direct, nbytes = surrounded(form, issue, ready.workspace, policy.device)
    name = next((n for n, a in call.algorithms.items() if a == ready.algorithm), str(ready.algorithm))
    facts = {
        "form": form.name, "algorithm": name, "number": ready.algorithm, "math": ready.math.name, "copies": form.copies,
        "cudnn": lib.load().version,
    }  # fmt: skip
    return Executable(
        run=running(direct),
        workspace_bytes=nbytes,
        arithmetic=_arithmetic(problem, policy, name, ready.math),
        determinism="run_to_run" if ready.algorithm in call.deterministic else "not_guaranteed",
        facts=facts,
        direct=direct,
        summation=SEQUENCE,
    )


def _arithmetic(problem: Any, policy: Policy, name: str, math: MathType) -> str:
    if name.startswith("winograd"):
        return "winograd"
    # cuDNN remembers the engine that was fastest when it timed: algorithms of any name then differ from exact sums of small
    # integers as a transform does (conv3d float32, float64 and float16, cuDNN 9.19, H200)
    if name.startswith("fft") or policy.algo.startswith("time_"):
        return "fft"
    if compute_type(problem, policy)[0] == DataType.HALF:
        return "half"
    if math == MathType.TENSOR_OP:
        return "tensor_core"
    return "tf32" if math == MathType.DEFAULT else "ieee"


def _issue(problem: Any, device: int, ready: _Ready) -> Any:
    """(stream, a, b, out, workspace=0) -> None, operands in the order of the operation's arguments."""
    from numbadnn.cudnn._call import POINTER as A
    from numbadnn.cudnn._call import prepare

    library, call = lib.load(), call_of(problem.op)
    alpha, beta, memory = scalars(problem.x.dtype, problem.alpha, problem.beta)
    first, second, result, convolution = (d.value for d in ready.descriptors)
    a, b = (A[1], A[0]) if call.order[0] == "w" else (A[0], A[1])  # the operation takes (dy, w), cuDNN (w, dy)
    how = (convolution, ready.algorithm, A[3], ready.workspace)
    words = (alpha, first, a, second, b, *how, beta, result, A[2])
    issue = prepare(library, device, problem.op, call.function, words, keep=(memory, ready.descriptors))

    def issue_with_workspace(stream: int, a: int, b: int, out: int, workspace: int = 0) -> None:
        issue(stream, a, b, out, workspace)

    return issue_with_workspace
