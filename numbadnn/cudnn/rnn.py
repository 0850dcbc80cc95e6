"""Recurrent networks through cudnnRNNForward, cudnnRNNBackwardData_v8 and cudnnRNNBackwardWeights_v8: "cudnn.rnn".

Source: cudnn_adv.h. Both biases. cuDNN has three algorithms that need no compiler: ``algorithms`` says which are accurate
enough here and in which order they are tried, cuDNN whether it has them. A reserve is written and read by one
algorithm, which its ``made_by`` names. The weight space is w itself where cuDNN lays it out as the specification does,
which is asked of cuDNN for every matrix and vector; where it does not, w is rearranged in the workspace. The data
gradient comes before the weight gradient, which only adds: dw is zeroed first. Sequences of different lengths are
padded on both sides (CUDNN_RNN_PADDED_IO_ENABLED), in any order.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from numbadnn.cudnn import lib
from numbadnn.cudnn._enums import ForwardMode, RNNAlgo
from numbadnn.cudnn._rnn_calls import Calls, describe, math_type
from numbadnn.errors import CudnnError, NotSupportedError
from numbadnn.kernels.copies.pack import plan_packed
from numbadnn.problem import Policy, Spec
from numbadnn.problems.rnn import RnnProblem
from numbadnn.registry import SEQUENCE, Executable, Impl, register

NAME = "cudnn.rnn"
#: hidden sizes from which the persistent algorithms' functions stay within the bound of IEEE float32 (0.3 of it there)
SHORT = 128
#: hidden sizes up to which the small algorithm was right on tensor cores (a sweep on an H200); beyond, powers of two were
MOST_IN_TILES = {"rnn_relu": 128, "rnn_tanh": 128, "lstm": 32, "gru": 32}
#: hidden sizes beyond which the small algorithm takes as long as the standard one: 222 us where 200 units would need 25
MOST_QUICK = 256
STANDARD, STATIC, SMALL = RNNAlgo.STANDARD, RNNAlgo.PERSIST_STATIC, RNNAlgo.PERSIST_STATIC_SMALL_H


def supports(problem: RnnProblem, policy: Policy) -> str:
    """ "" if cuDNN can do this, else the reason; asks no device."""
    maker, _, algorithm = problem.made_by.partition(":")
    if maker not in ("", NAME):
        return f"the reserve was written by {problem.made_by}, which alone can read it"
    if policy.determinism not in ("run_to_run", "not_guaranteed"):
        return f"cuDNN guarantees run_to_run at best, the option determinism asks for {policy.determinism}"
    accumulator = "float64" if problem.dtype == "float64" else "float32"
    if policy.precision in ("float16", "float32", "float64") and policy.precision != accumulator:
        return f"cuDNN computes {problem.dtype} networks in {accumulator}, not in {policy.precision}"
    return refusal(RNNAlgo[algorithm.upper()], problem, policy) if algorithm else ""


# ---- which algorithm -------------------------------------------------------------------------------------------------


def refusal(algorithm: RNNAlgo, problem: RnnProblem, policy: Policy) -> str:
    """Why an algorithm may not compute a problem, whatever cuDNN says ("" = it may)."""
    if algorithm is STANDARD:
        return ""
    n, name = problem.network, algorithm.name
    if problem.dtype == "float64" or problem.lengths is not None:
        return f"cuDNN's {name} takes sequences of one length, in float16 or float32"
    exact = problem.dtype == "float32" and policy.fp32_precision != "tf32"
    if exact and n.rnn_mode != "rnn_relu" and n.hidden_size < SHORT:
        return (
            f"sigmoid and tanh of cuDNN's {name} are off by up to 1e-5 (9.19, H200): not IEEE float32 where sums are "
            f"shorter than {SHORT} products"
        )
    plain = n.rnn_mode in ("rnn_relu", "rnn_tanh") and n.directions == 2
    if algorithm is SMALL and plain and problem.dtype == "float16" and _training(problem):
        return f"cuDNN's {name} gives a wrong dx for bidirectional {n.rnn_mode} in float16 (9.19: 189 times the bound)"
    if algorithm is SMALL and not exact and _in_tiles(problem):
        return (
            f"cuDNN's {name} gives wrong results for batches in eights and many a hidden_size (9.19, H200: up to 279 times "
            f"the bound for 40 to 72 units of lstm and gru in float16); known to be right are sizes up to "
            f"{MOST_IN_TILES[n.rnn_mode]} and powers of two"
        )
    return ""


def _in_tiles(problem: RnnProblem) -> bool:
    """Whether the small algorithm would go to tensor cores with a size of which it is not known to be right."""
    n, unit = problem.network, 8 if problem.dtype == "float16" else 4
    size = n.hidden_size
    return problem.batch % unit == size % unit == 0 and size > MOST_IN_TILES[n.rnn_mode] and size & (size - 1) != 0


def algorithms(problem: RnnProblem, policy: Policy) -> list[RNNAlgo]:
    """Those that may be used, in the order in which they are tried: the fastest on an H200 first.

    The small one up to PyTorch's limits; the static one in float16 for larger plain networks, and for an LSTM where
    PyTorch takes it; the standard one. A forward pass that keeps a reserve takes what its gradient will.
    """
    n, training = problem.network, _training(problem)
    gated = n.rnn_mode in ("lstm", "gru")
    first = []
    if n.hidden_size <= (256 - 128 * gated if training else 384 - 192 * gated):
        first = [SMALL]
    elif problem.dtype == "float16" and n.hidden_size % 128 == 0 and n.hidden_size <= 1024:
        one = n.num_layers == n.directions == 1 and problem.input_dim % 128 == 0
        if (not gated or (n.has_cell and one)) and problem.batch % 8 == 0 and problem.batch <= 128:
            first = [STATIC]
    return [a for a in (*first, STANDARD) if not refusal(a, problem, policy)]


def space(problem: RnnProblem, policy: Policy) -> list[Any]:
    """Every algorithm that may be used and that cuDNN has for this problem; of a reserve, the one that wrote it."""
    found = []
    for algorithm in _wanted(problem, policy, (STANDARD, STATIC, SMALL)):
        try:
            _sizes(problem, policy, algorithm)
        except CudnnError as error:
            if not _unsupported(error):
                raise
            continue
        found.append({"algorithm": algorithm.name.lower()})
    return found


def restore(problem: RnnProblem, policy: Policy, stored: Any) -> Any:
    """A stored configuration, checked to be one; NotSupportedError for what it or the problem may not be."""
    if reason := supports(problem, policy):
        raise NotSupportedError(reason)
    names = [a.name.lower() for a in (STANDARD, STATIC, SMALL)]
    if not isinstance(stored, dict) or set(stored) != {"algorithm"} or stored["algorithm"] not in names:
        raise NotSupportedError(f"expected an algorithm out of {', '.join(names)}, got {stored!r}")
    algorithm = RNNAlgo[stored["algorithm"].upper()]
    if algorithm not in _wanted(problem, policy, (algorithm,)):
        why = refusal(algorithm, problem, policy) or f"the reserve was written by {problem.made_by}"
        raise NotSupportedError(why)
    return stored


def _wanted(problem: RnnProblem, policy: Policy, known: tuple[RNNAlgo, ...] = ()) -> list[RNNAlgo]:
    """The algorithms to try: of a reserve its own, else the ``known`` that may be used (none given: in their order)."""
    own = problem.made_by.partition(":")[2]
    if own:
        return [RNNAlgo[own.upper()]]
    if known:
        return [a for a in known if not refusal(a, problem, policy)]
    return algorithms(problem, policy)


def _training(problem: RnnProblem) -> bool:
    return problem.op == "rnn_backward" or problem.keeps


def _unsupported(error: CudnnError) -> bool:
    """Whether cuDNN said that it has not what was asked: a bad parameter (2xxx) or "not supported" (3xxx)."""
    return error.status // 1000 in (2, 3)


def _sizes(problem: RnnProblem, policy: Policy, algorithm: RNNAlgo) -> tuple[int, int]:
    """Bytes of workspace and reserve; CudnnError where cuDNN has not this algorithm."""
    from numbadnn.gpu import context as _context

    library = lib.load()
    with _context.ensure_context(policy.device):
        handle = lib.handle(library, policy.device).value
        d = describe(library, handle, problem, policy, _training(problem), algorithm)
    return d.workspace, d.reserve


def reserve_bytes(problem: RnnProblem, device: int) -> int:
    """The size of cuDNN's reserve under any algorithm for a forward problem, 0 where cuDNN cannot be used."""
    from numbadnn import cudnn
    from numbadnn.kernels.build import simulate

    if simulate.active() or not cudnn.available():
        return 0
    kept = replace(problem, outputs=(*problem.outputs, Spec.of(problem.dtype, (1,))))  # a forward pass that keeps
    sizes = [0]
    for precision in ("ieee", "tf32"):
        policy = Policy(device, fp32_precision=precision)
        sizes += [_sizes(kept, policy, RNNAlgo[a["algorithm"].upper()])[1] for a in space(kept, policy)]
    return max(sizes)


# ---- planning --------------------------------------------------------------------------------------------------------


def plan(problem: RnnProblem, policy: Policy, config: Any = None) -> Executable:
    """Descriptors and workspace, bound into one callable; operands with gaps are copied."""
    named = () if config is None else (RNNAlgo[config["algorithm"].upper()],)
    refused: list[str] = []
    for algorithm in _wanted(problem, policy, named):
        try:
            made = plan_packed(problem, policy.device, partial(_plan, policy=policy, algorithm=algorithm))
        except CudnnError as error:
            if not _unsupported(error):
                raise
            refused.append(f"{algorithm.name}: {error}")
            continue
        made.arithmetic = arithmetic(problem, policy)
        if refused:
            made.facts["refused"] = refused
        return made
    why = "; ".join(refused) or "; ".join(refusal(a, problem, policy) for a in named)
    raise NotSupportedError(f"cuDNN has no algorithm for {problem}: {why}")


def arithmetic(problem: RnnProblem, policy: Policy) -> str:
    """The class whose bound the products keep.

    Of float16 every algorithm rounds W x to float16 before R h is added, the standard one R h too (9.19, H200: to the bit).
    """
    if problem.dtype == "float16":
        return "half_products"
    return "tf32" if problem.dtype == "float32" and policy.fp32_precision == "tf32" else "ieee"


def _plan(problem: RnnProblem, policy: Policy, algorithm: RNNAlgo) -> Executable:
    from numbadnn.gpu import context as _context

    backward, names = problem.op == "rnn_backward", (*problem.names, *problem.result_names)
    calls = Calls(problem, policy, _training(problem), algorithm)
    n, itemsize = problem.network, problem.inputs[0].itemsize
    y_bytes = problem.steps * problem.batch * n.hidden_size * n.directions * itemsize
    alone = backward and "reserve" not in problem.names
    if alone:
        calls.reserve("y", y_bytes)
        calls.reserve("reserve", calls.d.reserve)
    if backward and "dy" not in problem.names:
        calls.reserve("dy", y_bytes)
    if backward and calls.converts:
        calls.reserve("dw", calls.d.weights)
    problem.check_reserve(calls.d.reserve)
    mode = ForwardMode.TRAINING if problem.keeps else ForwardMode.INFERENCE

    def run(inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: int, stream: int) -> None:
        a = dict(zip(names, (*inputs, *outputs), strict=True))
        workspace, stream = workspace or 0, stream or 0
        with _context.ensure_context(policy.device):
            if stream != calls.handle.stream:
                calls.handle.set_stream(stream)
            w = calls.weights(a["w"], workspace, stream)
            if not backward:
                calls.forward(mode, a, w, a.get("reserve", 0), workspace)
                return
            for name in ("y", "reserve", "dy"):
                a.setdefault(name, workspace + calls.at.get(name, 0))
            if alone:
                calls.forward(ForwardMode.TRAINING, a, w, a["reserve"], workspace)
            if "dy" not in problem.names:
                calls.zero(a["dy"], y_bytes, stream)
            dw = workspace + calls.at["dw"] if calls.converts else a["dw"]
            calls.zero(dw, calls.d.weights, stream)
            calls.backward(a, w, dw, workspace)
            if calls.converts:
                calls.gather(a["dw"], dw, stream)

    facts = _facts(calls, problem, policy, algorithm)
    return Executable(run, workspace_bytes=calls.workspace_bytes, facts=facts, summation=SEQUENCE)


def _facts(calls: Calls, problem: RnnProblem, policy: Policy, algorithm: RNNAlgo) -> dict[str, Any]:
    """What explain shows; ``reserve`` is what ``made_by`` of a reserve says."""
    name = algorithm.name.lower()
    facts: dict[str, Any] = {
        "cudnn": calls.library.version,
        "config": {"algorithm": name},
        "math": math_type(problem.dtype, policy).name,
        "copies": [f"w in {len(calls.d.stretches)} stretches"] if calls.converts else [],
        "reserve": f"{NAME}:{name}",
    }
    if problem.op == "rnn_backward" and problem.network.rnn_mode == "rnn_relu":
        facts["slope at 0"] = (
            "1 (cuDNN 9.19): a gradient passes where the sum is exactly 0; elsewhere in numbadnn it is 0"
        )
    return facts


def rank(problem: RnnProblem) -> float:
    """Microseconds under ieee rounding."""
    return _microseconds(problem, Policy(0))


def foretell(problem: RnnProblem, policy: Policy) -> float | None:
    """The same under TF32, which admits faster algorithms for small networks than ``rank`` knows of."""
    tf32 = problem.dtype == "float32" and policy.fp32_precision == "tf32"
    return _microseconds(problem, policy) if tf32 else None


def _microseconds(problem: RnnProblem, policy: Policy) -> float:
    """Roughly, as measured on an H200: a step of the standard algorithm costs 9 whatever its size."""
    n = problem.network
    rate = {"float16": 3e8, "float32": 4e7, "float64": 3e7}[problem.dtype]
    first = algorithms(problem, policy)[0]
    small = (0.4 if n.hidden_size <= 64 else 1.9) if n.rnn_mode == "lstm" else 1.2 if n.rnn_mode == "gru" else 0.6
    if n.hidden_size > MOST_QUICK:
        small = 10.0
    step = {STANDARD: 9.0, STATIC: 5.0, SMALL: small}[first]
    directions = 1.3 if first is STANDARD and n.directions == 2 else n.directions  # both at once
    return 15 + step * problem.steps * n.num_layers * directions + problem.flops / rate


for _op in ("rnn_forward", "rnn_backward"):
    register(
        Impl(
            _op, "cudnn", NAME, supports, plan, rank, "ieee", "run_to_run", space=space, restore=restore,
            reserve_bytes=reserve_bytes, foretell=foretell,
        )
    )  # fmt: skip
